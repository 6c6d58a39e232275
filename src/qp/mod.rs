//! Queue pairs.
//!
//! * this file: [`QueuePair`], its states as types, its end.
//! * `builder`: how one is made. `state`: its transitions. `endpoint`: addresses and settings.
//! * `send`, `recv`: its two queues. `request`: what is posted. `batch`: several with one doorbell.
//! * `receives`: what posting to a receive queue and to a shared one has in common; `shared`: what queue pairs
//!   have of a shared one. `transport`: the kinds of queue pairs, as types; `ud`: datagrams.
//! * `window`: memory windows of type 2, and what windows are bound by.
//! * `core`: what the handles share, and the destruction, which is the fence: what is posted stays owned by
//!   the queue pair until the device said that it is destroyed.

mod batch;
mod builder;
mod core;
mod endpoint;
mod receives;
mod recv;
mod refill;
mod request;
mod send;
mod shared;
mod state;
pub mod transport;
mod ud;
mod window;

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::calls::Calls;
use crate::context::Context;
use crate::cq::{Completion, CompletionQueue, CompletionQueueHandle};
use crate::doorbell::Doorbell;
use crate::error::{Error, Result};
use crate::event::{EventType, ObjectId};
use crate::pd::ProtectionDomain;
use crate::types::{GidEntry, Mtu, Psn, QpState, Qpn, RemoteAccess};

use self::transport::{Rc, Transport, Uc};

pub use batch::{BatchError, RecvBatch, Refused, SendBatch};
pub use builder::{QueuePairBuilder, QueuePairLimits};
pub use endpoint::{ConnectOptions, Endpoint};
pub use recv::{Receive, RecvQueue};
pub use refill::{Refill, RefillStop};
pub use request::{CompareSwap, FetchAdd, Read, Send, SendRequest, Write};
pub use send::{PostError, SendQueue};
pub use shared::SharedReceiveQueueHandle;
pub use state::{Failed, InitOptions};
pub use ud::Datagram;
pub use window::{Bind, LocalInvalidate};

pub(crate) use self::core::Core;
pub(crate) use receives::Receives;
pub(crate) use refill::refill;
pub(crate) use shared::SharedCore;
pub(crate) use state::Told;

/// State of a [`QueuePair`] that was just made: nothing can be posted.
#[derive(Debug)]
pub struct Reset(());

/// State of a [`QueuePair`] that has a port: receives can be posted.
#[derive(Debug)]
pub struct Init(());

/// State of a [`QueuePair`] that has a peer and receives: it does not send yet.
#[derive(Debug)]
pub struct Rtr(());

/// State of a [`QueuePair`] that is connected.
#[derive(Debug)]
pub struct Rts(());

/// A queue pair (`struct ibv_qp`), of the reliable connected transport unless another is said
/// ([`transport`]).
///
/// The state is a type: what it cannot do yet cannot be written. The device may be in the error state at any
/// time all the same; work requests then complete as flushed.
///
/// Dropping it, or both of the queues it was [`split`](QueuePair::split) into, destroys it. What was still
/// posted then comes back where completions are polled, as flushed.
pub struct QueuePair<S, T = Rc> {
    core: Arc<Core>,
    send: SendQueue<T>,
    recv: RecvQueue,
    /// The number of the first packet that it sends.
    psn: Psn,
    path: Option<PathNow>,
    state: PhantomData<fn() -> (S, T)>,
}

/// What is known of the port and the path so far.
#[derive(Clone, Copy)]
struct PathNow {
    access: RemoteAccess,
    init: InitOptions,
    /// The row that packets come from, as it was read after it was pinned.
    source: Option<GidEntry>,
    mtu: Option<Mtu>,
    /// What the transition to RTS takes from that to RTR.
    options: Option<ConnectOptions>,
    reads: u8,
}

impl QueuePair<Reset> {
    /// A queue pair of the reliable connected transport, of this protection domain, whose sends and receives
    /// complete on these completion queues, which may be one: a [`CompletionQueue`], or the
    /// [handle](CompletionQueue::handle) of one that another thread polls.
    pub fn rc<'a>(
        pd: &'a ProtectionDomain,
        send_cq: &'a impl AsRef<CompletionQueueHandle>,
        recv_cq: &'a impl AsRef<CompletionQueueHandle>,
    ) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(pd, send_cq.as_ref(), recv_cq.as_ref())
    }
}

impl QueuePair<Reset, Uc> {
    /// The same of the unreliable connected transport.
    pub fn uc<'a>(
        pd: &'a ProtectionDomain,
        send_cq: &'a impl AsRef<CompletionQueueHandle>,
        recv_cq: &'a impl AsRef<CompletionQueueHandle>,
    ) -> QueuePairBuilder<'a, Uc> {
        QueuePairBuilder::new(pd, send_cq.as_ref(), recv_cq.as_ref())
    }
}

impl<S, T: Transport> QueuePair<S, T> {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn()
    }

    /// The number of the first packet that it sends; random unless [set](QueuePair::set_psn).
    pub fn psn(&self) -> Psn {
        self.psn
    }

    /// Sets the number of the first packet that it sends, until it is connected.
    pub fn set_psn(&mut self, psn: Psn) {
        self.psn = psn;
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        self.core.context()
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.core.pd
    }

    /// What may be posted: the depths and entries that were asked for, and the inline bytes that were
    /// granted.
    pub fn limits(&self) -> QueuePairLimits {
        QueuePairLimits::from_raw(&self.core.caps)
    }

    /// What the device granted, which may be more.
    pub fn granted(&self) -> QueuePairLimits {
        QueuePairLimits::from_raw(&self.core.granted)
    }

    /// How work requests reach the device, with the inline limit that this queue pair was granted. As
    /// [`Context::doorbell`]: for reports.
    pub fn doorbell(&self) -> Doorbell {
        self.context().doorbell().with_max_inline(self.granted().max_inline)
    }

    /// By which of libibverbs' calls its sends are posted.
    pub fn calls(&self) -> Calls {
        if self.core.qp().is_extended() { Calls::Extended } else { Calls::Classic }
    }

    /// The state as the device has it now (`ibv_query_qp`): one system call. It may be
    /// [`QpState::ERR`] whatever the type says.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QpState> {
        self.core.state()
    }

    /// What has happened to it since the last call, as far as asynchronous events were taken in
    /// ([`Context::process_events`]): [`EventType::QP_FATAL`] and its like, each once.
    pub fn take_events(&self) -> impl Iterator<Item = EventType> + use<S, T> {
        let happened = self.core.events.take();
        (0..32).filter(move |bit| happened >> bit & 1 != 0).map(EventType::from_raw)
    }

    /// C's queue pair (`struct ibv_qp *`), for calls that this crate lacks: valid while this, or a queue that it
    /// was split into, lives. Opaque, because no declaration of C's is part of this crate's interface.
    ///
    /// To use it is `unsafe`, and up to whoever does: it must not be destroyed, and nothing is to be posted on it,
    /// whose completion could be taken for another's. A change of its state that loses work requests keeps their
    /// memory here until the queue pair is destroyed.
    #[doc(alias = "ibv_qp")]
    pub fn as_raw(&self) -> NonNull<c_void> {
        self.core.qp().as_raw()
    }

    /// What events name it by.
    pub fn id(&self) -> ObjectId {
        self.core.events.id()
    }

    /// Brings it to the error state: what is posted is flushed, the completions come where they are polled,
    /// and nothing more can be posted, on either queue.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`]; it is closed for posts all the same.
    pub fn close(&self) -> Result<()> {
        self.core.close()
    }

    /// Closes it, waits until everything that was posted is complete, which somebody else's poll does, or
    /// the time is over, and destroys it. What is left then comes through the poller too. Tells how many
    /// that is. The last datagrams that were not to be signaled are not waited for: no completion of theirs need
    /// come, and they are among what is left. Who polls himself uses [`finish_polling`](QueuePair::finish_polling).
    pub fn finish(mut self, timeout: Duration) -> usize {
        self.end();
        let deadline = Instant::now().checked_add(timeout);
        while self.awaited() != 0 && !is_over(deadline) {
            std::thread::sleep(Duration::from_micros(100));
        }
        (self.send.in_flight() + self.recv.in_flight()) as usize
    }

    /// Closes it, polls the completion queues, handing every completion to `each`, until what was posted is
    /// complete or the time is over, and destroys it; then what is left comes at once, as flushed. They are
    /// the completion queues of this queue pair; completions of others come as well.
    ///
    /// # Errors
    ///
    /// [`Error::CompletionQueueFailed`]; the queue pair is destroyed all the same.
    pub fn finish_polling(
        mut self,
        queues: &mut [&mut CompletionQueue],
        timeout: Duration,
        mut each: impl FnMut(Completion<'_>),
    ) -> Result<()> {
        self.end();
        let deadline = Instant::now().checked_add(timeout);
        let mut outcome = Ok(());
        while self.awaited() != 0 && !is_over(deadline) {
            let mut came = false;
            for queue in queues.iter_mut() {
                match queue.poll() {
                    Ok(mut drain) => {
                        while let Some(completion) = drain.next() {
                            came = true;
                            each(completion);
                        }
                    }
                    Err(error) => outcome = Err(error),
                }
            }
            if outcome.is_err() {
                break;
            }
            if !came {
                std::thread::yield_now();
            }
        }
        let (send_cq, recv_cq) = (self.core.send_cq.clone(), self.core.recv_cq.clone());
        drop(self);
        for queue in queues.iter_mut() {
            let is_ours = [&send_cq, &recv_cq].iter().any(|cq| Arc::ptr_eq(cq, queue.shared()));
            // Until the device has nothing more of it: then what is left is given out.
            while is_ours && queue.has_dead() {
                match queue.poll() {
                    Ok(mut drain) => {
                        while let Some(completion) = drain.next() {
                            each(completion);
                        }
                    }
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
        }
        outcome
    }

    /// Closes it, so that everything that is posted completes.
    fn end(&mut self) {
        // If it fails, it is in the error state already, or the device has gone, which flushes too.
        let _ = self.core.close();
        self.send.mark_end();
    }

    /// How much of what is posted will complete, now that it is closed: of the last silent sends that is not
    /// known where nothing could be posted behind them ([`mark_end`](SendQueue::mark_end)).
    fn awaited(&mut self) -> u32 {
        let silent = if T::DATAGRAM { self.send.silent } else { 0 };
        self.send.in_flight().saturating_sub(silent) + self.recv.in_flight()
    }

    /// The same queue pair, in another state.
    fn become_<N>(self) -> QueuePair<N, T> {
        let QueuePair { core, send, recv, psn, path, state: _ } = self;
        QueuePair { core, send, recv, psn, path, state: PhantomData }
    }
}

/// Whether the time is over; none has no end.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// States in which receives can be posted.
pub trait CanReceive {}

impl CanReceive for Init {}
impl CanReceive for Rtr {}
impl CanReceive for Rts {}

impl<S: CanReceive, T> QueuePair<S, T> {
    /// Its receive queue.
    #[inline]
    pub fn recv_queue(&mut self) -> &mut RecvQueue {
        &mut self.recv
    }
}

impl<T> QueuePair<Rts, T> {
    /// Its send queue.
    #[inline]
    pub fn send_queue(&mut self) -> &mut SendQueue<T> {
        &mut self.send
    }

    /// Both of its queues at a time.
    #[inline]
    pub fn queues(&mut self) -> (&mut SendQueue<T>, &mut RecvQueue) {
        (&mut self.send, &mut self.recv)
    }

    /// Its two queues, each of which can go to a thread of its own. It is destroyed when both are dropped.
    pub fn split(self) -> (SendQueue<T>, RecvQueue) {
        (self.send, self.recv)
    }

    /// The row of this side's GID table that its packets come from, as it was read when it was pinned;
    /// `None` of a connection by LID, and of a queue pair of datagrams, where each address handle has its own.
    pub fn source(&self) -> Option<GidEntry> {
        self.path.and_then(|path| path.source)
    }

    /// The path MTU; of a queue pair of datagrams the port's, which is the longest message.
    pub fn mtu(&self) -> Option<Mtu> {
        self.path.and_then(|path| path.mtu)
    }
}

impl Core {
    fn state(&self) -> Result<QpState> {
        let attr = self.qp().query(crate::sys::qp::mask::STATE);
        attr.map(|attr| QpState::from_raw(attr.qp_state)).map_err(|errno| {
            let object = crate::error::Object::device(self.context().device().name());
            Error::Verb { verb: "ibv_query_qp", object, errno }
        })
    }
}

impl<S, T: Transport> fmt::Debug for QueuePair<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn())
            .field("device", &self.context().device().name())
            .finish_non_exhaustive()
    }
}
