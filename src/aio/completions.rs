//! Completions as they come.

use std::fmt;

use tokio::task::coop::consume_budget;

use crate::context::Context;
use crate::cq::{
    CompletionChannel, CompletionQueue, CompletionQueueBuilder, CompletionQueueHandle, Drain,
    Notify,
};
use crate::error::Result;

/// A [`CompletionQueue`] with its channel, whose completions a task waits for.
///
/// Queue pairs are made on it as on a completion queue. Many can be on one channel, each with a task of its
/// own: only those are woken that have something.
///
/// ```no_run
/// use rdma_verbs::{CompletionChannel, CompletionQueue, Context, ProtectionDomain, QueuePair, Result, aio};
///
/// fn two(context: &Context, pd: &ProtectionDomain) -> Result<()> {
///     let channel = CompletionChannel::new(context)?;
///     let make = || CompletionQueue::builder(context, 128).channel(&channel);
///     let one = aio::Completions::build(make())?;
///     let other = aio::Completions::build(make())?;
///     let queue_pair = QueuePair::rc(pd, &one, &other).build()?;
/// #   drop(queue_pair);
///     Ok(())
/// }
/// ```
pub struct Completions {
    queue: CompletionQueue,
    notify: Notify,
}

impl Completions {
    /// With room for at least `size` work requests in flight, and a channel of its own.
    ///
    /// # Errors
    ///
    /// As [`CompletionChannel::new`] and [`CompletionQueueBuilder::build`].
    #[doc(alias = "ibv_create_cq")]
    pub fn new(context: &Context, size: u32) -> Result<Completions> {
        Completions::build(CompletionQueue::builder(context, size))
    }

    /// The same with choices; with a channel of its own unless one was chosen.
    ///
    /// # Errors
    ///
    /// As [`new`](Completions::new).
    pub fn build(builder: CompletionQueueBuilder<'_>) -> Result<Completions> {
        let queue = match builder.has_channel() {
            true => builder.build()?,
            false => {
                let channel = CompletionChannel::new(builder.context())?;
                builder.channel(&channel).build()?
            }
        };
        Ok(Completions { queue, notify: Notify::Any })
    }

    /// Which completions it is woken for: [any](Notify::Any) unless asked.
    pub fn notify(mut self, notify: Notify) -> Completions {
        self.notify = notify;
        self
    }

    /// The completions that there are, a [batch](CompletionQueueBuilder::batch) at most, or those that come
    /// next. A batch may turn out to have none to see.
    ///
    /// Arms, drains, and waits, in that order: no completion is slept through. While it waits,
    /// asynchronous events of the device are taken in, for whoever waits for those too.
    ///
    /// Cancel safe: what has come stays in the queue until a batch is looked at, and what a batch is not
    /// asked for is given by the next.
    ///
    /// # Errors
    ///
    /// As [`CompletionChannel::wait`]: [`Error::CompletionQueueFailed`](crate::Error::CompletionQueueFailed),
    /// [`Error::DeviceFatal`](crate::Error::DeviceFatal), each time, but while there is something to give.
    /// What is in flight then comes when its queue pair was dropped.
    #[doc(alias = "ibv_req_notify_cq")]
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_poll_cq")]
    pub async fn next_batch(&mut self) -> Result<Drain<'_>> {
        consume_budget().await;
        self.queue.until_any(self.notify).await?;
        self.queue.poll()
    }

    /// The completions that there are, without waiting; see [`CompletionQueue::poll`].
    ///
    /// # Errors
    ///
    /// As [`CompletionQueue::poll`].
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self) -> Result<Drain<'_>> {
        self.queue.poll()
    }

    /// The completion queue.
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// The same, to be polled, or waited for by a thread.
    pub fn queue_mut(&mut self) -> &mut CompletionQueue {
        &mut self.queue
    }

    /// The completion queue, which is waited for by threads again.
    pub fn into_inner(self) -> CompletionQueue {
        self.queue
    }
}

impl AsRef<CompletionQueueHandle> for Completions {
    fn as_ref(&self) -> &CompletionQueueHandle {
        self.queue.as_ref()
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions")
            .field("queue", &self.queue)
            .field("notify", &self.notify)
            .finish_non_exhaustive()
    }
}
