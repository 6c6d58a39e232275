//! The owner of an `ibv_qp`. `extended`: those that are posted on call by call.

mod extended;

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi::{ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr};
use super::abi::{ibv_recv_wr, ibv_send_wr};
use super::cq::CqHandle;
use super::pd::PdHandle;
use super::srq::SrqHandle;
use super::{calls, conv};
use crate::error::Errno;
use crate::types::{Gid, Lid};

use extended::Extended;
pub(crate) use extended::{SendOps, send_ops};

/// The most scatter/gather entries of one work request that this crate posts; devices have 30 or so.
pub(crate) const MAX_SGE: usize = 32;

/// `enum ibv_wr_opcode`.
pub(crate) mod opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const COMPARE_SWAP: u32 = 5;
    pub(crate) const FETCH_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_WITH_INV: u32 = 9;
}

/// `enum ibv_send_flags`.
pub(crate) mod send_flag {
    pub(crate) const FENCE: u32 = 1 << 0;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
}

/// Which attributes a transition sets (`enum ibv_qp_attr_mask`).
pub(crate) mod mask {
    pub(crate) const STATE: i32 = 1 << 0;
    pub(crate) const ACCESS_FLAGS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const QKEY: i32 = 1 << 6;
    pub(crate) const AV: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRY_CNT: i32 = 1 << 10;
    pub(crate) const RNR_RETRY: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub(crate) const DEST_QPN: i32 = 1 << 20;
}

/// All zero: what C's `= {}` gives.
pub(crate) fn zeroed_attr() -> ibv_qp_attr {
    // SAFETY: all zero is a value of this struct of integers and arrays of them.
    unsafe { std::mem::zeroed() }
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// A queue pair. It stays until [`destroy`](QpHandle::destroy) succeeded: dropping it without leaves it,
/// and its parents, for ever, so that memory posted on it is not freed by a mere mistake.
pub(crate) struct QpHandle {
    qp: NonNull<ibv_qp>,
    number: u32,
    /// The context's operations, at hand. Sends are posted by the first, or call by call by the second.
    post_send: Option<PostSend>,
    extended: Option<Extended>,
    post_recv: Option<PostRecv>,
    /// Destroyed after it, and so never where it could not be.
    parents: ManuallyDrop<Parents>,
}

struct Parents {
    _pd: Arc<PdHandle>,
    _send_cq: Arc<CqHandle>,
    _recv_cq: Arc<CqHandle>,
}

// SAFETY: verbs may be called from any thread, and destroying does not depend on the thread.
unsafe impl Send for QpHandle {}
// SAFETY: as above; the methods that take `&self` only call such verbs.
unsafe impl Sync for QpHandle {}

impl QpHandle {
    /// `ibv_create_qp`, of a type (`enum ibv_qp_type`) and of these capacities, which then are those
    /// that were granted; with `send_ops`, `ibv_create_qp_ex` for these, and sends are posted call by
    /// call. The caller keeps the shared receive queue until after it was destroyed; else the
    /// kernel refuses to destroy that.
    pub(crate) fn create(
        pd: Arc<PdHandle>,
        send_cq: Arc<CqHandle>,
        recv_cq: Arc<CqHandle>,
        srq: Option<&SrqHandle>,
        qp_type: c_uint,
        send_ops: Option<SendOps>,
        cap: &mut ibv_qp_cap,
    ) -> Result<QpHandle, Errno> {
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.map_or(null_mut(), SrqHandle::raw),
            cap: *cap,
            qp_type,
            sq_sig_all: 0,
        };
        let (qp, extended) = match send_ops {
            None => {
                conv::preset_errno();
                // SAFETY: PD, CQs and SRQ are live; the library refuses CQs of another context than the PD's;
                // the attributes are read and written during the call only.
                (conv::pointer(unsafe { calls::ibv_create_qp(pd.raw(), &mut init) })?, None)
            }
            Some(_) if !send_cq.is_of(pd.context()) || !recv_cq.is_of(pd.context()) => {
                return Err(Errno::EINVAL);
            }
            Some(send_ops) => {
                // SAFETY: all are live, and of one context; of an SRQ the kernel looks.
                let (qp, extended) = unsafe { extended::create(&pd, &mut init, send_ops) }?;
                (qp, Some(extended))
            }
        };
        *cap = init.cap;
        // SAFETY: just made; its number does not change.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        // SAFETY: the context is open while the PD lives. What its provider put there on opening it stays.
        let ops = unsafe { &(*pd.context().raw()).ops };
        let post_send = ops.post_send.filter(|_| extended.is_none());
        let post_recv = ops.post_recv;
        let parents = ManuallyDrop::new(Parents { _pd: pd, _send_cq: send_cq, _recv_cq: recv_cq });
        Ok(QpHandle { qp, number, post_send, extended, post_recv, parents })
    }

    /// C's object, for callers who know what it is; good while `self` lives.
    pub(crate) fn as_raw(&self) -> NonNull<c_void> {
        self.qp.cast()
    }

    /// What asynchronous events name it by.
    pub(crate) fn key(&self) -> usize {
        self.qp.as_ptr().addr()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// `ibv_attach_mcast`.
    pub(crate) fn attach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let gid = ibv_gid { raw: group.bytes() };
        // SAFETY: the queue pair is live; the GID is read during the call only.
        conv::zero_or_errno(unsafe { calls::ibv_attach_mcast(self.qp.as_ptr(), &gid, lid.0) })
    }

    /// `ibv_detach_mcast`.
    pub(crate) fn detach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let gid = ibv_gid { raw: group.bytes() };
        // SAFETY: as in `attach`.
        conv::zero_or_errno(unsafe { calls::ibv_detach_mcast(self.qp.as_ptr(), &gid, lid.0) })
    }

    /// For the calls of this folder; good while `self` lives.
    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    /// `ibv_modify_qp`, of the attributes in the mask.
    pub(crate) fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), Errno> {
        let mut attr = *attr;
        // SAFETY: the queue pair is live; the attributes are read during the call only.
        conv::zero_or_errno(unsafe { calls::ibv_modify_qp(self.qp.as_ptr(), &mut attr, mask) })
    }

    /// `ibv_query_qp`.
    pub(crate) fn query(&self, mask: c_int) -> Result<ibv_qp_attr, Errno> {
        let mut attr = zeroed_attr();
        // SAFETY: all zero is a value of this struct of integers and pointers that may be NULL.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the queue pair is live; both structs are written during the call only.
        let returned = unsafe { calls::ibv_query_qp(self.qp.as_ptr(), &mut attr, mask, &mut init) };
        conv::zero_or_errno(returned).map(|()| attr)
    }

    /// `ibv_post_send`: posts a chain of work requests. On a failure `bad` is the first that was not
    /// taken, or what it was before where the provider does not say.
    ///
    /// # Safety
    ///
    /// The chain is well formed and good during the call. The memory it names stays valid, and is
    /// neither read nor written but as its owner may while the device does, until the work request is
    /// complete or [`destroy`](QpHandle::destroy) succeeded. Nobody else posts sends meanwhile.
    #[inline]
    pub(crate) unsafe fn post_send(
        &self,
        chain: *mut ibv_send_wr,
        bad: &mut *mut ibv_send_wr,
    ) -> Result<(), Errno> {
        let Some(post) = self.post_send else {
            // SAFETY: by this function's own contract.
            return unsafe { self.post_send_otherwise(chain, bad) };
        };
        // SAFETY: the operation is that of the queue pair's own context, and the queue pair is live; the chain by
        // this function's own contract.
        conv::zero_or_errno(unsafe { post(self.qp.as_ptr(), chain, bad) })
    }

    /// # Safety
    ///
    /// As for [`post_send`](QpHandle::post_send).
    #[inline(never)]
    unsafe fn post_send_otherwise(
        &self,
        chain: *mut ibv_send_wr,
        bad: &mut *mut ibv_send_wr,
    ) -> Result<(), Errno> {
        match &self.extended {
            // SAFETY: the queue pair is live; else by this function's own contract.
            Some(extended) => unsafe { extended.post(chain, bad) },
            None => {
                *bad = chain;
                Err(Errno::EOPNOTSUPP)
            }
        }
    }

    /// Whether sends are posted call by call.
    pub(crate) fn is_extended(&self) -> bool {
        self.extended.is_some()
    }

    /// The C call that posts sends.
    pub(crate) fn send_verb(&self) -> &'static str {
        if self.is_extended() { "ibv_wr_complete" } else { "ibv_post_send" }
    }

    /// `ibv_post_recv`, as [`post_send`](QpHandle::post_send).
    ///
    /// # Safety
    ///
    /// As for [`post_send`](QpHandle::post_send); the device writes the memory.
    #[inline]
    pub(crate) unsafe fn post_recv(
        &self,
        chain: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> Result<(), Errno> {
        let Some(post) = self.post_recv else {
            *bad = chain;
            return Err(Errno::EOPNOTSUPP);
        };
        // SAFETY: as in post_send.
        conv::zero_or_errno(unsafe { post(self.qp.as_ptr(), chain, bad) })
    }

    /// `ibv_destroy_qp`: when it succeeded the device touches none of the memory posted on it any
    /// more. If it fails, the queue pair comes back.
    pub(crate) fn destroy(self) -> Result<(), (QpHandle, Errno)> {
        // SAFETY: made by us, and the handle is given up only if this succeeds.
        let returned = unsafe { calls::ibv_destroy_qp(self.qp.as_ptr()) };
        match conv::zero_or_errno(returned) {
            Ok(()) => {
                drop(ManuallyDrop::into_inner(self.parents));
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Lets go of what it was made on, when the kernel destroyed it with its device. The library's own memory
    /// of it stays.
    pub(crate) fn gone(self) {
        drop(ManuallyDrop::into_inner(self.parents));
    }
}
