//! A neighbour on a link, as `RTM_NEWNEIGH` and `RTM_DELNEIGH` tell of it.

#![deny(unsafe_code)]

use std::net::IpAddr;

use super::HwAddr;
use super::address::ip;
use super::message::{Attributes, attribute, head, u16_at, u32_at};
use super::route::family_and_bytes;

/// The length of `struct ndmsg`.
const NDMSG: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// The entry says what this host answers for others; it is no neighbour (`NTF_PROXY`).
const NTF_PROXY: u8 = 0x08;

/// The states in which the hardware address holds (the kernel's own `NUD_VALID`).
const USABLE: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

/// A neighbour, as one message tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Neighbour {
    pub(crate) ifindex: u32,
    pub(crate) ip: IpAddr,
    pub(crate) hw_addr: Option<HwAddr>,
    /// One bit of `NUD_*`; 0 for one that was removed.
    pub(crate) state: u16,
}

impl Neighbour {
    /// Whether packets to it can be sent.
    pub(crate) fn is_usable(&self) -> bool {
        self.state & USABLE != 0
    }

    /// Whether the kernel looked for it in vain.
    pub(crate) fn has_failed(&self) -> bool {
        self.state & libc::NUD_FAILED != 0
    }

    /// Whether the kernel is looking for it.
    pub(crate) fn is_looked_for(&self) -> bool {
        self.state & libc::NUD_INCOMPLETE != 0
    }

    /// What stands behind the header of an `RTM_GETNEIGH` for one neighbour.
    pub(super) fn question(ifindex: u32, ip: IpAddr) -> Vec<u8> {
        let (family, bytes) = family_and_bytes(ip);
        let mut body = vec![0; NDMSG];
        body[0] = family;
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        body.extend(attribute(NDA_DST, &bytes));
        body
    }

    /// What stands behind the header of an `RTM_GETNEIGH` for all neighbours of this family.
    pub(super) fn all_like(ip: IpAddr) -> Vec<u8> {
        let mut body = vec![0; NDMSG];
        body[0] = family_and_bytes(ip).0;
        body
    }

    /// From the payload of an `RTM_NEWNEIGH` or `RTM_DELNEIGH`; `None` when it is about none of IPv4
    /// or IPv6.
    pub(super) fn parse(payload: &[u8]) -> Option<Neighbour> {
        let header: [u8; NDMSG] = head(payload)?;
        let [family, .., flags, _] = header;
        let ifindex = u32_at(&header, 4).filter(|ifindex| *ifindex != 0)?;
        let state = u16_at(&header, 8)?;
        let (mut address, mut hw_addr) = (None, None);
        for (attribute, value) in Attributes::behind(payload, NDMSG) {
            match attribute {
                NDA_DST => address = ip(family, value),
                NDA_LLADDR => hw_addr = HwAddr::new(value),
                _ => {}
            }
        }
        let ip = address.filter(|_| flags & NTF_PROXY == 0)?;
        Some(Neighbour { ifindex, ip, hw_addr, state })
    }
}

/// Whether the payload is about a bridge's table, or what this host answers for others.
pub(super) fn is_no_neighbour(payload: &[u8]) -> bool {
    let header: Option<[u8; NDMSG]> = head(payload);
    header.is_some_and(|header| {
        !matches!(i32::from(header[0]), libc::AF_INET | libc::AF_INET6)
            || header[10] & NTF_PROXY != 0
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{attributes, neighbour};
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

    #[test]
    fn a_neighbour_and_its_states() {
        let list: [(u16, &[u8]); 3] =
            [(NDA_DST, &[192, 0, 2, 9]), (NDA_LLADDR, &MAC), (3, &[0; 16])];
        let read = |state| {
            let payload = neighbour(libc::AF_INET, 5, state, 0, &attributes(&list));
            Neighbour::parse(&payload).expect("a neighbour")
        };
        let known = read(libc::NUD_STALE);
        assert_eq!((known.ifindex, known.ip), (5, [192, 0, 2, 9].into()));
        assert_eq!(known.hw_addr.and_then(|address| address.mac()), Some(MAC));
        for (state, usable, failed, looked_for) in [
            (libc::NUD_NONE, false, false, false),
            (libc::NUD_INCOMPLETE, false, false, true),
            (libc::NUD_REACHABLE, true, false, false),
            (libc::NUD_STALE, true, false, false),
            (libc::NUD_DELAY, true, false, false),
            (libc::NUD_PROBE, true, false, false),
            (libc::NUD_FAILED, false, true, false),
            (libc::NUD_NOARP, true, false, false),
            (libc::NUD_PERMANENT, true, false, false),
        ] {
            let read = read(state);
            let told = (read.is_usable(), read.has_failed(), read.is_looked_for());
            assert_eq!(told, (usable, failed, looked_for), "{state:#x}");
        }
    }

    /// On IPoIB the hardware address is flags and queue pair number (4 bytes), then the port's GID.
    #[test]
    fn an_infiniband_neighbour() {
        let hw: [u8; 20] = std::array::from_fn(|at| at as u8);
        let dst: std::net::Ipv6Addr = "2001:db8::9".parse().expect("an address");
        let list: [(u16, &[u8]); 2] = [(NDA_DST, &dst.octets()), (NDA_LLADDR, &hw)];
        let payload = neighbour(libc::AF_INET6, 5, libc::NUD_REACHABLE, 0, &attributes(&list));
        let read = Neighbour::parse(&payload).expect("a neighbour");
        let gid = read.hw_addr.and_then(|address| address.ipoib_gid());
        assert_eq!(gid.map(|gid| gid.bytes().to_vec()).as_deref(), Some(&hw[4..]));
    }

    #[test]
    fn what_is_no_neighbour_of_ours() {
        let list: [(u16, &[u8]); 1] = [(NDA_DST, &[192, 0, 2, 9])];
        let list = attributes(&list);
        let whole = neighbour(libc::AF_INET, 5, libc::NUD_STALE, 0, &list);
        for len in 0..whole.len() {
            assert_eq!(Neighbour::parse(&whole[..len]), None, "{len}");
        }
        assert!(!is_no_neighbour(&whole) && !is_no_neighbour(&whole[..9]));
        for other in [
            neighbour(libc::AF_BRIDGE, 5, libc::NUD_STALE, 0, &list),
            neighbour(libc::AF_INET, 5, libc::NUD_STALE, NTF_PROXY, &list),
        ] {
            assert!(is_no_neighbour(&other) && Neighbour::parse(&other).is_none());
        }
        assert_eq!(Neighbour::parse(&neighbour(libc::AF_INET, 0, 2, 0, &list)), None);
    }

    #[test]
    fn a_question() {
        let body = Neighbour::question(5, [192, 0, 2, 9].into());
        let asked = Neighbour::parse(&body).expect("it has the same form");
        assert_eq!((asked.ifindex, asked.ip, asked.state), (5, [192, 0, 2, 9].into(), 0));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, tail: Vec<u8>, family in 0_i32..12, flags: u8) {
            let _ = (Neighbour::parse(&bytes), is_no_neighbour(&bytes));
            let _ = Neighbour::parse(&neighbour(family, 5, 2, flags, &tail));
        }
    }
}
