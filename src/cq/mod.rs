//! Completion queues.
//!
//! * this file: [`CompletionQueue`], how it is polled; `builder`: how it is made.
//! * `owners`: the queues that complete on it, each with its table of work requests in flight, and the
//!   room they have; `srqs`: the shared receive queues among them.
//! * `fill`: taking from the device. `poll`: [`Drain`], what a poll gives.
//! * `completion`: [`Completion`], and the memory that it gives back.
//! * `channel`: [`CompletionChannel`], and waiting. `tasks`: waiting as a task.

mod builder;
mod channel;
mod completion;
mod fill;
mod owners;
mod poll;
mod srqs;
#[cfg(feature = "tokio")]
mod tasks;

use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::calls::Calls;
use crate::context::Context;
use crate::error::{Errno, Error, Object, Result};
use crate::sys::CqHandle;
use crate::sys::abi::ibv_wc;

pub use builder::CompletionQueueBuilder;
pub use channel::{CompletionChannel, Notify};
pub use completion::Completion;
pub use poll::Drain;

pub(crate) use owners::Shared;

use owners::Polled;
use poll::Open;

/// A completion queue (`struct ibv_cq`).
///
/// Every work request that was posted on one of its queue pairs gives exactly one completion, in time:
/// those too for which the device makes none (unsignaled sends, when a later one completes; what was
/// still posted when a queue pair was destroyed). With it comes back the memory that was posted.
///
/// It is polled by one thread at a time, and not cloned; it can be sent to another thread. Queue pairs hold
/// what they need of it: dropping it first is right, and then what they complete is dropped.
///
/// It cannot overrun: queue pairs are made on it only as far as it has room for all that they can have in
/// flight.
pub struct CompletionQueue {
    shared: Arc<Shared>,
    handle: CompletionQueueHandle,
    /// That of `shared`, at hand.
    device: Arc<CqHandle>,
    /// What the last call of the device gave: so many. All fields are initialised.
    entries: Box<[MaybeUninit<ibv_wc>]>,
    count: usize,
    polled: Polled,
    open: Open,
    failed: Option<Errno>,
    strays: u64,
}

/// What queue pairs are made on a [`CompletionQueue`] by while it is somebody else's to poll. Cheap to clone.
///
/// It keeps nothing going: when the completion queue was dropped, what its queue pairs complete is dropped, and
/// no more can be made on it ([`Error::CompletionQueueGone`]).
#[derive(Clone)]
pub struct CompletionQueueHandle {
    shared: Arc<Shared>,
}

impl CompletionQueueHandle {
    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl AsRef<CompletionQueueHandle> for CompletionQueueHandle {
    fn as_ref(&self) -> &CompletionQueueHandle {
        self
    }
}

impl AsRef<CompletionQueueHandle> for CompletionQueue {
    fn as_ref(&self) -> &CompletionQueueHandle {
        &self.handle
    }
}

impl fmt::Debug for CompletionQueueHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.context().device().name();
        f.debug_struct("CompletionQueueHandle").field("device", &device).finish_non_exhaustive()
    }
}

/// The error for a queue that the kernel has no memory for, or another one.
pub(crate) fn no_memory(
    context: &Context,
    what: &'static str,
    asked: u64,
    verb: &'static str,
    errno: Errno,
) -> Error {
    let device: Box<str> = context.device().name().into();
    if errno == Errno::ENOMEM {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        return Error::NoMemory { device, what, asked, limit };
    }
    Error::Verb { verb, object: Object::device(&device), errno }
}

/// Whether both are of one open device.
pub(crate) fn same_device(ours: &Context, theirs: &Context, what: &'static str) -> Result<()> {
    if Arc::ptr_eq(ours.handle(), theirs.handle()) {
        return Ok(());
    }
    let name = |context: &Context| context.device().name().into();
    Err(Error::OtherDevice { what, ours: name(ours), theirs: name(theirs) })
}

impl CompletionQueue {
    /// A completion queue with room for at least `size` work requests in flight, without a channel.
    ///
    /// # Errors
    ///
    /// As [`CompletionQueueBuilder::build`].
    #[doc(alias = "ibv_create_cq")]
    pub fn new(context: &Context, size: u32) -> Result<CompletionQueue> {
        CompletionQueue::builder(context, size).build()
    }

    /// The same with choices.
    pub fn builder(context: &Context, size: u32) -> CompletionQueueBuilder<'_> {
        CompletionQueueBuilder::new(context, size)
    }

    /// The completions that there are, without waiting (`ibv_poll_cq`): at most a batch of them. What is
    /// not looked at now is given by the next call.
    ///
    /// # Errors
    ///
    /// [`Error::CompletionQueueFailed`], when polling it failed, or the event `CQ_ERR` was taken in (by
    /// [`Context::process_events`], or a wait); from then on always, but while there is something to give:
    /// nothing can be learnt from the device any more. What is in flight comes back by a poll after its queue
    /// pair was dropped.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Drain<'_>> {
        if *self.open.what.get_mut() != poll::CLOSED {
            self.finish_forgotten();
        }
        if self.open.next == self.count {
            self.fill()?;
        }
        Ok(Drain::new(self))
    }

    /// Whether there is nothing to look at without asking the device again.
    #[inline]
    fn is_drained(&self) -> bool {
        self.open.next == self.count && !self.polled.is_ending()
    }

    /// Asks for an event on the channel when the next completion comes (`ibv_req_notify_cq`), and then
    /// gives those that are there: what came before is told of by nobody else. If there are none, wait
    /// until the channel's descriptor is readable, call
    /// [`process_events`](CompletionChannel::process_events), and arm again. [`wait`](CompletionQueue::wait)
    /// does all of that.
    ///
    /// # Errors
    ///
    /// [`Error::NoChannel`]; as [`poll`](CompletionQueue::poll); [`Error::Verb`].
    #[doc(alias = "ibv_req_notify_cq")]
    #[inline]
    pub fn arm(&mut self, notify: Notify) -> Result<Drain<'_>> {
        self.request(notify)?;
        self.poll()
    }

    /// Asks for an event on the channel when the next completion comes (`ibv_req_notify_cq`), and nothing else:
    /// for programs with a loop of their own. Completions that are there already raise no event: poll after it,
    /// and wait only if there are none. [`arm`](CompletionQueue::arm) and [`wait`](CompletionQueue::wait) do
    /// this in the right order.
    ///
    /// # Errors
    ///
    /// [`Error::NoChannel`]; [`Error::Verb`] for what the device answers.
    #[doc(alias = "ibv_req_notify_cq")]
    #[inline]
    pub fn request_notify(&mut self, notify: Notify) -> Result<()> {
        self.request(notify)
    }

    /// As little as the call itself: what can go wrong is told elsewhere.
    #[inline(always)]
    fn request(&self, notify: Notify) -> Result<()> {
        match self.device.req_notify(notify == Notify::Solicited) {
            Ok(()) => Ok(()),
            Err(errno) => Err(self.request_failed(errno)),
        }
    }

    #[cold]
    #[inline(never)]
    fn request_failed(&self, errno: Errno) -> Error {
        if !self.device.has_channel() {
            return Error::NoChannel;
        }
        let object = Object::device(self.shared.context.device().name());
        Error::Verb { verb: "ibv_req_notify_cq", object, errno }
    }

    /// C's completion queue (`struct ibv_cq *`), for calls that this crate lacks: valid while this lives. Opaque,
    /// because no declaration of C's is part of this crate's interface.
    ///
    /// To use it is `unsafe`, and up to whoever does: it must not be destroyed or resized, nor polled while another
    /// thread polls it here, and completions that are polled from it are lost to this crate, so that the memory of
    /// their work requests comes back no sooner than their queue pair is destroyed.
    #[doc(alias = "ibv_cq")]
    pub fn as_raw(&self) -> NonNull<c_void> {
        self.device.as_raw()
    }

    /// The completions that there are, or those that come within the time; none when none came, and `None`
    /// waits for ever. It may give none before the time is over: call it again.
    ///
    /// # Errors
    ///
    /// As [`CompletionChannel::wait`].
    pub fn wait(
        &mut self,
        notify: Notify,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Drain<'_>> {
        let channel = self.shared.channel.clone().ok_or(Error::NoChannel)?;
        channel.wait(&mut [self], notify, timeout.into())?;
        Ok(Drain::new(self))
    }

    /// What another thread makes queue pairs on it by.
    pub fn handle(&self) -> CompletionQueueHandle {
        self.handle.clone()
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// By which of libibverbs' calls it is polled.
    pub fn calls(&self) -> Calls {
        if self.device.is_extended() { Calls::Extended } else { Calls::Classic }
    }

    /// How many work requests it has room for; at least what was asked.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// How much of that no queue pair has taken. The room of a queue pair that was dropped is there again
    /// when nothing of it can be left here: after a poll that took all there was, or several of a queue that is
    /// never empty, and what they gave was looked at.
    pub fn room(&self) -> u32 {
        self.shared.room()
    }

    /// How many completions named no work request in flight: of a driver or device that is not sound,
    /// since those of queue pairs that are gone are told apart. They were dropped.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Whether queue pairs were destroyed whose completions, or what is left of them, it may still have.
    pub(crate) fn has_dead(&mut self) -> bool {
        if self.polled.is_behind(&self.shared) {
            self.polled.catch_up(&self.shared);
        }
        self.polled.has_dead()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.finish_forgotten();
        self.polled.give_up(&self.shared);
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", &self.shared.context.device().name())
            .field("size", &self.size())
            .field("room", &self.room())
            .finish_non_exhaustive()
    }
}
