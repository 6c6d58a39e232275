//! Choices among tables from the field: version 1 rows, second ports and foreign rows, which rxe does
//! not have. Each says which row is taken, and why not the others.

mod states;

use super::*;
use crate::directory::DirectorySnapshot;
use crate::gid::GidSnapshot;
use crate::gid::fixture::{gid, ifindex, rows};
use crate::net::{Interface, LocalAddress, NetSnapshot};

/// Devices as `name: rows`, one a line, and the addresses of this host as `netdev ip/prefix`, blanks
/// between. Rows are those of `gid::fixture`. A netdev with `!` is down; flags of an address follow a `+`.
fn directory(devices: &str, host: &str) -> DirectorySnapshot {
    let devices = devices.trim().lines().map(|line| {
        let (name, table) = line.split_once(": ").expect("a name and rows");
        GidSnapshot::from_rows(name.trim(), &rows(table))
    });
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut addresses = Vec::new();
    let fields: Vec<&str> = host.split_whitespace().collect();
    for pair in fields.chunks(2) {
        let [netdev, address] = pair else { panic!("a netdev and an address: {pair:?}") };
        let (ip, prefix) = address.split_once('/').expect("a prefix");
        let number = ifindex(netdev.trim_end_matches('!'));
        if interfaces.iter().all(|there| there.ifindex() != number) {
            let name = IfName::new(netdev.trim_end_matches('!')).expect("a name");
            let interface = Interface::new(number, name);
            interfaces.push(if netdev.ends_with('!') { interface } else { interface.with_up() });
        }
        let ip = ip.parse().expect("an address");
        let (prefix, flags) = prefix.split_once('+').unwrap_or((prefix, "0"));
        let address = LocalAddress::new(number, ip, prefix.parse().expect("a prefix"));
        addresses.push(address.with_flags(flags.parse().expect("flags")));
    }
    DirectorySnapshot::from_parts(devices.collect(), NetSnapshot::from_parts(interfaces, addresses))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Each row as `device port index: verdict`.
fn explained(query: &GidQuery, directory: &DirectorySnapshot) -> Vec<String> {
    let explanation = query.explain(directory);
    let line = |row: &Explained| {
        format!("{} {} {}: {:?}", row.device, row.row.port(), row.row.index(), row.verdict)
    };
    explanation.rows().iter().map(line).collect()
}

fn best(query: &GidQuery, directory: &DirectorySnapshot) -> (String, u8, u8) {
    let choice = query.best(directory).expect("a row fits");
    (choice.device.to_string(), choice.port.get(), choice.index.get())
}

/// RoCE v1 and v2 rows of one address: v1 comes first in the table, and is not taken for that.
#[test]
fn version_2_before_version_1() {
    let host = directory(
        "mlx5_0: 1 0 fe80::aa v1 bond1 | 1 1 fe80::aa v2 bond1 | 1 2 ::ffff:192.0.2.6 v1 bond1 \
         | 1 3 ::ffff:192.0.2.6 v2 bond1",
        "bond1 192.0.2.6/24 bond1 fe80::aa/64",
    );
    let query = GidQuery::new().ip(ip("192.0.2.6"));
    assert_eq!(
        explained(&query, &host),
        [
            "mlx5_0 1 3: Best",
            "mlx5_0 1 2: Behind(Type)",
            "mlx5_0 1 0: Rejected(OtherIp)",
            "mlx5_0 1 1: Rejected(OtherIp)",
        ]
    );
    assert_eq!(best(&query, &host), ("mlx5_0".into(), 1, 3));
    let v1 = query.clone().gid_type(GidType::ROCE_V1);
    assert_eq!(best(&v1, &host), ("mlx5_0".into(), 1, 2));
    assert_eq!(v1.resolve_one(&host).expect("the only one").index.get(), 2);
    let error = query.resolve_one(&host).expect_err("two fit").to_string();
    assert_eq!(
        error,
        "several GIDs fit IP 192.0.2.6: mlx5_0 port 1 index 3 ::ffff:192.0.2.6 RoCE v2 bond1; \
         mlx5_0 port 1 index 2 ::ffff:192.0.2.6 RoCE v1 bond1; say which, by device, port, netdev or \
         type"
    );
}

/// No IPv4 at all, and the link-local row first: the routable one is taken.
#[test]
fn routable_before_link_local() {
    let host = directory(
        "rxe0: 1 0 fe80::aa v2 r0 | 1 1 fd00:db8::5 v2 r0",
        "r0 fe80::aa/64 r0 fd00:db8::5/64",
    );
    let query = GidQuery::new();
    assert_eq!(explained(&query, &host), ["rxe0 1 1: Best", "rxe0 1 0: Behind(Reach)"]);
    let only = directory("rxe0: 1 0 fe80::aa v2 r0", "r0 fe80::aa/64");
    assert_eq!(best(&query, &only), ("rxe0".into(), 1, 0), "link-local if there is nothing else");
}

/// The first row of an interface is not the usable one.
#[test]
fn best_of_a_netdev() {
    let host = directory(
        "mlx5_0: 1 0 fe80::aa v1 ens1 | 1 1 fe80::aa v2 ens1 | 1 2 fe80::bb v1 ens1 \
         | 1 3 fe80::bb v2 ens1 | 1 4 ::ffff:192.0.2.60 v1 ens1 | 1 5 ::ffff:192.0.2.60 v2 ens1",
        "ens1 fe80::aa/64 ens1 fe80::bb/64 ens1 192.0.2.60/24 ens2 192.0.2.61/24",
    );
    let name = IfName::new("ens1").expect("a name");
    let indices: Vec<u32> = host.by_netdev("ens1").map(|row| row.entry().index()).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    let query = GidQuery::new().netdev(name).gid_type(GidType::ROCE_V2);
    assert_eq!(best(&query, &host), ("mlx5_0".into(), 1, 5));
    let other = GidQuery::new().netdev(IfName::new("ens2").expect("a name"));
    assert_eq!(explained(&other, &host)[0], "mlx5_0 1 0: Rejected(OtherNetdev)");
    let none = GidQuery::new().netdev(IfName::new("no-such-if0").expect("a name"));
    let error = none.best(&host).expect_err("no such netdev").to_string();
    let text = "no GID fits netdev no-such-if0: there is no netdev no-such-if0 in this namespace; ";
    assert!(error.starts_with(text), "{error}");
}

/// Two rows that fit, of which one belongs to another namespace.
#[test]
fn mine_or_merely_visible() {
    let host = directory(
        "mlx5_0: 1 3 ::ffff:192.0.2.250 v2 eth9 | 1 7 ::ffff:192.0.2.252 v2 eth1",
        "eth1 192.0.2.252/24",
    );
    let query = GidQuery::new().gid_type(GidType::ROCE_V2);
    assert_eq!(explained(&query, &host), ["mlx5_0 1 7: Best", "mlx5_0 1 3: Rejected(NoInterface)"]);
    let foreign = host.rows()[0];
    assert_eq!((foreign.is_local(), foreign.entry().netdev()), (false, None), "not named here");
    let error =
        GidQuery::new().ip(ip("192.0.2.250")).best(&host).expect_err("not ours").to_string();
    assert!(error.contains("index 3 "), "{error}");
    assert!(
        error.contains("exists, not usable here: its netdev is in another namespace"),
        "{error}"
    );
    // The same number is another interface here.
    let clash = directory(
        "mlx5_0: 1 3 ::ffff:192.0.2.250 v2 eth1 | 1 7 ::ffff:192.0.2.252 v2 eth1",
        "eth1 192.0.2.252/24",
    );
    assert_eq!(
        explained(&query, &clash),
        ["mlx5_0 1 7: Best", "mlx5_0 1 3: Rejected(NotOnInterface)"]
    );
    let found: Vec<u32> = clash.by_netdev("eth1").map(|row| row.entry().index()).collect();
    assert_eq!(found, [7]);
}

/// A VLAN's row stands in the table of the device below, under its own name.
#[test]
fn a_netdev_is_that_of_the_row() {
    let host = directory(
        "rxe0: 1 0 fe80::aa v2 e0 | 1 2 ::ffff:203.0.113.10 v2 e0.100",
        "e0 fe80::aa/64 e0.100 203.0.113.10/24",
    );
    let choice = GidQuery::new().ip(ip("203.0.113.10")).resolve_one(&host).expect("one");
    assert_eq!((choice.row.netdev(), choice.index.get()), (Some("e0.100"), 2));
}

/// Each end finds its own index by its own address.
#[test]
fn indices_differ_between_hosts() {
    let a = directory(
        "mlx5_0: 1 0 fe80::a v1 e | 1 1 fe80::a v2 e | 1 2 ::ffff:192.0.2.100 v1 e \
         | 1 3 ::ffff:192.0.2.100 v2 e",
        "e fe80::a/64 e 192.0.2.100/24",
    );
    let b = directory(
        "rxe0: 1 0 fe80::b v2 e | 1 1 ::ffff:192.0.2.1 v2 e",
        "e fe80::b/64 e 192.0.2.1/24",
    );
    assert_eq!(best(&GidQuery::new().peer(ip("192.0.2.1")), &a).2, 3);
    assert_eq!(best(&GidQuery::new().peer(ip("192.0.2.100")), &b).2, 1);
}

/// One GID on two devices: both are found, and neither is guessed.
#[test]
fn one_gid_on_two_devices() {
    let host = directory(
        "rxe1: 1 1 ::ffff:198.51.100.10 v2 e0\nrxe2: 1 1 ::ffff:198.51.100.10 v2 f0",
        "e0 198.51.100.10/24 f0 198.51.100.10/24",
    );
    let query = GidQuery::new().gid(gid("::ffff:198.51.100.10"));
    assert_eq!(host.by_gid(&gid("::ffff:198.51.100.10")).count(), 2);
    let error = query.resolve_one(&host).expect_err("two fit");
    assert!(matches!(error, Error::Ambiguous { .. }), "{error}");
    assert_eq!(explained(&query, &host), ["rxe1 1 1: Best", "rxe2 1 1: Behind(Place)"]);
    let f0 = IfName::new("f0").expect("a name");
    for one in [query.clone().device("rxe2"), query.clone().netdev(f0)] {
        assert_eq!(&*one.resolve_one(&host).expect("one").device, "rxe2");
    }
    let error = query.clone().device("rxe9").best(&host).expect_err("no such device").to_string();
    assert!(error.contains("there is no device rxe9: there is rxe1, rxe2"), "{error}");
}

#[test]
fn by_subnet() {
    let host = directory(
        "mlx5_0: 1 0 fe80::a v2 a | 1 4 ::ffff:198.51.100.64 v2 a | 1 9 ::ffff:198.51.100.130 v2 b \
         | 1 11 2001:db8:1::7 v2 b",
        "a fe80::a/64 a 198.51.100.64/25 b 198.51.100.130/25 b 2001:db8:1::7/64",
    );
    for (subnet, index) in [
        ("198.51.100.128/25", 9),
        ("198.51.100.0/25", 4),
        ("0.0.0.0/0", 4),
        ("2001:db8:1::/48", 11),
    ] {
        let query = GidQuery::new().subnet(subnet.parse().expect(subnet));
        assert_eq!(best(&query, &host).2, index, "{subnet}");
    }
    let query = GidQuery::new().subnet("203.0.113.0/24".parse().expect("a subnet"));
    let error = query.best(&host).expect_err("none").to_string();
    assert!(error.contains("not in the subnet"), "{error}");
}

/// Towards a peer: its own subnet before others, the family and the reach it needs.
#[test]
fn towards_a_peer() {
    let host = directory(
        "a: 1 0 fe80::a v2 a0 | 1 1 ::ffff:192.0.2.1 v2 a0 | 1 2 2001:db8:1::1 v2 a0\n\
         b: 1 0 fe80::b v2 b0 | 1 1 ::ffff:198.51.100.1 v2 b0 | 1 2 ::ffff:198.51.100.1 v1 b0\n\
         c: 1 0 fe80::c ib -",
        "a0 fe80::a/64 a0 192.0.2.1/24 a0 2001:db8:1::1/64 b0 fe80::b/64 b0 198.51.100.1/25",
    );
    let towards = |peer: &str| GidQuery::new().peer(ip(peer));
    assert_eq!(
        explained(&towards("198.51.100.9"), &host),
        [
            "b 1 1: Best",
            "b 1 2: Behind(Type)",
            "a 1 1: Behind(Subnet)",
            "a 1 0: Rejected(PeerFamily)",
            "a 1 2: Rejected(PeerFamily)",
            "b 1 0: Rejected(PeerFamily)",
            "c 1 0: Rejected(NoIpAddress)",
        ]
    );
    // Beyond every subnet: whatever is routed.
    assert_eq!(
        explained(&towards("203.0.113.9"), &host)[..3],
        ["a 1 1: Best", "b 1 1: Behind(Place)", "a 1 0: Rejected(PeerFamily)"]
    );
    assert!(
        explained(&towards("203.0.113.9"), &host).contains(&"b 1 2: Rejected(NotRouted)".into())
    );
    assert_eq!(best(&towards("2001:db8:1::99"), &host), ("a".into(), 1, 2));
    assert_eq!(
        best(&towards("::ffff:192.0.2.7"), &host),
        ("a".into(), 1, 1),
        "a mapped peer is IPv4"
    );
    // Link-local: on which link must be said.
    let link_local = towards("fe80::99");
    assert!(matches!(link_local.resolve_one(&host), Err(Error::Ambiguous { .. })));
    let b0 = IfName::new("b0").expect("a name");
    assert_eq!(best(&link_local.netdev(b0), &host), ("b".into(), 1, 0));
    assert!(
        explained(&towards("fe80::99"), &host).contains(&"a 1 2: Rejected(PeerLinkLocal)".into())
    );
    assert!(
        explained(&towards("2001:db8:1::99"), &host)
            .contains(&"a 1 0: Rejected(LinkLocalOnly)".into())
    );
}

/// A peer of a family that no row has.
#[test]
fn a_peer_of_another_family() {
    let host = directory(
        "rxe0: 1 0 fe80::aa v2 e | 1 1 ::ffff:192.0.2.1 v2 e",
        "e fe80::aa/64 e 192.0.2.1/24",
    );
    let error = GidQuery::new().peer(ip("2001:db8::1")).best(&host).expect_err("none").to_string();
    assert_eq!(
        error,
        "no GID fits peer 2001:db8::1: rxe0 port 1 index 0 fe80::aa RoCE v2 e: link-local, and the peer \
         is not; rxe0 port 1 index 1 ::ffff:192.0.2.1 RoCE v2 e: of another address family than the peer"
    );
}

/// The default GID of a MAC address that nobody has as an address: passed over.
#[test]
fn an_address_that_nobody_owns() {
    let host = directory("rxe0: 1 0 fe80::aa v2 e | 1 1 fe80::bb v2 e", "e fe80::bb/64");
    assert_eq!(best(&GidQuery::new(), &host), ("rxe0".into(), 1, 1));
    assert_eq!(explained(&GidQuery::new(), &host)[1], "rxe0 1 0: Rejected(NotOnInterface)");
}

/// An index given by hand: empty, beyond the table, beyond what verbs carry, foreign.
#[test]
fn an_index_given_by_hand() {
    let host = directory(
        "rxe0: 1 1 ::ffff:192.0.2.1 v2 e | 1 4 ::ffff:192.0.2.9 v2 f | 1 300 ::ffff:192.0.2.2 v2 e",
        "e 192.0.2.1/24 e 192.0.2.2/24",
    );
    let at = |index| GidQuery::new().device("rxe0").port(PortNum::FIRST).index(index);
    assert_eq!(at(1).resolve_one(&host).expect("one").index.get(), 1);
    for (index, told) in [
        (2, "rxe0 port 1 index 2 is empty"),
        (301, "rxe0 port 1 index 301 is outside the table of 301"),
        (300, "its index is beyond the 255 that verbs carry"),
        (4, "exists, not usable here"),
    ] {
        let error = at(index).best(&host).expect_err(told).to_string();
        assert!(error.contains(told), "{error}");
    }
    let second = PortNum::new(2).expect("a port");
    let error =
        GidQuery::new().device("rxe0").port(second).best(&host).expect_err("none").to_string();
    assert!(error.contains("rxe0 has no port 2"), "{error}");
}

/// Types of tomorrow are listed and never taken; an empty device says that it is.
#[test]
fn what_is_never_taken() {
    let host = directory("rxe0: 1 0 ::ffff:192.0.2.1 7 e", "e 192.0.2.1/24");
    assert_eq!(explained(&GidQuery::new(), &host), ["rxe0 1 0: Rejected(UnknownType)"]);
    let empty = directory("rxe0: 1 0 :: v2 e", "e 192.0.2.1/24");
    let error = GidQuery::new().best(&empty).expect_err("none").to_string();
    assert!(error.starts_with("no GID fits any use: rxe0 port 1 has no GID: "), "{error}");
    let nothing = DirectorySnapshot::from_parts(vec![], NetSnapshot::from_parts(vec![], vec![]));
    let error = GidQuery::new().best(&nothing).expect_err("none").to_string();
    assert_eq!(error, "no GID fits any use: there is no device");
}

/// An InfiniBand port needs no interface, and is asked in its own terms.
#[test]
fn infiniband_beside_ethernet() {
    let host = directory(
        "mlx4_0: 1 1 ::ffff:192.0.2.12 v1 eth2 | 2 0 fe80::b2 ib -",
        "eth2 192.0.2.12/24",
    );
    let query = GidQuery::new().port(PortNum::new(2).expect("a port"));
    assert_eq!(best(&query, &host), ("mlx4_0".into(), 2, 0));
    assert_eq!(best(&GidQuery::new(), &host), ("mlx4_0".into(), 2, 0), "InfiniBand before RoCE v1");
    let peer = query.peer(ip("192.0.2.1")).best(&host).expect_err("no IP").to_string();
    assert!(peer.contains("an InfiniBand GID, and the peer is an IP address"), "{peer}");
}

/// What is laid out beforehand is what looking at every row finds, for peers of every kind.
#[test]
fn the_short_way_finds_what_the_long_way_finds() {
    let host = directory(
        "a: 1 0 fe80::a v2 a0 | 1 1 ::ffff:192.0.2.1 v1 a0 | 1 2 ::ffff:192.0.2.1 v2 a0 \
         | 1 3 2001:db8:1::1 v2 a0 | 1 4 ::ffff:192.0.2.129 v2 a1 | 1 300 ::ffff:192.0.2.66 v2 a1\n\
         b: 1 0 fe80::b v2 b0 | 1 1 ::ffff:198.51.100.1 v1 b0 | 1 2 fd00:db8::1 v2 b0 \
         | 1 3 ::ffff:169.254.7.7 v2 b0 | 1 4 ::ffff:203.0.113.5 v2 f9 | 2 0 fe80::bb ib -\n\
         c: 1 0 ::ffff:192.0.2.2 v2 c0 | 1 1 ::ffff:192.0.2.1 v2 c0",
        "a0 fe80::a/64 a0 192.0.2.1/24 a0 2001:db8:1::1/64 a1 192.0.2.129/25 a1 192.0.2.66/26 \
         b0 fe80::b/64 b0 198.51.100.1/24 b0 fd00:db8::1/48 b0 169.254.7.7/16 c0 192.0.2.2/32 \
         c0 192.0.2.1/31",
    );
    for peer in [
        "192.0.2.0",
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.3",
        "192.0.2.66",
        "192.0.2.127",
        "192.0.2.130",
        "192.0.2.255",
        "192.0.3.1",
        "198.51.100.200",
        "203.0.113.5",
        "169.254.1.1",
        "169.255.1.1",
        "2001:db8:1::1",
        "2001:db8:1::ffff",
        "2001:db8:2::1",
        "fd00:db8::99",
        "fd00:db9::1",
        "fe80::1",
        "fe80:0:0:1::1",
        "::ffff:192.0.2.9",
        "10.0.0.1",
        "0.0.0.0",
        "::",
        "::1",
        "ff02::1",
        "224.0.0.1",
    ] {
        let peer = ip(peer);
        let long = GidQuery::new().peer(peer);
        let long = long.fitting(&host).into_iter().min_by_key(|(key, _)| *key).map(|(_, row)| row);
        assert_eq!(host.towards(peer), long, "{peer}");
    }
    let none = DirectorySnapshot::from_parts(vec![], NetSnapshot::from_parts(vec![], vec![]));
    assert_eq!(none.towards(ip("192.0.2.1")), None);
}
