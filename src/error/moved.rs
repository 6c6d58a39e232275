//! How a row of a GID table moved.

use std::fmt;

use crate::types::GidEntry;

/// A row that moved between being looked up and being used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidMoved {
    /// The device.
    pub device: Box<str>,
    /// The row as it was looked up.
    pub row: GidEntry,
    /// What stands at its index now; `None` for an empty row.
    pub there: Option<GidEntry>,
    /// The row that has its address now; `None` when it has gone from the port.
    pub now: Option<GidEntry>,
}

impl fmt::Display for GidMoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is no longer there: ", self.device, self.row)?;
        match &self.now {
            Some(now) => write!(f, "it moved to index {}", now.index())?,
            None => f.write_str("it has gone from the port")?,
        }
        match &self.there {
            Some(there) => write!(f, ", and index {} holds {}", there.index(), there.gid()),
            None => write!(f, ", and index {} is empty", self.row.index()),
        }
    }
}

impl std::error::Error for GidMoved {}
