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

/// A queue key (`qkey`): what a datagram must carry for a queue pair to take it. One with the highest bit is
/// privileged: a send that names it carries the sending queue pair's own instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QKey(u32);

impl QKey {
    /// From the number, in host order.
    pub const fn new(qkey: u32) -> QKey {
        QKey(qkey)
    }

    /// The number, in host order.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({:#010x})", self.0)
    }
}

/// A queue pair's number (`qp_num`), of 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// A queue pair number; `None` for more than 24 bits.
    pub const fn new(number: u32) -> Option<Qpn> {
        if number < 1 << 24 { Some(Qpn(number)) } else { None }
    }

    /// What datagrams to a multicast group name in the place of a queue pair.
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// The number as a device gave it; bits above the 24th are dropped.
    pub(crate) const fn from_raw(number: u32) -> Qpn {
        Qpn(number & 0xff_ffff)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A packet sequence number (`sq_psn`, `rq_psn`), of 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// A packet sequence number; `None` for more than 24 bits.
    pub const fn new(number: u32) -> Option<Psn> {
        if number < 1 << 24 { Some(Psn(number)) } else { None }
    }

    /// One that nobody knows beforehand: packets of an earlier connection between the same queue pairs
    /// are then taken for what they are.
    pub fn random() -> Psn {
        use std::hash::{BuildHasher, Hasher};
        // The standard library's keys are random for each process and differ at each call.
        let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
        Psn((random >> 40) as u32)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// The smallest code whose [`encoded_time`] is at least this long; 31 for what is longer than all.
pub(crate) fn time_code(time: Duration) -> u8 {
    (0..31).find(|code| encoded_time(*code) >= time).unwrap_or(31)
}

/// The delays of `min_rnr_timer`, in units of 10 µs, by their code.
const RNR_DELAYS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The smallest code of `min_rnr_timer` whose delay is at least this long: 10 µs to 655.36 ms, which
/// is code 0 and the longest.
pub(crate) fn rnr_code(delay: Duration) -> u8 {
    let units = delay.as_nanos().div_ceil(10_000);
    let fits = |code: &u8| u128::from(RNR_DELAYS[usize::from(*code)]) >= units;
    (1..32).find(fits).unwrap_or(0)
}

/// The delay that a code of `min_rnr_timer` stands for.
pub(crate) fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(10 * u64::from(RNR_DELAYS[usize::from(code & 0x1f)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_what_can_be_said() {
        assert_eq!(time_code(Duration::ZERO), 0);
        assert_eq!(time_code(Duration::from_nanos(1)), 1);
        assert_eq!(time_code(Duration::from_nanos(8192)), 1);
        assert_eq!(time_code(Duration::from_nanos(8193)), 2);
        assert_eq!(time_code(Duration::from_millis(67)), 14, "67.1 ms, what most programs use");
        assert_eq!(time_code(Duration::MAX), 31);
        assert_eq!(rnr_code(Duration::ZERO), 1, "10 us: 0 would be the longest");
        assert_eq!(rnr_code(Duration::from_micros(640)), 12);
        assert_eq!(rnr_code(Duration::from_micros(641)), 13);
        assert_eq!(rnr_code(Duration::from_micros(491_520)), 31);
        assert_eq!(rnr_code(Duration::from_millis(500)), 0);
        assert_eq!(rnr_code(Duration::MAX), 0);
        assert!((0..32).all(|code| rnr_code(rnr_delay(code)) == code));
        assert!((0..32).all(|code| time_code(encoded_time(code)) == code));
    }

    #[test]
    fn queue_pair_and_packet_numbers_have_24_bits() {
        assert_eq!(Qpn::new(0xff_ffff).map(Qpn::get), Some(0xff_ffff));
        assert_eq!((Qpn::new(1 << 24), Psn::new(1 << 24)), (None, None));
        assert!((0..100).all(|_| Psn::random().get() < 1 << 24));
        assert!((0..100).any(|_| Psn::random() != Psn::random()));
    }

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
