//! A local address, as `RTM_NEWADDR` tells of it.

#![deny(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::message::{Attributes, head, u32_at};
use crate::types::c_enum;

/// The length of `struct ifaddrmsg`.
const IFADDRMSG: usize = 8;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

c_enum! {
    /// How far an address reaches (`enum rt_scope_t`).
    AddressScope(u8) {
        /// Everywhere.
        UNIVERSE = 0, "global";
        /// This site (IPv6, deprecated).
        SITE = 200, "site";
        /// This link: `169.254.0.0/16` as configured so, `fe80::/10`.
        LINK = 253, "link";
        /// This host: `127.0.0.0/8`, `::1`.
        HOST = 254, "host";
        /// Nowhere.
        NOWHERE = 255, "nowhere";
    }
}

/// An address that a network interface of this namespace has, as it was when the snapshot was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalAddress {
    ip: IpAddr,
    ifindex: u32,
    flags: u32,
    prefix_len: u8,
    scope: AddressScope,
}

impl LocalAddress {
    /// An address that a program makes itself, for its own tests: without flags, its scope that
    /// which the kernel gives by default. A prefix longer than the address is cut to its length.
    pub fn new(ifindex: u32, ip: IpAddr, prefix_len: u8) -> LocalAddress {
        let ip = ip.to_canonical();
        let scope = match ip {
            IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80 => AddressScope::LINK,
            ip if ip.is_loopback() => AddressScope::HOST,
            _ => AddressScope::UNIVERSE,
        };
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        LocalAddress { ip, ifindex, flags: 0, prefix_len: prefix_len.min(longest), scope }
    }

    /// The same with this scope.
    pub fn with_scope(self, scope: AddressScope) -> LocalAddress {
        LocalAddress { scope, ..self }
    }

    /// The same with these flags (`IFA_F_*`).
    pub fn with_flags(self, flags: u32) -> LocalAddress {
        LocalAddress { flags, ..self }
    }

    /// The address. On a point-to-point link the near end's.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The number of the interface that has it.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// How many leading bits name the network that is directly reached, 0 to 32 or 128. On a
    /// point-to-point link it is the far end's network.
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// How far it reaches.
    pub fn scope(&self) -> AddressScope {
        self.scope
    }

    /// The flags as C has them (`IFA_F_*`).
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Whether it is still being checked for a duplicate on its link (`IFA_F_TENTATIVE`): it cannot
    /// be used yet. IPv6 only, and not where it may be used meanwhile (`IFA_F_OPTIMISTIC`).
    pub fn is_tentative(&self) -> bool {
        self.has(libc::IFA_F_TENTATIVE) && !self.has(libc::IFA_F_OPTIMISTIC)
    }

    /// Whether another host on the link has it (`IFA_F_DADFAILED`): it cannot be used. IPv6 only.
    pub fn is_duplicate(&self) -> bool {
        self.has(libc::IFA_F_DADFAILED)
    }

    /// Whether its preferred lifetime is over (`IFA_F_DEPRECATED`): it works, but is not for new
    /// connections.
    pub fn is_deprecated(&self) -> bool {
        self.has(libc::IFA_F_DEPRECATED)
    }

    /// Whether it is made up for a time and then replaced (IPv6 privacy), or a further address of a
    /// network that the interface has one of already (IPv4): `IFA_F_SECONDARY`, the same bit.
    #[doc(alias = "IFA_F_TEMPORARY")]
    pub fn is_secondary(&self) -> bool {
        self.has(libc::IFA_F_SECONDARY)
    }

    /// Whether packets from it can be sent: neither tentative nor a duplicate.
    pub fn is_usable(&self) -> bool {
        !self.is_tentative() && !self.is_duplicate()
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// From the payload of an `RTM_NEWADDR`; `None` for one without an address, or of a family
    /// other than IPv4 and IPv6.
    pub(super) fn parse(payload: &[u8]) -> Option<LocalAddress> {
        let [family, prefix_len, flags, scope] = head(payload)?;
        let ifindex = u32_at(payload, 4).filter(|ifindex| *ifindex != 0)?;
        let mut flags = u32::from(flags);
        let (mut address, mut local) = (None, None);
        for (attribute, value) in Attributes::behind(payload, IFADDRMSG) {
            match attribute {
                IFA_ADDRESS => address = ip(family, value),
                IFA_LOCAL => local = ip(family, value),
                // All 32 bits; the header has room for 8.
                IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
                _ => {}
            }
        }
        // On a point-to-point link the address is the far end's.
        let made = LocalAddress::new(ifindex, local.or(address)?, prefix_len);
        Some(made.with_flags(flags).with_scope(AddressScope::from_raw(scope)))
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on interface {}", self.ip, self.prefix_len, self.ifindex)
    }
}

/// An address of this family from its bytes.
pub(super) fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{address, attributes, number};
    use super::*;

    const V4: u8 = libc::AF_INET as u8;
    const V6: u8 = libc::AF_INET6 as u8;

    fn local(ifindex: u32, ip: &str, prefix_len: u8) -> LocalAddress {
        LocalAddress::new(ifindex, ip.parse().expect("an address"), prefix_len)
    }

    #[test]
    fn addresses_of_both_families() {
        let list: [(u16, &[u8]); 3] =
            [(IFA_ADDRESS, &[192, 0, 2, 1]), (IFA_LOCAL, &[192, 0, 2, 1]), (3, b"e0\0")];
        let read = LocalAddress::parse(&address(V4, 24, 0x80, 0, 2, &attributes(&list)));
        assert_eq!(read, Some(local(2, "192.0.2.1", 24).with_flags(0x80)));
        let linklocal: Ipv6Addr = "fe80::1".parse().expect("an address");
        let flags = number(libc::IFA_F_TENTATIVE | libc::IFA_F_NOPREFIXROUTE);
        let list: [(u16, &[u8]); 2] = [(IFA_ADDRESS, &linklocal.octets()), (IFA_FLAGS, &flags)];
        let read = LocalAddress::parse(&address(V6, 64, 0x40, 253, 3, &attributes(&list)));
        let read = read.expect("an address");
        assert_eq!(read, local(3, "fe80::1", 64).with_flags(0x240));
        assert!(read.is_tentative() && !read.is_usable());
        assert_eq!(
            (read.scope(), read.to_string().as_str()),
            (AddressScope::LINK, "fe80::1/64 on interface 3")
        );
    }

    /// The near end is ours, wherever it stands.
    #[test]
    fn the_near_end_of_a_pair() {
        let list: [(u16, &[u8]); 2] = [(IFA_LOCAL, &[10, 0, 0, 1]), (IFA_ADDRESS, &[10, 0, 0, 2])];
        let read = LocalAddress::parse(&address(V4, 32, 0, 0, 2, &attributes(&list)));
        assert_eq!(read, Some(local(2, "10.0.0.1", 32)));
    }

    #[test]
    fn flags() {
        let with = |flags| local(1, "fe80::1", 64).with_flags(flags);
        assert!(with(libc::IFA_F_DADFAILED | libc::IFA_F_TENTATIVE).is_duplicate());
        assert!(!with(libc::IFA_F_DADFAILED).is_usable());
        assert!(with(libc::IFA_F_OPTIMISTIC | libc::IFA_F_TENTATIVE).is_usable());
        assert!(with(libc::IFA_F_DEPRECATED).is_deprecated());
        assert!(with(libc::IFA_F_DEPRECATED).is_usable());
        assert!(with(libc::IFA_F_SECONDARY).is_secondary());
    }

    #[test]
    fn what_is_no_address() {
        let list: [(u16, &[u8]); 1] = [(IFA_ADDRESS, &[192, 0, 2, 1])];
        let whole = address(V4, 24, 0, 0, 2, &attributes(&list));
        for len in 0..whole.len() {
            assert_eq!(LocalAddress::parse(&whole[..len]), None, "{len}");
        }
        for (family, ifindex) in [(V6, 2), (99, 2), (V4, 0)] {
            assert_eq!(
                LocalAddress::parse(&address(family, 24, 0, 0, ifindex, &attributes(&list))),
                None
            );
        }
        let odd = LocalAddress::parse(&address(V4, 200, 0, 77, 2, &attributes(&list)));
        let odd = odd.expect("an address");
        assert_eq!((odd.prefix_len(), odd.scope().raw()), (32, 77));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, tail: Vec<u8>, family in 0_u8..12) {
            let _ = LocalAddress::parse(&bytes);
            let _ = LocalAddress::parse(&address(family, 64, 0, 0, 2, &tail));
        }
    }
}
