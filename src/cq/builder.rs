//! How a completion queue is made.

#![deny(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::owners::{Polled, Shared};
use super::poll::Open;
use super::{CompletionChannel, CompletionQueue, CompletionQueueHandle, no_memory, same_device};
use crate::calls::{self, Calls, Use};
use crate::context::Context;
use crate::error::{Errno, Error, Result};
use crate::sys::CqHandle;
use crate::types::Capability;

/// How a [`CompletionQueue`] is to be. Made by [`CompletionQueue::builder`].
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder<'a> {
    context: &'a Context,
    size: u32,
    channel: Option<&'a CompletionChannel>,
    vector: u32,
    batch: usize,
    calls: Calls,
    timestamps: bool,
}

impl<'a> CompletionQueueBuilder<'a> {
    pub(super) fn new(context: &'a Context, size: u32) -> CompletionQueueBuilder<'a> {
        let (channel, vector, batch) = (None, 0, 16);
        let (calls, timestamps) = (Calls::Classic, false);
        CompletionQueueBuilder { context, size, channel, vector, batch, calls, timestamps }
    }

    /// The channel that tells of its completions; without one, it can be polled and not waited for.
    pub fn channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some(channel);
        self
    }

    /// Which completion vector, and so which interrupt and processor, tells of its completions
    /// (`comp_vector`): below [`completion_vectors`](crate::DeviceLimits::completion_vectors). 0 unless
    /// asked.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// How many completions are taken from the device by one call (`num_entries` of `ibv_poll_cq`): 1 to
    /// 256; 16 unless asked.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Whether completions tell the device's time ([`Completion::timestamp`](crate::Completion::timestamp);
    /// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`). It is polled by the extended calls then, see
    /// [`calls`](CompletionQueueBuilder::calls).
    pub fn timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// By which of libibverbs' calls it is polled. With the extended ones, the index of a datagram's P_Key is told as
    /// 0, because they do not tell it.
    pub fn calls(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn context(&self) -> &'a Context {
        self.context
    }

    /// Makes it (`ibv_create_cq`, `ibv_create_cq_ex`).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for times of a device that tells none; [`Error::NotSupported`] for extended calls that
    /// are known to be wrong, or not there; [`Error::OutOfRange`] for a size of 0 or beyond
    /// [`max_cqe`](crate::DeviceLimits::max_cqe), a vector or batch that cannot be; [`Error::OtherDevice`] for a channel
    /// of another; [`Error::NoMemory`]; [`Error::Verb`] for what else the device answers.
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn build(self) -> Result<CompletionQueue> {
        let CompletionQueueBuilder { context, size, channel, vector, batch, .. } = self;
        let limits = context.limits();
        let within = |what, asked: u64, least, most: u64| match asked {
            asked if asked < least || asked > most => {
                Err(Error::OutOfRange { what, asked, least, most })
            }
            _ => Ok(()),
        };
        within("the size of a completion queue", size.into(), 1, limits.max_cqe.into())?;
        // A device that tells none has one.
        let vectors = limits.completion_vectors.max(1);
        within("a completion vector", vector.into(), 0, u64::from(vectors) - 1)?;
        within("the batch of a completion queue", batch as u64, 1, 256)?;
        if let Some(channel) = channel {
            same_device(context, channel.context(), "a completion channel")?;
        }
        let extended = self.extended()?;
        let make = || {
            let handle = Arc::clone(context.handle());
            let channel = channel.map(|channel| Arc::clone(channel.handle()));
            let (verb, made) = if extended {
                let timed = self.timestamps;
                let made = CqHandle::create_extended(handle, size, channel, vector, timed);
                ("ibv_create_cq_ex", made)
            } else {
                ("ibv_create_cq", CqHandle::create(handle, size, channel, vector))
            };
            let cq = made.map_err(|errno| match errno {
                Errno::EOPNOTSUPP | Errno::ENOSYS if extended => {
                    let device = context.device().name().into();
                    Error::NotSupported { device, what: "extended calls to poll by" }
                }
                _ => no_memory(context, "a completion queue", u64::from(size) * 64, verb, errno),
            })?;
            Ok((cq.key() as u64, cq))
        };
        let (events, handle) = context.events().register(make)?;
        let shared = Shared::new(context.clone(), handle, events, channel)?;
        // Zero, and not uninitialised: a driver writes of an entry what means something, and the whole of
        // it is copied.
        let entries = (0..batch).map(|_| MaybeUninit::zeroed()).collect();
        let times = vec![0; if self.timestamps { batch } else { 0 }].into_boxed_slice();
        let shared = Arc::new(shared);
        Ok(CompletionQueue {
            handle: CompletionQueueHandle { shared: Arc::clone(&shared) },
            device: Arc::clone(&shared.handle),
            shared,
            entries,
            count: 0,
            polled: Polled::default(),
            open: Open::new(times),
            failed: None,
            strays: 0,
        })
    }

    /// Whether it is made and polled by the extended calls.
    fn extended(&self) -> Result<bool> {
        let asked = if self.timestamps {
            self.context.require(Capability::CompletionTimestamps)?;
            Calls::Extended
        } else {
            self.calls
        };
        calls::extended(self.context, asked, Use::Polling)
    }
}
