//! Every row with what a query says of it.

use std::fmt;
use std::sync::Arc;

use super::{GidQuery, Verdict};
use crate::directory::DirectorySnapshot;
use crate::types::{GidEntry, IfName};

/// Every row of a directory with what a query says of it. Prints as a list, a row a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    query: GidQuery,
    rows: Vec<Explained>,
    notes: Vec<Box<str>>,
}

/// A row and what a query says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// The device's name.
    pub device: Arc<str>,
    /// The row.
    pub row: GidEntry,
    /// What the query says of it.
    pub verdict: Verdict,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.device, self.row, self.verdict)
    }
}

/// How many rows an error shows.
const SHOWN: usize = 16;

impl Explanation {
    pub(super) fn new(query: &GidQuery, directory: &DirectorySnapshot) -> Explanation {
        let judged = directory.rows().iter().map(|row| (row, query.judge(directory, row)));
        let mut judged: Vec<_> = judged.collect();
        // Stable: within the rejected the order stays that of the rows.
        judged.sort_by_key(|(_, outcome)| match outcome {
            Ok(key) => (0, Some(*key)),
            Err(reason) => (1 + u8::from(reason.is_filter()), None),
        });
        let best = judged.iter().find_map(|(_, outcome)| outcome.ok());
        let rows = judged.into_iter().filter_map(|(row, outcome)| {
            let verdict = match (outcome, best) {
                (Ok(key), Some(best)) if key != best => Verdict::Behind(key.behind(&best)),
                (Ok(_), _) => Verdict::Best,
                (Err(reason), _) => Verdict::Rejected(reason),
            };
            let device = Arc::clone(&directory.device_of(row)?.name);
            Some(Explained { device, row: *row.entry(), verdict })
        });
        let notes = query.notes(directory);
        Explanation { query: query.clone(), rows: rows.collect(), notes }
    }

    /// The query.
    pub fn query(&self) -> &GidQuery {
        &self.query
    }

    /// Every row: those that fit, the best first; those that fit the filters and cannot be used; the
    /// others.
    pub fn rows(&self) -> &[Explained] {
        &self.rows
    }

    /// What is wrong with the question itself: a device, port, index or netdev that is not there,
    /// devices without a row or that cannot be read.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(|note| &**note)
    }

    /// The rows that fit, as many as an error can show.
    pub(crate) fn fitting_in_short(&self) -> String {
        let fits = |row: &&Explained| !matches!(row.verdict, Verdict::Rejected(_));
        let rows = self.rows.iter().filter(fits).take(SHOWN);
        let rows: Vec<String> = rows.map(|row| format!("{} {}", row.device, row.row)).collect();
        rows.join("; ")
    }

    /// The notes, and as many rows as an error can show.
    pub(crate) fn in_short(&self) -> String {
        let rows = self.rows.iter().take(SHOWN).map(Explained::to_string);
        let mut parts: Vec<String> = self.notes().map(str::to_owned).chain(rows).collect();
        match self.rows.len().saturating_sub(SHOWN) {
            0 if parts.is_empty() => parts.push("there is no device".into()),
            0 => {}
            more => parts.push(format!("and {more} rows more")),
        }
        parts.join("; ")
    }
}

impl GidQuery {
    /// What is wrong with the question itself.
    fn notes(&self, directory: &DirectorySnapshot) -> Vec<Box<str>> {
        let mut notes: Vec<Box<str>> = Vec::new();
        let missing = |name: &IfName| directory.net().by_name(name.as_str()).is_none();
        if let Some(name) = self.netdev.as_ref().filter(|name| missing(name)) {
            notes.push(format!("there is no netdev {name} in this namespace").into());
        }
        if let Some(name) = self.device.as_ref().filter(|name| directory.device(name).is_none()) {
            let names: Vec<&str> = directory.devices().iter().map(|device| device.name()).collect();
            notes.push(format!("there is no device {name}: there is {}", names.join(", ")).into());
        }
        let asked = |name: &str| self.device.as_ref().is_none_or(|asked| **asked == *name);
        for device in directory.devices().iter().filter(|device| asked(device.name())) {
            let name = device.name();
            if let Some(error) = device.source().error() {
                notes.push(error.to_string().into());
            }
            if let Some(port) = self.port.filter(|port| device.gids().port(*port).is_none()) {
                notes.push(format!("{name} has no port {port}").into());
            }
            for table in device.gids().ports() {
                let port = table.port();
                if self.port.is_some_and(|asked| asked != port) {
                    continue;
                }
                match self.index {
                    Some(index) if index >= table.capacity() => {
                        let len = table.capacity();
                        notes.push(
                            format!("{name} port {port} index {index} is outside the table of {len}")
                                .into(),
                        );
                    }
                    Some(index) if device.gids().row(port, index).is_none() => {
                        notes.push(format!("{name} port {port} index {index} is empty").into());
                    }
                    None if table.live() == 0 => notes.push(
                        format!(
                            "{name} port {port} has no GID: no netdev of this device is up, or none \
                             is in this namespace"
                        )
                        .into(),
                    ),
                    _ => {}
                }
            }
        }
        notes
    }
}

impl fmt::Display for GidQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |what: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{what} {value}")));
        };
        part("GID", self.gid.map(|gid| gid.to_string()));
        part("IP", self.ip.map(|ip| ip.to_string()));
        part("subnet", self.subnet.map(|subnet| subnet.to_string()));
        part("netdev", self.netdev.map(|name| name.to_string()));
        part("type", self.gid_type.map(|gid_type| gid_type.to_string()));
        part("device", self.device.as_ref().map(|name| name.to_string()));
        part("port", self.port.map(|port| port.to_string()));
        part("index", self.index.map(|index| index.to_string()));
        part("peer", self.peer.map(|peer| peer.to_string()));
        if parts.is_empty() { f.write_str("any use") } else { f.write_str(&parts.join(", ")) }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes().try_for_each(|note| writeln!(f, "{note}"))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}
