//! From a peer's address to the path that leads there: what `rdma_resolve_addr` and
//! `rdma_resolve_route` find out, answered from memory.
//!
//! A path is put together from three things that change by themselves: the kernel's routes (rules, VRFs
//! and multipath are its business: it is asked), its neighbours, and the GID tables. The first two are
//! remembered here, the third is the directory's, and every answer looks all three up.

#![deny(unsafe_code)]

mod destination;
mod host;
mod path;
mod resolution;
mod row;
mod table;
mod way;
mod work;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;

use crate::cache::Cache;
use crate::directory::{DirectoryRef, DirectorySnapshot, GidDirectory, Watch, Watcher};
use crate::error::{Errno, Error, Result};

pub use destination::Destination;
pub use path::Path;
pub use resolution::Resolution;

pub(crate) use row::no_device;
/// The error for a local address without a device, with those that have one, from tables read for it.
pub(crate) fn no_device_for(address: IpAddr) -> Error {
    match GidDirectory::open() {
        Ok(directory) => {
            let snapshot = directory.cached();
            let on = snapshot.net().by_ip(address).next().map_or(0, |there| there.ifindex());
            row::no_device(&snapshot, address, on)
        }
        Err(error) => error,
    }
}

use host::{Host, Kernel};
use work::Inner;

/// Finds the path to a peer: source address, device, port, GID, next hop and its hardware address.
///
/// Remembers up to 4096 destinations and 4096 neighbours, and is told by the kernel of every change of
/// interfaces, addresses, rules, routes, next hops and neighbours, for IPv4 and IPv6: a neighbour that
/// changes is changed here, anything else, and a notification that was lost, empties all. Of what the
/// kernel does not tell, the path MTU it learns from packets that were too big, nothing is promised.
///
/// Freshness is chosen by name:
///
/// | | costs | can miss |
/// |---|---|---|
/// | [`cached`](Resolver::cached), [`resolve`](Resolver::resolve) that hits | some hundred nanoseconds, memory only | whatever nobody has taken in yet; with [`watch`](Resolver::watch), what happened in the last moments |
/// | [`checked`](Resolver::checked) that hits | two system calls that do not wait | a change of a GID table whose event the kernel has not raised yet |
/// | [`fresh`](Resolver::fresh), and any of them that does not hit | two questions to the kernel, tens of microseconds | what changes after it |
/// | a neighbour that the kernel has to look for | until it answers, or the kernel gives up | |
///
/// A destination that is not remembered costs questions to the kernel, in the caller's own thread: no
/// thread and no timer is between. If the neighbour is not known, one empty UDP datagram to its discard
/// port makes the kernel look for it, which needs no rights, and the kernel's word of the answer ends
/// the wait. A neighbour that did not answer is not asked again for a second.
///
/// The thread that opens it decides the network namespace, whichever thread asks later. Cheap to clone:
/// clones are the same resolver.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rdma_verbs::{Destination, GidDirectory, Resolver, Result};
///
/// fn main() -> Result<()> {
///     let resolver = Resolver::open(&GidDirectory::open()?)?;
///     let _watcher = resolver.watch()?;
///     let peer = Destination::new([192, 0, 2, 77].into());
///     let path = resolver.resolve(&peer, Duration::from_secs(5))?;
///     println!("{} port {} index {}", path.gid.device, path.gid.port, path.gid.index);
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Resolver {
    inner: Arc<Inner>,
}

/// What a resolver has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ResolverStats {
    /// Answers from memory.
    pub hits: u64,
    /// Answers for which the kernel was asked.
    pub misses: u64,
    /// Datagrams sent to make the kernel look for a neighbour.
    pub probes: u64,
    /// Neighbours found not to answer.
    pub failures: u64,
    /// How often everything was forgotten, because something other than a neighbour changed, or
    /// notifications were lost, or a program wanted it. A burst counts once.
    pub emptied: u64,
    /// How often notifications were lost, for want of room or memory. Nothing is missed by it.
    pub lost: u64,
}

/// Where the GID tables are looked up.
enum Gids {
    Directory(GidDirectory),
    /// Made by a program itself.
    Made(Cache<DirectorySnapshot>),
}

impl Gids {
    fn cached(&self) -> DirectoryRef {
        match self {
            Gids::Directory(directory) => directory.cached(),
            Gids::Made(cache) => cache.cached(),
        }
    }

    fn checked(&self) -> Result<DirectoryRef> {
        match self {
            Gids::Directory(directory) => directory.checked(),
            Gids::Made(cache) => cache.checked(),
        }
    }
}

impl Resolver {
    /// A resolver that looks GIDs up in this directory. Opens two netlink sockets and two UDP sockets.
    ///
    /// # Errors
    ///
    /// [`Error::Host`]: which of it failed, and the errno. `EMFILE`: no more files may be open;
    /// `EPROTONOSUPPORT` or `EAFNOSUPPORT`: a sandbox without netlink.
    pub fn open(directory: &GidDirectory) -> Result<Resolver> {
        Resolver::over(Gids::Directory(directory.clone()), Box::new(Kernel::open()?))
    }

    /// A resolver over GID tables and interfaces that a program made itself, for its own tests: routes
    /// and neighbours are this host's.
    ///
    /// # Errors
    ///
    /// As [`open`](Resolver::open).
    pub fn from_cache(directory: Cache<DirectorySnapshot>) -> Result<Resolver> {
        Resolver::over(Gids::Made(directory), Box::new(Kernel::open()?))
    }

    fn over(gids: Gids, host: Box<dyn Host>) -> Result<Resolver> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC);
        let set = set.map_err(host_error("epoll_create1"))?;
        add(&set, host.news())?;
        if let Gids::Directory(directory) = &gids {
            add(&set, directory.as_fd())?;
        }
        Ok(Resolver { inner: Arc::new(Inner::new(gids, host, set)) })
    }

    /// The path, if memory has all of it. Memory only: no system call, no lock, no allocation.
    ///
    /// `None` also for a neighbour that is known not to answer, and an address without a device:
    /// [`resolve`](Resolver::resolve) tells why.
    #[inline]
    pub fn cached(&self, to: &Destination) -> Option<Path> {
        self.inner.hit(to)
    }

    /// The path, from memory if that has it, else from the kernel; when the neighbour has to be looked
    /// for, this waits for it, for at most `timeout`. With a timeout of zero it never waits.
    ///
    /// # Errors
    ///
    /// * [`Error::NoRoute`]: no route leads there, or one that forbids it, or it is no host's address.
    /// * [`Error::NoDeviceForAddress`]: the address to send from has no RDMA device on the interface that
    ///   the route takes, or none that can be used; with those that have one.
    /// * [`Error::Unreachable`]: the next hop does not answer, or did not a moment ago.
    /// * [`Error::ResolveTimeout`]: it has not answered yet. The kernel goes on asking.
    /// * [`Error::Host`]: the kernel could not be asked, or a filter refuses the datagram (`EPERM`).
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(&self, to: &Destination, timeout: Duration) -> Result<Path> {
        match self.inner.hit(to) {
            Some(path) => Ok(path),
            None => self.start(to).wait(timeout),
        }
    }

    /// The same after taking in what has changed, here and in the directory: two system calls that do
    /// not wait. Right as of when it was called, but for what a directory's own
    /// [`checked`](GidDirectory::checked) can miss.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Resolver::resolve), and when the notifications or the directory cannot be read.
    pub fn checked(&self, to: &Destination, timeout: Duration) -> Result<Path> {
        self.process_events()?;
        self.resolve(to, timeout)
    }

    /// The same, asking the kernel for route and neighbour whatever is remembered; what it answers is
    /// remembered. A failure a moment ago does not count.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Resolver::resolve).
    pub fn fresh(&self, to: &Destination, timeout: Duration) -> Result<Path> {
        Resolution::new(&self.inner, to, true).wait(timeout)
    }

    /// Begins to look for a path, for a program with a loop of its own. Nothing is done, and no
    /// descriptor taken, until it is advanced.
    pub fn start(&self, to: &Destination) -> Resolution {
        Resolution::new(&self.inner, to, false)
    }

    /// Takes in what has changed, here and in the directory, without waiting, and gives how many
    /// notifications told of something. For a program with a loop of its own: wait until the descriptor
    /// ([`AsFd`]) is readable, then call this; what [`cached`](Resolver::cached) answers then stays true.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] when the notifications cannot be read, and what the directory's
    /// [`process_events`](GidDirectory::process_events) fails with.
    pub fn process_events(&self) -> Result<usize> {
        let taken = self.inner.take_in()?;
        self.inner.gids.checked()?;
        Ok(taken)
    }

    /// Forgets every way and neighbour, and who did not answer: whoever asks next, the kernel is asked. For
    /// what the kernel does not tell of, and to measure what memory saves.
    pub fn forget(&self) {
        self.inner.forget();
    }

    /// Starts a thread that keeps the resolver and its directory true, so that the directory needs none
    /// of its own: what [`cached`](Resolver::cached) answers from is then behind by the time that a
    /// notification takes to be taken in. The thread lasts until the watcher is dropped, also after the
    /// resolver itself is.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] when there can be no more threads or descriptors.
    pub fn watch(&self) -> Result<Watcher> {
        Watcher::start(&self.inner)
    }

    /// The GID tables, after taking in what has changed of them.
    pub(crate) fn gids_checked(&self) -> Result<DirectoryRef> {
        self.inner.gids.checked()
    }

    /// What it has done so far.
    pub fn stats(&self) -> ResolverStats {
        self.inner.stats()
    }
}

impl AsFd for Resolver {
    /// Readable when something has changed. Only to wait on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.set.as_fd()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Watch for Inner {
    const NAME: &'static str = "rdma-resolver";

    fn readiness(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    fn take_in(&self) {
        // A failure of either makes the lookup that follows fail, and tells there.
        let _ = Inner::take_in(self);
        let _ = self.gids.checked();
    }
}

/// Adds a descriptor to a set that is only waited on.
fn add(set: &OwnedFd, fd: BorrowedFd<'_>) -> Result<()> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(set, fd, data, epoll::EventFlags::IN).map_err(host_error("epoll_ctl"))
}

/// A failed call that concerns the host and no device.
fn host_error(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
}

#[cfg(test)]
mod tests;
