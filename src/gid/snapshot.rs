//! An immutable, indexed copy of one device's GID tables.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::{PortShape, Table};
use crate::error::{Error, Result};
use crate::sys::netdev;
use crate::types::{Gid, GidEntry, LinkLayer, PortNum, Wanted};

/// All GID tables of one device at one moment: consistent in itself, and unchanging.
///
/// Lookups take constant time, whatever the number of ports and rows, allocate nothing and make
/// no system call (but [`find`](GidSnapshot::find) by the name of a network interface: one). When
/// several rows carry one GID, all of them are found, in the order of port and index.
pub struct GidSnapshot {
    device: Arc<str>,
    ports: Box<[PortTable]>,
    /// Sorted by port and index.
    rows: Box<[GidEntry]>,
    /// One for each GID there is. Its first row stands in it, so that a lookup that finds one
    /// touches one cache line of the table and no other memory.
    by_gid: HashTable<GidSlot>,
    /// For every GID, and then for every interface, the numbers of its rows.
    grouped: Box<[u32]>,
    by_ifindex: HashTable<Group<u32>>,
    by_place: HashTable<u32>,
}

/// The rows that carry one GID.
struct GidSlot {
    first: GidEntry,
    start: u32,
    count: u32,
}

/// The rows that share a key: `count` numbers from `start` on in `grouped`.
struct Group<K> {
    key: K,
    start: u32,
    count: u32,
}

/// One port's table in a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortTable {
    shape: PortShape,
    generation: u64,
    start: u32,
    count: u32,
}

impl PortTable {
    /// The port.
    pub const fn port(&self) -> PortNum {
        self.shape.port
    }

    /// How many rows the table can hold (`gid_tbl_len`); 0 on iWARP, which has none.
    pub const fn capacity(&self) -> u32 {
        self.shape.len
    }

    /// How many rows hold a GID.
    pub const fn live(&self) -> u32 {
        self.count
    }

    /// What the port's link speaks.
    pub const fn link_layer(&self) -> LinkLayer {
        self.shape.link_layer
    }

    /// Moves only when a row of this port's table changed.
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

/// One hash function for all snapshots: keys are this host's own addresses, so nobody can choose
/// them to collide.
const HASHER: FixedState = FixedState::with_seed(0);

fn hash<K: Hash>(key: &K) -> u64 {
    HASHER.hash_one(key)
}

/// What `(port, index)` hashes as.
fn place(port: PortNum, index: u32) -> u64 {
    u64::from(port.get()) << 32 | u64::from(index)
}

impl GidSnapshot {
    /// A snapshot of rows that a program made itself, for its own tests: `device` has one port
    /// for each number met in `rows`, with tables as long as needed. Rows with a zero GID are
    /// left out; of two rows of one place the first stays.
    pub fn from_rows(device: &str, rows: &[GidEntry]) -> GidSnapshot {
        let mut ports: Vec<PortShape> = Vec::new();
        for row in rows {
            let link_layer =
                if row.gid_type().is_roce() { LinkLayer::ETHERNET } else { LinkLayer::INFINIBAND };
            let len = row.index().saturating_add(1);
            match ports.iter_mut().find(|shape| shape.port == row.port()) {
                Some(shape) => shape.len = shape.len.max(len),
                None => ports.push(PortShape { port: row.port(), len, link_layer }),
            }
        }
        GidSnapshot::new(device.into(), Table { ports, rows: rows.to_vec() }, None)
    }

    /// What there is before the first read: no port and no row.
    pub(crate) fn nothing(device: Arc<str>) -> GidSnapshot {
        GidSnapshot::new(device, Table { ports: Vec::new(), rows: Vec::new() }, None)
    }

    /// Indexes a table. A port whose rows are those of `before` keeps its generation there.
    pub(super) fn new(device: Arc<str>, table: Table, before: Option<&GidSnapshot>) -> GidSnapshot {
        let Table { ports: mut shapes, mut rows } = table;
        shapes.sort_by_key(|shape| shape.port);
        rows.retain(|row| !row.gid().is_zero());
        rows.sort_by_key(|row| (row.port(), row.index()));
        rows.dedup_by_key(|row| (row.port(), row.index()));
        let mut ports = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let start = rows.partition_point(|row| row.port() < shape.port);
            let end = rows.partition_point(|row| row.port() <= shape.port);
            let of_port = rows.get_mut(start..end).unwrap_or_default();
            let generation = generation(shape, of_port, before);
            for row in &mut *of_port {
                *row = row.in_generation(generation);
            }
            let count = of_port.len() as u32;
            ports.push(PortTable { shape, generation, start: start as u32, count });
        }
        index(device, ports.into(), rows.into())
    }

    /// The device whose tables these are.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Every port, in order; also those without a row.
    pub fn ports(&self) -> &[PortTable] {
        &self.ports
    }

    /// One port's table; `None` when the device has no such port.
    pub fn port(&self, port: PortNum) -> Option<&PortTable> {
        self.ports.iter().find(|table| table.port() == port)
    }

    /// Every row of every port, in the order of port and index.
    pub fn rows(&self) -> &[GidEntry] {
        &self.rows
    }

    /// The rows of one port, in the order of their indices; none when there is no such port.
    pub fn rows_of(&self, port: PortNum) -> &[GidEntry] {
        self.port(port)
            .and_then(|table| {
                let start = table.start as usize;
                self.rows.get(start..start + table.count as usize)
            })
            .unwrap_or_default()
    }

    /// The row at this port and index; `None` when it is empty or there is no such place.
    #[doc(alias = "ibv_query_gid")]
    pub fn row(&self, port: PortNum, index: u32) -> Option<&GidEntry> {
        let key = place(port, index);
        let is_it = |number: &u32| {
            self.rows.get(*number as usize).is_some_and(|row| place(row.port(), row.index()) == key)
        };
        self.rows.get(*self.by_place.find(hash(&key), is_it)? as usize)
    }

    /// The rows that carry this GID.
    #[doc(alias = "ibv_find_gid_index")]
    pub fn by_gid(&self, gid: &Gid) -> Matches<'_> {
        match self.by_gid.find(hash(gid), |slot| slot.first.gid() == *gid) {
            Some(slot) => Matches {
                first: Some(&slot.first),
                rest: self.group(slot.start + 1, slot.count - 1).iter(),
                rows: &self.rows,
                only_addresses: false,
            },
            None => Matches::none(),
        }
    }

    /// The rows that carry this IP address: those of RoCE ports whose GID is the address.
    pub fn by_ip(&self, ip: IpAddr) -> Matches<'_> {
        // A GID of an InfiniBand port may look like an address and is none.
        Matches { only_addresses: true, ..self.by_gid(&ip.into()) }
    }

    /// The rows of the network interface with this number.
    pub fn by_ifindex(&self, ifindex: u32) -> Matches<'_> {
        match self.by_ifindex.find(hash(&ifindex), |group| group.key == ifindex) {
            Some(group) => Matches {
                first: None,
                rest: self.group(group.start, group.count).iter(),
                rows: &self.rows,
                only_addresses: false,
            },
            None => Matches::none(),
        }
    }

    /// The rows that carry what is wanted.
    ///
    /// # Errors
    ///
    /// [`Error::GidNotFound`], with the rows there are, when none does.
    pub fn find(&self, wanted: &Wanted) -> Result<Matches<'_>> {
        let matches = match wanted {
            Wanted::Gid(gid) => self.by_gid(gid),
            Wanted::Ip(ip) => self.by_ip(*ip),
            Wanted::Netdev(name) => {
                netdev::index(name).map_or(Matches::none(), |ifindex| self.by_ifindex(ifindex))
            }
        };
        if matches.is_empty() {
            let device = (*self.device).into();
            return Err(Error::GidNotFound { device, wanted: *wanted, rows: self.rows.to_vec() });
        }
        Ok(matches)
    }

    fn group(&self, start: u32, count: u32) -> &[u32] {
        let start = start as usize;
        self.grouped.get(start..start + count as usize).unwrap_or_default()
    }
}

/// Builds the indices over rows sorted by port and index.
fn index(device: Arc<str>, ports: Box<[PortTable]>, rows: Box<[GidEntry]>) -> GidSnapshot {
    let mut grouped = Vec::with_capacity(2 * rows.len());
    let mut by_gid = HashTable::with_capacity(rows.len());
    group_by(
        &rows,
        &mut grouped,
        |row| Some(row.gid()),
        |first, Group { start, count, .. }| {
            let slot = GidSlot { first: *first, start, count };
            by_gid.insert_unique(hash(&first.gid()), slot, |slot| hash(&slot.first.gid()));
        },
    );
    let mut by_ifindex = HashTable::new();
    group_by(&rows, &mut grouped, GidEntry::ifindex, |_, group| {
        by_ifindex.insert_unique(hash(&group.key), group, |group| hash(&group.key));
    });
    let mut by_place = HashTable::with_capacity(rows.len());
    let place_of = |number: &u32| {
        rows.get(*number as usize).map_or(0, |row| hash(&place(row.port(), row.index())))
    };
    for number in 0..rows.len() as u32 {
        by_place.insert_unique(place_of(&number), number, place_of);
    }
    let grouped = grouped.into();
    GidSnapshot { device, ports, rows, by_gid, grouped, by_ifindex, by_place }
}

/// Appends to `grouped` the row numbers of each key in turn, keys sorted, rows in their order, and
/// tells of each group with its first row.
fn group_by<K: Ord + Copy>(
    rows: &[GidEntry],
    grouped: &mut Vec<u32>,
    key: impl Fn(&GidEntry) -> Option<K>,
    mut tell: impl FnMut(&GidEntry, Group<K>),
) {
    let keyed = rows.iter().zip(0_u32..);
    let mut keyed: Vec<_> =
        keyed.filter_map(|(row, number)| Some((key(row)?, number, row))).collect();
    keyed.sort_by_key(|(key, number, _)| (*key, *number));
    for same in keyed.chunk_by(|(a, ..), (b, ..)| a == b) {
        let [(key, _, first), ..] = same else { continue };
        let start = grouped.len() as u32;
        grouped.extend(same.iter().map(|(_, number, _)| number));
        tell(first, Group { key: *key, start, count: same.len() as u32 });
    }
}

/// The generation of a port's rows: that of the snapshot before when they are the same.
fn generation(shape: PortShape, rows: &[GidEntry], before: Option<&GidSnapshot>) -> u64 {
    let Some(before) = before else { return 1 };
    let Some(table) = before.port(shape.port) else { return 1 };
    let old = before.rows_of(shape.port).iter().copied();
    let new = rows.iter().map(|row| row.in_generation(table.generation));
    if table.shape == shape && old.eq(new) { table.generation } else { table.generation + 1 }
}

impl std::fmt::Debug for GidSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GidSnapshot")
            .field("device", &self.device)
            .field("ports", &self.ports)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// The rows that a lookup found, in the order of port and index.
#[derive(Clone, Debug)]
pub struct Matches<'a> {
    first: Option<&'a GidEntry>,
    rest: slice::Iter<'a, u32>,
    rows: &'a [GidEntry],
    only_addresses: bool,
}

impl Matches<'_> {
    fn none() -> Self {
        Matches { first: None, rest: [].iter(), rows: &[], only_addresses: false }
    }

    /// Whether there is no row left.
    pub fn is_empty(&self) -> bool {
        self.clone().next().is_none()
    }
}

impl<'a> Iterator for Matches<'a> {
    type Item = &'a GidEntry;

    fn next(&mut self) -> Option<&'a GidEntry> {
        loop {
            let row = match self.first.take() {
                Some(first) => first,
                None => self.rows.get(*self.rest.next()? as usize)?,
            };
            if !self.only_addresses || row.gid_type().is_roce() {
                return Some(row);
            }
        }
    }
}

impl std::iter::FusedIterator for Matches<'_> {}

#[cfg(test)]
mod tests;
