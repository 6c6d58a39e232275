//! How a queue pair is to be.

use std::marker::PhantomData;
use std::sync::Arc;

use super::core::{Core, Parts};
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::shared::SharedReceiveQueueHandle;
use super::transport::{Rc, Transport};
use super::{QueuePair, Reset};
use crate::calls::{self, Calls, Use};
use crate::context::Context;
use crate::cq::{CompletionQueueHandle, no_memory, same_device};
use crate::error::{Errno, Error, Queue, Result};
use crate::mem::MAX_PIECES;
use crate::pd::ProtectionDomain;
use crate::sys::QpHandle;
use crate::sys::abi::ibv_qp_cap;
use crate::sys::qp::{SendOps, send_ops};
use crate::types::{Capability, Psn};
use crate::wq::{Poster, Ring};

/// The capacities of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuePairLimits {
    /// Work requests in flight on the send queue (`max_send_wr`).
    pub send_depth: u32,
    /// Work requests in flight on the receive queue (`max_recv_wr`).
    pub recv_depth: u32,
    /// Scatter/gather entries of a request of the send queue (`max_send_sge`).
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive (`max_recv_sge`).
    pub max_recv_sge: u32,
    /// Bytes that can be sent inline (`max_inline_data`).
    pub max_inline: u32,
}

impl QueuePairLimits {
    pub(super) fn from_raw(cap: &ibv_qp_cap) -> QueuePairLimits {
        QueuePairLimits {
            send_depth: cap.max_send_wr,
            recv_depth: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline: cap.max_inline_data,
        }
    }

    fn raw(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.send_depth,
            max_recv_wr: self.recv_depth,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline,
        }
    }
}

/// How a [`QueuePair`] is to be. Made by [`QueuePair::rc`] and its like.
#[derive(Clone, Debug)]
pub struct QueuePairBuilder<'a, T = Rc> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueueHandle,
    recv_cq: &'a CompletionQueueHandle,
    shared: Option<&'a SharedReceiveQueueHandle>,
    asked: QueuePairLimits,
    signal_all: bool,
    calls: Calls,
    transport: PhantomData<fn() -> T>,
}

impl<'a, T: Transport> QueuePairBuilder<'a, T> {
    pub(super) fn new(
        pd: &'a ProtectionDomain,
        send_cq: &'a CompletionQueueHandle,
        recv_cq: &'a CompletionQueueHandle,
    ) -> QueuePairBuilder<'a, T> {
        let asked = QueuePairLimits {
            send_depth: 64,
            recv_depth: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let (shared, signal_all, calls, transport) = (None, false, Calls::Classic, PhantomData);
        QueuePairBuilder { pd, send_cq, recv_cq, shared, asked, signal_all, calls, transport }
    }

    /// Work requests in flight on the send queue: 1 to [`max_qp_wr`](crate::DeviceLimits::max_qp_wr); 64
    /// unless asked.
    pub fn send_depth(mut self, depth: u32) -> Self {
        self.asked.send_depth = depth;
        self
    }

    /// Work requests in flight on the receive queue: 1 to
    /// [`max_qp_wr`](crate::DeviceLimits::max_qp_wr); 64 unless asked.
    pub fn recv_depth(mut self, depth: u32) -> Self {
        self.asked.recv_depth = depth;
        self
    }

    /// Receives from this shared receive queue, of the same protection domain, as others do: a
    /// [`SharedReceiveQueue`](crate::SharedReceiveQueue), or the
    /// [handle](crate::SharedReceiveQueue::handle) of one that another thread posts on. The queue pair has no
    /// receive queue then: [`recv_depth`](Self::recv_depth) and [`max_recv_sge`](Self::max_recv_sge) are not
    /// used, and what is posted on its [`RecvQueue`] is refused.
    #[doc(alias = "srq")]
    pub fn shared_receive_queue(mut self, srq: &'a impl AsRef<SharedReceiveQueueHandle>) -> Self {
        self.shared = Some(srq.as_ref());
        self
    }

    /// Scatter/gather entries of a request of the send queue: 1 to
    /// [`max_sge`](crate::DeviceLimits::max_sge), and 32; 1 unless asked.
    pub fn max_send_sge(mut self, entries: u32) -> Self {
        self.asked.max_send_sge = entries;
        self
    }

    /// Scatter/gather entries of a receive: 1 to [`max_sge`](crate::DeviceLimits::max_sge), and 32; 1 unless
    /// asked.
    pub fn max_recv_sge(mut self, entries: u32) -> Self {
        self.asked.max_recv_sge = entries;
        self
    }

    /// Bytes that can be sent inline; 0 unless asked. What a device can do it tells nowhere: it grants as
    /// many, or more, or refuses ([`QueuePair::granted`]).
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.asked.max_inline = bytes;
        self
    }

    /// Whether each request of the send queue asks for a completion of its own; if not, see
    /// [`SendQueue`].
    pub fn signal_all(mut self, signal_all: bool) -> Self {
        self.signal_all = signal_all;
        self
    }

    /// By which of libibverbs' calls sends are posted. Receives always are by `ibv_post_recv`, and with the extended
    /// calls those requests by `ibv_post_send` that the provider does not take there (binds and local invalidates, of
    /// some).
    ///
    /// A failure of `ibv_wr_complete` does not tell whether anything was taken, as one of `ibv_post_send` does. Of
    /// providers that are known to take nothing then (mlx5, efa, hns) the memory comes back as ever; of others it is
    /// [`Refusal::Unsure`](crate::Refusal::Unsure), and the queue takes no more.
    pub fn calls(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    /// Makes it (`ibv_create_qp`, `ibv_create_qp_ex`).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for what is 0 or beyond the device's limit, with the limit;
    /// [`Error::CompletionQueueFull`]; [`Error::OtherDevice`] for completion queues of another device than
    /// the protection domain, and for a shared receive queue of another, or of another protection domain;
    /// [`Error::SharedReceiveQueueGone`]; [`Error::InlineNotGranted`]; [`Error::NotSupported`] for extended calls that
    /// are known to be wrong, or not there; [`Error::NoMemory`]; [`Error::Verb`] for what else the device answers.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn build(self) -> Result<QueuePair<Reset, T>> {
        let QueuePairBuilder { pd, send_cq, recv_cq, shared, mut asked, signal_all, .. } = self;
        let context = pd.context();
        same_device(context, send_cq.context(), "the send completion queue")?;
        same_device(context, recv_cq.context(), "the receive completion queue")?;
        if shared.is_some() {
            (asked.recv_depth, asked.max_recv_sge) = (0, 0);
        }
        self.check_limits()?;
        let send_ops = self.send_ops()?;
        // Held from here on: it is not given up meanwhile.
        let shared = shared.map(SharedReceiveQueueHandle::upgrade).transpose()?;
        if let Some(shared) = &shared {
            same_device(context, shared.context(), "the shared receive queue")?;
            if shared.pd != *pd {
                // The one device looks for its receives' memory in this domain, the other in that.
                let what = "the shared receive queue";
                let (ours, theirs) = ("this protection domain".into(), "another one".into());
                return Err(Error::OtherDevice { what, ours, theirs });
            }
        }
        let (send_cq, recv_cq) = (Arc::clone(send_cq.shared()), Arc::clone(recv_cq.shared()));
        // A datagram's address handle takes a place beside its memory.
        let pieces = asked.max_send_sge + u32::from(T::DATAGRAM);
        let send_ring = send_cq.enter(Queue::Send, asked.send_depth, pieces)?;
        let entered = match &shared {
            // Its own has room for nothing, and no place.
            Some(shared) => {
                let entered = recv_cq.enter_shared(&shared.table);
                entered.map(|()| Arc::new(Ring::new(0, 0, 0, 0, 0)))
            }
            None => recv_cq.enter(Queue::Receive, asked.recv_depth, asked.max_recv_sge),
        };
        let recv_ring = entered.inspect_err(|_| send_cq.leave_unused(&send_ring))?;
        let create = |max_inline_data| {
            let mut granted = ibv_qp_cap { max_inline_data, ..asked.raw() };
            let (pd, cqs) = (pd.handle().clone(), (&send_cq.handle, &recv_cq.handle));
            let srq = shared.as_ref().map(|shared| shared.srq());
            let (send_cq, recv_cq) = (cqs.0.clone(), cqs.1.clone());
            let made = QpHandle::create(pd, send_cq, recv_cq, srq, T::TYPE, send_ops, &mut granted);
            made.map(|handle| (handle, granted))
        };
        let make = || match create(asked.max_inline) {
            Ok((handle, granted)) => Ok((handle.key() as u64, (handle, granted))),
            // No limit is told: whether it is this, only trying tells.
            Err(Errno::EINVAL | Errno::ENOMEM)
                if asked.max_inline > 0 && works(context, &create) =>
            {
                let device = context.device().name().into();
                Err(Error::InlineNotGranted { device, asked: asked.max_inline })
            }
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) if send_ops.is_some() => {
                let device = context.device().name().into();
                Err(Error::NotSupported { device, what: "extended calls to post by" })
            }
            Err(errno) => {
                let bytes = (u64::from(asked.send_depth) + u64::from(asked.recv_depth)) * 128;
                let verb = if send_ops.is_some() { "ibv_create_qp_ex" } else { "ibv_create_qp" };
                Err(no_memory(context, "a queue pair", bytes, verb, errno))
            }
        };
        let made = context.events().register(make).inspect_err(|_| {
            send_cq.leave_unused(&send_ring);
            match &shared {
                Some(shared) => recv_cq.leave_shared(&shared.table, false),
                None => recv_cq.leave_unused(&recv_ring),
            }
        });
        let (events, (handle, granted)) = made?;
        let interval = if signal_all { 1 } else { (asked.send_depth / 2).max(1) };
        // What was asked may be posted, since the tables were made for that; inline, what was granted.
        let caps = ibv_qp_cap { max_inline_data: granted.max_inline_data, ..asked.raw() };
        let pd = pd.clone();
        let (send, recv) =
            (Poster::new(Arc::clone(&send_ring)), Poster::new(Arc::clone(&recv_ring)));
        let core = Arc::new(Core::new(Parts {
            handle,
            pd,
            caps,
            granted,
            send_ring,
            recv_ring,
            send_cq,
            recv_cq,
            events,
            shared,
            datagrams: T::DATAGRAM,
        }));
        Ok(QueuePair {
            send: SendQueue::new(Arc::clone(&core), send, interval),
            recv: RecvQueue::new(Arc::clone(&core), recv),
            core,
            psn: Psn::random(),
            path: None,
            state: PhantomData,
        })
    }

    /// What is to be posted by the extended calls, if they are used: what this transport can, as far as the device
    /// can; none is posted that it cannot.
    fn send_ops(&self) -> Result<Option<SendOps>> {
        let context = self.pd.context();
        let for_use = Use::Posting { max_sge: self.asked.max_send_sge };
        if !calls::extended(context, self.calls, for_use)? {
            return Ok(None);
        }
        // Also those of type 1, whose binds providers post by themselves: some make room for them by this.
        let windows =
            [Capability::MemoryWindow1, Capability::MemoryWindow2A, Capability::MemoryWindow2B];
        let can = [
            (send_ops::ATOMICS, context.supports(Capability::Atomics)),
            (send_ops::INVALIDATE, context.supports(Capability::Invalidate)),
            (send_ops::BIND, windows.iter().any(|window| context.supports(*window))),
        ];
        let cannot = can.iter().filter(|(_, can)| !can).map(|(ops, _)| ops);
        let flags = cannot.fold(T::SEND_OPS, |all, ops| all & !ops);
        Ok(Some(SendOps { flags, all_or_nothing: calls::all_or_nothing(context) }))
    }

    fn check_limits(&self) -> Result<()> {
        let limits = self.pd.context().limits();
        // Some providers tell no limit.
        let most = |limit: u32| if limit == 0 { u32::MAX } else { limit };
        let entries = most(limits.max_sge).min(MAX_PIECES as u32);
        let asked = &self.asked;
        for (what, asked, most) in [
            ("max_send_wr, the depth of the send queue,", asked.send_depth, most(limits.max_qp_wr)),
            (
                "max_recv_wr, the depth of the receive queue,",
                asked.recv_depth,
                most(limits.max_qp_wr),
            ),
            ("max_send_sge, the entries of a send,", asked.max_send_sge, entries),
            ("max_recv_sge, the entries of a receive,", asked.max_recv_sge, entries),
        ] {
            if self.shared.is_some() && what.starts_with("max_recv") {
                continue;
            }
            if asked == 0 || asked > most {
                let (asked, most) = (asked.into(), most.into());
                return Err(Error::OutOfRange { what, asked, least: 1, most });
            }
        }
        Ok(())
    }
}

/// Whether such a queue pair can be made without inline data; it goes again at once.
fn works(context: &Context, create: &dyn Fn(u32) -> Result<(QpHandle, ibv_qp_cap), Errno>) -> bool {
    let Ok((handle, _)) = create(0) else { return false };
    if let Err((_, errno)) = handle.destroy() {
        // Nothing was posted on it: it stays, and does no harm.
        context.leaked("queue pair", errno);
    }
    true
}
