//! Making the kernel look for a neighbour.
//!
//! To ask for it over netlink (`RTM_NEWNEIGH` with `NTF_USE`) takes `CAP_NET_ADMIN`. What everybody may
//! do is send: an empty UDP datagram to the neighbour's discard port, by the interface in question, makes
//! the kernel look for the neighbour as any packet would. The neighbour answers it with nothing or with
//! an ICMP message that nobody reads.

#![deny(unsafe_code)]

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::error::{Errno, Error, Result};
use crate::sys::socket::send_by;

/// The discard port (RFC 863).
const DISCARD: u16 = 9;

/// Sockets to send probes from.
pub(crate) struct Prober {
    /// Held from choosing the interface to sending.
    sockets: Mutex<Sockets>,
}

struct Sockets {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl Prober {
    /// Probes in this thread's network namespace, from whichever thread.
    pub(crate) fn open() -> Result<Prober> {
        let (v4, v6) = (open(AddressFamily::INET)?, open(AddressFamily::INET6)?);
        Ok(Prober { sockets: Mutex::new(Sockets { v4, v6 }) })
    }

    /// Sends one empty datagram to `neighbour` by this interface.
    pub(crate) fn probe(&self, ifindex: u32, neighbour: IpAddr) -> Result<()> {
        let fail = |call| move |errno| Error::Host { call, errno };
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, to) = match neighbour {
            IpAddr::V4(ip) => (&sockets.v4, SocketAddr::from((ip, DISCARD))),
            IpAddr::V6(ip) => (&sockets.v6, SocketAddrV6::new(ip, DISCARD, 0, ifindex).into()),
        };
        let socket = socket.as_ref().ok_or(Errno::EAFNOSUPPORT);
        let socket = socket.map_err(fail("UDP socket for probes"))?;
        send_by(socket.as_fd(), to.is_ipv6(), ifindex)
            .map_err(fail("IP_UNICAST_IF of the UDP socket for probes"))?;
        match net::sendto(socket, &[], SendFlags::DONTWAIT, &to) {
            Ok(_) => Ok(()),
            Err(error) => {
                let errno = Errno::from_raw(error.raw_os_error());
                Err(fail("UDP datagram that makes the kernel look for a neighbour")(errno))
            }
        }
    }
}

/// A UDP socket of this family; `None` when this host has none of it.
fn open(family: AddressFamily) -> Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match net::socket_with(family, SocketType::DGRAM, flags, None) {
        Ok(socket) => {
            // Nobody reads what comes.
            let _ = net::sockopt::set_socket_recv_buffer_size(&socket, 0);
            Ok(Some(socket))
        }
        Err(rustix::io::Errno::AFNOSUPPORT) => Ok(None),
        Err(errno) => {
            let errno = Errno::from_raw(errno.raw_os_error());
            Err(Error::Host { call: "UDP socket for probes", errno })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::time::Duration;

    use super::*;

    /// On loopback, which has no neighbours, it simply arrives.
    #[test]
    fn a_probe_is_an_empty_datagram() {
        let prober = Prober::open().expect("an ordinary user may");
        // The port is for root only; where it is not to be had, sending is all there is to see.
        if let Ok(there) = UdpSocket::bind((Ipv4Addr::LOCALHOST, DISCARD)) {
            there.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            prober.probe(1, Ipv4Addr::LOCALHOST.into()).expect("sent");
            assert_eq!(there.recv(&mut [0; 8]).expect("it arrives"), 0);
        }
        prober.probe(1, Ipv4Addr::LOCALHOST.into()).expect("sent");
        let error = prober.probe(i32::MAX as u32, Ipv4Addr::LOCALHOST.into());
        assert!(error.expect_err("no such interface").to_string().contains("IP_UNICAST_IF"));
        let _ = prober.probe(1, Ipv6Addr::LOCALHOST.into());
    }
}
