//! The GID: 16 bytes that name a port of a device on its network.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A global identifier (`union ibv_gid`): 16 bytes, in network order.
///
/// On RoCE it is an IP address, IPv4 ones in their mapped form `::ffff:192.0.2.1`; on InfiniBand
/// a subnet prefix and a port GUID. Compared as 16 bytes, however it was spelt.
///
/// Prints in the short form of IPv6; [`Gid::full`] prints all eight groups, as `show_gids` and
/// sysfs do. Either parses back to the same GID; [`ParseGidError`](super::ParseGidError) tells
/// which other spellings do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The zero GID: what an empty table row reads as. Never an address.
    pub const ZERO: Gid = Gid([0; 16]);

    /// From its 16 bytes in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Gid {
        Gid(bytes)
    }

    /// The 16 bytes in network order.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// From a subnet prefix and an interface identifier, both in host order.
    pub const fn from_parts(subnet_prefix: u64, interface_id: u64) -> Gid {
        Gid((((subnet_prefix as u128) << 64) | interface_id as u128).to_be_bytes())
    }

    /// The upper 64 bits, in host order.
    pub const fn subnet_prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower 64 bits, in host order.
    pub const fn interface_id(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// Whether this is the zero GID of an empty row.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// The IPv4 address inside an IPv4-mapped GID (`::ffff:a.b.c.d`), else `None`.
    pub const fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).to_ipv4_mapped()
    }

    /// The GID read as an IP address: IPv4 when it is IPv4-mapped, else IPv6.
    ///
    /// Only on RoCE is that what the GID means; on InfiniBand the bytes are no IP address.
    pub const fn ip(self) -> IpAddr {
        match self.ipv4() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(u128::from_be_bytes(self.0))),
        }
    }

    /// How far the GID reaches.
    pub const fn scope(self) -> GidScope {
        let [a, b, ..] = self.0;
        match (a, b & 0xc0) {
            _ if self.is_zero() => GidScope::Zero,
            (0xff, _) => GidScope::Multicast,
            (0xfe, 0x80) => GidScope::LinkLocal,
            (0xfe, 0xc0) => GidScope::SiteLocal,
            (0xfc | 0xfd, _) => GidScope::UniqueLocal,
            _ => match self.ipv4() {
                Some(v4) if v4.is_multicast() => GidScope::Multicast,
                Some(v4) if v4.is_link_local() => GidScope::LinkLocal,
                Some(_) => GidScope::Ipv4,
                None => GidScope::Global,
            },
        }
    }

    /// Prints all eight groups of four hex digits, `0000:0000:0000:0000:0000:ffff:c000:020a`:
    /// the form of sysfs, `show_gids` and `ibv_devinfo` for version 1 rows, whatever the value.
    pub const fn full(self) -> FullGid {
        FullGid(self)
    }
}

/// How far a GID reaches, from its bytes alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum GidScope {
    /// The zero GID: no address.
    Zero,
    /// `fe80::/10`, or IPv4 `169.254.0.0/16`: this link only.
    LinkLocal,
    /// `fec0::/10`: InfiniBand site-local.
    SiteLocal,
    /// `fc00::/7`: unique local addresses, routable inside an organisation.
    UniqueLocal,
    /// An IPv4-mapped address that is neither link-local nor multicast.
    Ipv4,
    /// Any other unicast address.
    Global,
    /// `ff00::/8`, or mapped IPv4 multicast: a group, not a port.
    Multicast,
}

impl Hash for Gid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // One 128-bit write instead of a length and a byte slice: this is the lookup's hot path.
        state.write_u128(u128::from_ne_bytes(self.0));
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Gid {
        Gid(ip.octets())
    }
}

impl From<Ipv4Addr> for Gid {
    /// The IPv4-mapped GID that RoCE uses for an IPv4 address.
    fn from(ip: Ipv4Addr) -> Gid {
        Gid(ip.to_ipv6_mapped().octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A GID that prints in full; made by [`Gid::full`].
#[derive(Clone, Copy, Debug)]
pub struct FullGid(Gid);

impl fmt::Display for FullGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = Ipv6Addr::from(self.0.0).segments();
        f.pad(&format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}:{e:04x}:{g:04x}:{h:04x}:{i:04x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse::<Ipv6Addr>().expect("a literal address").into()
    }

    #[test]
    fn scopes() {
        for (text, scope) in [
            ("::", GidScope::Zero),
            ("fe80::1", GidScope::LinkLocal),
            ("febf::1", GidScope::LinkLocal),
            ("fec0::1", GidScope::SiteLocal),
            ("fd00:db8::5", GidScope::UniqueLocal),
            ("2001:db8::5", GidScope::Global),
            ("::ffff:192.0.2.10", GidScope::Ipv4),
            ("::ffff:169.254.1.2", GidScope::LinkLocal),
            ("::ffff:224.0.0.1", GidScope::Multicast),
            ("ff02::1", GidScope::Multicast),
        ] {
            assert_eq!(gid(text).scope(), scope, "{text}");
        }
    }

    #[test]
    fn parts_and_addresses() {
        let ib = Gid::from_parts(0xfe80_0000_0000_0000, 0x0002_c903_00a1_b2c3);
        assert_eq!(ib.to_string(), "fe80::2:c903:a1:b2c3");
        assert_eq!(ib.subnet_prefix(), 0xfe80_0000_0000_0000);
        assert_eq!(ib.interface_id(), 0x0002_c903_00a1_b2c3);
        let v4 = Gid::from(Ipv4Addr::new(192, 0, 2, 10));
        assert_eq!(v4.ip(), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)));
        assert_eq!(v4.to_string(), "::ffff:192.0.2.10");
        assert_eq!(v4.full().to_string(), "0000:0000:0000:0000:0000:ffff:c000:020a");
        assert_eq!(ib.ipv4(), None);
    }
}
