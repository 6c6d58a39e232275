//! A subscriber's own copy of a context's events.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use rustix::event::{EventfdFlags, eventfd};

use super::{Event, lock};
use crate::error::{Errno, Error, Result};

/// A subscriber's own copy of a context's events, from the moment it subscribed. Made by
/// [`Context::subscribe`](crate::Context::subscribe).
///
/// Events arrive here when somebody takes them in: a `checked` lookup, or
/// [`Context::process_events`](crate::Context::process_events). Its descriptor ([`AsFd`]) is readable
/// while there are some. It holds 1024; of more, the oldest are dropped and counted.
pub struct EventQueue {
    subscriber: Arc<Subscriber>,
}

/// What the reader of events has of a subscriber.
pub(super) struct Subscriber {
    pending: Mutex<Pending>,
    /// Readable while there are events.
    readable: OwnedFd,
}

#[derive(Default)]
struct Pending {
    events: VecDeque<Event>,
    lost: u64,
}

const MOST: usize = 1024;

impl Subscriber {
    pub(super) fn push(&self, event: Event) {
        let mut pending = lock(&self.pending);
        if pending.events.len() == MOST {
            pending.events.pop_front();
            pending.lost += 1;
        }
        if pending.events.is_empty() {
            // Cannot fail: the count is 0 or 1.
            let _ = rustix::io::write(&self.readable, &1_u64.to_ne_bytes());
        }
        pending.events.push_back(event);
    }
}

impl EventQueue {
    pub(super) fn new() -> Result<EventQueue> {
        let readable =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
                Error::Host { call: "eventfd", errno: Errno::from_raw(errno.raw_os_error()) }
            })?;
        let subscriber = Subscriber { pending: Mutex::default(), readable };
        Ok(EventQueue { subscriber: Arc::new(subscriber) })
    }

    pub(super) fn downgrade(&self) -> Weak<Subscriber> {
        Arc::downgrade(&self.subscriber)
    }

    /// The next event, if one is there.
    pub fn next_event(&self) -> Option<Event> {
        let mut pending = lock(&self.subscriber.pending);
        let event = pending.events.pop_front()?;
        if pending.events.is_empty() {
            let _ = rustix::io::read(&self.subscriber.readable, &mut [0; 8]);
        }
        Some(event)
    }

    /// How many events were dropped because this queue was full.
    pub fn lost(&self) -> u64 {
        lock(&self.subscriber.pending).lost
    }
}

impl AsFd for EventQueue {
    /// Readable while there are events here. Only to wait on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscriber.readable.as_fd()
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = lock(&self.subscriber.pending);
        f.debug_struct("EventQueue")
            .field("waiting", &pending.events.len())
            .field("lost", &pending.lost)
            .finish()
    }
}
