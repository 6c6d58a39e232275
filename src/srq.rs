//! Shared receive queues: one supply of receives for many queue pairs.
//!
//! * this file: [`SharedReceiveQueue`], and how it is made.
//! * `end`: how it is given up, and [`Left`].

#![allow(unsafe_code)]

mod end;

use std::fmt;
use std::sync::Arc;

use crate::context::Context;
use crate::cq::no_memory;
use crate::error::{Errno, Error, Object, Queue, QueueOwner, Refusal, Result};
use crate::event::{EventType, ObjectId};
use crate::mem::{MAX_PIECES, PagePool, Scatter};
use crate::pd::ProtectionDomain;
use crate::qp::{
    PostError, Receive, Receives, RecvBatch, Refill, SharedCore, SharedReceiveQueueHandle, refill,
};
use crate::sys::SrqHandle;
use crate::sys::abi::{ibv_recv_wr, ibv_srq_attr};
use crate::types::Capability;
use crate::wq::{NUMBERS_IN_ALL, Number, Posting, Ring, SharedPoster};

pub use end::{FinishError, Left, LeftReceive};

/// A shared receive queue (`struct ibv_srq`): receives that any of its queue pairs takes, posted by one thread
/// at a time.
///
/// Queue pairs are made on it by
/// [`shared_receive_queue`](crate::QueuePairBuilder::shared_receive_queue), and may complete on any number of
/// completion queues, each polled by a thread of its own. A receive completes on the completion queue of the
/// queue pair that took it, whose number the completion has. On each of these completion queues room is
/// taken for all its receives, once.
///
/// # How it ends
///
/// It is destroyed when it was dropped, or [finished](SharedReceiveQueue::finish), and its last queue pair is
/// gone: any order is right. Receives that no message took are then given back, by `finish`, or go to their
/// pools. Receives are not flushed when a queue pair fails, since the others may take them; but a queue pair
/// that dies in the middle of a message may take one with it that never completes. Such stay in flight until
/// the end; [`overtaken`](SharedReceiveQueue::overtaken) tells how many there may be.
pub struct SharedReceiveQueue {
    core: Arc<SharedCore>,
    handle: SharedReceiveQueueHandle,
    poster: SharedPoster,
}

/// The capacities of a shared receive queue (`struct ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedReceiveQueueLimits {
    /// Receives in flight (`max_wr`).
    pub depth: u32,
    /// Scatter entries of a receive (`max_sge`).
    pub max_sge: u32,
    /// Below how many receives not yet taken the device tells (`srq_limit`); 0 when it does not.
    pub limit: u32,
}

impl SharedReceiveQueueLimits {
    fn from_raw(attr: &ibv_srq_attr) -> SharedReceiveQueueLimits {
        SharedReceiveQueueLimits {
            depth: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
        }
    }
}

/// How a [`SharedReceiveQueue`] is to be. Made by [`SharedReceiveQueue::builder`].
#[derive(Clone, Debug)]
pub struct SharedReceiveQueueBuilder<'a> {
    pd: &'a ProtectionDomain,
    depth: u32,
    max_sge: u32,
}

/// The deepest there can be: numbers of receives have so many bits for their place.
const DEEPEST: u32 = 1 << 20;

impl SharedReceiveQueueBuilder<'_> {
    /// Scatter entries of a receive: 1 to [`max_srq_sge`](crate::DeviceLimits::max_srq_sge), and 32; 1 unless
    /// asked.
    pub fn max_sge(mut self, entries: u32) -> Self {
        self.max_sge = entries;
        self
    }

    /// Makes it (`ibv_create_srq`).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the device has none; [`Error::NotSupported`] when 32768 are there already in
    /// this process;
    /// [`Error::OutOfRange`] for a depth that is 0 or beyond
    /// [`max_srq_wr`](crate::DeviceLimits::max_srq_wr) and 2^20, and for entries beyond their limit;
    /// [`Error::NoMemory`]; [`Error::Verb`] for what else the device answers.
    #[doc(alias = "ibv_create_srq")]
    pub fn build(self) -> Result<SharedReceiveQueue> {
        let SharedReceiveQueueBuilder { pd, depth, max_sge } = self;
        let context = pd.context();
        let limits = context.limits();
        let device = || context.device().name().into();
        context.require(Capability::SharedReceiveQueues)?;
        // Some providers tell no limit.
        let most = |limit: u32, ours: u32| if limit == 0 { ours } else { limit.min(ours) };
        for (what, asked, most) in [
            (
                "max_wr, the depth of the shared receive queue,",
                depth,
                most(limits.max_srq_wr, DEEPEST),
            ),
            (
                "max_sge, the entries of a receive,",
                max_sge,
                most(limits.max_srq_sge, MAX_PIECES as u32),
            ),
        ] {
            if asked == 0 || asked > most {
                let (asked, most) = (asked.into(), most.into());
                return Err(Error::OutOfRange { what, asked, least: 1, most });
            }
        }
        const _: () = assert!(NUMBERS_IN_ALL == 32768);
        let number = Number::take().ok_or_else(|| {
            let what = "more numbers for shared receive queues: 32768 are there";
            Error::NotSupported { device: device(), what }
        })?;
        let table = Arc::new(Ring::shared(number, depth, max_sge));
        let caps = ibv_srq_attr { max_wr: depth, max_sge, srq_limit: 0 };
        let make = || {
            let mut granted = caps;
            let made = SrqHandle::create(Arc::clone(pd.handle()), &mut granted);
            let handle = made.map_err(|errno| {
                let bytes = u64::from(depth) * (16 * u64::from(max_sge) + 32);
                no_memory(context, "a shared receive queue", bytes, "ibv_create_srq", errno)
            })?;
            Ok((handle.key() as u64, (handle, granted)))
        };
        let (events, (handle, granted)) = context.events().register(make)?;
        let poster = SharedPoster::new(Arc::clone(&table));
        let core = Arc::new(SharedCore::new(handle, pd.clone(), (caps, granted), table, events));
        let handle = SharedReceiveQueueHandle::new(&core);
        Ok(SharedReceiveQueue { core, handle, poster })
    }
}

impl SharedReceiveQueue {
    /// A shared receive queue of this protection domain, for `depth` receives in flight: 1 to
    /// [`max_srq_wr`](crate::DeviceLimits::max_srq_wr), and 2^20.
    pub fn builder(pd: &ProtectionDomain, depth: u32) -> SharedReceiveQueueBuilder<'_> {
        SharedReceiveQueueBuilder { pd, depth, max_sge: 1 }
    }

    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    ///
    /// [`PostError`], with the receive: a queue that is full ([`Refusal::Full`]) among others. The queue goes
    /// on, unless the refusal says otherwise.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post<M: Scatter + fmt::Debug>(
        &mut self,
        receive: Receive<M>,
    ) -> Result<(), PostError<Receive<M>>> {
        self.post_one(receive)
    }

    /// A batch of at most `N` receives of one scatter entry.
    #[inline]
    pub fn batch<const N: usize>(&mut self) -> RecvBatch<'_, N, N, SharedReceiveQueue> {
        RecvBatch::new(self)
    }

    /// A batch of at most `N` receives, of at most `E` scatter entries in all.
    #[inline]
    pub fn batch_of<const N: usize, const E: usize>(
        &mut self,
    ) -> RecvBatch<'_, N, E, SharedReceiveQueue> {
        RecvBatch::new(self)
    }

    /// Posts receives of `per_receive` fragments each until the queue is full, in chains of up to 32 with one
    /// call each (`ibv_post_srq_recv`); all else as [`RecvQueue::refill`](crate::RecvQueue::refill).
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn refill(&mut self, pages: &mut PagePool, per_receive: u32, wr_id: u64) -> Refill {
        refill(self, pages, per_receive, wr_id)
    }

    /// What another thread makes queue pairs on it by.
    pub fn handle(&self) -> SharedReceiveQueueHandle {
        self.handle.clone()
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        self.core.context()
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.core.pd
    }

    /// How many receives can be in flight: as many as were asked for.
    pub fn depth(&self) -> u32 {
        self.poster.depth()
    }

    /// What may be posted: as was asked for; no limit.
    pub fn limits(&self) -> SharedReceiveQueueLimits {
        SharedReceiveQueueLimits::from_raw(&self.core.caps)
    }

    /// What the device granted, which may be more.
    pub fn granted(&self) -> SharedReceiveQueueLimits {
        SharedReceiveQueueLimits::from_raw(&self.core.granted)
    }

    /// The same as the device has it now, with the limit that is armed (`ibv_query_srq`): one system call.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SharedReceiveQueueLimits> {
        let attr = self.core.srq().query().map_err(|errno| self.error("ibv_query_srq", errno))?;
        Ok(SharedReceiveQueueLimits::from_raw(&attr))
    }

    fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::Verb { verb, object: Object::device(self.context().device().name()), errno }
    }

    /// Asks to be told, once, when fewer than so many receives are left that no queue pair has taken
    /// (`ibv_modify_srq`, `IBV_SRQ_LIMIT`): 1 to the depth; 0 asks no more. The device tells by the event
    /// [`EventType::SRQ_LIMIT_REACHED`], to subscribers and to [`limit_reached`](Self::limit_reached), and is
    /// to be asked anew then, after more were posted: it looks when it takes a receive, and may not tell of
    /// what was below the limit before.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; [`Error::Verb`].
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        if limit > self.depth() {
            let what = "srq_limit, the receives that are left,";
            let (asked, most) = (limit.into(), self.depth().into());
            return Err(Error::OutOfRange { what, asked, least: 0, most });
        }
        self.core.srq().set_limit(limit).map_err(|errno| self.error("ibv_modify_srq", errno))
    }

    /// Whether the device has told of the limit since the last call, as far as asynchronous events were taken
    /// in ([`Context::process_events`]).
    pub fn limit_reached(&self) -> bool {
        self.core.take_events(1 << EventType::SRQ_LIMIT_REACHED.raw()) != 0
    }

    /// What has happened to it since the last call, as far as asynchronous events were taken in
    /// ([`Context::process_events`]), each once; of [`limit_reached`](Self::limit_reached) too, unless that has
    /// told it. After [`EventType::SRQ_ERR`] nothing can be posted any more ([`Refusal::Failed`]).
    pub fn take_events(&self) -> impl Iterator<Item = EventType> + use<> {
        let happened = self.core.take_events(u32::MAX);
        (0..32).filter(move |bit| happened >> bit & 1 != 0).map(EventType::from_raw)
    }

    /// What events name it by.
    pub fn id(&self) -> ObjectId {
        self.core.events.id()
    }

    /// How many receives are in flight now: posted, and their completions not let go of. Those that a queue
    /// pair took with it when it died are among them.
    pub fn in_flight(&mut self) -> u32 {
        self.poster.in_flight()
    }

    /// How many receives are in flight that were posted before one that has completed: some queue pair receives
    /// into them now, or took them with it when it died, or their completion has not been polled yet. What
    /// stays here while nothing is received comes back by [`finish`](Self::finish) only.
    ///
    /// It is told by the order in which receives were posted, which is the order in which devices take them.
    /// It looks at all of them.
    pub fn overtaken(&self) -> u32 {
        self.poster.overtaken()
    }
}

impl Receives for SharedReceiveQueue {
    type Poster = SharedPoster;

    const VERB: &'static str = "ibv_post_srq_recv";

    #[inline]
    fn poster(&mut self) -> &mut SharedPoster {
        &mut self.poster
    }

    fn owner(&self) -> QueueOwner {
        self.core.name()
    }

    #[inline]
    fn check_state(&self) -> Result<(), Refusal> {
        self.core.check()
    }

    #[cold]
    fn full(&self) -> Refusal {
        Refusal::Full { queue: Queue::Receive, on: self.owner(), depth: self.depth() }
    }

    #[inline]
    fn caps(&self) -> (u32, usize) {
        (self.core.caps.max_sge, self.core.pd.id())
    }

    #[inline]
    unsafe fn post_raw(
        &self,
        chain: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> Result<(), Errno> {
        // SAFETY: by this function's own contract.
        unsafe { self.core.srq().post_recv(chain, bad) }
    }

    fn refused(&self, errno: Errno, taken: bool) -> Refusal {
        self.core.refused(Self::VERB, errno, taken)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // Nobody posts any more.
        self.core.close(true);
    }
}

impl AsRef<SharedReceiveQueueHandle> for SharedReceiveQueue {
    fn as_ref(&self) -> &SharedReceiveQueueHandle {
        &self.handle
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("device", &self.context().device().name())
            .field("id", &self.id())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
