//! Which device, port and GID this end is reached by.

use std::net::IpAddr;

use rdma_verbs::{
    Choice, Context, DeviceList, DirectorySnapshot, Error, GidDirectory, GidEntry, GidQuery,
    PortAttr, Reason, Verdict,
};

use super::{Options, PROGRAM, common};

/// The place of this end.
pub(crate) struct Local {
    pub(crate) device: String,
    /// The row of the port's GID table; `None` where the LID is enough (InfiniBand).
    pub(crate) row: Option<GidEntry>,
    /// Why the row that a person gave should not be used.
    pub(crate) doubt: Option<Reason>,
}

impl Local {
    /// The best place towards the peer, as far as that is known, among those asked for. Where nothing fits
    /// a peer that may be reached otherwise, the best of all.
    pub(crate) fn choose(
        options: &Options,
        directory: &GidDirectory,
        peer: Option<IpAddr>,
        only_towards_it: bool,
    ) -> Result<Local, Error> {
        if let Some(name) = &options.ib_dev {
            DeviceList::new()?.find(name)?;
        }
        let snapshot = directory.checked()?;
        let mut query = GidQuery::new().port(options.ib_port);
        if let Some(name) = &options.ib_dev {
            query = query.device(name);
        }
        if let Some(index) = options.gid_idx {
            let query = query.index(index);
            let query = peer.map_or(query.clone(), |peer| query.peer(peer));
            return Local::by_hand(&query, &snapshot);
        }
        let best =
            match peer {
                None => query.best(&snapshot),
                Some(peer) => {
                    let towards = query.clone().peer(peer).best(&snapshot);
                    towards.or_else(|error| {
                        if only_towards_it { Err(error) } else { query.best(&snapshot) }
                    })
                }
            }?;
        let port = snapshot.device(&best.device).and_then(|device| device.port(best.port));
        let needs_gid = port.is_none_or(PortAttr::needs_gid);
        let local = Local::chosen(best);
        Ok(Local { row: local.row.filter(|_| needs_gid), ..local })
    }

    /// The row that a person gave, whatever speaks against it; never another in its place.
    fn by_hand(query: &GidQuery, snapshot: &DirectorySnapshot) -> Result<Local, Error> {
        let explanation = query.explain(snapshot);
        // Those that fit come first, then those that were asked for and cannot be used.
        let found = explanation.rows().first().filter(|found| found.row.gid_index().is_some());
        let (device, row, doubt) = match found.map(|found| (found, found.verdict)) {
            Some((found, Verdict::Rejected(reason))) if !reason.is_filter() => {
                (&found.device, found.row, Some(reason))
            }
            // If it does not fit: the error that tells what there is.
            _ => return query.best(snapshot).map(Local::chosen),
        };
        Ok(Local { device: device.to_string(), row: Some(row), doubt })
    }

    fn chosen(choice: Choice) -> Local {
        Local { device: choice.device.to_string(), row: Some(choice.row), doubt: None }
    }

    /// Tells what speaks against the row.
    pub(crate) fn warn(&self) {
        if let (Some(row), Some(doubt)) = (&self.row, self.doubt) {
            let line = format!("warning: {} {row}: {doubt}", self.device);
            common::note(PROGRAM, line);
        }
    }

    /// Opens the device, whose port must carry messages of this size.
    pub(crate) fn open(&self, options: &Options, size: u64) -> Result<Context, Error> {
        let list = DeviceList::new()?;
        let context = list.find(&self.device)?.open()?;
        let limit = context.port(options.ib_port)?.max_message_size.into();
        if size > limit && limit != 0 {
            return Err(too_long(size, limit));
        }
        Ok(context)
    }
}

/// Of a message that the port does not carry.
pub(crate) fn too_long(asked: u64, most: u64) -> Error {
    Error::OutOfRange { what: "a message, in bytes,", asked, least: 1, most }
}
