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
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::cache::SnapshotRef;
use crate::device::{Device, DeviceList};
use crate::error::{Errno, Error, Result};
use crate::kept::CacheStats;
use crate::net::{HostNet, Uevents};

pub use snapshot::{DirectoryDevice, DirectoryRow, DirectorySnapshot, Locality, TableSource};
pub(crate) use snapshot::{Rank, address_of};
pub(crate) use towards::is_a_hosts;
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
/// | [`checked`](GidDirectory::checked) | one system call for all devices that does not wait; a read of what changed | a change whose event the kernel has not raised yet, tens of microseconds to some milliseconds after the command that made it returned; one whose event it dropped for want of memory; on a device read through sysfs, what happened since an address of this host last changed, and for half a second after one did |
/// | [`fresh`](GidDirectory::fresh) | lists the devices and reads all tables | what changes after it |
///
/// Cheap to clone: clones are the same directory.
#[derive(Clone)]
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
    /// Readable when something is to be tried again.
    timer: OwnedFd,
    to_do: ToDo,
    /// How long until what failed is tried again.
    retry_in: Duration,
    /// Never open a device.
    only_sysfs: bool,
    /// The token of the next device.
    next_token: u64,
}

/// What sources have told of and nobody has seen to yet. Kept until it is done: a source tells once.
#[derive(Default)]
struct ToDo {
    net: bool,
    rescan: bool,
    /// The timer has run out.
    due: bool,
    /// How long from now on tables are to be read from sysfs again, the last of these first.
    sysfs: Vec<Duration>,
}

/// When tables are read from sysfs after an address changed, the first last: the kernel writes a GID
/// tens of microseconds to some milliseconds after it tells of the address, and tells nobody.
const SYSFS_TRIES: [Duration; 3] =
    [Duration::from_millis(450), Duration::from_millis(45), Duration::from_millis(5)];
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(30);

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
const TIMER: u64 = 2;
const FIRST_DEVICE: u64 = 3;

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
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(host("epoll_create1"))?;
        let net = HostNet::open()?;
        add(&epoll, net.as_fd(), NET)?;
        // Without it, in a container say, devices are still found by `fresh` and `rescan`.
        let uevents = Uevents::open().ok();
        if let Some(uevents) = &uevents {
            add(&epoll, uevents.as_fd(), UEVENTS)?;
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags);
        let timer = timer.map_err(host("timerfd_create"))?;
        add(&epoll, timer.as_fd(), TIMER)?;
        let state = State {
            devices: Vec::new(),
            net,
            uevents,
            timer,
            to_do: ToDo::default(),
            retry_in: FIRST_RETRY,
            only_sysfs,
            next_token: FIRST_DEVICE,
        };
        let nothing = DirectorySnapshot::new(Vec::new(), state.net.interfaces().cached().to_arc());
        let inner = Inner {
            current: ArcSwap::from_pointee(nothing),
            state: RwLock::new(state),
            epoll,
            counters: Counters::default(),
        };
        {
            let mut state = inner.writer();
            state.to_do.rescan = true;
            inner.work(&mut state)?;
        }
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
    /// Takes in what there is, without waiting; gives the number of sources that had something. What
    /// fails stays to be done: the next call tries again, and so does the timer.
    fn take_in(&self) -> Result<usize> {
        let tokens = self.ready()?;
        if tokens.is_empty() {
            // Somebody else may have taken a change in and not made it visible yet.
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            if !state.to_do.is_left() {
                return Ok(0);
            }
        }
        let mut state = self.writer();
        for token in &tokens {
            state.note(*token);
        }
        self.work(&mut state)?;
        Ok(tokens.len())
    }

    /// The tokens of all sources that have something to tell.
    fn ready(&self) -> Result<Vec<u64>> {
        const AT_ONCE: usize = 32;
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut ready = [none; AT_ONCE];
        let mut tokens = Vec::new();
        loop {
            let count = match epoll::wait(&self.epoll, &mut ready[..], Some(&NO_WAIT)) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(host("epoll_wait")(errno)),
            };
            let before = tokens.len();
            for token in ready.iter().take(count).map(|event| event.data.u64()) {
                if !tokens.contains(&token) {
                    tokens.push(token);
                }
            }
            // Sources stay ready until they are read: once nothing new is among them, it is all.
            if count < AT_ONCE || tokens.len() == before {
                return Ok(tokens);
            }
        }
    }

    /// Does what is to be done, makes it visible, and sets the timer for what is left.
    fn work(&self, state: &mut State) -> Result<()> {
        let mut outcome = Ok(());
        let mut changed = false;
        if state.to_do.net {
            let before = state.net.interfaces().cached().to_arc();
            match state.net.interfaces().checked() {
                Ok(now) => {
                    state.to_do.net = false;
                    if !Arc::ptr_eq(&before, &now.to_arc()) {
                        changed = true;
                        // The kernel writes a GID some time after it tells of the address.
                        state.to_do.sysfs = SYSFS_TRIES.to_vec();
                    }
                }
                Err(error) => outcome = Err(error),
            }
        }
        if state.to_do.rescan {
            match self.rescan(state) {
                Ok(()) => {
                    state.to_do.rescan = false;
                    state.to_do.sysfs = SYSFS_TRIES.to_vec();
                    changed = true;
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if std::mem::take(&mut state.to_do.due) {
            if state.to_do.sysfs.pop().is_some() {
                state.devices.iter_mut().for_each(Watched::read_sysfs_anew);
            }
            state.retry(&self.epoll);
        }
        if changed || state.devices.iter().any(Watched::has_changed) {
            self.publish(state);
        }
        outcome.and(self.set_timer(state))
    }

    /// Wakes whoever waits on the set when something is left to do.
    fn set_timer(&self, state: &mut State) -> Result<()> {
        let failing = state.to_do.is_left() || state.devices.iter().any(Watched::is_failing);
        state.retry_in = match (failing, state.retry_in) {
            (false, _) => FIRST_RETRY,
            (true, before) => (before * 2).min(LAST_RETRY),
        };
        let reads_sysfs = state.devices.iter().any(Watched::reads_sysfs);
        let next = state.to_do.sysfs.last().copied().filter(|_| reads_sysfs);
        let wait = match (next, failing) {
            (Some(next), _) => next,
            (None, true) => state.retry_in,
            (None, false) => Duration::ZERO, // never
        };
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let once = Itimerspec { it_interval: NO_WAIT, it_value: value };
        timerfd_settime(&state.timer, TimerfdTimerFlags::empty(), &once)
            .map(|_| ())
            .map_err(host("timerfd_settime"))
    }

    /// Lists the devices: lets go of those that went, opens those that came.
    fn rescan(&self, state: &mut State) -> Result<()> {
        self.counters.rescans.fetch_add(1, Ordering::Relaxed);
        let mut listed: Vec<Device> = DeviceList::new()?.into_iter().collect();
        // The library's own order depends on when this process first saw each device.
        listed.sort_by_cached_key(|device| {
            (device.index().unwrap_or(u32::MAX), device.name().to_owned())
        });
        let mut before = std::mem::take(&mut state.devices);
        for device in &listed {
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
        before.iter_mut().for_each(|watched| watched.close(&self.epoll));
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

impl State {
    /// Takes in what a source tells, and notes what is to be done for it.
    fn note(&mut self, token: u64) {
        match token {
            NET => self.to_do.net = true,
            UEVENTS => {
                let told = self.uevents.as_ref().map(Uevents::process_events);
                self.to_do.rescan |= !matches!(told, Some(Ok(0)));
            }
            TIMER => {
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                self.to_do.due = true;
            }
            token => {
                let device = self.devices.iter_mut().find(|device| device.token == token);
                device.into_iter().for_each(Watched::process_events);
            }
        }
    }

    /// Tries again what failed.
    fn retry(&mut self, epoll: &OwnedFd) {
        for device in self.devices.iter_mut().filter(|device| device.is_failing()) {
            device.close_if_dead(epoll);
            device.read_anew();
            device.open_if_closed(self.only_sysfs, epoll);
        }
    }
}

impl ToDo {
    /// Whether something that was told has not been seen to.
    fn is_left(&self) -> bool {
        self.net || self.rescan || self.due
    }
}

/// Adds a descriptor to the set. It has to be taken out again: closing does not, where a forked
/// process has it too.
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
