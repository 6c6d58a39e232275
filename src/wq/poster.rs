//! The posting side of a ring: what `&mut` a queue has.

use std::sync::Arc;

use super::ring::{Claimed, Entry, Ring};
use crate::mem::{Held, Pieces};
use crate::sys::abi::ibv_sge;

/// Of what the device is told otherwise: an address handle.
const NO_ENTRY: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

/// Fills the ring's slots, and knows which are in flight. One for each ring.
pub(crate) struct Poster {
    ring: Arc<Ring>,
    /// The next work request.
    head: u32,
    /// All before were free when last looked at.
    tail: u32,
    depth: u32,
    /// What the device refused and nobody has taken back yet: from here to `head`.
    refused: Option<u32>,
    /// The last of those that was taken back: its claim may have been forgotten.
    open: Option<u32>,
}

impl Poster {
    /// The ring's first number is 0, and nothing was put there yet.
    pub(crate) fn new(ring: Arc<Ring>) -> Poster {
        let (head, depth) = (ring.end(), ring.depth());
        Poster { ring, head, tail: head, depth, refused: None, open: None }
    }

    #[inline]
    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Whether so many more can be put after `put` others. What was refused is dropped first: nothing is put
    /// behind what may still be taken back.
    #[inline]
    pub(crate) fn has_room(&mut self, put: u32) -> bool {
        if self.refused.is_some() {
            self.end_refused();
        }
        let in_flight = self.head.wrapping_sub(self.tail).wrapping_add(put);
        in_flight < self.depth || self.look_for_room(put)
    }

    fn look_for_room(&mut self, put: u32) -> bool {
        self.tail = self.ring.free_to(self.tail, self.head);
        if self.head.wrapping_sub(self.tail).wrapping_add(put) < self.depth {
            return true;
        }
        // The poller tells it of those in order only, and not of those that were refused.
        while self.tail != self.head && self.ring.is_free(self.tail) {
            self.tail = self.tail.wrapping_add(1);
        }
        self.head.wrapping_sub(self.tail).wrapping_add(put) < self.depth
    }

    /// How many are in flight, as far as can be known.
    pub(crate) fn in_flight(&mut self) -> u32 {
        // What was refused is not, though nobody has asked for it.
        self.end_refused();
        self.look_for_room(0);
        (0..self.head.wrapping_sub(self.tail))
            .filter(|ahead| !self.ring.is_free(self.tail.wrapping_add(*ahead)))
            .count() as u32
    }

    /// Puts the memory into the slot that is `after` others from the next, and tells what the device is
    /// told of it. There is room, and `entries` is as long as the pieces.
    #[inline]
    pub(crate) fn put<P: Pieces>(&mut self, after: u32, entry: Entry, pieces: P) -> u64 {
        let sequence = self.head.wrapping_add(after);
        let (mut at, mut first) = (0, None);
        pieces.hold(&mut |held| {
            if at == 0 {
                first = Some(held);
            } else {
                self.ring.put_more(sequence, at, held);
            }
            at += 1;
        });
        let entry = Entry { pieces: at.max(1) as u8, ..entry };
        self.ring.put(sequence, entry, first.unwrap_or_else(Held::nothing));
        self.ring.id(sequence)
    }

    /// What was put, this many, is about to be posted.
    #[inline]
    pub(crate) fn reserve(&mut self, count: u32) {
        self.ring.reserve(self.head.wrapping_add(count));
    }

    /// The device took all of them.
    #[inline]
    pub(crate) fn posted(&mut self, count: u32) {
        self.head = self.head.wrapping_add(count);
        self.ring.posted(self.head);
    }

    /// Of those that were reserved, the device took the first `taken` only. The others are taken back by
    /// [`next_refused`](Poster::next_refused).
    pub(crate) fn refused(&mut self, count: u32, taken: u32) {
        let refused = self.head.wrapping_add(taken);
        self.ring.posted(refused);
        self.head = self.head.wrapping_add(count);
        self.refused = Some(refused);
    }

    /// Takes the next back that was refused; `None` when there is none left. One that the device completes at
    /// this moment all the same is its completion's.
    pub(crate) fn next_refused(&mut self) -> Option<Claimed<'_>> {
        self.finish_forgotten();
        let mut at = self.refused?;
        while at != self.head {
            let this = at;
            at = at.wrapping_add(1);
            self.refused = Some(at);
            if let Some(claimed) = self.ring.take_back(this) {
                self.open = Some(this);
                return Some(claimed);
            }
        }
        self.refused = None;
        self.ring.posted(self.head);
        None
    }

    /// Drops what was refused and nobody took back.
    #[cold]
    pub(crate) fn end_refused(&mut self) {
        self.finish_forgotten();
        let Some(mut at) = self.refused.take() else { return };
        while at != self.head {
            drop(self.ring.take_back(at));
            at = at.wrapping_add(1);
        }
        self.ring.posted(self.head);
    }

    /// Frees the slot of what was taken back and forgotten (`mem::forget`): else it were taken for ever.
    fn finish_forgotten(&mut self) {
        if let Some(at) = self.open.take() {
            self.ring.finish_forgotten(at);
        }
    }

    /// The single work request that was refused, as it was before it was put; `None` when the device
    /// completed it all the same.
    pub(crate) fn restore<P: Pieces>(&mut self, entries: &[ibv_sge]) -> Option<P> {
        let mut claimed = self.next_refused()?;
        let mut entries = entries.iter();
        let mut entry = || entries.next().copied().unwrap_or(NO_ENTRY);
        let pieces = P::restore(&mut || Some((claimed.take()?, entry())));
        drop(claimed);
        self.end_refused();
        pieces
    }

    /// Takes out again what was put and never reserved.
    pub(crate) fn withdraw(&mut self, count: u32) {
        for after in 0..count {
            drop(self.ring.take_back(self.head.wrapping_add(after)));
        }
    }
}
