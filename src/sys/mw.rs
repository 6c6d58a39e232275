//! The owner of an `ibv_mw`.

use std::ffi::c_uint;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{ibv_mw, ibv_mw_bind};
use super::conv;
use super::pd::PdHandle;
use super::qp::QpHandle;
use crate::error::Errno;

/// A memory window. It stays until [`dealloc`](MwHandle::dealloc) succeeded: dropping it without leaves it,
/// and its protection domain, for ever.
pub(crate) struct MwHandle {
    mw: NonNull<ibv_mw>,
    pd: ManuallyDrop<Arc<PdHandle>>,
}

// SAFETY: verbs may be called from any thread, and deallocating does not depend on the thread.
unsafe impl Send for MwHandle {}
// SAFETY: shared access only reads the address of it.
unsafe impl Sync for MwHandle {}

impl MwHandle {
    /// `ibv_alloc_mw`, of a type (`enum ibv_mw_type`).
    pub(crate) fn alloc(pd: Arc<PdHandle>, kind: c_uint) -> Result<MwHandle, Errno> {
        conv::preset_errno();
        // SAFETY: the PD, and with it the context that it points to, is live; the operation is that
        // context's own.
        let mw = unsafe {
            match (*(*pd.raw()).context).ops.alloc_mw {
                Some(alloc) => conv::pointer(alloc(pd.raw(), kind))?,
                None => return Err(Errno::EOPNOTSUPP),
            }
        };
        Ok(MwHandle { mw, pd: ManuallyDrop::new(pd) })
    }

    /// What a bind names it by, while it lives.
    pub(crate) fn address(&self) -> u64 {
        self.mw.as_ptr().expose_provenance() as u64
    }

    /// Its key as the library has it. Exclusive: a bind of type 1 writes it.
    pub(crate) fn rkey(&mut self) -> u32 {
        // SAFETY: the window is live, and nobody else uses its struct.
        unsafe { (*self.mw.as_ptr()).rkey }
    }

    /// Tells the library which key it has now: it names the window to the device by that.
    pub(crate) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: as for `rkey`.
        unsafe { (*self.mw.as_ptr()).rkey = rkey }
    }

    /// `ibv_bind_mw` on a queue pair: of a window of type 1. It then has another key.
    ///
    /// # Safety
    ///
    /// The bind names a live region, or one of no length.
    pub(crate) unsafe fn bind(
        &mut self,
        qp: &QpHandle,
        bind: &mut ibv_mw_bind,
    ) -> Result<(), Errno> {
        let mw = self.mw.as_ptr();
        // SAFETY: the window and the queue pair are live, and so is their context, whose own the operation
        // is; the bind is read during the call only.
        let returned = unsafe {
            match (*(*mw).context).ops.bind_mw {
                Some(operation) => operation(qp.raw(), mw, bind),
                None => libc::EOPNOTSUPP,
            }
        };
        conv::zero_or_errno(returned)
    }

    /// `ibv_dealloc_mw`: after it nobody reaches memory by it who does not already. If it fails, the window
    /// comes back.
    pub(crate) fn dealloc(self) -> Result<(), (MwHandle, Errno)> {
        let mw = self.mw.as_ptr();
        // SAFETY: made by us, and the handle is given up only if this succeeds; its context is live.
        let returned = unsafe {
            match (*(*mw).context).ops.dealloc_mw {
                Some(dealloc) => dealloc(mw),
                None => libc::EOPNOTSUPP,
            }
        };
        match conv::zero_or_errno(returned) {
            Ok(()) => {
                drop(ManuallyDrop::into_inner(self.pd));
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Lets go of what it was made on, when the kernel destroyed it with its device. The library's own memory
    /// of it stays.
    pub(crate) fn gone(self) {
        drop(ManuallyDrop::into_inner(self.pd));
    }
}
