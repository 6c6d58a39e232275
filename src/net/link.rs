//! A network interface, as `RTM_NEWLINK` tells of it.

#![deny(unsafe_code)]

use std::fmt;

use super::message::{Attributes, head, text, u16_at, u32_at};
use crate::types::{Gid, IfName};

/// The length of `struct ifinfomsg`.
const IFINFOMSG: usize = 16;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;

/// Kinds whose `IFLA_LINK` is the other end of a pair, not an interface below.
const PAIRS: &[&str] = &["veth", "netkit", "vxcan"];

/// A hardware address, as long as its kind of link has it: 6 bytes on Ethernet (the MAC), 20 on
/// InfiniBand. Prints as the tools do, `52:54:00:12:34:56`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HwAddr {
    /// Zero behind the address.
    bytes: [u8; HwAddr::MAX_LEN],
    len: u8,
}

impl HwAddr {
    /// The longest there is (`MAX_ADDR_LEN`).
    pub const MAX_LEN: usize = 32;

    /// From its bytes; `None` when there are none, or more than 32.
    pub fn new(address: &[u8]) -> Option<HwAddr> {
        let len = u8::try_from(address.len()).ok().filter(|len| *len > 0)?;
        let mut bytes = [0; HwAddr::MAX_LEN];
        bytes.get_mut(..address.len())?.copy_from_slice(address);
        Some(HwAddr { bytes, len })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The address as a MAC of 6 bytes; `None` when it has another length.
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.as_bytes().try_into().ok()
    }

    /// The port's GID in an IPoIB hardware address of 20 bytes: the last 16 of them, behind the flags
    /// and the number of the queue pair; `None` when the address has another length.
    pub fn ipoib_gid(&self) -> Option<Gid> {
        let address: [u8; 20] = self.as_bytes().try_into().ok()?;
        address.last_chunk().copied().map(Gid::from_bytes)
    }
}

impl fmt::Display for HwAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, byte) in self.as_bytes().iter().enumerate() {
            write!(f, "{}{byte:02x}", if number == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for HwAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A network interface of this network namespace, as it was when the snapshot was read.
///
/// Equality compares everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    ifindex: u32,
    name: Option<IfName>,
    alternative_names: Box<[Box<str>]>,
    hw_addr: Option<HwAddr>,
    hw_type: u16,
    mtu: u32,
    flags: u32,
    master: Option<u32>,
    lower: Option<u32>,
    kind: Option<Box<str>>,
}

impl Interface {
    /// An interface that a program makes itself, for its own tests: an Ethernet interface that is
    /// down, with an MTU of 1500 bytes and nothing else.
    pub fn new(ifindex: u32, name: IfName) -> Interface {
        Interface {
            name: Some(name),
            hw_type: libc::ARPHRD_ETHER,
            mtu: 1500,
            ..Interface::nothing(ifindex)
        }
    }

    /// The same of an InfiniBand port (IPoIB), with an MTU of 2044 bytes.
    pub fn infiniband(ifindex: u32, name: IfName) -> Interface {
        let hw_type = libc::ARPHRD_INFINIBAND;
        Interface { hw_type, mtu: 2044, ..Interface::new(ifindex, name) }
    }

    fn nothing(ifindex: u32) -> Interface {
        Interface {
            ifindex,
            name: None,
            alternative_names: Box::default(),
            hw_addr: None,
            hw_type: libc::ARPHRD_VOID,
            mtu: 0,
            flags: 0,
            master: None,
            lower: None,
            kind: None,
        }
    }

    /// The same with one more alternative name.
    pub fn with_alternative_name(mut self, name: &str) -> Interface {
        let names = self.alternative_names.into_iter().chain([name.into()]);
        self.alternative_names = names.collect();
        self
    }

    /// The same with this hardware address.
    pub fn with_hw_addr(self, address: HwAddr) -> Interface {
        Interface { hw_addr: Some(address), ..self }
    }

    /// The same with this MTU, in bytes.
    pub fn with_mtu(self, mtu: u32) -> Interface {
        Interface { mtu, ..self }
    }

    /// The same with these flags (`IFF_*`).
    pub fn with_flags(self, flags: u32) -> Interface {
        Interface { flags, ..self }
    }

    /// The same, up and running.
    pub fn with_up(self) -> Interface {
        let flags = self.flags | (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        Interface { flags, ..self }
    }

    /// The same as a part of that interface: a bond, a bridge, a VRF.
    pub fn with_master(self, ifindex: u32) -> Interface {
        Interface { master: Some(ifindex), ..self }
    }

    /// The same above that interface, as a VLAN or a macvlan is.
    pub fn with_lower(self, ifindex: u32) -> Interface {
        Interface { lower: Some(ifindex), ..self }
    }

    /// The same as of this kind, `vlan`, `bond`, `vrf`.
    pub fn with_kind(self, kind: &str) -> Interface {
        Interface { kind: Some(kind.into()), ..self }
    }

    /// Its number in this network namespace, from 1 up. Another namespace may have the same number
    /// for another interface.
    #[doc(alias = "if_nametoindex")]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Its name; `None` for one that is no UTF-8.
    #[doc(alias = "if_indextoname")]
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(IfName::as_str)
    }

    /// Its name, as a value that can be kept.
    pub fn if_name(&self) -> Option<IfName> {
        self.name
    }

    /// Its other names (`IFLA_ALT_IFNAME`, up to 127 bytes each; kernel 5.5 and later), which tools
    /// take as well.
    pub fn alternative_names(&self) -> impl Iterator<Item = &str> {
        self.alternative_names.iter().map(|name| &**name)
    }

    /// Its hardware address (`IFLA_ADDRESS`): the MAC on Ethernet. A loopback's is zero; a tunnel
    /// may have none.
    pub fn hw_addr(&self) -> Option<HwAddr> {
        self.hw_addr
    }

    /// What its hardware addresses are (`ARPHRD_*`): 1 Ethernet, 32 InfiniBand, 772 loopback.
    pub fn hw_type(&self) -> u16 {
        self.hw_type
    }

    /// The largest packet, in bytes, above the link's own header (`IFLA_MTU`). A RoCE port's MTU
    /// is the largest step that fits, with RoCE's headers, into this.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The flags as C has them (`IFF_*`).
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Whether it was switched on (`IFF_UP`).
    pub fn is_up(&self) -> bool {
        self.has(libc::IFF_UP)
    }

    /// Whether it is on and can carry packets (`IFF_RUNNING`): the cable is in.
    pub fn is_running(&self) -> bool {
        self.has(libc::IFF_RUNNING)
    }

    /// Whether it is a loopback interface (`IFF_LOOPBACK`).
    pub fn is_loopback(&self) -> bool {
        self.has(libc::IFF_LOOPBACK)
    }

    fn has(&self, flag: libc::c_int) -> bool {
        self.flags & flag as u32 != 0
    }

    /// The number of the bond, bridge, VRF or other interface that this one is a part of
    /// (`IFLA_MASTER`).
    pub fn master(&self) -> Option<u32> {
        self.master
    }

    /// The number of the interface below this one (`IFLA_LINK`): a VLAN's parent. `None` when there
    /// is none, and when that one is in another network namespace, where numbers mean something
    /// else. A veth's other end is not below it.
    pub fn lower(&self) -> Option<u32> {
        self.lower
    }

    /// What kind of virtual interface it is (`IFLA_INFO_KIND`), as the kernel's own text: `vlan`,
    /// `bond`, `vrf`, `veth`. `None` for most hardware.
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// From the payload of an `RTM_NEWLINK`; `None` for one that is about no interface, or about an
    /// interface's part in something else (a bridge's own messages have that family).
    pub(super) fn parse(payload: &[u8]) -> Option<Interface> {
        let family = i32::from(*payload.first()?);
        let ifindex = u32_at(payload, 4).filter(|ifindex| *ifindex != 0)?;
        if family != libc::AF_UNSPEC || payload.len() < IFINFOMSG {
            return None;
        }
        let mut interface = Interface::nothing(ifindex);
        interface.hw_type = u16_at(payload, 2)?;
        interface.flags = u32_at(payload, 8)?;
        let number = |value: &[u8]| head(value).map(u32::from_ne_bytes).filter(|n| *n != 0);
        let mut lower_is_elsewhere = false;
        for (attribute, value) in Attributes::behind(payload, IFINFOMSG) {
            match attribute {
                IFLA_ADDRESS => interface.hw_addr = HwAddr::new(value),
                IFLA_IFNAME => interface.name = text(value).and_then(IfName::new),
                IFLA_MTU => interface.mtu = number(value).unwrap_or(0),
                IFLA_LINK => interface.lower = number(value),
                IFLA_LINK_NETNSID => lower_is_elsewhere = true,
                IFLA_MASTER => interface.master = number(value),
                IFLA_LINKINFO => {
                    let mut info = Attributes::new(value);
                    let kind = info.find(|(attribute, _)| *attribute == IFLA_INFO_KIND);
                    interface.kind = kind.and_then(|(_, kind)| text(kind)).map(Into::into);
                }
                IFLA_PROP_LIST => {
                    interface.alternative_names = Attributes::new(value)
                        .filter(|(attribute, _)| *attribute == IFLA_ALT_IFNAME)
                        .filter_map(|(_, name)| text(name).map(Into::into))
                        .collect();
                }
                _ => {}
            }
        }
        let is_end_of_pair = interface.kind().is_some_and(|kind| PAIRS.contains(&kind));
        if lower_is_elsewhere || is_end_of_pair {
            interface.lower = None;
        }
        Some(interface)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{attributes, link, number};
    use super::*;

    fn parsed(ifindex: u32, flags: u32, list: &[(u16, &[u8])]) -> Interface {
        Interface::parse(&link(ifindex, flags, &attributes(list))).expect("an interface")
    }

    #[test]
    fn an_interface_with_everything() {
        let kind = attributes(&[(2, b"data"), (IFLA_INFO_KIND, b"vlan\0")]);
        let names = attributes(&[(IFLA_ALT_IFNAME, b"the-first-of-all-names\0"), (60, b"odd")]);
        let list: [(u16, &[u8]); 8] = [
            (IFLA_IFNAME, b"e0.100\0"),
            (IFLA_ADDRESS, &[0x52, 0x54, 0, 0x12, 0x34, 0x56]),
            (IFLA_MTU, &number(9000)),
            (IFLA_LINK, &number(2)),
            (IFLA_MASTER, &number(7)),
            (IFLA_LINKINFO, &kind),
            (IFLA_PROP_LIST | 0x8000, &names),
            (9999, b"of a newer kernel"),
        ];
        let up = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let hw_addr = HwAddr::new(&[0x52, 0x54, 0, 0x12, 0x34, 0x56]).expect("a MAC");
        let made = Interface::new(5, IfName::new("e0.100").expect("a name"))
            .with_alternative_name("the-first-of-all-names")
            .with_hw_addr(hw_addr)
            .with_mtu(9000)
            .with_up()
            .with_master(7)
            .with_lower(2)
            .with_kind("vlan");
        let read = parsed(5, up, &list);
        assert_eq!(read, made);
        assert!(read.is_up() && read.is_running() && !read.is_loopback());
        assert_eq!(
            read.hw_addr().map(|address| address.to_string()).as_deref(),
            Some("52:54:00:12:34:56")
        );
        assert_eq!(read.hw_addr().and_then(|address| address.mac()), hw_addr.mac());
    }

    /// A number of another namespace, or of a pair's other end, is not the interface below.
    #[test]
    fn what_is_not_below() {
        let veth = attributes(&[(IFLA_INFO_KIND, b"veth\0")]);
        let two = number(2);
        assert_eq!(parsed(5, 0, &[(IFLA_LINK, &two)]).lower(), Some(2));
        for other in [(IFLA_LINK_NETNSID, &two[..]), (IFLA_LINKINFO, &veth)] {
            assert_eq!(parsed(5, 0, &[(IFLA_LINK, &two), other]).lower(), None);
            assert_eq!(parsed(5, 0, &[other, (IFLA_LINK, &two)]).lower(), None);
        }
        assert_eq!(parsed(5, 0, &[(IFLA_LINK, &number(0))]).lower(), None, "a tunnel over none");
    }

    #[test]
    fn odd_names_and_values() {
        for name in [&b""[..], b"\0", b"sixteen-bytes-ab\0", b"\xff\xfe\0", b"a b\0"] {
            assert_eq!(parsed(5, 0, &[(IFLA_IFNAME, name)]).name(), None, "{name:?}");
        }
        let read = parsed(5, 0, &[(IFLA_IFNAME, b"fifteen-bytes-a"), (IFLA_MTU, b"12")]);
        assert_eq!((read.name(), read.mtu()), (Some("fifteen-bytes-a"), 0));
        assert_eq!(parsed(5, 0, &[(IFLA_ADDRESS, &[1; 33])]).hw_addr(), None);
        assert_eq!(parsed(5, 0, &[(IFLA_ADDRESS, &[])]).hw_addr(), None);
        let gid = parsed(5, 0, &[(IFLA_ADDRESS, &[1; 20])]).hw_addr().expect("InfiniBand has 20");
        assert_eq!((gid.as_bytes().len(), gid.mac()), (20, None));
    }

    #[test]
    fn what_is_no_interface() {
        let whole = link(5, 0, &[]);
        for len in 0..whole.len() {
            assert_eq!(Interface::parse(&whole[..len]), None, "{len}");
        }
        assert_eq!(Interface::parse(&link(0, 0, &[])), None);
        let mut of_bridge = whole;
        of_bridge[0] = libc::AF_BRIDGE as u8;
        assert_eq!(Interface::parse(&of_bridge), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, tail in prop::collection::vec((0_u16..60, any::<Vec<u8>>()), 0..8)) {
            let _ = Interface::parse(&bytes);
            let tail: Vec<_> = tail.iter().map(|(kind, value)| (*kind, &value[..])).collect();
            prop_assert!(Interface::parse(&link(5, 1, &attributes(&tail))).is_some());
        }
    }
}
