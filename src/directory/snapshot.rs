//! All GID tables of this machine at one moment.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::error::Error;
use crate::gid::{GidSnapshot, Index, Matches, Row, hash};
use crate::net::{Interface, LocalAddress, NetSnapshot};
use crate::port::PortAttr;
use crate::types::{Gid, GidEntry, GidScope, GidType, PortNum, PortState};

use super::towards::Towards;

/// The GID tables of all devices, indexed together: unchanging.
///
/// Lookups take constant time, whatever the number of devices, ports and rows, allocate nothing and
/// make no system call. When several rows carry one GID, all are found, in the order of device,
/// port and index; devices are in the order of the kernel's numbers, which is that of their coming.
pub struct DirectorySnapshot {
    devices: Box<[DirectoryDevice]>,
    index: Index<DirectoryRow>,
    by_name: HashTable<u32>,
    towards: Towards,
    net: Arc<NetSnapshot>,
}

/// One device in a directory.
#[derive(Clone)]
pub struct DirectoryDevice {
    pub(crate) name: Arc<str>,
    pub(super) source: TableSource,
    pub(super) gids: Arc<GidSnapshot>,
    pub(super) ports: Arc<[PortAttr]>,
    /// The number of its first row in the snapshot.
    pub(super) start: usize,
}

/// Where a device's rows come from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TableSource {
    /// From the device, kept true by its events.
    Device,
    /// From sysfs, by choice: as true as the last [`fresh`](super::GidDirectory::fresh).
    Sysfs,
    /// From sysfs, because the device cannot be opened, for this reason.
    SysfsInstead(Arc<Error>),
    /// The last read failed, for this reason: the rows are those there were before, or none. It is
    /// tried again, after 0.1 s at first and 30 s at most.
    Failed(Arc<Error>),
}

impl TableSource {
    /// Why the rows are not from the device, if that was not chosen.
    pub fn error(&self) -> Option<&Error> {
        match self {
            TableSource::SysfsInstead(error) | TableSource::Failed(error) => Some(error),
            TableSource::Device | TableSource::Sysfs => None,
        }
    }
}

impl DirectoryDevice {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its rows come from, and why not from the device.
    pub fn source(&self) -> &TableSource {
        &self.source
    }

    /// Whether it cannot be opened, by this process: its rows can be seen, and not be used.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.source, TableSource::SysfsInstead(_))
    }

    /// Whether a row's port and its interface are up, or their state is not known. A VLAN can be down
    /// on a port that is up.
    pub(crate) fn may_be_up(&self, row: &DirectoryRow, net: &NetSnapshot) -> bool {
        let interface = row.entry.ifindex().and_then(|ifindex| net.by_ifindex(ifindex));
        self.port(row.entry.port()).is_none_or(|port| port.state == PortState::ACTIVE)
            && interface.is_none_or(Interface::is_up)
    }

    /// What its port is like, as of the last event of the device; `None` when the device is not open,
    /// or has no such port.
    pub fn port(&self, port: PortNum) -> Option<&PortAttr> {
        self.ports.iter().find(|attr| attr.port == port)
    }

    /// Its own tables, by port and index.
    pub fn gids(&self) -> &GidSnapshot {
        &self.gids
    }
}

impl fmt::Debug for DirectoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryDevice")
            .field("name", &self.name)
            .field("source", &self.source)
            .field("rows", &self.gids.rows().len())
            .finish()
    }
}

/// A row of a directory: a row of a device's table, whose it is, and whether its address is ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryRow {
    entry: GidEntry,
    device: u32,
    locality: Locality,
}

/// Whether a row's address is this host's, in this network namespace.
///
/// In the kernel's default mode every namespace sees every row of a device, and numbers of network
/// interfaces belong to the row's own namespace. So the address decides, not the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Locality {
    /// The row's address is on its interface here; or it needs none (InfiniBand).
    Local,
    /// There is no interface of the row's number here: the row belongs to another namespace.
    NoInterface,
    /// The interface of that number here does not have the address: the row belongs to another
    /// namespace, or is a default GID whose address was taken off, or a point-to-point peer's.
    NotOnInterface,
}

impl Row for DirectoryRow {
    #[inline]
    fn entry(&self) -> &GidEntry {
        &self.entry
    }
}

impl DirectoryRow {
    /// The row of the device's table. Its interface's name is that of the interface with that number
    /// here; for a row that is not local it is empty.
    pub fn entry(&self) -> &GidEntry {
        &self.entry
    }

    /// The device's place in [`DirectorySnapshot::devices`].
    pub fn device(&self) -> usize {
        self.device as usize
    }

    /// Whether the address is ours.
    pub fn locality(&self) -> Locality {
        self.locality
    }

    /// Whether the address is ours: a local row can be used, another only be seen.
    pub fn is_local(&self) -> bool {
        self.locality == Locality::Local
    }
}

impl DirectorySnapshot {
    /// A directory of tables and interfaces that a program made itself, for its own tests.
    pub fn from_parts(devices: Vec<GidSnapshot>, net: NetSnapshot) -> DirectorySnapshot {
        let devices = devices.into_iter().map(|gids| DirectoryDevice {
            name: gids.device().into(),
            source: TableSource::Device,
            gids: Arc::new(gids),
            ports: Arc::new([]),
            start: 0,
        });
        DirectorySnapshot::new(devices.collect(), Arc::new(net))
    }

    pub(super) fn new(
        mut devices: Vec<DirectoryDevice>,
        net: Arc<NetSnapshot>,
    ) -> DirectorySnapshot {
        devices.iter_mut().fold(0, |start, device| {
            device.start = start;
            start + device.gids.rows().len()
        });
        let mut rows = Vec::with_capacity(devices.iter().map(|d| d.gids.rows().len()).sum());
        let mut by_name = HashTable::with_capacity(devices.len());
        let name_of =
            |number: &u32| devices.get(*number as usize).map_or(0, |device| hash(&*device.name));
        for (number, device) in (0_u32..).zip(&devices) {
            by_name.insert_unique(name_of(&number), number, name_of);
            for entry in device.gids.rows() {
                let locality = locality(entry, &net);
                let ifindex = entry.ifindex().unwrap_or(0);
                let name = match locality {
                    Locality::Local => net.by_ifindex(ifindex).and_then(Interface::if_name),
                    _ => None,
                };
                let entry = entry.with_netdev(ifindex, name);
                rows.push(DirectoryRow { entry, device: number, locality });
            }
        }
        let mut towards = Towards::default();
        for (number, row) in (0_u32..).zip(&rows) {
            let device = devices.get(row.device());
            let usable = address_of(row.entry(), &net).is_none_or(LocalAddress::is_usable)
                && !device.is_some_and(DirectoryDevice::is_closed);
            if row.is_local() && usable && row.entry().gid_index().is_some() {
                let up = device.is_none_or(|device| device.may_be_up(row, &net));
                towards.add(number, row, Rank::of(row, &net), up, &net);
            }
        }
        let index = Index::new(rows);
        DirectorySnapshot { devices: devices.into(), index, by_name, towards, net }
    }

    /// Every device, in the order of the kernel's numbers; also those without a row.
    pub fn devices(&self) -> &[DirectoryDevice] {
        &self.devices
    }

    /// The device of this name.
    pub fn device(&self, name: &str) -> Option<&DirectoryDevice> {
        let is_it =
            |number: &u32| self.devices.get(*number as usize).is_some_and(|d| &*d.name == name);
        self.devices.get(*self.by_name.find(hash(name), is_it)? as usize)
    }

    /// The device that a row belongs to.
    pub fn device_of(&self, row: &DirectoryRow) -> Option<&DirectoryDevice> {
        self.devices.get(row.device())
    }

    /// The host's interfaces and addresses that locality was decided by.
    pub fn net(&self) -> &NetSnapshot {
        &self.net
    }

    /// Every row, in the order of device, port and index.
    pub fn rows(&self) -> &[DirectoryRow] {
        self.index.rows()
    }

    /// The rows that carry this GID, local or not.
    #[inline]
    pub fn by_gid(&self, gid: &Gid) -> Matches<'_, DirectoryRow> {
        self.index.by_gid(gid)
    }

    /// The rows that carry this IP address, local or not.
    #[inline]
    pub fn by_ip(&self, ip: IpAddr) -> Matches<'_, DirectoryRow> {
        self.index.by_ip(ip)
    }

    /// The local rows of the network interface of this name.
    pub fn by_netdev(&self, name: &str) -> impl Iterator<Item = &DirectoryRow> {
        let ifindex = self.net.by_name(name).map_or(0, |interface| interface.ifindex());
        self.index.by_ifindex(ifindex).filter(|row| row.is_local())
    }

    /// The best row towards a peer, in constant time: what
    /// [`GidQuery::new().peer(peer).best(…)`](crate::GidQuery::peer) takes, and by the same rules.
    /// `None` when no row can reach it; the query then tells why.
    pub fn towards(&self, peer: IpAddr) -> Option<&DirectoryRow> {
        self.rows().get(self.towards.best(peer)? as usize)
    }

    /// The row at this place; `None` when it is empty or there is no such place.
    pub fn row(&self, device: &str, port: PortNum, index: u32) -> Option<&DirectoryRow> {
        let device = self.device(device)?;
        self.rows().get(device.start + device.gids.number(port, index)? as usize)
    }
}

/// What orders two rows that fit equally well: type, reach, family, place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) gid_type: u8,
    pub(crate) reach: u8,
    pub(crate) family: u8,
    /// Addresses that are not for new connections, or made up for a time.
    pub(crate) passing: u8,
    place: (u32, u8, u32),
}

impl Rank {
    pub(crate) fn of(row: &DirectoryRow, net: &NetSnapshot) -> Rank {
        let entry = row.entry();
        Rank {
            gid_type: match entry.gid_type() {
                GidType::ROCE_V2 => 0,
                GidType::IB => 1,
                _ => 2,
            },
            reach: match entry.gid().scope() {
                GidScope::Ipv4 | GidScope::Global => 0,
                GidScope::UniqueLocal => 1,
                GidScope::SiteLocal => 2,
                _ => 3,
            },
            family: u8::from(entry.ipv4().is_none()),
            passing: match address_of(entry, net) {
                Some(there) if there.is_deprecated() => 2,
                // The same bit says of an IPv4 address only that it is not the first.
                Some(there) if there.ip().is_ipv6() && there.is_secondary() => 1,
                _ => 0,
            },
            place: (row.device, entry.port().get(), entry.index()),
        }
    }
}

/// The address that a row stands for, as this host has it.
pub(crate) fn address_of<'a>(entry: &GidEntry, net: &'a NetSnapshot) -> Option<&'a LocalAddress> {
    net.local(entry.ifindex()?, entry.ip()?)
}

/// Whether a row's address is on its interface here.
fn locality(entry: &GidEntry, net: &NetSnapshot) -> Locality {
    let Some(ip) = entry.ip() else { return Locality::Local };
    match entry.ifindex() {
        // An old kernel does not tell the interface.
        None if net.by_ip(ip).next().is_some() => Locality::Local,
        None => Locality::NotOnInterface,
        Some(ifindex) if net.is_local(ifindex, ip) => Locality::Local,
        Some(ifindex) if net.by_ifindex(ifindex).is_some() => Locality::NotOnInterface,
        Some(_) => Locality::NoInterface,
    }
}

impl fmt::Debug for DirectorySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectorySnapshot")
            .field("devices", &self.devices)
            .field("rows", &self.rows().len())
            .finish_non_exhaustive()
    }
}
