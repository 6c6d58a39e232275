//! What a poll gives.

#![allow(unsafe_code)]

mod pieces;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::CompletionQueue;
use crate::error::{Error, Queue};
use crate::mem::{Buffer, Held, Memory, MemoryWindow};
use crate::sys::abi::ibv_wc;
use crate::types::{DatagramSource, Lid, Qpn, RKey, WcOpcode, WcStatus};
use crate::wq::{Claim, Claimed, Ring, WrId};

/// The completions of one poll: ask for one after the other by [`next`](Drain::next). Those that are not
/// asked for are given by the next poll.
#[must_use = "it has the completions that were polled"]
pub struct Drain<'a> {
    cq: &'a mut CompletionQueue,
}

/// What a completion queue has open: nothing.
pub(super) const CLOSED: u64 = 0;
/// A completion of a queue pair's own queue. Of a shared receive queue it is the whole `wr_id` of the device,
/// which is neither.
const OPEN: u64 = 1;

/// What the next completion is made of, in registers.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) ring: &'a Ring,
    pub(super) claim: Claim,
    pub(super) wc: &'a ibv_wc,
    pub(super) silent: bool,
}

impl<'a> Drain<'a> {
    #[inline]
    pub(super) fn new(cq: &'a mut CompletionQueue) -> Drain<'a> {
        Drain { cq }
    }

    /// The next completion. It must be let go of before the one after it is asked for.
    #[allow(clippy::should_implement_trait)] // it lends, which an iterator cannot
    #[inline(always)] // as parts, it never is in memory
    pub fn next(&mut self) -> Option<Completion<'_>> {
        loop {
            let cq = &mut *self.cq;
            if *cq.open.get_mut() != CLOSED {
                cq.finish_forgotten();
            }
            // SAFETY: what is found is let go of before the queue is used again: it is part of the
            // completion, which borrows the queue.
            let found = match unsafe { cq.find_usual() } {
                Some(found) => {
                    *cq.open.get_mut() = OPEN;
                    found
                }
                None if cq.is_drained() => return None,
                None => {
                    // SAFETY: as above.
                    let found = unsafe { cq.find_further() }?;
                    let open = if found.claim.is_shared() { found.wc.wr_id } else { OPEN };
                    *cq.open.get_mut() = open;
                    found
                }
            };
            if found.claim.is_internal() {
                *cq.open.get_mut() = CLOSED;
                // SAFETY: found in this ring, just now.
                drop(unsafe { found.claim.of(found.ring) });
                continue;
            }
            // SAFETY: found just now, and used once.
            return Some(unsafe { Completion::new(found, &self.cq.open) });
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
const fn synthetic(status: WcStatus) -> ibv_wc {
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

/// Of a send that is complete because a later one is.
static SILENT: ibv_wc = synthetic(WcStatus::SUCCESS);
/// Of a send that may not have been carried out, and of what was posted when its queue pair was destroyed.
static LEFT: ibv_wc = synthetic(WcStatus::WR_FLUSH_ERR);

impl CompletionQueue {
    /// The next entry, if it is the usual one: of a receive, or of the oldest send in flight, carried out.
    ///
    /// # Safety
    ///
    /// What is found is let go of before the queue is used again.
    #[inline(always)]
    unsafe fn find_usual<'a>(&mut self) -> Option<Found<'a>> {
        if self.next >= self.count {
            return None;
        }
        // SAFETY: integers, zero at first, of which the device's driver wrote what it means to tell; they
        // are not written again before the queue is polled again. The count is at most that of entries.
        let wc = unsafe { &*self.entries.as_ptr().add(self.next).cast::<ibv_wc>() };
        let id = WrId::of(wc.wr_id);
        let table = self.polled.table(id)?;
        let is_send = table.queue == Queue::Send;
        if is_send && (table.tail != id.sequence || wc.status != WcStatus::SUCCESS.raw()) {
            return None;
        }
        // SAFETY: as `claim_from` says.
        let (ring, claim) = unsafe { claim_from(&table.ring, id.sequence) }?;
        if is_send {
            table.tail = id.sequence.wrapping_add(1);
        }
        self.next += 1;
        Some(Found { ring, claim, wc, silent: false })
    }

    /// The next of every other kind.
    ///
    /// # Safety
    ///
    /// As for [`find_usual`](CompletionQueue::find_usual).
    #[cold]
    pub(super) unsafe fn find_other<'a>(&mut self) -> Option<Found<'a>> {
        while self.next < self.count {
            let wc = self.entries[self.next].as_ptr();
            // SAFETY: as in `find_usual`.
            let wc = unsafe { &*wc };
            let id = WrId::of(wc.wr_id);
            if self.polled.srq(id).is_some() {
                // SAFETY: by this function's own contract.
                match unsafe { self.find_shared(wc) } {
                    Some(found) => return Some(found),
                    None => self.stray(),
                }
                continue;
            }
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
                    // A send before it, complete without a word; or a gap, where nothing is. Sends are
                    // carried out in order, and the first that is not fails; so those before one that did
                    // either, and only those. A flush tells of nothing before it: not every device flushes
                    // what was not to be signaled.
                    let carried_out = !table.failed && wc.status != WcStatus::WR_FLUSH_ERR.raw();
                    let wc = if carried_out { &SILENT } else { &LEFT };
                    // SAFETY: as `claim_from` says.
                    match unsafe { claim_from(&table.ring, tail) } {
                        Some((ring, claim)) => {
                            return Some(Found { ring, claim, wc, silent: true });
                        }
                        None => continue,
                    }
                }
                table.failed |= wc.status != WcStatus::SUCCESS.raw();
            }
            // SAFETY: as `claim_from` says.
            let claimed = unsafe { claim_from(&table.ring, id.sequence) };
            self.next += 1;
            match claimed {
                Some((ring, claim)) => return Some(Found { ring, claim, wc, silent: false }),
                // Taken back by its poster at this moment: refused, and completed all the same.
                None => self.strays += 1,
            }
        }
        while let Some((place, sequence)) = self.polled.next_left(&self.shared) {
            let ring = &self.polled.at(place)?.ring;
            // SAFETY: as `claim_from` says.
            if let Some((ring, claim)) = unsafe { claim_from(ring, sequence) } {
                return Some(Found { ring, claim, wc: &LEFT, silent: true });
            }
        }
        None
    }

    /// A completion of a queue that this copy of the list does not have: made since the poll began, or
    /// gone.
    #[cold]
    fn unknown(&mut self, id: WrId) {
        if self.polled.is_behind(&self.shared) {
            self.polled.catch_up(&self.shared);
            if self.polled.table(id).is_some() || self.polled.srq(id).is_some() {
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

    /// Ends the last completion that was given, which was forgotten (`mem::forget`).
    #[cold]
    pub(super) fn finish_forgotten(&mut self) {
        match std::mem::replace(self.open.get_mut(), CLOSED) {
            CLOSED => {}
            OPEN => {
                // SAFETY: the completion queue is borrowed exclusively, so no completion of it is held by
                // anybody.
                self.polled.tables().for_each(|table| unsafe { table.ring.finish_all_forgotten() });
            }
            shared => self.finish_forgotten_shared(shared),
        }
    }
}

/// Claims from a ring of the poller's own list, for longer than the list is borrowed.
///
/// # Safety
///
/// The caller is the poller, and has let go of the claim before. The claim is let go of before the list
/// changes, which keeps the ring alive.
#[inline(always)]
unsafe fn claim_from<'a>(ring: &Arc<Ring>, sequence: u32) -> Option<(&'a Ring, Claim)> {
    let ring: *const Ring = &**ring;
    // SAFETY: by this function's own contract.
    let ring = unsafe { &*ring };
    // SAFETY: as above.
    unsafe { ring.claim_parts(sequence) }.map(|claim| (ring, claim))
}

/// A work request that is complete: how it ended, and the memory that was posted.
///
/// Dropping it drops the memory: buffers go back to their pools.
pub struct Completion<'a> {
    claimed: Claimed<'a>,
    wc: &'a ibv_wc,
    /// Not closed while it is held.
    open: &'a AtomicU64,
    /// Received bytes that a piece of the memory was given the length of.
    given: u32,
    silent: bool,
}

impl<'a> Completion<'a> {
    /// # Safety
    ///
    /// What was found is used once.
    #[inline(always)]
    unsafe fn new(found: Found<'a>, open: &'a AtomicU64) -> Completion<'a> {
        let Found { ring, claim, wc, silent } = found;
        // Made in its place: a piece of it that is written and then copied would wait for itself.
        // SAFETY: by this function's own contract.
        Completion { claimed: unsafe { claim.of(ring) }, wc, open, given: 0, silent }
    }

    /// The caller's own number, as it was given to the work request; 0 unless it was.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.claimed.wr_id()
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
            qpn: self.qpn(),
            status: self.status(),
            vendor_err: self.wc.vendor_err,
        }
    }

    /// What it was. Of a receive: what took it, if it was carried out.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        let told = WcOpcode::from_raw(self.wc.opcode);
        let posted = self.claimed.opcode();
        if posted == WcOpcode::RECV && self.is_success() && told.is_receive() {
            told
        } else {
            posted
        }
    }

    /// The queue pair: of a receive of a [shared](crate::SharedReceiveQueue) one, that which took it.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.claimed.qpn().unwrap_or_else(|| Qpn::from_raw(self.wc.qp_num))
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
        self.came_with(self.claimed.invalidated()).then(|| RKey::new(self.wc.imm_data))
    }

    #[inline]
    fn came_with(&self, flag: u32) -> bool {
        self.opcode().is_receive() && self.is_success() && self.wc.wc_flags & flag != 0
    }

    /// Who sent it, of a receive on a queue pair of datagrams that was carried out. `None` of all else, but that
    /// of a shared receive queue which queue pairs of datagrams and others receive from, the numbers mean
    /// nothing for those others.
    #[inline]
    pub fn datagram(&self) -> Option<DatagramSource> {
        const GRH: u32 = 1 << 0;
        let came = self.opcode().is_receive() && self.is_success();
        (came && self.claimed.is_of_datagrams()).then(|| DatagramSource {
            qpn: Qpn::from_raw(self.wc.src_qp),
            has_grh: self.wc.wc_flags & GRH != 0,
            service_level: self.wc.sl,
            lid: Lid(self.wc.slid),
            path_bits: self.wc.dlid_path_bits,
            pkey_index: self.wc.pkey_index,
        })
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
                    Memory::Fragment(fragment) => self.set_received_fragment(fragment),
                    // Some of what was received is there.
                    Memory::Exposed(range) => {
                        self.give(range.len() as u32);
                    }
                    Memory::Window(window) => window.settle(self.is_success()),
                    Memory::Shared(_) => {}
                }
                return Some(memory);
            }
        }
        None
    }

    /// The next exclusive buffer that was posted; what comes before it is dropped.
    #[inline(always)]
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        match self.claimed.take()?.into_buffer() {
            Ok(mut buffer) => {
                self.set_received(&mut buffer);
                Some(buffer)
            }
            Err(other) => self.take_buffer_after(other),
        }
    }

    #[cold]
    fn take_buffer_after(&mut self, other: Held) -> Option<Buffer> {
        self.pass_over(other);
        std::iter::from_fn(|| self.take()).find_map(|memory| match memory {
            Memory::Buffer(buffer) => Some(buffer),
            _ => None,
        })
    }

    /// The exclusive buffer that was posted, the first if there are several.
    #[inline]
    pub fn into_buffer(mut self) -> Option<Buffer> {
        self.take_buffer()
    }

    /// The memory window that was posted, bound or not any more, if it was carried out; see
    /// [`Memory::Window`].
    pub fn into_window(mut self) -> Option<MemoryWindow> {
        std::iter::from_fn(|| self.take()).find_map(|memory| match memory {
            Memory::Window(window) => Some(window),
            _ => None,
        })
    }

    #[inline]
    fn set_received(&mut self, buffer: &mut Buffer) {
        if self.claimed.opcode() == WcOpcode::RECV {
            // A device that tells more than there is room for is not believed.
            let len = self.give(buffer.capacity() as u32);
            buffer.put_len(len);
        }
    }

    /// How much of what was received is in the next piece of the memory, which has so much room.
    #[inline]
    fn give(&mut self, room: u32) -> u32 {
        // Only then is it in the memory that was posted.
        let received = if self.is_success() && self.wc.opcode == WcOpcode::RECV.raw() {
            self.wc.byte_len
        } else {
            0
        };
        let len = received.saturating_sub(self.given).min(room);
        self.given += len;
        len
    }
}

impl Drop for Completion<'_> {
    #[inline]
    fn drop(&mut self) {
        self.open.store(CLOSED, Ordering::Relaxed);
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("wr_id", &self.wr_id())
            .field("opcode", &self.opcode())
            .field("status", &self.status())
            .field("qpn", &self.qpn())
            .field("byte_len", &self.byte_len())
            .field("silent", &self.silent)
            .finish_non_exhaustive()
    }
}
