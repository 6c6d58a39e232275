//! The receive queue of a queue pair.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use super::batch::place_in_chain;
use super::core::Core;
use super::send::{Entries, EntryList, PostError};
use crate::error::{Queue, Refusal, Result};
use crate::mem::Scatter;
use crate::sys::abi::ibv_recv_wr;
use crate::types::{Qpn, WcOpcode};
use crate::wq::{Entry, Poster};

/// The receive queue of a queue pair: memory for what the peer sends, posted by one thread at a time.
///
/// Posting moves the memory into the queue; the completion of the message that took it gives it back, where
/// completions are polled. Receives can be posted as soon as the queue pair is in
/// [`Init`](super::Init), so that they are there before the peer sends.
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
        let mut entries = Entries::new();
        if let Err(refusal) = self.check(&receive, 0, &mut entries) {
            return Err(PostError { refusal, request: Some(receive) });
        }
        let (wr_id, entry) = (receive.wr_id, receive.entry());
        let id = self.poster.put(0, entry, receive.memory);
        let (sg_list, num_sge) = entries.list();
        let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list, num_sge };
        let chain = &raw mut wr;
        self.poster.reserve(1);
        let mut bad = null_mut();
        // SAFETY: the chain is one work request, whose entries live until the call returns. Its memory is
        // owned by the ring from now on, until it is complete or the queue pair is destroyed.
        match unsafe { self.core.qp().post_recv(chain, &mut bad) } {
            Ok(()) => {
                self.poster.posted(1);
                Ok(())
            }
            Err(errno) => {
                let taken = bad != chain;
                let refusal = self.core.refused("ibv_post_recv", errno, taken);
                if taken {
                    self.poster.posted(1);
                    return Err(PostError { refusal, request: None });
                }
                self.poster.refused(1, 0);
                let memory = self.poster.restore::<M>(entries.as_slice());
                let request = memory.map(|memory| Receive { memory, wr_id });
                Err(PostError { refusal, request })
            }
        }
    }

    /// Posts what was put, all of it (`ibv_post_recv`).
    ///
    /// # Errors
    ///
    /// Why not, and how many of them the device took, from the first on; all, when it does not say. The poster
    /// is still to be told of it ([`Poster::not_all`]).
    ///
    /// # Safety
    ///
    /// The chain has `count` receives, at least one, that were put in this order, with their entries, and stays
    /// where it is until this returns.
    #[inline]
    pub(super) unsafe fn post_chain(
        &mut self,
        chain: *mut ibv_recv_wr,
        count: usize,
    ) -> Result<(), (Refusal, usize)> {
        self.poster.reserve(count as u32);
        let mut bad = null_mut();
        // SAFETY: well formed, by this function's own contract. Its memory is owned by the ring from now on,
        // until it is complete or the queue pair is destroyed.
        match unsafe { self.core.qp().post_recv(chain, &mut bad) } {
            Ok(()) => {
                self.poster.posted(count as u32);
                Ok(())
            }
            Err(errno) => {
                let place = place_in_chain(chain, count, bad);
                let refusal = self.core.refused("ibv_post_recv", errno, place.is_none());
                Err((refusal, place.unwrap_or(count)))
            }
        }
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

    /// What can be found wrong before the device sees it. Fills the entries.
    #[inline]
    pub(super) fn check<M: Scatter>(
        &mut self,
        receive: &Receive<M>,
        after: u32,
        entries: &mut impl EntryList,
    ) -> Result<(), Refusal> {
        let core = &*self.core;
        core.check()?;
        if !self.poster.has_room(after) {
            let (qpn, depth) = (core.qpn(), self.depth());
            return Err(Refusal::Full { queue: Queue::Receive, qpn, depth });
        }
        if M::COUNT as u32 > core.caps.max_recv_sge {
            let (asked, limit) = (M::COUNT as u32, core.caps.max_recv_sge);
            return Err(Refusal::TooManyEntries { qpn: core.qpn(), asked, limit });
        }
        let mut other = false;
        receive.memory.for_each(true, &mut |entry, domain| {
            other |= domain != core.domain;
            entries.push(entry);
        });
        if other { Err(Refusal::OtherDomain { qpn: core.qpn() }) } else { Ok(()) }
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
