//! The queues that complete on a completion queue: their tables, and the room they take.
//!
//! A queue pair enters its tables before it is made, and tells that they are dead after it was destroyed.
//! The poller has a copy of the list, and looks whether it changed by one load a poll. A dead table stays
//! until the poller has seen the completion queue empty after that, or has taken out of it as many as can have
//! been in it: completions of a queue pair that was destroyed may still be there. Then what is left in the
//! table is given out, and the room is free again.
//! When the poller itself has gone, who destroys a queue pair drops what is left. Shared receive queues have a
//! list of their own (`srqs`).

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::channel::{Channel, CompletionChannel, Signal};
use super::srqs::Srq;
use crate::context::Context;
use crate::error::{Error, Queue, Result};
use crate::event::ObjectEvents;
use crate::sys::CqHandle;
use crate::wq::{Ring, SHARED, WrId};

/// What a completion queue and its queue pairs share.
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(super) channel: Option<Arc<Channel>>,
    pub(super) signal: Option<Arc<Signal>>,
    pub(super) events: Arc<ObjectEvents>,
    /// How many work requests it has room for.
    pub(super) size: u32,
    owners: Mutex<Owners>,
    /// Counts the changes of `owners` that concern the poller.
    changes: AtomicU64,
    /// Destroyed after the queue pairs, which hold it.
    pub(crate) handle: Arc<CqHandle>,
}

#[derive(Default)]
pub(super) struct Owners {
    places: Vec<Place>,
    /// Places that nobody has.
    free: Vec<u16>,
    /// What was destroyed since the poller last looked.
    pub(super) dead: Vec<Gone>,
    pub(super) srqs: Vec<Srq>,
    pub(super) room: u32,
    /// Nobody polls any more.
    pub(super) abandoned: bool,
}

/// What was destroyed, and may have completions here still.
#[derive(Clone, Copy)]
pub(super) enum Gone {
    /// The queue pair of a table, by its place.
    Place(u16),
    /// The last queue pair of a shared receive queue here, for the how-manieth time.
    Srq { owner: u16, left: u64 },
}

struct Place {
    generation: u16,
    table: Option<(Arc<Ring>, Queue)>,
}

impl Shared {
    pub(super) fn new(
        context: Context,
        handle: CqHandle,
        events: Arc<ObjectEvents>,
        channel: Option<&CompletionChannel>,
    ) -> Result<Shared> {
        let size = handle.granted();
        let channel = channel.map(|channel| Arc::clone(channel.inner()));
        let signal = match &channel {
            Some(channel) => {
                let signal = channel.enter(handle.key()).inspect_err(|_| {
                    context.events().unregister(handle.key() as u64, &events);
                })?;
                let woken = Arc::clone(&signal);
                events.wake_by(move || woken.fire(false));
                Some(signal)
            }
            None => None,
        };
        Ok(Shared {
            context,
            channel,
            signal,
            events,
            size,
            owners: Mutex::new(Owners { room: size, ..Owners::default() }),
            changes: AtomicU64::new(0),
            handle: Arc::new(handle),
        })
    }

    /// Takes room for a queue of this depth, and makes its table.
    pub(crate) fn enter(&self, queue: Queue, depth: u32, pieces: u32) -> Result<Arc<Ring>> {
        let mut owners = self.owners();
        if owners.abandoned {
            return Err(Error::CompletionQueueGone);
        }
        owners.take_room(depth, self.size)?;
        let place = match owners.free.pop() {
            Some(place) => place,
            None => {
                // The other half of all owners is that of shared receive queues.
                let place = u16::try_from(owners.places.len()).ok();
                let Some(place) = place.filter(|place| place & SHARED == 0) else {
                    owners.room += depth;
                    let (left, size) = (0, self.size);
                    return Err(Error::CompletionQueueFull { asked: depth, left, size });
                };
                owners.places.push(Place { generation: 0, table: None });
                place
            }
        };
        let entry = &mut owners.places[usize::from(place)];
        entry.generation = entry.generation.wrapping_add(1);
        let ring = Arc::new(Ring::new(place, entry.generation, depth, pieces, 0));
        entry.table = Some((Arc::clone(&ring), queue));
        self.changed(&owners);
        Ok(ring)
    }

    /// Takes back a table whose queue pair was not made after all: nothing was ever posted.
    pub(crate) fn leave_unused(&self, ring: &Ring) {
        let mut owners = self.owners();
        owners.free_place(ring.owner().owner);
        self.changed(&owners);
    }

    /// The queue pair of this table was destroyed: the device touches nothing of it any more.
    pub(crate) fn destroyed(&self, ring: &Ring) {
        let mut owners = self.owners();
        let place = ring.owner().owner;
        if owners.abandoned {
            // SAFETY: nobody polls, nor ever will, and other queue pairs have other tables; the queue
            // pair was destroyed.
            unsafe { ring.clear() };
            owners.free_place(place);
        } else {
            owners.dead.push(Gone::Place(place));
            self.changed(&owners);
            drop(owners);
            // What is left is for who waits, though the device will not say so.
            self.wake();
        }
    }

    /// Wakes who waits.
    pub(super) fn wake(&self) {
        if let Some(signal) = &self.signal {
            signal.fire(false);
        }
    }

    pub(super) fn room(&self) -> u32 {
        self.owners().room
    }

    /// While `owners` is locked.
    pub(super) fn changed(&self, _owners: &Owners) {
        // Release: who sees the count and then locks sees the change; the lock alone would do.
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn owners(&self) -> MutexGuard<'_, Owners> {
        // A panic elsewhere leaves nothing half done behind this lock.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owners {
    pub(super) fn take_room(&mut self, depth: u32, size: u32) -> Result<()> {
        if depth > self.room {
            return Err(Error::CompletionQueueFull { asked: depth, left: self.room, size });
        }
        self.room -= depth;
        Ok(())
    }

    fn free_place(&mut self, place: u16) {
        let Some(entry) = self.places.get_mut(usize::from(place)) else { return };
        if let Some((ring, _)) = entry.table.take() {
            self.room += ring.depth();
            self.free.push(place);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.leave(self.handle.key());
        }
        self.context.events().unregister(self.handle.key() as u64, &self.events);
    }
}

/// The poller's copy of the list.
#[derive(Default)]
pub(super) struct Polled {
    /// By place.
    tables: Vec<Option<Table>>,
    /// As of this count of changes.
    changes: u64,
    /// What was destroyed, in that order, and how many completions had been taken when that was learnt.
    dead: Vec<(Gone, u64)>,
    /// Tables of shared receive queues, by number.
    pub(super) srqs: Vec<Option<Arc<Ring>>>,
    /// How many completions were taken from the device.
    taken: u64,
    /// How many of the first of `dead` can have no completion left in the completion queue.
    ending: usize,
    /// How far the table of the first of them was looked through.
    cursor: Option<u32>,
}

/// A queue as its poller sees it.
pub(super) struct Table {
    pub(super) ring: Arc<Ring>,
    pub(super) queue: Queue,
    generation: u16,
    /// All before are out; of a send queue.
    pub(super) tail: u32,
    /// Whether one of a send queue has failed: none behind it is carried out.
    pub(super) failed: bool,
}

impl Polled {
    #[inline]
    pub(super) fn is_behind(&self, shared: &Shared) -> bool {
        shared.changes.load(Ordering::Acquire) != self.changes
    }

    #[cold]
    pub(super) fn catch_up(&mut self, shared: &Shared) {
        let mut owners = shared.owners();
        self.changes = shared.changes.load(Ordering::Acquire);
        self.tables.resize_with(owners.places.len(), || None);
        for (table, place) in self.tables.iter_mut().zip(&owners.places) {
            let there = place.table.as_ref().filter(|(ring, _)| {
                // Known already: its tail counts.
                !table.as_ref().is_some_and(|table| Arc::ptr_eq(&table.ring, ring))
            });
            if let Some((ring, queue)) = there {
                *table = Some(Table {
                    ring: Arc::clone(ring),
                    queue: *queue,
                    generation: place.generation,
                    tail: 0,
                    failed: false,
                });
            } else if place.table.is_none() {
                *table = None;
            }
        }
        let taken = self.taken;
        self.dead.extend(owners.dead.drain(..).map(|gone| (gone, taken)));
        self.catch_up_srqs(&owners);
    }

    /// So many completions were taken from the device, in the order in which they came: those of a queue pair
    /// that was destroyed before as many as there is room for are among them. Whoever makes a queue that never
    /// is empty must not wait for ever.
    #[inline]
    pub(super) fn took(&mut self, count: usize, size: u32) {
        self.taken += count as u64;
        if self.ending < self.dead.len() {
            self.look_for_ends(size);
        }
    }

    #[cold]
    fn look_for_ends(&mut self, size: u32) {
        // A device may have room for more than it says: up to the next power of two.
        let most = u64::from(size) * 2;
        let ends = |(_, then): &&(Gone, u64)| self.taken - then >= most;
        self.ending += self.dead[self.ending..].iter().take_while(ends).count();
    }

    /// The completion queue was seen empty, by a call that began after the last `catch_up`.
    #[inline]
    pub(super) fn saw_it_empty(&mut self) {
        self.ending = self.dead.len();
    }

    /// Whether queue pairs were destroyed whose tables are still here.
    pub(super) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Whether there are tables whose rest is to be given out.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.ending != 0
    }

    /// The queue that a completion names.
    #[inline]
    pub(super) fn table(&mut self, id: WrId) -> Option<&mut Table> {
        let table = self.tables.get_mut(usize::from(id.owner))?.as_mut()?;
        (table.generation == id.generation).then_some(table)
    }

    /// All queues.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().flatten()
    }

    /// The queue at this place.
    #[inline]
    pub(super) fn at(&self, place: u16) -> Option<&Table> {
        self.tables.get(usize::from(place))?.as_ref()
    }

    /// The next work request of a queue that ends, for which the device made no completion: where it is.
    /// Frees the place of each queue that has none left.
    pub(super) fn next_left(&mut self, shared: &Shared) -> Option<(u16, u32)> {
        while self.ending != 0 {
            let (gone, _) = self.dead[0];
            let Gone::Place(place) = gone else {
                self.dead.remove(0);
                self.ending -= 1;
                self.end_srq(shared, gone);
                continue;
            };
            if let Some(table) = self.at(place) {
                let end = table.ring.end();
                let mut at = self.cursor.unwrap_or_else(|| table.ring.oldest_possible());
                while at != end {
                    let sequence = at;
                    at = at.wrapping_add(1);
                    if table.ring.has(sequence) {
                        self.cursor = Some(at);
                        return Some((place, sequence));
                    }
                }
            }
            if let Some(table) = self.tables.get_mut(usize::from(place)) {
                *table = None;
            }
            self.cursor = None;
            self.dead.remove(0);
            self.ending -= 1;
            shared.owners().free_place(place);
        }
        None
    }

    /// The poller goes: what is left in the tables of queue pairs that were destroyed is dropped.
    pub(super) fn give_up(&mut self, shared: &Shared) {
        let mut owners = shared.owners();
        owners.abandoned = true;
        let mut ended = std::mem::take(&mut self.srqs);
        let dead = std::mem::take(&mut self.dead).into_iter().map(|(gone, _)| gone);
        for gone in dead.chain(std::mem::take(&mut owners.dead)) {
            let Gone::Place(place) = gone else {
                ended.push(owners.end_srq(gone));
                continue;
            };
            if let Some((ring, _)) = &owners.places[usize::from(place)].table {
                // SAFETY: this is the poller, at its end; the queue pair was destroyed.
                unsafe { ring.clear() };
            }
            owners.free_place(place);
        }
        drop(owners);
        // The last owner of a table drops what is in it: not under the lock.
        drop(ended);
    }
}
