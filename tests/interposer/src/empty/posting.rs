//! Posting on `empty0` call by call. Of two queue pairs on one completion queue only one is posted on at a time.

use std::ffi::{c_int, c_void};

use super::Entry;
use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::numbers::{flag, wc};
use crate::qp::QpFront;

/// # Safety
///
/// As C's; the queue pair is one of `empty0`, used by one thread at a time.
pub(crate) unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let front = qp.cast::<QpFront>();
    // SAFETY: queue pairs are made with this front around them, and rings stay.
    unsafe { (*front).next = (*(*front).send_ring).tail() };
}

/// # Safety
///
/// As [`wr_start`].
pub(crate) unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let front = qp.cast::<QpFront>();
    // SAFETY: queue pairs are made with this front around them, and rings stay.
    unsafe { (*(*front).send_ring).publish((*front).next) };
    0
}

/// # Safety
///
/// As [`wr_start`].
pub(crate) unsafe extern "C" fn wr_abort(_: *mut ibv_qp_ex) {}

/// # Safety
///
/// As [`wr_start`].
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex) {
    let front = qp.cast::<QpFront>();
    // SAFETY: queue pairs are made with this front around them, and rings stay.
    unsafe {
        if (*front).ex.wr_flags & flag::SIGNALED | (*front).all_signaled != 0 {
            let (wr_id, qp_num) = ((*front).ex.wr_id, (*front).ex.qp.qp_num);
            let at = (*front).next;
            (*(*front).send_ring).put(at, Entry { wr_id, qp_num, opcode: wc::SEND });
            (*front).next = at.wrapping_add(1);
        }
    }
}

macro_rules! builders {
    ($($name:ident($($arg:ty),*);)*) => {$(
        /// # Safety
        ///
        /// As [`wr_start`].
        pub(crate) unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, _: $arg)*) {
            // SAFETY: as the caller says.
            unsafe { begin(qp) }
        }
    )*};
}

builders!(
    wr_atomic_cmp_swp(u32, u64, u64, u64);
    wr_atomic_fetch_add(u32, u64, u64);
    wr_bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info);
    wr_local_inv(u32);
    wr_rdma_read(u32, u64);
    wr_rdma_write(u32, u64);
    wr_rdma_write_imm(u32, u64, u32);
    wr_send();
    wr_send_imm(u32);
    wr_send_inv(u32);
);

macro_rules! setters {
    ($($name:ident($($arg:ty),*);)*) => {$(
        pub(crate) unsafe extern "C" fn $name(_: *mut ibv_qp_ex $(, _: $arg)*) {}
    )*};
}

setters!(
    wr_set_ud_addr(*mut ibv_ah, u32, u32);
    wr_set_inline_data(*mut c_void, usize);
    wr_set_inline_data_list(usize, *const ibv_data_buf);
    wr_set_sge(u32, u64, u32);
    wr_set_sge_list(usize, *const ibv_sge);
);
