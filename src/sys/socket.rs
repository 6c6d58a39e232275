//! Options of a socket that rustix does not have.

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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_interface_that_is_there_and_one_that_is_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(send_by(socket.as_fd(), false, 1), Ok(()));
        assert_eq!(send_by(socket.as_fd(), false, 0), Ok(()));
        let error = send_by(socket.as_fd(), false, i32::MAX as u32).expect_err("no such interface");
        assert_eq!(error, Errno::EADDRNOTAVAIL);
    }
}
