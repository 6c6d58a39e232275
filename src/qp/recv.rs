//! The receive queue of a queue pair.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::core::Core;
use super::receives::Receives;
use super::send::PostError;
use crate::error::{Errno, Queue, QueueOwner, Refusal, Result};
use crate::mem::Scatter;
use crate::sys::abi::ibv_recv_wr;
use crate::types::{Qpn, WcOpcode};
use crate::wq::{Entry, Poster, Posting};

/// The receive queue of a queue pair: memory for what the peer sends, posted by one thread at a time.
///
/// Posting moves the memory into the queue; the completion of the message that took it gives it back, where
/// completions are polled. Receives can be posted as soon as the queue pair is in
/// [`Init`](super::Init), so that they are there before the peer sends.
///
/// Nothing can be posted on that of a queue pair which receives from a [shared](crate::SharedReceiveQueue) one
/// ([`Refusal::ReceivesShared`]).
pub struct RecvQueue {
    pub(super) core: Arc<Core>,
    pub(super) poster: Poster,
}

/// A receive: memory for one message, a [`Scatter`] list of whole buffers.
#[derive(Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct Receive<M> {
    pub(super) memory: M,
    pub(super) wr_id: u64,
}

impl<M: Scatter> Receive<M> {
    /// Receives into this memory, of buffers their whole capacity; `()` for a message without bytes.
    #[inline]
    pub fn new(memory: M) -> Receive<M> {
        Receive { memory, wr_id: 0 }
    }

    /// The caller's own number, which the completion gives back (`wr_id`); 0 unless asked.
    #[inline]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// The memory, of a receive that was not posted.
    pub fn into_memory(self) -> M {
        self.memory
    }

    #[inline]
    pub(super) fn entry(&self) -> Entry {
        Entry { wr_id: self.wr_id, opcode: WcOpcode::RECV, pieces: 1, internal: false }
    }
}

impl RecvQueue {
    pub(super) fn new(core: Arc<Core>, poster: Poster) -> RecvQueue {
        RecvQueue { core, poster }
    }

    /// Posts a receive (`ibv_post_recv`).
    ///
    /// # Errors
    ///
    /// [`PostError`], with the receive: a queue that is full ([`Refusal::Full`]) among others. The queue goes
    /// on, unless the refusal says otherwise.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post<M: Scatter + fmt::Debug>(
        &mut self,
        receive: Receive<M>,
    ) -> Result<(), PostError<Receive<M>>> {
        self.post_one(receive)
    }

    /// The queue pair.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.core.qpn()
    }

    /// How many receives can be in flight.
    pub fn depth(&self) -> u32 {
        self.poster.ring().depth()
    }

    /// How many are in flight now: posted, and their completions not let go of.
    pub fn in_flight(&mut self) -> u32 {
        self.poster.in_flight()
    }

    /// Closes the whole queue pair; see [`QueuePair::close`](super::QueuePair::close).
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition).
    pub fn close(&self) -> Result<()> {
        self.core.close()
    }
}

impl Receives for RecvQueue {
    type Poster = Poster;

    const VERB: &'static str = "ibv_post_recv";

    #[inline]
    fn poster(&mut self) -> &mut Poster {
        &mut self.poster
    }

    #[inline]
    fn owner(&self) -> QueueOwner {
        self.core.qpn().into()
    }

    #[inline]
    fn check_state(&self) -> Result<(), Refusal> {
        self.core.check()
    }

    #[cold]
    fn full(&self) -> Refusal {
        let qpn = self.qpn();
        // Such a queue has room for none.
        if let Some(shared) = &self.core.shared {
            return Refusal::ReceivesShared { qpn, srq: shared.number() };
        }
        Refusal::Full { queue: Queue::Receive, on: qpn.into(), depth: self.depth() }
    }

    #[inline]
    fn caps(&self) -> (u32, usize) {
        (self.core.caps.max_recv_sge, self.core.domain)
    }

    #[inline]
    unsafe fn post_raw(
        &self,
        chain: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> Result<(), Errno> {
        // SAFETY: by this function's own contract.
        unsafe { self.core.qp().post_recv(chain, bad) }
    }

    fn refused(&self, errno: Errno, taken: bool) -> Refusal {
        self.core.refused(Self::VERB, errno, taken)
    }
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue")
            .field("qpn", &self.qpn())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
