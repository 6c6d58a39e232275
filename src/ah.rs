//! Addresses: where packets go, and by which row of which port's GID table.

mod handle;
mod reply;

use crate::context::Context;
use crate::error::Result;
use crate::port::PortAttr;
use crate::sys::abi::{ibv_ah_attr, ibv_gid, ibv_global_route};
use crate::types::{Gid, GidEntry, GidIndex, Lid, LinkLayer, PortNum};

pub use handle::AddressHandle;

pub(crate) use handle::Inner;

/// Where packets go (`struct ibv_ah_attr`): the destination, the row of this side's GID table that they
/// come from, and how they travel.
///
/// The row is a value, of a snapshot or a directory, and never a bare index: what is made of the address
/// is checked to use that very row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressVector {
    port: PortNum,
    source: Option<GidEntry>,
    destination: Gid,
    lid: Lid,
    service_level: u8,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
    source_path_bits: u8,
    static_rate: u8,
}

impl AddressVector {
    /// From a row of this side's table to a GID, with a hop limit of 64: what RoCE needs, and InfiniBand
    /// beyond the subnet.
    pub fn new(source: &GidEntry, destination: Gid) -> AddressVector {
        AddressVector {
            source: Some(*source),
            destination,
            ..AddressVector::by_lid(source.port(), Lid(0))
        }
    }

    /// To a LID of the port's own InfiniBand subnet, without a GID.
    pub fn by_lid(port: PortNum, lid: Lid) -> AddressVector {
        AddressVector {
            port,
            source: None,
            destination: Gid::from_bytes([0; 16]),
            lid,
            service_level: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            source_path_bits: 0,
            static_rate: 0,
        }
    }

    /// The destination's LID, which InfiniBand needs besides a GID (`dlid`).
    pub const fn lid(mut self, lid: Lid) -> Self {
        self.lid = lid;
        self
    }

    /// The service level, 0 to 15: of RoCE, the priority of packets with a VLAN tag (`sl`). 0 unless asked.
    pub const fn service_level(mut self, service_level: u8) -> Self {
        self.service_level = service_level;
        self
    }

    /// The traffic class: of RoCE v2, the TOS byte of the IP header, DSCP in its upper six bits
    /// (`grh.traffic_class`). 0 unless asked.
    pub const fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// The same by DSCP, 0 to 63; bits above are dropped.
    pub const fn dscp(mut self, dscp: u8) -> Self {
        self.traffic_class = dscp << 2 | self.traffic_class & 3;
        self
    }

    /// The flow label, 20 bits: of RoCE v2, what the source port of UDP is made of, and so the path among
    /// equals (`grh.flow_label`). 0 unless asked.
    pub const fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label;
        self
    }

    /// How many routers packets may pass (`grh.hop_limit`): 64 unless asked. Of RoCE v2 the kernel puts the
    /// route's own in its place.
    pub const fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// The low bits of this side's LID, 0 to 127 (`src_path_bits`). 0 unless asked.
    pub const fn source_path_bits(mut self, bits: u8) -> Self {
        self.source_path_bits = bits;
        self
    }

    /// The most that is sent, as a code of `enum ibv_rate` (`static_rate`); 0, as fast as can be, unless
    /// asked.
    pub const fn static_rate(mut self, rate: u8) -> Self {
        self.static_rate = rate;
        self
    }

    /// The same path from another row.
    pub(crate) fn with_source(mut self, source: &GidEntry) -> AddressVector {
        self.source = Some(*source);
        self.port = source.port();
        self
    }

    /// The same path to another destination.
    pub(crate) fn to(mut self, gid: Option<Gid>, lid: Lid) -> AddressVector {
        self.destination = gid.unwrap_or(Gid::from_bytes([0; 16]));
        self.lid = lid;
        self
    }

    /// The port.
    pub const fn port(&self) -> PortNum {
        self.port
    }

    /// The row of this side's GID table, if it has one.
    pub const fn source(&self) -> Option<&GidEntry> {
        self.source.as_ref()
    }

    /// The destination's GID; zero when it has none.
    pub const fn destination(&self) -> Gid {
        self.destination
    }

    /// What is wrong with it on this port, if anything is, before a device is asked.
    /// Without the port, it is one of RoCE.
    pub(crate) fn problem(&self, attr: Option<&PortAttr>) -> Option<String> {
        let link_layer = attr.map_or(LinkLayer::ETHERNET, |attr| attr.link_layer);
        let Some(source) = &self.source else {
            return attr.is_none_or(PortAttr::needs_gid).then(|| {
                format!(
                    "ah_attr.is_global: port {} is {}, where an address needs a GID on either side",
                    self.port, link_layer
                )
            });
        };
        if self.destination.is_zero() {
            return Some("ah_attr.grh.dgid: the destination's GID is zero".into());
        }
        if source.gid().is_zero() {
            return Some("ah_attr.grh.sgid_index: the row's GID is zero".into());
        }
        let is_v4 = |gid: Gid| gid.ipv4().is_some();
        if link_layer == LinkLayer::ETHERNET && is_v4(source.gid()) != is_v4(self.destination) {
            return Some(format!(
                "ah_attr.grh: {} and {} are addresses of different families",
                source.gid(),
                self.destination
            ));
        }
        if self.service_level > 15 {
            return Some(format!("ah_attr.sl: {} is to be 0 to 15", self.service_level));
        }
        if self.flow_label >> 20 != 0 {
            return Some(format!(
                "ah_attr.grh.flow_label: {:#x} has more than 20 bits",
                self.flow_label
            ));
        }
        None
    }

    /// As C has it, from the row at this index.
    pub(crate) fn raw(&self, index: GidIndex) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: self.destination.bytes() },
                flow_label: self.flow_label,
                sgid_index: index.get(),
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: self.lid.0,
            sl: self.service_level,
            src_path_bits: self.source_path_bits,
            static_rate: self.static_rate,
            is_global: self.source.is_some().into(),
            port_num: self.port.get(),
        }
    }

    /// Makes something of the address by `attempt`, and makes sure that it was made from this row; see
    /// [`Context::with_row`]. Gives also the row as it is now.
    pub(crate) fn make<T>(
        &self,
        context: &Context,
        mut attempt: impl FnMut(&ibv_ah_attr) -> Result<T>,
    ) -> Result<(T, Option<GidEntry>)> {
        match &self.source {
            None => attempt(&self.raw(GidIndex::new(0))).map(|made| (made, None)),
            Some(row) => {
                let (made, row) = context.with_row(row, |index| attempt(&self.raw(index)))?;
                Ok((made, Some(row)))
            }
        }
    }
}
