use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::super::fixture::{gid, ifindex, rows};
use super::*;
use crate::types::{GidType, IfName};

fn snapshot(text: &str) -> GidSnapshot {
    GidSnapshot::from_rows("dev0", &rows(text))
}

/// The indices of the rows found, with their ports.
fn places<'a>(matches: impl Iterator<Item = &'a GidEntry>) -> Vec<(u8, u32)> {
    matches.map(|row| (row.port().get(), row.index())).collect()
}

fn port(number: u8) -> PortNum {
    PortNum::new(number).expect("a port number")
}

/// A pod's rows begin at 4; the holes below are nothing.
#[test]
fn rows_behind_holes_are_found() {
    let table = snapshot(
        "1 4 fe80::aa v1 net1 | 1 5 fe80::aa v2 net1 | 1 6 ::ffff:192.0.2.12 v1 net1 \
         | 1 7 ::ffff:192.0.2.12 v2 net1",
    );
    assert_eq!(table.rows().len(), 4);
    let ip = Ipv4Addr::new(192, 0, 2, 12).into();
    let v2 = table.by_ip(ip).find(|row| row.gid_type() == GidType::ROCE_V2);
    assert_eq!(v2.map(GidEntry::index), Some(7));
    assert_eq!(table.row(port(1), 5).and_then(GidEntry::netdev), Some("net1"));
    assert_eq!(table.row(port(1), 0), None);
    assert_eq!(table.row(port(2), 5), None);
}

/// Each port is asked in its own format: InfiniBand beside Ethernet.
#[test]
fn ports_are_kept_apart() {
    let table = snapshot(
        "1 0 fe80::a1 v1 eth2 | 1 1 ::ffff:192.0.2.12 v1 eth2 | 1 2 ::ffff:192.0.2.2 v1 eth2.10 \
         | 2 0 fe80::b2 ib - | 2 1 ::ffff:192.0.2.12 ib -",
    );
    let ip = Ipv4Addr::new(192, 0, 2, 12).into();
    assert_eq!(places(table.by_ip(ip)), [(1, 1)], "an InfiniBand GID is no IP address");
    assert_eq!(places(table.by_gid(&gid("::ffff:192.0.2.12"))), [(1, 1), (2, 1)]);
    let row = table.row(port(2), 0).expect("row 0 of port 2");
    assert_eq!((row.gid_type(), row.netdev(), row.ip()), (GidType::IB, None, None));
    assert_eq!(table.port(port(3)), None);
    assert_eq!(places(table.rows_of(port(2)).iter()), [(2, 0), (2, 1)]);
    assert!(table.rows_of(port(3)).is_empty());
}

#[test]
fn every_row_of_a_gid_and_of_an_interface_is_found() {
    let table = snapshot(
        "1 0 fe80::aa v1 ens1 | 1 1 fe80::aa v2 ens1 | 1 2 fe80::bb v1 ens1.100 \
         | 1 3 ::ffff:192.0.2.60 v2 ens1 | 2 9 fe80::aa v2 ens2",
    );
    assert_eq!(places(table.by_gid(&gid("fe80::aa"))), [(1, 0), (1, 1), (2, 9)]);
    assert_eq!(places(table.by_ifindex(ifindex("ens1"))), [(1, 0), (1, 1), (1, 3)]);
    assert_eq!(places(table.by_ifindex(ifindex("ens1.100"))), [(1, 2)]);
    assert!(table.by_ifindex(ifindex("other")).is_empty());
    assert!(table.by_gid(&gid("fe80::cc")).is_empty());
}

/// A device without a row, and zero GIDs where rows should be.
#[test]
fn an_empty_table_answers_that_it_is_empty() {
    let table = GidSnapshot::from_rows("dev0", &rows("1 0 :: v2 eth0"));
    assert!(table.rows().is_empty());
    assert_eq!(table.ports().len(), 1);
    assert!(table.by_gid(&Gid::ZERO).is_empty(), "a zero GID is never found");
    let error = table.find(&Wanted::Gid(gid("fe80::1"))).expect_err("nothing there");
    let text = "no GID table row of dev0 carries GID fe80::1; its tables hold no GID at all";
    assert_eq!(error.to_string(), text);
}

#[test]
fn not_found_lists_what_there_is() {
    let table = snapshot("1 0 fe80::aa v2 e0 | 1 1 ::ffff:192.0.2.6 v2 e0");
    let wanted = Wanted::Ip(Ipv4Addr::new(192, 0, 2, 7).into());
    let error = table.find(&wanted).expect_err("nothing there");
    assert_eq!(
        error.to_string(),
        "no GID table row of dev0 carries IP 192.0.2.7; there is port 1 index 0 fe80::aa RoCE v2 \
         e0; port 1 index 1 ::ffff:192.0.2.6 RoCE v2 e0"
    );
    let netdev = Wanted::Netdev(IfName::new("no-such-if0").expect("a name"));
    assert!(table.find(&netdev).is_err());
}

#[test]
fn an_unknown_type_is_kept_and_is_no_address() {
    let table = snapshot("1 0 ::ffff:192.0.2.6 7 e0");
    assert!(table.by_ip(Ipv4Addr::new(192, 0, 2, 6).into()).is_empty());
    let row = table.by_gid(&gid("::ffff:192.0.2.6")).next().expect("it is listed");
    assert_eq!(row.gid_type().to_string(), "unknown (7)");
}

#[test]
fn a_generation_moves_only_with_its_own_port() {
    let shape = |number| PortShape { port: port(number), len: 16, link_layer: LinkLayer::ETHERNET };
    let table = |text| Table { ports: vec![shape(2), shape(1)], rows: rows(text) };
    let generations =
        |s: &GidSnapshot| -> Vec<u64> { s.ports().iter().map(PortTable::generation).collect() };
    let first = table("1 0 fe80::a v2 e0 | 2 0 fe80::b v2 e1");
    let first = GidSnapshot::new("dev0".into(), first, None);
    assert_eq!(generations(&first), [1, 1]);
    // The same rows in another order.
    let same = table("2 0 fe80::b v2 e1 | 1 0 fe80::a v2 e0");
    let same = GidSnapshot::new("dev0".into(), same, Some(&first));
    assert_eq!(generations(&same), [1, 1]);
    assert_eq!(same.ports(), first.ports());
    // Port 2's row moves to another index.
    let moved = table("1 0 fe80::a v2 e0 | 2 5 fe80::b v2 e1");
    let moved = GidSnapshot::new("dev0".into(), moved, Some(&same));
    assert_eq!(generations(&moved), [1, 2]);
    assert_eq!(moved.row(port(2), 5).map(GidEntry::generation), Some(2));
    assert_eq!(moved.row(port(1), 0).map(GidEntry::generation), Some(1));
    // All of port 1 goes.
    let gone = GidSnapshot::new("dev0".into(), table("2 5 fe80::b v2 e1"), Some(&moved));
    assert_eq!(generations(&gone), [2, 2]);
    assert_eq!(gone.port(port(1)).map(PortTable::live), Some(0));
}

proptest! {
    /// Whatever the rows, each lookup finds what going through all of them finds.
    #[test]
    fn lookups_agree_with_a_scan(
        made in prop::collection::vec((1_u8..4, 0_u32..300, 0_u8..12, 0_u32..4, 0_u32..4), 0..80)
    ) {
        let made: Vec<GidEntry> = made.into_iter().map(|(p, index, last, kind, ifindex)| {
            let mut bytes = [0; 16];
            bytes[15] = last;
            GidEntry::new(port(p), index, Gid::from_bytes(bytes))
                .with_type(GidType::from_raw(kind))
                .with_netdev(ifindex, None)
        }).collect();
        let table = GidSnapshot::from_rows("dev0", &made);
        let all = table.rows();
        prop_assert!(all.is_sorted_by_key(|row| (row.port(), row.index())));
        for row in &made {
            let by_gid: Vec<_> = table.by_gid(&row.gid()).collect();
            let scan: Vec<_> = all.iter().filter(|r| r.gid() == row.gid()).collect();
            prop_assert_eq!(by_gid, scan);
            let by_ip: Vec<_> = table.by_ip(row.gid().ip()).collect();
            let scan: Vec<_> =
                all.iter().filter(|r| r.gid() == row.gid() && r.ip().is_some()).collect();
            prop_assert_eq!(by_ip, scan);
            let found = table.row(row.port(), row.index());
            let scan = all.iter().find(|r| (r.port(), r.index()) == (row.port(), row.index()));
            prop_assert_eq!(found, scan);
        }
        for number in 0..4 {
            let found: Vec<_> = table.by_ifindex(number).collect();
            let scan: Vec<_> = all.iter().filter(|r| number != 0 && r.ifindex() == Some(number)).collect();
            prop_assert_eq!(found, scan);
        }
    }
}
