//! Completion queues that are polled entry by entry: made where something is asked for that `ibv_poll_cq` does
//! not tell, and by whoever wants these calls.
//!
//! What they tell is put into the same `ibv_wc` as that fills, so that nothing above can tell one from the other.
//! Only what means something is asked for: one call each.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::super::abi::{Read, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc};
use super::super::{conv, ops};
use super::{ChannelHandle, CqHandle, poll_error};
use crate::error::Errno;
use crate::sys::context::ContextHandle;

/// What is asked to be told (`enum ibv_create_cq_wc_flags`): all that a plain completion has but the index of its
/// P_Key, which no such call tells.
const STANDARD: u64 = 0x7f;
const COMPLETION_TIMESTAMP: u64 = 1 << 7;

/// Of `enum ibv_wc_status`.
const SUCCESS: u32 = 0;
/// The bit of `enum ibv_wc_opcode` that all that was received has.
const RECEIVED: u32 = 1 << 7;

/// Polling a queue made with these calls.
pub(super) struct Extended {
    cq: NonNull<ibv_cq_ex>,
    timed: bool,
    /// An error that came after completions: it is told by the next poll. 0 when there is none.
    failed: AtomicI32,
}

impl CqHandle {
    /// `ibv_create_cq_ex` with room for at least `cqe` completions, with the device's time of each if `timed`.
    /// `EOPNOTSUPP` where the library or the provider has it not.
    pub(crate) fn create_extended(
        context: Arc<ContextHandle>,
        cqe: u32,
        channel: Option<Arc<ChannelHandle>>,
        vector: u32,
        timed: bool,
    ) -> Result<CqHandle, Errno> {
        CqHandle::check(&context, channel.as_ref())?;
        let mut attr = ibv_cq_init_attr_ex {
            cqe,
            cq_context: null_mut::<c_void>(),
            channel: channel.as_ref().map_or(null_mut(), |channel| channel.raw()),
            comp_vector: vector,
            wc_flags: STANDARD | if timed { COMPLETION_TIMESTAMP } else { 0 },
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        };
        conv::preset_errno();
        // SAFETY: the context is open, and the channel, if there is one, is live and of it.
        let cq = unsafe { ops::create_cq_ex(context.raw(), &mut attr) }?;
        let extended = Extended { cq, timed, failed: AtomicI32::new(0) };
        let complete = extended.is_complete();
        // Destroyed by it, whatever comes.
        let handle = CqHandle::new(cq.cast(), Some(extended), channel, context);
        if complete { Ok(handle) } else { Err(Errno::EOPNOTSUPP) }
    }
}

/// A field of the queue as it is now.
macro_rules! field {
    ($cq:expr, $field:ident) => {
        (&raw const (*$cq).$field).read()
    };
}

impl Extended {
    /// Whether the provider put all there that polling calls.
    fn is_complete(&self) -> bool {
        let cq = self.cq.as_ptr();
        // SAFETY: just made; its functions are put there by then.
        unsafe {
            field!(cq, start_poll).is_some()
                && field!(cq, next_poll).is_some()
                && field!(cq, end_poll).is_some()
                && field!(cq, read_opcode).is_some()
                && field!(cq, read_vendor_err).is_some()
                && field!(cq, read_byte_len).is_some()
                && field!(cq, read_imm_data).is_some()
                && field!(cq, read_qp_num).is_some()
                && field!(cq, read_src_qp).is_some()
                && field!(cq, read_wc_flags).is_some()
                && field!(cq, read_slid).is_some()
                && field!(cq, read_sl).is_some()
                && field!(cq, read_dlid_path_bits).is_some()
                && (!self.timed || field!(cq, read_completion_ts).is_some())
        }
    }

    /// `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll`: how many entries were written to the front of `wcs`,
    /// and of those carried out the times, if there are any, to that of `times`; and whether no more are there.
    ///
    /// # Safety
    ///
    /// The queue is live, and nobody else polls it meanwhile: rxe before rdma-core 59 unlocks its lock twice.
    pub(super) unsafe fn poll(
        &self,
        wcs: &mut [MaybeUninit<ibv_wc>],
        times: &mut [u64],
    ) -> Result<(usize, bool), Errno> {
        let failed = self.failed.swap(0, Ordering::Relaxed);
        if failed != 0 {
            return Err(Errno::from_raw(failed));
        }
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is live, by this function's own contract.
        let (start, next, end) =
            unsafe { (field!(cq, start_poll), field!(cq, next_poll), field!(cq, end_poll)) };
        let (Some(start), Some(next), Some(end)) = (start, next, end) else {
            return Err(Errno::EOPNOTSUPP);
        };
        if wcs.is_empty() {
            return Ok((0, false));
        }
        // SAFETY: the operations are the queue's own.
        match unsafe { start(cq, &mut ibv_poll_cq_attr { comp_mask: 0 }) } {
            0 => {}
            returned => return none_left(returned).map_or(Ok((0, true)), Err),
        }
        let (mut count, mut emptied) = (0, false);
        loop {
            // SAFETY: between the start and the end of a poll, at a completion.
            let (wc, time) = unsafe { self.read() };
            if let Some(slot) = times.get_mut(count) {
                *slot = time;
            }
            wcs[count].write(wc);
            count += 1;
            if count == wcs.len() {
                break;
            }
            // SAFETY: as above.
            let returned = unsafe { next(cq) };
            if returned != 0 {
                match none_left(returned) {
                    Some(errno) => self.failed.store(errno.raw(), Ordering::Relaxed),
                    None => emptied = true,
                }
                break;
            }
        }
        // SAFETY: a poll was started, and is ended once, also after an error of `next`.
        unsafe { end(cq) };
        Ok((count, emptied))
    }

    /// The present completion, and its time, which is 0 where there is none.
    ///
    /// # Safety
    ///
    /// A poll of the live queue was started, and is at a completion.
    unsafe fn read(&self) -> (ibv_wc, u64) {
        let cq = self.cq.as_ptr();
        let mut wc = ibv_wc::ZERO;
        let mut time = 0;
        // SAFETY: the queue is live, and at a completion, by this function's own contract; the functions are its own.
        unsafe {
            wc.wr_id = field!(cq, wr_id);
            wc.status = field!(cq, status);
            wc.qp_num = ask(cq, field!(cq, read_qp_num));
            if wc.status != SUCCESS {
                // Nothing else means anything.
                wc.vendor_err = ask(cq, field!(cq, read_vendor_err));
                return (wc, 0);
            }
            if self.timed {
                time = ask(cq, field!(cq, read_completion_ts));
            }
            wc.opcode = ask(cq, field!(cq, read_opcode));
            if wc.opcode & RECEIVED != 0 {
                const GRH: u32 = 1 << 0;
                wc.byte_len = ask(cq, field!(cq, read_byte_len));
                wc.wc_flags = ask(cq, field!(cq, read_wc_flags));
                // Immediate data, or a key that was invalidated.
                if wc.wc_flags & !GRH != 0 {
                    wc.imm_data = ask(cq, field!(cq, read_imm_data));
                }
                wc.src_qp = ask(cq, field!(cq, read_src_qp));
                // The field of `ibv_wc` has 16 bits.
                wc.slid = ask(cq, field!(cq, read_slid)) as u16;
                wc.sl = ask(cq, field!(cq, read_sl));
                wc.dlid_path_bits = ask(cq, field!(cq, read_dlid_path_bits));
            }
        }
        (wc, time)
    }
}

/// What a function tells of the present completion.
///
/// # Safety
///
/// It is a function of the queue, which is live and at a completion.
#[inline]
unsafe fn ask<T: Default>(cq: *mut ibv_cq_ex, read: Read<T>) -> T {
    match read {
        // SAFETY: by this function's own contract.
        Some(read) => unsafe { read(cq) },
        // It was there when the queue was made.
        None => T::default(),
    }
}

/// What a poll that gives nothing means: that there is nothing, or an error.
fn none_left(returned: c_int) -> Option<Errno> {
    match returned {
        libc::ENOENT => None,
        // As providers tell it by the plain call too.
        negative if negative < 0 => Some(poll_error(negative)),
        errno => Some(Errno::from_raw(errno)),
    }
}
