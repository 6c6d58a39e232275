//! Ids, their states as types, and the steps between these.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::EventChannel;
use super::connection::Connecting;
use super::core::IdCore;
use super::device::BoundDevice;
use super::fault::{self, Failed};
use super::listener::Listener;
use super::params::ConnectionParams;
use super::step::Step;
use crate::context::Context;
use crate::error::Result;
use crate::qp::{self, Init, QueuePair, Reset};
use crate::sys::cm::IdOption;
use crate::types::RemoteAccess;

/// State of an [`Id`] that was just made.
#[derive(Debug)]
pub struct Idle(());

/// State of an [`Id`] that has an address of this side. If that is an address of one interface, it has a
/// device.
#[derive(Debug)]
pub struct Bound(());

/// State of an [`Id`] that knows where its peer is, and has a device.
#[derive(Debug)]
pub struct AddressResolved(());

/// State of an [`Id`] that can connect.
#[derive(Debug)]
pub struct RouteResolved(());

/// An id (`struct rdma_cm_id`): one end of a connection to be, as a socket is. Its state is a type.
///
/// Dropping it destroys it (`rdma_destroy_id`), in any order, on any thread, whatever is under way.
pub struct Id<S> {
    pub(super) core: IdCore,
    state: PhantomData<fn() -> S>,
}

impl<S> Id<S> {
    pub(super) fn new(core: IdCore) -> Id<S> {
        Id { core, state: PhantomData }
    }

    /// This side's address, where it is known.
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core.local
    }

    /// The peer's, once it was resolved.
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.peer
    }

    /// The device it is bound to; `None` until it is, and of an address that stands for all.
    pub fn device(&self) -> Option<&BoundDevice> {
        self.core.device.as_ref()
    }

    /// When the event was taken in that ended its last step.
    pub fn arrived(&self) -> Option<Instant> {
        self.core.arrived
    }

    /// The channel that it is on.
    pub fn channel(&self) -> EventChannel {
        EventChannel { inner: Arc::clone(&self.core.channel) }
    }

    /// The type of service of what is sent (`RDMA_OPTION_ID_TOS`): DSCP in the upper six bits. Before the
    /// route is resolved.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) with the errno.
    #[doc(alias = "rdma_set_option")]
    pub fn set_type_of_service(&mut self, tos: u8) -> Result<()> {
        self.set(IdOption::TypeOfService(tos))
    }

    fn set(&mut self, option: IdOption) -> Result<()> {
        let done = self.core.handle.set_option(option);
        done.map_err(|errno| self.core.call("rdma_set_option", errno))
    }

    /// Begins to resolve an address.
    fn begin_resolve(
        mut self,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Step<AddressResolved>, Failed<Self>> {
        let before = self.core.peer.replace(to);
        match self.core.handle.resolve_addr(to, millis(timeout)) {
            Ok(()) => Ok(Step::new(self.core)),
            Err(errno) => {
                let error = self.core.call("rdma_resolve_addr", errno);
                self.core.peer = before;
                Err(Failed { error, back: self })
            }
        }
    }
}

impl Id<Idle> {
    /// Lets several ids have one port and address (`RDMA_OPTION_ID_REUSEADDR`), as `SO_REUSEADDR` does.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) with the errno.
    #[doc(alias = "rdma_set_option")]
    pub fn set_reuse_addr(&mut self, on: bool) -> Result<()> {
        self.set(IdOption::ReuseAddr(on))
    }

    /// Keeps IPv4 away from an id that is bound to `::` (`RDMA_OPTION_ID_AFONLY`), as `IPV6_V6ONLY` does.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) with the errno.
    #[doc(alias = "rdma_set_option")]
    pub fn set_af_only(&mut self, on: bool) -> Result<()> {
        self.set(IdOption::AfOnly(on))
    }

    /// Gives it an address of this side (`rdma_bind_addr`): of one interface, and so a device; or `0.0.0.0`
    /// or `::`, which stand for all, and have none. Port 0 is a free one.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeviceForAddress`](crate::Error::NoDeviceForAddress), which lists the addresses that have
    /// one; [`CmReason::AddressInUse`](crate::CmReason::AddressInUse); [`Error::Cm`](crate::Error::Cm) with
    /// another errno; with the id.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(mut self, at: SocketAddr) -> Result<Id<Bound>, Failed<Self>> {
        match self.core.bind(at) {
            Ok(()) => Ok(Id::new(self.core)),
            Err(errno) => {
                let error = fault::call("rdma_bind_addr", Some(at), None, errno);
                Err(Failed { error, back: self })
            }
        }
    }

    /// Begins to resolve a peer's address (`rdma_resolve_addr`), from the address that the route says.
    /// Bind it first for another.
    ///
    /// `timeout` is how long the kernel asks the neighbour, in whole milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoute`](crate::Error::NoRoute); [`Error::Cm`](crate::Error::Cm) with another errno; with
    /// the id. More in [`Step::wait`].
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        self,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Step<AddressResolved>, Failed<Self>> {
        self.begin_resolve(to, timeout)
    }
}

impl Id<Bound> {
    /// Begins to resolve a peer's address (`rdma_resolve_addr`), from the address that it is bound to.
    ///
    /// # Errors
    ///
    /// As [`resolve_addr`](Id::<Idle>::resolve_addr) of one that is not bound.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        self,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Step<AddressResolved>, Failed<Self>> {
        self.begin_resolve(to, timeout)
    }

    /// Listens (`rdma_listen`), with room for `backlog` requests that nobody has taken yet, at least 1: of
    /// more, the peers are refused.
    ///
    /// # Errors
    ///
    /// [`CmReason::AddressInUse`](crate::CmReason::AddressInUse); [`Error::Cm`](crate::Error::Cm) with
    /// another errno; with the id.
    #[doc(alias = "rdma_listen")]
    pub fn listen(mut self, backlog: u32) -> Result<Listener, Failed<Self>> {
        let backlog = backlog.clamp(1, 65_535);
        self.core.slot.hold(backlog as usize);
        match self.core.handle.listen(backlog as i32) {
            Ok(()) => {
                // SAFETY: this handle is the id's only one; a listener resolves nothing, and its requests
                // have ids of their own.
                let bound = unsafe { self.core.handle.bound() };
                self.core.note(bound);
                self.core.peer = None;
                Ok(Listener::new(self.core))
            }
            Err(errno) => {
                let error = self.core.call("rdma_listen", errno);
                Err(Failed { error, back: self })
            }
        }
    }
}

impl Id<AddressResolved> {
    /// Begins to resolve the route (`rdma_resolve_route`): on Ethernet what is known already, on
    /// InfiniBand a question to the subnet manager.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) with the errno; with the id.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(self, timeout: Duration) -> Result<Step<RouteResolved>, Failed<Self>> {
        // SAFETY: the id is bound to a device: its state says so, and it stays so.
        match unsafe { self.core.handle.resolve_route(millis(timeout)) } {
            Ok(()) => Ok(Step::new(self.core)),
            Err(errno) => {
                let error = self.core.call("rdma_resolve_route", errno);
                Err(Failed { error, back: self })
            }
        }
    }
}

/// States in which an id has a device, for which a queue pair can be made.
pub trait HasDevice {}

impl HasDevice for AddressResolved {}
impl HasDevice for RouteResolved {}

impl<S: HasDevice> Id<S> {
    /// The device, opened, as ids of this channel share it: opened when it is first asked for, unless a
    /// context was [shared](EventChannel::share), and as long as anybody has it.
    ///
    /// # Errors
    ///
    /// As [`BoundDevice::open`].
    pub fn context(&self) -> Result<Context> {
        self.core.context()
    }

    /// Brings a queue pair of this id's device to [`Init`], with the id's port and partition
    /// (`rdma_init_qp_attr`): from now on receives can be posted. `access` is what the peer may do.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`](crate::Error::OtherDevice) for a queue pair of another device; as
    /// [`QueuePair::init`]; with the queue pair.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init(
        &self,
        queue_pair: QueuePair<Reset>,
        access: RemoteAccess,
    ) -> Result<QueuePair<Init>, qp::Failed<Reset>> {
        self.core.init(queue_pair, access)
    }
}

impl Id<RouteResolved> {
    /// Begins to connect (`rdma_connect`): asks the peer. The queue pair is one that
    /// [`init`](Id::init) has prepared, with receives for what the peer may send at once.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for private data of more than
    /// [`MAX_IN_REQUEST`](super::MAX_IN_REQUEST) bytes, and reads beyond the device's limits;
    /// [`Error::OtherDevice`](crate::Error::OtherDevice); [`Error::Cm`](crate::Error::Cm) with the errno;
    /// with the id and the queue pair.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        self,
        queue_pair: QueuePair<Init>,
        params: &ConnectionParams,
    ) -> Result<Connecting, Failed<(Self, QueuePair<Init>)>> {
        match self.ask(&queue_pair, params) {
            Ok(()) => Ok(Connecting::new(self.core, queue_pair, params)),
            Err(error) => Err(Failed { error, back: (self, queue_pair) }),
        }
    }

    fn ask(&self, queue_pair: &QueuePair<Init>, params: &ConnectionParams) -> Result<()> {
        self.core.bound_device()?.check(queue_pair.context(), "the queue pair")?;
        params.check(queue_pair.context(), super::MAX_IN_REQUEST, "private data of a request")?;
        let raw = params.raw(queue_pair.qpn());
        // SAFETY: the id is bound to a device: it has been since its address was resolved, and stays so.
        let done = unsafe { self.core.handle.connect(raw, params.data()) };
        done.map_err(|errno| self.core.call("rdma_connect", errno))
    }
}

impl<S> fmt::Debug for Id<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = std::any::type_name::<S>().rsplit("::").next().unwrap_or_default();
        f.debug_struct("Id")
            .field("state", &state)
            .field("device", &self.core.device.as_ref().map(BoundDevice::name))
            .field("local", &self.core.local)
            .field("peer", &self.core.peer)
            .finish_non_exhaustive()
    }
}

/// Whole milliseconds, rounded up, as C has them.
fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_milliseconds() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_secs(2)), 2000);
        assert_eq!(millis(Duration::MAX), i32::MAX);
    }
}
