//! The posting side of a table: what `&mut` a queue has. Of a ring here, and what it has in common with that
//! of a shared receive queue.

use std::sync::Arc;

use super::ring::{Claimed, Entry, Ring};
use crate::mem::{Held, Pieces};
use crate::sys::abi::ibv_sge;

/// Of what the device is told otherwise: an address handle.
const NO_ENTRY: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

/// Posting, whichever table it is to. Work requests are put, reserved, and posted, in this order; those that
/// the device refuses are taken back.
pub(crate) trait Posting {
    /// How many work requests can be in flight.
    fn depth(&self) -> u32;

    /// Whether one more can be put after `put` others. What was refused is dropped first: nothing is put
    /// behind what may still be taken back.
    fn has_room(&mut self, put: u32) -> bool;

    /// How many are in flight, as far as can be known.
    fn in_flight(&mut self) -> u32;

    /// Puts the memory into the slot that is `after` others from the next, and tells what the device is
    /// told of it. There is room, and `entry` is as long as the pieces.
    fn put<P: Pieces>(&mut self, after: u32, entry: Entry, pieces: P) -> u64
    where
        Self: Sized;

    /// The same of pieces that are counted as they come; no more of them than the table was made for.
    fn put_each(&mut self, after: u32, entry: Entry, pieces: impl Iterator<Item = Held>) -> u64
    where
        Self: Sized;

    /// What was put, this many, is about to be posted.
    fn reserve(&mut self, count: u32);

    /// The device took all of them.
    fn posted(&mut self, count: u32);

    /// Of those that were reserved, the device took the first `taken` only. The others are taken back by
    /// [`next_refused`](Posting::next_refused).
    fn refused(&mut self, count: u32, taken: u32);

    /// The device took the first `taken` only, or maybe all.
    #[cold]
    fn not_all(&mut self, count: u32, taken: u32) {
        if taken == count { self.posted(count) } else { self.refused(count, taken) }
    }

    /// Takes the next back that was refused; `None` when there is none left. One that the device completes at
    /// this moment all the same is its completion's.
    fn next_refused(&mut self) -> Option<Claimed<'_>>;

    /// Drops what was refused and nobody took back.
    fn end_refused(&mut self);

    /// Takes out again what was put and never reserved.
    fn withdraw(&mut self, count: u32);

    /// The single work request that was refused, as it was before it was put; `None` when the device
    /// completed it all the same.
    fn restore<P: Pieces>(&mut self, entries: &[ibv_sge]) -> Option<P>
    where
        Self: Sized,
    {
        let mut claimed = self.next_refused()?;
        let mut entries = entries.iter();
        let mut entry = || entries.next().copied().unwrap_or(NO_ENTRY);
        let pieces = P::restore(&mut || Some((claimed.take()?, entry())));
        drop(claimed);
        self.end_refused();
        pieces
    }
}

/// Holds the pieces, handing all but the first to `more` with their place from 1 on; gives the entry, with
/// their number, and the first.
#[inline]
pub(super) fn hold<P: Pieces>(
    entry: Entry,
    pieces: P,
    mut more: impl FnMut(usize, Held),
) -> (Entry, Held) {
    let (mut at, mut first) = (0, None);
    pieces.hold(&mut |held| {
        if at == 0 {
            first = Some(held);
        } else {
            more(at, held);
        }
        at += 1;
    });
    (Entry { pieces: at.max(1) as u8, ..entry }, first.unwrap_or_else(Held::nothing))
}

/// The same of pieces that come one after the other.
#[inline]
pub(super) fn hold_each(
    entry: Entry,
    mut pieces: impl Iterator<Item = Held>,
    mut more: impl FnMut(usize, Held),
) -> (Entry, Held) {
    let first = pieces.next().unwrap_or_else(Held::nothing);
    let further = pieces.zip(1..).map(|(held, at)| more(at, held)).count();
    (Entry { pieces: 1 + further as u8, ..entry }, first)
}

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

    /// Frees the slot of what was taken back and forgotten (`mem::forget`): else it were taken for ever.
    fn finish_forgotten(&mut self) {
        if let Some(at) = self.open.take() {
            self.ring.finish_forgotten(at);
        }
    }
}

impl Posting for Poster {
    #[inline]
    fn depth(&self) -> u32 {
        self.depth
    }

    #[inline]
    fn has_room(&mut self, put: u32) -> bool {
        if self.refused.is_some() {
            self.end_refused();
        }
        let in_flight = self.head.wrapping_sub(self.tail).wrapping_add(put);
        in_flight < self.depth || self.look_for_room(put)
    }

    fn in_flight(&mut self) -> u32 {
        // What was refused is not, though nobody has asked for it.
        self.end_refused();
        self.look_for_room(0);
        (0..self.head.wrapping_sub(self.tail))
            .filter(|ahead| !self.ring.is_free(self.tail.wrapping_add(*ahead)))
            .count() as u32
    }

    #[inline]
    fn put<P: Pieces>(&mut self, after: u32, entry: Entry, pieces: P) -> u64 {
        let sequence = self.head.wrapping_add(after);
        let ring = &self.ring;
        let (entry, first) = hold(entry, pieces, |at, held| ring.put_more(sequence, at, held));
        ring.put(sequence, entry, first);
        self.ring.id(sequence)
    }

    #[inline]
    fn put_each(&mut self, after: u32, entry: Entry, pieces: impl Iterator<Item = Held>) -> u64 {
        let sequence = self.head.wrapping_add(after);
        let ring = &self.ring;
        let (entry, first) = hold_each(entry, pieces, |at, held| ring.put_more(sequence, at, held));
        ring.put(sequence, entry, first);
        self.ring.id(sequence)
    }

    #[inline]
    fn reserve(&mut self, count: u32) {
        self.ring.reserve(self.head.wrapping_add(count));
    }

    #[inline]
    fn posted(&mut self, count: u32) {
        self.head = self.head.wrapping_add(count);
        self.ring.posted(self.head);
    }

    fn refused(&mut self, count: u32, taken: u32) {
        let refused = self.head.wrapping_add(taken);
        self.ring.posted(refused);
        self.head = self.head.wrapping_add(count);
        self.refused = Some(refused);
    }

    fn next_refused(&mut self) -> Option<Claimed<'_>> {
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

    #[cold]
    fn end_refused(&mut self) {
        self.finish_forgotten();
        let Some(mut at) = self.refused.take() else { return };
        while at != self.head {
            drop(self.ring.take_back(at));
            at = at.wrapping_add(1);
        }
        self.ring.posted(self.head);
    }

    fn withdraw(&mut self, count: u32) {
        for after in 0..count {
            drop(self.ring.take_back(self.head.wrapping_add(after)));
        }
    }
}
