//! What the two ends tell each other over TCP: what there is to do, their queue pairs, and which of these have
//! ended.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::{Endpoint, Gid, Lid, Psn, Qpn};

use super::options::{SIZES, STREAMS};
use super::tcp::garbage;
pub(crate) use super::tcp::{Deadline, ExchangeError, Peer, accept, connect, listen};
use super::{PROGRAM, common};

/// What the receiver decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) streams: u32,
    /// The message, in bytes.
    pub(crate) size: u32,
    /// Receives of each stream; and so its first credit.
    pub(crate) depth: u32,
    /// Whether another one follows, for which the sender comes again.
    pub(crate) more: bool,
}

/// The most receives of a stream.
pub(crate) const DEPTH: u32 = 64;
const MAGIC: &[u8; 8] = b"pages 1\n";
const PLAN: usize = 24;
const ENDPOINT: usize = 26;

impl Peer {
    pub(crate) fn tell_plan(&mut self, plan: &Plan) -> Result<(), ExchangeError> {
        let mut bytes = [0; PLAN];
        bytes[..8].copy_from_slice(MAGIC);
        let numbers = [plan.streams, plan.size, plan.depth, plan.more.into()];
        for (place, number) in bytes[8..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        self.write("what there is to do", &bytes)
    }

    /// Hears what there is to do, if that can be.
    pub(crate) fn hear_plan(&mut self) -> Result<Plan, ExchangeError> {
        const WHAT: &str = "what there is to do";
        let mut bytes = [0; PLAN];
        self.read(WHAT, &mut bytes)?;
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|more| bytes[at + more]));
        let [streams, size, depth, more] = [8, 12, 16, 20].map(number);
        let sizes = SIZES.0 as u32..=SIZES.1 as u32;
        let sound = (1..=STREAMS).contains(&streams)
            && sizes.contains(&size)
            && (4..=DEPTH).contains(&depth)
            && more <= 1;
        if !(bytes.starts_with(MAGIC) && sound) {
            return Err(garbage(WHAT, &bytes));
        }
        Ok(Plan { streams, size, depth, more: more == 1 })
    }

    /// Tells the address of each stream's queue pair.
    pub(crate) fn tell(&mut self, endpoints: &[Endpoint]) -> Result<(), ExchangeError> {
        for Endpoint { lid, qpn, psn, gid, .. } in endpoints {
            let mut bytes = [0; ENDPOINT];
            bytes[..2].copy_from_slice(&lid.0.to_be_bytes());
            bytes[2..6].copy_from_slice(&qpn.get().to_be_bytes());
            bytes[6..10].copy_from_slice(&psn.get().to_be_bytes());
            bytes[10..].copy_from_slice(&gid.unwrap_or(Gid::ZERO).bytes());
            self.write("this end's addresses", &bytes)?;
        }
        Ok(())
    }

    /// Hears those of the other end.
    pub(crate) fn hear(&mut self, streams: u32) -> Result<Vec<Endpoint>, ExchangeError> {
        const WHAT: &str = "the peer's addresses";
        let mut hear = || {
            let mut bytes = [0; ENDPOINT];
            self.read(WHAT, &mut bytes)?;
            endpoint(&bytes).ok_or_else(|| garbage(WHAT, &bytes))
        };
        (0..streams).map(|_| hear()).collect()
    }

    /// Says that the receiver is ready.
    pub(crate) fn tell_ready(&mut self) -> Result<(), ExchangeError> {
        self.write("\"ready\"", &[READY])
    }

    pub(crate) fn hear_ready(&mut self) -> Result<(), ExchangeError> {
        const WHAT: &str = "\"ready\"";
        let mut byte = [0];
        self.read(WHAT, &mut byte)?;
        if byte == [READY] { Ok(()) } else { Err(garbage(WHAT, &byte)) }
    }
}

const READY: u8 = b'!';

fn endpoint(bytes: &[u8; ENDPOINT]) -> Option<Endpoint> {
    let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|more| bytes[at + more]));
    let lid = Lid(u16::from_be_bytes([bytes[0], bytes[1]]));
    let (qpn, psn) = (Qpn::new(number(2))?, Psn::new(number(6))?);
    let gid = Gid::from_bytes(bytes[10..].try_into().ok()?);
    let gid = Some(gid).filter(|gid| !gid.is_zero());
    Some(Endpoint { gid, lid, ..Endpoint::new(qpn, psn, Gid::ZERO) })
}

/// How long one end waits for the other to close.
const PART: Duration = Duration::from_secs(2);

/// What the two ends tell each other while messages are under way, on a thread beside.
#[derive(Default)]
pub(crate) struct Link {
    /// The streams that ended at this end, bit by bit.
    ended_here: AtomicU32,
    ended_there: AtomicU32,
    /// Why the first of them did.
    first: OnceLock<String>,
    done: AtomicBool,
    peer_gone: AtomicBool,
    parted: AtomicBool,
}

/// Ends the thread when it is dropped.
pub(crate) struct Linked<'a>(pub(crate) &'a Link);

impl Drop for Linked<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::Release);
    }
}

impl Link {
    /// A stream ended at this end, where the others go on: that is told, to the other end too.
    pub(crate) fn end(&self, stream: usize, end: &str, why: &str) {
        common::note(PROGRAM, format!("stream {stream} ended at the {end}: {why}"));
        let _ = self.first.set(why.to_owned());
        self.ended_here.fetch_or(1 << stream, Ordering::Relaxed);
    }

    /// What is told when there is none left.
    pub(crate) fn all_ended(&self, count: usize) -> String {
        let first = self.first.get().map_or("", |why| why);
        format!("all {count} streams have ended, the first: {first}")
    }

    /// Whether a stream ended at the other end.
    pub(crate) fn ended_there(&self, stream: usize) -> bool {
        self.ended_there.load(Ordering::Relaxed) >> stream & 1 != 0
    }

    /// Whether the other end has ended, or went away.
    pub(crate) fn is_over(&self) -> bool {
        self.peer_gone.load(Ordering::Acquire)
    }

    /// Tells the other end that this one has enough, and waits a moment until that has closed its streams.
    pub(crate) fn part(&self) {
        self.done.store(true, Ordering::Release);
        let end = Instant::now() + 2 * PART;
        while !self.parted.load(Ordering::Acquire) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tells and hears until both ends have ended.
    pub(crate) fn run(&self, peer: Peer) {
        self.tell_and_hear(peer);
        self.parted.store(true, Ordering::Release);
    }

    fn tell_and_hear(&self, mut peer: Peer) {
        let mut told = 0;
        while !self.done.load(Ordering::Acquire) {
            let ended = self.ended_here.load(Ordering::Relaxed);
            for stream in (0..STREAMS as u8).filter(|stream| (ended & !told) >> stream & 1 != 0) {
                // A peer that is gone is heard of below.
                let _ = peer.write("that a stream ended", &[stream]);
            }
            told = ended;
            peer.deadline = Deadline::new(Duration::from_millis(20));
            let mut byte = [0];
            match peer.read("what ended", &mut byte) {
                Ok(()) if u32::from(byte[0]) < STREAMS => {
                    self.ended_there.fetch_or(1 << byte[0], Ordering::Relaxed);
                }
                Err(ExchangeError::TimedOut { .. }) => {}
                _ => {
                    self.peer_gone.store(true, Ordering::Release);
                    // It is waiting until this end has closed its streams.
                    while !self.done.load(Ordering::Acquire) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    return;
                }
            }
        }
        peer.deadline = Deadline::new(PART);
        peer.part();
    }
}
