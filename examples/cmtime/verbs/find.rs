//! Which device, port and index has an address.

use std::net::IpAddr;

use rdma_verbs::{
    Context, Destination, DeviceList, DirectorySnapshot, Error, Gid, GidDirectory, GidEntry,
    GidType, Resolver, Result,
};

use super::super::options::GidLookup;

/// What an address is bound to: the device's number in the directory, and the row.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) device: usize,
    pub(crate) row: GidEntry,
}

pub(crate) struct Finder {
    directory: GidDirectory,
    resolver: Resolver,
    /// For a scan: every device.
    contexts: Vec<Context>,
}

impl Finder {
    pub(crate) fn new(directory: &GidDirectory, resolver: &Resolver) -> Finder {
        let (directory, resolver) = (directory.clone(), resolver.clone());
        Finder { directory, resolver, contexts: Vec::new() }
    }

    pub(crate) fn with(mut self, lookup: GidLookup) -> Result<Finder> {
        if lookup == GidLookup::Scan {
            let list = DeviceList::new()?;
            let named = self.directory.cached();
            let devices = named.devices().iter().map(|device| list.find(device.name()));
            self.contexts = devices.map(|device| device?.open()).collect::<Result<_>>()?;
        }
        Ok(self)
    }

    /// In the snapshot, or where there are contexts entry by entry.
    pub(crate) fn find(&self, ip: IpAddr) -> Result<Place> {
        let snapshot = self.directory.cached();
        let found = match self.contexts.is_empty() {
            true => in_snapshot(&snapshot, ip),
            false => self.entry_by_entry(&snapshot, ip)?,
        };
        match found {
            Some(place) => Ok(place),
            None => Err(self.why(ip)),
        }
    }

    /// What programs do: `ibv_query_gid` for every entry of every port of every device until one is it.
    fn entry_by_entry(&self, snapshot: &DirectorySnapshot, ip: IpAddr) -> Result<Option<Place>> {
        let gid = Gid::from(ip);
        for (device, context) in self.contexts.iter().enumerate() {
            for table in context.gids().cached().ports() {
                for index in 0..table.capacity() {
                    match context.query_gid(table.port(), index) {
                        Ok(found) if found == gid => {
                            let name = context.device().name();
                            let row = snapshot.row(name, table.port(), index);
                            return Ok(row.map(|row| Place { device, row: *row.entry() }));
                        }
                        Ok(_) | Err(Error::GidRowEmpty { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(None)
    }

    /// The error for an address that has no device, with those that have one.
    fn why(&self, ip: IpAddr) -> Error {
        let no_row =
            |_| Error::NoGidFits { query: ip.to_string().into(), rows: "none has it".into() };
        let own = Destination::new(ip).source(ip);
        self.resolver.resolve(&own, std::time::Duration::ZERO).map_or_else(|error| error, no_row)
    }
}

/// A row that can be sent from, of RoCE v2 if there is one.
fn in_snapshot(snapshot: &DirectorySnapshot, ip: IpAddr) -> Option<Place> {
    let usable =
        |row: &&rdma_verbs::DirectoryRow| row.is_local() && row.entry().gid_index().is_some();
    let rows = snapshot.by_ip(ip).filter(usable);
    let row = rows.min_by_key(|row| row.entry().gid_type() != GidType::ROCE_V2)?;
    Some(Place { device: row.device(), row: *row.entry() })
}
