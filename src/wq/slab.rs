//! The table of a shared receive queue: any thread posts, and the completions come in any order on
//! several completion queues, each polled by a thread of its own.
//!
//! A place is taken from the free list, filled, and posted. Whoever gets a completion, or takes back what
//! was refused, exchanges its state: one has it. The place goes back to the free list only after that, so
//! that nobody fills it meanwhile. Each use of a place has a number, which is in its state and in the
//! `wr_id`: a completion that comes twice finds another.

#![allow(unsafe_code)]
#![cfg_attr(not(test), expect(dead_code, reason = "its caller is the shared receive queue"))]

use std::ptr::null_mut;

use crate::mem::{FreeList, Held};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// See the module.
pub(crate) struct Slab {
    places: Box<[Place]>,
    free: FreeList,
}

struct Place {
    /// Which use of the place this is, and in the low bit whether it is in flight.
    state: AtomicU32,
    /// What [`Held::into_raw`] gave, while it is in flight.
    held: AtomicPtr<u8>,
    wr_id: AtomicU64,
}

/// How many bits of an id name the place; the free list has no more.
const PLACE_BITS: u32 = 24;

impl Slab {
    pub(crate) fn new(depth: u32) -> Slab {
        let place = |_| Place {
            state: AtomicU32::new(0),
            held: AtomicPtr::new(null_mut()),
            wr_id: AtomicU64::new(0),
        };
        Slab { places: (0..depth).map(place).collect(), free: FreeList::new(depth) }
    }

    /// Takes the memory in, and gives what the completion names it by; the memory back when the table is
    /// full.
    pub(crate) fn put(&self, wr_id: u64, held: Held) -> Result<u32, Held> {
        let Some(number) = self.free.take() else { return Err(held) };
        let place = &self.places[number as usize];
        let uses = (place.state.load(Ordering::Relaxed) >> 1).wrapping_add(1);
        place.held.store(held.into_raw(), Ordering::Relaxed);
        place.wr_id.store(wr_id, Ordering::Relaxed);
        // Release: who finds it in flight sees the rest.
        place.state.store(uses << 1 | 1, Ordering::Release);
        Ok(uses << PLACE_BITS | number)
    }

    /// Takes the memory out, of a completion or of what was refused; `None` when nothing of this name is
    /// in flight.
    pub(crate) fn claim(&self, id: u32) -> Option<(u64, Held)> {
        let number = id & ((1 << PLACE_BITS) - 1);
        let place = self.places.get(number as usize)?;
        let state = place.state.load(Ordering::Acquire);
        if state & 1 == 0 || (state >> 1) & 0xff != id >> PLACE_BITS {
            return None;
        }
        // Of this use, not of a later one: one of those who try has it, until the place is given back.
        let taken =
            place.state.compare_exchange(state, state & !1, Ordering::Acquire, Ordering::Relaxed);
        taken.ok()?;
        // SAFETY: it was put by `into_raw`, and the exchange gave it to us alone.
        let held = unsafe { Held::from_raw(place.held.load(Ordering::Relaxed)) }?;
        let wr_id = place.wr_id.load(Ordering::Relaxed);
        self.free.give(number);
        Some((wr_id, held))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_name_once() {
        let slab = Slab::new(2);
        let first = slab.put(10, Held::nothing()).expect("room");
        let second = slab.put(20, Held::nothing()).expect("room");
        assert!(slab.put(30, Held::nothing()).is_err(), "full");
        assert_eq!(slab.claim(second).map(|(wr_id, _)| wr_id), Some(20));
        assert!(slab.claim(second).is_none(), "twice");
        let third = slab.put(30, Held::nothing()).expect("room again");
        assert!(slab.claim(second).is_none(), "an earlier use of the place");
        assert!(slab.claim(77).is_none(), "no such place");
        assert_eq!(slab.claim(third).map(|(wr_id, _)| wr_id), Some(30));
        assert_eq!(slab.claim(first).map(|(wr_id, _)| wr_id), Some(10));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The same completion on two completion queues, while a third thread posts again: one has it.
    #[test]
    fn two_pollers_and_a_poster() {
        loom::model(|| {
            let slab = Arc::new(Slab::new(1));
            let id = slab.put(1, Held::nothing()).unwrap();
            let poller = || {
                let slab = slab.clone();
                thread::spawn(move || usize::from(slab.claim(id).is_some()))
            };
            let (one, two) = (poller(), poller());
            // Full, or the place of the first.
            let again = slab.put(2, Held::nothing()).ok();
            let claims = one.join().unwrap() + two.join().unwrap();
            assert_eq!(claims, 1);
            if let Some(again) = again {
                assert!(slab.claim(again).is_some(), "the second is still there");
            }
        });
    }
}
