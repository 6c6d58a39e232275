//! Sets of capabilities, as the bits that C has. Unknown bits are carried.

use std::fmt;

/// Declares a newtype over a set of bits: constants, and the names of those that are set.
macro_rules! c_flags {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$cdoc:meta])* $constant:ident = $bit:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($repr);

        impl $name {
            $($(#[$cdoc])* pub const $constant: $name = $name(1 << $bit);)*

            /// From the bits as C has them; any are carried.
            pub const fn from_bits(bits: $repr) -> $name {
                $name(bits)
            }

            /// The bits as C has them.
            pub const fn bits(self) -> $repr {
                self.0
            }

            /// Whether all bits of `other` are set.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// The names of the bits that are set and known, in the order of the bits.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$(($name::$constant, stringify!($constant)),)*]
                    .into_iter()
                    .filter_map(move |(flag, name)| self.contains(flag).then_some(name))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x}", stringify!($name), self.0)?;
                self.names().try_for_each(|name| write!(f, " {name}"))?;
                f.write_str(")")
            }
        }
    };
}

c_flags! {
    /// What a device can do (`enum ibv_device_cap_flags`, and the upper half of the extended ones).
    DeviceCaps(u64) {
        /// Work request depths can be changed.
        RESIZE_MAX_WR = 0;
        /// Packets dropped for a bad P_Key are counted.
        BAD_PKEY_CNTR = 1;
        /// Packets dropped for a bad Q_Key are counted.
        BAD_QKEY_CNTR = 2;
        /// Raw packets can be multicast.
        RAW_MULTI = 3;
        /// Paths migrate by themselves.
        AUTO_PATH_MIG = 4;
        /// A queue pair can move to another port.
        CHANGE_PHY_PORT = 5;
        /// The port of a datagram's address handle is checked.
        UD_AV_PORT_ENFORCE = 6;
        /// A modification can be made to depend on the present state.
        CURR_QP_STATE_MOD = 7;
        /// A port can be shut down.
        SHUTDOWN_PORT = 8;
        /// A port's initialisation type can be set.
        INIT_TYPE = 9;
        /// A port that comes up raises an event.
        PORT_ACTIVE_EVENT = 10;
        /// The system image GUID is told.
        SYS_IMAGE_GUID = 11;
        /// Receiver-not-ready is told to RC senders.
        RC_RNR_NAK_GEN = 12;
        /// A shared receive queue can be resized.
        SRQ_RESIZE = 13;
        /// A notification can be asked for after several completions.
        N_NOTIFY_CQ = 14;
        /// Memory windows.
        MEM_WINDOW = 17;
        /// IP checksums on UD.
        UD_IP_CSUM = 18;
        /// XRC queue pairs.
        XRC = 20;
        /// Fast registration, local invalidate, send with invalidate.
        MEM_MGT_EXTENSIONS = 21;
        /// Memory windows of type 2A.
        MEM_WINDOW_TYPE_2A = 23;
        /// Memory windows of type 2B.
        MEM_WINDOW_TYPE_2B = 24;
        /// IP checksums on RC.
        RC_IP_CSUM = 25;
        /// IP checksums on raw packets.
        RAW_IP_CSUM = 26;
        /// Flow steering.
        MANAGED_FLOW_STEERING = 29;
        /// Frame check sequences are delivered with raw packets.
        RAW_SCATTER_FCS = 34;
        /// Writes to memory are padded to whole cache lines.
        PCI_WRITE_END_PADDING = 36;
    }
}

c_flags! {
    /// What a port can do (`enum ibv_port_cap_flags`): InfiniBand's PortInfo:CapabilityMask.
    PortCaps(u32) {
        /// The subnet manager runs on it.
        SM = 1;
        /// Notices.
        NOTICE_SUP = 2;
        /// Traps.
        TRAP_SUP = 3;
        /// Inter-packet delays.
        OPT_IPD_SUP = 4;
        /// Automatic path migration.
        AUTO_MIGR_SUP = 5;
        /// Service levels map to virtual lanes.
        SL_MAP_SUP = 6;
        /// The M_Key is kept over a reset.
        MKEY_NVRAM = 7;
        /// P_Keys are kept over a reset.
        PKEY_NVRAM = 8;
        /// LEDs.
        LED_INFO_SUP = 9;
        /// The system image GUID is told.
        SYS_IMAGE_GUID_SUP = 11;
        /// P_Key violations of a switch's external port are told.
        PKEY_SW_EXT_PORT_TRAP_SUP = 12;
        /// Link speeds above 10 Gb/s a lane.
        EXTENDED_SPEEDS_SUP = 14;
        /// There is a second mask.
        CAP_MASK2_SUP = 15;
        /// The communication manager.
        CM_SUP = 16;
        /// SNMP.
        SNMP_TUNNEL_SUP = 17;
        /// Re-initialisation.
        REINIT_SUP = 18;
        /// Device management.
        DEVICE_MGMT_SUP = 19;
        /// A vendor's class of management.
        VENDOR_CLASS_SUP = 20;
        /// Notices by directed routes.
        DR_NOTICE_SUP = 21;
        /// Notices of a changed mask.
        CAP_MASK_NOTICE_SUP = 22;
        /// Boot management.
        BOOT_MGMT_SUP = 23;
        /// The link's latency is told.
        LINK_LATENCY_SUP = 24;
        /// Clients can be asked to register again.
        CLIENT_REG_SUP = 25;
        /// GIDs are IP addresses.
        IP_BASED_GIDS = 26;
    }
}

c_flags! {
    /// What a peer may do with memory (`enum ibv_access_flags`, the remote ones). Nothing, unless asked.
    RemoteAccess(u32) {
        /// RDMA writes.
        WRITE = 1;
        /// RDMA reads.
        READ = 2;
        /// Atomics.
        ATOMIC = 3;
    }
}

c_flags! {
    /// What can be done with memory that is paged on demand (`enum ibv_odp_transport_cap_bits`), of one
    /// transport.
    OdpCaps(u32) {
        /// Sending it.
        SEND = 0;
        /// Receiving into it.
        RECV = 1;
        /// Writing from it.
        WRITE = 2;
        /// Reading into it.
        READ = 3;
        /// Atomics on it.
        ATOMIC = 4;
        /// Receiving into it by a shared receive queue.
        SRQ_RECV = 5;
    }
}

c_flags! {
    /// Transports, as the bits of `enum ibv_qp_type`.
    TransportCaps(u32) {
        /// Reliable connected.
        RC = 2;
        /// Unreliable connected.
        UC = 3;
        /// Unreliable datagram.
        UD = 4;
        /// Raw packets.
        RAW_PACKET = 8;
        /// XRC, the sending side.
        XRC_SEND = 9;
        /// XRC, the receiving side.
        XRC_RECV = 10;
    }
}

c_flags! {
    /// What can be done with raw packets (`enum ibv_raw_packet_caps`).
    RawPacketCaps(u32) {
        /// VLAN tags are taken off what is received.
        CVLAN_STRIPPING = 0;
        /// Frame check sequences are delivered.
        SCATTER_FCS = 1;
        /// IP checksums.
        IP_CSUM = 2;
        /// What finds no receive is kept for a while.
        DELAY_DROP = 3;
    }
}

c_flags! {
    /// Sizes of an operand (`enum ibv_pci_atomic_op_size`).
    PciAtomicSizes(u16) {
        /// 4 bytes.
        BYTES_4 = 0;
        /// 8 bytes.
        BYTES_8 = 1;
        /// 16 bytes.
        BYTES_16 = 2;
    }
}

impl std::ops::BitOr for RemoteAccess {
    type Output = RemoteAccess;

    fn bitor(self, other: RemoteAccess) -> RemoteAccess {
        RemoteAccess::from_bits(self.bits() | other.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_bits_have_names_and_unknown_ones_are_carried() {
        let caps = PortCaps::from_bits(1 << 16 | 1 << 26 | 1 << 31);
        assert_eq!(caps.names().collect::<Vec<_>>(), ["CM_SUP", "IP_BASED_GIDS"]);
        assert!(caps.contains(PortCaps::IP_BASED_GIDS));
        assert!(!caps.contains(PortCaps::SM));
        assert_eq!(format!("{caps:?}"), "PortCaps(0x84010000 CM_SUP IP_BASED_GIDS)");
        assert_eq!(caps.bits(), 0x8401_0000);
    }
}
