//! Protection domains.

#![deny(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::Context;
use crate::error::{Error, Object, Result};
use crate::sys::PdHandle;

/// A protection domain (`struct ibv_pd`): memory and queue pairs of one know each other, and no
/// others.
///
/// Cheap to clone. It is deallocated when the last clone, and the last object made on it, is gone.
#[derive(Clone)]
pub struct ProtectionDomain {
    handle: Arc<PdHandle>,
    context: Context,
}

impl ProtectionDomain {
    /// Allocates one (`ibv_alloc_pd`).
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `ENOMEM` when the device has no more of them
    /// ([`max_pd`](crate::DeviceLimits::max_pd)).
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(context: &Context) -> Result<ProtectionDomain> {
        let handle = PdHandle::alloc(Arc::clone(context.handle())).map_err(|errno| {
            let object = Object::device(context.device().name());
            Error::Verb { verb: "ibv_alloc_pd", object, errno }
        })?;
        Ok(ProtectionDomain { handle: Arc::new(handle), context: context.clone() })
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// C's protection domain (`struct ibv_pd *`), for calls that this crate lacks: valid while any clone of this,
    /// or anything made on it, lives. Opaque, because no declaration of C's is part of this crate's interface.
    ///
    /// To use it is `unsafe`, and up to whoever does: it must not be deallocated, and what is made on it must be
    /// gone before the last clone is.
    #[doc(alias = "ibv_pd")]
    pub fn as_raw(&self) -> NonNull<c_void> {
        self.handle.as_raw()
    }

    pub(crate) fn handle(&self) -> &Arc<PdHandle> {
        &self.handle
    }

    /// What a work request is compared by: the same for all clones, and no others that live.
    #[inline]
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.handle).addr()
    }
}

impl PartialEq for ProtectionDomain {
    /// Whether both are clones of one.
    fn eq(&self, other: &ProtectionDomain) -> bool {
        self.id() == other.id()
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.context.device().name();
        f.debug_struct("ProtectionDomain").field("device", &device).finish_non_exhaustive()
    }
}
