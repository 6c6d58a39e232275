//! Completion channels: waiting for completions.
//!
//! An event tells that a completion came after its completion queue was armed, once. So the order is: arm,
//! drain, and wait only if there was nothing; [`CompletionChannel::wait`] and
//! [`CompletionQueue::wait`](super::CompletionQueue::wait) do so.
//!
//! Several threads may wait on one channel, each for completion queues of its own. Whoever finds the
//! channel readable takes one event, and tells the completion queue that it is for, by a flag and a
//! descriptor that whoever waits for that one waits on as well. By the same it is told of what else a wait must
//! end for and another thread does or learns: that one of its queue pairs was destroyed, that it or the
//! device failed.

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
#[cfg(feature = "tokio")]
use crate::tasks::Driver;
use crate::tasks::Tasks;

/// Which completions are told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Notify {
    /// All.
    #[default]
    Any,
    /// Receives of messages that were sent as solicited, and failures (`solicited_only`). Not every device
    /// tells of receives that were flushed: rxe of Linux 6.12 does not.
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
    signals: Mutex<Signals>,
    #[cfg(feature = "tokio")]
    driver: Driver,
}

/// By the key of the completion queue.
type Signals = hashbrown::HashMap<usize, Arc<Signal>, foldhash::fast::FixedState>;

/// What one completion queue is told by.
pub(super) struct Signal {
    fired: AtomicBool,
    /// Readable when it has fired, told by a thread that waits for another.
    wake: OwnedFd,
    /// Those who wait for it as tasks do.
    pub(super) tasks: Tasks,
    /// It is tasks that wait for it, and nobody on the descriptor.
    by_tasks: AtomicBool,
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
            #[cfg(feature = "tokio")]
            driver: Driver::default(),
        };
        Ok(CompletionChannel { inner: Arc::new(inner) })
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Waits until one of these completion queues, all of this channel, has completions, and tells which:
    /// poll it. `None` when none has within the time; `None` as time waits for ever. Ends also when a queue pair
    /// was destroyed whose last completions there are to poll. Takes in asynchronous events of the device that
    /// come meanwhile, and tells a loop that waits for them ([`Context`]'s descriptor) so.
    ///
    /// # Errors
    ///
    /// [`Error::NoChannel`] for a completion queue that is not of this channel; as
    /// [`CompletionQueue::poll`]; [`Error::DeviceFatal`] when the device has failed; [`Error::Verb`] and
    /// [`Error::Host`] when the kernel cannot be waited on.
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
        let (fired, by_tasks) = (AtomicBool::new(false), AtomicBool::new(false));
        let signal = Arc::new(Signal { fired, wake, tasks: Tasks::default(), by_tasks });
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
        let signals = queues.iter().filter_map(|queue| queue.shared.signal.as_deref());
        signals.for_each(|signal| signal.wait_by_tasks(false));
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(found) = self.look(queues, notify)? {
                return Ok(Some(found));
            }
            if !self.sleep(queues, deadline)? {
                // Some may have come that were not to be told of.
                return ready(queues);
            }
        }
    }

    /// Arms them if there is nothing to look at, and tells which has something: if none has, they can be
    /// waited for.
    pub(super) fn look(
        &self,
        queues: &mut [&mut CompletionQueue],
        notify: Notify,
    ) -> Result<Option<usize>> {
        if let Some(found) = ready(queues)? {
            return Ok(Some(found));
        }
        // Nothing comes from a device that has failed, and nothing would tell so again.
        self.context.events().check()?;
        for queue in queues.iter_mut() {
            queue.request(notify)?;
        }
        // What came before it was armed raises no event.
        ready(queues)
    }

    /// Waits until one of them has fired; false when the time is over.
    fn sleep(&self, queues: &[&mut CompletionQueue], deadline: Option<Instant>) -> Result<bool> {
        let nobody = PollFd::from_borrowed_fd(self.handle.fd(), PollFlags::empty());
        // The usual few without allocating.
        let mut few: [PollFd<'_>; FEW + 2] = std::array::from_fn(|_| nobody.clone());
        let mut many = Vec::new();
        let fds = match queues.len() + 2 {
            len if len <= few.len() => &mut few[..len],
            len => {
                many.resize(len, nobody);
                &mut many[..]
            }
        };
        // The device's own descriptor of events: somebody has to take them in. What another takes in comes
        // by the signals.
        fds[0] = PollFd::from_borrowed_fd(self.handle.fd(), PollFlags::IN);
        fds[1] = PollFd::from_borrowed_fd(self.context.events_fd(), PollFlags::IN);
        for (fd, queue) in fds[2..].iter_mut().zip(queues) {
            if let Some(signal) = &queue.shared.signal {
                *fd = PollFd::new(&signal.wake, PollFlags::IN);
            }
        }
        let signals = || queues.iter().filter_map(|queue| queue.shared.signal.as_deref());
        loop {
            // Not `any`: each that has fired is polled now.
            if signals().filter(|signal| signal.has_fired()).count() != 0 {
                return Ok(true);
            }
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None | Some(Duration::ZERO) => return Ok(false),
                    Some(left) => Some(Timespec {
                        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                        tv_nsec: left.subsec_nanos().into(),
                    }),
                },
            };
            match poll(fds, left.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(host("poll", errno)),
            }
            for (fd, queue) in fds[2..].iter().zip(queues) {
                if let (false, Some(signal)) = (fd.revents().is_empty(), &queue.shared.signal) {
                    // Clears it; the flag says what happened.
                    let _ = rustix::io::read(&signal.wake, &mut [0; 8]);
                }
            }
            let (told, happened) = (fds[0].revents(), fds[1].revents());
            let taken = !told.is_empty() && self.take_event(queues)?;
            if !happened.is_empty() {
                self.context.take_in_events()?;
            }
            // The kernel closed them with the device: they are ready for ever, and have nothing.
            if !taken && (told | happened).intersects(BROKEN) {
                return Err(self.context.events().failed());
            }
        }
    }

    /// Takes one event, if there is one, and tells its completion queue; `own` are those that this thread
    /// waits for itself.
    fn take_event(&self, own: &[&mut CompletionQueue]) -> Result<bool> {
        let mut concerned = None;
        let taken =
            self.handle.next_event(&mut |key| concerned = self.signals().get(&key).cloned());
        // Of one that is gone: nobody waits for it. Whoever is woken may do anything: no lock is held any more.
        if let Some(signal) = concerned {
            let mine = |queue: &&mut CompletionQueue| {
                queue.shared.signal.as_ref().is_some_and(|own| Arc::ptr_eq(own, &signal))
            };
            signal.fire(own.iter().any(mine));
        }
        taken.map_err(|errno| Error::Verb {
            verb: "ibv_get_cq_event",
            object: Object::device(self.context.device().name()),
            errno,
        })
    }

    fn signals(&self) -> MutexGuard<'_, Signals> {
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

/// So many completion queues are waited for without allocating.
const FEW: usize = 6;
/// A descriptor that the kernel closed with the device is this.
const BROKEN: PollFlags = PollFlags::ERR.union(PollFlags::HUP).union(PollFlags::NVAL);

impl Signal {
    /// The flag before the descriptor: whoever is woken finds it.
    pub(super) fn fire(&self, by_who_waits: bool) {
        // In one order with what `wait_by_tasks` does: who then looks at the flag finds it, or is told.
        self.fired.store(true, Ordering::SeqCst);
        if !by_who_waits && !self.by_tasks.load(Ordering::SeqCst) {
            // Cannot fail but when it is readable already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
        self.tasks.wake();
    }

    pub(super) fn has_fired(&self) -> bool {
        self.fired.swap(false, Ordering::SeqCst)
    }

    /// How it is waited for from now on.
    pub(super) fn wait_by_tasks(&self, on: bool) {
        if self.by_tasks.load(Ordering::Relaxed) != on {
            self.by_tasks.store(on, Ordering::SeqCst);
        }
    }
}

fn host(call: &'static str, errno: rustix::io::Errno) -> Error {
    Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
}

#[cfg(feature = "tokio")]
impl crate::tasks::Driven for Channel {
    fn driver(&self) -> &Driver {
        &self.driver
    }

    /// As in `sleep`: the channel, and the device's own events.
    fn readable(&self) -> Result<OwnedFd> {
        crate::tasks::readable(&[self.handle.fd(), self.context.events_fd()])
    }

    fn take_in(&self) -> Result<bool> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.handle.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.context.events_fd(), PollFlags::IN),
        ];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&at_once)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(errno) => return Err(host("poll", errno)),
        }
        let (told, happened) = (fds[0].revents(), fds[1].revents());
        let mut taken = 0;
        while !told.is_empty() && taken < MOST_AT_ONCE && self.take_event(&[])? {
            taken += 1;
        }
        if !happened.is_empty() {
            self.context.take_in_events()?;
        }
        if taken == 0 && (told | happened).intersects(BROKEN) {
            return Err(self.context.events().failed());
        }
        Ok(taken == MOST_AT_ONCE || !happened.is_empty() || told.intersects(BROKEN))
    }

    fn wake_all(&self) {
        let signals: Vec<_> = self.signals().values().cloned().collect();
        signals.iter().for_each(|signal| signal.tasks.wake());
    }
}

/// So many events are taken in before tasks that do something else get their turn.
#[cfg(feature = "tokio")]
const MOST_AT_ONCE: usize = 64;
