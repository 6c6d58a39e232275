//! The ports of a device.

use std::time::Duration;

use crate::sys::PortAttrRaw;
use crate::types::{Lid, LinkLayer, LinkSpeed, LinkWidth, Mtu, PhysState, PortCaps, PortNum};
use crate::types::{PortState, encoded_time};

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
    /// How many rows its GID table can hold (`gid_tbl_len`); 0 or 1 on iWARP.
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
    /// The longest time a packet takes through the subnet, as a code: 4.096 µs × 2^code, and 0 for
    /// none told. [`subnet_time`](PortAttr::subnet_time) is the time.
    pub subnet_timeout: u8,
    /// Packets dropped for a bad P_Key.
    pub bad_pkey_count: u32,
    /// Packets dropped for a bad Q_Key.
    pub qkey_violation_count: u32,
    /// What it can do.
    pub capabilities: PortCaps,
    /// More of what it can do (`IBV_PORT_CAP2_*`), bit by bit; 0 where the provider does not tell.
    pub capabilities2: u16,
    /// Virtual lanes, as a code: 1 to 4 for 1, 2, 4, 8, and 5 for 15.
    pub max_vl_num: u8,
    /// What initialisation the subnet manager did, as InfiniBand's InitTypeReply.
    pub init_type_reply: u8,
    /// The link's width.
    pub active_width: LinkWidth,
    /// The speed of one of its lanes.
    pub active_speed: LinkSpeed,
    /// The link's physical state.
    pub phys_state: PhysState,
    /// Whether every packet needs a global route (`IBV_QPF_GRH_REQUIRED`): then, and on
    /// Ethernet, an address without one is refused.
    pub grh_required: bool,
}

impl PortAttr {
    /// Whether an address on this port needs a GID: on Ethernet, and where the port says so. (On
    /// iWARP, which connects by rdma_cm only, there is no such address.)
    pub fn needs_gid(&self) -> bool {
        self.grh_required || self.link_layer == LinkLayer::ETHERNET
    }

    /// The longest time a packet takes through the subnet; zero for none told.
    pub fn subnet_time(&self) -> Duration {
        encoded_time(self.subnet_timeout)
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
            subnet_timeout: raw.subnet_timeout,
            bad_pkey_count: raw.bad_pkey_cntr,
            qkey_violation_count: raw.qkey_viol_cntr,
            capabilities: PortCaps::from_bits(raw.port_cap_flags),
            capabilities2: raw.port_cap_flags2,
            max_vl_num: raw.max_vl_num,
            init_type_reply: raw.init_type_reply,
            active_width: LinkWidth::from_raw(raw.active_width),
            active_speed: LinkSpeed::from_raw(raw.active_speed.into()),
            phys_state: PhysState::from_raw(raw.phys_state),
            grh_required: raw.flags & GRH_REQUIRED != 0,
        }
    }
}
