//! All interfaces and all addresses, read from the kernel: two dumps over one socket.

#![deny(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use super::message::{
    Message, Messages, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN, attribute,
    dump_request,
};
use super::socket::{Peer, ROUTE, Socket};
use super::{Interface, LocalAddress};
use crate::error::{Errno, Error, Result};

/// An attribute of a link dump: what to add to it or to leave out.
const IFLA_EXT_MASK: u16 = 29;
/// Without the counters, which are most of a link's message.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

const LINKS: Dump<Interface> = Dump {
    call: "netlink dump of interfaces (RTM_GETLINK)",
    kind: libc::RTM_GETLINK,
    answer: libc::RTM_NEWLINK,
    parse: Interface::parse,
};

const ADDRESSES: Dump<LocalAddress> = Dump {
    call: "netlink dump of addresses (RTM_GETADDR)",
    kind: libc::RTM_GETADDR,
    answer: libc::RTM_NEWADDR,
    parse: LocalAddress::parse,
};

/// How often a dump is asked for that changes interrupt. With 4000 addresses and 10 000 changes a
/// second, nine of ten attempts were interrupted.
const ATTEMPTS: usize = 100;
/// The kernel gives a dump in parts of at most 32 KiB, or of one object if that is longer.
const BUFFER: usize = 64 * 1024;
/// A message longer than this is no answer.
const LONGEST: usize = 16 * 1024 * 1024;

/// What is dumped: a name for errors, the types of request and answer, how an answer is read.
struct Dump<T> {
    call: &'static str,
    kind: u16,
    answer: u16,
    parse: fn(&[u8]) -> Option<T>,
}

/// Reads interfaces and addresses.
pub(super) struct Reader<P = Socket> {
    peer: P,
    state: Mutex<State>,
}

struct State {
    /// Of the last request: answers to an earlier one are known by it.
    sequence: u32,
    buffer: Vec<u8>,
    /// An answer was not read to its end: the rest is in the socket, and the kernel takes no
    /// other dump request while it is at one.
    unfinished: bool,
}

/// What one attempt gave.
enum Attempt<T> {
    Whole(Vec<T>),
    /// Something changed meanwhile, or the buffer was too short.
    Again,
}

impl Reader {
    /// Reads this thread's network namespace, from whichever thread.
    pub(super) fn open() -> Result<Reader> {
        Ok(Reader::new(Socket::for_requests(ROUTE, "netlink socket (NETLINK_ROUTE)")?))
    }
}

impl<P: Peer> Reader<P> {
    pub(super) fn new(peer: P) -> Reader<P> {
        let state = State { sequence: 0, buffer: vec![0; BUFFER], unfinished: false };
        Reader { peer, state: Mutex::new(state) }
    }

    /// All interfaces and all addresses.
    pub(super) fn read(&self) -> Result<(Vec<Interface>, Vec<LocalAddress>)> {
        // A panic elsewhere leaves an unfinished answer at worst, and that is noted.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((self.dump(&mut state, &LINKS)?, self.dump(&mut state, &ADDRESSES)?))
    }

    fn dump<T>(&self, state: &mut State, dump: &Dump<T>) -> Result<Vec<T>> {
        let fail = |errno| Error::Host { call: dump.call, errno };
        for _ in 0..ATTEMPTS {
            if state.unfinished {
                self.peer.discard(&mut state.buffer);
            }
            state.unfinished = true;
            let attempt = self.attempt(state, dump).map_err(fail)?;
            state.unfinished = false;
            match attempt {
                Attempt::Whole(objects) => return Ok(objects),
                // Whoever is changing things may want this processor.
                Attempt::Again => std::thread::yield_now(),
            }
        }
        // As libmnl has it.
        Err(fail(Errno::EINTR))
    }

    /// Asks once and reads the answer to its end.
    fn attempt<T>(&self, state: &mut State, dump: &Dump<T>) -> Result<Attempt<T>, Errno> {
        state.sequence = state.sequence.wrapping_add(1);
        self.peer.send(&dump_request(dump.kind, state.sequence, &body(dump.kind)))?;
        let mut objects = Vec::new();
        let mut whole = true;
        loop {
            let received = self.peer.receive(&mut state.buffer)?;
            if !received.from_kernel {
                continue;
            }
            let part = state.buffer.get(..received.len).unwrap_or(&state.buffer);
            let mut messages = Messages::new(part);
            for message in messages.by_ref().filter(|m| m.sequence == state.sequence) {
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE if message.errno() != 0 => return Err(errno_of(&message)),
                    NLMSG_DONE if whole => return Ok(Attempt::Whole(objects)),
                    NLMSG_DONE => return Ok(Attempt::Again),
                    NLMSG_ERROR => return Err(errno_of(&message)),
                    NLMSG_OVERRUN => whole = false,
                    kind if kind == dump.answer => objects.extend((dump.parse)(message.payload)),
                    _ => {}
                }
            }
            match received.len {
                len if len > LONGEST => return Err(Errno::EMSGSIZE),
                len if len > state.buffer.len() => {
                    state.buffer.resize(len, 0);
                    whole = false;
                }
                _ if !messages.is_at_end() => return Err(Errno::EPROTO),
                _ => {}
            }
        }
    }
}

/// What stands behind the header of a request: `struct ifinfomsg` (16 bytes), or `ifaddrmsg` (8),
/// all zero: any family, any interface.
fn body(kind: u16) -> Vec<u8> {
    if kind == libc::RTM_GETLINK {
        let mask = attribute(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        [&[0; 16], &mask[..]].concat()
    } else {
        vec![0; 8]
    }
}

/// The error that a message tells of; none where there should be one makes no sense.
fn errno_of(message: &Message<'_>) -> Errno {
    match message.errno() {
        0 => Errno::EPROTO,
        errno => Errno::from_raw(errno),
    }
}

#[cfg(test)]
mod tests;
