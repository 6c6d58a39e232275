//! Posting receives: the same to the receive queue of a queue pair and to a shared one.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::null_mut;

use super::batch::place_in_chain;
use super::recv::Receive;
use super::send::{Entries, EntryList, PostError};
use crate::error::{Errno, QueueOwner, Refusal};
use crate::mem::Scatter;
use crate::sys::abi::ibv_recv_wr;
use crate::wq::Posting;

/// A queue that receives are posted on: which table they go to, what can be posted, and how.
pub(crate) trait Receives {
    /// The posting side of its table.
    type Poster: Posting + Send + Sync + 'static;

    /// The C function that posts.
    const VERB: &'static str;

    fn poster(&mut self) -> &mut Self::Poster;

    fn owner(&self) -> QueueOwner;

    /// Whether it takes any.
    fn check_state(&self) -> Result<(), Refusal>;

    /// Why it takes no more.
    fn full(&self) -> Refusal;

    /// The most entries of one, and the protection domain that their memory must be of.
    fn caps(&self) -> (u32, usize);

    /// Posts a chain. On a failure `bad` is the first that was not taken, or what it was before where the
    /// provider does not say.
    ///
    /// # Safety
    ///
    /// The chain is well formed and good during the call. Its memory is the table's, until it is complete or
    /// the queue is destroyed.
    unsafe fn post_raw(
        &self,
        chain: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> Result<(), Errno>;

    /// A post failed: the refusal for it, and no more posts if it may have been taken.
    fn refused(&self, errno: Errno, taken: bool) -> Refusal;

    /// What can be found wrong with one that is `after` others, before the device sees it. Fills the entries.
    #[inline]
    fn check<M: Scatter>(
        &mut self,
        receive: &Receive<M>,
        after: u32,
        entries: &mut impl EntryList,
    ) -> Result<(), Refusal> {
        self.check_state()?;
        if !self.poster().has_room(after) {
            return Err(self.full());
        }
        let (limit, ours) = self.caps();
        if M::COUNT as u32 > limit {
            return Err(Refusal::TooManyEntries {
                on: self.owner(),
                asked: M::COUNT as u32,
                limit,
            });
        }
        let mut other = false;
        receive.memory.for_each(true, &mut |entry, domain| {
            other |= domain != ours;
            entries.push(entry);
        });
        if other { Err(Refusal::OtherDomain { what: "memory", on: self.owner() }) } else { Ok(()) }
    }

    /// Posts what was put, all of it.
    ///
    /// # Errors
    ///
    /// Why not, and how many of them the device took, from the first on; all, when it does not say. The poster
    /// is still to be told of it ([`Posting::not_all`]).
    ///
    /// # Safety
    ///
    /// The chain has `count` receives, at least one, that were put in this order, with their entries, and stays
    /// where it is until this returns.
    #[inline]
    unsafe fn post_chain(
        &mut self,
        chain: *mut ibv_recv_wr,
        count: usize,
    ) -> Result<(), (Refusal, usize)> {
        self.poster().reserve(count as u32);
        let mut bad = null_mut();
        // SAFETY: well formed, by this function's own contract. Its memory is owned by the table from now on,
        // until it is complete or the queue is destroyed.
        match unsafe { self.post_raw(chain, &mut bad) } {
            Ok(()) => {
                self.poster().posted(count as u32);
                Ok(())
            }
            Err(errno) => {
                let place = place_in_chain(chain, count, bad);
                let refusal = self.refused(errno, place.is_none());
                Err((refusal, place.unwrap_or(count)))
            }
        }
    }

    /// Posts one.
    #[inline]
    fn post_one<M: Scatter + fmt::Debug>(
        &mut self,
        receive: Receive<M>,
    ) -> Result<(), PostError<Receive<M>>> {
        let mut entries = Entries::new();
        if let Err(refusal) = self.check(&receive, 0, &mut entries) {
            return Err(PostError { refusal, request: Some(receive) });
        }
        let (wr_id, entry) = (receive.wr_id, receive.entry());
        let id = self.poster().put(0, entry, receive.memory);
        let (sg_list, num_sge) = entries.list();
        let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list, num_sge };
        let chain = &raw mut wr;
        self.poster().reserve(1);
        let mut bad = null_mut();
        // SAFETY: the chain is one work request, whose entries live until the call returns. Its memory is
        // owned by the table from now on, until it is complete or the queue is destroyed.
        match unsafe { self.post_raw(chain, &mut bad) } {
            Ok(()) => {
                self.poster().posted(1);
                Ok(())
            }
            Err(errno) => {
                let taken = bad != chain;
                let refusal = self.refused(errno, taken);
                if taken {
                    self.poster().posted(1);
                    return Err(PostError { refusal, request: None });
                }
                self.poster().refused(1, 0);
                let memory = self.poster().restore::<M>(entries.as_slice());
                let request = memory.map(|memory| Receive { memory, wr_id });
                Err(PostError { refusal, request })
            }
        }
    }
}
