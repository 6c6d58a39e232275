//! A device's tables, kept as a snapshot: readers take it without waiting, one writer at a time
//! reads the device anew.

#![deny(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::Guard;

use crate::error::Result;
use crate::kept::{Announcements, CacheStats, Kept};

/// Reads the device: a new snapshot, or `None` when it is as the one before.
pub(crate) type Read<S> = Box<dyn Fn(&S) -> Result<Option<S>> + Send + Sync>;

/// Tables of one device, answered from memory.
///
/// Freshness is chosen by name, never by accident. Each gives a whole snapshot, never a mix of two
/// reads.
///
/// | | costs | can miss |
/// |---|---|---|
/// | [`cached`](Cache::cached) | nanoseconds, memory only | every change since the last read |
/// | [`checked`](Cache::checked) | one system call that does not wait, and a read of the tables if an event told of a change | a change whose event the kernel has not raised yet: tens of microseconds to some milliseconds after the command that made it returned; and one whose event it dropped for want of memory |
/// | [`fresh`](Cache::fresh) | a read of the tables | what changes after it |
///
/// A change of a network interface's name or MTU raises no event of a device; a [`NetCache`](crate::NetCache) is told of it.
pub struct Cache<S> {
    kept: Arc<Kept<S>>,
    read: Read<S>,
    /// `None` for tables read from sysfs, which tells of no change.
    announcements: Option<Arc<dyn Announcements>>,
}

impl<S> Cache<S> {
    /// A cache filled by a first read. `kept` is what `announcements` announces to.
    pub(crate) fn new(
        kept: Arc<Kept<S>>,
        read: Read<S>,
        announcements: Option<Arc<dyn Announcements>>,
    ) -> Result<Cache<S>> {
        kept.refresh(&read)?;
        Ok(Cache { kept, read, announcements })
    }

    /// A cache of snapshots that a program makes itself, for its own tests: no device is read.
    /// [`fresh`](Cache::fresh) and [`checked`](Cache::checked) ask `next` for the snapshot after the
    /// one there is; `None` when nothing changed.
    pub fn from_fn(first: S, next: impl Fn(&S) -> Option<S> + Send + Sync + 'static) -> Cache<S> {
        let kept = Arc::new(Kept::new(first));
        // Never fails: nothing is read.
        let _ = kept.refresh(|_| Ok(None));
        Cache { kept, read: Box::new(move |before| Ok(next(before))), announcements: None }
    }

    /// The snapshot as of the last read. Memory only: no system call, no lock, no allocation.
    #[inline]
    pub fn cached(&self) -> SnapshotRef<S> {
        SnapshotRef(self.kept.load())
    }

    /// The snapshot, after taking in the events there are: if one told of a change, the tables are
    /// read first. A burst of events is one read. Tables from sysfs, which has no events, are read
    /// each time.
    ///
    /// # Errors
    ///
    /// As [`fresh`](Cache::fresh), and [`Error::DeviceFatal`](crate::Error::DeviceFatal) when
    /// the device has failed. The cache keeps what it had, and the change waits.
    pub fn checked(&self) -> Result<SnapshotRef<S>> {
        match &self.announcements {
            Some(announcements) => {
                announcements.take_in()?;
                self.kept.check(&self.read)?;
            }
            None => {
                // Nothing tells of a change: it may always have.
                self.kept.announce();
                self.kept.check(&self.read)?;
            }
        }
        Ok(self.cached())
    }

    /// Reads the tables now (GIDs: `ibv_query_gid_table`, one call for all ports, and the names of
    /// the network interfaces met; P_Keys: `ibv_query_pkey`, a file read each) and gives the snapshot that then is current. Waits for
    /// another thread that is reading.
    ///
    /// A port whose rows are the same as before keeps its generation; when no port changed, the
    /// snapshot stays the one there was.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb), and of tables from sysfs
    /// [`Error::Sysfs`](crate::Error::Sysfs) or [`Error::BadTable`](crate::Error::BadTable), when
    /// the tables cannot be read; the cache keeps what it had.
    pub fn fresh(&self) -> Result<SnapshotRef<S>> {
        self.kept.refresh(&self.read)?;
        Ok(self.cached())
    }

    /// Reads the tables only if an event, already taken in, told of a change.
    pub(crate) fn catch_up(&self) -> Result<()> {
        self.kept.catch_up(&self.read).map(|_| ())
    }

    /// What the cache has done so far.
    pub fn stats(&self) -> CacheStats {
        self.kept.stats()
    }
}

impl<S: fmt::Debug> fmt::Debug for Cache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(&*self.cached()).finish()
    }
}

/// A snapshot taken from a cache. It stays as it is while the cache moves on; keep it for a
/// lookup, or [`to_arc`](SnapshotRef::to_arc) to keep it for longer.
pub struct SnapshotRef<S>(Guard<Arc<S>>);

impl<S> SnapshotRef<S> {
    pub(crate) fn new(guard: Guard<Arc<S>>) -> SnapshotRef<S> {
        SnapshotRef(guard)
    }

    /// The snapshot, shared, for keeping.
    pub fn to_arc(&self) -> Arc<S> {
        Arc::clone(&self.0)
    }
}

impl<S> Deref for SnapshotRef<S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: fmt::Debug> fmt::Debug for SnapshotRef<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self.0, f)
    }
}
