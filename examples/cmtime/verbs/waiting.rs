//! Waiting for any of many.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// A set of descriptors to wait on, each with a number.
pub(crate) struct Waiting {
    set: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Waiting {
    pub(crate) fn new() -> Result<Waiting, String> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        Ok(Waiting { set, events: Vec::with_capacity(128) })
    }

    pub(crate) fn add(&self, fd: impl AsFd, number: usize) -> Result<(), String> {
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&self.set, fd, data, epoll::EventFlags::IN).map_err(failed)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.set, fd);
    }

    /// The numbers of those that are readable, once any is or the time is over.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<Vec<usize>, String> {
        let timeout = Timespec::try_from(timeout).ok();
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.set, spare, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(self.events.iter().map(|event| event.data.u64() as usize).collect())
    }
}

fn failed(errno: Errno) -> String {
    format!("epoll: {errno}")
}
