//! Which way packets go: what is remembered of the kernel's answer.

use std::net::IpAddr;

use super::Destination;
use crate::error::{Errno, Error, Result};
use crate::net::{Route, kind_in_words};

/// The way to a destination, without what the directory and the neighbours tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    /// The address that packets are sent from.
    pub(super) source: IpAddr,
    /// The interface they leave by; for an address of this host loopback, or the VRF's.
    pub(super) ifindex: u32,
    /// Who is sent to on the link: the destination, or a router.
    pub(super) next_hop: IpAddr,
    /// The destination is this host's own.
    pub(super) local: bool,
    /// The route's own MTU.
    pub(super) mtu: Option<u32>,
    /// The route's own hop limit.
    pub(super) hop_limit: Option<u8>,
}

impl Way {
    /// From what the kernel answered; an error that says why there is none.
    pub(super) fn new(to: &Destination, answer: Result<Route, Errno>) -> Result<Way> {
        let route = match answer {
            Ok(route) => route,
            Err(errno) => return Err(no_route(to, &in_words(errno), Some(errno))),
        };
        let local = match route.kind {
            libc::RTN_LOCAL => true,
            libc::RTN_UNICAST if route.ifindex != 0 => false,
            kind => return Err(no_route(to, kind_in_words(kind), None)),
        };
        let Some(source) = to.asked_source().or(route.source) else {
            return Err(no_route(to, "there is no local address to send from", None));
        };
        Ok(Way {
            source: source.to_canonical(),
            ifindex: route.ifindex,
            next_hop: route.gateway.filter(|_| !local).unwrap_or(to.ip()),
            local,
            mtu: route.mtu,
            hop_limit: route.hop_limit,
        })
    }

    /// Whether a router is between.
    pub(super) fn is_routed(&self, to: &Destination) -> bool {
        self.next_hop != to.ip()
    }
}

pub(super) fn no_route(to: &Destination, reason: &str, errno: Option<Errno>) -> Error {
    Error::NoRoute { to: to.to_string().into(), reason: reason.into(), errno }
}

/// What an errno means where a route was asked for.
fn in_words(errno: Errno) -> String {
    let meaning = match errno {
        Errno::ENETUNREACH => "no route of this host leads there",
        Errno::EHOSTUNREACH => "its route is unreachable",
        Errno::EACCES => "its route is prohibited",
        Errno::EINVAL => "it is thrown away (blackhole), or asked for wrongly",
        Errno::ENODEV => "there is no such interface",
        Errno::ENETDOWN => "the interface is down",
        _ => return errno.to_string(),
    };
    format!("{meaning} ({errno:?})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

    fn to() -> Destination {
        Destination::new([198, 51, 100, 1].into())
    }

    fn route(kind: u8, gateway: Option<IpAddr>) -> Route {
        Route { kind, ifindex: 3, gateway, source: Some(OWN), mtu: Some(1400), hop_limit: None }
    }

    #[test]
    fn ways() {
        let way = Way::new(&to(), Ok(route(libc::RTN_UNICAST, Some(ROUTER)))).expect("a way");
        assert_eq!((way.source, way.ifindex, way.next_hop), (OWN, 3, ROUTER));
        assert!(way.is_routed(&to()) && !way.local);
        let way = Way::new(&to(), Ok(route(libc::RTN_UNICAST, None))).expect("a way");
        assert!(way.next_hop == to().ip() && !way.is_routed(&to()));
        let way = Way::new(&to(), Ok(route(libc::RTN_LOCAL, Some(ROUTER)))).expect("a way");
        assert!(way.local && way.next_hop == to().ip());
        let from = to().source([192, 0, 2, 10].into());
        let way = Way::new(&from, Ok(route(libc::RTN_UNICAST, None))).expect("a way");
        assert_eq!(way.source, IpAddr::from([192, 0, 2, 10]));
    }

    #[test]
    fn no_ways() {
        let text = |answer| Way::new(&to(), answer).expect_err("no way").to_string();
        let expected = "no route to 198.51.100.1: no route of this host leads there (ENETUNREACH)";
        assert_eq!(text(Err(Errno::ENETUNREACH)), expected);
        assert!(text(Err(Errno::EOPNOTSUPP)).contains("EOPNOTSUPP"));
        for (kind, word) in [
            (libc::RTN_MULTICAST, "multicast"),
            (libc::RTN_BROADCAST, "broadcast"),
            (libc::RTN_BLACKHOLE, "blackhole"),
            (libc::RTN_PROHIBIT, "prohibited"),
            (99, "leads to no host"),
        ] {
            assert!(text(Ok(route(kind, None))).contains(word), "{kind}");
        }
        let sourceless = Route { source: None, ..route(libc::RTN_UNICAST, None) };
        assert!(text(Ok(sourceless)).contains("no local address"));
        let nowhere = Route { ifindex: 0, ..route(libc::RTN_UNICAST, None) };
        assert!(text(Ok(nowhere)).contains("leads to no host"));
    }
}
