//! How the two ends find each other: the TCP exchange of C's `ibv_rc_pingpong` and its like.
//!
//! Each tells its address, as text of a fixed length, the client first. The server answers when its queue
//! pair is connected, and the client says `done` when it knows.

use rdma_verbs::{Endpoint, Gid, Lid, Psn, Qpn};

use super::tcp::garbage;
pub(crate) use super::tcp::{ExchangeError, Peer, accept, connect, listen};

/// The text of an address, with its NUL: LID, QPN, PSN, GID.
const LEN: usize = "0000:000000:000000:00000000000000000000000000000000\0".len();
const DONE: &[u8] = b"done\0";

impl Peer {
    /// Tells this end's address.
    pub(crate) fn tell(&mut self, address: &Endpoint) -> Result<(), ExchangeError> {
        self.write("this end's address", text(address).as_bytes())
    }

    /// Says that both know.
    pub(crate) fn done(&mut self) -> Result<(), ExchangeError> {
        self.write("\"done\"", DONE)
    }

    /// Hears the other end's address.
    pub(crate) fn hear(&mut self) -> Result<Endpoint, ExchangeError> {
        const WHAT: &str = "the peer's address";
        let mut bytes = [0; LEN];
        self.read(WHAT, &mut bytes)?;
        parse(&bytes).ok_or_else(|| garbage(WHAT, &bytes))
    }

    /// Hears that both know.
    pub(crate) fn hear_done(&mut self) -> Result<(), ExchangeError> {
        const WHAT: &str = "the peer's \"done\"";
        let mut bytes = [0; DONE.len()];
        self.read(WHAT, &mut bytes)?;
        if bytes == DONE { Ok(()) } else { Err(garbage(WHAT, &bytes)) }
    }
}

fn text(address: &Endpoint) -> String {
    let gid = u128::from_be_bytes(address.gid.unwrap_or(Gid::ZERO).bytes());
    let Endpoint { lid, qpn, psn, .. } = address;
    format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", lid.0, qpn.get(), psn.get())
}

/// What the text says; `None` unless it is exactly such a text. The zero GID is none.
fn parse(bytes: &[u8; LEN]) -> Option<Endpoint> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\0')?;
    let mut fields = text.split(':');
    let mut number = |digits: usize| {
        let field = fields.next()?;
        let is_hex = field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u128::from_str_radix(field, 16).ok())?
    };
    let lid = Lid(number(4)?.try_into().ok()?);
    let qpn = Qpn::new(number(6)?.try_into().ok()?)?;
    let psn = Psn::new(number(6)?.try_into().ok()?)?;
    let gid = Gid::from_bytes(number(32)?.to_be_bytes());
    if fields.next().is_some() {
        return None;
    }
    let gid = Some(gid).filter(|gid| !gid.is_zero());
    Some(Endpoint { gid, lid, ..Endpoint::new(qpn, psn, Gid::ZERO) })
}
