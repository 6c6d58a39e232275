//! Which device an id is bound to, and the contexts of our own for it.
//!
//! librdmacm opens every device that an id is bound to by itself, and closes it, once it was removed, with
//! the last id. Nothing of ours is made on that context: queue pairs are made on contexts that this crate
//! opened, and librdmacm only learns their numbers. So nothing depends on when it closes its own.

#![deny(unsafe_code)]

use std::sync::{Arc, Mutex};

use super::channel::lock;
use crate::context::{Context, WeakContext};
use crate::device::{Device, DeviceList};
use crate::error::{Error, Result};
use crate::sys::cm::BoundTo;
use crate::types::{Gid, Guid, PortNum};

/// The device and port that an id is bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundDevice {
    name: Arc<str>,
    guid: Guid,
    index: Option<u32>,
    port: PortNum,
    gid: Gid,
}

impl BoundDevice {
    /// `None` when the port is none.
    pub(super) fn new(raw: &BoundTo) -> Option<BoundDevice> {
        Some(BoundDevice {
            name: raw.name.as_str().into(),
            guid: raw.guid,
            index: raw.index,
            port: PortNum::new(raw.port)?,
            gid: raw.gid,
        })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's node GUID.
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// The port.
    pub fn port(&self) -> PortNum {
        self.port
    }

    /// The GID that the id is bound to; `None` when that is not told.
    pub fn gid(&self) -> Option<Gid> {
        Some(self.gid).filter(|gid| !gid.is_zero())
    }

    /// Whether it is this device: by the kernel's number of it, where both have that, else by GUID and name.
    pub fn is(&self, device: &Device) -> bool {
        match (self.index, device.index()) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.guid == device.guid() && *self.name == *device.name(),
        }
    }

    /// Opens the device.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`] when it is not listed any more; as [`Device::open`].
    pub fn open(&self) -> Result<Context> {
        let list = DeviceList::new()?;
        let found = list.iter().find(|device| self.is(device));
        let device = found.ok_or_else(|| Error::NoSuchDevice {
            name: (*self.name).into(),
            available: list.iter().map(|device| device.name().into()).collect(),
        })?;
        device.open()
    }

    /// Whether something made on this context can be used with the id.
    pub(super) fn check(&self, context: &Context, what: &'static str) -> Result<()> {
        if self.is(context.device()) {
            return Ok(());
        }
        let (ours, theirs) = ((*self.name).into(), context.device().name().into());
        Err(Error::OtherDevice { what, ours, theirs })
    }
}

/// The contexts that ids of a channel share, as long as anybody has them.
#[derive(Default)]
pub(super) struct Contexts(Mutex<Vec<WeakContext>>);

impl Contexts {
    pub(super) fn share(&self, context: &Context) {
        let mut contexts = lock(&self.0);
        contexts.retain(|there| there.upgrade().is_some_and(|there| !there.same(context)));
        contexts.push(context.downgrade());
    }

    /// The one of this device, opened if there is none. Whoever else asks meanwhile waits for it.
    pub(super) fn of(&self, device: &BoundDevice) -> Result<Context> {
        let mut contexts = lock(&self.0);
        contexts.retain(|there| there.upgrade().is_some());
        let mut there = contexts.iter().filter_map(WeakContext::upgrade);
        if let Some(context) = there.find(|context| device.is(context.device())) {
            return Ok(context);
        }
        let context = device.open()?;
        contexts.push(context.downgrade());
        Ok(context)
    }
}
