//! From a peer's address to the path there, on a real kernel: routes, rules, next hops and neighbours
//! that come, change, fail and go.
//!
//! Each test is alone: it opens a directory, which delays the removal of every device.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::{Destination, DeviceList, Error, GidDirectory, Path, Resolver};

use super::rig::{Rig, alone, ip, ip_batch, run, wait_until};

const NO_TIME: Duration = Duration::ZERO;
/// No test needs as long.
const LONG: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;

/// A veth pair: the near end here, with an rxe device, the far end in a network namespace of its own.
struct Pair {
    device: String,
    near: String,
    far: String,
    namespace: String,
    number: u8,
}

impl Pair {
    /// With 10.77.`n`.1/24 and 2001:db8:77:`n`::1/64 here, and the same with 2 and 3 there.
    fn new(directory: &GidDirectory) -> Pair {
        let pair = Pair::bare();
        pair.add_near("10.77", 1);
        pair.add_far("10.77");
        wait_for(directory, pair.ip(1), &pair.device);
        pair
    }

    /// Without an address.
    fn bare() -> Pair {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pair = Pair {
            device: format!("pair{number}"),
            near: format!("n{number}"),
            far: format!("f{number}"),
            namespace: format!("far{number}"),
            number,
        };
        let (near, far) = (&*pair.near, &*pair.far);
        ip(&["netns", "add", &pair.namespace]);
        ip_batch(&format!(
            "link add {near} type veth peer name {far}\n\
             link set {far} address {} netns {}\n\
             link set {near} up\n",
            pair.far_mac(),
            pair.namespace
        ));
        pair.inside(&["link", "set", far, "up"]);
        run("/bin/rdma", &["link", "add", &pair.device, "type", "rxe", "netdev", near]);
        pair
    }

    fn far_mac(&self) -> String {
        format!("02:00:00:00:77:{:02x}", self.number)
    }

    fn inside(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.namespace], arguments].concat());
    }

    fn ip(&self, host: u8) -> IpAddr {
        Ipv4Addr::new(10, 77, self.number, host).into()
    }

    fn ipv6(&self, host: u8) -> IpAddr {
        format!("2001:db8:77:{:x}::{host:x}", self.number).parse().expect("an address")
    }

    fn add_near(&self, net: &str, host: u8) {
        let (near, number) = (&self.near, self.number);
        ip_batch(&format!("addr add {net}.{number}.{host}/24 dev {near}\n"));
        ip(&["addr", "add", &format!("{}/64", self.ipv6(host)), "dev", near, "nodad"]);
    }

    fn add_far(&self, net: &str) {
        for host in [2, 3] {
            self.inside(&[
                "addr",
                "add",
                &format!("{net}.{}.{host}/24", self.number),
                "dev",
                &self.far,
            ]);
            let ipv6 = format!("{}/64", self.ipv6(host));
            self.inside(&["addr", "add", &ipv6, "dev", &self.far, "nodad"]);
        }
    }

    /// Makes the kernel ask for neighbours every 50 ms, so that it gives up in a fifth of a second.
    fn ask_fast(&self) {
        let file = format!("/proc/sys/net/ipv4/neigh/{}/retrans_time_ms", self.near);
        fs::write(file, "50").expect("the kernel takes it");
    }

    fn neighbour(&self, host: u8, hw_addr: &str) {
        let address = self.ip(host).to_string();
        ip(&[
            "neigh",
            "replace",
            &address,
            "lladdr",
            hw_addr,
            "dev",
            &self.near,
            "nud",
            "reachable",
        ]);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A test that failed may still hold the device open.
        if !std::thread::panicking() {
            ip(&["link", "del", &self.near]);
            ip(&["netns", "del", &self.namespace]);
        }
    }
}

fn wait_for(directory: &GidDirectory, address: IpAddr, device: &str) {
    wait_until("the address is found", || {
        let snapshot = directory.checked().expect("a checked lookup");
        let mut rows = snapshot.by_ip(address);
        rows.any(|row| snapshot.device_of(row).is_some_and(|found| found.name() == device))
    });
}

fn open() -> (GidDirectory, Resolver) {
    let directory = GidDirectory::open().expect("a directory");
    let resolver = Resolver::open(&directory).expect("a resolver");
    (directory, resolver)
}

fn to(address: IpAddr) -> Destination {
    Destination::new(address)
}

fn hw(path: &Path) -> String {
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
