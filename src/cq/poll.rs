//! What a poll gives.

#![allow(unsafe_code)]

use std::fmt;

use super::CompletionQueue;
use crate::error::{Error, Queue};
use crate::mem::{Buffer, Memory};
use crate::sys::abi::ibv_wc;
use crate::types::{Qpn, RKey, WcOpcode, WcStatus};
use crate::wq::{Claimed, Ring, WrId};

/// The completions of one poll: ask for one after the other by [`next`](Drain::next). Those that are not
/// asked for are given by the next poll.
#[must_use = "it has the completions that were polled"]
pub struct Drain<'a> {
    cq: &'a mut CompletionQueue,
}

/// What is given next.
enum Next {
    /// The completion at this place among those polled.
    Polled(usize),
    /// A send that is complete because a later one is; whether it was carried out is known then.
    Silent(WcStatus),
    /// What was posted when its queue pair was destroyed.
    Left,
}

impl<'a> Drain<'a> {
    #[inline]
    pub(super) fn new(cq: &'a mut CompletionQueue) -> Drain<'a> {
        Drain { cq }
    }

    /// The next completion. It must be let go of before the one after it is asked for.
    #[allow(clippy::should_implement_trait)] // it lends, which an iterator cannot
    #[inline]
    pub fn next(&mut self) -> Option<Completion<'_>> {
        loop {
            self.cq.finish_forgotten();
            let (place, sequence, next) = self.cq.find_next()?;
            let Some(table) = self.cq.polled.at(place) else { continue };
            let ring: *const Ring = &*table.ring;
            // SAFETY: the table keeps the ring alive, and stays while `self.cq` is borrowed, as it is
            // until the completion is let go of.
            let ring = unsafe { &*ring };
            // SAFETY: the completion queue is borrowed exclusively, and claims from its rings are made
            // here alone; the claim before has ended.
            let Some(claimed) = (unsafe { ring.claim(sequence) }) else { continue };
            if claimed.entry.internal {
                continue;
            }
            self.cq.open = Some((place, sequence));
            let qpn = ring.qpn();
            let wc = match next {
                // SAFETY: integers, zero at first, of which the driver wrote what it means to tell.
                Next::Polled(at) => unsafe { *self.cq.entries[at].assume_init_ref() },
                Next::Silent(status) => synthetic(status),
                Next::Left => synthetic(WcStatus::WR_FLUSH_ERR),
            };
            let silent = !matches!(next, Next::Polled(_));
            return Some(Completion::new(claimed, wc, qpn, silent));
        }
    }

    /// Whether there is nothing. If not, there may still be none to see: of the library's own requests.
    pub fn is_empty(&self) -> bool {
        self.cq.is_drained()
    }
}

impl fmt::Debug for Drain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

/// A completion that the device did not make.
fn synthetic(status: WcStatus) -> ibv_wc {
    ibv_wc {
        wr_id: 0,
        status: status.raw(),
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

impl CompletionQueue {
    /// Where the next completion's work request is.
    #[inline]
    fn find_next(&mut self) -> Option<(u16, u32, Next)> {
        while self.next < self.count {
            // SAFETY: integers, zero at first, of which the driver wrote what it means to tell.
            let wc = unsafe { self.entries[self.next].assume_init_ref() };
            let (id, status) = (WrId::of(wc.wr_id), WcStatus::from_raw(wc.status));
            let Some(table) = self.polled.table(id) else {
                self.unknown(id);
                continue;
            };
            if !table.ring.has(id.sequence) {
                self.stray();
                continue;
            }
            if table.queue == Queue::Send {
                let tail = table.ring.first_possible(table.tail, table.ring.end());
                table.tail = tail.wrapping_add(1);
                if tail != id.sequence {
                    // A send before it, complete without a word; or a gap. Sends are carried out in order, and
                    // the first that is not fails; so those before one that did either, and only those. A
                    // flush tells of nothing before it: not every device flushes what was not to be signaled.
                    let carried_out = !table.failed && status != WcStatus::WR_FLUSH_ERR;
                    let silent =
                        if carried_out { WcStatus::SUCCESS } else { WcStatus::WR_FLUSH_ERR };
                    return Some((id.owner, tail, Next::Silent(silent)));
                }
                table.failed |= status != WcStatus::SUCCESS;
            }
            self.next += 1;
            return Some((id.owner, id.sequence, Next::Polled(self.next - 1)));
        }
        let (place, sequence) = self.polled.next_left(&self.shared)?;
        Some((place, sequence, Next::Left))
    }

    /// A completion of a queue that this copy of the list does not have: made since the poll began, or
    /// gone.
    #[cold]
    fn unknown(&mut self, id: WrId) {
        if self.polled.is_behind(&self.shared) {
            self.polled.catch_up(&self.shared);
            if self.polled.table(id).is_some() {
                return;
            }
        }
        self.stray();
    }

    #[cold]
    fn stray(&mut self) {
        self.strays += 1;
        self.next += 1;
    }

    /// Ends the last completion that was given, if it was forgotten (`mem::forget`).
    #[inline]
    pub(super) fn finish_forgotten(&mut self) {
        if let Some((place, sequence)) = self.open.take() {
            if let Some(table) = self.polled.at(place) {
                table.ring.finish_forgotten(sequence);
            }
        }
    }
}

/// A work request that is complete: how it ended, and the memory that was posted.
///
/// Dropping it drops the memory: buffers go back to their pools.
pub struct Completion<'a> {
    claimed: Claimed<'a>,
    wc: ibv_wc,
    qpn: Qpn,
    silent: bool,
    /// Received bytes that no buffer was given the length of yet.
    received: u32,
}

impl<'a> Completion<'a> {
    #[inline]
    fn new(claimed: Claimed<'a>, wc: ibv_wc, qpn: Qpn, silent: bool) -> Completion<'a> {
        // Only then are they in the memory that was posted.
        let into_memory = wc.status == WcStatus::SUCCESS.raw()
            && claimed.entry.opcode == WcOpcode::RECV
            && wc.opcode == WcOpcode::RECV.raw();
        let received = if into_memory { wc.byte_len } else { 0 };
        Completion { claimed, wc, qpn, silent, received }
    }

    /// The caller's own number, as it was given to the work request; 0 unless it was.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.claimed.entry.wr_id
    }

    /// How it ended.
    #[inline]
    pub fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.wc.status)
    }

    /// Whether it was carried out.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.wc.status == WcStatus::SUCCESS.raw()
    }

    /// How it ended, as a result.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with what the device tells of it.
    #[inline]
    pub fn result(&self) -> Result<(), Error> {
        if self.is_success() { Ok(()) } else { Err(self.error()) }
    }

    #[cold]
    fn error(&self) -> Error {
        Error::Failed {
            opcode: self.opcode(),
            qpn: self.qpn,
            status: self.status(),
            vendor_err: self.wc.vendor_err,
        }
    }

    /// What it was. Of a receive: what took it, if it was carried out.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        let told = WcOpcode::from_raw(self.wc.opcode);
        let posted = self.claimed.entry.opcode;
        if posted == WcOpcode::RECV && self.is_success() && told.is_receive() {
            told
        } else {
            posted
        }
    }

    /// The queue pair.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// How many bytes came in: received into the buffers, or, of a receive that an RDMA write with
    /// immediate data took, written to the memory that the peer named. 0 of everything else.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        if self.opcode().is_receive() && self.is_success() { self.wc.byte_len } else { 0 }
    }

    /// The immediate data that came with it, in host order; `None` when none did.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        const WITH_IMM: u32 = 1 << 1;
        self.came_with(WITH_IMM).then(|| u32::from_be(self.wc.imm_data))
    }

    /// The key of this side that the peer invalidated with it.
    #[inline]
    pub fn invalidated(&self) -> Option<RKey> {
        const WITH_INV: u32 = 1 << 3;
        self.came_with(WITH_INV).then(|| RKey::new(self.wc.imm_data))
    }

    #[inline]
    fn came_with(&self, flag: u32) -> bool {
        self.opcode().is_receive() && self.is_success() && self.wc.wc_flags & flag != 0
    }

    /// The vendor's own number for the failure; 0 of a success.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        if self.is_success() { 0 } else { self.wc.vendor_err }
    }

    /// Whether the device made no completion of its own for it: an unsignaled send, or what was still posted
    /// when its queue pair was destroyed. Such a send was carried out if it says so
    /// ([`is_success`](Completion::is_success)); if it says that it was flushed, that is not known.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// The next piece of the memory that was posted, in that order; `None` when there is none left, and
    /// for one that was inline. A buffer that was received into has the length that was received into it.
    #[inline]
    pub fn take(&mut self) -> Option<Memory> {
        while let Some(held) = self.claimed.take() {
            if let Some(mut memory) = held.into_memory() {
                match &mut memory {
                    Memory::Buffer(buffer) => self.set_received(buffer),
                    // Some of what was received is there.
                    Memory::Exposed(range) => {
                        self.received -= self.received.min(range.len() as u32);
                    }
                    Memory::Shared(_) => {}
                }
                return Some(memory);
            }
        }
        None
    }

    /// The next exclusive buffer that was posted; what comes before it is dropped.
    #[inline]
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        while let Some(memory) = self.take() {
            if let Memory::Buffer(buffer) = memory {
                return Some(buffer);
            }
        }
        None
    }

    /// The exclusive buffer that was posted, the first if there are several.
    #[inline]
    pub fn into_buffer(mut self) -> Option<Buffer> {
        self.take_buffer()
    }

    #[inline]
    fn set_received(&mut self, buffer: &mut Buffer) {
        if self.claimed.entry.opcode == WcOpcode::RECV {
            // A device that tells more than there is room for is not believed.
            let len = self.received.min(buffer.capacity() as u32);
            self.received -= len;
            buffer.put_len(len);
        }
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("wr_id", &self.wr_id())
            .field("opcode", &self.opcode())
            .field("status", &self.status())
            .field("qpn", &self.qpn)
            .field("byte_len", &self.byte_len())
            .field("silent", &self.silent)
            .finish_non_exhaustive()
    }
}
