//! Polling `empty0` entry by entry, and its clock.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU64, Ordering};

use super::BYTES;
use crate::abi::{ibv_context, ibv_cq_ex, ibv_poll_cq_attr, ibv_values_ex};
use crate::clock::{self, Clock};
use crate::cq::CqFront;

/// Goes on when a time is read, and not when something completes: that would cost who wants no time.
pub(crate) static CLOCK: AtomicU64 = AtomicU64::new(Clock::START);

/// # Safety
///
/// As C's: `values` can be read and written.
pub(crate) unsafe extern "C" fn query_rt_values(
    _: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller has one there.
    let told = unsafe { clock::tell(values, CLOCK.load(Ordering::Relaxed) & clock::MASK) };
    told.err().unwrap_or(0)
}

/// # Safety
///
/// As C's; the completion queue is one of `empty0`, used by one thread at a time.
pub(crate) unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: as the caller says.
    unsafe { next_poll(cq) }
}

/// # Safety
///
/// As [`start_poll`].
#[inline(always)]
pub(crate) unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let front = cq.cast::<CqFront>();
    // SAFETY: completion queues are made with this front around them, and rings stay.
    unsafe {
        let Some(entry) = (*(*front).ring).pop() else { return libc::ENOENT };
        // The status is that of a success since the queue was made.
        (*front).ex.wr_id = entry.wr_id;
        (*front).present = entry;
    }
    0
}

/// # Safety
///
/// As [`start_poll`].
pub(crate) unsafe extern "C" fn end_poll(_: *mut ibv_cq_ex) {}

/// # Safety
///
/// As [`start_poll`].
pub(crate) unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: completion queues are made with this front around them.
    unsafe { (*cq.cast::<CqFront>()).present.opcode }
}

/// # Safety
///
/// As [`start_poll`].
pub(crate) unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: completion queues are made with this front around them.
    unsafe { (*cq.cast::<CqFront>()).present.qp_num }
}

/// The next time. Two threads at once may be told the same.
pub(crate) unsafe extern "C" fn read_completion_ts(_: *mut ibv_cq_ex) -> u64 {
    let now = CLOCK.load(Ordering::Relaxed).wrapping_add(clock::TICKS);
    CLOCK.store(now, Ordering::Relaxed);
    now & clock::MASK
}

macro_rules! constant {
    ($($name:ident -> $type:ty = $value:expr;)*) => {$(
        pub(crate) unsafe extern "C" fn $name(_: *mut ibv_cq_ex) -> $type {
            $value
        }
    )*};
}

constant!(
    read_vendor_err -> u32 = 0;
    read_byte_len -> u32 = BYTES;
    read_imm_data -> u32 = 0;
    read_src_qp -> u32 = 0;
    read_wc_flags -> c_uint = 0;
    read_slid -> u32 = 0;
    read_sl -> u8 = 0;
    read_dlid_path_bits -> u8 = 0;
);
