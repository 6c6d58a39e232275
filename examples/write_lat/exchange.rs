//! How the two ends find each other: the TCP exchange of perftest's `ib_write_lat`, and one thing more.
//!
//! All is of fixed length and told in turn, the client first: the version, the page and cache line sizes, the
//! MTU, then four times the key, which is queue pair and memory. Between the second and the third each
//! connects; with immediate data there is one more before each size. C's does not tell what it is going to do; ours does, behind the version's end, where C's has
//! zeros and does not look.

use rdma_verbs::{Endpoint, Gid, Lid, Mtu, Psn, Qpn, RKey, RemoteSlice};

use super::options::{LONGEST, Options};
use super::tcp::garbage;
pub(crate) use super::tcp::{Deadline, ExchangeError, Peer, accept, connect, listen};

const VERSION_LEN: usize = 16;
/// Told to be: what Debian 12 has, and every later one speaks with.
const VERSION: &[u8] = b"6.06\0";
/// What tells a plan behind the version.
const MARK: u8 = b'R';
/// The text of a key, with its NUL: LID, reads, QPN, PSN, key, address, then SRQ number; or GID and SRQ number.
const BY_LID: usize = "0000:0000:000000:000000:00000000:0000000000000000:00000000\0".len();
const BY_GID: usize = BY_LID - 9 + 16 * 3 + 10;

/// What an end is going to do. Both must mean to do the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) iters: u32,
    /// The size; 0 for all.
    pub(crate) size: u32,
    pub(crate) imm: bool,
    pub(crate) batch: bool,
}

/// An end's queue pair, and the memory that is written to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Key {
    pub(crate) endpoint: Endpoint,
    pub(crate) memory: RemoteSlice,
}

impl Plan {
    pub(crate) fn new(options: &Options) -> Plan {
        let size = if options.all { 0 } else { options.size.min(LONGEST) as u32 };
        let Options { iters, write_with_imm: imm, .. } = *options;
        Plan { iters, size, imm, batch: !options.batch.is_empty() }
    }

    /// Whether the other end means to do the same. C's does not tell.
    pub(crate) fn check(&self, theirs: Option<Plan>) -> Result<(), String> {
        let Some(theirs) = theirs else {
            return match self.batch {
                true => Err("--batch: the peer is perftest's, which does not know of it".into()),
                false => Ok(()),
            };
        };
        let size = |plan: &Plan| match plan.size {
            0 => "--all".to_owned(),
            size => format!("--size {size}"),
        };
        let mode = |plan: &Plan| match plan {
            Plan { batch: true, .. } => "--batch",
            Plan { imm: true, .. } => "--write-with-imm",
            _ => "neither --batch nor --write-with-imm",
        };
        let differ = |ours: String, peers: String| {
            Err(format!("{ours} here and {peers} at the peer: it must be the same at both ends"))
        };
        if self.iters != theirs.iters {
            return differ(format!("--iters {}", self.iters), format!("{}", theirs.iters));
        }
        if self.size != theirs.size {
            return differ(size(self), size(&theirs));
        }
        if mode(self) != mode(&theirs) {
            return differ(mode(self).into(), mode(&theirs).into());
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> [u8; VERSION_LEN] {
        let mut bytes = [0; VERSION_LEN];
        bytes[..VERSION.len()].copy_from_slice(VERSION);
        bytes[5] = MARK;
        bytes[6] = u8::from(self.imm) | u8::from(self.batch) << 1;
        bytes[7..11].copy_from_slice(&self.iters.to_be_bytes());
        bytes[11..15].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    /// What is behind the version; `Err` when there is no version.
    pub(crate) fn parse(bytes: &[u8; VERSION_LEN]) -> Result<Option<Plan>, ()> {
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(())?;
        let version = std::str::from_utf8(&bytes[..end]).map_err(|_| ())?;
        let is_version = version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        // The oldest that C's goes on with.
        if !is_version || !version.parse().is_ok_and(|version: f64| version >= 5.7) {
            return Err(());
        }
        if end != 4 || bytes[5] != MARK {
            return Ok(None);
        }
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let (imm, batch) = (bytes[6] & 1 != 0, bytes[6] & 2 != 0);
        Ok(Some(Plan { iters: number(7), size: number(11), imm, batch }))
    }
}

impl Peer {
    /// Tells this, and hears as much, in the order of who is who.
    fn swap<const N: usize>(
        &mut self,
        is_client: bool,
        what: &'static str,
        ours: &[u8; N],
    ) -> Result<[u8; N], ExchangeError> {
        let mut theirs = [0; N];
        if is_client {
            self.write(what, ours)?;
        }
        self.read(what, &mut theirs)?;
        if !is_client {
            self.write(what, ours)?;
        }
        Ok(theirs)
    }

    /// All before the keys. Gives the plan and the MTU of the other end.
    pub(crate) fn greet(
        &mut self,
        is_client: bool,
        plan: &Plan,
        mtu: Mtu,
    ) -> Result<(Option<Plan>, Mtu), ExchangeError> {
        const VERSION: &str = "the peer's version, 5.70 or later";
        let theirs = self.swap(is_client, VERSION, &plan.bytes())?;
        let plan = Plan::parse(&theirs).map_err(|()| garbage(VERSION, &theirs))?;
        let page_size = (rustix::param::page_size() as u32).to_be_bytes();
        self.swap(is_client, "the peer's page size", &page_size)?;
        self.swap(is_client, "the peer's cache line size", &64_u32.to_be_bytes())?;
        const MTU: &str = "the peer's MTU";
        let theirs = self.swap(is_client, MTU, &[b'0' + mtu.raw() as u8, 0])?;
        match theirs {
            [code @ b'1'..=b'5', 0] => Ok((plan, Mtu::from_raw((code - b'0').into()))),
            _ => Err(garbage(MTU, &theirs)),
        }
    }

    /// Tells this end's key.
    pub(crate) fn tell(&mut self, key: &Key) -> Result<(), ExchangeError> {
        self.write("this end's key", key.text().as_bytes())
    }

    /// Hears the other end's, with its GID or without as this end has one.
    pub(crate) fn hear(&mut self, by_gid: bool) -> Result<Key, ExchangeError> {
        const WHAT: &str = "the peer's key";
        let mut bytes = [0; BY_GID];
        let bytes = &mut bytes[..if by_gid { BY_GID } else { BY_LID }];
        self.read(WHAT, bytes)?;
        Key::parse(bytes).ok_or_else(|| garbage(WHAT, bytes))
    }

    /// Once more, of no new key: both have come so far.
    pub(crate) fn meet(&mut self, is_client: bool, ours: &Key) -> Result<(), ExchangeError> {
        let by_gid = ours.endpoint.gid.is_some();
        if is_client {
            self.tell(ours)?;
        }
        self.hear(by_gid)?;
        if is_client { Ok(()) } else { self.tell(ours) }
    }

    /// Tells of the client's batches: that there are more, or that all are done.
    pub(crate) fn tell_progress(&mut self, done: bool) -> Result<(), ExchangeError> {
        self.write("how far it is", if done { b"d" } else { b"m" })
    }

    /// Waits until all batches are done, as long as there are more.
    pub(crate) fn hear_progress(&mut self, deadline: Deadline) -> Result<bool, ExchangeError> {
        const WHAT: &str = "more of the client's batches";
        self.deadline = deadline;
        let mut byte = [0];
        self.read(WHAT, &mut byte)?;
        match &byte {
            b"d" => Ok(true),
            b"m" => Ok(false),
            _ => Err(garbage(WHAT, &byte)),
        }
    }
}

impl Key {
    pub(crate) fn text(&self) -> String {
        let Key { endpoint: Endpoint { lid, qpn, psn, gid, .. }, memory } = self;
        let (rkey, address) = (memory.rkey().get(), memory.address());
        let (lid, qpn, psn) = (lid.0, qpn.get(), psn.get());
        let front = format!("{lid:04x}:0001:{qpn:06x}:{psn:06x}:{rkey:08x}:{address:016x}:");
        match gid {
            None => front + "00000000\0",
            Some(gid) => {
                let gid = gid.bytes().map(|byte| format!("{byte:02x}:")).concat();
                front + &gid + "00000000:\0"
            }
        }
    }

    /// What the text says; `None` unless it is exactly such a text. Its memory has as much room as the longest
    /// message. The zero GID is none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Key> {
        let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\0')?;
        let by_gid = bytes.len() == BY_GID;
        let text = if by_gid { text.strip_suffix(':')? } else { text };
        let mut fields = text.split(':');
        let mut number = |digits: usize| {
            let field = fields.next()?;
            let is_hex =
                field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u64::from_str_radix(field, 16).ok())?
        };
        let lid = Lid(number(4)?.try_into().ok()?);
        let _reads = number(4)?;
        let qpn = Qpn::new(number(6)?.try_into().ok()?)?;
        let psn = Psn::new(number(6)?.try_into().ok()?)?;
        let rkey = RKey::new(number(8)?.try_into().ok()?);
        let address = number(16)?;
        let mut gid = [0; 16];
        if by_gid {
            for byte in &mut gid {
                *byte = number(2)?.try_into().ok()?;
            }
        }
        let _srq = number(8)?;
        if fields.next().is_some() {
            return None;
        }
        let gid = Some(Gid::from_bytes(gid)).filter(|gid| !gid.is_zero());
        let endpoint = Endpoint { gid, lid, ..Endpoint::new(qpn, psn, Gid::ZERO) };
        Some(Key { endpoint, memory: RemoteSlice::new(address, LONGEST, rkey) })
    }
}
