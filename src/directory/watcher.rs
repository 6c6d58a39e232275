//! The thread that keeps a directory, or a resolver, true.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::work::host;
use crate::error::{Errno, Error, Result};

/// Keeps a directory or a resolver true until it is dropped. Made by
/// [`GidDirectory::watch`](super::GidDirectory::watch) and
/// [`Resolver::watch`](crate::Resolver::watch).
#[must_use = "the thread ends when this is dropped"]
pub struct Watcher {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// What a thread keeps true.
pub(crate) trait Watch: Send + Sync + 'static {
    /// The thread's name, at most 15 bytes.
    const NAME: &'static str;

    /// Readable when something changed.
    fn readiness(&self) -> BorrowedFd<'_>;

    /// Takes in what changed. What fails stays to be done, and makes the descriptor readable again.
    fn take_in(&self);
}

impl Watcher {
    pub(crate) fn start<T: Watch>(watched: &Arc<T>) -> Result<Watcher> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(host("eventfd"))?;
        let stop = Arc::new(stop);
        let (watched, stopped) = (Arc::clone(watched), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name(T::NAME.into())
            .spawn(move || run(&*watched, &stopped))
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
            Some(Err(_)) => Err(Error::Host { call: "watcher thread", errno: Errno::EFAULT }),
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

fn run<T: Watch>(watched: &T, stop: &OwnedFd) -> Result<()> {
    loop {
        let readiness = watched.readiness();
        let mut fds = [PollFd::new(&readiness, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(host("poll")(errno)),
        }
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        watched.take_in();
    }
}
