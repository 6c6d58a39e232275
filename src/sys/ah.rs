//! The owner of an `ibv_ah`.

use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{ibv_ah, ibv_ah_attr};
use super::pd::PdHandle;
use super::{calls, conv};
use crate::error::Errno;

/// An address handle. It stays until [`destroy`](AhHandle::destroy) succeeded: dropping it without leaves it,
/// and its protection domain, for ever.
pub(crate) struct AhHandle {
    ah: NonNull<ibv_ah>,
    pd: std::mem::ManuallyDrop<Arc<PdHandle>>,
}

// SAFETY: verbs may be called from any thread, and destroying does not depend on the thread.
unsafe impl Send for AhHandle {}
// SAFETY: shared access only reads the address of it.
unsafe impl Sync for AhHandle {}

impl AhHandle {
    /// `ibv_create_ah`.
    pub(crate) fn create(pd: Arc<PdHandle>, attr: &ibv_ah_attr) -> Result<AhHandle, Errno> {
        let mut attr = *attr;
        conv::preset_errno();
        // SAFETY: the PD is live; the attributes are read during the call only.
        let ah = conv::pointer(unsafe { calls::ibv_create_ah(pd.raw(), &mut attr) })?;
        Ok(AhHandle { ah, pd: std::mem::ManuallyDrop::new(pd) })
    }

    /// What a work request of a datagram names it by, while it lives.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.ah.as_ptr().expose_provenance() as u64
    }

    /// `ibv_destroy_ah`. If it fails, the handle comes back.
    pub(crate) fn destroy(self) -> Result<(), (AhHandle, Errno)> {
        // SAFETY: made by us, and the handle is given up only if this succeeds.
        let returned = unsafe { calls::ibv_destroy_ah(self.ah.as_ptr()) };
        match conv::zero_or_errno(returned) {
            Ok(()) => {
                drop(std::mem::ManuallyDrop::into_inner(self.pd));
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Lets go of what it was made on, when the kernel destroyed it with its device. The library's own memory
    /// of it stays.
    pub(crate) fn gone(self) {
        drop(std::mem::ManuallyDrop::into_inner(self.pd));
    }
}
