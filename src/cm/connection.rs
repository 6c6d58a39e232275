//! Connections, and how they come and go.

#![deny(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::core::IdCore;
use super::data::PrivateData;
use super::device::BoundDevice;
use super::fault::Failed;
use super::params::ConnectionParams;
use super::slot::{Arrived, CmEvent};
use crate::error::{Errno, Result};
use crate::qp::{Init, QueuePair, Rts};
use crate::types::{CmEventType, QpState};

/// Events after which there will be no connection.
fn is_an_end(kind: CmEventType) -> bool {
    matches!(
        kind,
        CmEventType::CONNECT_ERROR
            | CmEventType::UNREACHABLE
            | CmEventType::REJECTED
            | CmEventType::DISCONNECTED
            | CmEventType::DEVICE_REMOVAL
            | CmEventType::TIMEWAIT_EXIT
    )
}

impl IdCore {
    /// Connects a queue pair as the connection manager says (`rdma_init_qp_attr`).
    pub(super) fn connect_queue_pair(
        &self,
        queue_pair: QueuePair<Init>,
        params: &ConnectionParams,
    ) -> Result<QueuePair<Rts>, Failed<QueuePair<Init>>> {
        let told = |state: QpState| {
            let told = self.handle.init_qp_attr(state.raw());
            told.map_err(|errno| self.call("rdma_init_qp_attr", errno))
        };
        let attrs = told(QpState::RTR).and_then(|rtr| Ok((rtr, told(QpState::RTS)?)));
        let (rtr, rts) = match attrs {
            Ok(attrs) => attrs,
            Err(error) => return Err(Failed { error, back: queue_pair }),
        };
        let from = self.device.as_ref().and_then(BoundDevice::gid);
        let connected = queue_pair.connect_as_told(rtr, rts, from, &params.told());
        connected.map_err(|failed| Failed { error: failed.error, back: failed.queue_pair })
    }
}

/// A connection that was asked for (`rdma_connect`), and what it is for.
#[must_use = "a request that is dropped is given up"]
pub struct Connecting {
    pub(super) core: IdCore,
    queue_pair: QueuePair<Init>,
    params: ConnectionParams,
}

impl Connecting {
    pub(super) fn new(
        core: IdCore,
        queue_pair: QueuePair<Init>,
        params: &ConnectionParams,
    ) -> Connecting {
        Connecting { core, queue_pair, params: params.clone() }
    }

    pub(super) fn ends(kind: CmEventType) -> bool {
        matches!(kind, CmEventType::CONNECT_RESPONSE | CmEventType::ESTABLISHED) || is_an_end(kind)
    }

    /// Waits until the peer has answered, and tells whether it has; [`Duration::ZERO`] only looks.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub fn ready(&self, timeout: Duration) -> Result<bool> {
        self.core.await_any(timeout, Self::ends)
    }

    /// Waits until the peer has answered, connects the queue pair, and tells the peer so
    /// (`rdma_establish`).
    ///
    /// When the queue pair came to RTR, the row of this side's GID table is pinned, and read, and must be
    /// that of the id's address.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) with the reason: refused, and why; no answer; the time is over.
    /// [`Error::Transition`](crate::Error::Transition) and [`Error::GidMoved`](crate::Error::GidMoved) when
    /// the queue pair could not be connected: the peer is told. With the queue pair; the id is gone.
    #[doc(alias = "rdma_establish")]
    pub fn wait(self, timeout: Duration) -> Result<Connected, Failed<QueuePair<Init>>> {
        let came = self.core.await_event(timeout, Self::ends);
        self.end(came, timeout)
    }

    /// The end, by what came within the time.
    pub(super) fn end(
        self,
        came: Result<Option<Arrived>>,
        waited: Duration,
    ) -> Result<Connected, Failed<QueuePair<Init>>> {
        let Connecting { mut core, queue_pair, params } = self;
        let came = match came {
            Ok(Some(arrived)) if is_an_end(arrived.event.kind) || arrived.event.status != 0 => {
                Err(core.failed("rdma_connect", &arrived))
            }
            Ok(Some(arrived)) => Ok(arrived),
            Ok(None) => Err(core.timed_out("rdma_connect", waited)),
            Err(error) => Err(error),
        };
        let arrived = match came {
            Ok(arrived) => arrived,
            Err(error) => return Err(Failed { error, back: queue_pair }),
        };
        core.arrived = Some(arrived.event.at);
        let queue_pair = core.connect_queue_pair(queue_pair, &params).inspect_err(|_| {
            // The peer waits for an answer; if it has gone, so much the better.
            let _ = core.handle.reject(&[]);
        })?;
        if let Err(errno) = core.handle.establish() {
            let error = core.call("rdma_establish", errno);
            return Err(Failed { error, back: queue_pair.back_to_init() });
        }
        let private_data = arrived.event.private_data;
        Ok(Connected { connection: Connection { core }, queue_pair, private_data })
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("peer", &self.core.peer).finish_non_exhaustive()
    }
}

/// A connection that was accepted (`rdma_accept`), whose peer is still to say that it has understood.
#[must_use = "a connection that is dropped is ended"]
pub struct Accepting {
    pub(super) core: IdCore,
    queue_pair: QueuePair<Rts>,
}

impl Accepting {
    pub(super) fn new(core: IdCore, queue_pair: QueuePair<Rts>) -> Accepting {
        Accepting { core, queue_pair }
    }

    pub(super) fn ends(kind: CmEventType) -> bool {
        kind == CmEventType::ESTABLISHED || is_an_end(kind)
    }

    /// Waits until the peer has said so, or that there will be nothing of it, and tells whether it has;
    /// [`Duration::ZERO`] only looks.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub fn ready(&self, timeout: Duration) -> Result<bool> {
        self.core.await_any(timeout, Self::ends)
    }

    /// Waits until the peer has said so.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) with the reason: the peer has gone, or does not answer; the time is
    /// over. With the queue pair, which is connected to what was there; the id is gone.
    pub fn wait(self, timeout: Duration) -> Result<Connected, Failed<QueuePair<Rts>>> {
        let came = self.core.await_event(timeout, Self::ends);
        self.end(came, timeout)
    }

    /// The end, by what came within the time.
    pub(super) fn end(
        self,
        came: Result<Option<Arrived>>,
        waited: Duration,
    ) -> Result<Connected, Failed<QueuePair<Rts>>> {
        let Accepting { mut core, queue_pair } = self;
        let failed = |error, back| Err(Failed { error, back });
        match came {
            Ok(Some(arrived)) if arrived.event.kind == CmEventType::ESTABLISHED => {
                core.arrived = Some(arrived.event.at);
                let private_data = arrived.event.private_data;
                Ok(Connected { connection: Connection { core }, queue_pair, private_data })
            }
            Ok(Some(arrived)) => failed(core.failed("rdma_accept", &arrived), queue_pair),
            Ok(None) => failed(core.timed_out("rdma_accept", waited), queue_pair),
            Err(error) => failed(error, queue_pair),
        }
    }
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepting").field("peer", &self.core.peer).finish_non_exhaustive()
    }
}

/// What connecting gives: the connection, and the queue pair, each of which goes where it is needed. Drop them
/// in any order.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected {
    /// The connection: by it each side ends it, and hears that the other has.
    pub connection: Connection,
    /// The queue pair, connected.
    pub queue_pair: QueuePair<Rts>,
    /// What the peer sent along, padded to [`MAX_IN_REPLY`](super::MAX_IN_REPLY) bytes where this side
    /// connected; empty where it accepted, since that came with the
    /// [request](super::ConnectionRequest::private_data).
    pub private_data: PrivateData,
}

/// A connection. Dropping it ends it.
///
/// What the peer hears when it ends says nothing of the queue pair, nor does anybody else bring that to an
/// end: [`close`](QueuePair::close) it, or [`finish`](QueuePair::finish).
pub struct Connection {
    pub(super) core: IdCore,
}

impl Connection {
    /// The device that it is of.
    pub fn device(&self) -> Option<&BoundDevice> {
        self.core.device.as_ref()
    }

    /// This side's address.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.core.local
    }

    /// The peer's.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.peer
    }

    /// When the event was taken in that made it.
    pub fn arrived(&self) -> Option<Instant> {
        self.core.arrived
    }

    /// Ends it, or agrees that it has ended (`rdma_disconnect`), and does not wait for the peer to agree;
    /// see [`wait_disconnected`](Connection::wait_disconnected). What is still on its way may be lost:
    /// wait for its completions first. One that has ended already is no error.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) with the errno.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        match self.core.end() {
            Ok(()) => Ok(()),
            Err(Errno::EINVAL) if self.core.slot.ended() => Ok(()),
            Err(errno) => Err(self.core.call("rdma_disconnect", errno)),
        }
    }

    /// Whether it has ended, from whichever side, or its device is to be removed. Does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) when events cannot be had.
    pub fn is_disconnected(&self) -> Result<bool> {
        self.wait_disconnected(Duration::ZERO)
    }

    /// Waits until it has ended, from whichever side, and tells whether it has.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<bool> {
        let ended = || self.core.slot.ended().then_some(());
        Ok(self.core.channel.wait(timeout, ended)?.is_some())
    }

    /// The next thing that happened to it, of whatever kind, if there is one. Does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) when events cannot be had.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn next_event(&self) -> Result<Option<CmEvent>> {
        let arrived = self.core.await_event(Duration::ZERO, |_| true)?;
        Ok(arrived.map(|arrived| arrived.event))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &self.core.local)
            .field("peer", &self.core.peer)
            .finish_non_exhaustive()
    }
}
