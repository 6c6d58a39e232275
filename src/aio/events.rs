//! Asynchronous events as they come.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;
use tokio::task::coop::consume_budget;

use crate::context::Context;
use crate::error::Result;
use crate::event::{Event, EventQueue};
use crate::tasks::{readable, registered, runtime_error};

/// The asynchronous events of a device, from when it was made on. Any number can be made of a context, and
/// each has all events.
///
/// Whoever waits here takes the context's events in, for its other subscribers too, and keeps its tables
/// true: what [`Context::gids`] answers from memory is as of the last event.
pub struct Events {
    context: Context,
    queue: EventQueue,
    /// Of the context's descriptor and the queue's.
    fd: AsyncFd<OwnedFd>,
}

impl Events {
    /// Subscribes to the context's events, in the present runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host) when there can be no more descriptors.
    #[doc(alias = "ibv_get_async_event")]
    pub fn new(context: &Context) -> Result<Events> {
        let queue = context.subscribe()?;
        // Another one may take in what comes here.
        let fd = registered(readable(&[context.as_fd(), queue.as_fd()])?)?;
        Ok(Events { context: context.clone(), queue, fd })
    }

    /// The next event. Cancel safe: one that was taken in stays here until it is asked for, as one of 1024.
    ///
    /// # Errors
    ///
    /// After the last event, [`Error::DeviceFatal`](crate::Error::DeviceFatal) when the device has failed.
    /// [`Error::Verb`](crate::Error::Verb) when its events or tables cannot be read; the next call tries again.
    #[doc(alias = "ibv_get_async_event")]
    pub async fn next(&mut self) -> Result<Event> {
        consume_budget().await;
        loop {
            if let Some(event) = self.queue.next_event() {
                return Ok(event);
            }
            self.context.events().check()?;
            let ready = self.fd.readable().await;
            let mut ready = ready.map_err(|error| runtime_error(&error))?;
            match self.context.process_events() {
                Ok(0) => ready.clear_ready(),
                Ok(_) => {}
                // Its last event comes first.
                Err(_) if self.context.events().check().is_err() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// How many events were dropped because more than 1024 were not asked for.
    pub fn lost(&self) -> u64 {
        self.queue.lost()
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("context", &self.context)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
