//! C's own context, out of ours and into it.

// A pointer from outside is taken at its word: no type can vouch for it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::Context;
use crate::device::{Device, DeviceList};
use crate::error::{Error, Result};
use crate::sys::{ContextHandle, DeviceHandle};

impl Context {
    /// C's context (`struct ibv_context *`), for calls that this crate lacks: valid while any clone of this, or
    /// anything made on it, lives. Opaque, because no declaration of C's is part of this crate's interface.
    ///
    /// To use it is `unsafe`, and up to whoever does: it must not be closed; its events are read by this crate,
    /// and one that is read elsewhere is lost to the tables and objects here ([`subscribe`](Context::subscribe)
    /// gives every event to whoever wants them); what is made on it must be gone before the last clone is.
    #[doc(alias = "ibv_context")]
    pub fn as_raw(&self) -> NonNull<c_void> {
        self.inner.handle.as_raw()
    }

    /// Takes over a device that was opened by others (`mlx5dv_open_device` with attributes of its own): from now
    /// on it is this crate's, and closed (`ibv_close_device`) when the last clone, and the last object made on
    /// it, is gone. Asks its limits and reads its GID tables, as [`Device::open`] does, and makes its descriptor
    /// of events non-blocking.
    ///
    /// # Safety
    ///
    /// `context` is an open `struct ibv_context *` that nobody else closes or reads the events of, and of which no
    /// other `Context` was made. What others made on it (`ibv_alloc_pd` and so on) they destroy before it is
    /// closed.
    ///
    /// # Errors
    ///
    /// It is then still the caller's, and open, with that descriptor non-blocking. As [`Device::open`], and [`Error::NoSuchDevice`] when its device is
    /// not listed (one of `mlx5dv_get_vfio_device_list`).
    #[doc(alias = "ibv_context")]
    pub unsafe fn from_raw(context: NonNull<c_void>) -> Result<Context> {
        // SAFETY: by this function's own contract.
        let context = unsafe { Context::borrow_raw(context) }?;
        context.inner.handle.own();
        Ok(context)
    }

    /// The same of one that others keep and close: `id->verbs` of an id of librdmacm, a context of a library that
    /// this program shares. Nothing of it is closed here.
    ///
    /// # Safety
    ///
    /// `context` is an open `struct ibv_context *`, which stays open until every clone of this, and everything
    /// that was made on it, is gone: queue pairs and completion queues, buffers that are in a queue, a
    /// [`Resolver`](crate::Resolver) or a watcher among them. Nobody else reads its events, and no other `Context`
    /// was made of it.
    ///
    /// # Errors
    ///
    /// As [`from_raw`](Context::from_raw).
    #[doc(alias = "ibv_context")]
    pub unsafe fn borrow_raw(context: NonNull<c_void>) -> Result<Context> {
        // SAFETY: by this function's own contract.
        let handle = unsafe { ContextHandle::of_others(context) };
        let handle = handle.map_err(|errno| Error::Host { call: "fcntl", errno })?;
        let device = DeviceHandle::of(&handle).map_err(|errno| Error::DeviceList { errno })?;
        let Some(device) = device.map(Device::new) else {
            let listed = DeviceList::new()?;
            let available = listed.iter().map(|device| device.name().into()).collect();
            return Err(Error::NoSuchDevice { name: handle.device_name().into(), available });
        };
        device.with(Arc::new(handle))
    }
}
