//! Queue pairs that are posted on call by call (`ibv_wr_*`), instead of by a chain of structs.
//!
//! A chain is what the layers above make; here it is told to the provider one call after the other. So nothing above
//! can tell one from the other, but for what a failure says, see [`Extended::post`].

use std::ffi::c_uint;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

use super::super::abi::{
    ibv_data_buf, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_send_wr, ibv_sge,
};
use super::super::ops::{self, Newer};
use super::super::{calls, conv};
use super::send_flag::INLINE;
use super::{MAX_SGE, PostSend, opcode};
use crate::error::Errno;
use crate::sys::pd::PdHandle;

/// Of `enum ibv_qp_type`.
const UD: c_uint = 4;

/// What work requests are to be posted (`enum ibv_qp_create_send_ops_flags`): bit n for the opcode n.
pub(crate) mod send_ops {
    use super::opcode;

    pub(crate) const SENDS: u64 = 1 << opcode::SEND | 1 << opcode::SEND_WITH_IMM;
    pub(crate) const WRITES: u64 = 1 << opcode::RDMA_WRITE | 1 << opcode::RDMA_WRITE_WITH_IMM;
    pub(crate) const READ: u64 = 1 << opcode::RDMA_READ;
    pub(crate) const ATOMICS: u64 = 1 << opcode::COMPARE_SWAP | 1 << opcode::FETCH_ADD;
    pub(crate) const LOCAL_INVALIDATE: u64 = 1 << opcode::LOCAL_INV;
    /// Those, and sends that invalidate a key.
    pub(crate) const INVALIDATE: u64 = LOCAL_INVALIDATE | 1 << opcode::SEND_WITH_INV;
    pub(crate) const BIND: u64 = 1 << opcode::BIND_MW;
}

/// Sends are posted on it by these calls, and those by the plain one that the provider did not take when it was made:
/// hns has no local invalidates and no binds, and rxe no local invalidates on UC.
pub(super) struct Extended {
    qp: NonNull<ibv_qp_ex>,
    plain: Option<PostSend>,
    all_or_nothing: bool,
}

/// What is to be posted by these calls.
#[derive(Clone, Copy)]
pub(crate) struct SendOps {
    /// The work requests, see [`send_ops`].
    pub(crate) flags: u64,
    /// Whether a post that fails took nothing, as the man page says: rxe tells in the same way that it could not ring,
    /// when all is in its queue.
    pub(crate) all_or_nothing: bool,
}

/// `ibv_create_qp_ex` for the work requests of these bits, or as many of them as the provider takes. `EOPNOTSUPP` where
/// the library or the provider lacks the calls.
///
/// # Safety
///
/// CQs and SRQ of `init` are live, and of the PD's context.
pub(super) unsafe fn create(
    pd: &PdHandle,
    init: &mut ibv_qp_init_attr,
    asked: SendOps,
) -> Result<(NonNull<ibv_qp>, Extended), Errno> {
    let to_extended = Newer::get().qp_to_qp_ex.ok_or(Errno::EOPNOTSUPP)?;
    let (attr, made) = {
        let without = [0, send_ops::LOCAL_INVALIDATE, send_ops::LOCAL_INVALIDATE | send_ops::BIND];
        let mut attempts = without.into_iter().map(|without| {
            let mut attr = attributes(pd, init, asked.flags & !without);
            conv::preset_errno();
            // SAFETY: the PD is live, and so its context; CQs and SRQ by this function's own contract.
            let made = unsafe { ops::create_qp_ex(pd.context().raw(), &mut attr) };
            (attr, made)
        });
        let refused = |made: &Result<_, Errno>| matches!(made, Err(Errno::EOPNOTSUPP));
        attempts.find(|(_, made)| !refused(made)).ok_or(Errno::EOPNOTSUPP)?
    };
    let qp = made?;
    // SAFETY: the context is open while the PD lives. What its provider put there on opening it stays.
    let plain = unsafe { (*pd.context().raw()).ops.post_send };
    // SAFETY: just made.
    let extended = NonNull::new(unsafe { to_extended(qp.as_ptr()) });
    // SAFETY: just made; its functions are put there by then.
    match extended.filter(|extended| unsafe { is_complete(extended.as_ptr()) }) {
        Some(extended) => {
            init.cap = attr.cap;
            let all_or_nothing = asked.all_or_nothing;
            Ok((qp, Extended { qp: extended, plain, all_or_nothing }))
        }
        None => {
            // SAFETY: just made, and nothing was posted on it.
            pd.context().note_end(unsafe { calls::ibv_destroy_qp(qp.as_ptr()) });
            Err(Errno::EOPNOTSUPP)
        }
    }
}

fn attributes(pd: &PdHandle, init: &ibv_qp_init_attr, send_ops_flags: u64) -> ibv_qp_init_attr_ex {
    const PD: u32 = 1 << 0;
    const SEND_OPS_FLAGS: u32 = 1 << 6;
    ibv_qp_init_attr_ex {
        qp_context: null_mut(),
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: PD | SEND_OPS_FLAGS,
        pd: pd.raw(),
        xrcd: null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags,
    }
}

/// A field of the queue pair as it is now.
macro_rules! field {
    ($qp:expr, $field:ident) => {
        (&raw const (*$qp).$field).read()
    };
}

/// Whether the provider put all there that every post calls. A missing one would be a message without bytes.
///
/// # Safety
///
/// The queue pair is live.
unsafe fn is_complete(qp: *mut ibv_qp_ex) -> bool {
    // SAFETY: by this function's own contract.
    unsafe {
        field!(qp, wr_start).is_some()
            && field!(qp, wr_complete).is_some()
            && field!(qp, wr_set_sge).is_some()
            && field!(qp, wr_set_sge_list).is_some()
            && field!(qp, wr_set_inline_data).is_some()
            && field!(qp, wr_set_inline_data_list).is_some()
            && ((&raw const (*qp).qp.qp_type).read() != UD || field!(qp, wr_set_ud_addr).is_some())
    }
}

/// Whether the queue pair was made for all work requests of a chain.
///
/// # Safety
///
/// As for [`Extended::post`].
unsafe fn takes(qp: *mut ibv_qp_ex, chain: *const ibv_send_wr) -> bool {
    let mut wr = chain;
    while !wr.is_null() {
        // SAFETY: the queue pair is live, and the chain well formed, by this function's own contract.
        let (known, next) = unsafe {
            let known = match (*wr).opcode {
                opcode::RDMA_WRITE => field!(qp, wr_rdma_write).is_some(),
                opcode::RDMA_WRITE_WITH_IMM => field!(qp, wr_rdma_write_imm).is_some(),
                opcode::SEND => field!(qp, wr_send).is_some(),
                opcode::SEND_WITH_IMM => field!(qp, wr_send_imm).is_some(),
                opcode::RDMA_READ => field!(qp, wr_rdma_read).is_some(),
                opcode::COMPARE_SWAP => field!(qp, wr_atomic_cmp_swp).is_some(),
                opcode::FETCH_ADD => field!(qp, wr_atomic_fetch_add).is_some(),
                opcode::LOCAL_INV => field!(qp, wr_local_inv).is_some(),
                opcode::BIND_MW => field!(qp, wr_bind_mw).is_some(),
                opcode::SEND_WITH_INV => field!(qp, wr_send_inv).is_some(),
                _ => false,
            };
            (known, (*wr).next)
        };
        if !known {
            return false;
        }
        wr = next;
    }
    true
}

impl Extended {
    /// Posts a chain of work requests: `ibv_wr_start`, one call or more for each, `ibv_wr_complete`; all of it by
    /// `ibv_post_send` if there is one among them that the queue pair was not made for.
    ///
    /// If it fails with `bad` as it was, the last of these calls failed, and may have taken all.
    ///
    /// # Safety
    ///
    /// The queue pair is live, and nobody else posts sends on it meanwhile. The chain and its memory are as
    /// [`QpHandle::post_send`](super::QpHandle::post_send) wants them.
    pub(super) unsafe fn post(
        &self,
        chain: *mut ibv_send_wr,
        bad: &mut *mut ibv_send_wr,
    ) -> Result<(), Errno> {
        let qp = self.qp.as_ptr();
        // SAFETY: the queue pair is live; the chain by this function's own contract.
        let (start, complete, takes) =
            unsafe { (field!(qp, wr_start), field!(qp, wr_complete), takes(qp, chain)) };
        let (Some(start), Some(complete), true) = (start, complete, takes) else {
            let Some(plain) = self.plain else {
                *bad = chain;
                return Err(Errno::EOPNOTSUPP);
            };
            // SAFETY: the operation is that of the queue pair's own context; else by this function's own contract.
            // The two ways may take turns.
            return conv::zero_or_errno(unsafe { plain(qp.cast(), chain, bad) });
        };
        // SAFETY: the operations are the queue pair's own.
        unsafe { start(qp) };
        let mut wr = chain;
        while !wr.is_null() {
            // SAFETY: between start and completion; the chain is well formed.
            unsafe { tell(qp, wr) };
            // SAFETY: as above.
            wr = unsafe { (*wr).next };
        }
        // SAFETY: after the start.
        let done = conv::zero_or_errno(unsafe { complete(qp) });
        if done.is_err() && self.all_or_nothing {
            *bad = chain;
        }
        done
    }
}

/// Calls an operation of the queue pair; one that is absent is passed over.
macro_rules! call {
    ($qp:expr, $field:ident $(, $arg:expr)*) => {
        if let Some(op) = field!($qp, $field) {
            op($qp $(, $arg)*)
        }
    };
}

/// Tells the provider one work request.
///
/// # Safety
///
/// As for [`Extended::post`], after `wr_start`; the queue pair has an operation for it.
#[inline]
unsafe fn tell(qp: *mut ibv_qp_ex, wr: *const ibv_send_wr) {
    // SAFETY: a work request has these fields whatever its opcode; the two of the queue pair are for whoever posts.
    let flags = unsafe {
        (&raw mut (*qp).wr_id).write((*wr).wr_id);
        let flags = (*wr).send_flags;
        // That data is inline the setter says too; the kernel of rxe and the provider of bnxt_re go by the flag.
        (&raw mut (*qp).wr_flags).write(flags);
        flags
    };
    // SAFETY: the operations are the queue pair's own. Of the unions, the part that the opcode is about was
    // written, and no other is read.
    unsafe {
        match (*wr).opcode {
            opcode::SEND => call!(qp, wr_send),
            opcode::SEND_WITH_IMM => call!(qp, wr_send_imm, (*wr).imm_data),
            opcode::SEND_WITH_INV => call!(qp, wr_send_inv, (*wr).imm_data),
            opcode::LOCAL_INV => return call!(qp, wr_local_inv, (*wr).imm_data),
            opcode::BIND_MW => {
                let bind = &raw const (*wr).bind_mw;
                let info = &raw const (*bind).bind_info;
                return call!(qp, wr_bind_mw, (*bind).mw, (*bind).rkey, info);
            }
            opcode::COMPARE_SWAP => {
                let to = (*wr).wr.atomic;
                let (compare, swap) = (to.compare_add, to.swap);
                call!(qp, wr_atomic_cmp_swp, to.rkey, to.remote_addr, compare, swap);
            }
            opcode::FETCH_ADD => {
                let to = (*wr).wr.atomic;
                call!(qp, wr_atomic_fetch_add, to.rkey, to.remote_addr, to.compare_add);
            }
            other => {
                let to = (*wr).wr.rdma;
                match other {
                    opcode::RDMA_WRITE => call!(qp, wr_rdma_write, to.rkey, to.remote_addr),
                    opcode::RDMA_READ => call!(qp, wr_rdma_read, to.rkey, to.remote_addr),
                    _ => call!(qp, wr_rdma_write_imm, to.rkey, to.remote_addr, (*wr).imm_data),
                }
            }
        }
        if (&raw const (*qp).qp.qp_type).read() == UD {
            let to = (*wr).wr.ud;
            call!(qp, wr_set_ud_addr, to.ah.cast(), to.remote_qpn, to.remote_qkey);
        }
    }
    // SAFETY: the list has so many entries, by the caller's contract.
    let list: &[ibv_sge] = match usize::try_from(unsafe { (*wr).num_sge }) {
        Ok(0) | Err(_) => &[],
        // SAFETY: as above.
        Ok(count) => unsafe { std::slice::from_raw_parts((*wr).sg_list, count) },
    };
    // SAFETY: the operations are the queue pair's own, called once after one of those above. Inline data is there
    // until the post returns, by the caller's contract.
    unsafe {
        match list {
            [only] if flags & INLINE == 0 => {
                call!(qp, wr_set_sge, only.lkey, only.addr, only.length);
            }
            list if flags & INLINE == 0 => call!(qp, wr_set_sge_list, list.len(), list.as_ptr()),
            [only] => {
                let piece = data_buf(only);
                call!(qp, wr_set_inline_data, piece.addr, piece.length);
            }
            list => {
                let mut pieces = [const { MaybeUninit::uninit() }; MAX_SGE];
                let mut count = 0;
                for (piece, entry) in pieces.iter_mut().zip(list) {
                    piece.write(data_buf(entry));
                    count += 1;
                }
                call!(qp, wr_set_inline_data_list, count, pieces.as_ptr().cast());
            }
        }
    }
}

/// Inline data is told by its address, not by a key.
fn data_buf(entry: &ibv_sge) -> ibv_data_buf {
    let addr = std::ptr::with_exposed_provenance_mut(entry.addr as usize);
    ibv_data_buf { addr, length: entry.length as usize }
}

#[cfg(test)]
mod tests;
