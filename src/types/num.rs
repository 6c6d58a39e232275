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
    fn encoded_times() {
        assert_eq!(encoded_time(0), Duration::ZERO);
        assert_eq!(encoded_time(1), Duration::from_nanos(8192));
        assert_eq!(encoded_time(31), Duration::from_nanos(4096 << 31));
    }
}
