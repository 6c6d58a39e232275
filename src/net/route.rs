//! A route to one address, as `RTM_GETROUTE` answers.

#![deny(unsafe_code)]

use std::net::IpAddr;

use super::address::ip;
use super::message::{Attributes, attribute, head, u16_at, u32_at};

/// The length of `struct rtmsg`.
const RTMSG: usize = 12;
/// A copy that the kernel made of a route for one destination (`RTM_F_CLONED`).
const RTM_F_CLONED: u32 = 0x200;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MARK: u16 = 16;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const RTAX_HOPLIMIT: u16 = 10;

/// What the kernel is asked: which way to this address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RouteQuestion {
    pub(crate) destination: IpAddr,
    pub(crate) source: Option<IpAddr>,
    /// 0 for any.
    pub(crate) ifindex: u32,
    pub(crate) mark: u32,
}

impl RouteQuestion {
    /// What stands behind the header of an `RTM_GETROUTE`.
    pub(super) fn body(&self) -> Vec<u8> {
        let (family, destination) = family_and_bytes(self.destination);
        let bits = |bytes: &[u8]| (bytes.len() * 8) as u8;
        let mut body = vec![0; RTMSG];
        let source = self.source.map(|source| family_and_bytes(source).1);
        body[0] = family;
        body[1] = bits(&destination);
        body[2] = source.as_deref().map_or(0, bits);
        body.extend(attribute(RTA_DST, &destination));
        if let Some(source) = source {
            body.extend(attribute(RTA_SRC, &source));
        }
        for (kind, number) in [(RTA_OIF, self.ifindex), (RTA_MARK, self.mark)] {
            if number != 0 {
                body.extend(attribute(kind, &number.to_ne_bytes()));
            }
        }
        body
    }
}

/// The family and the bytes of an address, as netlink wants them.
pub(super) fn family_and_bytes(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
    }
}

/// What the kernel answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Route {
    /// What becomes of packets (`RTN_*`).
    pub(crate) kind: u8,
    /// The interface they leave by; 0 for none.
    pub(crate) ifindex: u32,
    /// The router, where the destination is not on the link; of another family perhaps.
    pub(crate) gateway: Option<IpAddr>,
    /// The source address that the kernel would take, if it was not given.
    pub(crate) source: Option<IpAddr>,
    /// The route's own MTU, where it has one.
    pub(crate) mtu: Option<u32>,
    /// The route's own hop limit, where it has one.
    pub(crate) hop_limit: Option<u8>,
}

impl Route {
    /// From the payload of an `RTM_NEWROUTE`; `None` when it is none of IPv4 or IPv6.
    pub(super) fn parse(payload: &[u8]) -> Option<Route> {
        let header: [u8; RTMSG] = head(payload)?;
        let [family, .., kind, _, _, _, _] = header;
        if !matches!(i32::from(family), libc::AF_INET | libc::AF_INET6) {
            return None;
        }
        let mut route = Route { kind, ..Route::default() };
        for (attribute, value) in Attributes::behind(payload, RTMSG) {
            match attribute {
                RTA_OIF => route.ifindex = u32_at(value, 0).unwrap_or(0),
                RTA_GATEWAY => route.gateway = ip(family, value),
                RTA_VIA => {
                    let family = u16_at(value, 0).and_then(|family| u8::try_from(family).ok());
                    let address = value.get(2..).unwrap_or_default();
                    route.gateway = family.and_then(|family| ip(family, address));
                }
                RTA_PREFSRC => route.source = ip(family, value),
                RTA_METRICS => route.read_metrics(value),
                _ => {}
            }
        }
        route.gateway = route.gateway.filter(|gateway| !gateway.is_unspecified());
        route.source = route.source.filter(|source| !source.is_unspecified());
        Some(route)
    }

    fn read_metrics(&mut self, metrics: &[u8]) {
        for (metric, value) in Attributes::new(metrics) {
            let value = u32_at(value, 0).filter(|value| *value != 0);
            match metric {
                RTAX_MTU => self.mtu = value,
                RTAX_HOPLIMIT => self.hop_limit = value.and_then(|limit| u8::try_from(limit).ok()),
                _ => {}
            }
        }
    }
}

/// Whether the payload of an `RTM_NEWROUTE` is about a copy for one destination, which old kernels
/// tell of whenever they make one.
pub(super) fn is_copy(payload: &[u8]) -> bool {
    u32_at(payload, 8).is_some_and(|flags| flags & RTM_F_CLONED != 0)
}

/// What the kernel does with packets of a route that leads to no host, in words.
pub(crate) fn kind_in_words(kind: u8) -> &'static str {
    match kind {
        libc::RTN_BROADCAST => "it is a broadcast address",
        libc::RTN_ANYCAST => "it is an anycast address of this host",
        libc::RTN_MULTICAST => "it is a multicast address",
        libc::RTN_BLACKHOLE => "packets to it are thrown away (blackhole)",
        libc::RTN_UNREACHABLE => "its route is unreachable",
        libc::RTN_PROHIBIT => "its route is prohibited",
        _ => "its route leads to no host",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{attributes, number};
    use super::*;

    /// The payload of an `RTM_NEWROUTE`.
    fn route(family: i32, kind: u8, list: &[(u16, &[u8])]) -> Vec<u8> {
        let header = [family as u8, 32, 0, 0, 254, 0, 0, kind, 0, 2, 0, 0];
        [&header[..], &attributes(list)].concat()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_routed_address() {
        let metrics = attributes(&[(RTAX_MTU, &number(1400)), (RTAX_HOPLIMIT, &number(9))]);
        let list: [(u16, &[u8]); 5] = [
            (RTA_DST, &[192, 0, 2, 1]),
            (RTA_OIF, &number(3)),
            (RTA_PREFSRC, &[198, 51, 100, 10]),
            (RTA_GATEWAY, &[198, 51, 100, 1]),
            (RTA_METRICS | 0x8000, &metrics),
        ];
        let read = Route::parse(&route(libc::AF_INET, libc::RTN_UNICAST, &list));
        let expected = Route {
            kind: libc::RTN_UNICAST,
            ifindex: 3,
            gateway: Some(address("198.51.100.1")),
            source: Some(address("198.51.100.10")),
            mtu: Some(1400),
            hop_limit: Some(9),
        };
        assert_eq!(read, Some(expected));
    }

    /// An IPv4 address behind a router that has IPv6 only.
    #[test]
    fn a_gateway_of_the_other_family() {
        let router = "fe80::1".parse::<std::net::Ipv6Addr>().expect("an address");
        let via = [&10_u16.to_ne_bytes()[..], &router.octets()].concat();
        let read = Route::parse(&route(libc::AF_INET, 1, &[(RTA_VIA, &via)])).expect("a route");
        assert_eq!(read.gateway, Some(router.into()));
        for odd in [&via[..1], &via[..2], &via[..9], &[9, 9, 9]] {
            let read = Route::parse(&route(libc::AF_INET, 1, &[(RTA_VIA, odd)]));
            assert_eq!(read.expect("a route").gateway, None);
        }
    }

    #[test]
    fn nothing_of_what_is_unspecified_or_odd() {
        let zero = [0; 16];
        let metrics = attributes(&[(RTAX_MTU, &number(0)), (RTAX_HOPLIMIT, &number(300))]);
        let list: [(u16, &[u8]); 5] = [
            (RTA_OIF, &[1, 2]),
            (RTA_GATEWAY, &zero),
            (RTA_PREFSRC, &zero),
            (RTA_METRICS, &metrics),
            (9999, b"of a newer kernel"),
        ];
        let read = Route::parse(&route(libc::AF_INET6, 1, &list));
        assert_eq!(read, Some(Route { kind: 1, ..Route::default() }));
        let whole = route(libc::AF_INET, 1, &[]);
        for len in 0..whole.len() {
            assert_eq!(Route::parse(&whole[..len]), None, "{len}");
        }
        assert_eq!(Route::parse(&route(99, 1, &[])), None);
    }

    #[test]
    fn questions() {
        let mut question =
            RouteQuestion { destination: address("192.0.2.1"), source: None, ifindex: 0, mark: 0 };
        let body = question.body();
        assert_eq!(body[..4], [libc::AF_INET as u8, 32, 0, 0]);
        let read: Vec<_> = Attributes::behind(&body, RTMSG).collect();
        assert_eq!(read, [(RTA_DST, &[192, 0, 2, 1][..])]);
        question.source = Some(address("192.0.2.2"));
        (question.ifindex, question.mark) = (7, 9);
        let body = question.body();
        assert_eq!(body[..4], [libc::AF_INET as u8, 32, 32, 0]);
        let expected: [(u16, &[u8]); 4] = [
            (RTA_DST, &[192, 0, 2, 1]),
            (RTA_SRC, &[192, 0, 2, 2]),
            (RTA_OIF, &number(7)),
            (RTA_MARK, &number(9)),
        ];
        assert_eq!(Attributes::behind(&body, RTMSG).collect::<Vec<_>>(), expected);
        question.destination = address("2001:db8::1");
        assert_eq!(question.body()[1], 128);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            bytes: Vec<u8>,
            tail in prop::collection::vec((0_u16..32, any::<Vec<u8>>()), 0..8),
            v6: bool,
        ) {
            let _ = (Route::parse(&bytes), is_copy(&bytes));
            let tail: Vec<_> = tail.iter().map(|(kind, value)| (*kind, &value[..])).collect();
            let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
            prop_assert!(Route::parse(&route(family, 1, &tail)).is_some());
        }
    }
}
