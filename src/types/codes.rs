//! C enumerations as newtypes over their integers: constants, a name for each, unknown values carried.

use std::fmt;

/// Declares a newtype over a C enumeration: constants, a name for each, unknown values carried.
macro_rules! c_enum {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$cdoc:meta])* $constant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($repr);

        impl $name {
            $($(#[$cdoc])* pub const $constant: $name = $name($value);)*

            /// From the number as C has it; any number is carried.
            pub const fn from_raw(raw: $repr) -> $name {
                $name(raw)
            }

            /// The number as C has it.
            pub const fn raw(self) -> $repr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($value => f.pad($text),)*
                    other => f.pad(&format!("unknown ({other})")),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(crate) use c_enum;

c_enum! {
    /// The logical state of a port (`enum ibv_port_state`). Only an active port carries data.
    PortState(u32) {
        /// The port does not say.
        NOP = 0, "NOP";
        /// No link.
        DOWN = 1, "DOWN";
        /// Link, but no subnet manager has set it up yet.
        INIT = 2, "INIT";
        /// Set up, waiting to be activated.
        ARMED = 3, "ARMED";
        /// In use.
        ACTIVE = 4, "ACTIVE";
        /// In use, after a link error that may heal.
        ACTIVE_DEFER = 5, "ACTIVE_DEFER";
    }
}

c_enum! {
    /// What a port's link speaks (`IBV_LINK_LAYER_*`): it decides how GIDs and paths look.
    LinkLayer(u8) {
        /// Not told; InfiniBand on old devices.
        UNSPECIFIED = 0, "Unspecified";
        /// InfiniBand: addressed by LID, GIDs are the subnet's own.
        INFINIBAND = 1, "InfiniBand";
        /// Ethernet: RoCE, GIDs are IP addresses.
        ETHERNET = 2, "Ethernet";
    }
}

c_enum! {
    /// A path MTU, as its code in C (`enum ibv_mtu`); [`Mtu::bytes`] gives the size.
    Mtu(u32) {
        /// 256 bytes.
        B256 = 1, "256";
        /// 512 bytes.
        B512 = 2, "512";
        /// 1024 bytes.
        B1024 = 3, "1024";
        /// 2048 bytes.
        B2048 = 4, "2048";
        /// 4096 bytes.
        B4096 = 5, "4096";
    }
}

c_enum! {
    /// What a device is on its network (`enum ibv_node_type`).
    NodeType(i32) {
        /// A channel adapter: InfiniBand or RoCE.
        CA = 1, "CA";
        /// A switch.
        SWITCH = 2, "switch";
        /// A router.
        ROUTER = 3, "router";
        /// An iWARP NIC.
        RNIC = 4, "RNIC";
        /// usNIC.
        USNIC = 5, "usNIC";
        /// usNIC over UDP.
        USNIC_UDP = 6, "usNIC UDP";
        /// Some other device.
        UNSPECIFIED = 7, "unspecified";
    }
}

c_enum! {
    /// A device's transport (`enum ibv_transport_type`).
    TransportType(i32) {
        /// InfiniBand, and RoCE.
        IB = 0, "InfiniBand";
        /// iWARP.
        IWARP = 1, "iWARP";
        /// usNIC.
        USNIC = 2, "usNIC";
        /// usNIC over UDP.
        USNIC_UDP = 3, "usNIC UDP";
        /// Some other transport.
        UNSPECIFIED = 4, "unspecified";
    }
}

c_enum! {
    /// Which atomics are atomic (`enum ibv_atomic_cap`).
    AtomicCap(u32) {
        /// There are no atomics.
        NONE = 0, "ATOMIC_NONE";
        /// Among queue pairs of the device, not with the CPU.
        HCA = 1, "ATOMIC_HCA";
        /// Also with the CPU and other devices.
        GLOBAL = 2, "ATOMIC_GLOB";
    }
}

c_enum! {
    /// A kind of memory window (`enum ibv_mw_type`).
    WindowType(u32) {
        /// Of a protection domain: bound through any of its queue pairs, and used through any.
        TYPE_1 = 1, "type 1";
        /// Of one queue pair: bound by a work request of it, used by its peer, invalidated by either.
        TYPE_2 = 2, "type 2";
    }
}

c_enum! {
    /// A link's physical state.
    PhysState(u8) {
        /// Asleep.
        SLEEP = 1, "SLEEP";
        /// Looking for a partner.
        POLLING = 2, "POLLING";
        /// Switched off.
        DISABLED = 3, "DISABLED";
        /// Training.
        TRAINING = 4, "PORT_CONFIGURATION TRAINNING";
        /// Up.
        LINK_UP = 5, "LINK_UP";
        /// Recovering from errors.
        LINK_ERROR_RECOVERY = 6, "LINK_ERROR_RECOVERY";
        /// Under test.
        PHY_TEST = 7, "PHY TEST";
    }
}

c_enum! {
    /// A link's width, as its code.
    LinkWidth(u8) {
        /// One lane.
        X1 = 1, "1X";
        /// Four lanes.
        X4 = 2, "4X";
        /// Eight lanes.
        X8 = 4, "8X";
        /// Twelve lanes.
        X12 = 8, "12X";
        /// Two lanes.
        X2 = 16, "2X";
    }
}

c_enum! {
    /// A link's speed, of one lane, as its code.
    LinkSpeed(u32) {
        /// 2.5 Gb/s.
        SDR = 1, "2.5 Gbps";
        /// 5 Gb/s.
        DDR = 2, "5.0 Gbps";
        /// 10 Gb/s.
        QDR = 4, "10.0 Gbps";
        /// 10 Gb/s, with a lighter encoding.
        FDR10 = 8, "10.0 Gbps";
        /// 14 Gb/s.
        FDR = 16, "14.0 Gbps";
        /// 25 Gb/s.
        EDR = 32, "25.0 Gbps";
        /// 50 Gb/s.
        HDR = 64, "50.0 Gbps";
        /// 100 Gb/s.
        NDR = 128, "100.0 Gbps";
        /// 200 Gb/s.
        XDR = 256, "200.0 Gbps";
    }
}

impl Mtu {
    /// The size in bytes; `None` for a code this crate does not know.
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_are_carried() {
        assert_eq!(PortState::from_raw(9).to_string(), "unknown (9)");
        assert_eq!(PortState::from_raw(9).raw(), 9);
        assert_eq!(Mtu::B4096.bytes(), Some(4096));
        assert_eq!(Mtu::B256.bytes(), Some(256));
        assert_eq!(Mtu::from_raw(6).bytes(), None);
        assert_eq!(format!("[{:>6}]", PortState::DOWN), "[  DOWN]");
    }
}
