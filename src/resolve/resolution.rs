//! A resolution that is under way: one state machine for whoever blocks, polls or awaits.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::way::{Way, no_route};
use super::work::{Counters, Hop, Inner, Waiter};
use super::{Destination, Path, host_error, row};
use crate::error::{Error, Result};
use crate::net::HwAddr;
use crate::trace::event;

/// How often one resolution makes the kernel look for the neighbour: once, and again when the kernel
/// forgot it meanwhile.
const MOST_PROBES: u32 = 3;
/// How often the neighbour is asked for before others get their turn.
const MOST_TURNS: u32 = 16;

/// A path that is being looked for. Made by [`Resolver::start`](super::Resolver::start); dropping it
/// ends the search.
///
/// Never waits in [`advance`](Resolution::advance): wait until its descriptor ([`AsFd`]) is readable and
/// call it again, for as long as you have patience. From the first wait on it has two
/// descriptors. The kernel gives up after some seconds (three on
/// Ethernet unless configured otherwise) and then this does. [`wait`](Resolution::wait) does the waiting.
#[must_use = "nothing is done until it is advanced"]
pub struct Resolution {
    inner: Arc<Inner>,
    to: Destination,
    /// Whatever is remembered is asked for anew.
    fresh: bool,
    looking: Option<Looking>,
    waiter: Arc<Waiter>,
    /// What is waited on, once something is: notifications, and the waiter's own.
    set: Option<OwnedFd>,
    begun: Instant,
}

/// The way is known, the neighbour is not.
struct Looking {
    way: Way,
    hop: Hop,
    /// The one in which the way was asked for.
    generation: u64,
    waiter: Arc<Waiter>,
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
        let (waiter, begun) = (Arc::default(), Instant::now());
        Resolution { inner, to, fresh, looking: None, waiter, set: None, begun }
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
        match looking.look(&self.to, &mut self.set)? {
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
        let (inner, waiter) = (Arc::clone(inner), Arc::clone(&self.waiter));
        inner.register(hop, &waiter);
        Ok(Begun::Looking(Looking { way, hop, generation, waiter, probes, inner }))
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
    fn look(
        &mut self,
        to: &Destination,
        set: &mut Option<OwnedFd>,
    ) -> Result<Option<Option<HwAddr>>> {
        let (ifindex, ip) = self.hop;
        for _ in 0..MOST_TURNS {
            self.inner.begin(&self.waiter);
            match self.inner.host.neighbour(ifindex, ip)? {
                Some(there) if there.is_usable() => return Ok(Some(self.found(there.hw_addr))),
                Some(there) if there.is_looked_for() => {}
                Some(there) if there.has_failed() && self.probes > 0 => {
                    if !self.inner.remember_failure(self.hop, &self.waiter) {
                        continue;
                    }
                    let netdev = self.inner.name_of(ifindex);
                    event!(info, neighbour = %ip, %netdev, "a neighbour does not answer");
                    return Err(Error::Unreachable { neighbour: ip, netdev, remembered: None });
                }
                _ => {
                    let snapshot = self.inner.gids.cached();
                    if let Some(hw_addr) = row::without_neighbours(snapshot.net(), ifindex) {
                        return Ok(Some(self.found(hw_addr)));
                    }
                    self.probe(to)?;
                }
            }
            self.inner.prepare_to_wait(&self.waiter, set)?;
            if self.inner.generation() != self.generation {
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

    fn found(&self, hw_addr: Option<HwAddr>) -> Option<HwAddr> {
        self.inner.keep_neighbour(self.hop, hw_addr, &self.waiter, self.generation);
        hw_addr
    }

    /// Makes the kernel look for the neighbour.
    fn probe(&mut self, to: &Destination) -> Result<()> {
        if self.probes == MOST_PROBES {
            return Ok(());
        }
        self.probes += 1;
        Counters::count(&self.inner.counters.probes);
        let (ifindex, ip) = self.hop;
        event!(debug, neighbour = %ip, ifindex, probe = self.probes, "the kernel is made to look");
        // A router that no route leads to (`onlink`) is found by what it routes.
        let sent = self.inner.host.probe(ifindex, ip);
        sent.or_else(|error| self.inner.host.probe(ifindex, to.ip()).map_err(|_| error))
    }
}

impl AsFd for Resolution {
    /// Readable when [`advance`](Resolution::advance) may have something to do. Only to wait on, and
    /// once that has given `Pending`: from the first on it is the same to the end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_ref().unwrap_or(&self.inner.set).as_fd()
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
