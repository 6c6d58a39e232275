//! Paths that change: addresses, routes, rules, next hops and neighbours, told or lost.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_verbs::{Destination, Error};

use super::pair::Pair;
use super::resolve::{LONG, NO_TIME, hw, open, to};
use super::rig::{alone, ip, ip_batch, wait_until};

/// After the command has returned there is no answer by the device that had the address.
#[test]
fn an_address_that_moves_to_another_netdev() {
    let _alone = alone();
    let (directory, resolver) = open();
    let (one, two) = (Pair::new(&directory), Pair::bare());
    two.inside(&["addr", "add", &format!("{}/24", one.ip(2)), "dev", &two.far]);
    let peer = to(one.ip(2));
    let (mut from, mut into) = (&one, &two);
    assert_eq!(&*resolver.resolve(&peer, LONG).expect("a path").gid.device, &*from.device);
    let address = format!("{}/24", one.ip(1));
    for _ in 0..6 {
        ip(&["addr", "del", &address, "dev", &from.near]);
        ip(&["addr", "add", &address, "dev", &into.near]);
        // The kernel fills the GID table behind the command's back.
        wait_until("it is found again", || match resolver.checked(&peer, LONG) {
            Ok(path) => {
                assert_eq!((&*path.gid.device, hw(&path)), (&*into.device, into.far_mac()));
                true
            }
            Err(Error::NoDeviceForAddress(_)) => false,
            Err(error) => panic!("{error}"),
        });
        (from, into) = (into, from);
    }
    drop((directory, resolver));
}

/// Routes, metrics, next hop objects, rules: an answer after the command has returned has its change.
#[test]
fn routes_that_change() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    let (two, three) = (pair.ip(2).to_string(), pair.ip(3).to_string());
    let (near, number) = (&*pair.near, pair.number);
    let net = format!("10.99.{number}.0/24");
    let behind: IpAddr = Ipv4Addr::new(10, 99, number, 5).into();
    let resolve = |peer: &Destination| resolver.checked(peer, LONG);
    let error = resolve(&to(behind)).expect_err("no route yet");
    assert!(matches!(error, Error::NoRoute { .. }), "{error}");

    ip(&["route", "add", &net, "via", &two]);
    let path = resolve(&to(behind)).expect("a path");
    assert_eq!((path.next_hop, path.is_routed(), hw(&path)), (pair.ip(2), true, pair.far_mac()));
    assert_eq!(path.destination_gid(), Some(behind.into()));
    ip(&["route", "replace", &net, "via", &three, "mtu", "1280", "hoplimit", "9"]);
    let path = resolve(&to(behind)).expect("a path");
    assert_eq!((path.next_hop, path.mtu, path.hop_limit), (pair.ip(3), 1280, 9));

    let id = (700 + u32::from(number)).to_string();
    ip(&["route", "del", &net]);
    ip(&["nexthop", "add", "id", &id, "via", &two, "dev", near]);
    ip(&["route", "add", &net, "nhid", &id]);
    assert_eq!(resolve(&to(behind)).expect("a path").next_hop, pair.ip(2));
    ip(&["nexthop", "replace", "id", &id, "via", &three, "dev", near]);
    assert_eq!(resolve(&to(behind)).expect("a path").next_hop, pair.ip(3));

    let (table, marked) = (format!("{}", 1000 + u32::from(number)), to(behind).mark(7));
    ip(&["route", "add", &net, "via", &two, "table", &table]);
    assert_eq!(resolve(&marked).expect("a path").next_hop, pair.ip(3));
    ip(&["rule", "add", "fwmark", "7", "table", &table]);
    assert_eq!(resolve(&marked).expect("a path").next_hop, pair.ip(2));
    assert_eq!(resolve(&to(behind)).expect("a path").next_hop, pair.ip(3));
    ip(&["rule", "del", "fwmark", "7", "table", &table]);
    assert_eq!(resolve(&marked).expect("a path").next_hop, pair.ip(3));

    // Of IPv6, and IPv4 behind a router that has IPv6 only.
    let six = format!("2001:db8:99:{number:x}::/64");
    let behind_six: IpAddr = format!("2001:db8:99:{number:x}::5").parse().expect("an address");
    ip(&["route", "add", &six, "via", &pair.ipv6(2).to_string()]);
    assert_eq!(resolve(&to(behind_six)).expect("a path").next_hop, pair.ipv6(2));
    ip(&["route", "replace", &six, "via", &pair.ipv6(3).to_string()]);
    assert_eq!(resolve(&to(behind_six)).expect("a path").next_hop, pair.ipv6(3));
    ip(&[
        "route",
        "add",
        &format!("10.98.{number}.0/24"),
        "via",
        "inet6",
        &pair.ipv6(2).to_string(),
    ]);
    let mixed = resolve(&to(Ipv4Addr::new(10, 98, number, 5).into())).expect("a path");
    assert_eq!((mixed.next_hop, hw(&mixed)), (pair.ipv6(2), pair.far_mac()));

    // A router that nothing else leads to.
    let lone: IpAddr = format!("2001:db8:96:{number:x}::1").parse().expect("an address");
    pair.inside(&["addr", "add", &format!("{lone}/128"), "dev", &pair.far, "nodad"]);
    let gateway = lone.to_string();
    ip(&["route", "replace", &six, "via", &gateway, "dev", near, "onlink"]);
    let path = resolve(&to(behind_six)).expect("a path");
    assert_eq!((path.next_hop, hw(&path)), (lone, pair.far_mac()));

    // The interface's MTU, and what it is to be down.
    ip(&["link", "set", near, "mtu", "1400"]);
    assert_eq!(resolve(&to(pair.ip(2))).expect("a path").mtu, 1400);
    for kind in ["prohibit", "blackhole", "unreachable"] {
        ip(&["route", "add", kind, &format!("10.97.{number}.0/24")]);
        let error = resolve(&to(Ipv4Addr::new(10, 97, number, 5).into())).expect_err("none");
        println!("{error}");
        assert!(error.to_string().contains(kind), "{error}");
        ip(&["route", "del", kind, &format!("10.97.{number}.0/24")]);
    }
    ip(&["link", "set", near, "down"]);
    let error = resolve(&to(pair.ip(2))).expect_err("down");
    assert!(matches!(error, Error::NoRoute { .. }), "{error}");
    ip(&["nexthop", "flush"]);
    drop((directory, resolver));
}

#[test]
fn a_neighbour_whose_hardware_address_changes() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    let peer = to(pair.ip(2));
    assert_eq!(hw(&resolver.resolve(&peer, LONG).expect("a path")), pair.far_mac());
    let misses = resolver.stats().misses;
    for last in 10..20 {
        let other = format!("02:00:00:00:aa:{last}");
        pair.neighbour(2, &other);
        assert_eq!(hw(&resolver.checked(&peer, LONG).expect("a path")), other);
    }
    assert_eq!(resolver.stats().misses, misses, "the notifications told the addresses");
    // The real one, after the kernel has forgotten the wrong one.
    let other = "02:00:00:00:bb:01";
    pair.inside(&["link", "set", &pair.far, "address", other]);
    ip(&["neigh", "flush", "dev", &pair.near]);
    assert_eq!(hw(&resolver.checked(&peer, LONG).expect("a path")), other);
    // One that the kernel does not hold for true any more.
    ip(&["neigh", "replace", &pair.ip(2).to_string(), "dev", &pair.near, "nud", "failed"]);
    assert_eq!(hw(&resolver.checked(&peer, LONG).expect("it is asked again")), other);
    drop((directory, resolver));
}

/// More notifications than there is room for: what is dropped is not missed.
#[test]
fn lost_notifications() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    let (two, three) = (pair.ip(2).to_string(), pair.ip(3).to_string());
    let net = format!("10.99.{}.0/24", pair.number);
    let behind = to(Ipv4Addr::new(10, 99, pair.number, 5).into());
    ip(&["route", "add", &net, "via", &two]);
    assert_eq!(resolver.checked(&behind, LONG).expect("a path").next_hop, pair.ip(2));
    pair.neighbour(3, "02:00:00:00:00:01");
    let peer = to(pair.ip(3));
    assert_eq!(hw(&resolver.checked(&peer, LONG).expect("a path")), "02:00:00:00:00:01");
    let near = &pair.near;
    let flood: String = (0..8000_u32)
        .map(|n| {
            let state = if n % 2 == 0 { "stale" } else { "reachable" };
            format!(
                "neigh replace 10.77.{}.50 lladdr 02:00:00:00:00:50 dev {near} nud {state}\n",
                pair.number
            )
        })
        .collect();
    ip_batch(&flood);
    ip(&["route", "replace", &net, "via", &three]);
    pair.neighbour(3, "02:00:00:00:00:02");
    let before = resolver.stats();
    let path = resolver.checked(&behind, LONG).expect("a path");
    let after = resolver.stats();
    assert!(after.lost > before.lost, "there was room for all: {after:?}");
    assert_eq!((path.next_hop, hw(&path).as_str()), (pair.ip(3), "02:00:00:00:00:02"));
    assert_eq!(hw(&resolver.checked(&peer, LONG).expect("a path")), "02:00:00:00:00:02");
    // And what comes then is told again.
    pair.neighbour(3, "02:00:00:00:00:03");
    assert_eq!(hw(&resolver.checked(&peer, LONG).expect("a path")), "02:00:00:00:00:03");
    drop((directory, resolver));
}

/// Whatever changes, in whatever order, beside readers and a watcher: an answer after the command has
/// returned is what the kernel answers now.
#[test]
fn a_storm_of_changes() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    let near = &*pair.near;
    let hosts = [2, 3, 40, 41];
    for host in hosts {
        pair.neighbour(host, &format!("02:00:00:00:00:{host:02x}"));
    }
    let behind: IpAddr = Ipv4Addr::new(10, 99, pair.number, 5).into();
    let net = format!("10.99.{}.0/24", pair.number);
    ip(&["route", "add", &net, "via", &pair.ip(2).to_string()]);
    let peers: Vec<_> =
        hosts.map(|host| to(pair.ip(host))).into_iter().chain([to(behind)]).collect();
    let watcher = resolver.watch().expect("a watcher");
    let done = AtomicBool::new(false);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    peers.iter().for_each(|peer| {
                        let _ = resolver.resolve(peer, NO_TIME);
                    });
                    std::thread::yield_now();
                }
            });
        }
        for step in 0..150 {
            let host = hosts[next(4)];
            match next(3) {
                0 => pair.neighbour(host, &format!("02:00:00:00:{:02x}:{host:02x}", next(200))),
                1 => ip(&["route", "replace", &net, "via", &pair.ip(host).to_string()]),
                _ => ip(&["link", "set", near, "mtu", &(1300 + next(200)).to_string()]),
            }
            for peer in &peers {
                let checked = resolver.checked(peer, LONG).expect("a path");
                let fresh = resolver.fresh(peer, LONG).expect("a path");
                assert_eq!(checked, fresh, "step {step}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("{:?}", resolver.stats());
    watcher.stop().expect("it ran well");
    drop((directory, resolver));
}
