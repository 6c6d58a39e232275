//! The host's side: network interfaces and local addresses, kept as immutable snapshots and
//! answered from memory; word of RDMA devices that come and go; and what a path to a peer is put
//! together from, routes and neighbours, each asked for by itself.
//!
//! # Two sockets
//!
//! [`HostNet`] has one netlink socket for requests and one for notifications. The notifications
//! (`RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`) only *announce* that something
//! changed; what there is now is read by dumps over the other (`RTM_GETLINK`, `RTM_GETADDR`). So
//! nothing is put together from pieces that may be lost or doubled: a lost notification is one
//! more announcement, and a burst is one read. The socket for notifications is open before the
//! first dump.
//!
//! # Why the messages are read here
//!
//! The sockets are rustix's, which needs no `unsafe` here and can tell the sender and the true
//! length of a message. The messages are read by a hundred lines of our own, for two reasons. What
//! is wanted is ten attributes out of some seventy; a reader of all of them
//! (netlink-packet-route) fails the whole message when one of those it does not need has a length
//! that it does not expect, as happens with kernels older or newer than itself. And the errors of
//! a dump (interrupted, cut, refused, unfinished) must be told apart here anyway.

#![deny(unsafe_code)]

mod address;
mod ask;
mod dump;
#[cfg(test)]
mod fixture;
mod link;
mod listen;
mod message;
mod neighbour;
mod news;
mod probe;
mod route;
mod snapshot;
mod socket;
mod uevent;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::cache::Cache;
use crate::error::Result;
use crate::kept::{Announcements, Kept};

use dump::Reader;
use listen::Listener;
use message::Messages;
use socket::{ROUTE, Socket};

pub use address::{AddressScope, LocalAddress};
pub use link::{HwAddr, Interface};
pub use snapshot::NetSnapshot;
pub use uevent::Uevents;

pub(crate) use ask::Asker;
pub(crate) use neighbour::Neighbour;
pub(crate) use news::{News, Reading, Told};
pub(crate) use probe::Prober;
pub(crate) use route::{Route, RouteQuestion, kind_in_words};

/// The interfaces and addresses of a network namespace, answered from memory.
///
/// `cached`, `checked` and `fresh` are those of [`Cache`], with notifications in the place of
/// events and two dumps in the place of a read of tables. Here `checked` misses nothing that the
/// kernel had told when it was called: names, MTUs and flags are told of too, and what the kernel
/// could not tell for want of room or memory is read all the same.
pub type NetCache = Cache<NetSnapshot>;

/// The groups to listen to, a bit each: number n is bit n - 1.
const GROUPS: u32 = 1 << (libc::RTNLGRP_LINK - 1)
    | 1 << (libc::RTNLGRP_IPV4_IFADDR - 1)
    | 1 << (libc::RTNLGRP_IPV6_IFADDR - 1);
/// Some hundreds of notifications; of more, none is missed, but they are read all together.
const ROOM: usize = 1 << 20;
const NAME: &str = "netlink notifications of interfaces and addresses (NETLINK_ROUTE)";

/// The network interfaces and addresses of one network namespace: that of the thread that opened
/// it, whichever thread asks later. An ordinary user may open it.
///
/// A program with a loop of its own waits until the descriptor ([`AsFd`]) is readable, then calls
/// [`process_events`](HostNet::process_events).
///
/// ```
/// # fn main() -> rdma_verbs::Result<()> {
/// let host = rdma_verbs::HostNet::open()?;
/// let net = host.interfaces().checked()?;
/// let lo = net.by_name("lo").expect("every namespace has one");
/// assert!(lo.is_loopback());
/// for address in net.addresses_of(lo.ifindex()) {
///     println!("{address}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct HostNet {
    listener: Arc<Listener>,
    cache: NetCache,
}

impl HostNet {
    /// Opens two sockets (`NETLINK_ROUTE`) and reads all interfaces and addresses.
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host): which of it failed, and the errno. `EMFILE`: no
    /// more files may be open; `EPROTONOSUPPORT` or `EAFNOSUPPORT`: a sandbox without netlink.
    #[doc(alias = "getifaddrs")]
    pub fn open() -> Result<HostNet> {
        // Listening comes first, so that no change goes past the first read.
        let socket = Socket::for_groups(ROUTE, GROUPS, ROOM, NAME)?;
        let listener = Arc::new(Listener::new(NAME, socket, tells_of_change));
        let kept = Arc::new(Kept::new(NetSnapshot::nothing()));
        listener.announce_to(&kept);
        let reader = Reader::open()?;
        let read = move |before: &NetSnapshot| {
            let (interfaces, addresses) = reader.read()?;
            Ok(before.next(interfaces, addresses))
        };
        let announcements: Arc<dyn Announcements> = Arc::clone(&listener) as _;
        let cache = Cache::new(kept, Box::new(read), Some(announcements))?;
        Ok(HostNet { listener, cache })
    }

    /// The interfaces and addresses.
    pub fn interfaces(&self) -> &NetCache {
        &self.cache
    }

    /// Takes in the notifications there are, without waiting, reads interfaces and addresses anew
    /// if one told of a change, and gives their number; a loss counts as one. What
    /// [`cached`](Cache::cached) answers from then stays true.
    ///
    /// What a `checked` on another thread took in is read by then, and neither counted here nor
    /// waited for: to act on a change, compare [`generation`](NetSnapshot::generation).
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host) when the notifications or the interfaces cannot be
    /// read; `EINTR` when changes interrupted 100 dumps in a row. The cache keeps what it had, and
    /// the change waits.
    pub fn process_events(&self) -> Result<usize> {
        let count = self.listener.drain()?;
        self.cache.catch_up()?;
        Ok(count)
    }

    /// How often notifications were lost, for want of room or memory. Nothing is missed by it: each
    /// loss is a read.
    pub fn lost(&self) -> u64 {
        self.listener.lost()
    }
}

impl AsFd for HostNet {
    /// The socket for notifications: readable when there are any.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl fmt::Debug for HostNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostNet")
            .field("interfaces", &self.cache)
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

/// Whether a notification may tell of a change: one that makes no sense may.
fn tells_of_change(notification: &[u8], whole: bool) -> bool {
    let mut messages = Messages::new(notification);
    let found = messages.any(|message| {
        // Netlink's own types are below those of the protocol, and tell of trouble.
        let known = libc::RTM_NEWLINK..=libc::RTM_DELADDR;
        message.kind < libc::RTM_NEWLINK || known.contains(&message.kind)
    });
    found || !whole || !messages.is_at_end()
}

#[cfg(test)]
mod tests {
    use super::fixture::{address_message, link_message};
    use super::message::{NLMSG_OVERRUN, message};
    use super::*;

    #[test]
    fn notifications() {
        let link = link_message(0, 0, 2, "e0");
        let route = message(libc::RTM_NEWROUTE, 0, 0, &[0; 12]);
        assert!(tells_of_change(&link, true));
        assert!(tells_of_change(&address_message(0, 0, 2, [192, 0, 2, 1]), true));
        assert!(tells_of_change(&[&route[..], &link].concat(), true));
        assert!(tells_of_change(&message(NLMSG_OVERRUN, 0, 0, &[]), true));
        assert!(!tells_of_change(&route, true));
        assert!(!tells_of_change(&[], true));
        assert!(tells_of_change(&route[..9], true), "it makes no sense");
        assert!(tells_of_change(&route, false), "another may stand behind it");
    }

    #[test]
    fn any_thread_may_ask() {
        fn is<T: Send + Sync>() {}
        is::<HostNet>();
        is::<Uevents>();
    }

    /// On whatever machine: loopback is number 1 and called lo.
    #[test]
    fn this_host() {
        let host = HostNet::open().expect("an ordinary user may");
        let net = host.interfaces().cached();
        let lo = net.by_name("lo").expect("every namespace has one");
        assert_eq!((lo.ifindex(), lo.is_loopback(), net.generation()), (1, true, 1));
        assert!(std::ptr::eq(net.by_ifindex(1).expect("lo"), lo));
        for address in net.addresses() {
            assert!(net.is_local(address.ifindex(), address.ip()), "{address}");
        }
    }
}
