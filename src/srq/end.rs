//! How a shared receive queue is given up.

#![allow(unsafe_code)]
#![allow(clippy::result_large_err)] // what cannot be given up comes back

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::SharedReceiveQueue;
use crate::error::Error;
use crate::mem::Memory;
use crate::qp::{SharedCore, SharedReceiveQueueHandle};
use crate::wq::{Ring, SharedPoster};

/// What was still posted on a [`SharedReceiveQueue`] when it was given up: an iterator over the receives that
/// did not complete, in the order in which they were posted. What is not asked for goes to its pools.
pub struct Left {
    table: Arc<Ring>,
    places: std::vec::IntoIter<u32>,
    overtaken: usize,
}

/// A receive that did not complete.
#[derive(Debug)]
#[non_exhaustive]
pub struct LeftReceive {
    /// The caller's own number.
    pub wr_id: u64,
    /// Its memory, in the order it was posted. What is in it means nothing: a part of a message may be.
    pub memory: Vec<Memory>,
}

impl Left {
    /// How many there were, at first, that were posted before one that completed: queue pairs that died had
    /// taken them. (They come first.)
    pub fn overtaken(&self) -> usize {
        self.overtaken
    }
}

impl Iterator for Left {
    type Item = LeftReceive;

    fn next(&mut self) -> Option<LeftReceive> {
        // None where a device completes what it was made to let go of.
        let mut claimed = self.places.find_map(|place| self.table.claim_slot(place))?;
        let memory = std::iter::from_fn(|| claimed.take()).filter_map(|held| held.into_memory());
        let memory = memory.collect();
        Some(LeftReceive { wr_id: claimed.wr_id(), memory })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

impl ExactSizeIterator for Left {}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Left")
            .field("len", &self.len())
            .field("overtaken", &self.overtaken)
            .finish_non_exhaustive()
    }
}

/// A shared receive queue that could not be given up: why, and the queue.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct FinishError {
    /// Why.
    pub error: Error,
    /// The queue.
    pub queue: SharedReceiveQueue,
}

impl fmt::Debug for FinishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinishError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl From<FinishError> for Error {
    fn from(failed: FinishError) -> Error {
        failed.error
    }
}

impl SharedReceiveQueue {
    /// Destroys it (`ibv_destroy_srq`), and gives back what did not complete.
    ///
    /// Before that its queue pairs must be gone, and each completion queue that they received on be polled until
    /// it gave nothing more, since receives that completed may be told there still.
    ///
    /// # Errors
    ///
    /// [`FinishError`], with the queue: [`Error::InUse`] until that is so; [`Error::Verb`] when the device does
    /// not destroy it, and then handles that were given before make no queue pairs on it any more
    /// ([`Error::SharedReceiveQueueGone`]), but new ones do. It can be tried again; dropping it instead is right
    /// too, and if it cannot be destroyed it then stays, with its memory
    /// ([`Context::leaks`](crate::Context::leaks)).
    #[doc(alias = "ibv_destroy_srq")]
    pub fn finish(self) -> Result<Left, FinishError> {
        // From here on nobody makes a queue pair on it.
        self.core.close(true);
        let queue_pairs = Arc::strong_count(&self.core) > 1;
        // With the release of the last of them: what it entered is seen.
        fence(Ordering::Acquire);
        if queue_pairs {
            return Err(self.in_use("queue pairs that receive from it"));
        }
        if self.core.table.entered() != 0 {
            return Err(self.in_use("completion queues that its completions may be on"));
        }
        let (core, handle, mut poster) = self.take_apart();
        let core = match Arc::try_unwrap(core) {
            Ok(core) => core,
            // Somebody tries to make a queue pair at this moment, and will not.
            Err(core) => {
                let queue = SharedReceiveQueue { core, handle, poster };
                return Err(queue.in_use("queue pairs that receive from it"));
            }
        };
        if let Err((core, errno)) = core.destroy() {
            let core = Arc::new(core);
            core.close(false);
            let handle = SharedReceiveQueueHandle::new(&core);
            let queue = SharedReceiveQueue { core, handle, poster };
            let error = queue.error("ibv_destroy_srq", errno);
            return Err(FinishError { error, queue });
        }
        let (places, overtaken) = poster.left();
        let table = Arc::clone(poster.table());
        Ok(Left { table, places: places.into_iter(), overtaken })
    }

    fn in_use(self, by: &'static str) -> FinishError {
        self.core.close(false);
        let error = Error::InUse { what: "the shared receive queue", by };
        FinishError { error, queue: self }
    }

    /// Its parts, without its end.
    fn take_apart(self) -> (Arc<SharedCore>, SharedReceiveQueueHandle, SharedPoster) {
        let this = ManuallyDrop::new(self);
        // SAFETY: each field is moved out once, and `this` is not used, nor dropped, any more.
        unsafe {
            (std::ptr::read(&this.core), std::ptr::read(&this.handle), std::ptr::read(&this.poster))
        }
    }
}
