//! Queue pairs connected over TCP.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::task::Poll;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::coop::consume_budget;

use super::BoxFuture;
use super::machine::{advance, until};
use crate::connect::{self, Connected, Connecting, Connector, Incoming, Offer};
use crate::error::Result;
use crate::qp::{Failed, Init, QueuePair};
use crate::tasks::{another, registered, runtime_error};

/// Connects a queue pair to one that the server at this address offers: [`Connector::connect`] as a task, all of
/// it within `timeout`, from the call on.
///
/// Dropping the future destroys the queue pair: receives that were posted come where they are polled, as
/// flushed; the other end sees the connection closed. To keep the queue pair,
/// [`start`](Connector::start) it, wait for [`ended`](Connecting::ended), and
/// [`finish`](Connecting::finish).
///
/// # Errors
///
/// As [`Connector::connect`], with the queue pair.
pub fn connect(
    connector: &Connector,
    to: SocketAddr,
    queue_pair: QueuePair<Init>,
    offer: impl Into<Offer>,
    timeout: Duration,
) -> BoxFuture<Result<Connected, Failed<Init>>> {
    connector.start(to, queue_pair, offer, timeout).into_future()
}

impl Connecting {
    /// Waits until it is ready to [`finish`](Connecting::finish), at the latest when its deadline has come.
    /// With the feature `tokio`; for a queue pair that must not go with a future that is dropped.
    ///
    /// Cancel safe: it can be waited for again, or finished, which gives the queue pair back.
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host) when the runtime cannot wait for it.
    pub async fn ended(&mut self) -> Result<()> {
        let deadline = self.deadline();
        advance(self, deadline, Connecting::advance).await
    }
}

impl IntoFuture for Connecting {
    type Output = Result<Connected, Failed<Init>>;
    type IntoFuture = BoxFuture<Result<Connected, Failed<Init>>>;

    /// [`ended`](Connecting::ended), and then [`finish`](Connecting::finish). Dropping it destroys the queue
    /// pair.
    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            match (self.ended().await, self.finish()) {
                (Err(error), Err(Failed { queue_pair, .. })) => Err(Failed { error, queue_pair }),
                (_, finished) => finished,
            }
        })
    }
}

/// A [`Listener`](crate::Listener) that tasks wait for.
pub struct Listener {
    listener: connect::Listener,
    /// Its own.
    fd: AsyncFd<OwnedFd>,
}

impl Listener {
    /// Of a listener that is there, in the present runtime. Takes one descriptor more.
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host) when there can be no more descriptors; the listener ends.
    pub fn new(listener: connect::Listener) -> Result<Listener> {
        let fd = registered(another(listener.as_fd())?)?;
        Ok(Listener { listener, fd })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The next client's request, however long it takes: accept it by
    /// [`Incoming::start`]`(..).await`, in a task of its own, so that the next one need not wait.
    ///
    /// Cancel safe: clients that are being heard out stay with the listener.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`](crate::Listener::accept): about one client, and the listener goes on; or
    /// [`Error::Host`](crate::Error::Host), `EMFILE`, which stays until descriptors are closed.
    pub async fn accept(&mut self) -> Result<Incoming> {
        consume_budget().await;
        loop {
            // Before it waits: what it was woken for is not always all that there is.
            if let Poll::Ready(outcome) = self.listener.advance() {
                return outcome;
            }
            let deadline = self.listener.deadline();
            // When it is over: the patience with a client.
            let Some(ready) = until(deadline, self.fd.readable()).await else { continue };
            // What comes from here on makes it ready again, and all before is seen by the next advance.
            ready.map_err(|error| runtime_error(&error))?.clear_ready();
        }
    }

    /// The listener.
    pub fn get_ref(&self) -> &connect::Listener {
        &self.listener
    }

    /// The listener, for threads again. Clients that are being heard out are with it.
    pub fn into_inner(self) -> connect::Listener {
        self.listener
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.listener).finish()
    }
}
