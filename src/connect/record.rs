//! What travels: records of one size, in network order.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::directory::is_a_hosts;
use crate::error::{Error, RecordError, Result};
use crate::qp::Endpoint;
use crate::types::{
    Gid, GidScope, GidType, Lid, Mtu, Psn, Qpn, RefuseReason, RemoteAccess, encoded_time, rnr_code,
    rnr_delay, time_code,
};

/// A record of the exchange over TCP: 256 bytes, in network order.
///
/// | at | bytes | | in |
/// |---:|---:|---|---|
/// | 0 | 8 | `rdmaverb` | all |
/// | 8 | 2 | version: 1 | all |
/// | 10 | 1 | kind: 1 request, 2 reply, 3 ready, 4 refusal | all |
/// | 11 | 1 | type of the GID: 0 none, the LID is the address; 1 InfiniBand, 2 RoCE v1, 3 RoCE v2 | 1, 2 |
/// | 12 | 4 | queue pair number, 2 to 2^24 - 1 | 1, 2 |
/// | 16 | 4 | number of the first packet, below 2^24 | 1, 2 |
/// | 20 | 2 | LID, 1 to 0xbfff; 0 on Ethernet | 1, 2 |
/// | 22 | 1 | path MTU: 1 is 256 bytes ... 5 is 4096 | 1, 2 |
/// | 23 | 1 | what the peer may do: 2 write, 4 read, 8 atomics | 1, 2 |
/// | 24 | 16 | GID | 1, 2 |
/// | 40 | 1 | reads and atomics answered at a time | 1, 2 |
/// | 41 | 1 | reads and atomics wanted at a time | 1, 2 |
/// | 42 | 1 | how long an answer is waited for: 4.096 µs × 2^n, n up to 31; 0 for ever | 1, 2 |
/// | 43 | 1 | how often without an answer, 0 to 7 | 1, 2 |
/// | 44 | 1 | how often without a receive, 0 to 7; 7 without end | 1, 2 |
/// | 45 | 1 | how long to wait for a receive: InfiniBand's code of the timer, 0 to 31 | 1, 2 |
/// | 46 | 2 | reason, [`RefuseReason`]; never 0 | 4 |
/// | 48 | 1 | how many bytes of the last field count, up to 192 | 1, 2, 4 |
/// | 49 | 15 | zero | |
/// | 64 | 192 | private data; of a refusal a text in UTF-8; zero behind it | 1, 2, 4 |
///
/// What a kind does not have is zero. No index of a table travels: it means something on one host only.
/// In the reply, the MTU is the one that is used, and the reads answered are at most what the client wants.
/// A later version keeps the first 11 bytes, the size and the form of a refusal, so that it can be refused
/// in words that it understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectRecord {
    /// The client's first.
    Request(Terms),
    /// The server's answer, when its queue pair can send and receive.
    Reply(Terms),
    /// The client's last, when its queue pair can send and receive.
    Ready,
    /// Either's end of it.
    Refusal {
        /// Why.
        reason: RefuseReason,
        /// Why in words: UTF-8 without control characters.
        text: PrivateData,
    },
}

/// What one end of a connection tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// Its queue pair's address, with its MTU, the reads and atomics that it answers at a time, and what it
    /// lets its peer do.
    pub endpoint: Endpoint,
    /// What its GID is; `None` where the LID is the address.
    pub gid_type: Option<GidType>,
    /// How many reads and atomics it wants to have under way at a time.
    pub reads: u8,
    /// How long it waits for an answer before it sends a packet again; zero for ever.
    pub timeout: Duration,
    /// How often it sends a packet again that nobody answers, 0 to 7.
    pub retry_count: u8,
    /// How often it sends a message again that finds no receive, 0 to 7; 7 is without end.
    pub rnr_retry: u8,
    /// How long it asks its peer to wait when a message finds no receive.
    pub min_rnr_timer: Duration,
    /// What the program tells the other.
    pub private_data: PrivateData,
}

/// A few bytes that travel with a record: up to [`MOST`](PrivateData::MOST), with a length of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    len: u8,
    /// Zero behind the length.
    bytes: [u8; PrivateData::MOST],
}

const MAGIC: [u8; 8] = *b"rdmaverb";
const VERSION: u16 = 1;
/// Where the data begins.
const HEAD: usize = 64;

impl PrivateData {
    /// The most bytes that there can be.
    pub const MOST: usize = 192;

    /// No bytes.
    pub const EMPTY: PrivateData = PrivateData { len: 0, bytes: [0; PrivateData::MOST] };

    /// These bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for more than [`MOST`](PrivateData::MOST).
    pub fn new(data: &[u8]) -> Result<PrivateData> {
        PrivateData::cut(data).ok_or(Error::OutOfRange {
            what: "the length of private data",
            asked: data.len() as u64,
            least: 0,
            most: PrivateData::MOST as u64,
        })
    }

    fn cut(data: &[u8]) -> Option<PrivateData> {
        let mut cut = PrivateData::EMPTY;
        cut.bytes.get_mut(..data.len())?.copy_from_slice(data);
        cut.len = data.len() as u8;
        Some(cut)
    }

    /// As much of a text as there is room for, without control characters.
    pub(super) fn text(text: &str) -> PrivateData {
        let mut to = PrivateData::EMPTY;
        for character in text.chars() {
            let character = if character.is_control() { ' ' } else { character };
            let len = usize::from(to.len);
            let Some(room) = to.bytes.get_mut(len..len + character.len_utf8()) else { break };
            character.encode_utf8(room);
            to.len += character.len_utf8() as u8;
        }
        to
    }

    /// As a text; empty when it is none.
    pub fn as_text(&self) -> &str {
        std::str::from_utf8(self).unwrap_or_default()
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData(b\"{}\")", self.escape_ascii())
    }
}

impl ConnectRecord {
    /// How many bytes every record has.
    pub const LEN: usize = 256;

    /// What the bytes say. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`RecordError`]: the first field that is wrong. What is accepted is what
    /// [`to_bytes`](ConnectRecord::to_bytes) makes, to the bit, but for the version of a refusal.
    pub fn parse(bytes: &[u8; ConnectRecord::LEN]) -> Result<ConnectRecord, RecordError> {
        check_prefix(bytes)?;
        match bytes[10] {
            1 => Ok(ConnectRecord::Request(Terms::parse(bytes)?)),
            2 => Ok(ConnectRecord::Reply(Terms::parse(bytes)?)),
            3 => {
                zero(bytes, 11, ConnectRecord::LEN)?;
                Ok(ConnectRecord::Ready)
            }
            _ => {
                zero(bytes, 11, 46)?;
                let reason = RefuseReason::from_raw(u16::from_be_bytes([bytes[46], bytes[47]]));
                let text = data(bytes)?;
                match std::str::from_utf8(&text) {
                    _ if reason.raw() == 0 => Err(RecordError::NoReason),
                    Ok(told) if !told.contains(char::is_control) => {
                        Ok(ConnectRecord::Refusal { reason, text })
                    }
                    _ => Err(RecordError::Text),
                }
            }
        }
    }

    /// As it travels.
    pub fn to_bytes(&self) -> [u8; ConnectRecord::LEN] {
        let mut bytes = [0; ConnectRecord::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10] = self.kind();
        let data = match self {
            ConnectRecord::Request(terms) | ConnectRecord::Reply(terms) => {
                terms.write(&mut bytes);
                &terms.private_data
            }
            ConnectRecord::Ready => &PrivateData::EMPTY,
            ConnectRecord::Refusal { reason, text } => {
                bytes[46..48].copy_from_slice(&reason.raw().to_be_bytes());
                text
            }
        };
        bytes[48] = data.len;
        bytes[HEAD..].copy_from_slice(&data.bytes);
        bytes
    }

    /// The number of its kind.
    pub(super) fn kind(&self) -> u8 {
        match self {
            ConnectRecord::Request(_) => 1,
            ConnectRecord::Reply(_) => 2,
            ConnectRecord::Ready => 3,
            ConnectRecord::Refusal { .. } => 4,
        }
    }
}

/// Whether it can become a record, from what has come of it.
pub(super) fn check_prefix(bytes: &[u8]) -> Result<(), RecordError> {
    let begin = bytes.get(..8).unwrap_or(bytes);
    if !MAGIC.starts_with(begin) {
        let mut told = [0; 8];
        told.iter_mut().zip(begin).for_each(|(to, from)| *to = *from);
        return Err(RecordError::Magic(told));
    }
    if let Some(&[high, low]) = bytes.get(8..10) {
        let theirs = u16::from_be_bytes([high, low]);
        // A refusal has the same form in all versions.
        let is_refusal = bytes.get(10).is_none_or(|kind| *kind == 4);
        if theirs == 0 || theirs != VERSION && !is_refusal {
            return Err(RecordError::Version { theirs, ours: VERSION });
        }
    }
    match bytes.get(10) {
        Some(kind @ (0 | 5..)) => Err(RecordError::Kind(*kind)),
        _ => Ok(()),
    }
}

impl Terms {
    /// Of an end at this address, with the settings of new [`ConnectOptions`](crate::ConnectOptions), and
    /// one read at a time: for a program that speaks the protocol by itself.
    pub fn new(endpoint: Endpoint, gid_type: Option<GidType>) -> Terms {
        Terms {
            endpoint,
            gid_type,
            reads: 1,
            timeout: encoded_time(14),
            retry_count: 6,
            rnr_retry: 7,
            min_rnr_timer: rnr_delay(12),
            private_data: PrivateData::EMPTY,
        }
    }

    fn parse(bytes: &[u8; ConnectRecord::LEN]) -> Result<Terms, RecordError> {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let qpn = Qpn::new(word(12)).filter(|qpn| qpn.get() >= 2);
        let qpn = qpn.ok_or(RecordError::Qpn(word(12)))?;
        let psn = Psn::new(word(16)).ok_or(RecordError::Psn(word(16)))?;
        let lid = Lid(u16::from_be_bytes([bytes[20], bytes[21]]));
        let mtu = match bytes[22] {
            code @ 1..=5 => Mtu::from_raw(code.into()),
            code => return Err(RecordError::Mtu(code)),
        };
        if bytes[23] & !0b1110 != 0 {
            return Err(RecordError::Reserved { at: 23 });
        }
        let access = RemoteAccess::from_bits(bytes[23].into());
        let gid = bytes[24..40].try_into().map_or(Gid::ZERO, Gid::from_bytes);
        let (gid_type, gid) = address(bytes[11], gid, lid)?;
        let setting = |what, at: usize, most| match bytes[at] {
            value if value > most => Err(RecordError::Setting { what, value, most }),
            value => Ok(value),
        };
        let timeout = encoded_time(setting("timeout", 42, 31)?);
        let retry_count = setting("retry_cnt", 43, 7)?;
        let rnr_retry = setting("rnr_retry", 44, 7)?;
        let min_rnr_timer = rnr_delay(setting("min_rnr_timer", 45, 31)?);
        zero(bytes, 46, 48)?;
        let (answers, reads) = (bytes[40], bytes[41]);
        let endpoint = Endpoint {
            qpn,
            psn,
            gid,
            lid,
            mtu: Some(mtu),
            reads: Some(answers),
            access: Some(access),
        };
        let private_data = data(bytes)?;
        Ok(Terms {
            endpoint,
            gid_type,
            reads,
            timeout,
            retry_count,
            rnr_retry,
            min_rnr_timer,
            private_data,
        })
    }

    fn write(&self, bytes: &mut [u8; ConnectRecord::LEN]) {
        let Endpoint { qpn, psn, gid, lid, mtu, reads, access } = self.endpoint;
        bytes[11] = match self.gid_type {
            None => 0,
            Some(GidType::IB) => 1,
            Some(GidType::ROCE_V1) => 2,
            Some(GidType::ROCE_V2) => 3,
            // Not to be understood, and nothing is found with it that could be connected.
            Some(_) => u8::MAX,
        };
        bytes[12..16].copy_from_slice(&qpn.get().to_be_bytes());
        bytes[16..20].copy_from_slice(&psn.get().to_be_bytes());
        bytes[20..22].copy_from_slice(&lid.0.to_be_bytes());
        bytes[22] = mtu.map_or(0, |mtu| u8::try_from(mtu.raw()).unwrap_or(u8::MAX));
        bytes[23] = access.map_or(0, |access| (access.bits() & 0b1110) as u8);
        bytes[24..40].copy_from_slice(&gid.unwrap_or(Gid::ZERO).bytes());
        (bytes[40], bytes[41]) = (reads.unwrap_or(0), self.reads);
        (bytes[42], bytes[45]) = (time_code(self.timeout), rnr_code(self.min_rnr_timer));
        (bytes[43], bytes[44]) = (self.retry_count, self.rnr_retry);
    }
}

/// The address, by the type that is told of its GID.
fn address(
    gid_type: u8,
    gid: Gid,
    lid: Lid,
) -> Result<(Option<GidType>, Option<Gid>), RecordError> {
    let of_port = (1..=0xbfff).contains(&lid.0);
    match gid_type {
        0 if !gid.is_zero() => Err(RecordError::Gid(gid)),
        0 | 1 if !of_port => Err(RecordError::Lid(lid.0)),
        0 => Ok((None, None)),
        1..=3 if gid.is_zero() => Err(RecordError::ZeroGid),
        1..=3 if gid.scope() == GidScope::Multicast => Err(RecordError::Gid(gid)),
        1 => Ok((Some(GidType::IB), Some(gid))),
        2 | 3 if lid.0 != 0 => Err(RecordError::Lid(lid.0)),
        2 | 3 if !is_a_hosts(gid.ip()) => Err(RecordError::Gid(gid)),
        2 => Ok((Some(GidType::ROCE_V1), Some(gid))),
        3 => Ok((Some(GidType::ROCE_V2), Some(gid))),
        other => Err(RecordError::GidType(other)),
    }
}

/// The data behind the head, and that all else there is zero.
fn data(bytes: &[u8; ConnectRecord::LEN]) -> Result<PrivateData, RecordError> {
    let (value, most) = (bytes[48], PrivateData::MOST as u8);
    let what = "the length of the data";
    let there = bytes.get(HEAD..HEAD + usize::from(value));
    let there = there.ok_or(RecordError::Setting { what, value, most })?;
    zero(bytes, 49, HEAD)?;
    zero(bytes, HEAD + usize::from(value), ConnectRecord::LEN)?;
    PrivateData::cut(there).ok_or(RecordError::Setting { what, value, most })
}

fn zero(bytes: &[u8; ConnectRecord::LEN], from: usize, to: usize) -> Result<(), RecordError> {
    let mut field = bytes.iter().enumerate().take(to).skip(from);
    match field.find(|(_, byte)| **byte != 0) {
        Some((at, _)) => Err(RecordError::Reserved { at }),
        None => Ok(()),
    }
}
