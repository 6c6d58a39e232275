//! Keeping true what is answered from memory.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::context::Context;
use crate::directory::GidDirectory;
use crate::error::Result;
use crate::resolve::Resolver;
use crate::tasks::{another, registered, runtime_error};

/// What a task can keep true: a [`GidDirectory`], a [`Resolver`] with its directory, or the tables of a
/// [`Context`].
pub trait Watch: AsFd + private::Watch {}

impl Watch for GidDirectory {}
impl Watch for Resolver {}
impl Watch for Context {}

mod private {
    use super::{Context, GidDirectory, Resolver, Result};

    pub trait Watch: Send + Sync {
        /// Takes in what there is.
        fn take_in(&self) -> Result<()>;

        /// Why it cannot be kept true any more.
        fn end(&self) -> Result<()> {
            Ok(())
        }
    }

    impl Watch for GidDirectory {
        fn take_in(&self) -> Result<()> {
            self.process_events().map(|_| ())
        }
    }

    impl Watch for Resolver {
        fn take_in(&self) -> Result<()> {
            self.process_events().map(|_| ())
        }
    }

    impl Watch for Context {
        fn take_in(&self) -> Result<()> {
            self.process_events().map(|_| ())
        }

        fn end(&self) -> Result<()> {
            self.events().check()
        }
    }
}

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Keeps a directory, a resolver or a context true for as long as this is polled: what `cached` answers from is
/// then behind by the time that an event takes to be taken in. Spawn it:
///
/// ```no_run
/// use rdma_verbs::{GidDirectory, Result, aio};
///
/// # async fn example() -> Result<()> {
/// let directory = GidDirectory::open()?;
/// let watching = tokio::spawn(aio::watch(directory.clone()));
/// println!("{:?}", directory.cached());
/// watching.abort();
/// # Ok(())
/// # }
/// ```
///
/// What it reads it reads in the task: a table takes some ten microseconds, a device that comes and is opened
/// a millisecond. What fails is tried again, and told by the lookup that follows, or in the device's place.
///
/// Cancel safe: what was told and not taken in is found by whoever looks next.
///
/// # Errors
///
/// [`Error::Host`](crate::Error::Host) when the runtime cannot wait any more. Of a context,
/// [`Error::DeviceFatal`](crate::Error::DeviceFatal) when the device
/// has failed. It ends in no other way.
pub async fn watch<T: Watch>(watched: T) -> Result<Infallible> {
    // A descriptor of its own, since others may watch the same.
    let fd = registered(another(watched.as_fd())?)?;
    loop {
        let mut ready = fd.readable().await.map_err(|error| runtime_error(&error))?;
        match watched.take_in() {
            // Of a storm only so much is taken in at a time.
            Ok(()) if is_readable(watched.as_fd()) => {}
            Ok(()) => ready.clear_ready(),
            Err(_) => {
                watched.end()?;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)), Ok(0))
}
