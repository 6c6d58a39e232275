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

pub use index::{Matches, Row};
pub use snapshot::{GidSnapshot, PortTable};

pub(crate) use index::{Index, hash};

pub(crate) use sysfs::SysfsSource;
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
        let table = source.read(before.rows().len())?;
        let now = GidSnapshot::new(Arc::clone(&device), table, Some(before));
        Ok((now.ports() != before.ports()).then_some(now))
    };
    Cache::new(kept, Box::new(read), announcements)
}

#[cfg(test)]
mod tests;
