//! A work request that was taken out of its table.

#![allow(unsafe_code)]

use super::Ring;
use crate::mem::Held;
use crate::sync::Ordering;
use crate::types::{Qpn, WcOpcode};

/// A claim of the poster's, among the bits of its kind.
pub(super) const BY_POSTER: u32 = 1 << 24;
/// An entry of the library's own.
pub(super) const INTERNAL: u32 = 1 << 16;

/// A work request that was taken out of its table, whose memory is in the slot still. Dropping it drops
/// what is left of the memory, and frees the slot. Forgetting it leaks the memory.
pub(crate) struct Claimed<'a> {
    pub(super) ring: &'a Ring,
    pub(super) sequence: u32,
    pub(super) kind: u32,
    /// The piece of memory that is next.
    pub(super) next: u32,
}

impl Claimed<'_> {
    /// The caller's own number.
    #[inline]
    pub(crate) fn wr_id(&self) -> u64 {
        self.ring.slot(self.sequence).wr_id.load(Ordering::Relaxed)
    }

    /// What it was.
    #[inline]
    pub(crate) fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.kind & 0xff)
    }

    /// Whether it is the library's own, not to be shown.
    #[inline]
    pub(crate) fn is_internal(&self) -> bool {
        self.kind & INTERNAL != 0
    }

    /// The queue pair.
    #[inline]
    pub(crate) fn qpn(&self) -> Qpn {
        self.ring.qpn()
    }

    /// The next piece of its memory, in the order they were posted.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Held> {
        let piece = self.next;
        if piece >= self.kind >> 8 & 0xff {
            return None;
        }
        self.next = piece + 1;
        let raw = match piece {
            0 => self.ring.slot(self.sequence).held.load(Ordering::Relaxed),
            piece => self.ring.more(self.sequence).get(piece as usize - 1)?.load(Ordering::Relaxed),
        };
        // SAFETY: it was put by `into_raw`, and belongs to who claimed the slot; it is read once, for
        // the next one is another, and the slot is filled again before it is claimed again.
        unsafe { Held::from_raw(raw) }
    }
}

impl Drop for Claimed<'_> {
    #[inline]
    fn drop(&mut self) {
        while self.take().is_some() {}
        if self.kind & BY_POSTER != 0 {
            self.ring.finish(self.sequence);
        } else {
            self.ring.finish_polled(self.sequence);
        }
    }
}
