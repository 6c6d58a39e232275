//! Slabs in order: which is handed out of, which waits, and when there is one more or fewer.

#![deny(unsafe_code)]

use std::collections::VecDeque;

use super::slab::{Part, Region, Share};
use crate::error::{Error, Result};

/// Where slabs come from. Dropping a region deregisters and unmaps it.
pub(super) trait Source {
    /// Memory that is mapped, and not registered; dropping it unmaps it.
    type Memory;
    type Region: Region;

    /// Memory for one slab, zero at first.
    fn map(&mut self) -> Result<Self::Memory>;

    fn register(&mut self, memory: Self::Memory) -> Result<Self::Region>;
}

/// The sizes of a pool. Checked by who makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Of a fragment, in bytes.
    pub(super) fragment: u32,
    /// How many of them a slab has.
    pub(super) each: u32,
    /// The fewest slabs, at least 1.
    pub(super) floor: usize,
    /// The most.
    pub(super) ceiling: usize,
}

/// The owner of all slabs.
pub(super) struct Order<S: Source> {
    /// The one that is handed out of.
    current: Option<Share<S::Region>>,
    /// All others, the next first. Behind those that were never used they stand in the order in which they
    /// were handed out.
    waiting: VecDeque<Share<S::Region>>,
    source: S,
    pub(super) shape: Shape,
    /// Why there could not be one more, the last time that was tried.
    pub(super) failure: Option<Error>,
    /// How many slabs are to come round before taking tries again.
    pause: u32,
    /// How long the next pause is.
    next_pause: u32,
    pub(super) registrations: u64,
    pub(super) failures: u64,
    pub(super) high_water: usize,
}

/// The longest pause after failures, in slabs that came round.
const LONGEST_PAUSE: u32 = 1024;

impl<S: Source> Order<S> {
    /// As many slabs as the floor says.
    ///
    /// # Errors
    ///
    /// How many could be made, and why not more; there is none then.
    pub(super) fn new(source: S, shape: Shape) -> Result<Order<S>, (usize, Error)> {
        let mut order = Order {
            current: None,
            waiting: VecDeque::new(),
            source,
            shape,
            failure: None,
            pause: 0,
            next_pause: 1,
            registrations: 0,
            failures: 0,
            high_water: 0,
        };
        for made in 0..shape.floor {
            order.add().map_err(|error| (made, error))?;
        }
        Ok(order)
    }

    pub(super) fn slabs(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }

    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// Every slab.
    pub(super) fn all(&self) -> impl Iterator<Item = &Share<S::Region>> {
        self.current.iter().chain(&self.waiting)
    }

    /// The next fragment; `None` when the next slab is not complete and there cannot be another.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Part<S::Region>> {
        match self.current.as_mut().and_then(Share::take) {
            None => self.take_of_next(),
            part => part,
        }
    }

    #[cold]
    fn take_of_next(&mut self) -> Option<Part<S::Region>> {
        self.retire();
        if !self.waiting.front().is_some_and(Share::is_complete) && !self.try_to_grow() {
            return None;
        }
        let mut next = self.waiting.pop_front()?;
        if !next.begin() {
            // It was complete, or is new.
            self.waiting.push_front(next);
            return None;
        }
        self.pause = self.pause.saturating_sub(1);
        self.current.insert(next).take()
    }

    /// Whether so many can be taken now.
    #[inline]
    pub(super) fn has(&mut self, count: u32) -> bool {
        self.current.as_ref().is_some_and(|current| current.left() >= count)
            || self.has_in_several(count)
    }

    #[cold]
    fn has_in_several(&mut self, count: u32) -> bool {
        self.retire();
        loop {
            let mut ready = self.current.as_ref().map_or(0, Share::left);
            for share in &self.waiting {
                if ready >= count || !share.is_complete() {
                    break;
                }
                ready = ready.saturating_add(self.shape.each);
            }
            if ready >= count {
                return true;
            }
            if !self.try_to_grow() {
                return false;
            }
        }
    }

    /// What was handed out of to its end waits until it is complete.
    fn retire(&mut self) {
        if let Some(exhausted) = self.current.take_if(|current| current.left() == 0) {
            self.waiting.push_back(exhausted);
        }
    }

    /// Takes one back as if it had not been taken, if it was the last; else it goes the way of all others.
    pub(super) fn put_back(&mut self, part: Part<S::Region>) {
        let part = match self.current.as_mut() {
            Some(current) => match current.put_back(part) {
                Ok(()) => return,
                Err(part) => part,
            },
            None => part,
        };
        // Of the slab before: if none of the current one was taken, that one waits again.
        let Some(mut before) = self.waiting.pop_back() else { return };
        let none_taken =
            self.current.as_ref().is_none_or(|current| current.left() == self.shape.each);
        if !none_taken || before.put_back(part).is_err() {
            self.waiting.push_back(before);
            return;
        }
        if let Some(mut unused) = self.current.replace(before) {
            unused.end();
            self.waiting.push_front(unused);
        }
    }

    /// One slab more, the next to be handed out of.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] at the ceiling; what the kernel and the device answer.
    pub(super) fn grow(&mut self) -> Result<()> {
        let (slabs, most) = (self.slabs(), self.shape.ceiling);
        if slabs >= most {
            let (asked, most) = (slabs as u64 + 1, most as u64);
            let what = "the number of slabs of a page pool";
            return Err(Error::OutOfRange { what, asked, least: 1, most });
        }
        self.add().inspect_err(|_| self.failures += 1)?;
        (self.failure, self.pause, self.next_pause) = (None, 0, 1);
        Ok(())
    }

    /// The same by itself. After a failure it waits until slabs have come round, ever more of them.
    fn try_to_grow(&mut self) -> bool {
        if self.pause > 0 || self.slabs() >= self.shape.ceiling {
            return false;
        }
        match self.grow() {
            Ok(()) => true,
            Err(error) => {
                self.failure = Some(error);
                self.pause = self.next_pause;
                self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
                false
            }
        }
    }

    fn add(&mut self) -> Result<()> {
        let memory = self.source.map()?;
        let region = self.source.register(memory)?;
        self.registrations += 1;
        let share = Share::new(region, self.shape.each, self.shape.fragment);
        // Room for all of them to wait: handing out allocates nothing.
        self.waiting.reserve(self.slabs() + 1 - self.waiting.len());
        self.waiting.push_front(share);
        self.high_water = self.high_water.max(self.slabs());
        Ok(())
    }

    /// Ends complete slabs above the floor, in order, up to the first that is not complete; gives their
    /// number.
    pub(super) fn shrink(&mut self) -> usize {
        self.retire();
        let before = self.slabs();
        while self.slabs() > self.shape.floor
            && self.waiting.front().is_some_and(Share::is_complete)
        {
            self.waiting.pop_front();
        }
        let ended = before - self.slabs();
        if ended > 0 {
            (self.pause, self.next_pause) = (0, 1);
        }
        ended
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
