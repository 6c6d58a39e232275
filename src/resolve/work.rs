//! What a resolver remembers, and how notifications keep it true.
//!
//! # Why no change is lost
//!
//! Notifications are taken in before anything is asked, and an answer is kept only if none came since
//! that concerns it: a way if the generation is still the one noted before the question, a neighbour if
//! its waiter, who was there before the question, was not told. Both are decided, and every notification
//! is acted upon, under one lock. So what is kept was read after the last change that was told, and a
//! change that is told later removes it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::host::Host;
use super::table::{CAPACITY, Table};
use super::way::Way;
use super::{Destination, Gids, Path, ResolverStats, add, host_error};
use crate::error::Result;
use crate::net::{HwAddr, Neighbour, Reading, Told};
use crate::types::IfName;

/// A next hop: the interface and the address on it.
pub(super) type Hop = (u32, IpAddr);

/// How long a neighbour that did not answer is not asked again.
pub(super) const REMEMBERED: Duration = Duration::from_secs(1);

pub(super) struct Inner {
    pub(super) gids: Gids,
    pub(super) host: Box<dyn Host>,
    /// What tells of changes: notifications, and the directory.
    pub(super) set: OwnedFd,
    /// Moves when what is remembered holds no longer.
    generation: AtomicU64,
    ways: Table<Destination, Way>,
    neighbours: Table<Hop, Option<HwAddr>>,
    state: Mutex<State>,
    pub(super) counters: Counters,
}

struct State {
    reading: Reading,
    /// When each of these was found not to answer.
    failed: HashMap<Hop, Instant>,
    waiters: HashMap<Hop, Vec<Arc<Waiter>>>,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) probes: AtomicU64,
    pub(super) failures: AtomicU64,
    emptied: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Somebody who looks for a neighbour. Everybody's notifications are taken in by whoever comes first,
/// who tells the others.
#[derive(Default)]
pub(super) struct Waiter {
    changed: AtomicBool,
    /// An eventfd, once it is waited on.
    wake: OnceLock<OwnedFd>,
}

impl Waiter {
    /// Something changed.
    pub(super) fn tell(&self) {
        self.changed.store(true, Ordering::Release);
        if let Some(wake) = self.wake.get() {
            // Fails only when the count is at its end, and then it is readable.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Something may have changed since [`begin`](Waiter::begin).
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// What is told from now on counts. Not while somebody tells: between his two steps it would leave the
    /// eventfd readable without a change, and who waits on it awake for nothing.
    fn begin(&self) {
        self.changed.store(false, Ordering::Release);
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }
}

impl Inner {
    pub(super) fn new(gids: Gids, host: Box<dyn Host>, set: OwnedFd) -> Inner {
        let (failed, waiters) = (HashMap::new(), HashMap::new());
        Inner {
            gids,
            host,
            set,
            // 0 is what parts of a table are made with.
            generation: AtomicU64::new(1),
            ways: Table::new(),
            neighbours: Table::new(),
            state: Mutex::new(State { reading: Reading::new(), failed, waiters }),
            counters: Counters::default(),
        }
    }

    /// The path from memory: no system call, no lock, no allocation.
    pub(super) fn hit(&self, to: &Destination) -> Option<Path> {
        let generation = self.generation();
        let way = self.ways.get(to, generation)?;
        let hw_addr = match way.local {
            true => None,
            false => self.neighbours.get(&(way.ifindex, way.next_hop), generation)?,
        };
        let path = Path::new(&self.gids.cached(), to, &way, hw_addr)?;
        Counters::count(&self.counters.hits);
        Some(path)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn way(&self, to: &Destination, generation: u64) -> Option<Way> {
        self.ways.get(to, generation)
    }

    pub(super) fn neighbour(&self, hop: Hop, generation: u64) -> Option<Option<HwAddr>> {
        self.neighbours.get(&hop, generation)
    }

    /// Takes in the notifications there are, without waiting, and gives how many told of something.
    pub(super) fn take_in(&self) -> Result<usize> {
        let mut state = self.state();
        let State { reading, failed, waiters } = &mut *state;
        let (mut count, mut anything) = (0, false);
        let outcome = self.host.drain(reading, &mut |told| {
            count += 1;
            match told {
                Told::Neighbour(neighbour) => self.note(&neighbour, failed, waiters),
                Told::Anything => anything = true,
            }
        });
        self.counters.lost.store(reading.lost, Ordering::Relaxed);
        if anything {
            self.empty(failed, waiters);
        }
        outcome.map(|()| count)
    }

    /// What is remembered holds no longer.
    fn empty(&self, failed: &mut HashMap<Hop, Instant>, waiters: &HashMap<Hop, Vec<Arc<Waiter>>>) {
        self.generation.fetch_add(1, Ordering::Release);
        Counters::count(&self.counters.emptied);
        failed.clear();
        waiters.values().flatten().for_each(|waiter| waiter.tell());
    }

    /// The same because somebody wants it so.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        let State { failed, waiters, .. } = &mut *state;
        self.empty(failed, waiters);
    }

    /// A neighbour changed.
    fn note(
        &self,
        neighbour: &Neighbour,
        failed: &mut HashMap<Hop, Instant>,
        waiters: &HashMap<Hop, Vec<Arc<Waiter>>>,
    ) {
        let hop = (neighbour.ifindex, neighbour.ip);
        let generation = self.generation();
        if neighbour.is_usable() {
            failed.remove(&hop);
        }
        match self.neighbours.get(&hop, generation) {
            // From reachable to stale and back, as it does all day.
            Some(known) if neighbour.is_usable() && known == neighbour.hw_addr => {}
            Some(_) if neighbour.is_usable() => {
                self.neighbours.insert(hop, neighbour.hw_addr, generation);
            }
            Some(_) => self.neighbours.remove(&hop, generation),
            None => {}
        }
        waiters.get(&hop).into_iter().flatten().for_each(|waiter| waiter.tell());
    }

    /// Keeps a way that was asked for in this generation.
    pub(super) fn keep_way(&self, to: &Destination, way: Way, generation: u64) {
        let _writer = self.state();
        if self.generation() == generation {
            self.ways.insert(*to, way, generation);
        }
    }

    /// Keeps a neighbour's hardware address that was asked for since `waiter` began.
    pub(super) fn keep_neighbour(
        &self,
        hop: Hop,
        hw_addr: Option<HwAddr>,
        waiter: &Waiter,
        generation: u64,
    ) {
        let mut state = self.state();
        if self.generation() == generation && !waiter.has_changed() {
            self.neighbours.insert(hop, hw_addr, generation);
            state.failed.remove(&hop);
        }
    }

    /// How long ago this neighbour was found not to answer, if that is remembered.
    pub(super) fn failed_since(&self, hop: Hop) -> Option<Duration> {
        let state = self.state();
        let since = state.failed.get(&hop)?.elapsed();
        (since < REMEMBERED).then_some(since)
    }

    /// What the waiter is told from now on counts.
    pub(super) fn begin(&self, waiter: &Waiter) {
        let _nobody_tells = self.state();
        waiter.begin();
    }

    /// Remembers that a neighbour does not answer, as was found since `waiter` began; false when something
    /// has changed since.
    pub(super) fn remember_failure(&self, hop: Hop, waiter: &Waiter) -> bool {
        let mut state = self.state();
        if waiter.has_changed() {
            return false;
        }
        if state.failed.len() >= CAPACITY {
            state.failed.retain(|_, since| since.elapsed() < REMEMBERED);
        }
        if state.failed.len() < CAPACITY {
            state.failed.insert(hop, Instant::now());
        }
        Counters::count(&self.counters.failures);
        true
    }

    /// From now on the waiter is told of changes of this neighbour.
    pub(super) fn register(&self, hop: Hop, waiter: &Arc<Waiter>) {
        self.state().waiters.entry(hop).or_default().push(Arc::clone(waiter));
    }

    pub(super) fn unregister(&self, hop: Hop, waiter: &Arc<Waiter>) {
        let mut state = self.state();
        if let Some(waiters) = state.waiters.get_mut(&hop) {
            waiters.retain(|other| !Arc::ptr_eq(other, waiter));
            if waiters.is_empty() {
                state.waiters.remove(&hop);
            }
        }
    }

    /// Makes what a waiter waits on, if it is not there: a set of the notifications and an eventfd by
    /// which it is woken when somebody else takes them in; at once, if that has happened already.
    pub(super) fn prepare_to_wait(&self, waiter: &Waiter, set: &mut Option<OwnedFd>) -> Result<()> {
        if set.is_none() {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let wake = wake.map_err(host_error("eventfd"))?;
            let made = epoll::create(epoll::CreateFlags::CLOEXEC);
            let made = made.map_err(host_error("epoll_create1"))?;
            add(&made, self.host.news())?;
            add(&made, wake.as_fd())?;
            *set = Some(made);
            let _nobody_tells = self.state();
            let _ = waiter.wake.set(wake);
            if waiter.has_changed() {
                waiter.tell();
            }
        }
        Ok(())
    }

    /// The name of an interface, for errors.
    pub(super) fn name_of(&self, ifindex: u32) -> IfName {
        let snapshot = self.gids.cached();
        let interface = snapshot.net().by_ifindex(ifindex);
        interface.and_then(|interface| interface.if_name()).unwrap_or(IfName::NONE)
    }

    pub(super) fn stats(&self) -> ResolverStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ResolverStats {
            hits: of(&self.counters.hits),
            misses: of(&self.counters.misses),
            probes: of(&self.counters.probes),
            failures: of(&self.counters.failures),
            emptied: of(&self.counters.emptied),
            lost: of(&self.counters.lost),
        }
    }

    /// A panic elsewhere leaves nothing half done behind this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
