//! The owner of an `ibv_srq`.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi::{ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr_ex};
use super::pd::PdHandle;
use super::{calls, conv, ops};
use crate::error::Errno;

/// A shared receive queue. It stays until [`destroy`](SrqHandle::destroy) succeeded: dropping it without
/// leaves it, and its protection domain, for ever, so that memory posted on it is not freed by a mere mistake.
pub(crate) struct SrqHandle {
    srq: NonNull<ibv_srq>,
    /// Deallocated after it, and so never where it could not be destroyed.
    pd: ManuallyDrop<Arc<PdHandle>>,
}

// SAFETY: verbs may be called from any thread, and destroying does not depend on the thread.
unsafe impl Send for SrqHandle {}
// SAFETY: as above; the methods that take `&self` only call such verbs.
unsafe impl Sync for SrqHandle {}

impl SrqHandle {
    /// `ibv_create_srq`, of these capacities, which then are those that were granted.
    pub(crate) fn create(pd: Arc<PdHandle>, attr: &mut ibv_srq_attr) -> Result<SrqHandle, Errno> {
        const ATTR_PD: u32 = 1 << 1;
        let mut init = ibv_srq_init_attr_ex {
            srq_context: null_mut(),
            attr: *attr,
            comp_mask: ATTR_PD,
            srq_type: 0,
            pd: pd.raw(),
            xrcd: null_mut(),
            cq: null_mut(),
            tm_cap: [0; 2],
        };
        conv::preset_errno();
        // SAFETY: the PD is live, and the context is its own; the attributes are read and written during the
        // call only.
        let srq = unsafe { ops::create_srq_ex(pd.context().raw(), &mut init) }?;
        *attr = init.attr;
        Ok(SrqHandle { srq, pd: ManuallyDrop::new(pd) })
    }

    /// What asynchronous events name it by.
    pub(crate) fn key(&self) -> usize {
        self.srq.as_ptr().addr()
    }

    /// For the calls of this folder; good while `self` lives.
    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    /// `ibv_modify_srq` of the limit.
    pub(crate) fn set_limit(&self, srq_limit: u32) -> Result<(), Errno> {
        const LIMIT: c_int = 1 << 1;
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit };
        // SAFETY: the queue is live; the attributes are read during the call only.
        conv::zero_or_errno(unsafe { calls::ibv_modify_srq(self.raw(), &mut attr, LIMIT) })
    }

    /// `ibv_query_srq`.
    pub(crate) fn query(&self) -> Result<ibv_srq_attr, Errno> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: the queue is live; the attributes are written during the call only.
        conv::zero_or_errno(unsafe { calls::ibv_query_srq(self.raw(), &mut attr) })?;
        Ok(attr)
    }

    /// `ibv_post_srq_recv`: posts a chain of receives. On a failure `bad` is the first that was not taken, or
    /// what it was before where the provider does not say.
    ///
    /// # Safety
    ///
    /// The chain is well formed and good during the call. The memory it names stays valid, and is neither read
    /// nor written but as its owner may while the device does, until the work request is complete or
    /// [`destroy`](SrqHandle::destroy) succeeded.
    #[inline]
    pub(crate) unsafe fn post_recv(
        &self,
        chain: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> Result<(), Errno> {
        // SAFETY: the queue, and with it the context that it points to, is live; the chain by this
        // function's own contract.
        let returned = unsafe {
            let srq = self.raw();
            match (*(*srq).context).ops.post_srq_recv {
                Some(post) => post(srq, chain, bad),
                None => libc::EOPNOTSUPP,
            }
        };
        conv::zero_or_errno(returned)
    }

    /// `ibv_destroy_srq`: when it succeeded the device touches none of the memory posted on it any more. If it
    /// fails, the queue comes back.
    pub(crate) fn destroy(self) -> Result<(), (SrqHandle, Errno)> {
        // SAFETY: made by us, and the handle is given up only if this succeeds.
        let returned = unsafe { calls::ibv_destroy_srq(self.raw()) };
        match conv::zero_or_errno(returned) {
            Ok(()) => {
                self.gone();
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Lets go of what it was made on: it was destroyed, by us or by the kernel with its device. Then the
    /// library's own memory of it stays.
    pub(crate) fn gone(self) {
        drop(ManuallyDrop::into_inner(self.pd));
    }
}
