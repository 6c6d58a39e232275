//! Tables written as text, for tests: `port index gid type netdev` a row, rows apart by `|`.

use crate::types::{Gid, GidEntry, GidType, IfName, PortNum};

/// The rows of a text such as `1 4 fe80::aa v1 net1 | 1 5 fe80::aa v2 net1 | 2 0 fe80::b2 ib -`.
/// Interfaces are numbered as [`ifindex`] says.
pub(crate) fn rows(text: &str) -> Vec<GidEntry> {
    text.split('|').map(row).collect()
}

fn row(text: &str) -> GidEntry {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [port, index, gid, gid_type, netdev] = fields[..] else { panic!("no row: {text:?}") };
    let port = port.parse().ok().and_then(PortNum::new).expect("a port");
    let entry = GidEntry::new(port, index.parse().expect("an index"), self::gid(gid));
    let entry = entry.with_type(match gid_type {
        "ib" => GidType::IB,
        "v1" => GidType::ROCE_V1,
        "v2" => GidType::ROCE_V2,
        number => GidType::from_raw(number.parse().expect("a type")),
    });
    match netdev {
        "-" => entry,
        name => entry.with_netdev(ifindex(name), IfName::new(name)),
    }
}

/// A GID from text.
pub(crate) fn gid(text: &str) -> Gid {
    text.parse().expect("a GID")
}

/// The number this module gives to an interface: made of its name, and not 0.
pub(crate) fn ifindex(name: &str) -> u32 {
    name.bytes().fold(1, |sum: u32, b| sum.wrapping_mul(31).wrapping_add(b.into())) << 1 | 1
}
