//! Steps of the connection manager.
//!
//! All are with the feature `tokio`.

use std::time::Duration;

use super::BoxFuture;
use crate::cm::{
    Accepting, Awaited, Connected, Connecting, Connection, ConnectionRequest, Failed, Id, Listener,
    Step,
};
use crate::error::Result;
use crate::qp::{Init, QueuePair, Rts};

impl<S: Awaited> Step<S> {
    /// Waits, as a task, until it has ended, well or not: [`wait`](Step::wait) then does not wait. With the
    /// feature `tokio`.
    ///
    /// Cancel safe: the step goes on.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub async fn ended(&self) -> Result<()> {
        self.until_ended().await
    }

    /// [`wait`](Step::wait), as a task. With the feature `tokio`. Dropping it gives the step up, and its id with it.
    ///
    /// # Errors
    ///
    /// As [`wait`](Step::wait).
    pub async fn within(self, timeout: Duration) -> Result<Id<S>> {
        self.complete(Some(timeout)).await
    }
}

impl<S: Awaited + 'static> IntoFuture for Step<S> {
    type Output = Result<Id<S>>;
    type IntoFuture = BoxFuture<Result<Id<S>>>;

    /// [`wait`](Step::wait), as a task, until the kernel gives up: what it was told when the step began.
    /// Dropping it gives the step up, and its id with it.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.complete(None))
    }
}

impl Connecting {
    /// Waits, as a task, until the peer has answered: [`wait`](Connecting::wait) then does not wait. With the
    /// feature `tokio`.
    ///
    /// Cancel safe: it goes on, and `wait` gives the queue pair back.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub async fn ended(&self) -> Result<()> {
        self.until_ended().await
    }

    /// [`wait`](Connecting::wait), as a task. With the feature `tokio`. Dropping it gives the request up, and destroys
    /// the queue pair: receives that were posted come where they are polled.
    ///
    /// # Errors
    ///
    /// As [`wait`](Connecting::wait), with the queue pair.
    #[doc(alias = "rdma_establish")]
    pub async fn within(self, timeout: Duration) -> Result<Connected, Failed<QueuePair<Init>>> {
        self.complete(Some(timeout)).await
    }
}

impl IntoFuture for Connecting {
    type Output = Result<Connected, Failed<QueuePair<Init>>>;
    type IntoFuture = BoxFuture<Self::Output>;

    /// [`within`](Connecting::within), until the connection manager gives up.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.complete(None))
    }
}

impl Accepting {
    /// Waits, as a task, until the peer has said that it has understood: [`wait`](Accepting::wait) then does
    /// not wait. With the feature `tokio`.
    ///
    /// Cancel safe: it goes on, and `wait` gives the queue pair back.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub async fn ended(&self) -> Result<()> {
        self.until_ended().await
    }

    /// [`wait`](Accepting::wait), as a task. With the feature `tokio`. Dropping it ends the connection, and destroys the
    /// queue pair: receives that were posted come where they are polled.
    ///
    /// # Errors
    ///
    /// As [`wait`](Accepting::wait), with the queue pair.
    pub async fn within(self, timeout: Duration) -> Result<Connected, Failed<QueuePair<Rts>>> {
        self.complete(Some(timeout)).await
    }
}

impl IntoFuture for Accepting {
    type Output = Result<Connected, Failed<QueuePair<Rts>>>;
    type IntoFuture = BoxFuture<Self::Output>;

    /// [`within`](Accepting::within), until the connection manager gives up.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.complete(None))
    }
}

impl Listener {
    /// The next request for a connection: [`accept`](Listener::accept), as a task. With the feature `tokio`.
    ///
    /// Cancel safe: requests stay with the listener.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm): the device is to be removed, or events cannot be had.
    #[doc(alias = "rdma_get_cm_event")]
    pub async fn next_request(&self) -> Result<ConnectionRequest> {
        self.until_request().await
    }
}

impl Connection {
    /// Waits, as a task, until it has ended, from whichever side, or its device is to be removed. With the feature
    /// `tokio`. Several may wait for one.
    ///
    /// Cancel safe: that it has ended stays known.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub async fn disconnected(&self) -> Result<()> {
        self.until_disconnected().await
    }
}
