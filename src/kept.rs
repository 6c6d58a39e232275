//! A value read from a device, kept as an immutable snapshot and read anew when an event says that
//! it changed.
//!
//! # Why no change is lost
//!
//! Two counters: `announced` counts the changes that events have told of, `included` is what
//! `announced` was before the read that made the current snapshot. The device shows a change before
//! it tells of it, so a read that begins after an announcement includes that change: `announced` is
//! noted first, then the device is read, then the snapshot is stored, then `included`. Whoever sees
//! `included` at a value sees the snapshot that goes with it, or a later one. A change that is
//! announced while the device is being read leaves `included` behind, and the next check reads
//! again.

#![deny(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};

use crate::error::Result;

/// The current snapshot of a value, and whether it may be behind.
pub(crate) struct Kept<S> {
    current: ArcSwap<S>,
    announced: AtomicU64,
    included: AtomicU64,
    /// Held by the one thread that reads the device.
    writer: Mutex<()>,
    counters: Counters,
    /// When the first change was announced that no read has begun to include.
    waiting_since: Mutex<Option<Instant>>,
}

/// Where announcements come from: whoever checks a kept value takes them in first.
pub(crate) trait Announcements: Send + Sync {
    /// Takes in what there is, without waiting; every change it tells of has been announced to
    /// the values concerned when this returns.
    fn take_in(&self) -> Result<()>;
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    refreshes: AtomicU64,
    last_ns: AtomicU64,
    slowest_ns: AtomicU64,
}

/// What a cache has done since its device was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// `checked` answers given from memory, because no event had told of a change, or another
    /// thread's read had it already.
    pub hits: u64,
    /// `checked` answers for which the device was read first.
    pub misses: u64,
    /// Reads of the device, for whatever reason.
    pub refreshes: u64,
    /// Events that told of a change; a burst of them is one read. Of tables read from sysfs, which
    /// has no events: `checked` answers.
    pub events: u64,
    /// From the first event of the last burst being taken to the change being visible.
    pub last_visible: Duration,
    /// The longest such time.
    pub slowest_visible: Duration,
}

impl<S> Kept<S> {
    /// Keeps `nothing` until the first read, which the next check makes: so that a listener can be
    /// registered before anything is read.
    pub(crate) fn new(nothing: S) -> Kept<S> {
        Kept {
            current: ArcSwap::from_pointee(nothing),
            announced: AtomicU64::new(1),
            included: AtomicU64::new(0),
            writer: Mutex::new(()),
            counters: Counters::default(),
            waiting_since: Mutex::new(None),
        }
    }

    /// The current snapshot. Memory only: no system call, no lock, no allocation.
    pub(crate) fn load(&self) -> Guard<Arc<S>> {
        self.current.load()
    }

    /// An event has told of a change.
    pub(crate) fn announce(&self) {
        let mut since = self.waiting_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.get_or_insert_with(Instant::now);
        // Release: what was done before is seen by whoever reads the count. Inside the lock, so
        // that a read never takes the time of an announcement that it does not include.
        self.announced.fetch_add(1, Ordering::Release);
    }

    /// Whether every announced change is in the current snapshot.
    pub(crate) fn is_current(&self) -> bool {
        let announced = self.announced.load(Ordering::Acquire);
        self.included.load(Ordering::Acquire) >= announced
    }

    /// Reads the device if a change was announced that the snapshot does not include. `read` gets
    /// the current snapshot, and gives a new one, or `None` when nothing changed.
    pub(crate) fn check(&self, read: impl FnOnce(&S) -> Result<Option<S>>) -> Result<()> {
        let counter =
            if self.catch_up(read)? { &self.counters.misses } else { &self.counters.hits };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The same without counting it as an answer; gives whether the device was read.
    pub(crate) fn catch_up(&self, read: impl FnOnce(&S) -> Result<Option<S>>) -> Result<bool> {
        if self.is_current() {
            return Ok(false);
        }
        // A panic elsewhere leaves nothing half done: the snapshot is replaced in one step.
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread's read may have included it while this one waited.
        if self.is_current() {
            return Ok(false);
        }
        self.read(read)?;
        drop(writer);
        Ok(true)
    }

    /// Reads the device now.
    pub(crate) fn refresh(&self, read: impl FnOnce(&S) -> Result<Option<S>>) -> Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(read)?;
        drop(writer);
        Ok(())
    }

    /// The read itself; the caller holds `writer`.
    fn read(&self, read: impl FnOnce(&S) -> Result<Option<S>>) -> Result<()> {
        let (upto, since) = {
            let mut since = self.waiting_since.lock().unwrap_or_else(PoisonError::into_inner);
            (self.announced.load(Ordering::Acquire), since.take())
        };
        self.counters.refreshes.fetch_add(1, Ordering::Relaxed);
        match read(&self.current.load()) {
            Ok(Some(new)) => self.current.store(Arc::new(new)),
            Ok(None) => {}
            Err(error) => {
                // The change waits on; so does its time.
                let mut waiting = self.waiting_since.lock().unwrap_or_else(PoisonError::into_inner);
                *waiting = since.or(*waiting);
                return Err(error);
            }
        }
        self.included.store(upto, Ordering::Release);
        if let Some(since) = since {
            let took = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.counters.last_ns.store(took, Ordering::Relaxed);
            self.counters.slowest_ns.fetch_max(took, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            hits: of(&self.counters.hits),
            misses: of(&self.counters.misses),
            refreshes: of(&self.counters.refreshes),
            // One stands for the first read.
            events: of(&self.announced) - 1,
            last_visible: Duration::from_nanos(of(&self.counters.last_ns)),
            slowest_visible: Duration::from_nanos(of(&self.counters.slowest_ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Errno, Error};

    fn failing(_: &u32) -> Result<Option<u32>> {
        Err(Error::DeviceList { errno: Errno::EIO })
    }

    /// A value that was read once, and is 1.
    fn one() -> Kept<u32> {
        let kept = Kept::new(0);
        kept.refresh(|_| Ok(Some(1))).expect("a read");
        kept
    }

    #[test]
    fn the_first_check_reads() {
        let kept = Kept::new(0);
        assert!(!kept.is_current());
        kept.check(|_| Ok(Some(1))).expect("a read");
        assert_eq!((**kept.load(), kept.is_current(), kept.stats().events), (1, true, 0));
    }

    #[test]
    fn a_check_reads_only_after_an_announcement() {
        let kept = one();
        kept.check(|_| panic!("nothing was announced")).expect("from memory");
        kept.announce();
        kept.announce();
        kept.check(|old| Ok(Some(old + 1))).expect("one read for the burst");
        assert_eq!(**kept.load(), 2);
        kept.check(|_| panic!("both are included")).expect("from memory");
        let stats = kept.stats();
        assert_eq!((stats.hits, stats.misses, stats.refreshes, stats.events), (2, 1, 2, 2));
        assert!(stats.last_visible > Duration::ZERO);
        assert_eq!(stats.last_visible, stats.slowest_visible);
    }

    /// What is announced while the device is read may not be in what was read.
    #[test]
    fn a_change_during_the_read_is_read_again() {
        let kept = one();
        kept.announce();
        kept.check(|_| {
            kept.announce();
            Ok(Some(2))
        })
        .expect("a read");
        assert!(!kept.is_current());
        kept.check(|_| Ok(Some(3))).expect("a read");
        assert_eq!(**kept.load(), 3);
        assert!(kept.is_current());
    }

    #[test]
    fn a_failed_read_leaves_the_change_waiting() {
        let kept = one();
        kept.announce();
        assert!(kept.check(failing).is_err());
        assert_eq!(**kept.load(), 1);
        assert!(!kept.is_current());
        kept.check(|_| Ok(Some(2))).expect("a read");
        assert!(kept.stats().last_visible > Duration::ZERO);
        assert!(kept.refresh(failing).is_err());
        assert_eq!(**kept.load(), 2);
    }

    /// A value that a "device" changes and then announces: whoever checks after the announcement
    /// sees the change, on four threads.
    #[test]
    fn whoever_checks_after_an_announcement_sees_the_change() {
        let device = AtomicU64::new(0);
        let kept = Kept::new(0_u64);
        let read = |_: &u64| Ok(Some(device.load(Ordering::SeqCst)));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        let mine = device.fetch_add(1, Ordering::SeqCst) + 1;
                        kept.announce();
                        kept.check(read).expect("a read");
                        assert!(**kept.load() >= mine);
                    }
                });
            }
        });
        assert_eq!(**kept.load(), 20_000);
        assert!(kept.stats().refreshes <= 20_001);
    }
}
