//! The table of a shared receive queue: the slots of a ring, posted to by one thread, claimed by the pollers
//! of several completion queues, in any order.
//!
//! A slot is taken from a free list, and the number of its last use is in its state: the next is larger by
//! the number of slots. So the number of a work request has its slot in the low bits, as in a ring, and a
//! completion that comes twice, or late, finds another use. (A slot has 2^32 / slots of them before they
//! repeat: 4096 of the largest table.)
//!
//! | who | does | in order |
//! |---|---|---|
//! | poster | takes a slot from the free list | acquire: pairs with the release of who gave it back |
//! | poster | fills it; its state says that it is the poster's | relaxed |
//! | poster | opens it: its state says that it is in flight | release: who finds it in flight sees the rest |
//! | poster | posts; the device may complete from here on | |
//! | poster | claims back what the device refused, by an exchange of the state | relaxed: it is its own writing |
//! | any poller | claims what is in flight by an exchange: of all who try one has it | acquire |
//! | who claimed | empties the slot, stores the state that it is free, gives it back to the list | release, both |
//!
//! Nobody fills a slot before it is given back, and so nobody while it is claimed. What is still in flight
//! when the last owner of the table goes is dropped: by then the shared receive queue was destroyed, or the
//! table is kept for ever.

use super::claimed::{BY_POSTER, SHARED};
use super::state::{self, By};
use super::{Claim, Claimed, Entry, Poller, Poster, Ring, Slot};
use crate::mem::{FreeList, Held};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::wq::{Number, WrId};

/// What a shared table has besides its slots.
pub(super) struct SharedPart {
    free: FreeList,
    /// On how many completion queues there may be completions of it.
    entered: AtomicU32,
    /// Somebody else's when nobody has the table any more.
    _number: Number,
}

impl Ring {
    /// The table of a shared receive queue for `depth` receives, at least 1 and at most 2^20, of up to `pieces`
    /// entries each.
    pub(crate) fn shared(number: Number, depth: u32, pieces: u32) -> Ring {
        let len = depth.max(1).next_power_of_two() as usize;
        let more_each = pieces.saturating_sub(1) as usize;
        let slot = |place| Slot {
            state: AtomicU64::new(state::free(place)),
            held: AtomicPtr::new(std::ptr::null_mut()),
            wr_id: AtomicU64::new(0),
        };
        let WrId { owner, generation, .. } = number.id();
        Ring {
            slots: (0..len as u32).map(slot).collect(),
            mask: (len - 1) as u32,
            more: (0..len * more_each).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            more_each,
            base: WrId { owner, generation, sequence: 0 }.word(),
            depth,
            qpn: AtomicU32::new(0),
            invalidated: AtomicU32::new(0),
            written_by_poster: Poster { reserved: AtomicU32::new(0), posted: AtomicU32::new(0) },
            written_by_poller: Poller { free_to: AtomicU32::new(0) },
            shared: Some(Box::new(SharedPart {
                free: FreeList::new(depth),
                entered: AtomicU32::new(0),
                _number: number,
            })),
        }
    }

    /// How many slots nobody has.
    pub(crate) fn free_slots(&self) -> u32 {
        self.shared.as_ref().map_or(0, |part| part.free.free())
    }

    /// The slot of a work request.
    pub(crate) fn place(&self, sequence: u32) -> usize {
        (sequence & self.mask) as usize
    }

    /// On how many completion queues there may be completions of it.
    pub(crate) fn entered(&self) -> u32 {
        // Acquire: who reads that there is none sees what was claimed there.
        self.shared.as_ref().map_or(0, |part| part.entered.load(Ordering::Acquire))
    }

    pub(crate) fn enter(&self) {
        if let Some(part) = &self.shared {
            part.entered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The opposite of `enter`.
    pub(crate) fn leave(&self) {
        if let Some(part) = &self.shared {
            part.entered.fetch_sub(1, Ordering::AcqRel);
        }
    }

    // What the poster does.

    /// Takes a free slot: the number of its next use. It is the caller's until it is opened and claimed.
    #[inline]
    pub(crate) fn take_slot(&self) -> Option<u32> {
        let place = self.shared.as_ref()?.free.take()?;
        // What its last owner stored is seen: the free list acquires what giving back released.
        let state = self.slot(place).state.load(Ordering::Relaxed);
        Some(state::sequence(state).wrapping_add(self.slots.len() as u32))
    }

    /// Fills a slot that was taken; nobody claims it before it is opened.
    #[inline]
    pub(crate) fn put_shared(&self, sequence: u32, entry: Entry, first: Held) {
        let slot = self.slot(sequence);
        slot.held.store(first.into_raw(), Ordering::Relaxed);
        slot.wr_id.store(entry.wr_id, Ordering::Relaxed);
        let state = state::in_flight(sequence, entry) | u64::from(SHARED) << 2;
        slot.state.store(state::claimed(state, By::Poster), Ordering::Relaxed);
    }

    /// What was put may be claimed from now on.
    #[inline]
    pub(crate) fn open(&self, sequence: u32) {
        let slot = self.slot(sequence);
        let state = slot.state.load(Ordering::Relaxed);
        // Release: who finds it in flight sees what was put.
        slot.state.store(state::opened(state), Ordering::Release);
    }

    /// Takes out what was put and is not open; `None` when there is no such.
    ///
    /// # Safety
    ///
    /// The caller is the poster, and has no claim of this number.
    pub(crate) unsafe fn withdraw(&self, sequence: u32) -> Option<Claimed<'_>> {
        let state = self.slot(sequence).state.load(Ordering::Relaxed);
        if !state::is_claimed(state, sequence, By::Poster) {
            return None;
        }
        let claim = Claim { sequence, kind: state::kind(state) | BY_POSTER };
        // SAFETY: by this function's own contract, the only claim of it.
        Some(unsafe { claim.of(self) })
    }

    /// Whether what is in this slot is in flight at this moment.
    pub(crate) fn is_in_flight(&self, place: u32) -> bool {
        state::is_in_flight(self.slot(place).state.load(Ordering::Relaxed))
    }

    // What pollers do.

    /// Takes a work request that has completed out of the table; `None` when none of this number is in
    /// flight. Any number of threads may do so at a time: each has a claim of its own.
    #[inline]
    pub(crate) fn claim_shared(&self, sequence: u32) -> Option<Claim> {
        let slot = self.slot(sequence);
        let state = slot.state.load(Ordering::Relaxed);
        if !state::has(state, sequence) {
            return None;
        }
        // Acquire: what was put is seen.
        let claimed = state::claimed(state, By::Poller);
        let done =
            slot.state.compare_exchange(state, claimed, Ordering::Acquire, Ordering::Relaxed);
        done.is_ok().then(|| Claim { sequence, kind: state::kind(state) })
    }

    /// Gives back the slot of a claim of a poller's that was forgotten (`mem::forget`).
    ///
    /// # Safety
    ///
    /// The caller claimed it last, and knows that the claim was not dropped: had it been, the slot could be
    /// another's.
    pub(crate) unsafe fn finish_forgotten_by_poller(&self, sequence: u32) {
        if self.is_claimed(sequence, By::Poller) {
            self.finish_shared(sequence);
        }
    }

    /// Gives back a slot that was claimed.
    #[inline]
    pub(super) fn finish_shared(&self, sequence: u32) {
        // Release, and again by the free list: what was in it is out.
        self.slot(sequence).state.store(state::free(sequence), Ordering::Release);
        if let Some(part) = &self.shared {
            part.free.give(sequence & self.mask);
        }
    }

    /// Claims the work request that is in flight in a slot, if there is one, as a poller.
    pub(crate) fn claim_slot(&self, place: u32) -> Option<Claimed<'_>> {
        let state = self.slot(place).state.load(Ordering::Relaxed);
        let claim = self.claim_shared(state::sequence(state))?;
        // SAFETY: claimed here, and made whole once.
        Some(unsafe { claim.of(self) })
    }
}

impl Drop for Ring {
    /// Drops what is in flight in a shared table. What is in a ring was taken out by who polled, or stays.
    fn drop(&mut self) {
        if self.shared.is_some() {
            for place in 0..self.depth {
                drop(self.claim_slot(place));
            }
        }
    }
}
