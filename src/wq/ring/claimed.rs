//! A work request that was taken out of its table.

#![allow(unsafe_code)]

use super::Ring;
use crate::mem::Held;
use crate::sync::Ordering;
use crate::types::{Qpn, WcOpcode};

/// A claim of the poster's, among the bits of its kind.
pub(super) const BY_POSTER: u32 = 1 << 24;
/// Of the table of a shared receive queue, among the bits of its kind.
pub(super) const SHARED: u32 = 1 << 25;
/// An entry of the library's own.
pub(super) const INTERNAL: u32 = 1 << 16;

/// A work request that was taken out of its table, whose memory is in the slot still. Dropping it drops
/// what is left of the memory, and frees the slot. Forgetting it leaks the memory.
pub(crate) struct Claimed<'a> {
    pub(super) ring: &'a Ring,
    pub(super) sequence: u32,
    pub(super) kind: u32,
    /// The piece of memory that is next. A whole word, so that none is padding: half a word that is written
    /// and a whole that is copied wait for each other in the processor.
    next: usize,
}

/// A claim in parts, which are copied in registers: somebody makes it a [`Claimed`].
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(super) sequence: u32,
    pub(super) kind: u32,
}

impl Claim {
    /// Whether it is the library's own, not to be shown.
    #[inline(always)]
    pub(crate) fn is_internal(self) -> bool {
        self.kind & INTERNAL != 0
    }

    /// Whether it is a receive of a shared receive queue.
    #[inline(always)]
    pub(crate) fn is_shared(self) -> bool {
        self.kind & SHARED != 0
    }

    /// # Safety
    ///
    /// The claim is of this ring, and this is called for it once.
    #[inline(always)]
    pub(crate) unsafe fn of(self, ring: &Ring) -> Claimed<'_> {
        Claimed { ring, sequence: self.sequence, kind: self.kind, next: 0 }
    }
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

    /// The queue pair; `None` of a receive of a shared receive queue, which may be any of its.
    #[inline]
    pub(crate) fn qpn(&self) -> Option<Qpn> {
        (self.kind & SHARED == 0).then(|| self.ring.qpn())
    }

    /// Whether the queue pair is one of datagrams.
    #[inline]
    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.ring.is_of_datagrams()
    }

    /// See [`Ring::invalidated`].
    pub(crate) fn invalidated(&self) -> u32 {
        self.ring.invalidated()
    }

    /// The next piece of its memory, in the order they were posted.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Held> {
        if self.next != 0 {
            return self.take_more();
        }
        // There is a first, always.
        self.next = 1;
        // SAFETY: it was put by `into_raw`, and belongs to who claimed the slot; it is read once, for the
        // next one is another, and the slot is filled again before it is claimed again.
        unsafe { Held::from_raw(self.ring.slot(self.sequence).held.load(Ordering::Relaxed)) }
    }

    #[inline]
    fn take_more(&mut self) -> Option<Held> {
        if self.next >= self.pieces() {
            return None;
        }
        self.next += 1;
        let raw = self.ring.more(self.sequence).get(self.next - 2)?;
        // SAFETY: as in `take`.
        unsafe { Held::from_raw(raw.load(Ordering::Relaxed)) }
    }

    #[inline(always)]
    fn pieces(&self) -> usize {
        (self.kind >> 8 & 0xff) as usize
    }

    #[cold]
    fn drop_rest(&mut self) {
        while self.take().is_some() {}
    }
}

/// Finishes a claim that is not the poller's of a ring.
#[cold]
fn finish_other(Claim { sequence, kind }: Claim, ring: &Ring) {
    if kind & SHARED != 0 {
        ring.finish_shared(sequence);
    } else {
        ring.finish(sequence);
    }
}

impl Drop for Claimed<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.next < self.pieces() {
            self.drop_rest();
        }
        if self.kind & (BY_POSTER | SHARED) != 0 {
            finish_other(Claim { sequence: self.sequence, kind: self.kind }, self.ring);
        } else {
            self.ring.finish_polled(self.sequence);
        }
    }
}
