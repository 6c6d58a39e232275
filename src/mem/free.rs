//! Which buffers of a pool nobody has: a stack of their numbers that any thread may take from and
//! give back to, without a lock.
//!
//! The head is one word: the number on top, and a tag that every giving back moves on. Taking reads the
//! number below the top, and then changes the head if it is still the same word. The number below may have
//! been read from a buffer that others took and gave back meanwhile; then the tag differs, unless buffers
//! were given back 2^40 times between two instructions. A thread can be stopped there for long, while
//! others take and give millions of times a second: 16 bits would not do.
//!
//! How many there are stands with each number, as of when it was the top.
//!
//! Closing takes the whole stack, once: who gives back after that is told so. The two agree on who is
//! the last by a count: closing adds how many are out, each of those takes one away, and whoever comes
//! to zero with his own step is the last. Before closing the count is at most zero, and a step away
//! from it makes it less: nobody is the last by mistake.

use crate::sync::{AtomicIsize, AtomicU64, Ordering};

/// See the module. Numbers are below the capacity.
pub(crate) struct FreeList {
    head: AtomicU64,
    /// By number: a [`Link`]. Written by whoever has the number.
    links: Box<[AtomicU64]>,
    out: AtomicIsize,
}

/// The most buffers of one pool.
pub(crate) const MOST: u32 = NONE - 1;

/// No number.
const NONE: u32 = (1 << 24) - 1;
/// The head after closing.
const CLOSED: u64 = u64::MAX;
/// How many tags there are: all of 40 bits but the last, which is that of a list that is closed.
const TAGS: u64 = (1 << 40) - 1;

#[derive(Clone, Copy)]
struct Head {
    /// 40 bits.
    tag: u64,
    top: u32,
}

impl Head {
    fn word(self) -> u64 {
        self.tag << 24 | u64::from(self.top)
    }

    fn of(word: u64) -> Head {
        Head { tag: word >> 24, top: (word & 0xff_ffff) as u32 }
    }
}

/// What is known of a number that is on the stack.
#[derive(Clone, Copy)]
struct Link {
    /// The number below it.
    below: u32,
    /// How many there are, it and those below it.
    free: u32,
}

impl Link {
    fn word(self) -> u64 {
        u64::from(self.free) << 32 | u64::from(self.below)
    }

    fn of(word: u64) -> Link {
        Link { below: word as u32, free: (word >> 32) as u32 }
    }
}

impl FreeList {
    /// All numbers below `capacity`, at most [`MOST`], the lowest on top.
    pub(crate) fn new(capacity: u32) -> FreeList {
        let capacity = capacity.min(MOST);
        let link = |number: u32| {
            let below = if number + 1 == capacity { NONE } else { number + 1 };
            AtomicU64::new(Link { below, free: capacity - number }.word())
        };
        let top = if capacity == 0 { NONE } else { 0 };
        FreeList {
            head: AtomicU64::new(Head { tag: 0, top }.word()),
            links: (0..capacity).map(link).collect(),
            out: AtomicIsize::new(0),
        }
    }

    /// How many there are.
    pub(crate) fn free(&self) -> u32 {
        self.free_from(self.head.load(Ordering::Acquire))
    }

    /// How many there are when the head is this word, which was loaded with acquire: what its top's link
    /// says, or said later, and then the head is another.
    #[inline]
    fn free_from(&self, word: u64) -> u32 {
        match Head::of(word).top {
            NONE => 0,
            top => Link::of(self.links[top as usize].load(Ordering::Relaxed)).free,
        }
    }

    /// Takes one. What its last owner did to it happened before.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        // Acquire, here and when the exchange fails: pairs with the release of who gave the top back,
        // so that its link, and what its owner did, is seen.
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let head = Head::of(word);
            // Also when it is closed: its top is NONE.
            if head.top == NONE {
                return None;
            }
            let link = Link::of(self.links[head.top as usize].load(Ordering::Relaxed));
            // Giving back moves the tag on, and without that no number comes to the top again.
            let next = Head { tag: head.tag, top: link.below };
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
        // Acquire, here and when the exchange fails: the link of the top is read.
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            if word == CLOSED {
                return self.out.fetch_sub(1, Ordering::AcqRel) == 1;
            }
            let head = Head::of(word);
            let link = Link { below: head.top, free: self.free_from(word) + 1 };
            self.links[number as usize].store(link.word(), Ordering::Relaxed);
            let next = Head { tag: (head.tag + 1) % TAGS, top: number };
            // Release: what was done to the buffer is seen by who takes it.
            match self.head.compare_exchange_weak(
                word,
                next.word(),
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return false,
                Err(now) => word = now,
            }
        }
    }

    /// Ends taking, once. True when none is out; as for [`give`](FreeList::give).
    pub(crate) fn close(&self) -> bool {
        // Acquire: sees what was done to those that were given back. Nobody takes or gives there any more,
        // so that the link of the top stays.
        let free = self.free_from(self.head.swap(CLOSED, Ordering::AcqRel));
        let out = (self.links.len() - free as usize) as isize;
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

    /// A thread that was stopped between its two looks at the head: however the others have taken and given
    /// meanwhile, the same number on top and as many free, the head is another word.
    #[test]
    fn the_head_is_never_the_same_again() {
        let list = FreeList::new(3);
        let before = list.head.load(Ordering::Relaxed);
        for _ in 0..100_000 {
            let taken = [list.take(), list.take()].map(|number| number.expect("there are three"));
            // The second of them on top would be taken by who was stopped, and is out again.
            list.give(taken[1]);
            list.give(taken[0]);
            assert_eq!((list.free(), Head::of(list.head.load(Ordering::Relaxed)).top), (3, 0));
            assert_ne!(list.head.load(Ordering::Relaxed), before);
        }
    }

    #[test]
    fn a_tag_at_its_end_begins_anew() {
        let list = FreeList::new(2);
        let number = list.take().expect("one");
        let top = Head::of(list.head.load(Ordering::Relaxed)).top;
        list.head.store(Head { tag: TAGS - 1, top }.word(), Ordering::Relaxed);
        assert!(!list.give(number));
        assert_eq!((list.free(), list.take(), list.take()), (2, Some(number), Some(1)));
        assert_eq!(list.take(), None);
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
    use crate::sync::AtomicU32;

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
