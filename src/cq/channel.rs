//! Completion channels: waiting for completions.
//!
//! An event tells that a completion came after its completion queue was armed, once. So the order is: arm,
//! drain, and wait only if there was nothing; [`CompletionChannel::wait`] and
//! [`CompletionQueue::wait`](super::CompletionQueue::wait) do so.
//!
//! Several threads may wait on one channel, each for completion queues of its own. Whoever finds the
//! channel readable takes one event, and tells the completion queue that it is for, by a flag and a
//! descriptor that whoever waits for that one waits on as well.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::CompletionQueue;
use crate::context::Context;
use crate::error::{Errno, Error, Object, Result};
use crate::sys::ChannelHandle;

/// Which completions are told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Notify {
    /// All.
    #[default]
    Any,
    /// Receives of messages that were sent as solicited, and failures (`solicited_only`).
    Solicited,
}

/// A completion channel (`struct ibv_comp_channel`): what completion queues tell of their completions by.
///
/// Cheap to clone; destroyed when the last clone and the last completion queue on it are gone.
#[derive(Clone)]
pub struct CompletionChannel {
    inner: Arc<Channel>,
}

/// What the channel and its completion queues share.
pub(super) struct Channel {
    handle: Arc<ChannelHandle>,
    context: Context,
    /// By the key of the completion queue.
    signals: Mutex<HashMap<usize, Arc<Signal>>>,
}

/// What one completion queue is told by.
pub(super) struct Signal {
    fired: AtomicBool,
    /// Readable when it has fired, told by a thread that waits for another.
    wake: OwnedFd,
}

impl CompletionChannel {
    /// Makes one (`ibv_create_comp_channel`).
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `EMFILE` when there can be no more descriptors.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(context: &Context) -> Result<CompletionChannel> {
        let handle = ChannelHandle::create(Arc::clone(context.handle())).map_err(|errno| {
            let object = Object::device(context.device().name());
            Error::Verb { verb: "ibv_create_comp_channel", object, errno }
        })?;
        let inner = Channel {
            handle: Arc::new(handle),
            context: context.clone(),
            signals: Mutex::default(),
        };
        Ok(CompletionChannel { inner: Arc::new(inner) })
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Waits until one of these completion queues, all of this channel, has completions, and tells which:
    /// poll it. `None` when none has within the time; `None` as time waits for ever.
    ///
    /// # Errors
    ///
    /// [`Error::NoChannel`] for a completion queue that is not of this channel; as
    /// [`CompletionQueue::poll`]; [`Error::DeviceFatal`]; [`Error::Verb`] and [`Error::Host`] when the
    /// kernel cannot be waited on.
    pub fn wait(
        &self,
        queues: &mut [&mut CompletionQueue],
        notify: Notify,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<usize>> {
        self.inner.wait(queues, notify, timeout.into())
    }

    /// Takes in the events there are, without waiting, and gives their number: what a loop of one's own
    /// does when the channel's descriptor is readable, and then polls, and arms again.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn process_events(&self) -> Result<usize> {
        let mut count = 0;
        while self.inner.take_event(&[])? {
            count += 1;
        }
        Ok(count)
    }

    pub(super) fn handle(&self) -> &Arc<ChannelHandle> {
        &self.inner.handle
    }

    pub(super) fn inner(&self) -> &Arc<Channel> {
        &self.inner
    }
}

impl AsFd for CompletionChannel {
    /// Readable when there are events. Only to wait on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.handle.fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.inner.context.device().name();
        f.debug_struct("CompletionChannel").field("device", &device).finish_non_exhaustive()
    }
}

impl Channel {
    /// A completion queue comes.
    pub(super) fn enter(&self, key: usize) -> Result<Arc<Signal>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| host("eventfd", errno))?;
        let signal = Arc::new(Signal { fired: AtomicBool::new(false), wake });
        self.signals().insert(key, Arc::clone(&signal));
        Ok(signal)
    }

    /// It goes; called while it is still there, so that no other has its key.
    pub(super) fn leave(&self, key: usize) {
        self.signals().remove(&key);
    }

    pub(super) fn wait(
        &self,
        queues: &mut [&mut CompletionQueue],
        notify: Notify,
        timeout: Option<Duration>,
    ) -> Result<Option<usize>> {
        let mine = |queue: &CompletionQueue| {
            queue.shared.channel.as_ref().is_some_and(|channel| std::ptr::eq(&**channel, self))
        };
        if !queues.iter().all(|queue| mine(queue)) {
            return Err(Error::NoChannel);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(found) = ready(queues)? {
                return Ok(Some(found));
            }
            for queue in queues.iter_mut() {
                queue.request(notify)?;
            }
            // What came before it was armed raises no event.
            if let Some(found) = ready(queues)? {
                return Ok(Some(found));
            }
            if !self.sleep(queues, deadline)? {
                return Ok(None);
            }
        }
    }

    /// Waits until one of them has fired, or may have failed; false when the time is over.
    fn sleep(
        &self,
        queues: &mut [&mut CompletionQueue],
        deadline: Option<Instant>,
    ) -> Result<bool> {
        let signals: Vec<Arc<Signal>> =
            queues.iter().filter_map(|queue| queue.shared.signal.clone()).collect();
        loop {
            // Not `any`: each that has fired is polled now.
            let fired = signals.iter().filter(|signal| signal.has_fired()).count();
            if fired != 0 {
                return Ok(true);
            }
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None | Some(Duration::ZERO) => return Ok(false),
                    left => left,
                },
            };
            let mut fds = Vec::with_capacity(2 + signals.len());
            fds.push(PollFd::from_borrowed_fd(self.handle.fd(), PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(self.context.as_fd(), PollFlags::IN));
            let wakes = signals.iter().map(|signal| PollFd::new(&signal.wake, PollFlags::IN));
            fds.extend(wakes);
            let left = left.map(|left| Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut fds, left.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(host("poll", errno)),
            }
            let readable: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            for (signal, readable) in signals.iter().zip(&readable[2..]) {
                if *readable {
                    // Clears it; the flag says what happened.
                    let _ = rustix::io::read(&signal.wake, &mut [0; 8]);
                }
            }
            if readable[0] {
                self.take_event(&signals)?;
            }
            if readable[1] {
                self.context.process_events()?;
                queues.iter_mut().for_each(|queue| queue.take_in_events());
                if queues.iter().any(|queue| queue.failed.is_some()) {
                    return Ok(true);
                }
            }
        }
    }

    /// Takes one event, if there is one, and tells its completion queue; `own` are those that this thread
    /// waits for itself.
    fn take_event(&self, own: &[Arc<Signal>]) -> Result<bool> {
        let taken = self.handle.next_event(&mut |key| {
            let signal = self.signals().get(&key).cloned();
            // Of one that is gone: nobody waits for it.
            if let Some(signal) = signal {
                signal.fire(own.iter().any(|own| Arc::ptr_eq(own, &signal)));
            }
        });
        taken.map_err(|errno| Error::Verb {
            verb: "ibv_get_cq_event",
            object: Object::device(self.context.device().name()),
            errno,
        })
    }

    fn signals(&self) -> MutexGuard<'_, HashMap<usize, Arc<Signal>>> {
        // A panic elsewhere leaves nothing half done behind this lock.
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first that has something to look at.
fn ready(queues: &mut [&mut CompletionQueue]) -> Result<Option<usize>> {
    for (at, queue) in queues.iter_mut().enumerate() {
        if !queue.poll()?.is_empty() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

impl Signal {
    /// The flag before the descriptor: whoever is woken finds it.
    fn fire(&self, by_who_waits: bool) {
        self.fired.store(true, Ordering::Release);
        if !by_who_waits {
            // Cannot fail but when it is readable already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    fn has_fired(&self) -> bool {
        self.fired.swap(false, Ordering::AcqRel)
    }
}

fn host(call: &'static str, errno: rustix::io::Errno) -> Error {
    Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
}
