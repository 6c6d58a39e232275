//! Where the answer to a datagram goes: told by what came, and found in the snapshot.

#![deny(unsafe_code)]

use super::{AddressHandle, AddressVector};
use crate::error::{Error, Result};
use crate::gid::GidSnapshot;
use crate::pd::ProtectionDomain;
use crate::types::{DatagramSource, Grh, PortNum, Wanted};

impl AddressVector {
    /// Back to where a datagram came from, by the way it came (`ibv_init_ah_from_wc`): from the row of the
    /// port's table that it went to. That row is found in the snapshot, without a system call, where C walks
    /// the table with two for each row.
    ///
    /// The snapshot is one of the device that it came to: of [`Context::gids`](crate::Context::gids), or of a
    /// directory ([`DirectoryDevice::gids`](crate::DirectoryDevice::gids)).
    ///
    /// `grh` is the front of the buffer that it was received into; not looked at where `source` says that there
    /// is none.
    ///
    /// # Errors
    ///
    /// [`Error::GidNotFound`](crate::Error::GidNotFound) when the port has no such row: one that went since, or
    /// the datagram went to a multicast group, which no answer can come from. Choose a row by
    /// [`GidQuery`](crate::GidQuery) then.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn reply(
        snapshot: &GidSnapshot,
        port: PortNum,
        source: &DatagramSource,
        grh: &Grh<'_>,
    ) -> Result<AddressVector> {
        let by_lid = AddressVector::by_lid(port, source.lid)
            .service_level(source.service_level)
            .source_path_bits(source.path_bits);
        if !source.has_grh {
            return Ok(by_lid);
        }
        let ours = grh.destination();
        let mut rows = snapshot.by_gid(&ours);
        let row = rows.find(|row| row.port() == port && grh.is_of(row.gid_type()));
        let Some(row) = row else { return Err(snapshot.not_found(&Wanted::Gid(ours))) };
        Ok(AddressVector {
            source: Some(*row),
            destination: grh.source(),
            traffic_class: grh.traffic_class(),
            flow_label: grh.flow_label(),
            ..by_lid.hop_limit(255)
        })
    }
}

impl AddressHandle {
    /// An address handle back to where a datagram came from (`ibv_create_ah_from_wc`): of
    /// [`AddressVector::reply`], by what is known of the context's own tables. Only when the row is not there, what has
    /// changed is taken in, and it is looked for once more.
    ///
    /// # Errors
    ///
    /// As [`AddressVector::reply`] and [`AddressHandle::new`].
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn reply(
        pd: &ProtectionDomain,
        port: PortNum,
        source: &DatagramSource,
        grh: &Grh<'_>,
    ) -> Result<AddressHandle> {
        let gids = pd.context().gids();
        let address = match AddressVector::reply(&gids.cached(), port, source, grh) {
            Err(Error::GidNotFound { .. }) => {
                AddressVector::reply(&*gids.checked()?, port, source, grh)
            }
            answer => answer,
        }?;
        AddressHandle::new(pd, &address)
    }
}
