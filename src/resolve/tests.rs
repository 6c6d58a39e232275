//! The state machine over a host that does as it is told: changes between any two questions.

mod rows;
mod scripted;

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::gid::GidSnapshot;
use crate::net::{HwAddr, Interface, LocalAddress, Neighbour, NetSnapshot, Route, Told};
use crate::types::{Gid, GidEntry, GidType, IfName, PortNum};

use scripted::{Scripted, mac};

const NO_TIME: Duration = Duration::ZERO;
const E0: u32 = 2;
const E1: u32 = 3;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn own() -> IpAddr {
    ip("192.0.2.1")
}

fn peer() -> IpAddr {
    ip("192.0.2.77")
}

fn to_peer() -> Destination {
    Destination::new(peer())
}

fn on_link(ifindex: u32, source: IpAddr) -> Route {
    let kind = libc::RTN_UNICAST;
    Route { kind, ifindex, source: Some(source), ..Route::default() }
}

fn row(index: u32, address: &str, ifindex: u32, gid_type: GidType) -> GidEntry {
    let gid: Gid = ip(address).into();
    GidEntry::new(PortNum::FIRST, index, gid).with_type(gid_type).with_netdev(ifindex, None)
}

fn interface(ifindex: u32, name: &str, last: u8) -> Interface {
    let name = IfName::new(name).expect("a name");
    Interface::new(ifindex, name).with_up().with_hw_addr(HwAddr::new(&mac(last)).expect("a MAC"))
}

/// e0 with 192.0.2.1 and rxe0, whose rows are these; e1 with 198.51.100.1, 203.0.113.1 and no device.
fn directory(rows: &[GidEntry]) -> DirectorySnapshot {
    let addresses = [(E0, "192.0.2.1"), (E1, "198.51.100.1"), (E1, "203.0.113.1")];
    let addresses = addresses.map(|(ifindex, text)| LocalAddress::new(ifindex, ip(text), 24));
    let interfaces = vec![interface(E0, "e0", 0x10), interface(E1, "e1", 0x20).with_mtu(9000)];
    let net = NetSnapshot::from_parts(interfaces, addresses.to_vec());
    DirectorySnapshot::from_parts(vec![GidSnapshot::from_rows("rxe0", rows)], net)
}

/// The usual rows of e0: both types of its address.
fn rows() -> Vec<GidEntry> {
    vec![row(0, "192.0.2.1", E0, GidType::ROCE_V1), row(1, "192.0.2.1", E0, GidType::ROCE_V2)]
}

fn resolver(directory: DirectorySnapshot) -> (Resolver, Scripted) {
    let host = Scripted::new();
    host.route(peer(), on_link(E0, own()));
    let gids = Gids::Made(Cache::from_fn(directory, |_| None));
    (Resolver::over(gids, Box::new(host.clone())).expect("a resolver"), host)
}

fn usual() -> (Resolver, Scripted) {
    resolver(directory(&rows()))
}

/// Whether it becomes readable within this time.
fn readable(fd: &impl AsFd, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).expect("a short time");
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).expect("poll") == 1
}

fn hw(path: &Path) -> Option<u8> {
    path.next_hop_hw.map(|hw_addr| hw_addr.as_bytes()[5])
}

#[test]
fn a_known_neighbour_needs_no_probe_and_then_no_question() {
    let (resolver, host) = usual();
    host.neighbour(E0, peer(), libc::NUD_STALE, 7);
    assert_eq!(resolver.cached(&to_peer()), None);
    let path = resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    assert_eq!((path.source, path.next_hop, path.ifindex), (own(), peer(), E0));
    assert_eq!((&*path.gid.device, path.gid.index.get()), ("rxe0", 1), "RoCE v2");
    assert_eq!((path.hop_limit, path.mtu, hw(&path)), (64, 1500, Some(7)));
    assert_eq!(path.destination_gid(), Some(peer().into()));
    assert!(!path.is_local && !path.is_routed());
    assert_eq!(
        path.to_string(),
        "192.0.2.77 from 192.0.2.1: rxe0 port 1 index 1 on e0, next hop 192.0.2.77 at 02:00:00:00:00:07"
    );
    let asked = host.with(|script| script.asked);
    assert_eq!(resolver.cached(&to_peer()), Some(path.clone()));
    assert_eq!(resolver.resolve(&to_peer(), NO_TIME).expect("a hit"), path);
    assert_eq!(resolver.checked(&to_peer(), NO_TIME).expect("a hit"), path);
    assert_eq!(host.with(|script| (script.asked, script.probed.len())), (asked, 0));
    let stats = resolver.stats();
    assert_eq!((stats.hits, stats.misses, stats.probes), (3, 1, 0));
    resolver.fresh(&to_peer(), NO_TIME).expect("a path");
    assert_eq!(host.with(|script| script.asked), asked + 2);
}

#[test]
fn every_destination_has_a_path_of_its_own() {
    let (resolver, host) = usual();
    host.neighbour(E0, peer(), libc::NUD_STALE, 7);
    resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    for other in [to_peer().ifindex(E0), to_peer().mark(1), to_peer().source(own())] {
        assert_eq!(resolver.cached(&other), None, "{other}");
        resolver.resolve(&other, NO_TIME).expect("a path");
    }
}

/// The notification ends the wait, whoever takes it in.
#[test]
fn a_cold_neighbour_is_probed_once_and_waited_for() {
    let (resolver, host) = usual();
    let mut search = resolver.start(&to_peer());
    assert!(search.advance().is_pending());
    assert!(search.advance().is_pending());
    assert_eq!(host.with(|script| script.probed.clone()), [(E0, peer())]);
    assert!(!readable(&search, NO_TIME));
    host.neighbour(E0, peer(), libc::NUD_INCOMPLETE, 0);
    assert!(readable(&search, NO_TIME) && search.advance().is_pending());
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
    assert!(readable(&search, NO_TIME));
    assert_eq!(resolver.process_events().expect("taken in"), 1, "by somebody else");
    assert!(readable(&search, NO_TIME), "who tells the search");
    let Poll::Ready(Ok(path)) = search.advance() else { panic!("it has answered") };
    assert_eq!((hw(&path), resolver.stats().probes), (Some(7), 1));
    assert_eq!(resolver.cached(&to_peer()), Some(path));
}

#[test]
fn many_who_wait_for_one_neighbour() {
    let (resolver, host) = usual();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| resolver.resolve(&to_peer(), Duration::from_secs(60))))
            .collect();
        while resolver.stats().probes < 8 {
            assert!(begun.elapsed() < Duration::from_secs(20), "not all wait");
            std::thread::yield_now();
        }
        host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
        for waiting in waiting {
            let path = waiting.join().expect("no panic").expect("a path");
            assert_eq!(hw(&path), Some(7));
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[test]
fn a_neighbour_that_fails_is_remembered() {
    let (resolver, host) = usual();
    // What failed some time ago is asked again.
    host.neighbour(E0, peer(), libc::NUD_FAILED, 0);
    let mut search = resolver.start(&to_peer());
    assert!(search.advance().is_pending());
    host.neighbour(E0, peer(), libc::NUD_FAILED, 0);
    let error = match search.advance() {
        Poll::Ready(Err(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error, Error::Unreachable { remembered: None, .. }), "{error}");
    let asked = host.with(|script| (script.asked, script.probed.len()));
    let error = resolver.resolve(&to_peer(), Duration::from_secs(60)).expect_err("remembered");
    assert!(matches!(error, Error::Unreachable { remembered: Some(_), .. }), "{error}");
    assert!(
        error.to_string().starts_with("192.0.2.77 on e0 does not answer: found out "),
        "{error}"
    );
    assert_eq!(host.with(|script| (script.asked, script.probed.len())), asked);
    // It answers after all, and the kernel tells.
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 9);
    assert_eq!(hw(&resolver.resolve(&to_peer(), NO_TIME).expect("a path")), Some(9));
    let stats = resolver.stats();
    assert_eq!((stats.failures, stats.probes), (1, 1));
}

/// A failure that is over before it is told is none, and not remembered.
#[test]
fn a_neighbour_that_answers_while_it_is_given_up() {
    let (resolver, host) = usual();
    let mut search = resolver.start(&to_peer());
    assert!(search.advance().is_pending());
    host.neighbour(E0, peer(), libc::NUD_FAILED, 0);
    let (other, its_host) = (resolver.clone(), host.clone());
    host.with(|script| {
        script.meanwhile = Some(Box::new(move || {
            its_host.neighbour(E0, peer(), libc::NUD_REACHABLE, 9);
            other.process_events().expect("taken in");
        }));
    });
    match search.advance() {
        Poll::Ready(Ok(path)) => assert_eq!(hw(&path), Some(9)),
        other => panic!("{other:?}"),
    }
    assert_eq!(resolver.stats().failures, 0);
}

/// Who waits is never left with a descriptor that is readable and nothing to do.
#[test]
fn a_waiter_that_begins_while_it_is_told() {
    let (resolver, host) = usual();
    let (waiter, hop) = (Arc::new(work::Waiter::default()), (E0, peer()));
    let inner = &resolver.inner;
    inner.register(hop, &waiter);
    let mut set = None;
    inner.prepare_to_wait(&waiter, &mut set).expect("descriptors");
    let set = set.expect("it is made");
    for round in 0..1_000 {
        host.neighbour(E0, peer(), libc::NUD_STALE, 7);
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                inner.take_in().expect("taken in")
            });
            barrier.wait();
            // Some time while the other takes in.
            (0..round * 16).for_each(|_| std::hint::spin_loop());
            inner.begin(&waiter);
        });
        assert_eq!(readable(&set, NO_TIME), waiter.has_changed());
        inner.begin(&waiter);
    }
    inner.unregister(hop, &waiter);
}

#[test]
fn no_more_patience() {
    let (resolver, host) = usual();
    let mut search = resolver.start(&to_peer());
    let begun = Instant::now();
    let error = search.wait(Duration::from_millis(20)).expect_err("nobody answers");
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert!(matches!(error, Error::ResolveTimeout { neighbour, .. } if neighbour == peer()));
    assert!(error.to_string().starts_with("192.0.2.77 on e0 has not answered within "), "{error}");
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
    assert_eq!(hw(&search.wait(NO_TIME).expect("it has answered now")), Some(7));
    assert_eq!(host.with(|script| script.probed.len()), 1);
}

#[test]
fn a_neighbour_whose_hardware_address_changes() {
    let (resolver, host) = usual();
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
    resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    host.neighbour(E0, peer(), libc::NUD_STALE, 7);
    host.neighbour(E0, peer(), libc::NUD_STALE, 8);
    resolver.process_events().expect("taken in");
    let asked = host.with(|script| script.asked);
    assert_eq!(resolver.cached(&to_peer()).as_ref().and_then(hw), Some(8));
    assert_eq!(host.with(|script| script.asked), asked, "from the notification alone");
    // And one that the kernel forgets.
    host.forget(E0, peer());
    assert!(matches!(resolver.checked(&to_peer(), NO_TIME), Err(Error::ResolveTimeout { .. })));
    assert_eq!(resolver.stats().emptied, 0);
}

/// What changes while it is asked for, and is taken in by somebody else, is not kept as it was.
#[test]
fn a_change_between_question_and_answer() {
    let (resolver, host) = usual();
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
    resolver.process_events().expect("taken in");
    let (other, its_host) = (resolver.clone(), host.clone());
    // The first question is for the route: so the second is the one for the neighbour.
    let change_neighbour = move || {
        its_host.neighbour(E0, peer(), libc::NUD_REACHABLE, 8);
        other.process_events().expect("taken in");
    };
    let then = host.clone();
    let meanwhile = move || then.with(|script| script.meanwhile = Some(Box::new(change_neighbour)));
    host.with(|script| script.meanwhile = Some(Box::new(meanwhile)));
    let path = resolver.resolve(&to_peer(), NO_TIME).expect("what the kernel answered");
    assert_eq!(hw(&path), Some(7));
    assert_eq!(resolver.cached(&to_peer()), None, "it was not kept");
    assert_eq!(hw(&resolver.resolve(&to_peer(), NO_TIME).expect("a path")), Some(8));

    // And a route that changes while it is asked for.
    let (resolver, host) = usual();
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
    host.neighbour(E0, ip("192.0.2.254"), libc::NUD_REACHABLE, 9);
    let (other, its_host) = (resolver.clone(), host.clone());
    host.with(|script| {
        script.meanwhile = Some(Box::new(move || {
            let gateway = Some(ip("192.0.2.254"));
            its_host.route(peer(), Route { gateway, ..on_link(E0, own()) });
            its_host.tell(Told::Anything);
            other.process_events().expect("taken in");
        }));
    });
    resolver.resolve(&to_peer(), NO_TIME).expect("what the kernel answered");
    assert_eq!(resolver.cached(&to_peer()), None, "it was not kept");
    let path = resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    assert_eq!((path.next_hop, hw(&path)), (ip("192.0.2.254"), Some(9)));
    assert!(path.is_routed());
}

#[test]
fn a_route_that_changes_empties_all() {
    let (resolver, host) = usual();
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
    host.neighbour(E0, ip("192.0.2.254"), libc::NUD_REACHABLE, 9);
    resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    let (mtu, hop_limit) = (Some(1280), Some(3));
    let gateway = Some(ip("192.0.2.254"));
    host.route(peer(), Route { gateway, mtu, hop_limit, ..on_link(E0, own()) });
    host.tell(Told::Anything);
    assert!(resolver.cached(&to_peer()).is_some(), "nobody has taken it in");
    let path = resolver.checked(&to_peer(), NO_TIME).expect("a path");
    assert_eq!(
        (path.next_hop, hw(&path), path.mtu, path.hop_limit),
        (ip("192.0.2.254"), Some(9), 1280, 3)
    );
    assert_eq!(resolver.stats().emptied, 1);
    host.with(|script| script.routes.clear());
    host.tell(Told::Anything);
    let error = resolver.checked(&to_peer(), NO_TIME).expect_err("no route").to_string();
    assert_eq!(error, "no route to 192.0.2.77: no route of this host leads there (ENETUNREACH)");
}

/// One who waits for a neighbour that a changed route no longer leads to begins anew.
#[test]
fn a_route_that_changes_during_the_wait() {
    let (resolver, host) = usual();
    let mut search = resolver.start(&to_peer());
    assert!(search.advance().is_pending());
    host.neighbour(E0, ip("192.0.2.254"), libc::NUD_PERMANENT, 9);
    let gateway = Some(ip("192.0.2.254"));
    host.route(peer(), Route { gateway, ..on_link(E0, own()) });
    host.tell(Told::Anything);
    resolver.process_events().expect("taken in by somebody else");
    assert!(readable(&search, NO_TIME));
    assert_eq!(hw(&search.wait(NO_TIME).expect("a path")), Some(9));
    assert_eq!(resolver.stats().misses, 1);
}

/// The same when it changes before the wait has begun, and is taken in by somebody else.
#[test]
fn a_route_that_changes_just_before_the_wait() {
    for questions in 1..=2 {
        let (resolver, host) = usual();
        let (other, its_host) = (resolver.clone(), host.clone());
        let mut change: Box<dyn FnOnce() + Send> = Box::new(move || {
            its_host.neighbour(E0, ip("192.0.2.254"), libc::NUD_PERMANENT, 9);
            let gateway = Some(ip("192.0.2.254"));
            its_host.route(peer(), Route { gateway, ..on_link(E0, own()) });
            its_host.tell(Told::Anything);
            other.process_events().expect("taken in");
        });
        if questions == 2 {
            let then = host.clone();
            change = Box::new(move || then.with(|script| script.meanwhile = Some(change)));
        }
        host.with(|script| script.meanwhile = Some(change));
        let mut search = resolver.start(&to_peer());
        assert!(search.advance().is_pending());
        assert!(readable(&search, NO_TIME), "nobody would wake it");
        assert_eq!(hw(&search.wait(NO_TIME).expect("a path")), Some(9));
    }
}

#[test]
fn a_neighbour_forgotten_again_and_again_is_not_probed_for_ever() {
    let (resolver, host) = usual();
    let mut search = resolver.start(&to_peer());
    for _ in 0..10 {
        assert!(search.advance().is_pending());
        host.forget(E0, peer());
    }
    assert_eq!(host.with(|script| script.probed.len()), 3);
}

#[test]
fn what_is_no_destination() {
    let (resolver, host) = usual();
    for text in ["0.0.0.0", "::", "fe80::1"] {
        let error = resolver.resolve(&Destination::new(ip(text)), NO_TIME).expect_err("no host");
        assert!(matches!(error, Error::NoRoute { errno: None, .. }), "{error}");
    }
    assert_eq!(host.with(|script| script.asked), 0);
    host.route(ip("192.0.2.255"), Route { kind: libc::RTN_BROADCAST, ..on_link(E0, own()) });
    let error = resolver.resolve(&Destination::new(ip("192.0.2.255")), NO_TIME).expect_err("all");
    assert_eq!(error.to_string(), "no route to 192.0.2.255: it is a broadcast address");
}

#[test]
fn a_watcher_takes_in() {
    let (resolver, host) = usual();
    let watcher = resolver.watch().expect("a thread");
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 7);
    resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 8);
    let deadline = Instant::now() + Duration::from_secs(20);
    while resolver.cached(&to_peer()).as_ref().and_then(hw) != Some(8) {
        assert!(Instant::now() < deadline, "it was not taken in");
        std::thread::yield_now();
    }
    watcher.stop().expect("it ran well");
}

#[test]
fn nothing_is_left_of_a_search_that_is_dropped() {
    let (resolver, host) = usual();
    let mut search = resolver.start(&to_peer());
    assert!(search.advance().is_pending());
    assert_eq!(Arc::strong_count(&resolver.inner), 3);
    drop(search);
    assert_eq!(Arc::strong_count(&resolver.inner), 1);
    host.neighbour(E0, peer(), libc::NUD_REACHABLE, 8);
    assert_eq!(resolver.process_events().expect("taken in"), 1);
}

proptest! {
    /// Whatever happens in whatever order: once it is taken in, the answer is what the kernel would
    /// give now.
    #[test]
    fn the_answer_is_always_the_kernels(steps in prop::collection::vec((0_u8..5, 0_u8..3, 0_u8..4), 1..60)) {
        let (resolver, host) = usual();
        let hops = [peer(), ip("192.0.2.254"), ip("192.0.2.253")];
        for (what, hop, last) in steps {
            let next_hop = hops[usize::from(hop)];
            match what {
                0 => host.neighbour(E0, next_hop, libc::NUD_REACHABLE, last),
                1 => host.neighbour(E0, next_hop, libc::NUD_STALE, last),
                2 => host.forget(E0, next_hop),
                3 => host.neighbour(E0, next_hop, libc::NUD_FAILED, last),
                _ => {
                    let gateway = Some(next_hop).filter(|hop| *hop != peer());
                    host.route(peer(), Route { gateway, ..on_link(E0, own()) });
                    host.tell(Told::Anything);
                }
            }
            let expected = host.with(|script| {
                let next_hop = script.routes[&peer()].gateway.unwrap_or(peer());
                script.neighbours.get(&(E0, next_hop)).filter(|there| there.is_usable()).map(|there| {
                    (next_hop, there.hw_addr)
                })
            });
            let path = resolver.checked(&to_peer(), NO_TIME).ok();
            prop_assert_eq!(path.map(|path| (path.next_hop, path.next_hop_hw)), expected);
        }
    }
}
