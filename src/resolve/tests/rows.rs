//! Which row a path has, what its neighbour is, and what there is to say when it has none.

use std::net::IpAddr;
use std::time::Duration;

use super::scripted::Scripted;
use super::*;

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
