//! Which GID to use: filters, a documented order, and the reason for every choice.

#![deny(unsafe_code)]

mod explain;
mod judge;
mod reason;

pub use explain::{Explained, Explanation};
pub use reason::{Criterion, Reason, Verdict};

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::directory::{DirectoryRow, DirectorySnapshot};
use crate::error::{Error, Result};
use crate::types::{Gid, GidEntry, GidIndex, GidType, IfName, PortNum, Subnet};

/// A question to a directory: which row fits all of this, and which of those is best.
///
/// Filters narrow; what is left is ordered, by the first of these that tells two rows apart:
///
/// 1. state: rows whose port and interface are up, or of unknown state, before the others;
/// 2. with a [`peer`](GidQuery::peer): rows whose own subnet holds the peer, the longest prefix first;
/// 3. type: RoCE v2, then InfiniBand, then RoCE v1;
/// 4. reach: IPv4 and global IPv6 addresses before unique local ones, site-local ones after those,
///    and link-local ones last;
/// 5. an IPv4 address before an IPv6 one;
/// 6. lasting IPv6 addresses before temporary ones, and those before deprecated ones;
/// 7. place: device in the order of the kernel's numbers, port, index.
///
/// So the order is total, and the same on every run. A row is never taken that cannot be used: one of a
/// device that cannot be opened (which `open_sysfs` does not try); one whose address is not this
/// namespace's, or a duplicate, or still being checked; one whose index is beyond 255, or whose type is
/// unknown; and with a peer, one that cannot reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidQuery {
    gid: Option<Gid>,
    ip: Option<IpAddr>,
    subnet: Option<Subnet>,
    netdev: Option<IfName>,
    gid_type: Option<GidType>,
    device: Option<Arc<str>>,
    port: Option<PortNum>,
    index: Option<u32>,
    peer: Option<IpAddr>,
}

/// A row that a query chose, with all that is needed to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The device's name.
    pub device: Arc<str>,
    /// The port.
    pub port: PortNum,
    /// The index, as verbs carry it.
    pub index: GidIndex,
    /// The row.
    pub row: GidEntry,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.device, self.row)
    }
}

impl GidQuery {
    /// A query that every usable row fits.
    pub fn new() -> GidQuery {
        GidQuery::default()
    }

    /// Only rows with this GID.
    pub fn gid(self, gid: Gid) -> GidQuery {
        GidQuery { gid: Some(gid), ..self }
    }

    /// Only rows with this IP address; a mapped one is the IPv4 address it stands for.
    pub fn ip(self, ip: IpAddr) -> GidQuery {
        GidQuery { ip: Some(ip.to_canonical()), ..self }
    }

    /// Only rows whose address is in this range.
    pub fn subnet(self, subnet: Subnet) -> GidQuery {
        GidQuery { subnet: Some(subnet), ..self }
    }

    /// Only rows of the network interface of this name.
    pub fn netdev(self, name: IfName) -> GidQuery {
        GidQuery { netdev: Some(name), ..self }
    }

    /// Only rows of this type.
    pub fn gid_type(self, gid_type: GidType) -> GidQuery {
        GidQuery { gid_type: Some(gid_type), ..self }
    }

    /// Only rows of this device.
    pub fn device(self, name: &str) -> GidQuery {
        GidQuery { device: Some(name.into()), ..self }
    }

    /// Only rows of ports of this number.
    pub fn port(self, port: PortNum) -> GidQuery {
        GidQuery { port: Some(port), ..self }
    }

    /// Only rows at this index: for one that a person gives by hand.
    pub fn index(self, index: u32) -> GidQuery {
        GidQuery { index: Some(index), ..self }
    }

    /// Only rows that can reach this address: of its family, link-local for a link-local peer and
    /// only then, and RoCE v1 only within the row's own subnet. Rows whose subnet holds the peer come
    /// first. Which of several interfaces the kernel would route by is not asked.
    pub fn peer(self, peer: IpAddr) -> GidQuery {
        GidQuery { peer: Some(peer.to_canonical()), ..self }
    }

    /// The best row that fits.
    ///
    /// # Errors
    ///
    /// [`Error::NoGidFits`], which lists what there is and why each row does not fit.
    pub fn best(&self, directory: &DirectorySnapshot) -> Result<Choice> {
        let best = match self.peer {
            // Laid out already.
            Some(peer) if *self == GidQuery::new().peer(peer) => directory.towards(peer),
            _ => {
                self.fitting(directory).into_iter().min_by_key(|(key, _)| *key).map(|(_, row)| row)
            }
        };
        self.choice(directory, best)
    }

    /// The only row that fits: never a guess.
    ///
    /// # Errors
    ///
    /// [`Error::NoGidFits`] when none does, [`Error::Ambiguous`], with those that do, when there are
    /// several.
    pub fn resolve_one(&self, directory: &DirectorySnapshot) -> Result<Choice> {
        let fits = self.fitting(directory);
        match fits[..] {
            [] => self.choice(directory, None),
            [(_, row)] => self.choice(directory, Some(row)),
            _ => Err(Error::Ambiguous {
                query: self.to_string().into(),
                rows: self.explain(directory).fitting_in_short().into(),
            }),
        }
    }

    /// Every row, with whether it fits and the reason: those that fit first, the best at the top, then
    /// the others in the order of device, port and index.
    pub fn explain(&self, directory: &DirectorySnapshot) -> Explanation {
        Explanation::new(self, directory)
    }

    fn choice(&self, directory: &DirectorySnapshot, row: Option<&DirectoryRow>) -> Result<Choice> {
        let found = row.and_then(|row| {
            let device = Arc::clone(&directory.device_of(row)?.name);
            let entry = *row.entry();
            Some(Choice { device, port: entry.port(), index: entry.gid_index()?, row: entry })
        });
        found.ok_or_else(|| Error::NoGidFits {
            query: self.to_string().into(),
            rows: self.explain(directory).in_short().into(),
        })
    }
}

#[cfg(test)]
mod tests;
