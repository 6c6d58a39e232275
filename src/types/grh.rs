//! The header before the bytes of a datagram.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Gid, GidType};

/// The global routing header (`struct ibv_grh`): the first 40 bytes of a buffer that a datagram was received
/// into, where the completion says that there is one
/// ([`DatagramSource::has_grh`](crate::DatagramSource::has_grh)). A view of the buffer, without a copy.
///
/// On RoCE v2 over IPv4 the IPv4 header stands in the last 20 of them, and the first 20 mean nothing. Which of
/// both it is, the bytes tell: where the first 20 are not of an IPv6 header, the last are an IPv4 header; where they
/// could be, the checksum of an IPv4 header is right, or it is not.
#[derive(Clone, Copy)]
pub struct Grh<'a> {
    bytes: &'a [u8; 40],
}

/// The next header of RoCE v1 and InfiniBand: the base transport header.
const BTH: u8 = 0x1b;

impl<'a> Grh<'a> {
    /// How long it is, in bytes, whether or not it means something.
    pub const LEN: usize = 40;

    /// The view of the front of a buffer; `None` when there are less than 40 bytes.
    pub fn of(buffer: &'a [u8]) -> Option<Grh<'a>> {
        buffer.first_chunk().map(|bytes| Grh { bytes })
    }

    /// The header and the message behind it, of a buffer as it was received; `None` when there are less than 40
    /// bytes.
    pub fn split(buffer: &'a [u8]) -> Option<(Grh<'a>, &'a [u8])> {
        let (bytes, message) = buffer.split_first_chunk()?;
        Some((Grh { bytes }, message))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8; 40] {
        self.bytes
    }

    /// The IPv4 header, if it is that.
    fn ipv4(&self) -> Option<&'a [u8; 20]> {
        let header: &[u8; 20] = self.bytes.last_chunk()?;
        // A header without options: version 4, five words.
        if header[0] != 0x45 {
            return None;
        }
        // Nobody has written the first half: devices in software leave the checksum out on their own host.
        if self.bytes[0] >> 4 != 6 {
            return Some(header);
        }
        // Its checksum makes its sum all ones.
        let words = header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        ((sum & 0xffff) + (sum >> 16) == 0xffff).then_some(header)
    }

    /// Whether it came by RoCE v2, and so by a row of that type: it is an IP header. If not, it came by InfiniBand or
    /// RoCE v1, whose next header is that of RDMA itself.
    pub fn is_roce_v2(&self) -> bool {
        self.ipv4().is_some() || self.bytes[6] != BTH
    }

    /// Whether a row of this type is what the datagram came by.
    pub(crate) fn is_of(&self, row: GidType) -> bool {
        self.is_roce_v2() == (row == GidType::ROCE_V2)
    }

    /// Where the datagram came from (`sgid`).
    pub fn source(&self) -> Gid {
        self.gid(8, 12)
    }

    /// Where it went to (`dgid`): a GID of this side, or a multicast group.
    pub fn destination(&self) -> Gid {
        self.gid(24, 16)
    }

    fn gid(&self, at: usize, at_v4: usize) -> Gid {
        match self.ipv4() {
            Some(header) => {
                let part = |n: usize| header.get(at_v4 + n).copied().unwrap_or(0);
                Gid::from(Ipv4Addr::new(part(0), part(1), part(2), part(3)))
            }
            None => {
                let bits = self.bytes.iter().skip(at).take(16);
                let bits = bits.fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
                Gid::from(Ipv6Addr::from_bits(bits))
            }
        }
    }

    /// The traffic class; of an IPv4 header its TOS byte.
    pub fn traffic_class(&self) -> u8 {
        match self.ipv4() {
            Some(header) => header[1],
            None => self.bytes[0] << 4 | self.bytes[1] >> 4,
        }
    }

    /// The flow label, 20 bits; 0 of an IPv4 header, which has none.
    pub fn flow_label(&self) -> u32 {
        if self.ipv4().is_some() {
            return 0;
        }
        let [_, high, middle, low, ..] = *self.bytes;
        u32::from(high & 0xf) << 16 | u32::from(middle) << 8 | u32::from(low)
    }

    /// The hop limit that was left; of an IPv4 header its TTL.
    pub fn hop_limit(&self) -> u8 {
        self.ipv4().map_or(self.bytes[7], |header| header[8])
    }
}

impl fmt::Debug for Grh<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grh")
            .field("source", &self.source())
            .field("destination", &self.destination())
            .field("traffic_class", &self.traffic_class())
            .field("flow_label", &self.flow_label())
            .field("hop_limit", &self.hop_limit())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 header behind 20 bytes of anything.
    fn v4() -> [u8; 40] {
        let mut bytes = [0x01; 40];
        let header = [0x45, 0xb8, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 77];
        bytes[20..].copy_from_slice(&header);
        let sum: u32 =
            header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let check = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[30..32].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    #[test]
    fn of_ipv4() {
        let bytes = v4();
        let grh = Grh::of(&bytes).expect("40 bytes");
        assert_eq!(grh.source().to_string(), "::ffff:192.0.2.1");
        assert_eq!(grh.destination().to_string(), "::ffff:192.0.2.77");
        assert_eq!((grh.traffic_class(), grh.flow_label(), grh.hop_limit()), (0xb8, 0, 64));
        assert!(grh.is_roce_v2() && grh.is_of(GidType::ROCE_V2) && !grh.is_of(GidType::ROCE_V1));
    }

    /// A first half that looks like IPv6 does not make it one; a checksum that is wrong does, and only then.
    #[test]
    fn the_checksum_decides() {
        let mut bytes = v4();
        let is_v4 = |bytes: &[u8]| Grh::of(bytes).expect("40 bytes").source().ipv4().is_some();
        bytes[0] = 0x60;
        assert!(is_v4(&bytes));
        bytes[30] ^= 1;
        assert!(!is_v4(&bytes));
        bytes[0] = 0x00;
        assert!(is_v4(&bytes));
        bytes[20] = 0x46;
        assert!(!is_v4(&bytes));
    }

    #[test]
    fn of_ipv6() {
        let mut bytes = [0; 40];
        (bytes[0], bytes[1], bytes[2], bytes[3]) = (0x6b, 0x8a, 0xbc, 0xde);
        (bytes[6], bytes[7], bytes[8], bytes[23], bytes[24], bytes[39]) =
            (17, 255, 0xfe, 1, 0xff, 2);
        let grh = Grh::of(&bytes).expect("40 bytes");
        assert_eq!(
            (grh.source().to_string(), grh.destination().to_string()),
            ("fe00::1".into(), "ff00::2".into())
        );
        assert_eq!((grh.traffic_class(), grh.flow_label(), grh.hop_limit()), (0xb8, 0xabcde, 255));
        assert!(grh.is_roce_v2());
        bytes[6] = BTH;
        assert!(Grh::of(&bytes).expect("40 bytes").is_of(GidType::ROCE_V1));
        assert!(Grh::of(&bytes[1..]).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(grh) = Grh::of(&bytes) {
                let _ = format!("{grh:?}{}", grh.is_roce_v2());
            }
        }
    }
}
