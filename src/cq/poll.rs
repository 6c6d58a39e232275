//! What a poll gives, found by what the device's entries name.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::CompletionQueue;
use super::completion::Completion;
use crate::error::Queue;
use crate::sys::abi::ibv_wc;
use crate::types::WcStatus;
use crate::wq::{Claim, Ring, WrId};

/// The completions of one poll: ask for one after the other by [`next`](Drain::next). Those that are not
/// asked for are given by the next poll.
#[must_use = "it has the completions that were polled"]
pub struct Drain<'a> {
    cq: &'a mut CompletionQueue,
}

/// What a completion queue has open: nothing.
pub(super) const CLOSED: u64 = 0;
/// A completion of a queue pair's own queue. Of a shared receive queue it is the whole `wr_id` of the device,
/// which is neither.
const OPEN: u64 = 1;

/// What a completion that is held has of its queue.
pub(super) struct Open {
    /// Whether one is held, or was forgotten: [`CLOSED`], or of what it is.
    pub(super) what: AtomicU64,
    /// How many entries were looked at: the last of them is that of the completion, unless it is a silent one.
    pub(super) next: usize,
    /// The device's time of each entry; empty where none is told.
    pub(super) times: Box<[u64]>,
}

impl Open {
    pub(super) fn new(times: Box<[u64]>) -> Open {
        Open { what: AtomicU64::new(CLOSED), next: 0, times }
    }
}

/// What the next completion is made of, in registers.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) ring: &'a Ring,
    pub(super) claim: Claim,
    pub(super) wc: &'a ibv_wc,
    pub(super) silent: bool,
}

impl<'a> Drain<'a> {
    #[inline]
    pub(super) fn new(cq: &'a mut CompletionQueue) -> Drain<'a> {
        Drain { cq }
    }

    /// The next completion. It must be let go of before the one after it is asked for.
    #[allow(clippy::should_implement_trait)] // it lends, which an iterator cannot
    #[inline(always)] // as parts, it never is in memory
    pub fn next(&mut self) -> Option<Completion<'_>> {
        loop {
            let cq = &mut *self.cq;
            if *cq.open.what.get_mut() != CLOSED {
                cq.finish_forgotten();
            }
            // SAFETY: what is found is let go of before the queue is used again: it is part of the
            // completion, which borrows the queue.
            let found = match unsafe { cq.find_usual() } {
                Some(found) => {
                    *cq.open.what.get_mut() = OPEN;
                    found
                }
                None if cq.is_drained() => return None,
                None => {
                    // SAFETY: as above.
                    let found = unsafe { cq.find_further() }?;
                    let open = if found.claim.is_shared() { found.wc.wr_id } else { OPEN };
                    *cq.open.what.get_mut() = open;
                    found
                }
            };
            if found.claim.is_internal() {
                *cq.open.what.get_mut() = CLOSED;
                // SAFETY: found in this ring, just now.
                drop(unsafe { found.claim.of(found.ring) });
                continue;
            }
            // SAFETY: found just now, and used once.
            return Some(unsafe { Completion::new(found, &self.cq.open) });
        }
    }

    /// Whether there is nothing. If not, there may still be none to see: of the library's own requests.
    pub fn is_empty(&self) -> bool {
        self.cq.is_drained()
    }
}

impl fmt::Debug for Drain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

/// A completion that the device did not make.
const fn synthetic(status: WcStatus) -> ibv_wc {
    ibv_wc { status: status.raw(), ..ibv_wc::ZERO }
}

/// Of a send that is complete because a later one is.
static SILENT: ibv_wc = synthetic(WcStatus::SUCCESS);
/// Of a send that may not have been carried out, and of what was posted when its queue pair was destroyed.
static LEFT: ibv_wc = synthetic(WcStatus::WR_FLUSH_ERR);

impl CompletionQueue {
    /// The next entry, if it is the usual one: of a receive, or of the oldest send in flight, carried out.
    ///
    /// # Safety
    ///
    /// What is found is let go of before the queue is used again.
    #[inline(always)]
    unsafe fn find_usual<'a>(&mut self) -> Option<Found<'a>> {
        if self.open.next >= self.count {
            return None;
        }
        // SAFETY: integers, zero at first, of which the device's driver wrote what it means to tell; they
        // are not written again before the queue is polled again. The count is at most that of entries.
        let wc = unsafe { &*self.entries.as_ptr().add(self.open.next).cast::<ibv_wc>() };
        let id = WrId::of(wc.wr_id);
        let table = self.polled.table(id)?;
        let is_send = table.queue == Queue::Send;
        if is_send && (table.tail != id.sequence || wc.status != WcStatus::SUCCESS.raw()) {
            return None;
        }
        // SAFETY: as `claim_from` says.
        let (ring, claim) = unsafe { claim_from(&table.ring, id.sequence) }?;
        if is_send {
            table.tail = id.sequence.wrapping_add(1);
        }
        self.open.next += 1;
        Some(Found { ring, claim, wc, silent: false })
    }

    /// The next of every other kind.
    ///
    /// # Safety
    ///
    /// As for [`find_usual`](CompletionQueue::find_usual).
    #[cold]
    pub(super) unsafe fn find_other<'a>(&mut self) -> Option<Found<'a>> {
        while self.open.next < self.count {
            let wc = self.entries[self.open.next].as_ptr();
            // SAFETY: as in `find_usual`.
            let wc = unsafe { &*wc };
            let id = WrId::of(wc.wr_id);
            if self.polled.srq(id).is_some() {
                // SAFETY: by this function's own contract.
                match unsafe { self.find_shared(wc) } {
                    Some(found) => return Some(found),
                    None => self.stray(),
                }
                continue;
            }
            let Some(table) = self.polled.table(id) else {
                self.unknown(id);
                continue;
            };
            if !table.ring.has(id.sequence) {
                self.stray();
                continue;
            }
            if table.queue == Queue::Send {
                let tail = table.ring.first_possible(table.tail, table.ring.end());
                table.tail = tail.wrapping_add(1);
                if tail != id.sequence {
                    // A send before it, complete without a word; or a gap, where nothing is. Sends are
                    // carried out in order, and the first that is not fails; so those before one that did
                    // either, and only those. A flush tells of nothing before it: not every device flushes
                    // what was not to be signaled.
                    let carried_out = !table.failed && wc.status != WcStatus::WR_FLUSH_ERR.raw();
                    let wc = if carried_out { &SILENT } else { &LEFT };
                    // SAFETY: as `claim_from` says.
                    match unsafe { claim_from(&table.ring, tail) } {
                        Some((ring, claim)) => {
                            return Some(Found { ring, claim, wc, silent: true });
                        }
                        None => continue,
                    }
                }
                table.failed |= wc.status != WcStatus::SUCCESS.raw();
            }
            // SAFETY: as `claim_from` says.
            let claimed = unsafe { claim_from(&table.ring, id.sequence) };
            self.open.next += 1;
            match claimed {
                Some((ring, claim)) => return Some(Found { ring, claim, wc, silent: false }),
                // Taken back by its poster at this moment: refused, and completed all the same.
                None => self.strays += 1,
            }
        }
        while let Some((place, sequence)) = self.polled.next_left(&self.shared) {
            let ring = &self.polled.at(place)?.ring;
            // SAFETY: as `claim_from` says.
            if let Some((ring, claim)) = unsafe { claim_from(ring, sequence) } {
                return Some(Found { ring, claim, wc: &LEFT, silent: true });
            }
        }
        None
    }

    /// A completion of a queue that this copy of the list does not have: made since the poll began, or
    /// gone.
    #[cold]
    fn unknown(&mut self, id: WrId) {
        if self.polled.is_behind(&self.shared) {
            self.polled.catch_up(&self.shared);
            if self.polled.table(id).is_some() || self.polled.srq(id).is_some() {
                return;
            }
        }
        self.stray();
    }

    #[cold]
    fn stray(&mut self) {
        self.strays += 1;
        self.open.next += 1;
    }

    /// Ends the last completion that was given, which was forgotten (`mem::forget`).
    #[cold]
    pub(super) fn finish_forgotten(&mut self) {
        match std::mem::replace(self.open.what.get_mut(), CLOSED) {
            CLOSED => {}
            OPEN => {
                // SAFETY: the completion queue is borrowed exclusively, so no completion of it is held by
                // anybody.
                self.polled.tables().for_each(|table| unsafe { table.ring.finish_all_forgotten() });
            }
            shared => self.finish_forgotten_shared(shared),
        }
    }
}

/// Claims from a ring of the poller's own list, for longer than the list is borrowed.
///
/// # Safety
///
/// The caller is the poller, and has let go of the claim before. The claim is let go of before the list
/// changes, which keeps the ring alive.
#[inline(always)]
unsafe fn claim_from<'a>(ring: &Arc<Ring>, sequence: u32) -> Option<(&'a Ring, Claim)> {
    let ring: *const Ring = &**ring;
    // SAFETY: by this function's own contract.
    let ring = unsafe { &*ring };
    // SAFETY: as above.
    unsafe { ring.claim_parts(sequence) }.map(|claim| (ring, claim))
}
