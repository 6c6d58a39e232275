//! Asynchronous events of a device: one reader for each open context.
//!
//! Whoever drains the context's descriptor (a `checked` lookup, a program's own loop) reads for
//! all: each event is copied, turned into our own terms, acknowledged at once, and handed to those
//! whom it concerns, so that nothing dangles, no destroy waits, and no event is lost to the wrong
//! reader.

#![deny(unsafe_code)]

mod queue;
mod readiness;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::error::{Errno, Error, Object, Result};
use crate::kept::Kept;
use crate::sys::{ContextHandle, RawEvent};
use crate::types::{PortNum, c_enum};

pub use queue::EventQueue;

pub(crate) use readiness::{ForLookups, Readiness};

use queue::Subscriber;

c_enum! {
    /// What happened (`enum ibv_event_type`). A number of a newer kernel is carried.
    EventType(i32) {
        /// A completion queue overran or failed.
        CQ_ERR = 0, "CQ_ERR";
        /// A queue pair failed and could not tell by a completion.
        QP_FATAL = 1, "QP_FATAL";
        /// A queue pair got an invalid request.
        QP_REQ_ERR = 2, "QP_REQ_ERR";
        /// A queue pair got a request for memory that it may not touch.
        QP_ACCESS_ERR = 3, "QP_ACCESS_ERR";
        /// A first packet came to a queue pair that is not ready to send yet.
        COMM_EST = 4, "COMM_EST";
        /// A queue pair's send queue is drained.
        SQ_DRAINED = 5, "SQ_DRAINED";
        /// A queue pair migrated to its alternate path.
        PATH_MIG = 6, "PATH_MIG";
        /// A queue pair could not migrate.
        PATH_MIG_ERR = 7, "PATH_MIG_ERR";
        /// The device failed: close everything made on it.
        DEVICE_FATAL = 8, "DEVICE_FATAL";
        /// A port came up.
        PORT_ACTIVE = 9, "PORT_ACTIVE";
        /// A port went down.
        PORT_ERR = 10, "PORT_ERR";
        /// A port's LID changed.
        LID_CHANGE = 11, "LID_CHANGE";
        /// A port's P_Key table changed.
        PKEY_CHANGE = 12, "PKEY_CHANGE";
        /// A port's subnet manager changed.
        SM_CHANGE = 13, "SM_CHANGE";
        /// A shared receive queue failed.
        SRQ_ERR = 14, "SRQ_ERR";
        /// A shared receive queue fell below its limit.
        SRQ_LIMIT_REACHED = 15, "SRQ_LIMIT_REACHED";
        /// A queue pair took its last receive from a shared receive queue.
        QP_LAST_WQE_REACHED = 16, "QP_LAST_WQE_REACHED";
        /// The subnet manager asks a port's clients to register again.
        CLIENT_REREGISTER = 17, "CLIENT_REREGISTER";
        /// A row of a port's GID table came or went. One event a row; it does not say which.
        GID_CHANGE = 18, "GID_CHANGE";
        /// A work queue failed.
        WQ_FATAL = 19, "WQ_FATAL";
    }
}

impl EventType {
    /// Whether rows of a GID table may be other than before.
    fn changes_gids(self) -> bool {
        self.changes_port() || self == EventType::GID_CHANGE
    }

    /// Whether a P_Key table may be other than before.
    fn changes_pkeys(self) -> bool {
        self.changes_port() || self == EventType::PKEY_CHANGE
    }

    /// Whether a port changed as a whole: its subnet, or whether it is there.
    fn changes_port(self) -> bool {
        matches!(
            self,
            EventType::PORT_ACTIVE
                | EventType::PORT_ERR
                | EventType::LID_CHANGE
                | EventType::SM_CHANGE
                | EventType::CLIENT_REREGISTER
        )
    }
}

/// An asynchronous event, acknowledged already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Event {
    /// What happened.
    pub kind: EventType,
    /// To what.
    pub subject: EventSubject,
}

/// What an event happened to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventSubject {
    /// The whole device.
    Device,
    /// This port; `None` for a number that no port has.
    Port(Option<PortNum>),
    /// A completion queue, queue pair or shared receive queue; `None` for one that was not made
    /// through this crate.
    Object(Option<ObjectId>),
    /// Not known: an event of a newer kernel.
    Unknown,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        match self.subject {
            EventSubject::Port(Some(port)) => write!(f, " port {port}"),
            EventSubject::Object(Some(id)) => write!(f, " object {}", id.0),
            _ => Ok(()),
        }
    }
}

/// The number of an object made through this crate, never given twice in one context.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(u64);

impl ObjectId {
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// What has happened to one queue pair, completion queue or shared receive queue: a set of event
/// types, so that it stays bounded whatever comes.
pub(crate) struct ObjectEvents {
    id: ObjectId,
    happened: AtomicU32,
    /// What wakes who waits for the object.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl ObjectEvents {
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// Takes the events since the last call: bit n for the event type of number n.
    pub(crate) fn take(&self) -> u32 {
        self.happened.swap(0, Ordering::AcqRel)
    }

    /// Whether there are any; cheap.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.happened.load(Ordering::Relaxed) != 0
    }

    /// Calls this from now on, once set, when something happened to the object or the device failed, on
    /// whichever thread took that in, which holds no lock then.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}

impl fmt::Debug for ObjectEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectEvents").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Where events come from: a trait so that those no device at hand raises can be tested.
pub(crate) trait EventSource: Send + Sync {
    /// See [`ContextHandle::next_event`].
    fn next_event(&self, show: &mut dyn FnMut(RawEvent)) -> Result<bool, Errno>;
}

impl EventSource for ContextHandle {
    fn next_event(&self, show: &mut dyn FnMut(RawEvent)) -> Result<bool, Errno> {
        ContextHandle::next_event(self, show)
    }
}

/// A kept value, and which events may have changed it.
struct Listener {
    concerns: fn(EventType) -> bool,
    /// False when the value has gone.
    announce: Box<dyn Fn() -> bool + Send + Sync>,
}

/// The one reader of a context's events.
pub(crate) struct Events<S = ContextHandle> {
    device: Arc<str>,
    source: Arc<S>,
    state: Mutex<State>,
    /// The device has failed.
    fatal: AtomicBool,
    next_id: AtomicU64,
}

#[derive(Default)]
struct State {
    listeners: Vec<Listener>,
    /// By the address of the C object.
    objects: HashMap<u64, Arc<ObjectEvents>>,
    subscribers: Vec<Weak<Subscriber>>,
    /// Those whose waiters are to be woken once this is unlocked.
    to_wake: Vec<Arc<ObjectEvents>>,
}

/// The most events taken in at once. A source that never runs dry must not hold a lookup for ever.
pub(crate) const MOST_AT_ONCE: usize = 4096;

impl<S: EventSource> Events<S> {
    pub(crate) fn new(device: Arc<str>, source: Arc<S>) -> Events<S> {
        Events {
            device,
            source,
            state: Mutex::default(),
            fatal: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
        }
    }

    /// Events that may have changed a GID table are announced to `kept` from now on.
    pub(crate) fn announce_gids_to<T: Send + Sync + 'static>(&self, kept: &Arc<Kept<T>>) {
        self.listen(EventType::changes_gids, kept);
    }

    /// Events that may have changed a P_Key table are announced to `kept` from now on.
    pub(crate) fn announce_pkeys_to<T: Send + Sync + 'static>(&self, kept: &Arc<Kept<T>>) {
        self.listen(EventType::changes_pkeys, kept);
    }

    fn listen<T: Send + Sync + 'static>(
        &self,
        concerns: fn(EventType) -> bool,
        kept: &Arc<Kept<T>>,
    ) {
        let kept = Arc::downgrade(kept);
        let announce = move || kept.upgrade().map(|kept| kept.announce()).is_some();
        self.state().listeners.push(Listener { concerns, announce: Box::new(announce) });
    }

    /// Takes in the events there are, without waiting, and gives their number; at most
    /// [`MOST_AT_ONCE`].
    pub(crate) fn drain(&self) -> Result<usize> {
        // Held to the end: who waits for it finds everything announced that was taken before.
        let mut state = self.state();
        let mut count = 0;
        let outcome = loop {
            if count == MOST_AT_ONCE {
                // What is still there may be what somebody waits for.
                state.announce(|_| true);
                break Ok(count);
            }
            match self.source.next_event(&mut |raw| self.dispatch(&mut state, raw)) {
                Ok(true) => count += 1,
                Ok(false) => break Ok(count),
                Err(errno) => break Err(errno),
            }
        };
        let to_wake = std::mem::take(&mut state.to_wake);
        drop(state);
        to_wake.iter().for_each(|object| object.wake());
        self.check()?;
        outcome.map_err(|errno| Error::Verb {
            verb: "ibv_get_async_event",
            object: Object::device(&self.device),
            errno,
        })
    }

    /// Whether the device has failed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.fatal.load(Ordering::Acquire) { Err(self.failed()) } else { Ok(()) }
    }

    /// That it has.
    pub(crate) fn failed(&self) -> Error {
        Error::DeviceFatal { device: (*self.device).into() }
    }

    /// One event, not acknowledged yet, to those whom it concerns.
    fn dispatch(&self, state: &mut State, raw: RawEvent) {
        let kind = EventType::from_raw(raw.kind);
        let subject = match raw.kind {
            // CQ, QP, SRQ and WQ events carry a pointer; never read as a port.
            0..=7 | 14..=16 | 19 => {
                let object = state.objects.get(&u64::from_ne_bytes(raw.element));
                if let Some(object) = object {
                    object.happened.fetch_or(1 << raw.kind, Ordering::AcqRel);
                    state.to_wake.push(Arc::clone(object));
                }
                EventSubject::Object(object.map(|object| object.id))
            }
            8 => {
                self.fatal.store(true, Ordering::Release);
                state.to_wake.extend(state.objects.values().cloned());
                EventSubject::Device
            }
            9..=13 | 17 | 18 => {
                let [a, b, c, d, ..] = raw.element;
                let port = u8::try_from(i32::from_ne_bytes([a, b, c, d])).ok();
                EventSubject::Port(port.and_then(PortNum::new))
            }
            _ => EventSubject::Unknown,
        };
        state.announce(|listener| (listener.concerns)(kind));
        let event = Event { kind, subject };
        #[cfg(feature = "tracing")]
        self.tell(&event);
        state.subscribers.retain(|subscriber| match subscriber.upgrade() {
            Some(subscriber) => {
                subscriber.push(event);
                true
            }
            None => false,
        });
    }

    #[cfg(feature = "tracing")]
    fn tell(&self, event: &Event) {
        use crate::trace::event;
        let device = &*self.device;
        match event.kind {
            EventType::DEVICE_FATAL => event!(error, device, %event, "the device has failed"),
            EventType::CQ_ERR
            | EventType::QP_FATAL
            | EventType::QP_REQ_ERR
            | EventType::QP_ACCESS_ERR
            | EventType::PATH_MIG_ERR
            | EventType::PORT_ERR
            | EventType::SRQ_ERR
            | EventType::WQ_FATAL => event!(warn, device, %event, "an asynchronous event"),
            _ => event!(debug, device, %event, "an asynchronous event"),
        }
    }

    /// A queue that gets every event taken in from now on.
    pub(crate) fn subscribe(&self) -> Result<EventQueue> {
        let queue = EventQueue::new()?;
        let mut state = self.state();
        state.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        state.subscribers.push(queue.downgrade());
        Ok(queue)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Announces a change to the listeners concerned, and forgets those whose value has gone.
    fn announce(&mut self, concerned: impl Fn(&Listener) -> bool) {
        self.listeners.retain(|listener| !concerned(listener) || (listener.announce)());
    }
}

impl<S: EventSource> Events<S> {
    /// Makes a C object and notes its events from its first on. `create` gives its address; no event
    /// is taken in meanwhile.
    pub(crate) fn register<T>(
        &self,
        create: impl FnOnce() -> Result<(u64, T)>,
    ) -> Result<(Arc<ObjectEvents>, T)> {
        let mut state = self.state();
        let (address, made) = create()?;
        let id = ObjectId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let object =
            Arc::new(ObjectEvents { id, happened: AtomicU32::new(0), wake: OnceLock::new() });
        state.objects.insert(address, Arc::clone(&object));
        Ok((object, made))
    }

    /// Ends that, after the object was destroyed. Another may have its address by then, which
    /// stays.
    pub(crate) fn unregister(&self, address: u64, object: &ObjectEvents) {
        let mut state = self.state();
        if state.objects.get(&address).is_some_and(|there| there.id == object.id) {
            state.objects.remove(&address);
        }
    }
}

/// A panic elsewhere leaves nothing half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
