//! Queue pairs that are posted on call by call: how they are made.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;

use crate::abi::{
    ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_sge,
};
use crate::device::Kind;
use crate::empty::posting as empty;
use crate::given::bury;
use crate::numbers::{transport, wr};
use crate::post::extended as looped;
use crate::verbs::{self, Verb};
use crate::world::{there, world};

/// The bit for an opcode (`enum ibv_qp_create_send_ops_flags`).
const fn bit(opcode: c_uint) -> u64 {
    1 << opcode
}

/// The work requests that a transport has.
fn known(transport: c_uint) -> u64 {
    let sends = bit(wr::SEND) | bit(wr::SEND_WITH_IMM);
    let reliable = bit(wr::RDMA_READ) | bit(wr::CMP_AND_SWP) | bit(wr::FETCH_AND_ADD);
    let all = bit(wr::SEND_WITH_INV + 1) - 1;
    match transport {
        transport::RC => all,
        // As in the man page; rxe has no local invalidation there.
        transport::UC => all & !reliable,
        _ => sends,
    }
}

/// What C has of a new queue pair. Only what was asked for has a function.
pub(super) fn front(qp: ibv_qp, kind: Kind, ops: Option<u64>) -> ibv_qp_ex {
    let datagram = qp.qp_type == transport::UD;
    // SAFETY: all zero is a value of this struct of integers, pointers, optional functions, and what C makes
    // a mutex and a condition of.
    let mut ex: ibv_qp_ex = unsafe { zeroed() };
    ex.qp = qp;
    let Some(ops) = ops else { return ex };
    let asked = |opcode| ops & bit(opcode) != 0;
    macro_rules! operations {
        ($from:ident) => {
            ex.wr_atomic_cmp_swp = asked(wr::CMP_AND_SWP).then_some($from::wr_atomic_cmp_swp as _);
            ex.wr_atomic_fetch_add =
                asked(wr::FETCH_AND_ADD).then_some($from::wr_atomic_fetch_add as _);
            ex.wr_bind_mw = asked(wr::BIND_MW).then_some($from::wr_bind_mw as _);
            ex.wr_local_inv = asked(wr::LOCAL_INV).then_some($from::wr_local_inv as _);
            ex.wr_rdma_read = asked(wr::RDMA_READ).then_some($from::wr_rdma_read as _);
            ex.wr_rdma_write = asked(wr::RDMA_WRITE).then_some($from::wr_rdma_write as _);
            ex.wr_rdma_write_imm =
                asked(wr::RDMA_WRITE_WITH_IMM).then_some($from::wr_rdma_write_imm as _);
            ex.wr_send = asked(wr::SEND).then_some($from::wr_send as _);
            ex.wr_send_imm = asked(wr::SEND_WITH_IMM).then_some($from::wr_send_imm as _);
            ex.wr_send_inv = asked(wr::SEND_WITH_INV).then_some($from::wr_send_inv as _);
            ex.wr_set_ud_addr = datagram.then_some($from::wr_set_ud_addr as _);
            ex.wr_set_inline_data = Some($from::wr_set_inline_data);
            ex.wr_set_inline_data_list = Some($from::wr_set_inline_data_list);
            ex.wr_set_sge = Some($from::wr_set_sge);
            ex.wr_set_sge_list = Some($from::wr_set_sge_list);
            ex.wr_start = Some($from::wr_start);
            ex.wr_complete = Some($from::wr_complete);
            ex.wr_abort = Some($from::wr_abort);
        };
    }
    match kind {
        Kind::Loop => {
            operations!(looped);
        }
        Kind::Empty => {
            operations!(empty);
        }
    }
    ex
}

/// # Safety
///
/// `ex` is one of a queue pair that is destroyed.
pub(super) unsafe fn bury(ex: *mut ibv_qp_ex) {
    // SAFETY: the caller has one there, which is never freed.
    unsafe {
        bury!(ex: ibv_qp_ex, "queue pair";
            wr_atomic_cmp_swp(u32, u64, u64, u64),
            wr_atomic_fetch_add(u32, u64, u64),
            wr_bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info),
            wr_local_inv(u32),
            wr_rdma_read(u32, u64),
            wr_rdma_write(u32, u64),
            wr_rdma_write_imm(u32, u64, u32),
            wr_send(),
            wr_send_imm(u32),
            wr_send_inv(u32),
            wr_set_ud_addr(*mut ibv_ah, u32, u32),
            wr_set_inline_data(*mut c_void, usize),
            wr_set_inline_data_list(usize, *const ibv_data_buf),
            wr_set_sge(u32, u64, u32),
            wr_set_sge_list(usize, *const ibv_sge),
            wr_start(),
            wr_complete() -> c_int,
            wr_abort(),
        );
    }
}

/// `ibv_create_qp_ex`.
///
/// # Safety
///
/// As C's: `attr` can be read and written.
pub(crate) unsafe extern "C" fn create(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const PD: u32 = 1 << 0;
    const SEND_OPS_FLAGS: u32 = 1 << 6;
    let mut world = world();
    let called = world.call(Verb::CreateQpEx);
    there(&mut world.contexts, context, "context");
    // SAFETY: the caller has one there, for this call only.
    let attr = unsafe { &mut *attr };
    verbs::pointer(called.and_then(|()| {
        if attr.comp_mask & !(PD | SEND_OPS_FLAGS) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & PD == 0 {
            return Err(libc::EINVAL);
        }
        if there(&mut world.pds, attr.pd, "protection domain").context != context.addr() {
            return Err(libc::EINVAL);
        }
        let ops = (attr.comp_mask & SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
        if ops.is_some_and(|ops| ops & !known(attr.qp_type) != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        let mut plain = ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let made = world.create_qp(attr.pd, &mut plain, ops)?;
        attr.cap = plain.cap;
        Ok(made)
    }))
}

/// NULL for one that was not made for it. A fault gives NULL, too.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let mut world = world();
    let called = world.call(Verb::QpToQpEx);
    let extended = there(&mut world.qps, qp, "queue pair").posting.is_some();
    if extended && called.is_ok() { qp.cast() } else { std::ptr::null_mut() }
}
