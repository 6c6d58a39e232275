//! The table of a send or receive queue: a ring, posted to by one thread and retired from by one.
//!
//! Sequence numbers count every work request that was tried, and one is in the slot of its low bits. The
//! slot's state, one word, says which it is of, and whether it is free, in flight, or claimed: taken out
//! by somebody who has not yet finished with it. Whoever brings it from in flight to claimed owns the
//! memory.
//!
//! | who | does | in order |
//! |---|---|---|
//! | poster | fills a free slot, and says that it is in flight | relaxed |
//! | poster | `reserved` = behind the last | release: who sees it sees the slots |
//! | poster | posts; the device may complete from here on | |
//! | poster | claims back what the device refused, by an exchange of the state, empties and frees the slot | |
//! | poster | `posted` = behind the last | release: who sees it sees what was claimed back |
//! | poller | claims a number below `posted` whose slot has it in flight: a load and a store, for nobody else may | acquire of `posted` |
//! | poller | claims a number that is not below it by an exchange, as the poster who claims back: one of the two has it | acquire of `reserved` |
//! | poller | empties the slot and frees it | release |
//! | poster | finds a slot free | acquire |
//!
//! So the usual claim is a load and a store. The exchange is for the moment in which a completion comes
//! before the post has returned, and for a device that completes what it refused.
//!
//! The same slots serve a shared receive queue, by other rules: see `shared`.

#![allow(unsafe_code)]

mod claimed;
mod shared;
mod state;

use std::ptr::null_mut;

use super::id::WrId;
use crate::mem::Held;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::types::{Qpn, WcOpcode};

use claimed::{BY_POSTER, INTERNAL};
pub(crate) use claimed::{Claim, Claimed};
use shared::SharedPart;
use state::By;

/// Of a queue pair of datagrams; above the bits of its number.
const DATAGRAMS: u32 = 1 << 31;

/// See the module.
pub(crate) struct Ring {
    slots: Box<[Slot]>,
    /// One less than the number of slots, which is a power of two.
    mask: u32,
    /// The second and further entries of each slot.
    more: Box<[AtomicPtr<u8>]>,
    more_each: usize,
    /// Owner and generation, and sequence 0.
    base: u64,
    depth: u32,
    /// The queue pair, once it is made, and [`DATAGRAMS`].
    qpn: AtomicU32,
    /// Which of the flags of a completion say that the peer invalidated a key.
    invalidated: AtomicU32,
    written_by_poster: Poster,
    written_by_poller: Poller,
    /// Of the table of a shared receive queue, which is no ring: see `shared`.
    shared: Option<Box<SharedPart>>,
}

/// On a cache line that the poller only reads.
#[repr(align(64))]
struct Poster {
    reserved: AtomicU32,
    posted: AtomicU32,
}

/// On a cache line that the poster reads when the ring seems full.
#[repr(align(64))]
struct Poller {
    /// All before are free, as long as they are finished in order; else somewhere behind.
    free_to: AtomicU32,
}

struct Slot {
    state: AtomicU64,
    /// What [`Held::into_raw`] gave, while it is in flight or claimed.
    held: AtomicPtr<u8>,
    /// The caller's own number.
    wr_id: AtomicU64,
}

/// What the table knows of a work request besides its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The caller's own number.
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    /// How many pieces of memory, at least 1: [`Held::nothing`] counts.
    pub(crate) pieces: u8,
    /// Of the library's own, not to be shown.
    pub(crate) internal: bool,
}

impl Entry {
    #[inline]
    fn kind(self) -> u32 {
        let internal = if self.internal { INTERNAL } else { 0 };
        self.opcode.raw() & 0xff | u32::from(self.pieces) << 8 | internal
    }
}

impl Ring {
    /// For `depth` work requests, at least 1, of up to `pieces` entries each; the first has the number
    /// `first`.
    pub(crate) fn new(owner: u16, generation: u16, depth: u32, pieces: u32, first: u32) -> Ring {
        let len = depth.max(1).next_power_of_two() as usize;
        let more_each = pieces.saturating_sub(1) as usize;
        let slot = |_| Slot {
            state: AtomicU64::new(state::NEW),
            held: AtomicPtr::new(null_mut()),
            wr_id: AtomicU64::new(0),
        };
        Ring {
            slots: (0..len).map(slot).collect(),
            mask: (len - 1) as u32,
            more: (0..len * more_each).map(|_| AtomicPtr::new(null_mut())).collect(),
            more_each,
            base: WrId { owner, generation, sequence: 0 }.word(),
            depth,
            qpn: AtomicU32::new(0),
            invalidated: AtomicU32::new(0),
            written_by_poster: Poster {
                reserved: AtomicU32::new(first),
                posted: AtomicU32::new(first),
            },
            written_by_poller: Poller { free_to: AtomicU32::new(first) },
            shared: None,
        }
    }

    /// How many work requests can be in flight.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Notes the queue pair that it is of, and whether that is one of datagrams.
    pub(crate) fn set_qpn(&self, qpn: Qpn, datagrams: bool) {
        let datagrams = if datagrams { DATAGRAMS } else { 0 };
        self.qpn.store(qpn.get() | datagrams, Ordering::Relaxed);
    }

    /// Notes that some of its queue pairs are of datagrams: of a shared receive queue.
    pub(crate) fn note_datagrams(&self) {
        self.qpn.store(DATAGRAMS, Ordering::Relaxed);
    }

    /// Notes which flags of a completion (`enum ibv_wc_flags`) say that the peer invalidated a key.
    pub(crate) fn set_invalidated(&self, flags: u32) {
        self.invalidated.store(flags, Ordering::Relaxed);
    }

    /// Those flags.
    pub(crate) fn invalidated(&self) -> u32 {
        self.invalidated.load(Ordering::Relaxed)
    }

    /// The queue pair that it is of.
    #[inline]
    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::from_raw(self.qpn.load(Ordering::Relaxed))
    }

    /// Whether the queue pair is one of datagrams.
    #[inline]
    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.qpn.load(Ordering::Relaxed) & DATAGRAMS != 0
    }

    /// Where it is on its completion queue.
    pub(crate) fn owner(&self) -> WrId {
        WrId::of(self.base)
    }

    /// What the device is told.
    #[inline]
    pub(crate) fn id(&self, sequence: u32) -> u64 {
        self.base | u64::from(sequence)
    }

    #[inline(always)]
    fn slot(&self, sequence: u32) -> &Slot {
        // SAFETY: the mask is one less than the number of slots.
        unsafe { self.slots.get_unchecked((sequence & self.mask) as usize) }
    }

    #[inline]
    fn more(&self, sequence: u32) -> &[AtomicPtr<u8>] {
        let at = (sequence & self.mask) as usize * self.more_each;
        &self.more[at..at + self.more_each]
    }

    // What the poster does.

    /// Whether the slot of a work request that was tried is free again.
    #[inline]
    pub(crate) fn is_free(&self, sequence: u32) -> bool {
        state::is_free(self.slot(sequence).state.load(Ordering::Acquire))
    }

    /// All before this one are free, those that were tried after `since` and before `head`; there may be more.
    /// One that is not between these is of long ago: the poller finishes nothing where all is refused.
    #[inline]
    pub(crate) fn free_to(&self, since: u32, head: u32) -> u32 {
        let free_to = self.written_by_poller.free_to.load(Ordering::Acquire);
        if free_to.wrapping_sub(since) > head.wrapping_sub(since) { since } else { free_to }
    }

    /// Fills the slot, which must be free: what is in one that is not is lost.
    #[inline]
    pub(crate) fn put(&self, sequence: u32, entry: Entry, first: Held) {
        let slot = self.slot(sequence);
        slot.held.store(first.into_raw(), Ordering::Relaxed);
        slot.wr_id.store(entry.wr_id, Ordering::Relaxed);
        slot.state.store(state::in_flight(sequence, entry), Ordering::Relaxed);
    }

    /// The second or a further piece, counted from 1 and below the number the ring was made for.
    #[inline]
    pub(crate) fn put_more(&self, sequence: u32, piece: usize, held: Held) {
        self.more(sequence)[piece - 1].store(held.into_raw(), Ordering::Relaxed);
    }

    /// What was put may be completed from now on, up to this number.
    #[inline]
    pub(crate) fn reserve(&self, end: u32) {
        self.written_by_poster.reserved.store(end, Ordering::Release);
    }

    /// The device took what was reserved, or what it refused was taken back.
    #[inline]
    pub(crate) fn posted(&self, end: u32) {
        self.written_by_poster.posted.store(end, Ordering::Release);
    }

    /// Claims back what the device refused, before [`posted`](Ring::posted); `None` when a completion of
    /// it came all the same.
    pub(crate) fn take_back(&self, sequence: u32) -> Option<Claimed<'_>> {
        let Claim { sequence, kind } = self.exchange(sequence, By::Poster)?;
        // SAFETY: claimed here, and made whole once.
        Some(unsafe { Claim { sequence, kind: kind | BY_POSTER }.of(self) })
    }

    // What the poller does.

    /// Behind the last work request that was tried, as far as the poller can know.
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.written_by_poster.reserved.load(Ordering::Acquire)
    }

    /// The first that may still be in a slot, given one that is known to be out.
    #[inline]
    pub(crate) fn first_possible(&self, known: u32, end: u32) -> u32 {
        let len = self.slots.len() as u32;
        if end.wrapping_sub(known) > len { end.wrapping_sub(len) } else { known }
    }

    /// Whether this work request is in flight, as far as the poller can know.
    #[inline]
    pub(crate) fn has(&self, sequence: u32) -> bool {
        let ahead = self.end().wrapping_sub(sequence).wrapping_sub(1);
        let state = self.slot(sequence).state.load(Ordering::Relaxed);
        ahead < self.slots.len() as u32 && state::has(state, sequence)
    }

    /// Drops all that is in the table, when its queue pair was destroyed and nobody polls any more.
    ///
    /// # Safety
    ///
    /// As for [`claim`](Ring::claim), and the device touches none of the memory.
    pub(crate) unsafe fn clear(&self) {
        let end = self.end();
        for back in (1..=self.slots.len() as u32).rev() {
            // SAFETY: by this function's own contract; each claim ends here.
            drop(unsafe { self.claim(end.wrapping_sub(back)) });
        }
    }

    /// The first work request that can be in a slot.
    pub(crate) fn oldest_possible(&self) -> u32 {
        self.end().wrapping_sub(self.slots.len() as u32)
    }

    /// Takes a work request that has completed out of the table; `None` when none of this number is in
    /// flight.
    ///
    /// # Safety
    ///
    /// One thread at a time claims from a ring, and only one claim of it is unfinished.
    #[inline]
    pub(crate) unsafe fn claim(&self, sequence: u32) -> Option<Claimed<'_>> {
        // SAFETY: by this function's own contract, and made whole at once.
        unsafe { self.claim_parts(sequence).map(|claim| claim.of(self)) }
    }

    /// The same in parts.
    ///
    /// # Safety
    ///
    /// As for [`claim`](Ring::claim).
    #[inline(always)]
    pub(crate) unsafe fn claim_parts(&self, sequence: u32) -> Option<Claim> {
        let posted = self.written_by_poster.posted.load(Ordering::Acquire);
        // Less than half of all numbers back from `posted`.
        if (posted.wrapping_sub(sequence).wrapping_sub(1) as i32) < 0 {
            return self.claim_early(sequence);
        }
        let slot = self.slot(sequence);
        let state = slot.state.load(Ordering::Relaxed);
        if !state::has(state, sequence) {
            return None;
        }
        // Posted, and so not to be claimed back, nor its slot filled before it is free.
        slot.state.store(state::claimed(state, By::Poller), Ordering::Relaxed);
        Some(Claim { sequence, kind: state::kind(state) })
    }

    /// The same for what the post has not returned from.
    #[cold]
    fn claim_early(&self, sequence: u32) -> Option<Claim> {
        let ahead = self.end().wrapping_sub(sequence).wrapping_sub(1);
        if ahead < self.slots.len() as u32 { self.exchange(sequence, By::Poller) } else { None }
    }

    /// Claims by an exchange.
    fn exchange(&self, sequence: u32, by: By) -> Option<Claim> {
        let slot = self.slot(sequence);
        let state = slot.state.load(Ordering::Relaxed);
        if !state::has(state, sequence) {
            return None;
        }
        // One of the two who may want it has it. What is in the slot was seen before: by its poster, who
        // wrote it, or by who saw it reserved.
        let done = slot.state.compare_exchange(
            state,
            state::claimed(state, by),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        done.is_ok().then(|| Claim { sequence, kind: state::kind(state) })
    }

    /// Frees all slots whose claims by the poller were forgotten. The poster's are the poster's to free: when
    /// this sees one, it may be free already, and filled again.
    ///
    /// # Safety
    ///
    /// No claim of the poller's is unfinished, but those that were forgotten.
    #[cold]
    pub(crate) unsafe fn finish_all_forgotten(&self) {
        let end = self.end();
        for back in (1..=self.slots.len() as u32).rev() {
            let sequence = end.wrapping_sub(back);
            if self.is_claimed(sequence, By::Poller) {
                self.finish_polled(sequence);
            }
        }
    }

    /// Frees the slot of a claim of the poster's that was forgotten (`mem::forget`); nothing for one that
    /// was dropped.
    pub(crate) fn finish_forgotten(&self, sequence: u32) {
        if !self.is_claimed(sequence, By::Poster) {
            return;
        }
        if self.shared.is_some() {
            self.finish_shared(sequence);
        } else {
            self.finish(sequence);
        }
    }

    fn is_claimed(&self, sequence: u32, by: By) -> bool {
        state::is_claimed(self.slot(sequence).state.load(Ordering::Relaxed), sequence, by)
    }

    /// Frees a slot that was claimed: the next may be put there.
    #[inline]
    fn finish(&self, sequence: u32) {
        // Release: what was in it is out.
        self.slot(sequence).state.store(state::NEW, Ordering::Release);
    }

    /// The same by the poller, who also tells how far all are free.
    #[inline]
    fn finish_polled(&self, sequence: u32) {
        self.finish(sequence);
        let free_to = &self.written_by_poller.free_to;
        if free_to.load(Ordering::Relaxed) == sequence {
            // Release: as for the slot.
            free_to.store(sequence.wrapping_add(1), Ordering::Release);
        } else {
            self.look_how_far_all_are_free();
        }
    }

    /// After one that was finished out of order, or behind one that was refused.
    #[cold]
    fn look_how_far_all_are_free(&self) {
        let posted = self.written_by_poster.posted.load(Ordering::Acquire);
        let free_to = &self.written_by_poller.free_to;
        let mut at = self.first_possible(free_to.load(Ordering::Relaxed), posted);
        while at != posted {
            let state = self.slot(at).state.load(Ordering::Relaxed);
            if state::is_of(state, at) && !state::is_free(state) {
                break;
            }
            at = at.wrapping_add(1);
        }
        // Release: those that are free were freed by this thread, or by the poster itself.
        free_to.store(at, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
