//! The ports of a device.

use std::time::Duration;

use crate::sys::PortAttrRaw;
use crate::types::{Lid, LinkLayer, Mtu, PortNum, PortState, encoded_time};

/// A port's attributes as of one call (`struct ibv_port_attr`, `ibv_query_port`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// The port asked.
    pub port: PortNum,
    /// Its logical state; only [`PortState::ACTIVE`] carries data.
    pub state: PortState,
    /// What its link speaks.
    pub link_layer: LinkLayer,
    /// The largest MTU it supports.
    pub max_mtu: Mtu,
    /// The MTU in use, which bounds a path's. Follows the interface's MTU without an event.
    pub active_mtu: Mtu,
    /// How many rows its GID table can hold (`gid_tbl_len`); 0 on iWARP.
    pub gid_table_len: u32,
    /// How many rows its P_Key table can hold (`pkey_tbl_len`).
    pub pkey_table_len: u16,
    /// The largest message, in bytes.
    pub max_message_size: u32,
    /// Its base LID; 0 on Ethernet.
    pub lid: Lid,
    /// How many low bits of the LID are path bits.
    pub lmc: u8,
    /// The subnet manager's LID; 0 on Ethernet.
    pub sm_lid: Lid,
    /// The service level towards the subnet manager.
    pub sm_sl: u8,
    /// The longest time a packet takes through the subnet: 4.096 µs × 2^code, 0 for none told.
    pub subnet_timeout: Duration,
    /// Packets dropped for a bad P_Key.
    pub bad_pkey_count: u32,
    /// Packets dropped for a bad Q_Key.
    pub qkey_violation_count: u32,
    /// Capabilities (`IBV_PORT_CAP_*`), bit by bit.
    pub capabilities: u32,
    /// More capabilities (`IBV_PORT_CAP2_*`); 0 where the provider does not tell.
    pub capabilities2: u16,
    /// Link width code: 1, 2, 4, 8, 16 for 1x, 4x, 8x, 12x, 2x lanes.
    pub active_width: u8,
    /// Link speed code: 1, 2, 4, 8, 16, 32, 64 for 2.5, 5, 10, 10, 14, 25, 50 Gb/s a lane.
    pub active_speed: u8,
    /// Physical state code: 3 disabled, 5 link up …
    pub phys_state: u8,
    /// Whether every packet needs a global route (`IBV_QPF_GRH_REQUIRED`): then, and on
    /// Ethernet, an address without one is refused.
    pub grh_required: bool,
}

impl PortAttr {
    /// Whether an address on this port needs a GID: on Ethernet, and where the port says so.
    pub fn needs_gid(&self) -> bool {
        self.grh_required || self.link_layer == LinkLayer::ETHERNET
    }

    pub(crate) fn from_raw(port: PortNum, raw: &PortAttrRaw) -> PortAttr {
        const GRH_REQUIRED: u8 = 1 << 0;
        PortAttr {
            port,
            state: PortState::from_raw(raw.state),
            link_layer: LinkLayer::from_raw(raw.link_layer),
            max_mtu: Mtu::from_raw(raw.max_mtu),
            active_mtu: Mtu::from_raw(raw.active_mtu),
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_table_len: raw.pkey_tbl_len,
            max_message_size: raw.max_msg_sz,
            lid: Lid(raw.lid),
            lmc: raw.lmc,
            sm_lid: Lid(raw.sm_lid),
            sm_sl: raw.sm_sl,
            subnet_timeout: encoded_time(raw.subnet_timeout),
            bad_pkey_count: raw.bad_pkey_cntr,
            qkey_violation_count: raw.qkey_viol_cntr,
            capabilities: raw.port_cap_flags,
            capabilities2: raw.port_cap_flags2,
            active_width: raw.active_width,
            active_speed: raw.active_speed,
            phys_state: raw.phys_state,
            grh_required: raw.flags & GRH_REQUIRED != 0,
        }
    }
}
