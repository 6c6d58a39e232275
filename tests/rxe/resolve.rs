//! From a peer's address to the path there, on a real kernel: known, cold and absent neighbours, and
//! what has no path.
//!
//! Each test is alone: it opens a directory, which delays the removal of every device.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_verbs::{Destination, DeviceList, Error, GidDirectory, Path, Resolver};

use super::pair::{Pair, wait_for};
use super::rig::{Rig, alone, ip, wait_until};

pub(crate) const NO_TIME: Duration = Duration::ZERO;
/// No test needs as long.
pub(crate) const LONG: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;

pub(crate) fn open() -> (GidDirectory, Resolver) {
    let directory = GidDirectory::open().expect("a directory");
    let resolver = Resolver::open(&directory).expect("a resolver");
    (directory, resolver)
}

pub(crate) fn to(address: IpAddr) -> Destination {
    Destination::new(address)
}

pub(crate) fn hw(path: &Path) -> String {
    path.next_hop_hw.map(|hw_addr| hw_addr.to_string()).unwrap_or_default()
}

/// The file system tells nothing of a name as odd as this one: it stands in a trace.
fn mark(what: &str) {
    let _ = fs::metadata(format!("/resolve-{what}"));
}

#[test]
fn a_known_neighbour_is_answered_inline() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    pair.neighbour(9, "02:00:00:00:00:09");
    let path = resolver.resolve(&to(pair.ip(9)), NO_TIME).expect("a path");
    assert_eq!(
        (path.source, path.next_hop, hw(&path).as_str()),
        (pair.ip(1), pair.ip(9), "02:00:00:00:00:09")
    );
    assert_eq!(
        (&*path.gid.device, path.netdev.expect("a name").as_str()),
        (&*pair.device, &*pair.near)
    );
    assert_eq!((path.mtu, path.hop_limit, path.is_local), (1500, 64, false));
    let snapshot = directory.checked().expect("checked");
    let row =
        snapshot.row(&pair.device, path.gid.port, path.gid.index.get().into()).expect("the row");
    assert_eq!((row.entry().ip(), row.entry().gid()), (Some(pair.ip(1)), path.source_gid()));
    assert_eq!(resolver.checked(&to(pair.ip(9)), NO_TIME).expect("a hit"), path);
    assert_eq!(resolver.cached(&to(pair.ip(9))), Some(path));
    let stats = resolver.stats();
    assert_eq!((stats.misses, stats.probes), (1, 0), "{stats:?}");
    drop((snapshot, directory, resolver));
}

#[test]
fn a_cold_neighbour_ends_with_the_notification() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    for peer in [pair.ip(2), pair.ipv6(2)] {
        let begun = Instant::now();
        let path = resolver.resolve(&to(peer), LONG).expect("it answers");
        println!("cold {peer}: {:?}", begun.elapsed());
        assert_eq!((path.next_hop, hw(&path)), (peer, pair.far_mac()));
        assert_eq!(&*path.gid.device, &*pair.device);
        let mut times: Vec<_> = (0..1000)
            .map(|_| {
                let begun = Instant::now();
                assert_eq!(resolver.resolve(&to(peer), NO_TIME).expect("a hit"), path);
                begun.elapsed()
            })
            .collect();
        times.sort();
        println!("hit {peer}: min {:?}, median {:?}", times[0], times[500]);
    }
    let stats = resolver.stats();
    assert_eq!((stats.probes, stats.misses, stats.hits), (2, 2, 2000), "{stats:?}");
    drop((directory, resolver));
}

/// Link-local addresses need the interface, and then are found.
#[test]
fn a_link_local_peer() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    pair.inside(&["addr", "add", "fe80::77/64", "dev", &pair.far, "nodad"]);
    ip(&["addr", "add", "fe80::1/64", "dev", &pair.near, "nodad"]);
    wait_for(&directory, "fe80::1".parse().expect("an address"), &pair.device);
    let peer = to("fe80::77".parse().expect("an address"));
    let error = resolver.resolve(&peer, LONG).expect_err("which one?");
    assert!(matches!(error, Error::NoRoute { .. }), "{error}");
    let snapshot = directory.checked().expect("checked");
    let ifindex = snapshot.net().by_name(&pair.near).expect("it is there").ifindex();
    let path = resolver.resolve(&peer.ifindex(ifindex), LONG).expect("it answers");
    assert_eq!((hw(&path), path.ifindex), (pair.far_mac(), ifindex));
    assert_eq!(path.gid.row.ip(), Some(path.source));
    drop((snapshot, directory, resolver));
}

/// Many at once: one kernel's answer ends all their waits, whoever takes it in.
#[test]
fn many_threads_and_a_watcher() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    let watcher = resolver.watch().expect("a watcher");
    for round in 0..10 {
        let peer = to(pair.ip(2 + round % 2));
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..16).map(|_| scope.spawn(|| resolver.resolve(&peer, LONG))).collect();
            for thread in threads {
                let path = thread.join().expect("no panic").expect("it answers");
                assert_eq!(hw(&path), pair.far_mac());
            }
        });
        ip(&["neigh", "flush", "dev", &pair.near]);
        wait_until("it is forgotten", || resolver.cached(&peer).is_none());
    }
    watcher.stop().expect("it ran well");
    drop((directory, resolver));
}

#[test]
fn a_neighbour_that_fails() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    let begun = Instant::now();
    let error = resolver.resolve(&to(pair.ip(201)), Duration::from_millis(30)).expect_err("nobody");
    assert!(matches!(error, Error::ResolveTimeout { .. }), "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(30));
    pair.ask_fast();
    let absent = to(pair.ip(200));
    let begun = Instant::now();
    let error = resolver.resolve(&absent, LONG).expect_err("nobody");
    println!("given up after {:?}", begun.elapsed());
    let Error::Unreachable { neighbour, netdev, remembered: None } = error else {
        panic!("{error}")
    };
    assert_eq!((neighbour, netdev.as_str()), (pair.ip(200), &*pair.near));
    let begun = Instant::now();
    let error = resolver.resolve(&absent, LONG).expect_err("nobody");
    assert!(matches!(error, Error::Unreachable { remembered: Some(_), .. }), "{error}");
    println!("{error} (told in {:?})", begun.elapsed());
    assert_eq!(resolver.stats().failures, 1);
    // It appears, and is found when the memory of it is over.
    pair.inside(&["addr", "add", &format!("{}/24", pair.ip(200)), "dev", &pair.far]);
    wait_until("it is found", || resolver.resolve(&absent, LONG).is_ok());
    drop((directory, resolver));
}

/// Four ways to fail, four texts (C67).
#[test]
fn no_route_and_no_device() {
    let _alone = alone();
    let (directory, resolver) = open();
    let pair = Pair::new(&directory);
    ip(&["link", "add", "plain", "type", "dummy"]);
    ip(&["link", "set", "plain", "up"]);
    ip(&["addr", "add", "10.96.0.1/24", "dev", "plain"]);
    let error = resolver.checked(&to([10, 96, 0, 2].into()), LONG).expect_err("no device");
    println!("{error}");
    let Error::NoDeviceForAddress(told) = &error else { panic!("{error}") };
    assert_eq!(told.address, IpAddr::from([10, 96, 0, 1]));
    assert!(told.available.iter().any(|there| there.address == pair.ip(1)
        && *there.device == *pair.device
        && there.netdev.is_some_and(|netdev| netdev.as_str() == pair.near)));
    let own = resolver.checked(&to([10, 96, 0, 1].into()), LONG).expect_err("no device");
    assert!(matches!(own, Error::NoDeviceForAddress(_)), "{own}");
    let loopback = resolver.checked(&to([127, 0, 0, 1].into()), LONG).expect_err("no device");
    assert!(matches!(loopback, Error::NoDeviceForAddress(_)), "{loopback}");
    let source = to(pair.ip(2)).source([10, 95, 0, 1].into());
    let source = resolver.checked(&source, LONG).expect_err("not ours");
    println!("{source}");
    assert!(source.to_string().contains("it is not an address of this host"), "{source}");
    let other = to(pair.ip(2)).source([10, 96, 0, 1].into());
    let other = resolver.checked(&other, LONG).expect_err("the address of another interface");
    assert!(matches!(other, Error::NoDeviceForAddress(_)), "{other}");
    for (nowhere, word) in [
        ([100, 64, 0, 9], "ENETUNREACH"),
        ([224, 0, 0, 9], "multicast"),
        ([10, 96, 0, 255], "broadcast"),
    ] {
        let error = resolver.checked(&to(nowhere.into()), LONG).expect_err("no route");
        println!("{error}");
        assert!(
            matches!(error, Error::NoRoute { .. }) && error.to_string().contains(word),
            "{error}"
        );
    }
    ip(&["link", "del", "plain"]);
    drop((directory, resolver));
}

/// To an address of this host by its own device, and on a link without neighbours, as a dummy is.
#[test]
fn own_addresses_and_links_without_neighbours() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let (directory, resolver) = open();
    let number = rig.number();
    let own: IpAddr = Ipv4Addr::new(198, 18, number, 1).into();
    ip(&["addr", "add", &format!("{own}/24"), "dev", &rig.netdev]);
    wait_for(&directory, own, &rig.device);
    let path = resolver.resolve(&to(own), NO_TIME).expect("a path");
    let mac = fs::read_to_string(format!("/sys/class/net/{}/address", rig.netdev)).expect("a file");
    assert!(path.is_local);
    assert_eq!(
        (path.source, &*path.gid.device, hw(&path).as_str()),
        (own, &*rig.device, mac.trim())
    );
    let six: IpAddr = format!("2001:db8:18:{number:x}::1").parse().expect("an address");
    ip(&["addr", "add", &format!("{six}/64"), "dev", &rig.netdev, "nodad"]);
    wait_for(&directory, six, &rig.device);
    for local in [to(six), to(own).source(own), to(six).source(six)] {
        let path = resolver.checked(&local, NO_TIME).expect("a path");
        assert!(path.is_local && path.source == local.ip(), "{path}");
        assert_eq!((&*path.gid.device, hw(&path).as_str()), (&*rig.device, mac.trim()));
    }
    let peer = Ipv4Addr::new(198, 18, number, 77).into();
    let path = resolver.resolve(&to(peer), NO_TIME).expect("a path");
    assert_eq!(
        (path.source, &*path.gid.device, hw(&path).as_str()),
        (own, &*rig.device, mac.trim())
    );
    assert_eq!(resolver.stats().probes, 0);
    drop((directory, resolver));
}

/// What another user does, who may neither change neighbours nor open sockets of raw packets.
#[test]
#[ignore = "the test below runs it as another user"]
fn as_nobody() {
    let peer: IpAddr =
        std::env::var("RDMA_TEST_PEER").expect("a peer").parse().expect("an address");
    let (_directory, resolver) = open();
    let path = resolver.resolve(&to(peer), LONG).expect("it answers");
    assert_eq!(hw(&path), std::env::var("RDMA_TEST_MAC").expect("a MAC"));
    assert_eq!(resolver.stats().probes, 1);
}

#[test]
fn an_ordinary_user_may() {
    let _alone = alone();
    let directory = GidDirectory::open().expect("a directory");
    let pair = Pair::new(&directory);
    for device in &DeviceList::new().expect("devices can be listed") {
        fs::set_permissions(device.node(), fs::Permissions::from_mode(0o666)).expect("chmod");
    }
    for peer in [pair.ip(2), pair.ipv6(2)] {
        let output = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "resolve::as_nobody", "--ignored", "--nocapture"])
            .env("RDMA_TEST_PEER", peer.to_string())
            .env("RDMA_TEST_MAC", pair.far_mac())
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .expect("the child starts");
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
    }
    drop(directory);
}

/// Ten thousand answers, between two marks in a trace.
#[test]
#[ignore = "the test below runs it under strace"]
fn ten_thousand_hits() {
    let peer: IpAddr =
        std::env::var("RDMA_TEST_PEER").expect("a peer").parse().expect("an address");
    let (_directory, resolver) = open();
    let peer = to(peer);
    resolver.resolve(&peer, LONG).expect("a path");
    mark("begin");
    let begun = (0..10_000).filter(|_| resolver.resolve(&peer, LONG).is_ok()).count();
    mark("end");
    assert_eq!(begun, 10_000);
}

#[test]
fn a_hit_makes_no_system_call() {
    let _alone = alone();
    let directory = GidDirectory::open().expect("a directory");
    let pair = Pair::new(&directory);
    let trace = "/tmp/resolve-trace";
    let output = Command::new("strace")
        .args(["-f", "-o", trace])
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "resolve::ten_thousand_hits", "--ignored", "--nocapture"])
        .env("RDMA_TEST_PEER", pair.ip(2).to_string())
        .output()
        .expect("strace starts");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{out}");
    let trace = fs::read_to_string(trace).expect("a trace");
    let at = |mark: &str| {
        let found = trace.lines().position(|line| line.contains(mark));
        found.unwrap_or_else(|| panic!("no {mark} in {trace}"))
    };
    let (begin, end) = (at("/resolve-begin"), at("/resolve-end"));
    let between: Vec<_> = trace.lines().take(end).skip(begin + 1).collect();
    assert!(between.is_empty(), "{between:#?}");
    drop(directory);
}
