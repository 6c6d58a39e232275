//! Where events come in, and who waits for them.
//!
//! Whoever waits for one id takes in the events of all, and puts each into its own id's slot. One thread
//! sleeps on the channel's descriptor, the leader; the others sleep until it, or somebody else, has taken
//! something in. A thread that takes events in while another one sleeps as the leader wakes it, since one
//! may be that one's.

#![deny(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::core::IdCore;
use super::device::Contexts;
use super::fault;
use super::id::{Id, Idle, RouteResolved};
use super::listener::Listener;
use super::slot::Slot;
use crate::context::Context;
use crate::error::{CmReason, Errno, Error, Result};
use crate::event::Readiness;
use crate::sys::cm::{Bound, LIBRARY, NoChannel, PortSpace};
use crate::sys::{CmChannel, CmEvent, CmId};
#[cfg(feature = "tokio")]
use crate::tasks::Driver;

/// An event channel (`struct rdma_event_channel`): ids are made on it, and what happens to them is told by
/// it.
///
/// Cheap to clone. It is closed when the last clone, and the last id made on it, is gone. Any number of ids
/// can be on one: whoever waits for one of them takes in the events of all, each of which then waits with
/// its own id. So steps of many ids are started first, and then waited for one after the other.
///
/// For a loop of one's own: wait until the descriptor ([`AsFd`]) is readable, call
/// [`process_events`](EventChannel::process_events), and see which steps are
/// [`ready`](super::Step::ready).
#[derive(Clone)]
pub struct EventChannel {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    handle: Arc<CmChannel>,
    /// By the address of the id, while it lives.
    slots: Mutex<HashMap<usize, Weak<Slot>>>,
    /// Held while events are taken in, so that those of an id come into its slot in order.
    taking: Mutex<()>,
    waiting: Mutex<Waiting>,
    /// Something was taken in, or there is no leader any more.
    turned: Condvar,
    /// Wakes the leader.
    wake: OwnedFd,
    /// For a loop of the program's own.
    readiness: Readiness,
    pub(super) contexts: Contexts,
    #[cfg(feature = "tokio")]
    driver: Driver,
}

#[derive(Default)]
struct Waiting {
    /// Counts the times that something was taken in.
    turn: u64,
    /// A thread sleeps on the descriptor.
    led: bool,
}

/// The most events taken in at once: what comes without an end must not hold a caller for ever.
const MOST_AT_ONCE: usize = 4096;

impl EventChannel {
    /// Opens one (`rdma_create_event_channel`). The library, librdmacm, is loaded when the first one is.
    ///
    /// # Errors
    ///
    /// [`Error::NoLibrary`] when there is no usable librdmacm; [`Error::Cm`] with `ENODEV` when the kernel's
    /// part, `/dev/infiniband/rdma_cm`, or any RDMA device is not there; [`Error::Host`] when there can be
    /// no more descriptors.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<EventChannel> {
        let handle = CmChannel::create().map_err(|why| match why {
            NoChannel::Library(why) => Error::NoLibrary { library: LIBRARY, why: why.into() },
            NoChannel::Failed(errno) => {
                let reason = CmReason::Failed(errno);
                fault::fault("rdma_create_event_channel", None, None, reason)
            }
        })?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(host("eventfd"))?;
        let readiness = Readiness::new(handle.fd())?;
        let inner = Inner {
            handle: Arc::new(handle),
            slots: Mutex::default(),
            taking: Mutex::default(),
            waiting: Mutex::default(),
            turned: Condvar::new(),
            wake,
            readiness,
            contexts: Contexts::default(),
            #[cfg(feature = "tokio")]
            driver: Driver::default(),
        };
        Ok(EventChannel { inner: Arc::new(inner) })
    }

    /// A new id (`rdma_create_id`), of the port space that connects reliably (`RDMA_PS_TCP`).
    ///
    /// # Errors
    ///
    /// [`Error::Cm`] with the errno.
    #[doc(alias = "rdma_create_id")]
    pub fn id(&self) -> Result<Id<Idle>> {
        Ok(Id::new(self.core(PortSpace::Tcp)?))
    }

    /// A new id of this port space.
    pub(super) fn core(&self, space: PortSpace) -> Result<IdCore> {
        let handle = CmId::create(&self.inner.handle, space)
            .map_err(|errno| fault::call("rdma_create_id", None, None, errno))?;
        let nothing = Bound { device: None, local: None, peer: None };
        Ok(self.inner.own(handle, nothing))
    }

    /// Resolves a peer's address and the route to it: what comes before a queue pair is made. Waits for
    /// `timeout`, and a second more for the kernel to say what is wrong.
    ///
    /// # Errors
    ///
    /// As [`Id::resolve_addr`](Id::<Idle>::resolve_addr), [`Id::resolve_route`] and
    /// [`Step::wait`](super::Step::wait).
    pub fn resolve(&self, to: SocketAddr, timeout: Duration) -> Result<Id<RouteResolved>> {
        let patience = timeout.saturating_add(Duration::from_secs(1));
        let resolved = self.id()?.resolve_addr(to, timeout)?.wait(patience)?;
        resolved.resolve_route(timeout)?.wait(patience)
    }

    /// Listens at an address: an id that is bound to it and listens, with room for `backlog` requests that
    /// nobody has taken yet.
    ///
    /// # Errors
    ///
    /// As [`Id::bind`] and [`Id::listen`].
    pub fn listen(&self, at: SocketAddr, backlog: u32) -> Result<Listener> {
        Ok(self.id()?.bind(at)?.listen(backlog)?)
    }

    /// Lets ids of this channel find this context when they are bound to its device
    /// ([`Id::context`]), rather than open the device once more.
    pub fn share(&self, context: &Context) {
        self.inner.contexts.share(context);
    }

    /// Takes in the events there are, without waiting, and gives their number. Each then waits with its id.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`] when events cannot be had.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn process_events(&self) -> Result<usize> {
        self.inner.readiness.clear();
        self.inner.take_in()
    }
}

impl AsFd for EventChannel {
    /// Readable when there are events, or another thread took some in. Only to wait on, then call
    /// [`process_events`](EventChannel::process_events).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.readiness.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("ids", &lock(&self.inner.slots).len()).finish()
    }
}

impl Inner {
    /// An id of this channel that hears of its events from now on.
    pub(super) fn own(self: &Arc<Self>, handle: CmId, bound: Bound) -> IdCore {
        let slot = Arc::new(Slot::default());
        lock(&self.slots).insert(handle.key(), Arc::downgrade(&slot));
        IdCore::new(handle, slot, Arc::clone(self), bound)
    }

    /// The id is about to be destroyed: another one may have its address then.
    pub(super) fn disown(&self, key: usize) {
        lock(&self.slots).remove(&key);
    }

    /// Takes in the events there are.
    pub(super) fn take_in(&self) -> Result<usize> {
        let mut count = 0;
        let mut outcome = Ok(());
        let mut concerned = Vec::new();
        {
            let _taking = lock(&self.taking);
            while count < MOST_AT_ONCE {
                let mut came: Option<(Option<Arc<Slot>>, CmEvent)> = None;
                // The slot is looked up before the event is acknowledged: until then the address is that
                // id's, even if it is being dropped.
                let taken = self.handle.next_event(&mut |event| {
                    let slot = lock(&self.slots).get(&event.key).and_then(Weak::upgrade);
                    came = Some((slot, event));
                });
                match taken {
                    Ok(true) => count += 1,
                    Ok(false) => break,
                    Err(errno) => {
                        outcome = Err(fault::call("rdma_get_cm_event", None, None, errno));
                        break;
                    }
                }
                // A request whose listener has gone, or that is bound to no device, goes here, and is so
                // refused.
                if let Some((Some(slot), event)) = came {
                    slot.push(event);
                    concerned.push(slot);
                }
            }
        }
        // Whoever is woken may do anything: no lock is held any more.
        concerned.iter().for_each(|slot| slot.tasks.wake());
        if count > 0 {
            let mut waiting = lock(&self.waiting);
            waiting.turn += 1;
            if waiting.led {
                // Fails only when the count is at its end, and then it is readable.
                let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
            }
            drop(waiting);
            self.turned.notify_all();
        }
        outcome.map(|()| count)
    }

    /// Takes events in until `check` finds what it looks for, or the time is over.
    pub(super) fn wait<T>(
        &self,
        timeout: Duration,
        mut check: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        // Without one when it is beyond all time.
        let deadline = Instant::now().checked_add(timeout);
        // What has come already, with what another one waited for, is there without a call.
        if let Some(found) = check() {
            return Ok(Some(found));
        }
        loop {
            if self.take_in()? > 0 {
                self.readiness.tell();
            }
            let turn = lock(&self.waiting).turn;
            if let Some(found) = check() {
                return Ok(Some(found));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let mut waiting = lock(&self.waiting);
            if waiting.turn != turn {
                continue;
            }
            if waiting.led {
                // A day, for one that waits for ever.
                let left = left.unwrap_or(Duration::from_secs(86_400));
                let woken = self.turned.wait_timeout(waiting, left);
                drop(woken.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            waiting.led = true;
            drop(waiting);
            let slept = self.sleep(left);
            lock(&self.waiting).led = false;
            self.turned.notify_all();
            slept?;
        }
    }

    /// Sleeps until there are events, or somebody else has taken some in.
    fn sleep(&self, left: Option<Duration>) -> Result<()> {
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [
            PollFd::from_borrowed_fd(self.handle.fd(), PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(host("poll")(errno)),
        }
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        Ok(())
    }
}

#[cfg(feature = "tokio")]
impl crate::tasks::Driven for Inner {
    fn driver(&self) -> &Driver {
        &self.driver
    }

    /// As in `sleep`.
    fn readable(&self) -> Result<OwnedFd> {
        crate::tasks::readable(&[self.handle.fd()])
    }

    fn take_in(&self) -> Result<bool> {
        let count = Inner::take_in(self)?;
        if count > 0 {
            self.readiness.tell();
        }
        Ok(count == MOST_AT_ONCE)
    }

    fn wake_all(&self) {
        let slots: Vec<_> = lock(&self.slots).values().filter_map(Weak::upgrade).collect();
        slots.iter().for_each(|slot| slot.tasks.wake());
    }
}

fn host(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
}

/// A panic elsewhere leaves nothing half done behind these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
