//! A netlink socket: opened, asked and read. The one file here that makes system calls.

#![deny(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{SocketAddrAny, sockopt};

use crate::error::{Errno, Error, Result};

/// A message taken from a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    /// How long the message is: more than the buffer when the buffer was too short for it.
    pub(crate) len: usize,
    /// Whether the kernel sent it, and not some process: its port id is 0.
    pub(crate) from_kernel: bool,
}

/// Where messages come from: a trait so that losses and senders that no test can bring about are
/// unit tests.
pub(crate) trait Source: Send + Sync {
    /// Takes the next message; what does not fit is cut off. `EAGAIN` when there is none, or none
    /// came in time.
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno>;
}

/// What a request is sent to.
pub(crate) trait Peer: Source {
    fn send(&self, request: &[u8]) -> Result<(), Errno>;

    /// Throws away what has come of an answer and what comes of it meanwhile, without waiting.
    fn discard(&self, buffer: &mut [u8]);
}

/// An open netlink socket.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// How long the kernel may be silent in the middle of an answer. It answers while it is asked, so
/// that this passes only when something is broken.
const PATIENCE: Duration = Duration::from_secs(5);

/// `NETLINK_ROUTE`: links and addresses. Its number is 0, what rustix calls no protocol.
pub(super) const ROUTE: Option<Protocol> = None;
/// `NETLINK_KOBJECT_UEVENT`: devices of every kind.
pub(super) const KOBJECT_UEVENT: Option<Protocol> = Some(netlink::KOBJECT_UEVENT);

impl Socket {
    /// A socket for requests: it waits for answers.
    pub(super) fn for_requests(protocol: Option<Protocol>, name: &'static str) -> Result<Socket> {
        Socket::open(protocol, 0, SocketFlags::CLOEXEC, |fd| {
            sockopt::set_socket_timeout(fd, sockopt::Timeout::Recv, Some(PATIENCE))
        })
        .map_err(|errno| Error::Host { call: name, errno })
    }

    /// A socket that the messages to these groups (a bit each) arrive at: it never waits. `room` is
    /// how many bytes may wait in it; the kernel gives what it allows.
    pub(super) fn for_groups(
        protocol: Option<Protocol>,
        groups: u32,
        room: usize,
        name: &'static str,
    ) -> Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Socket::open(protocol, groups, flags, |fd| {
            // Beyond `net.core.rmem_max` with CAP_NET_ADMIN; others get what that allows.
            sockopt::set_socket_recv_buffer_size_force(fd, room)
                .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, room))
        })
        .map_err(|errno| Error::Host { call: name, errno })
    }

    fn open(
        protocol: Option<Protocol>,
        groups: u32,
        flags: SocketFlags,
        set_up: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> Result<Socket, Errno> {
        let open = || {
            let fd = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
            set_up(&fd)?;
            net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
            Ok(Socket(fd))
        };
        open().map_err(errno)
    }
}

impl Source for Socket {
    #[doc(alias = "recvfrom")]
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        // TRUNC: the length is that of the message, not of what fitted.
        let (_, len, sender) =
            rustix::io::retry_on_intr(|| net::recvfrom(&self.0, &mut *buffer, RecvFlags::TRUNC))
                .map_err(errno)?;
        Ok(Received { len, from_kernel: sender.is_some_and(is_kernel) })
    }
}

impl Peer for Socket {
    #[doc(alias = "sendto")]
    fn send(&self, request: &[u8]) -> Result<(), Errno> {
        let kernel = SocketAddrNetlink::new(0, 0);
        let sent = rustix::io::retry_on_intr(|| {
            net::sendto(&self.0, request, SendFlags::empty(), &kernel)
        });
        match sent.map_err(errno)? {
            len if len == request.len() => Ok(()),
            _ => Err(Errno::EMSGSIZE),
        }
    }

    fn discard(&self, buffer: &mut [u8]) {
        // Taking a part makes the kernel add the next, until the last. An error is told once.
        const MOST_PARTS: usize = 1 << 16;
        for _ in 0..MOST_PARTS {
            if net::recv(&self.0, &mut *buffer, RecvFlags::DONTWAIT)
                .is_err_and(|error| error == rustix::io::Errno::AGAIN)
            {
                break;
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_kernel(sender: SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(sender).is_ok_and(|sender| sender.pid() == 0)
}

fn errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}
