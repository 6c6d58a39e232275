//! What a device is and how much it gives. `extended`: what newer kernels and drivers tell besides.

mod extended;

use std::ffi::CStr;
use std::time::Duration;

use crate::sys::DeviceAttrRaw;
use crate::types::{AtomicCap, Capabilities, Capability, DeviceCaps, DeviceTime, Guid};

pub use extended::{ExtendedLimits, OnDemandPaging, PacketPacing, PciAtomics, TagMatching};

/// A device's identity and limits (`struct ibv_device_attr_ex`, `ibv_query_device_ex`), asked
/// once when it was opened.
///
/// Limits are the most that one object may ask for, or the most of them there can be; whether the
/// memory for it is to be had is another matter. A limit the device tells as negative is 0 here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// The firmware's version, in the vendor's own form; empty on software devices.
    pub fw_ver: Box<str>,
    /// The device's own GUID.
    pub node_guid: Guid,
    /// The GUID of the card or machine it is part of.
    pub sys_image_guid: Guid,
    /// The vendor's IEEE number.
    pub vendor_id: u32,
    /// The vendor's number for this kind of device.
    pub vendor_part_id: u32,
    /// The hardware's version.
    pub hw_ver: u32,
    /// Ports, counted from 1.
    pub ports: u32,
    /// Completion vectors: 0 to one less can be asked for.
    pub completion_vectors: u32,
    /// Largest memory region, in bytes.
    pub max_mr_size: u64,
    /// Page sizes it can map, as a set: bit n for 2^n bytes.
    pub page_size_cap: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests on one queue of a queue pair.
    pub max_qp_wr: u32,
    /// What the device can do; the upper half is empty where it is not told.
    pub capabilities: DeviceCaps,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Scatter/gather entries of one RDMA read (`max_sge_rd`; iWARP devices have fewer).
    pub max_sge_rd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// RDMA reads and atomics that one queue pair can answer at a time.
    pub max_qp_rd_atom: u32,
    /// RDMA reads and atomics that one queue pair can have under way.
    pub max_qp_init_rd_atom: u32,
    /// RDMA reads and atomics that the whole device can answer at a time.
    pub max_res_rd_atom: u32,
    /// Which atomics are atomic.
    pub atomic_cap: AtomicCap,
    /// Memory windows.
    pub max_mw: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Queue pairs in all multicast groups together.
    pub max_total_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests on one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter entries of one work request of a shared receive queue.
    pub max_srq_sge: u32,
    /// Partitions: rows of a port's P_Key table.
    pub max_pkeys: u16,
    /// How long it takes to acknowledge, as a code: 4.096 µs × 2^code.
    pub local_ca_ack_delay: u8,
    /// On-demand paging (`IBV_ODP_*`), bit by bit; 0 where there is none.
    pub odp_capabilities: u64,
    /// The bits of a completion's time stamp; 0 where there is none.
    pub completion_timestamp_mask: u64,
    /// The rate of the device's clock, in kHz; 0 where it has none.
    pub hca_core_clock_khz: u64,
    /// Device memory, in bytes.
    pub max_dm_size: u64,
    /// What newer kernels and drivers tell besides.
    pub extended: ExtendedLimits,
}

impl DeviceLimits {
    /// What the device can do at all, as it tells: of the calls of this crate those that need one of these
    /// are refused without it, before the device is asked.
    ///
    /// That a driver can resize a completion queue is told nowhere, and so is not among them.
    pub fn supported(&self) -> Capabilities {
        let has = |flag| self.capabilities.contains(flag);
        let extended = &self.extended;
        let mut set = Capabilities::default();
        for capability in Capability::ALL {
            let there = match capability {
                Capability::Atomics => self.atomic_cap != AtomicCap::NONE,
                Capability::AtomicsWithCpu => self.atomic_cap == AtomicCap::GLOBAL,
                Capability::MemoryWindow1 => has(DeviceCaps::MEM_WINDOW),
                Capability::MemoryWindow2A => has(DeviceCaps::MEM_WINDOW_TYPE_2A),
                Capability::MemoryWindow2B => has(DeviceCaps::MEM_WINDOW_TYPE_2B),
                Capability::Invalidate => has(DeviceCaps::MEM_MGT_EXTENSIONS),
                Capability::SharedReceiveQueues => self.max_srq != 0,
                Capability::Xrc => has(DeviceCaps::XRC),
                Capability::Multicast => self.max_mcast_grp != 0,
                Capability::RawPackets => extended.max_raw_packet_qp != 0,
                Capability::FlowSteering => has(DeviceCaps::MANAGED_FLOW_STEERING),
                Capability::OnDemandPaging => extended.on_demand_paging.is_supported(),
                Capability::DeviceMemory => self.max_dm_size != 0,
                Capability::CompletionTimestamps => self.completion_timestamp_mask != 0,
                Capability::CompletionModeration => extended.cq_moderation_count != 0,
                Capability::TagMatching => extended.tag_matching.max_num_tags != 0,
                Capability::SegmentationOffload => extended.max_tso != 0,
                Capability::PacketPacing => extended.packet_pacing.rate_max_kbps != 0,
            };
            set.set(*capability, there);
        }
        set
    }

    /// How many ticks the device's clock made from one time to a later one, if it came round at most once in between;
    /// `None` of a device that tells no times.
    pub fn ticks_between(&self, earlier: DeviceTime, later: DeviceTime) -> Option<u64> {
        let mask = self.completion_timestamp_mask;
        (mask != 0).then(|| later.ticks().wrapping_sub(earlier.ticks()) & mask)
    }

    /// The same as a time, by the rate that the device tells ([`hca_core_clock_khz`](Self::hca_core_clock_khz)), to
    /// the nanosecond below; `None` of a device that tells no times, or no rate.
    pub fn time_between(&self, earlier: DeviceTime, later: DeviceTime) -> Option<Duration> {
        let ticks = self.ticks_between(earlier, later)?;
        let khz = u128::from(self.hca_core_clock_khz);
        // A tick is a million nanoseconds by the rate.
        let nanoseconds = (u128::from(ticks) * 1_000_000).checked_div(khz)?;
        Some(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }

    pub(crate) fn from_raw(raw: &DeviceAttrRaw, completion_vectors: i32) -> DeviceLimits {
        let attr = &raw.orig_attr;
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let fw_ver = attr.fw_ver.map(|c| c as u8);
        let fw_ver = CStr::from_bytes_until_nul(&fw_ver).unwrap_or_default();
        // The old field is 8 bits wide: a device with more ports tells them in the new one only.
        let ports = raw.phys_port_cnt_ex.max(attr.phys_port_cnt.into());
        DeviceLimits {
            fw_ver: fw_ver.to_string_lossy().into(),
            node_guid: Guid::from_be(attr.node_guid),
            sys_image_guid: Guid::from_be(attr.sys_image_guid),
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            ports,
            completion_vectors: count(completion_vectors),
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            capabilities: DeviceCaps::from_bits(
                raw.device_cap_flags_ex | u64::from(attr.device_cap_flags),
            ),
            max_sge: count(attr.max_sge),
            max_sge_rd: count(attr.max_sge_rd),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            max_mr: count(attr.max_mr),
            max_pd: count(attr.max_pd),
            max_qp_rd_atom: count(attr.max_qp_rd_atom),
            max_qp_init_rd_atom: count(attr.max_qp_init_rd_atom),
            max_res_rd_atom: count(attr.max_res_rd_atom),
            atomic_cap: AtomicCap::from_raw(attr.atomic_cap),
            max_mw: count(attr.max_mw),
            max_mcast_grp: count(attr.max_mcast_grp),
            max_mcast_qp_attach: count(attr.max_mcast_qp_attach),
            max_total_mcast_qp_attach: count(attr.max_total_mcast_qp_attach),
            max_ah: count(attr.max_ah),
            max_srq: count(attr.max_srq),
            max_srq_wr: count(attr.max_srq_wr),
            max_srq_sge: count(attr.max_srq_sge),
            max_pkeys: attr.max_pkeys,
            local_ca_ack_delay: attr.local_ca_ack_delay,
            odp_capabilities: raw.odp_caps.general_caps,
            completion_timestamp_mask: raw.completion_timestamp_mask,
            hca_core_clock_khz: raw.hca_core_clock,
            max_dm_size: raw.max_dm_size,
            extended: ExtendedLimits::from_raw(raw),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ops::zeroed_device_attr;
    use crate::types::{OdpCaps, PciAtomicSizes, RawPacketCaps, TransportCaps};

    #[test]
    fn a_clock_that_comes_round_goes_on() {
        let mut limits = DeviceLimits::from_raw(&zeroed_device_attr(), 1);
        let at = DeviceTime::from_ticks;
        assert_eq!(limits.ticks_between(at(1), at(2)), None);
        limits.completion_timestamp_mask = (1 << 48) - 1;
        assert_eq!(limits.ticks_between(at(10), at(15)), Some(5));
        assert_eq!(limits.ticks_between(at((1 << 48) - 3), at(2)), Some(5));
        assert_eq!(limits.time_between(at(0), at(1)), None, "no rate");
        limits.hca_core_clock_khz = 156_250;
        assert_eq!(limits.time_between(at(0), at(156_250)), Some(Duration::from_millis(1)));
        assert_eq!(limits.time_between(at(0), at(1)), Some(Duration::from_nanos(6)));
        limits.completion_timestamp_mask = u64::MAX;
        limits.hca_core_clock_khz = 1;
        let longest = limits.time_between(at(0), at(u64::MAX));
        assert_eq!(longest, Some(Duration::from_nanos(u64::MAX)), "and not beyond");
    }

    #[test]
    fn a_device_that_tells_nothing_can_do_nothing() {
        let limits = DeviceLimits::from_raw(&zeroed_device_attr(), -1);
        assert_eq!(limits.supported(), Capabilities::default());
        assert_eq!(limits.extended, ExtendedLimits::default());
        assert_eq!((limits.ports, limits.completion_vectors), (0, 0));
    }

    #[test]
    fn all_that_is_told_is_in_its_place() {
        let mut raw = zeroed_device_attr();
        raw.orig_attr.atomic_cap = 2;
        raw.orig_attr.device_cap_flags = 1 << 17 | 1 << 20 | 1 << 21 | 1 << 23 | 1 << 24;
        raw.device_cap_flags_ex = 1 << 29;
        (raw.orig_attr.max_srq, raw.orig_attr.max_mcast_grp) = (1, 1);
        raw.orig_attr.max_raw_ethy_qp = 3;
        raw.odp_caps.general_caps = 3;
        raw.odp_caps.per_transport_caps = [1, 2, 4];
        raw.xrc_odp_caps = 1 << 5;
        raw.completion_timestamp_mask = u64::MAX;
        raw.max_dm_size = 4096;
        raw.tso_caps = [1000, 1 << 8];
        raw.rss_caps.supported_qpts = 1 << 8;
        raw.packet_pacing_caps = [5, 6, 1 << 4];
        raw.raw_packet_caps = 1 << 1;
        raw.tm_caps = [1, 2, 3, 4, 5];
        raw.pci_atomic_caps = [1, 2, 4];
        (raw.cq_mod_caps.max_cq_count, raw.cq_mod_caps.max_cq_period) = (7, 8);
        raw.phys_port_cnt_ex = 300;
        let limits = DeviceLimits::from_raw(&raw, 1);
        let all: Vec<_> = limits.supported().iter().collect();
        assert_eq!(all, Capability::ALL);
        let extended = limits.extended;
        let paging = extended.on_demand_paging;
        assert!(paging.is_supported() && paging.is_implicit());
        let transports = [paging.rc, paging.uc, paging.ud, paging.xrc];
        assert_eq!(transports, [OdpCaps::SEND, OdpCaps::RECV, OdpCaps::WRITE, OdpCaps::SRQ_RECV]);
        assert_eq!((extended.max_tso, extended.tso), (1000, TransportCaps::RAW_PACKET));
        assert_eq!(
            (extended.rss, extended.raw_packets),
            (extended.tso, RawPacketCaps::SCATTER_FCS)
        );
        let pacing = extended.packet_pacing;
        assert_eq!((pacing.rate_min_kbps, pacing.rate_max_kbps), (5, 6));
        assert_eq!(pacing.transports, TransportCaps::UD);
        let tags = extended.tag_matching;
        let numbers =
            [tags.max_rndv_hdr_size, tags.max_num_tags, tags.flags, tags.max_ops, tags.max_sge];
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let pci = extended.pci_atomics;
        assert_eq!((pci.fetch_add, pci.swap), (PciAtomicSizes::BYTES_4, PciAtomicSizes::BYTES_8));
        assert_eq!(pci.compare_swap, PciAtomicSizes::BYTES_16);
        let moderation = (extended.cq_moderation_count, extended.cq_moderation_period);
        assert_eq!(moderation, (7, Duration::from_micros(8)));
        assert_eq!((limits.ports, extended.phys_port_cnt), (300, 300));
        assert_eq!(extended.max_raw_packet_qp, 3);
    }
}
