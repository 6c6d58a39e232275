//! Address handles.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::AddressVector;
use crate::error::{Error, Object, Result};
use crate::pd::ProtectionDomain;
use crate::sys::AhHandle;
use crate::types::{GidEntry, GidType};

/// An address handle (`struct ibv_ah`): where a datagram goes, as the device knows it.
///
/// Cheap to clone. A datagram that is posted holds it until its completion; it is destroyed when the last
/// clone, and the last datagram in flight, is gone.
#[derive(Clone)]
pub struct AddressHandle {
    inner: Arc<Inner>,
}

/// What the clones share. Aligned, so that a pointer to it has low bits to spare.
#[repr(align(8))]
pub(crate) struct Inner {
    /// Destroyed before the rest is let go of.
    handle: ManuallyDrop<AhHandle>,
    pd: ProtectionDomain,
    address: AddressVector,
    source: Option<GidEntry>,
}

impl AddressHandle {
    /// Makes one (`ibv_create_ah`), and then makes sure that it sends from the row that was named, which is
    /// pinned from then on: a row that moved is looked up by its value, as by
    /// [`Context::with_row`](crate::Context::with_row).
    ///
    /// The kernel looks up the next hop's hardware address meanwhile: one that does not answer takes a second
    /// or so.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] for an address that is wrong whatever the device; [`Error::GidMoved`];
    /// [`Error::GidIndexTooLarge`]; [`Error::NoSuchPort`](crate::Error::NoSuchPort); [`Error::Verb`] for what the
    /// device answers: `ETIMEDOUT` when the next hop does not, `ENETUNREACH` without a route.
    #[doc(alias = "ibv_create_ah")]
    pub fn new(pd: &ProtectionDomain, address: &AddressVector) -> Result<AddressHandle> {
        let context = pd.context();
        let device = context.device().name();
        // What a row of RoCE says of its port is all that is asked.
        let is_roce = address.source().is_some_and(|row| row.gid_type() != GidType::IB);
        let port = if is_roce { None } else { Some(context.port(address.port())?) };
        if let Some(what) = address.problem(port.as_ref()) {
            return Err(Error::BadAddress { device: device.into(), what: what.into() });
        }
        let (mut inner, source) = address.make(context, |attr| {
            let handle = AhHandle::create(Arc::clone(pd.handle()), attr).map_err(|errno| {
                let index = attr.grh.sgid_index.into();
                let object = Object::row(device, address.port(), index);
                Error::Verb { verb: "ibv_create_ah", object, errno }
            })?;
            // Whole, so that it is destroyed when the row was another.
            let handle = ManuallyDrop::new(handle);
            Ok(Inner { handle, pd: pd.clone(), address: *address, source: None })
        })?;
        inner.source = source;
        Ok(AddressHandle { inner: Arc::new(inner) })
    }

    /// The address it was made of.
    pub fn address(&self) -> &AddressVector {
        &self.inner.address
    }

    /// The row of this side's GID table that it sends from, as it was read when it was pinned; `None` of an
    /// address without a GID.
    pub fn source(&self) -> Option<&GidEntry> {
        self.inner.source.as_ref()
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// What a work request names it by.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.inner.handle.address()
    }

    #[inline]
    pub(crate) fn domain(&self) -> usize {
        self.inner.pd.id()
    }

    #[inline]
    pub(crate) fn into_inner(self) -> Arc<Inner> {
        self.inner
    }

    #[inline]
    pub(crate) fn of(inner: Arc<Inner>) -> AddressHandle {
        AddressHandle { inner }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nobody uses it after.
        let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
        match handle.destroy() {
            Ok(()) => {}
            // The kernel destroyed it with the device.
            Err((handle, errno)) if self.pd.context().went_with(errno) => handle.gone(),
            // Without it, it stays, and so does its protection domain.
            Err((_, errno)) => {
                self.pd.context().leaked("address handle", errno);
            }
        }
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle")
            .field("device", &self.inner.pd.context().device().name())
            .field("port", &self.inner.address.port())
            .field("destination", &self.inner.address.destination())
            .field("source", &self.inner.source)
            .finish_non_exhaustive()
    }
}
