//! The posting side of a shared receive queue's table: what `&mut` the queue has.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::poster::{Posting, hold, hold_each};
use super::ring::{Claimed, Entry, Ring};
use crate::mem::{Held, Pieces};

/// Fills the table's slots, and knows in which order they were posted. One for each table.
pub(crate) struct SharedPoster {
    table: Arc<Ring>,
    /// What was put and is not posted yet, or was refused, in that order. Never longer than the table is deep.
    pending: Vec<u32>,
    /// How many of `pending` were taken back; `None` when none was refused.
    refused: Option<usize>,
    /// The last of those that was taken back: its claim may have been forgotten.
    open: Option<u32>,
    /// By slot: the how-manieth receive that was posted it has, or had last; 0 for none.
    orders: Box<[u64]>,
    /// How many were posted.
    posted: u64,
    /// The latest that has completed, of those whose slot was used again.
    completed: u64,
}

impl SharedPoster {
    /// Nothing was put there yet.
    pub(crate) fn new(table: Arc<Ring>) -> SharedPoster {
        let depth = table.depth() as usize;
        SharedPoster {
            table,
            pending: Vec::with_capacity(depth),
            refused: None,
            open: None,
            orders: vec![0; depth].into(),
            posted: 0,
            completed: 0,
        }
    }

    pub(crate) fn table(&self) -> &Arc<Ring> {
        &self.table
    }

    /// The latest receive that has completed, as far as can be known.
    fn latest_completed(&self) -> u64 {
        let completed = self.orders.iter().zip(0..).filter(|(_, place)| !self.is_in_flight(*place));
        completed.map(|(order, _)| *order).fold(self.completed, u64::max)
    }

    fn is_in_flight(&self, place: u32) -> bool {
        self.table.is_in_flight(place)
    }

    /// The slots of the receives in flight, in the order in which they were posted, and how many of them were
    /// posted before one that has completed.
    pub(crate) fn left(&mut self) -> (Vec<u32>, usize) {
        self.end_pending();
        let latest = self.latest_completed();
        let places = 0..self.orders.len() as u32;
        let mut left: Vec<u32> = places.filter(|place| self.is_in_flight(*place)).collect();
        left.sort_unstable_by_key(|place| self.orders[*place as usize]);
        let before = |place: &&u32| self.orders[**place as usize] < latest;
        let overtaken = left.iter().take_while(before).count();
        (left, overtaken)
    }

    /// How many are in flight that were posted before one that has completed.
    pub(crate) fn overtaken(&self) -> u32 {
        let latest = self.latest_completed();
        let overtaken =
            |(order, place): &(&u64, u32)| **order < latest && self.is_in_flight(*place);
        self.orders.iter().zip(0..).filter(overtaken).count() as u32
    }

    /// Drops what was put and never posted, and what was refused and never taken back.
    pub(crate) fn end_pending(&mut self) {
        self.end_refused();
        self.withdraw_all();
    }

    fn withdraw_all(&mut self) {
        while let Some(sequence) = self.pending.pop() {
            // SAFETY: this is the poster; what is pending is in nobody's hands, and each once in the list.
            drop(unsafe { self.table.withdraw(sequence) });
        }
    }

    /// A slot for the next. There is one.
    #[inline]
    fn take_slot(&mut self) -> u32 {
        let sequence = self.table.take_slot().expect("whether there is room was asked before");
        let last = self.orders.get_mut(self.table.place(sequence)).map_or(0, std::mem::take);
        // It is free again: that has completed.
        self.completed = self.completed.max(last);
        sequence
    }

    #[inline]
    fn put_at(&mut self, sequence: u32, entry: Entry, first: Held) -> u64 {
        self.table.put_shared(sequence, entry, first);
        self.pending.push(sequence);
        self.table.id(sequence)
    }

    /// The device took the first `count` of what is pending.
    #[inline]
    fn note_posted(&mut self, count: usize) {
        for sequence in self.pending.drain(..count) {
            self.posted += 1;
            if let Some(order) = self.orders.get_mut(self.table.place(sequence)) {
                *order = self.posted;
            }
        }
    }

    /// Gives back the slot of what was taken back and forgotten (`mem::forget`).
    fn finish_forgotten(&mut self) {
        if let Some(sequence) = self.open.take() {
            // Nothing is put before this, so that its slot was not filled again.
            self.table.finish_forgotten(sequence);
        }
    }
}

impl Posting for SharedPoster {
    fn depth(&self) -> u32 {
        self.table.depth()
    }

    #[inline]
    fn has_room(&mut self, put: u32) -> bool {
        if self.refused.is_some() {
            self.end_refused();
        }
        if put == 0 && !self.pending.is_empty() {
            // Of a batch that was forgotten (`mem::forget`).
            self.withdraw_all();
        }
        // Those that were put have their slots already, and nobody else takes any.
        self.table.free_slots() > 0
    }

    fn in_flight(&mut self) -> u32 {
        // What was put or refused is not, though nobody has asked for it.
        self.end_pending();
        self.depth().saturating_sub(self.table.free_slots())
    }

    #[inline]
    fn put<P: Pieces>(&mut self, _after: u32, entry: Entry, pieces: P) -> u64 {
        let sequence = self.take_slot();
        let table = &self.table;
        let (entry, first) = hold(entry, pieces, |at, held| table.put_more(sequence, at, held));
        self.put_at(sequence, entry, first)
    }

    #[inline]
    fn put_each(&mut self, _after: u32, entry: Entry, pieces: impl Iterator<Item = Held>) -> u64 {
        let sequence = self.take_slot();
        let table = &self.table;
        let (entry, first) =
            hold_each(entry, pieces, |at, held| table.put_more(sequence, at, held));
        self.put_at(sequence, entry, first)
    }

    #[inline]
    fn reserve(&mut self, _count: u32) {
        self.pending.iter().for_each(|sequence| self.table.open(*sequence));
    }

    #[inline]
    fn posted(&mut self, _count: u32) {
        self.note_posted(self.pending.len());
    }

    fn refused(&mut self, _count: u32, taken: u32) {
        self.note_posted((taken as usize).min(self.pending.len()));
        self.refused = Some(0);
    }

    fn next_refused(&mut self) -> Option<Claimed<'_>> {
        self.finish_forgotten();
        let mut at = self.refused?;
        while let Some(sequence) = self.pending.get(at).copied() {
            at += 1;
            self.refused = Some(at);
            if let Some(claimed) = self.table.take_back(sequence) {
                self.open = Some(sequence);
                return Some(claimed);
            }
        }
        self.refused = None;
        self.pending.clear();
        None
    }

    #[cold]
    fn end_refused(&mut self) {
        self.finish_forgotten();
        let Some(at) = self.refused.take() else { return };
        for sequence in self.pending.drain(..).skip(at) {
            drop(self.table.take_back(sequence));
        }
    }

    #[inline]
    fn withdraw(&mut self, _count: u32) {
        // Of a batch that put nothing, what was refused before may still be pending: its slots are open.
        self.end_pending();
    }
}

impl Drop for SharedPoster {
    fn drop(&mut self) {
        self.end_pending();
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
