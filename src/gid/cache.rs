//! One device's current snapshot: readers take it without waiting, one writer at a time reads the
//! tables anew.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::{GidSnapshot, Source};
use crate::error::Result;

/// The GID tables of one device, answered from memory.
///
/// Freshness is chosen by name: [`cached`](GidCache::cached) is what was true at the last read of
/// the tables, in nanoseconds and without a system call; [`fresh`](GidCache::fresh) reads them
/// now. Both give a whole snapshot, never a mix of two reads.
pub struct GidCache {
    device: Arc<str>,
    current: ArcSwap<GidSnapshot>,
    /// The writer: whoever holds it reads the tables and replaces the snapshot.
    source: Mutex<Box<dyn Source>>,
}

impl GidCache {
    /// A cache filled by a first read.
    pub(crate) fn new(device: Arc<str>, source: Box<dyn Source>) -> Result<GidCache> {
        let snapshot = GidSnapshot::new(Arc::clone(&device), source.read(0)?, None);
        let current = ArcSwap::from_pointee(snapshot);
        Ok(GidCache { device, current, source: Mutex::new(source) })
    }

    /// The snapshot as of the last read. Memory only: no system call, no lock, no allocation.
    ///
    /// It can miss every change since that read.
    pub fn cached(&self) -> SnapshotRef {
        SnapshotRef(self.current.load())
    }

    /// Reads the tables now (`ibv_query_gid_table`, one system call for all ports) and gives the
    /// snapshot that then is current. Waits for another thread that is reading.
    ///
    /// A port whose rows are the same as before keeps its generation; when no port changed, the
    /// snapshot stays the one there was.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) or [`Error::BadTable`](crate::Error::BadTable) when
    /// the tables cannot be read; the cache keeps what it had.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn fresh(&self) -> Result<SnapshotRef> {
        // A panic elsewhere leaves nothing half done: the snapshot is replaced in one step.
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load();
        let table = source.read(before.rows().len())?;
        let now = GidSnapshot::new(Arc::clone(&self.device), table, Some(&before));
        if now.ports() != before.ports() {
            self.current.store(Arc::new(now));
        }
        Ok(SnapshotRef(self.current.load()))
    }
}

impl fmt::Debug for GidCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GidCache").field(&*self.cached()).finish()
    }
}

/// A snapshot taken from a cache. It stays as it is while the cache moves on; keep it for a
/// lookup, or [`to_arc`](SnapshotRef::to_arc) to keep it for longer.
pub struct SnapshotRef(Guard<Arc<GidSnapshot>>);

impl SnapshotRef {
    /// The snapshot, shared, for keeping.
    pub fn to_arc(&self) -> Arc<GidSnapshot> {
        Arc::clone(&self.0)
    }
}

impl Deref for SnapshotRef {
    type Target = GidSnapshot;

    fn deref(&self) -> &GidSnapshot {
        &self.0
    }
}

impl fmt::Debug for SnapshotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self.0, f)
    }
}

#[cfg(test)]
mod tests;
