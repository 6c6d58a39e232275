//! A resolution that is under way: one state machine for whoever blocks, polls or awaits.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::way::{Way, no_route};
use super::work::{Counters, Hop, Inner, Waiter};
use super::{Destination, Path, add, host_error, row};
use crate::error::{Error, Result};
use crate::net::HwAddr;

/// How often one resolution makes the kernel look for the neighbour: once, and again when the kernel
/// forgot it meanwhile.
const MOST_PROBES: u32 = 3;
/// How often the neighbour is asked for before others get their turn.
const MOST_TURNS: u32 = 16;

/// A path that is being looked for. Made by [`Resolver::start`](super::Resolver::start); dropping it
/// ends the search.
///
/// Never waits in [`advance`](Resolution::advance): wait until its descriptor ([`AsFd`]) is readable and
/// call it again, for as long as you have patience. While it waits it has two descriptors. The kernel gives up after some seconds (three on
/// Ethernet unless configured otherwise) and then this does. [`wait`](Resolution::wait) does the waiting.
#[must_use = "nothing is done until it is advanced"]
pub struct Resolution {
    inner: Arc<Inner>,
    to: Destination,
    /// Whatever is remembered is asked for anew.
    fresh: bool,
    looking: Option<Looking>,
    begun: Instant,
}

/// The way is known, the neighbour is not.
struct Looking {
    way: Way,
    hop: Hop,
    /// The one in which the way was asked for.
    generation: u64,
    waiter: Arc<Waiter>,
    /// What is waited on, once it is: notifications, and the waiter's own.
    set: Option<OwnedFd>,
    probes: u32,
    inner: Arc<Inner>,
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.inner.unregister(self.hop, &self.waiter);
    }
}

/// How far it is before a neighbour has to be looked for.
enum Begun {
    Path(Path),
    Looking(Looking),
}

impl Resolution {
    pub(super) fn new(inner: &Arc<Inner>, to: &Destination, fresh: bool) -> Resolution {
        let (inner, to) = (Arc::clone(inner), *to);
        Resolution { inner, to, fresh, looking: None, begun: Instant::now() }
    }

    /// Where to.
    pub fn destination(&self) -> &Destination {
        &self.to
    }

    /// Does what can be done without waiting: `Ready` with the path or the reason why there is none, or
    /// `Pending` until the neighbour answers or the kernel gives it up. After `Ready` it begins anew.
    ///
    /// Asks the kernel where memory does not have the answer, which takes microseconds, and longer while
    /// another process holds the kernel's lock of its network configuration.
    ///
    /// # Errors
    ///
    /// As [`Resolver::resolve`](super::Resolver::resolve), but for the time, which is up to you.
    pub fn advance(&mut self) -> Poll<Result<Path>> {
        let outcome = match self.looking.is_none() && !self.fresh {
            true => self.inner.hit(&self.to).map(Ok),
            false => None,
        };
        match outcome.or_else(|| self.step().transpose()) {
            Some(outcome) => {
                self.looking = None;
                Poll::Ready(outcome)
            }
            None => Poll::Pending,
        }
    }

    /// Advances until it is done, waiting in between (`poll`), for at most this long; with a timeout of
    /// zero it never waits. It can be waited for again after the time was over.
    ///
    /// # Errors
    ///
    /// As [`Resolver::resolve`](super::Resolver::resolve).
    pub fn wait(&mut self, timeout: Duration) -> Result<Path> {
        // One so far away that it cannot be told is none.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Poll::Ready(outcome) = self.advance() {
                return outcome;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(self.timed_out());
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(self, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(host_error("poll")(errno)),
            }
        }
    }

    /// The error for whoever has no more patience.
    pub fn timed_out(&self) -> Error {
        let (ifindex, neighbour) = self.looking.as_ref().map_or((0, self.to.ip()), |l| l.hop);
        let netdev = self.inner.name_of(ifindex);
        Error::ResolveTimeout { neighbour, netdev, waited: self.begun.elapsed() }
    }

    /// One step past memory; `None` when there is nothing to do but wait.
    fn step(&mut self) -> Result<Option<Path>> {
        self.inner.take_in()?;
        let current = self.inner.generation();
        let looking = match self.looking.take() {
            Some(looking) if looking.generation == current => {
                if !looking.waiter.has_changed() {
                    self.looking = Some(looking);
                    return Ok(None);
                }
                looking
            }
            before => {
                if before.is_none() {
                    self.begun = Instant::now();
                    Counters::count(&self.inner.counters.misses);
                }
                match self.begin(before)? {
                    Begun::Path(path) => return Ok(Some(path)),
                    Begun::Looking(looking) => looking,
                }
            }
        };
        let looking = self.looking.insert(looking);
        match looking.look(&self.inner)? {
            Some(hw_addr) => {
                let way = looking.way;
                self.path(&way, hw_addr).map(Some)
            }
            None => Ok(None),
        }
    }

    /// From the beginning: the way, its row, and what is remembered of its neighbour. What was done for
    /// the same neighbour `before` the routes changed counts.
    fn begin(&self, before: Option<Looking>) -> Result<Begun> {
        let (inner, to) = (&self.inner, &self.to);
        if let Some(why) = to.impossible() {
            return Err(no_route(to, why, None));
        }
        let generation = inner.generation();
        let remembered = inner.way(to, generation).filter(|_| !self.fresh);
        let way = match remembered {
            Some(way) => way,
            None => self.ask_way(generation)?,
        };
        // An address without a device is told of before anybody is bothered.
        let snapshot = inner.gids.checked()?;
        if row::find(&snapshot, &way, way.is_routed(to)).is_none() {
            return Err(row::no_device(&snapshot, way.source, way.ifindex));
        }
        if way.local {
            return self.path(&way, None).map(Begun::Path);
        }
        let hop = (way.ifindex, way.next_hop);
        if !self.fresh {
            if let Some(hw_addr) = inner.neighbour(hop, generation) {
                return self.path(&way, hw_addr).map(Begun::Path);
            }
            if let Some(since) = inner.failed_since(hop) {
                let (neighbour, netdev) = (hop.1, inner.name_of(hop.0));
                return Err(Error::Unreachable { neighbour, netdev, remembered: Some(since) });
            }
        }
        let probes = before.filter(|before| before.hop == hop).map_or(0, |before| before.probes);
        let waiter = Arc::new(Waiter::default());
        inner.register(hop, &waiter);
        let inner = Arc::clone(inner);
        Ok(Begun::Looking(Looking { way, hop, generation, waiter, set: None, probes, inner }))
    }

    fn ask_way(&self, generation: u64) -> Result<Way> {
        let answer = self.inner.host.route(&self.to.question())?;
        let way = match Way::new(&self.to, answer) {
            Ok(way) => way,
            Err(error) => return Err(self.foreign_source()?.unwrap_or(error)),
        };
        self.inner.keep_way(&self.to, way, generation);
        Ok(way)
    }

    /// The error for a source that is not this host's, which the kernel has no errno for.
    fn foreign_source(&self) -> Result<Option<Error>> {
        let Some(source) = self.to.asked_source() else { return Ok(None) };
        let snapshot = self.inner.gids.checked()?;
        let is_foreign = snapshot.net().by_ip(source).next().is_none();
        Ok(is_foreign.then(|| row::no_device(&snapshot, source, 0)))
    }

    fn path(&self, way: &Way, hw_addr: Option<HwAddr>) -> Result<Path> {
        let snapshot = self.inner.gids.cached();
        Path::new(&snapshot, &self.to, way, hw_addr)
            .ok_or_else(|| row::no_device(&snapshot, way.source, way.ifindex))
    }
}

impl Looking {
    /// Asks for the neighbour, and makes the kernel look for it; `None` while it does.
    fn look(&mut self, inner: &Inner) -> Result<Option<Option<HwAddr>>> {
        let (ifindex, ip) = self.hop;
        for _ in 0..MOST_TURNS {
            self.waiter.begin();
            let there = inner.host.neighbour(ifindex, ip)?;
            match there {
                Some(there) if there.is_usable() => return self.found(inner, there.hw_addr),
                Some(there) if there.is_looked_for() => {}
                Some(there) if there.has_failed() && self.probes > 0 => {
                    inner.remember_failure(self.hop);
                    let netdev = inner.name_of(ifindex);
                    return Err(Error::Unreachable { neighbour: ip, netdev, remembered: None });
                }
                _ => {
                    let without = row::without_neighbours(inner.gids.cached().net(), ifindex);
                    if let Some(hw_addr) = without {
                        return self.found(inner, hw_addr);
                    }
                    if self.probes < MOST_PROBES {
                        self.probes += 1;
                        Counters::count(&inner.counters.probes);
                        inner.host.probe(ifindex, ip)?;
                    }
                }
            }
            self.prepare_to_wait(inner)?;
            if inner.generation() != self.generation {
                // Perhaps before this waiter was there to be told: the next call begins anew.
                break;
            }
            if !self.waiter.has_changed() {
                return Ok(None);
            }
        }
        // There is more to do, and the descriptor says so.
        self.waiter.tell();
        Ok(None)
    }

    fn found(&self, inner: &Inner, hw_addr: Option<HwAddr>) -> Result<Option<Option<HwAddr>>> {
        inner.keep_neighbour(self.hop, hw_addr, &self.waiter, self.generation);
        Ok(Some(hw_addr))
    }

    /// Makes what is waited on: the notifications, and word of those that somebody else takes in.
    fn prepare_to_wait(&mut self, inner: &Inner) -> Result<()> {
        if self.set.is_none() {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let wake = wake.map_err(host_error("eventfd"))?;
            let set = epoll::create(epoll::CreateFlags::CLOEXEC);
            let set = set.map_err(host_error("epoll_create1"))?;
            add(&set, inner.host.news())?;
            add(&set, wake.as_fd())?;
            inner.wake_by(&self.waiter, wake);
            self.set = Some(set);
        }
        Ok(())
    }
}

impl AsFd for Resolution {
    /// Readable when [`advance`](Resolution::advance) may have something to do, once that has given
    /// `Pending`; it may be another descriptor after the next. Only to wait on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let set = self.looking.as_ref().and_then(|looking| looking.set.as_ref());
        set.unwrap_or(&self.inner.set).as_fd()
    }
}

impl fmt::Debug for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolution")
            .field("to", &self.to)
            .field("next_hop", &self.looking.as_ref().map(|looking| looking.hop))
            .finish_non_exhaustive()
    }
}
