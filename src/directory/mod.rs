//! All RDMA devices of this machine at once.

#![deny(unsafe_code)]

mod snapshot;
mod towards;
mod watched;
mod watcher;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use arc_swap::ArcSwap;
use rustix::event::{Timespec, epoll};

use crate::cache::SnapshotRef;
use crate::device::DeviceList;
use crate::error::{Errno, Error, Result};
use crate::kept::CacheStats;
use crate::net::{HostNet, Uevents};

pub(crate) use snapshot::Rank;
pub use snapshot::{DirectoryDevice, DirectoryRow, DirectorySnapshot, Locality, TableSource};
pub use watcher::Watcher;

use watched::Watched;

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
/// | [`checked`](GidDirectory::checked) | one system call for all devices that does not wait; a read of what changed | a change whose event the kernel has not raised yet, tens of microseconds to some milliseconds after the command that made it returned; one whose event it dropped for want of memory; on a device read through sysfs, whatever happened since an address of this host last changed |
/// | [`fresh`](GidDirectory::fresh) | lists the devices and reads all tables | what changes after it |
pub struct GidDirectory {
    inner: Arc<Inner>,
}

struct Inner {
    current: ArcSwap<DirectorySnapshot>,
    /// Whoever takes changes in writes; whoever found nothing to take in reads, so as to wait for
    /// another that has taken something in and not made it visible yet.
    state: RwLock<State>,
    epoll: OwnedFd,
    counters: Counters,
}

struct State {
    devices: Vec<Watched>,
    net: HostNet,
    uevents: Option<Uevents>,
    /// Never open a device.
    only_sysfs: bool,
    /// The token of the next device.
    next_token: u64,
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    rescans: AtomicU64,
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

/// Tokens of the epoll set that are no device.
const NET: u64 = 0;
const UEVENTS: u64 = 1;
const FIRST_DEVICE: u64 = 2;

impl GidDirectory {
    /// Opens every device and reads its tables.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceList`] when the devices cannot be listed, [`Error::Host`] when the host's
    /// interfaces cannot be read. A device that cannot be opened is no error: it is told in its place.
    pub fn open() -> Result<GidDirectory> {
        GidDirectory::open_how(false)
    }

    /// The same without ever opening a device: all tables are read from sysfs, which takes three file
    /// reads a row, and changes are seen by [`fresh`](GidDirectory::fresh) and when an address of this
    /// host changes.
    ///
    /// # Errors
    ///
    /// As [`open`](GidDirectory::open).
    pub fn open_sysfs() -> Result<GidDirectory> {
        GidDirectory::open_how(true)
    }

    fn open_how(only_sysfs: bool) -> Result<GidDirectory> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(host("epoll_create1"))?;
        let net = HostNet::open()?;
        add(&epoll, net.as_fd(), NET)?;
        // Without it, in a container say, devices are still found by `fresh` and `rescan`.
        let uevents = Uevents::open().ok();
        if let Some(uevents) = &uevents {
            add(&epoll, uevents.as_fd(), UEVENTS)?;
        }
        let devices = Vec::new();
        let state = State { devices, net, uevents, only_sysfs, next_token: FIRST_DEVICE };
        let nothing = DirectorySnapshot::new(Vec::new(), state.net.interfaces().cached().to_arc());
        let inner = Inner {
            current: ArcSwap::from_pointee(nothing),
            state: RwLock::new(state),
            epoll,
            counters: Counters::default(),
        };
        inner.rescan(&mut inner.writer())?;
        Ok(GidDirectory { inner: Arc::new(inner) })
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
        let taken = self.inner.take_in(Some(&NO_WAIT))?;
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
        self.inner.rescan(&mut state)?;
        drop(state);
        Ok(self.cached())
    }

    /// Lists the devices anew: for where hot-plug is not told, as in a container.
    ///
    /// # Errors
    ///
    /// As [`open`](GidDirectory::open); the directory keeps what it had.
    pub fn rescan(&self) -> Result<DirectoryRef> {
        self.inner.rescan(&mut self.inner.writer())?;
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
        self.inner.take_in(Some(&NO_WAIT))
    }

    /// Starts a thread that keeps the directory true: [`cached`](GidDirectory::cached) is then
    /// behind by the time that an event takes to be taken in. The thread ends when the watcher is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] when there can be no more threads or descriptors.
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

/// An epoll timeout of nothing.
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Inner {
    /// Takes in what there is, or waits for it; gives the number of sources that had something.
    fn take_in(&self, wait: Option<&Timespec>) -> Result<usize> {
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut ready = [none; 32];
        let count = match epoll::wait(&self.epoll, &mut ready[..], wait) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(errno) => return Err(host("epoll_wait")(errno)),
        };
        if count == 0 {
            // Somebody else may have taken a change in and not made it visible yet.
            drop(self.state.read().unwrap_or_else(PoisonError::into_inner));
            return Ok(0);
        }
        let mut state = self.writer();
        let mut changed = false;
        let mut rescan = false;
        for event in ready.iter().take(count) {
            match event.data.u64() {
                NET => {
                    let before = state.net.interfaces().cached().to_arc();
                    let now = state.net.interfaces().checked()?.to_arc();
                    changed |= !Arc::ptr_eq(&before, &now);
                    // What tells of no change by itself changes with the host's addresses.
                    state.devices.iter_mut().for_each(Watched::read_sysfs_anew);
                }
                UEVENTS => {
                    let told = state.uevents.as_ref().map(Uevents::process_events);
                    rescan |= !matches!(told, Some(Ok(0)));
                }
                token => {
                    let device = state.devices.iter_mut().find(|device| device.token == token);
                    device.into_iter().for_each(Watched::process_events);
                }
            }
        }
        if rescan {
            self.rescan(&mut state)?;
        } else if changed || state.devices.iter().any(Watched::has_changed) {
            self.publish(&mut state);
        }
        Ok(count)
    }

    /// Lists the devices: lets go of those that went, opens those that came.
    fn rescan(&self, state: &mut State) -> Result<()> {
        self.counters.rescans.fetch_add(1, Ordering::Relaxed);
        let list = DeviceList::new()?;
        let mut before = std::mem::take(&mut state.devices);
        for device in &list {
            let known = before.iter().position(|watched| watched.is(device));
            let mut watched = match known {
                Some(at) => before.swap_remove(at),
                None => {
                    state.next_token += 1;
                    Watched::new(device, state.next_token)
                }
            };
            watched.open_if_closed(state.only_sysfs, &self.epoll);
            state.devices.push(watched);
        }
        // Those that went are closed here, so that the kernel can take them away.
        drop(before);
        self.publish(state);
        Ok(())
    }

    /// Makes what the devices and the host have now visible.
    fn publish(&self, state: &mut State) {
        let devices = state.devices.iter_mut().map(Watched::publish).collect();
        let net = state.net.interfaces().cached().to_arc();
        self.current.store(Arc::new(DirectorySnapshot::new(devices, net)));
    }

    /// A panic elsewhere leaves nothing half done: the snapshot is replaced in one step.
    fn writer(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a descriptor to the set; it leaves it when it is closed.
fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
    let data = epoll::EventData::new_u64(token);
    epoll::add(epoll, fd, data, epoll::EventFlags::IN).map_err(host("epoll_ctl"))
}

/// A failed call that concerns the host and no device.
fn host(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
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
