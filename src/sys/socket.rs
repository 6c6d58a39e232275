//! What rustix does not have of sockets: an option, and addresses as C has them.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::conv;
use crate::error::Errno;

/// Packets to one host that this socket sends, of that address family, leave by the interface of this
/// number. Needs no rights, unlike `SO_BINDTODEVICE` before Linux 5.7.
#[doc(alias = "IP_UNICAST_IF")]
#[doc(alias = "IPV6_UNICAST_IF")]
pub(crate) fn send_by(socket: BorrowedFd<'_>, ipv6: bool, ifindex: u32) -> Result<(), Errno> {
    let (level, option) = if ipv6 {
        (libc::IPPROTO_IPV6, IPV6_UNICAST_IF)
    } else {
        (libc::IPPROTO_IP, IP_UNICAST_IF)
    };
    // Both want it in network order.
    let value = ifindex.to_be_bytes();
    // SAFETY: the descriptor is open while it is borrowed; the value is 4 bytes, as the length says.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), 4) };
    conv::zero_or_minus_one(result)
}

/// As in `linux/in.h` and `linux/in6.h`; not every version of libc has them.
const IP_UNICAST_IF: libc::c_int = 50;
const IPV6_UNICAST_IF: libc::c_int = 76;

/// As C has it, in a struct that has room for every family.
pub(crate) fn to_c(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zero is a value of this struct of integers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            let c = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is made to hold every kind of address, at its alignment.
            unsafe { at.cast::<libc::sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            let c = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { at.cast::<libc::sockaddr_in6>().write(c) };
        }
    }
    storage
}

/// The address in it; none of another family than IP.
pub(crate) fn from_c(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at = std::ptr::from_ref(storage);
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it holds, and it is large enough, and so aligned.
            let c = unsafe { at.cast::<libc::sockaddr_in>().read() };
            let ip = c.sin_addr.s_addr.to_ne_bytes().into();
            Some(SocketAddrV4::new(ip, u16::from_be(c.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let c = unsafe { at.cast::<libc::sockaddr_in6>().read() };
            let (port, flow) = (u16::from_be(c.sin6_port), u32::from_be(c.sin6_flowinfo));
            let ip = c.sin6_addr.s6_addr.into();
            Some(SocketAddrV6::new(ip, port, flow, c.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn addresses_go_to_c_and_come_back() {
        for text in ["192.0.2.1:7174", "0.0.0.0:0", "[2001:db8::1]:65535", "[fe80::1%3]:80"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_c(&to_c(address)), Some(address));
        }
        // SAFETY: all zero is a value of this struct of integers.
        assert_eq!(from_c(&unsafe { std::mem::zeroed() }), None);
    }

    #[test]
    fn an_interface_that_is_there_and_one_that_is_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(send_by(socket.as_fd(), false, 1), Ok(()));
        assert_eq!(send_by(socket.as_fd(), false, 0), Ok(()));
        let error = send_by(socket.as_fd(), false, i32::MAX as u32).expect_err("no such interface");
        assert_eq!(error, Errno::EADDRNOTAVAIL);
    }
}
