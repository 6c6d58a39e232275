use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::types::IfName;

fn interface(ifindex: u32, name: &str) -> Interface {
    Interface::new(ifindex, IfName::new(name).expect("a name"))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn address(ifindex: u32, text: &str, prefix_len: u8) -> LocalAddress {
    LocalAddress::new(ifindex, ip(text), prefix_len)
}

fn host() -> NetSnapshot {
    NetSnapshot::from_parts(
        vec![
            interface(7, "e0.100").with_lower(2).with_kind("vlan"),
            interface(1, "lo"),
            interface(2, "e0").with_alternative_name("enp1s0").with_master(9),
        ],
        vec![
            address(7, "fe80::1", 64),
            address(2, "192.0.2.1", 24),
            address(2, "fe80::1", 64),
            address(1, "127.0.0.1", 8),
            address(2, "192.0.2.1", 26),
            address(5, "198.51.100.1", 24),
        ],
    )
}

#[test]
fn by_number_and_by_name() {
    let host = host();
    let numbers: Vec<_> = host.interfaces().iter().map(Interface::ifindex).collect();
    assert_eq!(numbers, [1, 2, 7]);
    assert_eq!(host.by_ifindex(7).and_then(Interface::lower), Some(2));
    assert_eq!(host.by_name("e0.100").map(Interface::ifindex), Some(7));
    assert_eq!(host.by_name("enp1s0").and_then(Interface::master), Some(9));
    assert_eq!(host.by_ifindex(3), None);
    assert_eq!(host.by_name("e1"), None);
    assert_eq!(host.by_name(""), None);
}

#[test]
fn by_address() {
    let host = host();
    let of = |text| host.by_ip(ip(text)).map(LocalAddress::ifindex).collect::<Vec<_>>();
    assert_eq!(of("fe80::1"), [2, 7]);
    assert_eq!(of("::ffff:192.0.2.1"), [2, 2], "one for each prefix");
    assert!(of("192.0.2.2").is_empty());
    assert!(host.is_local(7, ip("fe80::1")));
    assert!(!host.is_local(7, ip("192.0.2.1")), "it is another interface's");
    assert_eq!(host.local_prefix(2, ip("192.0.2.1")), Some(26), "the longest");
    assert_eq!(host.local_prefix(2, ip("::ffff:192.0.2.1")), Some(26));
    assert_eq!(host.local_prefix(7, ip("192.0.2.1")), None);
    assert_eq!(host.addresses_of(2).len(), 3);
    assert!(host.addresses_of(3).is_empty());
}

/// Interfaces and addresses are two reads: what came in between may stand alone.
#[test]
fn an_address_without_its_interface() {
    let host = host();
    assert_eq!(host.by_ifindex(5), None);
    assert_eq!(host.addresses_of(5), [address(5, "198.51.100.1", 24)]);
    assert!(host.is_local(5, ip("198.51.100.1")));
}

#[test]
fn the_generation_moves_with_a_change_only() {
    let nothing = NetSnapshot::nothing();
    let first = nothing.next(vec![], vec![]).expect("the first read counts, whatever it gives");
    assert_eq!(first.generation(), 1);
    assert!(first.next(vec![], vec![]).is_none());
    let one = first.next(vec![interface(1, "lo")], vec![]).expect("an interface came");
    assert_eq!(one.generation(), 2);
    assert!(one.next(vec![interface(1, "lo")], vec![]).is_none());
    let up = one.next(vec![interface(1, "lo").with_up()], vec![]).expect("it came up");
    assert_eq!(up.generation(), 3);
    let flagged = |flags| vec![address(1, "fe80::1", 64).with_flags(flags)];
    let tentative = up.next(vec![interface(1, "lo").with_up()], flagged(0x40)).expect("an address");
    assert!(tentative.next(vec![interface(1, "lo").with_up()], flagged(0x80)).is_some());
}

proptest! {
    /// Whatever there is, each lookup finds what going through all of it finds.
    #[test]
    fn lookups_agree_with_a_scan(
        links in prop::collection::vec((1_u32..40, 0_u8..40), 0..40),
        made in prop::collection::vec((1_u32..40, 0_u16..30, 0_u8..=128, any::<bool>()), 0..80),
    ) {
        let interfaces = links.iter().map(|(n, name)| {
            interface(*n, &format!("e{n}")).with_alternative_name(&format!("alternative{name}"))
        });
        let addresses = made.iter().map(|(n, last, prefix_len, v4)| {
            let ip = if *v4 {
                IpAddr::from([10, 0, 0, *last as u8])
            } else {
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, *last).into()
            };
            LocalAddress::new(*n, ip, *prefix_len)
        });
        let host = NetSnapshot::from_parts(interfaces.collect(), addresses.collect());
        prop_assert!(host.interfaces().is_sorted_by_key(Interface::ifindex));
        for number in 0..41 {
            let scan = host.interfaces().iter().find(|i| i.ifindex() == number);
            prop_assert_eq!(host.by_ifindex(number), scan);
            let name = format!("alternative{number}");
            let scan = host.interfaces().iter().find(|i| i.alternative_names().any(|n| n == name));
            prop_assert_eq!(host.by_name(&name), scan);
            let of: Vec<_> = host.addresses_of(number).iter().collect();
            let scan: Vec<_> = host.addresses().iter().filter(|a| a.ifindex() == number).collect();
            prop_assert_eq!(of, scan);
        }
        for address in host.addresses() {
            let ip = address.ip();
            let found: Vec<_> = host.by_ip(ip).collect();
            let scan: Vec<_> = host.addresses().iter().filter(|a| a.ip() == ip).collect();
            prop_assert_eq!(&found, &scan);
            for number in 0..41 {
                let longest = scan.iter().filter(|a| a.ifindex() == number);
                let longest = longest.map(|a| a.prefix_len()).max();
                prop_assert_eq!(host.local_prefix(number, ip), longest);
            }
        }
    }
}
