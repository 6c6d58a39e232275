//! How a directory takes in what its sources tell, and does what follows from it.
//!
//! A source tells once. So what it told is noted before anything that can fail is done for it, and stays
//! noted until it was done; what is left is tried again by the next lookup, and by a timer for a thread
//! that only waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::DirectorySnapshot;
use super::watched::Watched;
use super::watcher::Watch;
use crate::device::{Device, DeviceList};
use crate::error::{Errno, Error, Result};
use crate::net::{HostNet, Uevents};
use crate::trace::{event, span};

pub(super) struct Inner {
    pub(super) current: ArcSwap<DirectorySnapshot>,
    /// Whoever takes changes in writes; whoever found nothing to take in reads, so as to wait for
    /// another that has taken something in and not made it visible yet.
    pub(super) state: RwLock<State>,
    pub(super) epoll: OwnedFd,
    pub(super) counters: Counters,
}

pub(super) struct State {
    pub(super) devices: Vec<Watched>,
    pub(super) net: HostNet,
    uevents: Option<Uevents>,
    /// Readable when something is to be tried again.
    timer: OwnedFd,
    pub(super) to_do: ToDo,
    /// How long to wait, from one try of what failed to the next.
    retry_in: Duration,
    /// Never open a device.
    only_sysfs: bool,
    /// The token of the next device.
    next_token: u64,
}

/// What sources have told of and nobody has seen to yet. Kept until it is done: a source tells once.
#[derive(Default)]
pub(super) struct ToDo {
    pub(super) net: bool,
    pub(super) rescan: bool,
    /// When tables are to be read from sysfs again, the first last.
    sysfs: Vec<Instant>,
    /// When what failed is to be tried again.
    retry: Option<Instant>,
}

/// How long after an address changed tables are read from sysfs, the first last: the kernel writes a
/// GID tens of microseconds to some milliseconds after it tells of the address, and tells nobody.
const SYSFS_TRIES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(50), Duration::from_millis(5)];
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) rescans: AtomicU64,
}

/// Tokens of the epoll set that are no device.
const NET: u64 = 0;
const UEVENTS: u64 = 1;
const TIMER: u64 = 2;
const FIRST_DEVICE: u64 = 3;

/// An epoll timeout of nothing.
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Inner {
    /// Opens the sources and every device.
    pub(super) fn open(only_sysfs: bool) -> Result<Inner> {
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
        Ok(inner)
    }

    /// Takes in what there is, without waiting; gives the number of sources that had something. What
    /// fails stays to be done: the next call tries again, and so does the timer.
    pub(super) fn take_in(&self) -> Result<usize> {
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
    pub(super) fn work(&self, state: &mut State) -> Result<()> {
        let mut outcome = Ok(());
        let mut changed = false;
        if state.to_do.net {
            let before = state.net.interfaces().cached().to_arc();
            match state.net.interfaces().checked() {
                Ok(now) => {
                    state.to_do.net = false;
                    if !Arc::ptr_eq(&before, &now.to_arc()) {
                        changed = true;
                        state.to_do.read_sysfs_later();
                    }
                }
                Err(error) => outcome = Err(error),
            }
        }
        if state.to_do.rescan {
            match self.rescan(state) {
                Ok(()) => {
                    state.to_do.rescan = false;
                    state.to_do.read_sysfs_later();
                    changed = true;
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let now = Instant::now();
        if state.to_do.sysfs.last().is_some_and(|at| *at <= now) {
            state.to_do.sysfs.pop();
            state.devices.iter_mut().for_each(Watched::read_sysfs_anew);
        }
        if state.to_do.retry.is_some_and(|at| at <= now) {
            state.to_do.retry = None;
            state.retry_in = (state.retry_in * 2).min(LAST_RETRY);
            state.retry(&self.epoll);
        }
        if changed || state.devices.iter().any(Watched::has_changed) {
            self.publish(state);
        }
        outcome.and(self.set_timer(state))
    }

    /// Wakes whoever waits on the set when something is left to do. What happens meanwhile puts no
    /// moment off.
    fn set_timer(&self, state: &mut State) -> Result<()> {
        if !state.devices.iter().any(Watched::reads_sysfs) {
            state.to_do.sysfs.clear();
        }
        if state.to_do.is_left() || state.devices.iter().any(Watched::is_failing) {
            let next = Instant::now() + state.retry_in;
            state.to_do.retry.get_or_insert(next);
        } else {
            (state.to_do.retry, state.retry_in) = (None, FIRST_RETRY);
        }
        let moments = state.to_do.sysfs.last().into_iter().chain(&state.to_do.retry);
        // Nothing is never; what is due already is as soon as can be.
        let wait = moments.min().map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
        });
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let once = Itimerspec { it_interval: NO_WAIT, it_value: value };
        timerfd_settime(&state.timer, TimerfdTimerFlags::empty(), &once)
            .map(|_| ())
            .map_err(host("timerfd_settime"))
    }

    /// Lists the devices: lets go of those that went, opens those that came.
    fn rescan(&self, state: &mut State) -> Result<()> {
        span!("rescan");
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
                    event!(info, device = device.name(), "a device came");
                    state.next_token += 1;
                    Watched::new(device, state.next_token)
                }
            };
            watched.open_if_closed(state.only_sysfs, &self.epoll);
            state.devices.push(watched);
        }
        // Those that went are closed here, so that the kernel can take them away.
        for watched in &mut before {
            event!(info, device = watched.name(), "a device went");
            watched.close(&self.epoll);
        }
        Ok(())
    }

    /// Makes what the devices and the host have now visible.
    fn publish(&self, state: &mut State) {
        let devices = state.devices.iter_mut().map(Watched::publish).collect();
        let net = state.net.interfaces().cached().to_arc();
        self.current.store(Arc::new(DirectorySnapshot::new(devices, net)));
    }

    /// A panic elsewhere leaves nothing half done: the snapshot is replaced in one step.
    pub(super) fn writer(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Inner {
    const NAME: &'static str = "gid-directory";

    fn readiness(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn take_in(&self) {
        // What fails stays to be done, and a timer wakes the thread for it. The directory keeps what it
        // had, and each device's failure is told in its place.
        let _ = Inner::take_in(self);
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
            // The moments themselves tell what is due.
            TIMER => {
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
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
        self.net || self.rescan
    }

    /// Notes when to read sysfs after a change now. A reading that is to come sooner stays: changes
    /// without a pause must not put it off for ever.
    fn read_sysfs_later(&mut self) {
        let now = Instant::now();
        let first = self.sysfs.last().copied();
        self.sysfs = SYSFS_TRIES.iter().map(|after| now + *after).collect();
        if let (Some(first), Some(last)) = (first, self.sysfs.last_mut()) {
            *last = first.min(*last);
        }
    }
}

/// Adds a descriptor to the set. It has to be taken out again: closing does not, where a forked
/// process has it too.
pub(super) fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
    let data = epoll::EventData::new_u64(token);
    epoll::add(epoll, fd, data, epoll::EventFlags::IN).map_err(host("epoll_ctl"))
}

/// A failed call that concerns the host and no device.
pub(super) fn host(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A storm of changes, each a moment after the last, does not put the first reading off.
    #[test]
    fn changes_without_a_pause_put_no_reading_off() {
        let mut to_do = ToDo::default();
        to_do.read_sysfs_later();
        let first = to_do.sysfs.last().copied();
        for _ in 0..1000 {
            to_do.read_sysfs_later();
        }
        assert_eq!(to_do.sysfs.last().copied(), first);
        assert_eq!(to_do.sysfs.len(), SYSFS_TRIES.len());
        assert!(to_do.sysfs.is_sorted_by(|later, sooner| later >= sooner));
        assert!(!to_do.is_left(), "a lookup does not wait for it");
    }
}
