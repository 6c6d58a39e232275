//! GID tables: what the device, sysfs and `gids --json` show is the same.

use std::collections::BTreeSet;
use std::fs;

use rdma_verbs::{Gid, GidEntry, PortNum, Wanted};
use serde_json::Value;

use super::gids_output;
use super::rig::{Rig, ip, wait_until};
use crate::sys::abi::ibv_gid_entry;

/// A row as every side can tell it: index, GID in full, type, netdev.
type Row = (u64, String, String, String);

/// The rows by the table call alone, with room for all.
fn from_table_call(rig: &Rig) -> BTreeSet<Row> {
    let mut rows = vec![ibv_gid_entry::ZERO; 1024];
    let count = crate::seam::open(&rig.device).query_gid_table(&mut rows).expect("the table call");
    rows[..count]
        .iter()
        .map(|row| {
            assert_eq!(row.port_num, 1);
            assert_eq!(row.gid_type, 2, "rxe has RoCE v2 only");
            let netdev = crate::sys::netdev::name(row.ndev_ifindex).expect("a netdev");
            let gid = Gid::from_bytes(row.gid.raw).full().to_string();
            (row.gid_index.into(), gid, "RoCE v2".into(), netdev.to_string())
        })
        .collect()
}

/// The rows by sysfs alone.
fn from_sysfs(rig: &Rig) -> BTreeSet<Row> {
    let port = format!("/sys/class/infiniband/{}/ports/1", rig.device);
    let text = |path: String| fs::read_to_string(path).map(|text| text.trim_end().to_owned());
    (0..1024)
        .filter_map(|index: u64| {
            let gid = text(format!("{port}/gids/{index}")).expect("a row's file");
            if gid == Gid::ZERO.full().to_string() {
                return None;
            }
            let kind = text(format!("{port}/gid_attrs/types/{index}")).expect("a row's type");
            let netdev = text(format!("{port}/gid_attrs/ndevs/{index}")).expect("a row's netdev");
            Some((index, gid, kind, netdev))
        })
        .collect()
}

/// The rows by the program.
fn from_program(rig: &Rig) -> BTreeSet<Row> {
    let output = gids_output(&["--device", &rig.device, "--json"]);
    let Value::Array(rows) = serde_json::from_str(&output.expect("it prints")).expect("JSON")
    else {
        panic!("one array")
    };
    let text = |row: &Value, key: &str| row[key].as_str().expect(key).to_owned();
    rows.iter()
        .map(|row| {
            let keys: Vec<&str> =
                row.as_object().expect("objects").keys().map(String::as_str).collect();
            let expected = [
                "device", "gid", "ifindex", "index", "ipv4", "link", "netdev", "port", "state",
                "type",
            ];
            assert_eq!(BTreeSet::from_iter(keys), BTreeSet::from(expected));
            assert_eq!(row["device"], *rig.device);
            assert_eq!(row["port"], 1);
            assert_eq!(row["link"], "Ethernet");
            assert_eq!(row["state"], "ACTIVE");
            assert!(row["ifindex"].is_u64());
            let gid: Gid = text(row, "gid").parse().expect("a GID");
            assert_eq!(
                row["ipv4"].as_str().map(str::to_owned),
                gid.ipv4().map(|ip| ip.to_string())
            );
            (
                row["index"].as_u64().expect("index"),
                text(row, "gid"),
                text(row, "type"),
                text(row, "netdev"),
            )
        })
        .collect()
}

fn all_three_agree(addresses: u32) {
    let rig = Rig::new();
    let context = rig.open();
    rig.add_addresses(&context, addresses);
    let table = from_table_call(&rig);
    assert!(table.len() as u32 > addresses, "the addresses and the default GID: {}", table.len());
    assert_eq!(from_sysfs(&rig), table);
    assert_eq!(from_program(&rig), table);
    // And the crate's own reader of sysfs, row for row.
    let sysfs = rig.listed().gids_from_sysfs().expect("sysfs can be read");
    let fresh = context.gids().fresh().expect("the table can be read");
    let unaged = |row: &GidEntry| row.to_string();
    let rows: Vec<_> = sysfs.cached().rows().iter().map(unaged).collect();
    assert_eq!(rows, fresh.rows().iter().map(unaged).collect::<Vec<_>>());
}

#[test]
fn one_address() {
    all_three_agree(1);
}

#[test]
fn sixty_four_addresses() {
    all_three_agree(64);
}

#[test]
fn two_hundred_and_fifty_addresses() {
    all_three_agree(250);
}

/// Holes: the low rows go, the rest is found as before, and no row is invented.
#[test]
fn low_rows_deleted() {
    let rig = Rig::new();
    let context = rig.open();
    rig.add_addresses(&context, 6);
    let rows = context.gids().cached();
    let address = |index| rows.row(PortNum::FIRST, index).and_then(GidEntry::ipv4).expect("a row");
    let (low, kept) = ([address(1), address(2), address(3)], address(4));
    for ip_address in low {
        ip(&["addr", "del", &format!("{ip_address}/32"), "dev", &rig.netdev]);
    }
    wait_until("the rows have gone", || context.gids().fresh().expect("a read").rows().len() == 4);
    let now = context.gids().cached();
    assert_eq!(now.by_ip(kept.into()).next().map(GidEntry::index), Some(4));
    assert_eq!(now.row(PortNum::FIRST, 2), None);
    assert!(now.find(&Wanted::Ip(low[0].into())).is_err());
    assert_eq!(from_table_call(&rig), from_program(&rig));
}

/// A VLAN's address stands in the table of the device below, under the VLAN's own interface.
#[test]
fn a_vlan_is_told_by_its_own_row() {
    let rig = Rig::new();
    let context = rig.open();
    let vlan = format!("{}.9", rig.netdev);
    ip(&["link", "add", "link", &rig.netdev, "name", &vlan, "type", "vlan", "id", "9"]);
    ip(&["link", "set", &vlan, "up"]);
    ip(&["addr", "add", "203.0.113.10/24", "dev", &vlan]);
    let wanted = Wanted::Ip([203, 0, 113, 10].into());
    wait_until("the VLAN's row is there", || {
        context.gids().fresh().expect("a read").find(&wanted).is_ok()
    });
    let rows = context.gids().cached();
    let row = rows.find(&wanted).expect("it is there").next().expect("a row");
    assert_eq!(row.netdev(), Some(&*vlan));
    let of_vlan = rows.find(&vlan.parse().expect("a name")).expect("rows of the VLAN");
    assert!(of_vlan.clone().any(|found| found == row));
    assert!(of_vlan.into_iter().all(|found| found.netdev() == Some(&*vlan)));
}

/// A read that finds the same rows keeps the generation, and one that finds others moves it.
#[test]
fn generations_follow_the_rows() {
    let rig = Rig::new();
    let context = rig.open();
    let first = context.gids().cached().ports()[0].generation();
    assert_eq!(context.gids().fresh().expect("a read").ports()[0].generation(), first);
    rig.add_addresses(&context, 1);
    assert!(context.gids().cached().ports()[0].generation() > first);
}
