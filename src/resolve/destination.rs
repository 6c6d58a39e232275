//! Where to, and under which conditions.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::net::RouteQuestion;

/// Where a path is to lead, and what is prescribed for it: what `rdma_resolve_addr` is given, and the
/// key that [`Resolver`](super::Resolver) remembers a path by.
///
/// ```
/// use rdma_verbs::Destination;
///
/// let peer = Destination::new([192, 0, 2, 77].into()).source([192, 0, 2, 1].into());
/// assert_eq!(peer.to_string(), "192.0.2.77 from 192.0.2.1");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Destination {
    ip: IpAddr,
    source: Option<IpAddr>,
    ifindex: u32,
    mark: u32,
}

impl Destination {
    /// This address; an IPv4 address mapped into IPv6 is the IPv4 address.
    pub const fn new(ip: IpAddr) -> Destination {
        Destination { ip: ip.to_canonical(), source: None, ifindex: 0, mark: 0 }
    }

    /// Only from this local address. Without it the kernel chooses one.
    pub const fn source(self, source: IpAddr) -> Destination {
        Destination { source: Some(source.to_canonical()), ..self }
    }

    /// Only by the interface of this number, or for an address of a VRF by the VRF's (`RTA_OIF`); 0 for
    /// any, which is also what is taken when nothing is said. A link-local address (`fe80::/10`) needs
    /// one. [`NetSnapshot::by_name`](crate::NetSnapshot::by_name) tells the number of a name.
    pub const fn ifindex(self, ifindex: u32) -> Destination {
        Destination { ifindex, ..self }
    }

    /// As a packet with this mark (`SO_MARK`, `RTA_MARK`), which rules of routing may choose by; 0 for
    /// none.
    #[doc(alias = "SO_MARK")]
    #[doc(alias = "fwmark")]
    pub const fn mark(self, mark: u32) -> Destination {
        Destination { mark, ..self }
    }

    /// The address.
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    pub(super) fn asked_source(&self) -> Option<IpAddr> {
        self.source
    }

    /// What the kernel is asked.
    pub(super) fn question(&self) -> RouteQuestion {
        RouteQuestion {
            destination: self.ip,
            source: self.source,
            ifindex: self.ifindex,
            mark: self.mark,
        }
    }

    /// Why this can be no destination, whatever the routes are.
    pub(super) fn impossible(&self) -> Option<&'static str> {
        let link_local = |ip| matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80);
        match self.ip {
            ip if ip.is_unspecified() => Some("it is the unspecified address"),
            ip if ip.is_multicast() => Some("it is a multicast address"),
            ip if self.source.is_some_and(|source| source.is_ipv4() != ip.is_ipv4()) => {
                Some("the source is of the other address family")
            }
            ip if link_local(ip) && self.ifindex == 0 => {
                Some("a link-local address needs the number of the interface it is on")
            }
            _ => None,
        }
    }
}

impl From<IpAddr> for Destination {
    fn from(ip: IpAddr) -> Destination {
        Destination::new(ip)
    }
}

impl From<SocketAddr> for Destination {
    /// The address without the port. An IPv6 address's scope is the interface.
    fn from(address: SocketAddr) -> Destination {
        match address {
            SocketAddr::V4(address) => Destination::new((*address.ip()).into()),
            SocketAddr::V6(address) => {
                Destination::new((*address.ip()).into()).ifindex(address.scope_id())
            }
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip)?;
        if let Some(source) = self.source {
            write!(f, " from {source}")?;
        }
        if self.ifindex != 0 {
            write!(f, " by interface {}", self.ifindex)?;
        }
        if self.mark != 0 {
            write!(f, " with mark {:#x}", self.mark)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(text: &str) -> Destination {
        Destination::new(text.parse().expect("an address"))
    }

    #[test]
    fn forms_of_one_destination() {
        assert_eq!(to("::ffff:192.0.2.1"), to("192.0.2.1"));
        let scoped: SocketAddr = "[fe80::1%7]:4791".parse().expect("an address");
        assert_eq!(Destination::from(scoped), to("fe80::1").ifindex(7));
        let all = to("192.0.2.1").source([192, 0, 2, 2].into()).ifindex(3).mark(16);
        assert_eq!(all.to_string(), "192.0.2.1 from 192.0.2.2 by interface 3 with mark 0x10");
    }

    #[test]
    fn what_can_be_no_destination() {
        for text in ["0.0.0.0", "::", "fe80::1", "224.0.0.9", "ff02::1"] {
            assert!(to(text).impossible().is_some(), "{text}");
        }
        assert!(to("192.0.2.1").source(to("::1").ip()).impossible().is_some());
        for text in ["192.0.2.1", "127.0.0.1", "2001:db8::1", "::1"] {
            assert_eq!(to(text).impossible(), None, "{text}");
        }
        assert_eq!(to("fe80::1").ifindex(1).impossible(), None);
    }
}
