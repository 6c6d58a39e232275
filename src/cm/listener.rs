//! Listeners, and the requests that come to them.

#![allow(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::EventChannel;
use super::connection::Accepting;
use super::core::IdCore;
use super::data::{self, MAX_IN_REJECT, MAX_IN_REPLY, PrivateData};
use super::device::BoundDevice;
use super::fault::Failed;
use super::params::ConnectionParams;
use super::slot::Arrived;
use crate::context::Context;
use crate::error::{CmReason, Result};
use crate::qp::{self, Init, QueuePair, Reset, Rts};
use crate::sys::cm::Offer;
use crate::types::{CmEventType, Qpn, RemoteAccess};

/// An id that listens. Made by [`Id::listen`](super::Id::listen) or
/// [`EventChannel::listen`].
///
/// Requests that nobody has taken when it is dropped are refused; those that were taken, and connections,
/// live on.
pub struct Listener {
    pub(super) core: IdCore,
}

impl Listener {
    pub(super) fn new(core: IdCore) -> Listener {
        Listener { core }
    }

    /// The address it listens at, with the port that was chosen where 0 was asked for.
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core.local
    }

    /// The device it is bound to; `None` of `0.0.0.0` and `::`: then each request tells its own.
    pub fn device(&self) -> Option<&BoundDevice> {
        self.core.device.as_ref()
    }

    /// The channel that it is on.
    pub fn channel(&self) -> EventChannel {
        EventChannel { inner: Arc::clone(&self.core.channel) }
    }

    /// The next request for a connection; `None` when none has come within the time;
    /// [`Duration::ZERO`] only looks.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm): the device is to be removed, or events cannot be had.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn accept(&self, timeout: Duration) -> Result<Option<ConnectionRequest>> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(Instant::now()));
            let came = self.core.await_event(left, Self::wanted)?;
            let Some(arrived) = came else { return Ok(None) };
            if let Some(request) = self.arrived(arrived)? {
                return Ok(Some(request));
            }
        }
    }

    pub(super) fn wanted(kind: CmEventType) -> bool {
        matches!(kind, CmEventType::CONNECT_REQUEST | CmEventType::DEVICE_REMOVAL)
    }

    /// The request that came; `None` for one of no device, which is refused by being dropped.
    pub(super) fn arrived(&self, arrived: Arrived) -> Result<Option<ConnectionRequest>> {
        if arrived.event.kind == CmEventType::DEVICE_REMOVAL {
            return Err(self.core.failed("rdma_listen", &arrived));
        }
        Ok(self.request(arrived))
    }

    fn request(&self, arrived: Arrived) -> Option<ConnectionRequest> {
        let (child, bound, offer) = (arrived.child?, arrived.bound?, arrived.offer?);
        let mut core = self.core.channel.own(child, bound);
        core.arrived = Some(arrived.event.at);
        let device = core.device.clone()?;
        Some(ConnectionRequest { core, device, offer, data: arrived.event.private_data })
    }

    /// How many requests were refused because as many as the backlog waited already.
    pub fn refused(&self) -> u64 {
        self.core.slot.dropped()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.core.local).finish_non_exhaustive()
    }
}

/// A peer's request for a connection. Dropping it refuses it.
pub struct ConnectionRequest {
    core: IdCore,
    device: BoundDevice,
    offer: Offer,
    data: PrivateData,
}

impl ConnectionRequest {
    /// The device that it came to.
    pub fn device(&self) -> &BoundDevice {
        &self.device
    }

    /// The device, opened, as ids of this channel share it; see [`Id::context`](super::Id::context).
    ///
    /// # Errors
    ///
    /// As [`BoundDevice::open`].
    pub fn context(&self) -> Result<Context> {
        self.core.context()
    }

    /// The channel that it is on.
    pub fn channel(&self) -> EventChannel {
        EventChannel { inner: Arc::clone(&self.core.channel) }
    }

    /// What the peer sent along, padded to [`MAX_IN_REQUEST`](super::MAX_IN_REQUEST) bytes.
    pub fn private_data(&self) -> &PrivateData {
        &self.data
    }

    /// This side's address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core.local
    }

    /// The peer's.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.peer
    }

    /// The peer's queue pair.
    pub fn qpn(&self) -> Qpn {
        Qpn::from_raw(self.offer.qp_num)
    }

    /// How many reads and atomics the peer wants to have under way at a time, and how many of ours it
    /// answers.
    pub fn depths(&self) -> (u8, u8) {
        (self.offer.responder_resources, self.offer.initiator_depth)
    }

    /// When it was taken in.
    pub fn arrived(&self) -> Option<Instant> {
        self.core.arrived
    }

    /// Brings a queue pair of this device to [`Init`]; see [`Id::init`](super::Id::init).
    ///
    /// # Errors
    ///
    /// As [`Id::init`](super::Id::init).
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init(
        &self,
        queue_pair: QueuePair<Reset>,
        access: RemoteAccess,
    ) -> Result<QueuePair<Init>, qp::Failed<Reset>> {
        self.core.init(queue_pair, access)
    }

    /// Begins to accept it (`rdma_accept`): the queue pair is connected, and the peer is told. It is one
    /// that [`init`](ConnectionRequest::init) has prepared, with receives for what the peer may send at
    /// once.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for private data of more than
    /// [`MAX_IN_REPLY`](super::MAX_IN_REPLY) bytes, and reads beyond the device's limits;
    /// [`Error::OtherDevice`](crate::Error::OtherDevice);
    /// [`Error::Transition`](crate::Error::Transition) and [`Error::GidMoved`](crate::Error::GidMoved) when
    /// the queue pair could not be connected; [`Error::Cm`](crate::Error::Cm) with the errno: the peer has
    /// gone. The request is refused, and the queue pair comes back.
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        queue_pair: QueuePair<Init>,
        params: &ConnectionParams,
    ) -> Result<Accepting, Failed<QueuePair<Init>>> {
        let params = params.clone().offered(self.offer.initiator_depth);
        let context = queue_pair.context();
        let checked = self
            .device
            .check(context, "the queue pair")
            .and_then(|()| params.check(context, MAX_IN_REPLY, "private data of a reply"));
        if let Err(error) = checked {
            return Err(Failed { error, back: queue_pair });
        }
        let queue_pair = self.core.connect_queue_pair(queue_pair, &params)?;
        match self.answer(&queue_pair, &params) {
            Ok(()) => Ok(Accepting::new(self.core, queue_pair)),
            Err(error) => Err(Failed { error, back: queue_pair.back_to_init() }),
        }
    }

    fn answer(&self, queue_pair: &QueuePair<Rts>, params: &ConnectionParams) -> Result<()> {
        let raw = params.raw(queue_pair.qpn());
        // SAFETY: the id is bound to a device: it was made with one, and stays so.
        let done = unsafe { self.core.handle.accept(raw, params.data()) };
        done.map_err(|errno| self.core.call("rdma_accept", errno))
    }

    /// Refuses it (`rdma_reject`), with a reason of at most [`MAX_IN_REJECT`](super::MAX_IN_REJECT) bytes,
    /// which the peer sees padded to that.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for more bytes; [`Error::Cm`](crate::Error::Cm) with
    /// the errno: the peer has gone; with the request.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<(), Failed<Self>> {
        let checked = data::check("private data of a refusal", private_data.len(), MAX_IN_REJECT);
        let done = checked.and_then(|()| {
            let done = self.core.handle.reject(private_data);
            done.map_err(|errno| {
                let reason = CmReason::Failed(errno);
                super::fault::fault("rdma_reject", self.core.local, self.core.peer, reason)
            })
        });
        done.map_err(|error| Failed { error, back: self })
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRequest")
            .field("device", &self.device.name())
            .field("peer", &self.core.peer)
            .finish_non_exhaustive()
    }
}
