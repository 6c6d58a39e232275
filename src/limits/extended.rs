//! What newer kernels and drivers tell of a device.

use std::time::Duration;

use crate::sys::DeviceAttrRaw;
use crate::types::{OdpCaps, PciAtomicSizes, RawPacketCaps, TransportCaps};

/// The rest of `struct ibv_device_attr_ex`. All of it is zero, or empty, where the kernel or the driver is
/// too old to tell, and where the device has none of it: rxe is such a one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtendedLimits {
    /// Memory that is registered without being locked.
    pub on_demand_paging: OnDemandPaging,
    /// The longest message that the device cuts into packets (TSO), in bytes.
    pub max_tso: u32,
    /// Transports on which it does.
    pub tso: TransportCaps,
    /// Transports whose receives can be spread over several queues by a hash (RSS).
    pub rss: TransportCaps,
    /// Tables of queues for that.
    pub max_rwq_indirection_tables: u32,
    /// Queues of one such table.
    pub max_rwq_indirection_table_size: u32,
    /// What of a packet can be hashed, as the bits of `enum ibv_rx_hash_fields`.
    pub rx_hash_fields: u64,
    /// Hash functions, as the bits of `enum ibv_rx_hash_function_flags`.
    pub rx_hash_functions: u8,
    /// Receive work queues.
    pub max_wq_type_rq: u32,
    /// Packets at a rate of the program's.
    pub packet_pacing: PacketPacing,
    /// Raw packet queue pairs (`max_raw_ethy_qp`).
    pub max_raw_packet_qp: u32,
    /// What can be done with raw packets.
    pub raw_packets: RawPacketCaps,
    /// Shared receive queues that match tags.
    pub tag_matching: TagMatching,
    /// How many completions one event can be asked for.
    pub cq_moderation_count: u16,
    /// How long an event can be held back.
    pub cq_moderation_period: Duration,
    /// Atomics of the device on the host's memory, over PCI.
    pub pci_atomics: PciAtomics,
    /// Ports, where they are more than 255 (`phys_port_cnt_ex`); see [`ports`](crate::DeviceLimits::ports).
    pub phys_port_cnt: u32,
}

/// Memory that is registered without being locked (`struct ibv_odp_caps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnDemandPaging {
    /// The bits of `enum ibv_odp_general_caps`.
    pub general: u64,
    /// On RC.
    pub rc: OdpCaps,
    /// On UC.
    pub uc: OdpCaps,
    /// On UD.
    pub ud: OdpCaps,
    /// On XRC.
    pub xrc: OdpCaps,
}

impl OnDemandPaging {
    /// Whether there is any (`IBV_ODP_SUPPORT`).
    pub const fn is_supported(&self) -> bool {
        self.general & 1 != 0
    }

    /// Whether the whole address space can be one region (`IBV_ODP_SUPPORT_IMPLICIT`).
    pub const fn is_implicit(&self) -> bool {
        self.general & 2 != 0
    }
}

/// Packets at a rate of the program's (`struct ibv_packet_pacing_caps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketPacing {
    /// The lowest rate, in kbit/s.
    pub rate_min_kbps: u32,
    /// The highest rate, in kbit/s; 0 where there is no pacing.
    pub rate_max_kbps: u32,
    /// Transports with it.
    pub transports: TransportCaps,
}

/// Shared receive queues that match tags (`struct ibv_tm_caps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagMatching {
    /// The longest header of a rendezvous, in bytes.
    pub max_rndv_hdr_size: u32,
    /// Tagged buffers of one queue; 0 where there is no matching.
    pub max_num_tags: u32,
    /// The bits of `enum ibv_tm_cap_flags`.
    pub flags: u32,
    /// Changes of the list that can be under way.
    pub max_ops: u32,
    /// Scatter entries of a tagged buffer.
    pub max_sge: u32,
}

/// Atomics over PCI, by the size of the operand (`struct ibv_pci_atomic_caps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciAtomics {
    /// Fetch-and-add.
    pub fetch_add: PciAtomicSizes,
    /// Swap.
    pub swap: PciAtomicSizes,
    /// Compare-and-swap.
    pub compare_swap: PciAtomicSizes,
}

impl ExtendedLimits {
    pub(super) fn from_raw(raw: &DeviceAttrRaw) -> ExtendedLimits {
        let [rc, uc, ud] = raw.odp_caps.per_transport_caps.map(OdpCaps::from_bits);
        let [max_tso, tso] = raw.tso_caps;
        let [rate_min_kbps, rate_max_kbps, paced] = raw.packet_pacing_caps;
        let [max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge] = raw.tm_caps;
        let [fetch_add, swap, compare_swap] = raw.pci_atomic_caps.map(PciAtomicSizes::from_bits);
        ExtendedLimits {
            on_demand_paging: OnDemandPaging {
                general: raw.odp_caps.general_caps,
                rc,
                uc,
                ud,
                xrc: OdpCaps::from_bits(raw.xrc_odp_caps),
            },
            max_tso,
            tso: TransportCaps::from_bits(tso),
            rss: TransportCaps::from_bits(raw.rss_caps.supported_qpts),
            max_rwq_indirection_tables: raw.rss_caps.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: raw.rss_caps.max_rwq_indirection_table_size,
            rx_hash_fields: raw.rss_caps.rx_hash_fields_mask,
            rx_hash_functions: raw.rss_caps.rx_hash_function,
            max_wq_type_rq: raw.max_wq_type_rq,
            packet_pacing: PacketPacing {
                rate_min_kbps,
                rate_max_kbps,
                transports: TransportCaps::from_bits(paced),
            },
            max_raw_packet_qp: u32::try_from(raw.orig_attr.max_raw_ethy_qp).unwrap_or(0),
            raw_packets: RawPacketCaps::from_bits(raw.raw_packet_caps),
            tag_matching: TagMatching { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge },
            cq_moderation_count: raw.cq_mod_caps.max_cq_count,
            cq_moderation_period: Duration::from_micros(raw.cq_mod_caps.max_cq_period.into()),
            pci_atomics: PciAtomics { fetch_add, swap, compare_swap },
            phys_port_cnt: raw.phys_port_cnt_ex,
        }
    }
}
