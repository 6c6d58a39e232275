//! One row of a GID table.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};

use super::codes::c_enum;
use super::{Gid, GidIndex, PortNum};

c_enum! {
    /// What kind of address a GID is and which packets it sends (`enum ibv_gid_type`).
    GidType(u32) {
        /// InfiniBand.
        IB = 0, "IB";
        /// RoCE version 1: Ethernet frames of type 0x8915, one link only.
        ROCE_V1 = 1, "RoCE v1";
        /// RoCE version 2: UDP port 4791 over IP, routable.
        ROCE_V2 = 2, "RoCE v2";
        /// A type that sysfs names with a text this crate does not know; never chosen.
        UNRECOGNIZED = 0xffff_ffff, "unrecognized";
    }
}

impl GidType {
    /// Whether GIDs of this type are IP addresses (RoCE of either version).
    pub const fn is_roce(self) -> bool {
        matches!(self, GidType::ROCE_V1 | GidType::ROCE_V2)
    }
}

/// The name of a network interface, at most 15 bytes (`IFNAMSIZ` less the NUL), held in place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IfName {
    /// UTF-8, zero behind the name; zero throughout for no name.
    bytes: [u8; 16],
}

impl IfName {
    /// No name.
    pub(crate) const NONE: IfName = IfName { bytes: [0; 16] };

    /// The name in the text; `None` when it is empty, longer than 15 bytes, or holds a NUL, a
    /// slash or a blank, which no interface's name does.
    pub fn new(name: &str) -> Option<IfName> {
        let bad = |b: u8| b == 0 || b == b'/' || b.is_ascii_whitespace();
        if name.is_empty() || name.len() > 15 || name.bytes().any(bad) {
            return None;
        }
        let mut bytes = [0; 16];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(IfName { bytes })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|b| *b == 0).unwrap_or(self.bytes.len());
        self.bytes.get(..len).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("")
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One row of a port's GID table (`struct ibv_gid_entry`), with the interface's name.
///
/// A copy, true at the moment its snapshot was taken. Rows move while a program holds an index:
/// [`generation`](GidEntry::generation) tells whether the port's rows have changed since.
///
/// Two rows are equal when all but their generations are.
#[derive(Clone, Copy)]
pub struct GidEntry {
    gid: Gid,
    generation: u64,
    index: u32,
    gid_type: GidType,
    ifindex: u32,
    netdev: IfName,
    port: PortNum,
    type_assumed: bool,
}

impl PartialEq for GidEntry {
    fn eq(&self, other: &GidEntry) -> bool {
        self.same_address(other)
            && (self.port, self.index) == (other.port, other.index)
            && (self.netdev, self.type_assumed) == (other.netdev, other.type_assumed)
    }
}

impl Eq for GidEntry {}

impl Hash for GidEntry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.gid, self.port, self.index).hash(state);
    }
}

impl GidEntry {
    /// A row, of type IB and of no interface until told otherwise.
    pub const fn new(port: PortNum, index: u32, gid: Gid) -> GidEntry {
        GidEntry {
            gid,
            generation: 0,
            index,
            gid_type: GidType::IB,
            ifindex: 0,
            netdev: IfName::NONE,
            port,
            type_assumed: false,
        }
    }

    /// The same row with this type.
    pub const fn with_type(self, gid_type: GidType) -> GidEntry {
        GidEntry { gid_type, ..self }
    }

    /// The same row with a type that nothing told: old kernels have no type files, and the link
    /// layer decides.
    pub(crate) const fn with_assumed_type(self, gid_type: GidType) -> GidEntry {
        GidEntry { gid_type, type_assumed: true, ..self }
    }

    /// The same row on this interface. Index 0 is none; the name may be unknown.
    pub const fn with_netdev(self, ifindex: u32, name: Option<IfName>) -> GidEntry {
        let netdev = match name {
            Some(name) => name,
            None => IfName::NONE,
        };
        GidEntry { ifindex, netdev, ..self }
    }

    /// The same row, seen in this generation of its port's table.
    pub(crate) const fn in_generation(self, generation: u64) -> GidEntry {
        GidEntry { generation, ..self }
    }

    /// The GID; never zero in a snapshot.
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// The port whose table holds the row.
    pub const fn port(&self) -> PortNum {
        self.port
    }

    /// The row's index in its port's table, from 0, as the table has it.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The index as verbs carry it; `None` for a row beyond 255, which cannot be used.
    pub const fn gid_index(&self) -> Option<GidIndex> {
        match self.index {
            0..=255 => Some(GidIndex::new(self.index as u8)),
            _ => None,
        }
    }

    /// Whether this row and that one are the same address in the same way: GID, type and
    /// interface number. Port, index and generation may differ.
    pub fn same_address(&self, other: &GidEntry) -> bool {
        self.gid == other.gid && self.gid_type == other.gid_type && self.ifindex == other.ifindex
    }

    /// The type of the GID.
    pub const fn gid_type(&self) -> GidType {
        self.gid_type
    }

    /// Whether the type was not told by the kernel but assumed from the link layer.
    pub const fn type_assumed(&self) -> bool {
        self.type_assumed
    }

    /// The number of the network interface the row belongs to, as its own network namespace
    /// counts them; `None` when it has none (InfiniBand) or it is not told.
    pub const fn ifindex(&self) -> Option<u32> {
        match self.ifindex {
            0 => None,
            ifindex => Some(ifindex),
        }
    }

    /// The name of the interface with that number here, when the table was read: for a row of another
    /// network namespace it is another interface's. A rename raises no event: look interfaces up by
    /// number.
    pub fn netdev(&self) -> Option<&str> {
        Some(self.netdev.as_str()).filter(|name| !name.is_empty())
    }

    /// The row's address, when its type makes the GID one (RoCE).
    pub fn ip(&self) -> Option<IpAddr> {
        self.gid_type.is_roce().then(|| self.gid.ip())
    }

    /// The row's IPv4 address, when it is one.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.gid_type.is_roce().then(|| self.gid.ipv4()).flatten()
    }

    /// The generation of the port's table that the row was seen in. It moves only when a row of that
    /// port changed, and only up, also when the device is opened anew. 0 for a row that was read by
    /// itself.
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

impl fmt::Display for GidEntry {
    /// `port 1 index 3 ::ffff:192.0.2.10 RoCE v2 eth2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} index {} {} {}", self.port, self.index, self.gid, self.gid_type)?;
        if self.type_assumed {
            f.write_str(" (assumed)")?;
        }
        match (self.netdev(), self.ifindex()) {
            (Some(name), _) => write!(f, " {name}"),
            (None, Some(ifindex)) => write!(f, " interface {ifindex}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GidEntry({self}, generation {})", self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names() {
        assert_eq!(IfName::new("e0.100").map(|n| n.to_string()).as_deref(), Some("e0.100"));
        assert!(IfName::new("fifteen-bytes-x").is_some());
        for bad in ["", "sixteen-bytes-xx", "a/b", "a b", "a\n", "a\0"] {
            assert_eq!(IfName::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_gid_is_an_address_only_on_roce() {
        let row = GidEntry::new(PortNum::FIRST, 3, Ipv4Addr::new(192, 0, 2, 10).into());
        assert_eq!(row.ipv4(), None);
        let row = row.with_type(GidType::ROCE_V2).with_netdev(4, IfName::new("eth2"));
        assert_eq!(row.ipv4(), Some(Ipv4Addr::new(192, 0, 2, 10)));
        assert_eq!(row.to_string(), "port 1 index 3 ::ffff:192.0.2.10 RoCE v2 eth2");
        let odd = row.with_type(GidType::from_raw(7)).with_netdev(4, None);
        assert_eq!(odd.to_string(), "port 1 index 3 ::ffff:192.0.2.10 unknown (7) interface 4");
        assert_eq!(odd.ip(), None);
    }

    /// A row and its place in the index fit one cache line.
    #[test]
    fn a_row_is_small() {
        assert!(size_of::<GidEntry>() <= 56, "{}", size_of::<GidEntry>());
    }
}
