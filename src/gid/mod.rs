//! GID tables: read from the device, kept as immutable snapshots, answered from memory.
//!
//! [`GidCache`] holds one device's current [`GidSnapshot`]; every lookup is a lookup in a
//! snapshot. A snapshot never changes, so what it tells is consistent in itself, and a row of it
//! carries the generation of its port's table.

#![deny(unsafe_code)]

mod cache;
#[cfg(test)]
mod fixture;
mod snapshot;
mod sysfs;
mod table;

pub use cache::{GidCache, SnapshotRef};
pub use snapshot::{GidSnapshot, Matches, PortTable};

pub(crate) use sysfs::SysfsSource;
pub(crate) use table::{PortShape, Source, Table, VerbsSource};
