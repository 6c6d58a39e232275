//! The state machine over a host that does as it is told: changes between any two questions.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::host::Host;
use super::*;
use crate::gid::GidSnapshot;
use crate::net::{
    HwAddr, Interface, LocalAddress, Neighbour, NetSnapshot, Reading, Route, RouteQuestion, Told,
};
use crate::types::{Gid, GidEntry, GidType, IfName, PortNum};

const NO_TIME: Duration = Duration::ZERO;
const E0: u32 = 2;
const E1: u32 = 3;

/// What the scripted kernel has, and what was done to it.
#[derive(Default)]
struct Script {
    routes: HashMap<IpAddr, Route>,
    neighbours: HashMap<(u32, IpAddr), Neighbour>,
    news: VecDeque<Told>,
    probed: Vec<(u32, IpAddr)>,
    asked: usize,
    /// Done when the answer to a question is made up and not given yet.
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Clone)]
struct Scripted {
    script: Arc<Mutex<Script>>,
    /// Readable when there is news.
    readable: Arc<OwnedFd>,
}

impl Scripted {
    fn new() -> Scripted {
        let readable = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Scripted { script: Arc::default(), readable: Arc::new(readable.expect("an eventfd")) }
    }

    fn with<R>(&self, change: impl FnOnce(&mut Script) -> R) -> R {
        change(&mut self.script.lock().expect("no test panics while it holds this"))
    }

    fn tell(&self, told: Told) {
        self.with(|script| script.news.push_back(told));
        rustix::io::write(&*self.readable, &1_u64.to_ne_bytes()).expect("an eventfd");
    }

    /// The neighbour is this now, and the kernel tells of it.
    fn neighbour(&self, ifindex: u32, ip: IpAddr, state: u16, last: u8) {
        let hw_addr = HwAddr::new(&mac(last));
        let neighbour = Neighbour { ifindex, ip, hw_addr, state };
        self.with(|script| script.neighbours.insert((ifindex, ip), neighbour));
        self.tell(Told::Neighbour(neighbour));
    }

    fn forget(&self, ifindex: u32, ip: IpAddr) {
        self.with(|script| script.neighbours.remove(&(ifindex, ip)));
        self.tell(Told::Neighbour(Neighbour { ifindex, ip, hw_addr: None, state: 0 }));
    }

    fn route(&self, to: IpAddr, route: Route) {
        self.with(|script| script.routes.insert(to, route));
    }

    /// An answer, and then what is to happen before it is given.
    fn answer<R>(&self, answer: impl FnOnce(&Script) -> R) -> R {
        let (answer, meanwhile) = self.with(|script| {
            script.asked += 1;
            (answer(script), script.meanwhile.take())
        });
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        answer
    }
}

impl Host for Scripted {
    fn route(&self, question: &RouteQuestion) -> Result<Result<Route, Errno>> {
        Ok(self.answer(|script| script.routes.get(&question.destination).copied()))
            .map(|route| route.ok_or(Errno::ENETUNREACH))
    }

    fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>> {
        Ok(self.answer(|script| script.neighbours.get(&(ifindex, ip)).copied()))
    }

    fn probe(&self, ifindex: u32, ip: IpAddr) -> Result<()> {
        self.with(|script| script.probed.push((ifindex, ip)));
        Ok(())
    }

    fn drain(&self, _: &mut Reading, tell: &mut dyn FnMut(Told)) -> Result<()> {
        let _ = rustix::io::read(&*self.readable, &mut [0; 8]);
        let news = self.with(|script| std::mem::take(&mut script.news));
        news.into_iter().for_each(tell);
        Ok(())
    }

    fn news(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

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
fn an_address_of_this_host() {
    let (resolver, host) = usual();
    let local =
        Route { kind: libc::RTN_LOCAL, ifindex: 1, source: Some(own()), ..Route::default() };
    host.route(own(), local);
    let path = resolver.resolve(&Destination::new(own()), NO_TIME).expect("a path");
    assert!(path.is_local && !path.is_routed());
    assert_eq!((path.next_hop, path.ifindex, hw(&path)), (own(), E0, Some(0x10)));
    assert_eq!(path.to_string(), "192.0.2.1 from 192.0.2.1: rxe0 port 1 index 1 on e0, this host");
    assert_eq!(resolver.cached(&Destination::new(own())), Some(path));
    assert!(host.with(|script| script.probed.is_empty()));
}

#[test]
fn links_without_neighbours() {
    for (flag, expected) in [
        (libc::IFF_NOARP, Some(0x10)),
        (libc::IFF_LOOPBACK, Some(0x10)),
        (libc::IFF_POINTOPOINT, None),
    ] {
        let e0 = interface(E0, "e0", 0x10);
        let flags = e0.flags() | flag as u32;
        let local = vec![LocalAddress::new(E0, own(), 24)];
        let net = NetSnapshot::from_parts(vec![e0.with_flags(flags)], local);
        let gids = vec![GidSnapshot::from_rows("rxe0", &rows())];
        let (resolver, host) = resolver(DirectorySnapshot::from_parts(gids, net));
        let path = resolver.resolve(&to_peer(), NO_TIME).expect("a path");
        assert_eq!(hw(&path), expected);
        assert_eq!(resolver.cached(&to_peer()), Some(path));
        // One given by hand goes before.
        host.neighbour(E0, peer(), libc::NUD_PERMANENT, 7);
        assert_eq!(hw(&resolver.checked(&to_peer(), NO_TIME).expect("a path")), Some(7));
        assert!(host.with(|script| script.probed.is_empty()));
    }
}

/// On IPoIB the row is that of the interface's port, and the peer's GID is in its hardware address.
#[test]
fn an_infiniband_port() {
    let hw_of = |id: u8| -> Vec<u8> {
        let mut bytes = vec![0x80, 0, 2, 8, 0xfe, 0x80, 0, 0, 0, 0, 0, 0];
        bytes.extend([0, 2, 0xc9, 3, 0, 0x41, 0xe5, id]);
        bytes
    };
    let gid_of =
        |id: u8| Gid::from_parts(0xfe80_0000_0000_0000, 0x0002_c903_0041_e500 | u64::from(id));
    let hw_addr = HwAddr::new(&hw_of(0x71)).expect("20 bytes");
    let name = IfName::new("ib0").expect("a name");
    let ib0 = Interface::infiniband(E0, name).with_up().with_hw_addr(hw_addr);
    let net = NetSnapshot::from_parts(vec![ib0], vec![LocalAddress::new(E0, own(), 24)]);
    let rows = [GidEntry::new(PortNum::FIRST, 0, gid_of(0x71))];
    let gids = vec![GidSnapshot::from_rows("mlx4_0", &rows)];
    let (resolver, host) = resolver(DirectorySnapshot::from_parts(gids, net));
    let hw_addr = HwAddr::new(&hw_of(0x99));
    let state = libc::NUD_REACHABLE;
    let neighbour = Neighbour { ifindex: E0, ip: peer(), hw_addr, state };
    host.with(|script| script.neighbours.insert((E0, peer()), neighbour));
    let path = resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    assert_eq!((path.source_gid(), path.destination_gid()), (gid_of(0x71), Some(gid_of(0x99))));
    assert_eq!((&*path.gid.device, path.next_hop_hw), ("mlx4_0", hw_addr));
    assert_eq!(resolver.cached(&to_peer()), Some(path));
    // And one whose source has none lists the address that has.
    host.route(ip("10.0.0.1"), on_link(E0 + 9, ip("10.0.0.9")));
    let error = resolver.resolve(&Destination::new(ip("10.0.0.1")), NO_TIME).expect_err("none");
    assert!(
        error.to_string().ends_with("addresses that have one: 192.0.2.1 (mlx4_0 on ib0)"),
        "{error}"
    );
}

/// RoCE v1 is for the link only, and an index beyond 255 for nobody.
#[test]
fn which_rows_will_do() {
    let routed = Route { gateway: Some(ip("192.0.2.254")), ..on_link(E0, own()) };
    let index = |rows: &[GidEntry], route: Route| {
        let (resolver, host) = resolver(directory(rows));
        for next_hop in [peer(), ip("192.0.2.254")] {
            host.neighbour(E0, next_hop, libc::NUD_STALE, 7);
        }
        host.route(peer(), route);
        resolver.resolve(&to_peer(), NO_TIME).ok().map(|path| path.gid.index.get())
    };
    let v1 = row(4, "192.0.2.1", E0, GidType::ROCE_V1);
    assert_eq!(index(&[v1], on_link(E0, own())), Some(4));
    assert_eq!(index(&[v1], routed), None);
    assert_eq!(
        index(&[v1, row(300, "192.0.2.1", E0, GidType::ROCE_V2)], on_link(E0, own())),
        Some(4)
    );
    let (two, five) =
        (row(2, "192.0.2.1", E0, GidType::ROCE_V2), row(5, "192.0.2.1", E0, GidType::ROCE_V2));
    assert_eq!(index(&[v1, two, five], routed), Some(2));
    assert_eq!(index(&[row(2, "192.0.2.1", E0, GidType::from_raw(9))], on_link(E0, own())), None);
    assert_eq!(index(&[row(2, "192.0.2.1", E1, GidType::ROCE_V2)], on_link(E0, own())), None);
}

/// A GID that moves: the next answer has the new index, without a question.
#[test]
fn a_row_that_moves() {
    let moved =
        vec![row(3, "192.0.2.9", E0, GidType::ROCE_V2), row(6, "192.0.2.1", E0, GidType::ROCE_V2)];
    let cache = Cache::from_fn(directory(&rows()), move |before| {
        (before.rows().len() == 2 && before.rows()[1].entry().index() == 1)
            .then(|| directory(&moved))
    });
    let host = Scripted::new();
    host.route(peer(), on_link(E0, own()));
    host.neighbour(E0, peer(), libc::NUD_STALE, 7);
    // Reading nothing new keeps the first: so the move is at the second look.
    let resolver = Resolver::over(Gids::Made(cache), Box::new(host.clone())).expect("a resolver");
    let first = resolver.resolve(&to_peer(), NO_TIME).expect("a path");
    resolver.process_events().expect("taken in");
    let second = resolver.cached(&to_peer()).expect("a hit");
    assert_eq!(second.gid.index.get(), 6);
    assert_eq!(Path { gid: second.gid.clone(), ..first }, second);
}

#[test]
fn an_address_without_a_device() {
    let (resolver, host) = usual();
    host.route(ip("198.51.100.77"), on_link(E1, ip("198.51.100.1")));
    let to = Destination::new(ip("198.51.100.77"));
    let error = resolver.resolve(&to, Duration::from_secs(60)).expect_err("no device");
    let Error::NoDeviceForAddress(told) = &error else { panic!("{error}") };
    assert_eq!((told.address, told.available.len(), told.more), (ip("198.51.100.1"), 1, 0));
    assert_eq!(
        error.to_string(),
        "no RDMA device for 198.51.100.1 on e1; addresses that have one: 192.0.2.1 (rxe0 on e0)"
    );
    assert!(host.with(|script| script.probed.is_empty()), "nobody was bothered");
    // An address that has one, of another interface.
    host.route(ip("198.51.100.77"), on_link(E1, own()));
    host.tell(Told::Anything);
    let error = resolver.checked(&to, NO_TIME).expect_err("no device").to_string();
    assert!(
        error.starts_with("no RDMA device for 192.0.2.1 on e1 (its GID is that of rxe0"),
        "{error}"
    );
    // And one that is not this host's.
    host.route(ip("198.51.100.77"), on_link(E1, ip("198.51.100.99")));
    host.tell(Told::Anything);
    let error = resolver.checked(&to, NO_TIME).expect_err("no device").to_string();
    assert!(error.contains("(it is not an address of this host)"), "{error}");
}

#[test]
fn the_list_of_addresses_is_short() {
    let local = |n: u32| IpAddr::from((0x0a00_0000 + n).to_be_bytes());
    let rows: Vec<_> = (1..=60)
        .map(|n| {
            let gid_type = if n % 2 == 0 { GidType::ROCE_V2 } else { GidType::ROCE_V1 };
            row(n, &local(n / 2).to_string(), E0, gid_type)
        })
        .collect();
    let addresses = (0..=30).map(|n| LocalAddress::new(E0, local(n), 24)).collect();
    let net =
        NetSnapshot::from_parts(vec![interface(E0, "e0", 1), interface(E1, "e1", 2)], addresses);
    let gids = vec![GidSnapshot::from_rows("rxe0", &rows)];
    let (resolver, host) = resolver(DirectorySnapshot::from_parts(gids, net));
    host.route(peer(), on_link(E1, ip("203.0.113.1")));
    let error = resolver.resolve(&to_peer(), NO_TIME).expect_err("no device");
    let Error::NoDeviceForAddress(told) = &error else { panic!("{error}") };
    assert_eq!((told.available.len(), told.more), (16, 15), "{error}");
}

#[test]
fn what_is_no_destination() {
    let (resolver, host) = usual();
    for text in ["0.0.0.0", "::", "fe80::1"] {
        let error = resolver.resolve(&Destination::new(ip(text)), NO_TIME).expect_err("no host");
        assert!(matches!(error, Error::NoRoute { errno: None, .. }), "{error}");
    }
    assert_eq!(host.with(|script| script.asked), 0);
    host.route(ip("224.0.0.1"), Route { kind: libc::RTN_MULTICAST, ..on_link(E0, own()) });
    let error = resolver.resolve(&Destination::new(ip("224.0.0.1")), NO_TIME).expect_err("a group");
    assert_eq!(error.to_string(), "no route to 224.0.0.1: it is a multicast address");
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
