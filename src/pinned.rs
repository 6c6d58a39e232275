//! Using a row of a GID table: by its index, which may have moved since it was looked up.
//!
//! Rows move while a program holds an index, and a check before use is a race: between the two the
//! rows can be swapped, and the device then sends from another address without a word. What is true
//! is what stands in the row *after* a queue pair came to RTR, or an address handle was made, with it:
//! from then on the slot is pinned. So the row is read then, and compared.

#![deny(unsafe_code)]

use crate::context::Context;
use crate::error::{Errno, Error, GidMoved, Object, Result};
use crate::gid;
use crate::types::{GidEntry, GidIndex};

/// How often a row that keeps moving is looked up again, by its value.
const ATTEMPTS: usize = 4;

impl Context {
    /// Uses a row, and makes sure that it was that row which was used.
    ///
    /// `attempt` does something that pins the row at the index it is given, for a port it knows: it
    /// moves a queue pair to RTR, or makes an address handle. When it succeeded, the row is read
    /// (one system call), and if it is not the GID, type and interface of `row`, what `attempt`
    /// made is dropped, the row is looked up again by its value, on the same port, in tables read
    /// anew, and tried again; so also when the device answers `ENODATA`, that the row is empty. At
    /// most four attempts. Gives what was made, and the row that it uses.
    ///
    /// # Errors
    ///
    /// [`Error::GidIndexTooLarge`] for a row beyond 255; [`Error::GidMoved`], from where to where,
    /// when it cannot be used as it is; and what `attempt` itself fails with.
    pub fn with_row<T>(
        &self,
        row: &GidEntry,
        mut attempt: impl FnMut(GidIndex) -> Result<T>,
    ) -> Result<(T, GidEntry)> {
        let mut row = *row;
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            let index = self.usable(&row)?;
            match attempt(index) {
                Ok(made) => {
                    if self.stands(&row)? {
                        return Ok((made, row));
                    }
                }
                Err(Error::Verb { errno: Errno::ENODATA, .. }) => {}
                Err(error) => return Err(error),
            }
            let moved = self.moved(&row)?;
            match moved.now {
                Some(now) if left > 0 => row = now,
                _ => return Err(Error::GidMoved(Box::new(moved))),
            }
        }
    }

    /// Whether a row still is what it was when it was looked up: reads it from the device, one
    /// system call. The truth only after the row was pinned; see [`with_row`](Context::with_row).
    ///
    /// # Errors
    ///
    /// [`Error::GidMoved`], from where to where, when another GID, type or interface stands there.
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn confirm_row(&self, row: &GidEntry) -> Result<()> {
        if self.stands(row)? { Ok(()) } else { Err(Error::GidMoved(Box::new(self.moved(row)?))) }
    }

    /// The index as verbs carry it.
    fn usable(&self, row: &GidEntry) -> Result<GidIndex> {
        row.gid_index().ok_or_else(|| Error::GidIndexTooLarge {
            object: Object::row(self.device().name(), row.port(), row.index()),
        })
    }

    fn stands(&self, row: &GidEntry) -> Result<bool> {
        let there = self.query_row_as(row.port(), row.index(), gid::unnamed_row)?;
        Ok(there.is_some_and(|there| there.same_address(row)))
    }

    /// What is in the row's place, and where its address is now, from tables read anew.
    fn moved(&self, row: &GidEntry) -> Result<GidMoved> {
        let tables = self.gids().fresh()?;
        let of_port = |now: &&GidEntry| now.port() == row.port() && now.same_address(row);
        Ok(GidMoved {
            device: self.device().name().into(),
            row: *row,
            there: tables.row(row.port(), row.index()).copied(),
            now: tables.by_gid(&row.gid()).find(of_port).copied(),
        })
    }
}
