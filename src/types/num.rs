//! Newtypes over the integers that come from the kernel, a device or a peer. Unknown values are
//! carried as the numbers they are.

use std::fmt;
use std::num::NonZeroU8;
use std::time::Duration;

/// A port of a device, counted from 1 (`port_num` in C).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNum(NonZeroU8);

impl PortNum {
    /// The first port, the only one most devices have.
    pub const FIRST: PortNum = PortNum(NonZeroU8::MIN);

    /// A port number; `None` for 0, which no port has.
    pub const fn new(port: u8) -> Option<PortNum> {
        match NonZeroU8::new(port) {
            Some(port) => Some(PortNum(port)),
            None => None,
        }
    }

    /// The number, 1 to 255.
    pub const fn get(self) -> u8 {
        self.0.get()
    }
}

impl fmt::Debug for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A 64-bit identifier burnt into (or made up for) a device: `node_guid`, `sys_image_guid`.
///
/// Kept in host order; prints as the tools do, `5054:00ff:fe12:3456`. Zero means the device has
/// none yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(u64);

impl Guid {
    /// From the network-order number that the C calls give.
    pub const fn from_be(raw: u64) -> Guid {
        Guid(u64::from_be(raw))
    }

    /// From a number in host order.
    pub const fn new(guid: u64) -> Guid {
        Guid(guid)
    }

    /// The number in host order.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = self.0;
        write!(
            f,
            "{:04x}:{:04x}:{:04x}:{:04x}",
            g >> 48,
            g >> 32 & 0xffff,
            g >> 16 & 0xffff,
            g & 0xffff
        )
    }
}

/// A remote key (`rkey`): what a peer must present to read, write or do atomics on memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RKey(u32);

impl RKey {
    /// From the number, in host order.
    pub const fn new(rkey: u32) -> RKey {
        RKey(rkey)
    }

    /// The number, in host order.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The same key with its low 8 bits, the owner's own tag, moved on by one and wrapping.
    #[doc(alias = "ibv_inc_rkey")]
    pub const fn next_tag(self) -> RKey {
        RKey(self.0 & !0xff | self.0.wrapping_add(1) & 0xff)
    }
}

impl fmt::Debug for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKey({:#010x})", self.0)
    }
}

/// A partition key: 15 bits that name a partition, and above them the bit of full membership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKey(u16);

impl PKey {
    /// The default partition, as a full member: the only P_Key on most RoCE devices.
    pub const DEFAULT: PKey = PKey(0xffff);
    /// What an empty table row holds.
    pub const EMPTY: PKey = PKey(0);

    /// From the number, in host order.
    pub const fn new(pkey: u16) -> PKey {
        PKey(pkey)
    }

    /// The number, in host order.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether this is what an empty row holds: no partition, whatever the membership bit.
    pub const fn is_empty(self) -> bool {
        self.0 & 0x7fff == 0
    }

    /// Whether the membership is full. Limited members can talk to full ones only.
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// The same partition as a full member.
    pub const fn full(self) -> PKey {
        PKey(self.0 | 0x8000)
    }

    /// The same partition as a limited member.
    pub const fn limited(self) -> PKey {
        PKey(self.0 & 0x7fff)
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A GID table index that verbs can carry: `sgid_index` has 8 bits. Rows beyond 255 can be found
/// and seen, but not used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GidIndex(u8);

impl GidIndex {
    /// An index as it is; [`GidEntry::gid_index`](super::GidEntry::gid_index) is that of a row.
    pub const fn new(index: u8) -> GidIndex {
        GidIndex(index)
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for GidIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An InfiniBand local identifier. 0 on Ethernet, where there is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lid(pub u16);

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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

/// The time a device encodes in 5 bits, as in `subnet_timeout`: 4.096 µs × 2^code, 0 for none.
pub(crate) fn encoded_time(code: u8) -> Duration {
    match code & 0x1f {
        0 => Duration::ZERO,
        code => Duration::from_nanos(4096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_zero_is_no_port() {
        assert_eq!(PortNum::new(0), None);
        assert_eq!(PortNum::new(255).map(PortNum::get), Some(255));
    }

    #[test]
    fn guid_prints_like_the_tools() {
        assert_eq!(Guid::new(0x0002_c903_00a1_b2c3).to_string(), "0002:c903:00a1:b2c3");
        assert_eq!(Guid::from_be(0x0002_c903_00a1_b2c3_u64.to_be()).get(), 0x0002_c903_00a1_b2c3);
    }

    /// The C function wraps; rdma-sys 0.3 adds before it masks and overflows at the maximum.
    #[test]
    fn rkey_tag_wraps_at_the_maximum() {
        assert_eq!(RKey::new(0x1234_5600).next_tag(), RKey::new(0x1234_5601));
        assert_eq!(RKey::new(0x1234_56ff).next_tag(), RKey::new(0x1234_5600));
        assert_eq!(RKey::new(u32::MAX).next_tag(), RKey::new(0xffff_ff00));
    }

    #[test]
    fn unknown_numbers_are_carried() {
        assert_eq!(PortState::from_raw(9).to_string(), "unknown (9)");
        assert_eq!(PortState::from_raw(9).raw(), 9);
        assert_eq!(Mtu::B4096.bytes(), Some(4096));
        assert_eq!(Mtu::B256.bytes(), Some(256));
        assert_eq!(Mtu::from_raw(6).bytes(), None);
        assert_eq!(format!("[{:>6}]", PortState::DOWN), "[  DOWN]");
    }

    #[test]
    fn encoded_times() {
        assert_eq!(encoded_time(0), Duration::ZERO);
        assert_eq!(encoded_time(1), Duration::from_nanos(8192));
        assert_eq!(encoded_time(31), Duration::from_nanos(4096 << 31));
    }
}
