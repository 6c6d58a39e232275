//! A completion, and the memory that it gives back.

#![allow(unsafe_code)]

mod pieces;

use std::fmt;
use std::sync::atomic::Ordering;

use super::poll::{CLOSED, Found, Open};
use crate::error::Error;
use crate::mem::{Buffer, Held, Memory, MemoryWindow};
use crate::sys::abi::ibv_wc;
use crate::types::{DatagramSource, DeviceTime, Lid, Qpn, RKey, WcOpcode, WcStatus};
use crate::wq::Claimed;

/// A work request that is complete: how it ended, and the memory that was posted.
///
/// Dropping it drops the memory: buffers go back to their pools.
pub struct Completion<'a> {
    claimed: Claimed<'a>,
    wc: &'a ibv_wc,
    /// Not closed while it is held.
    open: &'a Open,
    /// Received bytes that a piece of the memory was given the length of.
    given: u32,
    silent: bool,
}

impl<'a> Completion<'a> {
    /// # Safety
    ///
    /// What was found is used once.
    #[inline(always)]
    pub(super) unsafe fn new(found: Found<'a>, open: &'a Open) -> Completion<'a> {
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

    /// When the device completed it, by its own clock (`ibv_wc_read_completion_ts`), of a completion queue that was
    /// made to tell it ([`timestamps`](crate::CompletionQueueBuilder::timestamps)). `None` of one that was not carried
    /// out, and of one that the device did not make ([`is_silent`](Completion::is_silent)).
    #[inline]
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn timestamp(&self) -> Option<DeviceTime> {
        let at = self.open.next.wrapping_sub(1);
        let time = self.open.times.get(at).filter(|_| self.is_success() && !self.silent)?;
        Some(DeviceTime::from_ticks(*time))
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
        self.open.what.store(CLOSED, Ordering::Relaxed);
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
