//! A connection that is under way.

#![allow(clippy::result_large_err)] // the queue pair itself comes back

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::end::QueuePairEnd;
use super::machine::{Left, Machine};
use super::wire::Wire;
use super::{Connected, Offer, Terms};
use crate::error::Result;
use crate::qp::{Failed, Init, QueuePair};
use crate::resolve::Resolver;

/// A queue pair that is being connected: a client's, made by [`Connector::start`](super::Connector::start),
/// or a server's, made by [`Incoming::start`](super::Incoming::start).
///
/// For a loop: [`advance`](Connecting::advance); while that is pending, wait until the descriptor
/// ([`AsFd`]) is readable or the [`deadline`](Connecting::deadline) has come, and advance again; when it is
/// ready, [`finish`](Connecting::finish). From the first wait on it has its socket and one descriptor more,
/// while the neighbour is looked for three more. [`wait`](Connecting::wait) does it all.
///
/// Dropping it destroys the queue pair, and the other end sees the connection closed.
#[must_use = "nothing is done until it is advanced"]
pub struct Connecting {
    machine: Machine<QueuePairEnd>,
    resolver: Resolver,
}

impl Connecting {
    pub(super) fn client(
        resolver: &Resolver,
        to: SocketAddr,
        queue_pair: QueuePair<Init>,
        offer: Offer,
        timeout: Duration,
    ) -> Connecting {
        let from = offer.from;
        let end = QueuePairEnd::new(resolver, queue_pair, offer, to);
        let machine = Machine::client(end, to, from, timeout);
        Connecting { machine, resolver: resolver.clone() }
    }

    pub(super) fn server(
        resolver: &Resolver,
        (wire, local): (Wire, SocketAddr),
        (address, request): (SocketAddr, Terms),
        (queue_pair, offer): (QueuePair<Init>, Offer),
        timeout: Duration,
    ) -> Connecting {
        let end = QueuePairEnd::new(resolver, queue_pair, offer, address);
        let machine = Machine::server(end, (wire, local), (address, request), timeout);
        Connecting { machine, resolver: resolver.clone() }
    }

    /// The other end's address on TCP.
    pub fn address(&self) -> SocketAddr {
        self.machine.address
    }

    /// When the time is over; `None` for never.
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    /// Does what can be done without waiting for the other end: ready when it is connected, or has
    /// failed, which [`finish`](Connecting::finish) tells. The time being over is such a failure.
    ///
    /// The queue pair's way to RTS is within one call: two system calls, and a second in the kernel if the
    /// neighbour that was found a moment ago is forgotten meanwhile and does not answer.
    pub fn advance(&mut self) -> Poll<()> {
        self.machine.advance()
    }

    /// Advances until it is ready, waiting in between (`poll`), and finishes.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect`](super::Connector::connect).
    pub fn wait(mut self) -> Result<Connected, Failed<Init>> {
        self.machine.run();
        self.finish()
    }

    /// The connected queue pair, or why there is none. What is not ready is given up: the queue pair comes
    /// back, and the other end is told.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect`](super::Connector::connect);
    /// [`ExchangeProblem::Abandoned`](crate::ExchangeProblem::Abandoned).
    pub fn finish(self) -> Result<Connected, Failed<Init>> {
        let Left { end, address, outcome } = self.machine.finish();
        let (peer, socket) = match outcome {
            Ok(done) => done,
            Err(error) => return Err(Failed { error, queue_pair: end.back() }),
        };
        let (queue_pair, path) = end.connected();
        let stream = TcpStream::from(socket);
        // Cannot fail on a socket.
        let _ = stream.set_nonblocking(false);
        Ok(Connected { queue_pair, peer, address, path, stream })
    }
}

impl AsFd for Connecting {
    /// Readable when [`advance`](Connecting::advance) may have something to do. Only to wait on, and once
    /// that has been pending: from then on it is the same to the end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.machine.set().unwrap_or_else(|| self.resolver.as_fd())
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting")
            .field("address", &self.address())
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
