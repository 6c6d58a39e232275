//! Waiting for events as a task.

#![deny(unsafe_code)]

use std::time::Duration;

use super::connection::{Accepting, Connected, Connecting, Connection};
use super::core::IdCore;
use super::fault::Failed;
use super::id::Id;
use super::listener::{ConnectionRequest, Listener};
use super::slot::Arrived;
use super::step::{Awaited, Step};
use crate::error::Result;
use crate::qp::{Init, QueuePair, Rts};
use crate::tasks;
use crate::types::CmEventType;

impl IdCore {
    /// [`await_event`](IdCore::await_event), as a task; without a time, for ever.
    async fn arrival(
        &self,
        timeout: Option<Duration>,
        ends: impl Fn(CmEventType) -> bool,
    ) -> Result<Option<Arrived>> {
        let arrival = tasks::until(&self.channel, &self.slot.tasks, || self.slot.take(&ends));
        match timeout {
            None => arrival.await.map(Some),
            Some(timeout) => match tokio::time::timeout(timeout, arrival).await {
                Ok(arrived) => arrived.map(Some),
                Err(_) => Ok(None),
            },
        }
    }

    /// Waits until there is such an event, and leaves it there.
    async fn until(&self, ends: impl Fn(CmEventType) -> bool) -> Result<()> {
        let there = || self.slot.has(&ends).then_some(());
        tasks::until(&self.channel, &self.slot.tasks, there).await
    }
}

impl<S: Awaited> Step<S> {
    pub(crate) async fn until_ended(&self) -> Result<()> {
        self.core.until(Self::ends).await
    }

    pub(crate) async fn complete(self, timeout: Option<Duration>) -> Result<Id<S>> {
        let came = self.core.arrival(timeout, Self::ends).await;
        self.end(came, timeout.unwrap_or_default())
    }
}

impl Connecting {
    pub(crate) async fn until_ended(&self) -> Result<()> {
        self.core.until(Self::ends).await
    }

    pub(crate) async fn complete(
        self,
        timeout: Option<Duration>,
    ) -> Result<Connected, Failed<QueuePair<Init>>> {
        let came = self.core.arrival(timeout, Self::ends).await;
        self.end(came, timeout.unwrap_or_default())
    }
}

impl Accepting {
    pub(crate) async fn until_ended(&self) -> Result<()> {
        self.core.until(Self::ends).await
    }

    pub(crate) async fn complete(
        self,
        timeout: Option<Duration>,
    ) -> Result<Connected, Failed<QueuePair<Rts>>> {
        let came = self.core.arrival(timeout, Self::ends).await;
        self.end(came, timeout.unwrap_or_default())
    }
}

impl Listener {
    pub(crate) async fn until_request(&self) -> Result<ConnectionRequest> {
        loop {
            if let Some(arrived) = self.core.arrival(None, Self::wanted).await? {
                if let Some(request) = self.arrived(arrived)? {
                    return Ok(request);
                }
            }
        }
    }
}

impl Connection {
    pub(crate) async fn until_disconnected(&self) -> Result<()> {
        let ended = || self.core.slot.ended().then_some(());
        tasks::until(&self.core.channel, &self.core.slot.tasks, ended).await
    }
}
