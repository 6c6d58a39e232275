//! What queue pairs have of a shared receive queue.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use crate::context::Context;
use crate::error::{Errno, Error, QueueOwner, Refusal, Result};
use crate::event::{EventType, ObjectEvents};
use crate::pd::ProtectionDomain;
use crate::sys::SrqHandle;
use crate::sys::abi::ibv_srq_attr;
use crate::wq::Ring;

/// The shared receive queue itself; destroyed when its owner and the last of its queue pairs are gone.
pub(crate) struct SharedCore {
    /// Destroyed before the rest is let go of.
    handle: ManuallyDrop<SrqHandle>,
    /// Then there is no handle any more, and this is about to be dropped.
    destroyed: bool,
    pub(crate) pd: ProtectionDomain,
    /// What may be posted.
    pub(crate) caps: ibv_srq_attr,
    pub(crate) granted: ibv_srq_attr,
    pub(crate) table: Arc<Ring>,
    pub(crate) events: Arc<ObjectEvents>,
    /// Nobody posts any more: no queue pair is made on it.
    closed: AtomicBool,
    /// The events that were taken from `events` and not told yet, bit by bit.
    happened: AtomicU32,
    /// 0 while receives may be posted; [`FAILED`], or an errno and [`POISONED`].
    trouble: AtomicU64,
}

const FAILED: u64 = 1 << 32;
const POISONED: u64 = 1 << 33;

impl SharedCore {
    pub(crate) fn new(
        handle: SrqHandle,
        pd: ProtectionDomain,
        (caps, granted): (ibv_srq_attr, ibv_srq_attr),
        table: Arc<Ring>,
        events: Arc<ObjectEvents>,
    ) -> SharedCore {
        SharedCore {
            handle: ManuallyDrop::new(handle),
            destroyed: false,
            pd,
            caps,
            granted,
            table,
            events,
            closed: AtomicBool::new(false),
            happened: AtomicU32::new(0),
            trouble: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn srq(&self) -> &SrqHandle {
        &self.handle
    }

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
    }

    /// What refusals name it by.
    pub(crate) fn number(&self) -> u64 {
        self.events.id().number()
    }

    pub(crate) fn name(&self) -> QueueOwner {
        QueueOwner::SharedReceiveQueue(self.number())
    }

    /// Whether receives may be posted.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.events.any() {
            self.take_in();
        }
        match self.trouble.load(Ordering::Relaxed) {
            0 => Ok(()),
            trouble => Err(self.trouble(trouble)),
        }
    }

    #[cold]
    fn trouble(&self, trouble: u64) -> Refusal {
        if trouble & FAILED != 0 {
            return Refusal::Failed { srq: self.number() };
        }
        Refusal::Poisoned { on: self.name(), errno: Errno::from_raw(trouble as u32 as i32) }
    }

    /// A post failed: the refusal for it, and no more posts if it may have been taken.
    #[cold]
    pub(crate) fn refused(&self, verb: &'static str, errno: Errno, taken: bool) -> Refusal {
        if !taken {
            return Refusal::Device { verb, on: self.name(), errno };
        }
        let poison = POISONED | u64::from(errno.raw() as u32);
        self.trouble.fetch_or(poison, Ordering::Relaxed);
        Refusal::Unsure { verb, on: self.name(), errno }
    }

    #[cold]
    fn take_in(&self) {
        let bit = |event: EventType| 1_u32 << event.raw();
        let happened = self.events.take();
        if happened & bit(EventType::SRQ_ERR) != 0 {
            self.trouble.fetch_or(FAILED, Ordering::Relaxed);
        }
        self.happened.fetch_or(happened, Ordering::Relaxed);
    }

    /// Of the events in this set, those that happened since they were taken last.
    pub(crate) fn take_events(&self, which: u32) -> u32 {
        self.take_in();
        self.happened.fetch_and(!which, Ordering::Relaxed) & which
    }

    /// From now on no queue pair is made on it, or again one is.
    pub(crate) fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
        // With that of `upgrade`: who then finds nobody else that has it, nobody finds open.
        fence(Ordering::SeqCst);
    }

    /// `ibv_destroy_srq`, for who alone has it. If it fails, it comes back.
    pub(crate) fn destroy(mut self) -> Result<(), (SharedCore, Errno)> {
        self.try_destroy().map_err(|errno| (self, errno))
    }

    fn try_destroy(&mut self) -> Result<(), Errno> {
        // SAFETY: put back if it is not gone; if it is, that is noted, and nobody uses it after.
        let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
        let key = handle.key() as u64;
        match handle.destroy() {
            Ok(()) => {}
            // The kernel destroyed it with the device.
            Err((handle, errno)) if self.context().went_with(errno) => handle.gone(),
            Err((handle, errno)) => {
                self.handle = ManuallyDrop::new(handle);
                return Err(errno);
            }
        }
        self.destroyed = true;
        self.context().events().unregister(key, &self.events);
        Ok(())
    }
}

impl Drop for SharedCore {
    fn drop(&mut self) {
        if self.destroyed {
            return;
        }
        if let Err(errno) = self.try_destroy() {
            let context = self.context().clone();
            context.events().unregister(self.handle.key() as u64, &self.events);
            // The device may still touch what is posted: that stays in its table, and that stays.
            std::mem::forget(Arc::clone(&self.table));
            context.leaked("shared receive queue", errno);
        }
        // Else it touches nothing of it any more: the last owner of the table drops what is left.
    }
}

/// What queue pairs are made by that receive from a [`SharedReceiveQueue`](crate::SharedReceiveQueue), while
/// it is somebody else's to post on. Cheap to clone.
///
/// It keeps nothing going: when the shared receive queue was dropped, no more queue pairs can be made on it
/// ([`Error::SharedReceiveQueueGone`]).
#[derive(Clone)]
pub struct SharedReceiveQueueHandle {
    core: Weak<SharedCore>,
}

impl SharedReceiveQueueHandle {
    pub(crate) fn new(core: &Arc<SharedCore>) -> SharedReceiveQueueHandle {
        SharedReceiveQueueHandle { core: Arc::downgrade(core) }
    }

    /// The queue itself, if somebody posts on it.
    pub(crate) fn upgrade(&self) -> Result<Arc<SharedCore>> {
        let core = self.core.upgrade().ok_or(Error::SharedReceiveQueueGone)?;
        fence(Ordering::SeqCst);
        if core.closed.load(Ordering::SeqCst) {
            return Err(Error::SharedReceiveQueueGone);
        }
        Ok(core)
    }
}

impl AsRef<SharedReceiveQueueHandle> for SharedReceiveQueueHandle {
    fn as_ref(&self) -> &SharedReceiveQueueHandle {
        self
    }
}

impl fmt::Debug for SharedReceiveQueueHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.core.upgrade().map(|core| core.events.id());
        f.debug_struct("SharedReceiveQueueHandle").field("id", &id).finish()
    }
}
