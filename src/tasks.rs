//! Tasks of an asynchronous runtime that wait for something (feature `tokio`).
//!
//! Many may wait for what one descriptor tells: the completion queues of a channel, the ids of another. One
//! task of each runtime, spawned when the first one waits there, waits on the descriptor and takes in for all
//! of them; each that is concerned is woken. A waiting future itself holds nothing that others need, so one
//! that nobody polls any more keeps nobody waiting. Without the feature nothing of it is compiled, and waking
//! is nothing.

#[cfg(feature = "tokio")]
pub(crate) use driver::{Driven, Driver, another, readable, registered, runtime_error, until};

/// Those who wait for one thing.
#[derive(Default)]
pub(crate) struct Tasks {
    #[cfg(feature = "tokio")]
    notify: tokio::sync::Notify,
}

impl Tasks {
    /// What they wait for may have happened. After it can be seen.
    #[inline]
    pub(crate) fn wake(&self) {
        #[cfg(feature = "tokio")]
        self.notify.notify_waiters();
    }
}

#[cfg(feature = "tokio")]
mod driver {
    use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

    use rustix::event::epoll;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;
    use tokio::runtime::{Handle, Id};
    use tokio::task::AbortHandle;

    use super::Tasks;
    use crate::error::{Errno, Error, Result};

    /// What tells many by one descriptor.
    pub(crate) trait Driven: Send + Sync + 'static {
        /// Its driver.
        fn driver(&self) -> &Driver;

        /// A descriptor for nobody else, readable while there is something to take in.
        fn readable(&self) -> Result<OwnedFd>;

        /// Takes in what there is, without waiting, and wakes those whom it concerns. Whether there may be
        /// more.
        fn take_in(&self) -> Result<bool>;

        /// Wakes all: nobody takes in for them any more.
        fn wake_all(&self);
    }

    /// The tasks that take in, of each runtime one; they end with this.
    #[derive(Default)]
    pub(crate) struct Driver {
        driving: Mutex<Vec<Driving>>,
    }

    struct Driving {
        runtime: Id,
        /// Until its future is gone.
        runs: Arc<AtomicBool>,
        task: AbortHandle,
    }

    impl Drop for Driving {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    /// Waits until `check` finds something, which is looked for when it starts, and when `tasks` are woken.
    pub(crate) async fn until<D: Driven, T>(
        driven: &Arc<D>,
        tasks: &Tasks,
        mut check: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        loop {
            // Woken by what happens from now on, before it is polled too.
            let woken = tasks.notify.notified();
            if let Some(found) = check() {
                return Ok(found);
            }
            keep_driving(driven)?;
            woken.await;
        }
    }

    /// Sees that there is a task of this runtime that takes in.
    fn keep_driving<D: Driven>(driven: &Arc<D>) -> Result<()> {
        let handle = Handle::current();
        if driven.driver().drives(&handle).1 {
            return Ok(());
        }
        // What the last one ended with, if it failed, is told to each who waits.
        while driven.take_in()? {}
        let (mut all, driven_already) = driven.driver().drives(&handle);
        if driven_already {
            return Ok(());
        }
        let fd = registered(driven.readable()?)?;
        let (runs, driven) = (Arc::new(AtomicBool::new(true)), Arc::downgrade(driven));
        let end = End { runs: Arc::clone(&runs), driven: Weak::clone(&driven) };
        let task = handle.spawn(drive(driven, fd, end)).abort_handle();
        all.push(Driving { runtime: handle.id(), runs, task });
        Ok(())
    }

    impl Driver {
        /// Those that run, and whether one is of this runtime.
        fn drives(&self, handle: &Handle) -> (MutexGuard<'_, Vec<Driving>>, bool) {
            // A panic elsewhere leaves nothing half done behind this lock.
            let mut all = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|driving| driving.runs.load(Ordering::Acquire));
            let there = all.iter().any(|driving| driving.runtime == handle.id());
            (all, there)
        }
    }

    /// Takes in until that fails, or there is nobody any more to do it for.
    async fn drive<D: Driven>(driven: Weak<D>, fd: AsyncFd<OwnedFd>, _end: End<D>) {
        while let Ok(mut ready) = fd.readable().await {
            let Some(driven) = driven.upgrade() else { return };
            match driven.take_in() {
                Ok(false) => ready.clear_ready(),
                Ok(true) => {}
                Err(_) => return,
            }
        }
    }

    /// The end of the task, however it comes: also with its runtime.
    struct End<D: Driven> {
        runs: Arc<AtomicBool>,
        driven: Weak<D>,
    }

    impl<D: Driven> Drop for End<D> {
        fn drop(&mut self) {
            self.runs.store(false, Ordering::Release);
            if let Some(driven) = self.driven.upgrade() {
                driven.wake_all();
            }
        }
    }

    /// A descriptor that is readable while one of these is, and of which none is kept open by it.
    pub(crate) fn readable(fds: &[BorrowedFd<'_>]) -> Result<OwnedFd> {
        let failed = |call| {
            move |errno: rustix::io::Errno| Error::Host {
                call,
                errno: Errno::from_raw(errno.raw_os_error()),
            }
        };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create1"))?;
        for fd in fds {
            let data = epoll::EventData::new_u64(fd.as_raw_fd() as u64);
            epoll::add(&set, fd, data, epoll::EventFlags::IN).map_err(failed("epoll_ctl"))?;
        }
        Ok(set)
    }

    /// A descriptor that the present runtime waits on, until this is dropped.
    #[allow(unsafe_code)]
    pub(crate) fn registered(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
        // SAFETY: the descriptor is owned by what is made of it, and so open, and the same, to its end.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        fd.map_err(|error| runtime_error(&error.into()))
    }

    /// Another descriptor of the same, for who registers what others may register too.
    pub(crate) fn another(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
        let another = fd.try_clone_to_owned();
        another.map_err(|error| Error::Host { call: "fcntl", errno: Errno::from(error) })
    }

    /// What the runtime could not do: wait on one more descriptor, or at all, since it ends.
    pub(crate) fn runtime_error(error: &std::io::Error) -> Error {
        let errno = error.raw_os_error().map_or(Errno::ECANCELED, Errno::from_raw);
        Error::Host { call: "epoll_ctl", errno }
    }
}
