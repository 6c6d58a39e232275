//! The shared receive queues whose receives complete on a completion queue.
//!
//! One enters with the first of its queue pairs that receives here, and takes room for all its receives,
//! since all could complete here. It has left when the last of them was destroyed and the completion queue
//! was seen empty after that: until then completions of it may be there, and the table is kept.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::CompletionQueue;
use super::owners::{Gone, Owners, Polled, Shared};
use super::poll::Found;
use crate::error::{Error, Result};
use crate::sys::abi::ibv_wc;
use crate::wq::{Ring, WrId};

/// A shared receive queue with queue pairs that receive here.
pub(super) struct Srq {
    table: Arc<Ring>,
    /// How many queue pairs there are.
    users: u32,
    /// Counts how often there were none.
    left: u64,
    /// Whether one of them was really made.
    used: bool,
}

impl Shared {
    /// One more queue pair receives here from this table; takes room if it is the first.
    pub(crate) fn enter_shared(&self, table: &Arc<Ring>) -> Result<()> {
        let mut owners = self.owners();
        if owners.abandoned {
            return Err(Error::CompletionQueueGone);
        }
        if let Some(srq) = owners.srq(table) {
            srq.users += 1;
            return Ok(());
        }
        owners.take_room(table.depth(), self.size)?;
        table.enter();
        owners.srqs.push(Srq { table: Arc::clone(table), users: 1, left: 0, used: false });
        self.changed(&owners);
        Ok(())
    }

    /// One less: it was destroyed, or (`made` is false) could not be made.
    pub(crate) fn leave_shared(&self, table: &Arc<Ring>, made: bool) {
        let mut owners = self.owners();
        let abandoned = owners.abandoned;
        let Some(srq) = owners.srq(table) else { return };
        srq.used |= made;
        srq.users -= 1;
        if srq.users != 0 {
            return;
        }
        srq.left += 1;
        let gone = Gone::Srq { owner: table.owner().owner, left: srq.left };
        // Nobody will look any more, or nothing was ever received.
        let at_once = abandoned || !srq.used;
        let removed = if at_once {
            owners.end_srq(gone)
        } else {
            owners.dead.push(gone);
            None
        };
        self.changed(&owners);
        drop(owners);
        // Its last owner drops what is in it: not under the lock.
        drop(removed);
        // Who waits is to see the queue empty once more, though the device will not say so.
        self.wake();
    }
}

impl Owners {
    fn srq(&mut self, table: &Arc<Ring>) -> Option<&mut Srq> {
        self.srqs.iter_mut().find(|srq| Arc::ptr_eq(&srq.table, table))
    }

    /// Gives back the room of one that has left, unless another queue pair of it was made meanwhile; gives its
    /// table, to be dropped when the lock is not held.
    pub(super) fn end_srq(&mut self, gone: Gone) -> Option<Arc<Ring>> {
        let Gone::Srq { owner, left } = gone else { return None };
        let is_it =
            |srq: &Srq| srq.table.owner().owner == owner && srq.users == 0 && srq.left == left;
        let at = self.srqs.iter().position(is_it)?;
        let Srq { table, .. } = self.srqs.swap_remove(at);
        self.room += table.depth();
        table.leave();
        Some(table)
    }
}

impl Polled {
    /// Copies the list.
    pub(super) fn catch_up_srqs(&mut self, owners: &Owners) {
        self.srqs.fill_with(|| None);
        for srq in &owners.srqs {
            let Some(number) = srq.table.owner().shared() else { continue };
            let number = usize::from(number);
            if self.srqs.len() <= number {
                self.srqs.resize_with(number + 1, || None);
            }
            self.srqs[number] = Some(Arc::clone(&srq.table));
        }
    }

    /// The table of the shared receive queue that a completion names.
    #[inline]
    pub(super) fn srq(&self, id: WrId) -> Option<&Arc<Ring>> {
        let table = self.srqs.get(usize::from(id.shared()?))?.as_ref()?;
        (table.owner().generation == id.generation).then_some(table)
    }

    /// The completion queue was seen empty after this one had left.
    pub(super) fn end_srq(&mut self, shared: &Shared, gone: Gone) {
        let ended = shared.owners().end_srq(gone);
        let number = ended.as_ref().and_then(|table| table.owner().shared());
        let copy = number.and_then(|number| self.srqs.get_mut(usize::from(number))?.take());
        drop((ended, copy));
    }
}

impl CompletionQueue {
    /// The next entry that is not the usual one: of a shared receive queue, or another.
    ///
    /// # Safety
    ///
    /// As for [`find_usual`](CompletionQueue::find_usual).
    #[cold]
    pub(super) unsafe fn find_further<'a>(&mut self) -> Option<Found<'a>> {
        if self.open.next < self.count {
            // SAFETY: as in `find_usual`.
            let wc = unsafe { &*self.entries[self.open.next].as_ptr() };
            // SAFETY: by this function's own contract.
            if let Some(found) = unsafe { self.find_shared(wc) } {
                return Some(found);
            }
        }
        // SAFETY: by this function's own contract.
        unsafe { self.find_other() }
    }

    /// What an entry names, if that is a receive in flight of a shared receive queue.
    ///
    /// # Safety
    ///
    /// As for [`find_usual`](CompletionQueue::find_usual); the entry is the next.
    #[inline]
    pub(super) unsafe fn find_shared<'a>(&mut self, wc: &'a ibv_wc) -> Option<Found<'a>> {
        let id = WrId::of(wc.wr_id);
        let ring: *const Ring = &**self.polled.srq(id)?;
        // SAFETY: in the poller's own list, which does not change before what is found was let go of.
        let ring = unsafe { &*ring };
        let claim = ring.claim_shared(id.sequence)?;
        self.open.next += 1;
        Some(Found { ring, claim, wc, silent: false })
    }

    /// Ends the completion of this `wr_id`, which was forgotten. Others poll from its table: this one only.
    pub(super) fn finish_forgotten_shared(&self, wr_id: u64) {
        let id = WrId::of(wr_id);
        if let Some(table) = self.polled.srq(id) {
            // SAFETY: claimed here, and not dropped, or it were not open any more.
            unsafe { table.finish_forgotten_by_poller(id.sequence) };
        }
    }
}
