//! The state of a slot: the sequence number in the upper half; in the lower the kind of the entry, and in
//! its two lowest bits whether the slot is free, in flight, or claimed, and by whom.

use super::Entry;

const WHICH: u64 = 3;
const FREE: u64 = 0;
const IN_FLIGHT: u64 = 1;
const CLAIMED: u64 = 2;
const TAKEN_BACK: u64 = 3;

/// Who claims.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Poller,
    /// What the device refused. Not for the poller to finish, even when he finishes all that he forgot.
    Poster,
}

pub(super) const NEW: u64 = FREE;

/// Of a free slot whose last use had this number.
#[inline]
pub(super) fn free(sequence: u32) -> u64 {
    u64::from(sequence) << 32 | FREE
}

/// Which use of its slot it is of.
#[inline(always)]
pub(super) fn sequence(state: u64) -> u32 {
    (state >> 32) as u32
}

/// The same entry, in flight.
#[inline(always)]
pub(super) fn opened(state: u64) -> u64 {
    state & !WHICH | IN_FLIGHT
}

#[inline(always)]
pub(super) fn in_flight(sequence: u32, entry: Entry) -> u64 {
    u64::from(sequence) << 32 | u64::from(entry.kind()) << 2 | IN_FLIGHT
}

#[inline(always)]
pub(super) fn is_of(state: u64, sequence: u32) -> bool {
    (state >> 32) as u32 == sequence
}

/// Whether this work request is in flight in it.
#[inline(always)]
pub(super) fn has(state: u64, sequence: u32) -> bool {
    is_of(state, sequence) && state & WHICH == IN_FLIGHT
}

/// Of one in flight.
#[inline(always)]
pub(super) fn claimed(state: u64, by: By) -> u64 {
    state & !WHICH | which(by)
}

#[inline]
pub(super) fn is_claimed(state: u64, sequence: u32, by: By) -> bool {
    is_of(state, sequence) && state & WHICH == which(by)
}

#[inline(always)]
fn which(by: By) -> u64 {
    match by {
        By::Poller => CLAIMED,
        By::Poster => TAKEN_BACK,
    }
}

#[inline]
pub(super) fn is_in_flight(state: u64) -> bool {
    state & WHICH == IN_FLIGHT
}

#[inline]
pub(super) fn is_free(state: u64) -> bool {
    state & WHICH == FREE
}

#[inline(always)]
pub(super) fn kind(state: u64) -> u32 {
    state as u32 >> 2
}
