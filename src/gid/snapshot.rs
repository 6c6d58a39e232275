//! An immutable, indexed copy of one device's GID tables.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;

use super::index::{Index, Matches, hash};
use super::{PortShape, Table};
use crate::error::{Error, Result};
use crate::sys::netdev;
use crate::types::{Gid, GidEntry, LinkLayer, PortNum, Wanted};

/// All GID tables of one device at one moment: consistent in itself, and unchanging.
///
/// Lookups take constant time, whatever the number of ports and rows, allocate nothing and make
/// no system call; but [`find`](GidSnapshot::find) asks the kernel for the number of a network
/// interface by its name, and lists rows when it found none. When several rows carry one GID, all of
/// them are found, in the order of port and index.
///
/// In the kernel's default mode a device's table shows the rows of every network namespace, and the
/// interface numbers in them are each namespace's own: an interface of that number *here* may be
/// another one. Whether a row's address is this host's is not in its table;
/// a directory of all devices tells it.
pub struct GidSnapshot {
    device: Arc<str>,
    ports: Box<[PortTable]>,
    /// Sorted by port and index.
    index: Index<GidEntry>,
    by_place: HashTable<u32>,
    /// The generation of a port's first rows.
    first_generation: u64,
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

    /// How many rows the table can hold (`gid_tbl_len`); an iWARP device has one or none.
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

    /// What there is before the first read: no port and no row. Generations go on from here, and each
    /// time from a higher number: a device that is opened anew, or replaced by another of its name,
    /// never shows a generation that was there before.
    pub(crate) fn nothing(device: Arc<str>) -> GidSnapshot {
        static TIMES: AtomicU64 = AtomicU64::new(0);
        let first_generation = (TIMES.fetch_add(1, Ordering::Relaxed) << 32) + 1;
        let nothing = Table { ports: Vec::new(), rows: Vec::new() };
        GidSnapshot { first_generation, ..GidSnapshot::new(device, nothing, None) }
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
        let index = Index::new(rows);
        let rows = index.rows();
        let mut by_place = HashTable::with_capacity(rows.len());
        let place_of = |number: &u32| {
            rows.get(*number as usize).map_or(0, |row| hash(&place(row.port(), row.index())))
        };
        for number in 0..rows.len() as u32 {
            by_place.insert_unique(place_of(&number), number, place_of);
        }
        let first_generation = before.map_or(1, |before| before.first_generation);
        GidSnapshot { device, ports: ports.into(), index, by_place, first_generation }
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
        self.index.rows()
    }

    /// The rows of one port, in the order of their indices; none when there is no such port.
    pub fn rows_of(&self, port: PortNum) -> &[GidEntry] {
        self.port(port)
            .and_then(|table| {
                let start = table.start as usize;
                self.rows().get(start..start + table.count as usize)
            })
            .unwrap_or_default()
    }

    /// The row at this port and index; `None` when it is empty or there is no such place.
    #[doc(alias = "ibv_query_gid")]
    pub fn row(&self, port: PortNum, index: u32) -> Option<&GidEntry> {
        self.rows().get(self.number(port, index)? as usize)
    }

    /// The place of a row in [`rows`](GidSnapshot::rows).
    pub(crate) fn number(&self, port: PortNum, index: u32) -> Option<u32> {
        let key = place(port, index);
        let is_it = |number: &u32| {
            self.rows()
                .get(*number as usize)
                .is_some_and(|row| place(row.port(), row.index()) == key)
        };
        self.by_place.find(hash(&key), is_it).copied()
    }

    /// The rows that carry this GID.
    #[doc(alias = "ibv_find_gid_index")]
    #[inline]
    pub fn by_gid(&self, gid: &Gid) -> Matches<'_> {
        self.index.by_gid(gid)
    }

    /// The rows that carry this IP address: those of RoCE ports whose GID is the address.
    #[inline]
    pub fn by_ip(&self, ip: IpAddr) -> Matches<'_> {
        self.index.by_ip(ip)
    }

    /// The rows of the network interface with this number.
    pub fn by_ifindex(&self, ifindex: u32) -> Matches<'_> {
        self.index.by_ifindex(ifindex)
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
            return Err(self.not_found(wanted));
        }
        Ok(matches)
    }

    /// The error for what is not there, with the rows that are.
    #[cold]
    pub(crate) fn not_found(&self, wanted: &Wanted) -> Error {
        const SHOWN: usize = 16;
        Error::GidNotFound {
            device: (*self.device).into(),
            wanted: *wanted,
            rows: self.rows().iter().take(SHOWN).copied().collect(),
            more: self.rows().len().saturating_sub(SHOWN) as u32,
        }
    }
}

/// The generation of a port's rows: that of the snapshot before when they are the same.
fn generation(shape: PortShape, rows: &[GidEntry], before: Option<&GidSnapshot>) -> u64 {
    let Some(before) = before else { return 1 };
    let Some(table) = before.port(shape.port) else { return before.first_generation };
    // Rows are equal whatever their generations.
    if table.shape == shape && before.rows_of(shape.port) == rows {
        table.generation
    } else {
        table.generation + 1
    }
}

impl std::fmt::Debug for GidSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GidSnapshot")
            .field("device", &self.device)
            .field("ports", &self.ports)
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
