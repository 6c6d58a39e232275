//! What every handle of an id is made of.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::Inner;
use super::device::BoundDevice;
use super::fault;
use super::slot::{Arrived, Slot};
use crate::context::Context;
use crate::error::{CmReason, Errno, Error, Object, Result};
use crate::qp::transport::Transport;
use crate::qp::{self, Init, InitOptions, QueuePair, Reset};
use crate::sys::CmId;
use crate::sys::cm::Bound;
use crate::trace::event;
use crate::types::{CmEventType, PortNum, QpState, RemoteAccess};

/// What every handle of an id is made of.
pub(super) struct IdCore {
    pub(super) handle: CmId,
    pub(super) slot: Arc<Slot>,
    pub(super) channel: Arc<Inner>,
    pub(super) device: Option<BoundDevice>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// When the event came that ended its last step.
    pub(super) arrived: Option<Instant>,
}

impl Drop for IdCore {
    fn drop(&mut self) {
        // Before the handle, which destroys it.
        self.channel.disown(self.handle.key());
    }
}

impl IdCore {
    pub(super) fn new(handle: CmId, slot: Arc<Slot>, channel: Arc<Inner>, bound: Bound) -> IdCore {
        let (device, local, peer, arrived) = (None, None, None, None);
        let mut core = IdCore { handle, slot, channel, device, local, peer, arrived };
        core.note(bound);
        core
    }

    /// What it is bound to now.
    pub(super) fn note(&mut self, bound: Bound) {
        self.device = bound.device.as_ref().and_then(BoundDevice::new);
        self.local = bound.local;
        self.peer = bound.peer.or(self.peer);
    }

    /// Gives it an address of this side. Only of an id that nothing was begun with.
    pub(super) fn bind(&mut self, at: SocketAddr) -> Result<(), Errno> {
        self.handle.bind(at)?;
        // SAFETY: this handle is the id's only one, and resolving was not begun.
        let bound = unsafe { self.handle.bound() };
        self.note(bound);
        self.peer = None;
        Ok(())
    }

    pub(super) fn call(&self, call: &'static str, errno: Errno) -> Error {
        self.told(call, fault::call(call, self.local, self.peer, errno))
    }

    pub(super) fn failed(&self, call: &'static str, arrived: &Arrived) -> Error {
        self.told(call, fault::event(call, self.local, self.peer, &arrived.event))
    }

    pub(super) fn timed_out(&self, call: &'static str, waited: Duration) -> Error {
        self.told(call, fault::timed_out(call, self.local, self.peer, waited))
    }

    /// A step that failed.
    fn told(&self, _call: &'static str, error: Error) -> Error {
        event!(warn, call = _call, local = ?self.local, peer = ?self.peer, %error, "a step failed");
        error
    }

    /// It is bound to a device: a state says so.
    pub(super) fn bound_device(&self) -> Result<&BoundDevice> {
        let none = || fault::fault("rdma_cm_id", self.local, self.peer, CmReason::DeviceRemoved);
        self.device.as_ref().ok_or_else(none)
    }

    pub(super) fn context(&self) -> Result<Context> {
        self.channel.contexts.of(self.bound_device()?)
    }

    /// The port and partition of the connection, for a queue pair that is made for it.
    pub(super) fn init(
        &self,
        queue_pair: QueuePair<Reset>,
        access: RemoteAccess,
    ) -> Result<QueuePair<Init>, qp::Failed<Reset>> {
        match self.init_options(&queue_pair) {
            Ok(options) => queue_pair.init(&options.access(access)),
            Err(error) => Err(qp::Failed { error, queue_pair }),
        }
    }

    pub(super) fn init_options<T: Transport>(
        &self,
        queue_pair: &QueuePair<Reset, T>,
    ) -> Result<InitOptions> {
        let device = self.bound_device()?;
        device.check(queue_pair.context(), "the queue pair")?;
        let init = self.handle.init_qp_attr(QpState::INIT.raw());
        let (attr, _) = init.map_err(|errno| self.call("rdma_init_qp_attr", errno))?;
        let port = PortNum::new(attr.port_num).ok_or_else(|| Error::Verb {
            verb: "rdma_init_qp_attr",
            object: Object::device(device.name()),
            errno: Errno::EINVAL,
        })?;
        Ok(InitOptions::new(port).pkey_index(attr.pkey_index))
    }

    /// Ends the connection. Only of an id that had one, and so has a device.
    pub(super) fn end(&self) -> Result<(), Errno> {
        if self.device.is_none() {
            return Err(Errno::ENODEV);
        }
        // SAFETY: it was found to be bound to a device, and stays so.
        unsafe { self.handle.disconnect() }
    }

    /// Waits for an event that ends a step.
    pub(super) fn await_event(
        &self,
        timeout: Duration,
        ends: impl Fn(CmEventType) -> bool,
    ) -> Result<Option<Arrived>> {
        let taken = self.channel.wait(timeout, || self.slot.take(&ends))?;
        if let Some(_arrived) = &taken {
            let (_local, _peer, _kind) = (self.local, self.peer, _arrived.event.kind);
            event!(debug, local = ?_local, peer = ?_peer, event = %_kind, "a step ended");
        }
        Ok(taken)
    }

    /// Waits until there is such an event.
    pub(super) fn await_any(
        &self,
        timeout: Duration,
        ends: impl Fn(CmEventType) -> bool,
    ) -> Result<bool> {
        let there = self.channel.wait(timeout, || self.slot.has(&ends).then_some(()))?;
        Ok(there.is_some())
    }
}
