//! When a context's own loop has something to do.
//!
//! Events make the context's descriptor readable, but a lookup on another thread may take them in
//! before the loop does, and acts only on the table it was asked for. So it tells the loop: there are two
//! descriptors in the set that the loop waits on, the device's and one of our own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::Events;
use crate::error::{Errno, Error, Result};
use crate::kept::Announcements;

/// The set that a loop waits on.
pub(crate) struct Readiness {
    set: OwnedFd,
    /// Readable when somebody else took events in.
    others: OwnedFd,
}

impl Readiness {
    /// A set of the device's descriptor of events and one of our own.
    pub(crate) fn new(events: BorrowedFd<'_>) -> Result<Readiness> {
        let failed = |call| {
            move |errno: rustix::io::Errno| Error::Host {
                call,
                errno: Errno::from_raw(errno.raw_os_error()),
            }
        };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create1"))?;
        let others = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let others = others.map_err(failed("eventfd"))?;
        for fd in [events, others.as_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&set, fd, data, epoll::EventFlags::IN).map_err(failed("epoll_ctl"))?;
        }
        Ok(Readiness { set, others })
    }

    /// Somebody else took events in.
    pub(crate) fn tell(&self) {
        // Fails only when the count is at its end, and then it is readable.
        let _ = rustix::io::write(&self.others, &1_u64.to_ne_bytes());
    }

    /// The loop is about to see to everything. Called before it takes events in, so that what is told
    /// meanwhile wakes it again.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.others, &mut [0; 8]);
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// Takes events in for a lookup, and tells the loop if there were any.
pub(crate) struct ForLookups {
    pub(crate) events: Arc<Events>,
    pub(crate) readiness: Arc<Readiness>,
}

impl Announcements for ForLookups {
    fn take_in(&self) -> Result<()> {
        let taken = self.events.drain();
        if !matches!(taken, Ok(0)) {
            self.readiness.tell();
        }
        taken.map(|_| ())
    }
}
