//! All RDMA devices of this machine at once.

#![deny(unsafe_code)]

mod snapshot;
mod towards;
mod watched;
mod watcher;
mod work;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use crate::cache::SnapshotRef;
use crate::error::Result;
use crate::kept::CacheStats;

pub use snapshot::{DirectoryDevice, DirectoryRow, DirectorySnapshot, Locality, TableSource};
pub(crate) use snapshot::{Rank, address_of};
pub(crate) use towards::is_a_hosts;
pub(crate) use watcher::Watch;
pub use watcher::Watcher;

use watched::Watched;
use work::Inner;

/// The GID tables of all RDMA devices, in one snapshot that is kept true.
///
/// It watches through contexts of its own, so it takes nobody's events, and follows devices that come
/// and go. A device that cannot be opened is read through sysfs, one that fails is told in its place in
/// the snapshot ([`DirectoryDevice::source`]); neither keeps the others from being seen.
///
/// An open context delays the removal of its device: this one lets go of it as soon as the kernel
/// tells of the removal *and somebody takes that in* (a [`checked`](GidDirectory::checked) lookup,
/// [`watch`](GidDirectory::watch), or [`process_events`](GidDirectory::process_events)).
/// [`open_sysfs`](GidDirectory::open_sysfs) holds no device at all.
///
/// Freshness is chosen by name:
///
/// | | costs | can miss |
/// |---|---|---|
/// | [`cached`](GidDirectory::cached) | nanoseconds, memory only | whatever nobody has taken in yet; with [`watch`](GidDirectory::watch), what happened in the last moments |
/// | [`checked`](GidDirectory::checked) | one system call for all devices that does not wait; a read of what changed | a change whose event the kernel has not raised yet, tens of microseconds to some milliseconds after the command that made it returned; one whose event it dropped for want of memory; on a device read through sysfs, what happened since an address of this host last changed, and for half a second after one did |
/// | [`fresh`](GidDirectory::fresh) | lists the devices and reads all tables | what changes after it |
///
/// Cheap to clone: clones are the same directory.
#[derive(Clone)]
pub struct GidDirectory {
    inner: Arc<Inner>,
}

/// What a directory has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DirectoryStats {
    /// `checked` answers given from memory, because nothing had changed.
    pub hits: u64,
    /// `checked` answers for which something was read first.
    pub misses: u64,
    /// How often the devices were listed anew.
    pub rescans: u64,
}

/// A snapshot taken from a directory. It stays as it is while the directory moves on.
pub type DirectoryRef = SnapshotRef<DirectorySnapshot>;

impl GidDirectory {
    /// Opens every device and reads its tables.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceList`](crate::Error::DeviceList) when the devices cannot be listed,
    /// [`Error::Host`](crate::Error::Host) when the host's interfaces cannot be read. A device that
    /// cannot be opened is no error: it is told in its place.
    pub fn open() -> Result<GidDirectory> {
        GidDirectory::open_how(false)
    }

    /// The same without ever opening a device: all tables are read from sysfs, which takes six file
    /// reads a row. Changes are seen by [`fresh`](GidDirectory::fresh), and 5, 50 and 500 ms after an
    /// address of this host changed, when the kernel has written them.
    ///
    /// # Errors
    ///
    /// As [`open`](GidDirectory::open).
    pub fn open_sysfs() -> Result<GidDirectory> {
        GidDirectory::open_how(true)
    }

    fn open_how(only_sysfs: bool) -> Result<GidDirectory> {
        Ok(GidDirectory { inner: Arc::new(Inner::open(only_sysfs)?) })
    }

    /// The snapshot as of when changes were last taken in. Memory only: no system call, no lock, no
    /// allocation.
    #[inline]
    pub fn cached(&self) -> DirectoryRef {
        SnapshotRef::new(self.inner.current.load())
    }

    /// The snapshot, after taking in what has changed: one `epoll_wait` for all devices, that does
    /// not wait.
    ///
    /// # Errors
    ///
    /// As [`open`](GidDirectory::open); the directory keeps what it had.
    pub fn checked(&self) -> Result<DirectoryRef> {
        let taken = self.inner.take_in()?;
        let counter =
            if taken == 0 { &self.inner.counters.hits } else { &self.inner.counters.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(self.cached())
    }

    /// Lists the devices and reads everything now.
    ///
    /// # Errors
    ///
    /// As [`open`](GidDirectory::open); the directory keeps what it had.
    pub fn fresh(&self) -> Result<DirectoryRef> {
        let mut state = self.inner.writer();
        state.net.interfaces().fresh()?;
        state.devices.iter_mut().for_each(Watched::read_anew);
        (state.to_do.net, state.to_do.rescan) = (true, true);
        self.inner.work(&mut state)?;
        drop(state);
        Ok(self.cached())
    }

    /// Lists the devices anew: for where hot-plug is not told, as in a container.
    ///
    /// # Errors
    ///
    /// As [`open`](GidDirectory::open); the directory keeps what it had.
    pub fn rescan(&self) -> Result<DirectoryRef> {
        let mut state = self.inner.writer();
        state.to_do.rescan = true;
        self.inner.work(&mut state)?;
        drop(state);
        Ok(self.cached())
    }

    /// Takes in what has changed, without waiting, and gives the number of sources that had something
    /// to tell. For a program with a loop of its own: wait until the directory's descriptor
    /// ([`AsFd`]) is readable, then call this; what [`cached`](GidDirectory::cached) answers from then
    /// stays true.
    ///
    /// # Errors
    ///
    /// As [`open`](GidDirectory::open); the directory keeps what it had.
    pub fn process_events(&self) -> Result<usize> {
        self.inner.take_in()
    }

    /// Starts a thread that keeps the directory true: [`cached`](GidDirectory::cached) is then
    /// behind by the time that an event takes to be taken in. The thread, and the devices that the
    /// directory holds open, last until the watcher is dropped, also after the directory itself is.
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host) when there can be no more threads or descriptors.
    pub fn watch(&self) -> Result<Watcher> {
        Watcher::start(&self.inner)
    }

    /// What the cache of each device has done so far, by the device's name; `None` for a device whose
    /// tables could not be read.
    pub fn device_stats(&self) -> Vec<(Arc<str>, Option<CacheStats>)> {
        let state = self.inner.state.read().unwrap_or_else(PoisonError::into_inner);
        state.devices.iter().map(Watched::stats).collect()
    }

    /// What the directory has done so far.
    pub fn stats(&self) -> DirectoryStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.inner.counters;
        DirectoryStats {
            hits: of(&counters.hits),
            misses: of(&counters.misses),
            rescans: of(&counters.rescans),
        }
    }
}

impl AsFd for GidDirectory {
    /// Readable when something has changed. Only to wait on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.epoll.as_fd()
    }
}

impl fmt::Debug for GidDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GidDirectory").field(&*self.cached()).finish()
    }
}
