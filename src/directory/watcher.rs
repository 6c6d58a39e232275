//! The thread that keeps a directory true.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::work::{Inner, host};
use crate::error::{Errno, Error, Result};

/// Keeps a directory true until it is dropped. Made by
/// [`GidDirectory::watch`](super::GidDirectory::watch).
#[must_use = "the thread ends when this is dropped"]
pub struct Watcher {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Watcher {
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Watcher> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(host("eventfd"))?;
        let stop = Arc::new(stop);
        let (inner, stopped) = (Arc::clone(inner), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("gid-directory".into())
            .spawn(move || run(&inner, &stopped))
            .map_err(|error| Error::Host { call: "pthread_create", errno: Errno::from(error) })?;
        Ok(Watcher { stop, thread: Some(thread) })
    }

    /// Whether the thread still runs. It ends by itself only when waiting itself fails.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the thread, and tells what it ended with.
    ///
    /// # Errors
    ///
    /// What made it end before.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        // The thread waits on this too, so it ends at once, or after what it is just reading.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            // Its message is on stderr; there is no errno to a panic.
            Some(Err(_)) => Err(Error::Host { call: "gid-directory thread", errno: Errno::EFAULT }),
            None => Ok(()),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("running", &self.is_running()).finish()
    }
}

fn run(inner: &Inner, stop: &OwnedFd) -> Result<()> {
    loop {
        let mut fds = [PollFd::new(&inner.epoll, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(host("poll")(errno)),
        }
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        // What fails stays to be done, and a timer wakes this thread for it. The directory keeps what it
        // had, and each device's failure is told in its place.
        let _ = inner.take_in();
    }
}
