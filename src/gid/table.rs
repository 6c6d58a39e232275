//! One device's GID tables, read from the device itself.

use std::path::PathBuf;
use std::sync::Arc;

use super::SysfsSource;
use crate::error::{Errno, Error, Object, Result};
use crate::sys::abi::ibv_gid_entry;
use crate::sys::{ContextHandle, netdev};
use crate::types::{Gid, GidEntry, GidType, IfName, LinkLayer, PortNum};

/// Where a cache reads its device's tables from.
pub(crate) trait Source: Send + Sync {
    /// All live rows of all ports. `live` is how many there were before, to size the read by.
    fn read(&self, live: usize) -> Result<Table>;
}

/// What one read gave: rows of all ports, in any order, no zero GID among them.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) ports: Vec<PortShape>,
    pub(crate) rows: Vec<GidEntry>,
}

/// What a port's table is like, whatever rows it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PortShape {
    pub(crate) port: PortNum,
    /// How many rows the table can hold (`gid_tbl_len`).
    pub(crate) len: u32,
    pub(crate) link_layer: LinkLayer,
}

/// The rows that one table call can return at most: the kernel's attribute has a length of 16
/// bits, in bytes.
const CALL_LIMIT: usize = u16::MAX as usize / size_of::<ibv_gid_entry>();

/// Reads through an open device: one call for all ports, row by row where that cannot serve, and
/// sysfs where the library or the kernel has neither.
pub(crate) struct VerbsSource<C = ContextHandle> {
    device: Arc<str>,
    context: Arc<C>,
    ports: Vec<PortShape>,
    sysfs: SysfsSource,
}

impl<C> VerbsSource<C> {
    /// Reads the tables of these ports; `sysfs` is the device's folder there.
    pub(crate) fn new(
        device: Arc<str>,
        context: Arc<C>,
        ports: Vec<PortShape>,
        sysfs: PathBuf,
    ) -> VerbsSource<C> {
        let sysfs = SysfsSource::new(Arc::clone(&device), sysfs);
        VerbsSource { device, context, ports, sysfs }
    }
}

/// The two calls a table is read with: a trait so that what no device at hand does can be tested.
pub(crate) trait TableCalls: Send + Sync {
    /// See [`ContextHandle::query_gid_table`].
    fn query_gid_table(&self, rows: &mut [ibv_gid_entry]) -> Result<usize, Errno>;
    /// See [`ContextHandle::query_gid_entry`].
    fn query_gid_entry(&self, port: PortNum, index: u32) -> Result<ibv_gid_entry, Errno>;
}

impl TableCalls for ContextHandle {
    fn query_gid_table(&self, rows: &mut [ibv_gid_entry]) -> Result<usize, Errno> {
        ContextHandle::query_gid_table(self, rows)
    }

    fn query_gid_entry(&self, port: PortNum, index: u32) -> Result<ibv_gid_entry, Errno> {
        ContextHandle::query_gid_entry(self, port, index)
    }
}

impl<C: TableCalls> Source for VerbsSource<C> {
    fn read(&self, live: usize) -> Result<Table> {
        let rows = match self.rows(live) {
            Ok(Some(rows)) => rows,
            Ok(None) => return self.sysfs.read(live),
            // Where the kernel has no such call, the library reads sysfs itself, and gives up on a
            // row of a network interface that is in another namespace.
            Err(error @ Error::Verb { errno: Errno::ENODEV, .. }) => {
                return self.sysfs.read(live).map_err(|_| error);
            }
            Err(error) => return Err(error),
        };
        let mut names = Names::default();
        let rows = rows.iter().filter_map(|row| names.entry(row)).collect();
        Ok(Table { ports: self.ports.clone(), rows })
    }
}

impl<C: TableCalls> VerbsSource<C> {
    /// All rows, by whichever call serves; `None` when library or kernel has neither.
    fn rows(&self, live: usize) -> Result<Option<Vec<ibv_gid_entry>>> {
        match self.whole_table(live)? {
            Some(rows) => Ok(Some(rows)),
            None => self.row_by_row(),
        }
    }

    /// All rows by the table call; `None` when it cannot serve this device.
    ///
    /// The call's cost follows the room it is given and too little is `EINVAL` without a hint, so
    /// the room starts at what was live before and doubles; the first read has room for all.
    fn whole_table(&self, live: usize) -> Result<Option<Vec<ibv_gid_entry>>> {
        let capacity: usize = self.ports.iter().map(|port| port.len as usize).sum();
        // Room of zero is an error in itself; a device of empty tables has nothing to read.
        let most = capacity.min(CALL_LIMIT);
        if most == 0 {
            return Ok(Some(Vec::new()));
        }
        let mut room = if live == 0 { most } else { (live + live / 8 + 8).min(most) };
        loop {
            let mut rows = vec![ibv_gid_entry::ZERO; room];
            match self.context.query_gid_table(&mut rows) {
                Ok(count) => {
                    rows.truncate(count);
                    return Ok(Some(rows));
                }
                Err(Errno::EINVAL) if room < most => room = (room * 2).min(most),
                // Full to the call's limit, or an old kernel: ask for each row.
                Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOTTY) => {
                    return Ok(None);
                }
                Err(errno) => {
                    let object = Object::device(&self.device);
                    return Err(Error::Verb { verb: "ibv_query_gid_table", object, errno });
                }
            }
        }
    }

    /// All rows, asked for one by one; `None` when library or kernel has no such call.
    fn row_by_row(&self) -> Result<Option<Vec<ibv_gid_entry>>> {
        let mut rows = Vec::new();
        for shape in &self.ports {
            for index in 0..shape.len {
                match self.context.query_gid_entry(shape.port, index) {
                    Ok(row) => rows.push(row),
                    Err(Errno::ENODATA) => {}
                    Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOTTY) => return Ok(None),
                    Err(errno) => {
                        let object = Object::row(&self.device, shape.port, index);
                        return Err(Error::Verb { verb: "ibv_query_gid_ex", object, errno });
                    }
                }
            }
        }
        Ok(Some(rows))
    }
}

/// All rows as the table call gives them, with room for `capacity`; no interface is named.
pub(crate) fn plain_table(calls: &impl TableCalls, capacity: u32) -> Result<Vec<GidEntry>, Errno> {
    let room = (capacity as usize).min(CALL_LIMIT);
    let mut rows = vec![ibv_gid_entry::ZERO; room];
    let count = if room == 0 { 0 } else { calls.query_gid_table(&mut rows)? };
    rows.truncate(count);
    Ok(rows.iter().filter_map(Names::unnamed).collect())
}

/// A single row as ours; `None` for one that no table should have.
pub(crate) fn row(raw: &ibv_gid_entry) -> Option<GidEntry> {
    Names::default().entry(raw)
}

/// The same without the name of its interface, which takes three system calls.
pub(crate) fn unnamed_row(raw: &ibv_gid_entry) -> Option<GidEntry> {
    Names::unnamed(raw)
}

/// The names of the interfaces met in one read: one question to the kernel for each.
#[derive(Default)]
struct Names {
    known: Vec<(u32, Option<IfName>)>,
}

impl Names {
    /// The row as ours; `None` for one that no table should have.
    fn entry(&mut self, row: &ibv_gid_entry) -> Option<GidEntry> {
        let entry = Names::unnamed(row)?;
        Some(match entry.ifindex() {
            None => entry,
            Some(ifindex) => entry.with_netdev(ifindex, self.name(ifindex)),
        })
    }

    /// The same without the interface's name. No table should have a zero GID, or a port 0.
    fn unnamed(row: &ibv_gid_entry) -> Option<GidEntry> {
        let port = PortNum::new(u8::try_from(row.port_num).ok()?)?;
        let gid = Gid::from_bytes(row.gid.raw);
        let entry =
            GidEntry::new(port, row.gid_index, gid).with_type(GidType::from_raw(row.gid_type));
        (!gid.is_zero()).then(|| entry.with_netdev(row.ndev_ifindex, None))
    }

    fn name(&mut self, ifindex: u32) -> Option<IfName> {
        if let Some((_, name)) = self.known.iter().find(|(known, _)| *known == ifindex) {
            return *name;
        }
        let name = netdev::name(ifindex);
        self.known.push((ifindex, name));
        name
    }
}

#[cfg(test)]
mod tests;
