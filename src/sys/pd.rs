//! The owners of an `ibv_pd` and of an `ibv_mr`.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{ibv_mr, ibv_pd};
use super::context::ContextHandle;
use super::{calls, conv, ops};
use crate::error::Errno;

/// A protection domain; deallocated when dropped. What is made on it holds it.
pub(crate) struct PdHandle {
    pd: NonNull<ibv_pd>,
    /// Closed after it.
    context: Arc<ContextHandle>,
}

// SAFETY: verbs may be called from any thread, and deallocating does not depend on the thread.
unsafe impl Send for PdHandle {}
// SAFETY: as above; the methods that take `&self` only call such verbs.
unsafe impl Sync for PdHandle {}

impl Drop for PdHandle {
    fn drop(&mut self) {
        // SAFETY: allocated by us, deallocated once, here. What was made on it holds it, so nothing
        // is left but what could not be destroyed; then it stays, as that does.
        let returned = unsafe { calls::ibv_dealloc_pd(self.pd.as_ptr()) };
        self.context.note_end(returned);
    }
}

impl PdHandle {
    /// `ibv_alloc_pd`.
    pub(crate) fn alloc(context: Arc<ContextHandle>) -> Result<PdHandle, Errno> {
        conv::preset_errno();
        // SAFETY: the context is open while `context` lives.
        let pd = conv::pointer(unsafe { calls::ibv_alloc_pd(context.raw()) })?;
        Ok(PdHandle { pd, context })
    }

    /// C's object, for callers who know what it is; good while `self` lives.
    pub(crate) fn as_raw(&self) -> NonNull<c_void> {
        self.pd.cast()
    }

    /// For the calls of this folder; good while `self` lives.
    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }

    /// What it is of.
    pub(super) fn context(&self) -> &ContextHandle {
        &self.context
    }
}

/// A memory region. It stays registered until [`deregister`](MrHandle::deregister) succeeded: dropping
/// it without leaves it registered for ever, so that memory is not freed by a mere mistake.
pub(crate) struct MrHandle {
    mr: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    /// Deallocated after it.
    _pd: Arc<PdHandle>,
}

// SAFETY: deregistering does not depend on the thread; the keys are numbers.
unsafe impl Send for MrHandle {}
// SAFETY: shared access only reads the keys.
unsafe impl Sync for MrHandle {}

impl MrHandle {
    /// Registers memory (`ibv_reg_mr`).
    ///
    /// # Safety
    ///
    /// The memory is mapped, and stays so and is used for nothing else that its access forbids, until
    /// [`deregister`](MrHandle::deregister) succeeded.
    pub(crate) unsafe fn register(
        pd: Arc<PdHandle>,
        memory: NonNull<u8>,
        len: usize,
        access: u32,
    ) -> Result<MrHandle, Errno> {
        conv::preset_errno();
        // SAFETY: the PD lives; the memory by this function's own contract.
        let mr = unsafe { ops::reg_mr(pd.raw(), memory.as_ptr().cast(), len, access) }?;
        Ok(MrHandle::of(pd, mr))
    }

    /// Registers a part of a dma-buf (`ibv_reg_dmabuf_mr`), which the device finds at `iova`.
    ///
    /// # Safety
    ///
    /// What is behind the descriptor may be touched as the access says, until
    /// [`deregister`](MrHandle::deregister) succeeded.
    pub(crate) unsafe fn register_dma_buf(
        pd: Arc<PdHandle>,
        fd: BorrowedFd<'_>,
        part: (u64, usize),
        iova: u64,
        access: u32,
    ) -> Result<MrHandle, Errno> {
        conv::preset_errno();
        // SAFETY: the PD lives; the memory by this function's own contract.
        let mr = unsafe { ops::reg_dmabuf_mr(pd.raw(), part, iova, fd.as_raw_fd(), access) }?;
        Ok(MrHandle::of(pd, mr))
    }

    /// One that was just made.
    fn of(pd: Arc<PdHandle>, mr: NonNull<ibv_mr>) -> MrHandle {
        // SAFETY: just made, and its keys do not change.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        MrHandle { mr, lkey, rkey, _pd: pd }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What the bind of a window names it by, while it lives.
    pub(crate) fn address(&self) -> u64 {
        self.mr.as_ptr().expose_provenance() as u64
    }

    /// `ibv_dereg_mr`: when it succeeded the device does not touch the memory on this region's behalf
    /// any more. If it fails, the region comes back.
    pub(crate) fn deregister(self) -> Result<(), (MrHandle, Errno)> {
        // SAFETY: registered by us, and the handle is given up only if this succeeds.
        let returned = unsafe { calls::ibv_dereg_mr(self.mr.as_ptr()) };
        conv::zero_or_errno(returned).map_err(|errno| (self, errno))
    }
}
