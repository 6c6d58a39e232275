//! Which buffers of a pool nobody has: a stack of their numbers that any thread may take from and
//! give back to, without a lock.
//!
//! The head is one word: the number on top, how many there are, and a tag that every change moves on.
//! Taking reads the number below the top, and then changes the head if it is still the same word. The
//! number below may have been read from a buffer that others took and gave back meanwhile; then the
//! tag differs, unless they did so 65,536 times, and left as many free as there were, between two
//! instructions.
//!
//! Closing takes the whole stack, once: who gives back after that is told so. The two agree on who is
//! the last by a count: closing adds how many are out, each of those takes one away, and whoever comes
//! to zero with his own step is the last. Before closing the count is at most zero, and a step away
//! from it makes it less: nobody is the last by mistake.

use crate::sync::{AtomicIsize, AtomicU32, AtomicU64, Ordering};

/// See the module. Numbers are below the capacity.
pub(crate) struct FreeList {
    head: AtomicU64,
    /// By number: the number below it on the stack. Written by whoever has the number.
    below: Box<[AtomicU32]>,
    out: AtomicIsize,
}

/// The most buffers of one pool.
pub(crate) const MOST: u32 = NONE - 1;

/// No number.
const NONE: u32 = (1 << 24) - 1;
/// The head after closing: no other has this many free.
const CLOSED: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Head {
    tag: u16,
    free: u32,
    top: u32,
}

impl Head {
    fn word(self) -> u64 {
        u64::from(self.tag) << 48 | u64::from(self.free) << 24 | u64::from(self.top)
    }

    fn of(word: u64) -> Head {
        let low = |word: u64| (word & 0xff_ffff) as u32;
        Head { tag: (word >> 48) as u16, free: low(word >> 24), top: low(word) }
    }
}

impl FreeList {
    /// All numbers below `capacity`, at most [`MOST`], the lowest on top.
    pub(crate) fn new(capacity: u32) -> FreeList {
        let capacity = capacity.min(MOST);
        let below = (1..=capacity).map(|n| AtomicU32::new(if n == capacity { NONE } else { n }));
        let top = if capacity == 0 { NONE } else { 0 };
        FreeList {
            head: AtomicU64::new(Head { tag: 0, free: capacity, top }.word()),
            below: below.collect(),
            out: AtomicIsize::new(0),
        }
    }

    /// How many there are.
    pub(crate) fn free(&self) -> u32 {
        Head::of(self.head.load(Ordering::Relaxed)).free
    }

    /// Takes one. What its last owner did to it happened before.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        // Acquire, here and when the exchange fails: pairs with the release of who gave the top back,
        // so that what is below it, and what its owner did, is seen.
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let head = Head::of(word);
            // Also when it is closed: its top is NONE.
            if head.top == NONE {
                return None;
            }
            let below = self.below[head.top as usize].load(Ordering::Relaxed);
            let next = Head { tag: head.tag.wrapping_add(1), free: head.free - 1, top: below };
            match self.head.compare_exchange_weak(
                word,
                next.word(),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(head.top),
                Err(now) => word = now,
            }
        }
    }

    /// Gives one back. True when the list is closed and this was the last that was out: then everything
    /// that was done to any of them happened before.
    #[inline]
    pub(crate) fn give(&self, number: u32) -> bool {
        let mut word = self.head.load(Ordering::Relaxed);
        loop {
            if word == CLOSED {
                return self.out.fetch_sub(1, Ordering::AcqRel) == 1;
            }
            let head = Head::of(word);
            self.below[number as usize].store(head.top, Ordering::Relaxed);
            let next = Head { tag: head.tag.wrapping_add(1), free: head.free + 1, top: number };
            // Release: what was done to the buffer is seen by who takes it.
            match self.head.compare_exchange_weak(
                word,
                next.word(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return false,
                Err(now) => word = now,
            }
        }
    }

    /// Ends taking, once. True when none is out; as for [`give`](FreeList::give).
    pub(crate) fn close(&self) -> bool {
        // Acquire: sees what was done to those that were given back.
        let free = Head::of(self.head.swap(CLOSED, Ordering::AcqRel)).free;
        let out = (self.below.len() - free as usize) as isize;
        self.out.fetch_add(out, Ordering::AcqRel) + out == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_number_once() {
        let list = FreeList::new(3);
        let taken: HashSet<u32> = std::iter::from_fn(|| list.take()).collect();
        assert_eq!((taken.len(), list.free()), (3, 0));
        assert!(!list.give(1));
        assert_eq!((list.free(), list.take(), list.take()), (1, Some(1), None));
        assert!(!list.close(), "three are out");
        assert_eq!(list.take(), None);
        assert!(!list.give(0));
        assert!(!list.give(2));
        assert!(list.give(1), "the last");
    }

    #[test]
    fn closed_with_none_out() {
        assert!(FreeList::new(0).close());
        let list = FreeList::new(2);
        let number = list.take().expect("one");
        list.give(number);
        assert!(list.close());
    }

    /// More threads than processors, each taking, marking, checking and giving back.
    #[test]
    fn nobody_has_what_another_has() {
        use std::sync::atomic::AtomicBool;
        let list = FreeList::new(5);
        let owned: Vec<AtomicBool> = (0..5).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    for round in 0_u32..20_000 {
                        if round % 3 != 2 {
                            if let Some(number) = list.take() {
                                let before = owned[number as usize].swap(true, Ordering::Relaxed);
                                assert!(!before, "{number} was taken twice");
                                mine.push(number);
                            }
                        } else if let Some(number) = mine.pop() {
                            owned[number as usize].store(false, Ordering::Relaxed);
                            list.give(number);
                        }
                    }
                    for number in mine {
                        owned[number as usize].store(false, Ordering::Relaxed);
                        list.give(number);
                    }
                });
            }
        });
        assert_eq!(list.free(), 5);
    }
}

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two threads take and give back while the third does: nobody has what another has.
    #[test]
    fn take_and_give() {
        loom::model(|| {
            let list = Arc::new(FreeList::new(2));
            let owned = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let work = |list: &FreeList, owned: &[AtomicU32; 2]| {
                if let Some(number) = list.take() {
                    assert_eq!(owned[number as usize].swap(1, Ordering::Relaxed), 0);
                    owned[number as usize].store(0, Ordering::Relaxed);
                    list.give(number);
                }
            };
            let other = thread::spawn({
                let (list, owned) = (list.clone(), owned.clone());
                move || work(&list, &owned)
            });
            work(&list, &owned);
            work(&list, &owned);
            other.join().unwrap();
            assert_eq!(list.free(), 2);
        });
    }

    /// The pool is dropped while one buffer comes back on another thread, and one comes back later:
    /// exactly one is told that it is the last, and what the others did happened before.
    #[test]
    fn one_is_the_last() {
        use loom::cell::UnsafeCell;
        loom::model(|| {
            let list = Arc::new(FreeList::new(2));
            let memory = Arc::new([UnsafeCell::new(0_u8), UnsafeCell::new(0_u8)]);
            let lasts = Arc::new(AtomicU32::new(0));
            let end = |memory: &[UnsafeCell<u8>; 2], lasts: &AtomicU32| {
                lasts.fetch_add(1, Ordering::Relaxed);
                // SAFETY: this thread is the last: loom fails the model if anybody's write does not
                // happen before.
                memory.iter().for_each(|byte| byte.with_mut(|byte| unsafe { *byte += 1 }));
            };
            let (mine, theirs) = (list.take().unwrap(), list.take().unwrap());
            let thread = thread::spawn({
                let (list, memory, lasts) = (list.clone(), memory.clone(), lasts.clone());
                move || {
                    // SAFETY: the number is this thread's.
                    memory[theirs as usize].with_mut(|byte| unsafe { *byte += 1 });
                    if list.give(theirs) {
                        end(&memory, &lasts);
                    }
                }
            });
            // SAFETY: the number is this thread's.
            memory[mine as usize].with_mut(|byte| unsafe { *byte += 1 });
            if list.close() {
                end(&memory, &lasts);
            }
            if list.give(mine) {
                end(&memory, &lasts);
            }
            thread.join().unwrap();
            assert_eq!(lasts.load(Ordering::Relaxed), 1);
        });
    }
}
