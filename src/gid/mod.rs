//! GID tables: read from the device, kept as immutable snapshots, answered from memory.
//!
//! [`GidCache`] holds one device's current [`GidSnapshot`]; every lookup is a lookup in a
//! snapshot. A snapshot never changes, so what it tells is consistent in itself, and a row of it
//! carries the generation of its port's table.

#![deny(unsafe_code)]

#[cfg(test)]
pub(crate) mod fixture;
mod index;
mod snapshot;
mod sysfs;
mod table;

use std::sync::Arc;

use crate::cache::Cache;
use crate::error::Result;
use crate::kept::{Announcements, Kept};
#[cfg(feature = "tracing")]
use crate::trace::event;
#[cfg(feature = "tracing")]
use crate::types::GidEntry;

pub use index::{Matches, Row};
pub use snapshot::{GidSnapshot, PortTable};

pub(crate) use index::{Index, hash};

pub(crate) use sysfs::{Files, RealFiles, SysfsSource};
pub(crate) use table::{PortShape, Source, Table, VerbsSource, plain_table, row, unnamed_row};

/// The GID tables of one device, answered from memory.
pub type GidCache = Cache<GidSnapshot>;

/// A cache over a source, filled by a first read. `announce` is told of the value that is kept
/// before anything is read, so that no change goes past it.
pub(crate) fn cache(
    device: &Arc<str>,
    source: impl Source + 'static,
    announcements: Option<Arc<dyn Announcements>>,
    announce: impl FnOnce(&Arc<Kept<GidSnapshot>>),
) -> Result<GidCache> {
    let kept = Arc::new(Kept::new(GidSnapshot::nothing(Arc::clone(device))));
    announce(&kept);
    let device = Arc::clone(device);
    let read = move |before: &GidSnapshot| {
        let table = source.read(before.rows().len());
        #[cfg(feature = "tracing")]
        if let Err(error) = &table {
            event!(warn, device = &*device, %error, "the GID tables could not be read");
        }
        let now = GidSnapshot::new(Arc::clone(&device), table?, Some(before));
        #[cfg(feature = "tracing")]
        tell_changes(before, &now);
        Ok((now.ports() != before.ports()).then_some(now))
    };
    Cache::new(kept, Box::new(read), announcements)
}

/// Tells which rows came and went, by port and one by one.
#[cfg(feature = "tracing")]
fn tell_changes(before: &GidSnapshot, now: &GidSnapshot) {
    let changed = |table: &&PortTable| Some(table.generation()) != generation_of(before, table);
    for table in now.ports().iter().filter(changed) {
        let (device, port) = (now.device(), table.port());
        let new = |rows: &GidSnapshot, row: &GidEntry| rows.row(port, row.index()) != Some(row);
        let (mut came, mut went) = (0, 0);
        for row in before.rows_of(port).iter().filter(|row| new(now, row)) {
            went += 1;
            event!(debug, device, %row, "a GID row went");
        }
        for row in now.rows_of(port).iter().filter(|row| new(before, row)) {
            came += 1;
            event!(debug, device, %row, "a GID row came");
        }
        let (port, rows) = (port.get(), table.live());
        event!(info, device, port, came, went, rows, "a GID table changed");
    }
}

#[cfg(feature = "tracing")]
fn generation_of(snapshot: &GidSnapshot, table: &PortTable) -> Option<u64> {
    snapshot.port(table.port()).map(PortTable::generation)
}

#[cfg(test)]
mod tests;
