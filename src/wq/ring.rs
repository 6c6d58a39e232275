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

#![allow(unsafe_code)]

use std::ptr::null_mut;

use super::id::WrId;
use crate::mem::Held;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::types::{Qpn, WcOpcode};

/// See the module.
pub(crate) struct Ring {
    slots: Box<[Slot]>,
    /// The second and further entries of each slot.
    more: Box<[AtomicPtr<u8>]>,
    more_each: usize,
    /// Owner and generation, and sequence 0.
    base: u64,
    depth: u32,
    /// The queue pair, once it is made.
    qpn: AtomicU32,
    written_by_poster: Poster,
}

/// On a cache line that the poller only reads.
#[repr(align(64))]
struct Poster {
    reserved: AtomicU32,
    posted: AtomicU32,
}

struct Slot {
    state: AtomicU64,
    /// What [`Held::into_raw`] gave, while it is in flight or claimed.
    held: AtomicPtr<u8>,
    /// The caller's own number.
    wr_id: AtomicU64,
}

/// The state of a slot: the sequence number in the low half, whether it is free, in flight or claimed in
/// the two bits above, and the kind of the entry above those.
mod state {
    use super::Entry;

    const FREE: u64 = 0 << 32;
    const IN_FLIGHT: u64 = 1 << 32;
    const CLAIMED: u64 = 2 << 32;
    const WHICH: u64 = 3 << 32;

    pub(super) const NEW: u64 = FREE;

    #[inline]
    pub(super) fn in_flight(sequence: u32, entry: Entry) -> u64 {
        u64::from(entry.kind()) << 34 | IN_FLIGHT | u64::from(sequence)
    }

    /// Whether this work request is in flight in it.
    #[inline]
    pub(super) fn has(state: u64, sequence: u32) -> bool {
        state & (WHICH | 0xffff_ffff) == IN_FLIGHT | u64::from(sequence)
    }

    #[inline]
    pub(super) fn claimed(state: u64) -> u64 {
        state & !WHICH | CLAIMED
    }

    #[inline]
    pub(super) fn is_claimed(state: u64, sequence: u32) -> bool {
        state & (WHICH | 0xffff_ffff) == CLAIMED | u64::from(sequence)
    }

    #[inline]
    pub(super) fn is_free(state: u64) -> bool {
        state & WHICH == FREE
    }

    #[inline]
    pub(super) fn kind(state: u64) -> u32 {
        (state >> 34) as u32
    }
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
        self.opcode.raw() & 0xff | u32::from(self.pieces) << 8 | u32::from(self.internal) << 16
    }

    #[inline]
    fn of(wr_id: u64, kind: u32) -> Entry {
        Entry {
            wr_id,
            opcode: WcOpcode::from_raw(kind & 0xff),
            pieces: (kind >> 8) as u8,
            internal: kind >> 16 != 0,
        }
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
            more: (0..len * more_each).map(|_| AtomicPtr::new(null_mut())).collect(),
            more_each,
            base: WrId { owner, generation, sequence: 0 }.word(),
            depth,
            qpn: AtomicU32::new(0),
            written_by_poster: Poster {
                reserved: AtomicU32::new(first),
                posted: AtomicU32::new(first),
            },
        }
    }

    /// How many work requests can be in flight.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Notes the queue pair that it is of.
    pub(crate) fn set_qpn(&self, qpn: Qpn) {
        self.qpn.store(qpn.get(), Ordering::Relaxed);
    }

    /// The queue pair that it is of.
    #[inline]
    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::from_raw(self.qpn.load(Ordering::Relaxed))
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

    #[inline]
    fn slot(&self, sequence: u32) -> &Slot {
        // The length is a power of two, so that this is in bounds and the compiler knows it.
        &self.slots[sequence as usize & (self.slots.len() - 1)]
    }

    #[inline]
    fn more(&self, sequence: u32) -> &[AtomicPtr<u8>] {
        let at = (sequence as usize & (self.slots.len() - 1)) * self.more_each;
        &self.more[at..at + self.more_each]
    }

    // What the poster does.

    /// Whether the slot of a work request that was tried is free again.
    #[inline]
    pub(crate) fn is_free(&self, sequence: u32) -> bool {
        state::is_free(self.slot(sequence).state.load(Ordering::Acquire))
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
        self.exchange(sequence)
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
        slot.state.store(state::claimed(state), Ordering::Relaxed);
        // SAFETY: claimed by us, just now.
        Some(unsafe { self.claimed(slot, sequence, state) })
    }

    /// The same for what the post has not returned from.
    #[cold]
    fn claim_early(&self, sequence: u32) -> Option<Claimed<'_>> {
        let ahead = self.end().wrapping_sub(sequence).wrapping_sub(1);
        if ahead < self.slots.len() as u32 { self.exchange(sequence) } else { None }
    }

    /// Claims by an exchange.
    fn exchange(&self, sequence: u32) -> Option<Claimed<'_>> {
        let slot = self.slot(sequence);
        let state = slot.state.load(Ordering::Relaxed);
        if !state::has(state, sequence) {
            return None;
        }
        // One of the two who may want it has it. What is in the slot was seen before: by its poster, who
        // wrote it, or by who saw it reserved.
        let done = slot.state.compare_exchange(
            state,
            state::claimed(state),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        // SAFETY: claimed by us, just now.
        done.is_ok().then(|| unsafe { self.claimed(slot, sequence, state) })
    }

    /// # Safety
    ///
    /// The caller has brought the slot from in flight to claimed, and calls this once.
    #[inline]
    unsafe fn claimed(&self, slot: &Slot, sequence: u32, state: u64) -> Claimed<'_> {
        let entry = Entry::of(slot.wr_id.load(Ordering::Relaxed), state::kind(state));
        // SAFETY: it was put by `into_raw`, and is the caller's.
        let first = unsafe { Held::from_raw(slot.held.load(Ordering::Relaxed)) };
        Claimed { ring: self, sequence, entry, first, next: 1 }
    }

    /// Frees the slot of a claim that was forgotten (`mem::forget`); nothing for one that was dropped.
    #[inline]
    pub(crate) fn finish_forgotten(&self, sequence: u32) {
        if state::is_claimed(self.slot(sequence).state.load(Ordering::Relaxed), sequence) {
            self.finish(sequence);
        }
    }

    /// Frees a slot that was claimed: the next may be put there.
    #[inline]
    fn finish(&self, sequence: u32) {
        // Release: what was in it is out.
        self.slot(sequence).state.store(state::NEW, Ordering::Release);
    }
}

/// A work request that was taken out of its table. Dropping it drops what is left of its memory, and
/// frees the slot. Forgetting it leaks the memory.
pub(crate) struct Claimed<'a> {
    ring: &'a Ring,
    sequence: u32,
    pub(crate) entry: Entry,
    first: Option<Held>,
    /// The further piece that is next.
    next: usize,
}

impl Claimed<'_> {
    /// The next piece of its memory, in the order they were posted.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Held> {
        if let Some(held) = self.first.take() {
            return Some(held);
        }
        if self.next >= usize::from(self.entry.pieces) {
            return None;
        }
        self.take_more()
    }

    fn take_more(&mut self) -> Option<Held> {
        let raw = self.ring.more(self.sequence).get(self.next - 1)?.load(Ordering::Relaxed);
        self.next += 1;
        // SAFETY: it was put by `into_raw`, and belongs to who claimed the slot; it is read once, for
        // the next one is another, and the slot is filled again before it is claimed again.
        unsafe { Held::from_raw(raw) }
    }
}

impl Drop for Claimed<'_> {
    #[inline]
    fn drop(&mut self) {
        while self.take().is_some() {}
        self.ring.finish(self.sequence);
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
