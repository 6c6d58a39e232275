//! What a completion tells of a datagram's way.

use super::{Lid, Qpn};

/// Who sent a datagram that was received, as its completion tells (`struct ibv_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DatagramSource {
    /// The sending queue pair (`src_qp`).
    pub qpn: Qpn,
    /// Whether the first 40 bytes of the buffer are a [`Grh`](super::Grh) (`IBV_WC_GRH`): always on RoCE.
    /// If not, they mean nothing; the message begins behind them all the same.
    pub has_grh: bool,
    /// The service level that it came by (`sl`).
    pub service_level: u8,
    /// The sending port's LID (`slid`); 0 on Ethernet.
    pub lid: Lid,
    /// The low bits of this side's LID that it went to (`dlid_path_bits`).
    pub path_bits: u8,
    /// The partition, by the index of its P_Key (`pkey_index`); 0 from a completion queue that is polled by the
    /// extended calls ([`CompletionQueue::calls`](crate::CompletionQueue::calls)), which do not tell it.
    pub pkey_index: u16,
}
