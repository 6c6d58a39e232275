//! What the handles of one queue pair share.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::context::Context;
use crate::cq::Shared;
use crate::error::{Errno, Error, Refusal, Result, TransitionFault};
use crate::event::ObjectEvents;
use crate::pd::ProtectionDomain;
use crate::sys::QpHandle;
use crate::sys::abi::{ibv_qp_attr, ibv_qp_cap};
use crate::sys::qp::{mask, zeroed_attr};
use crate::trace::event;
use crate::types::{QpState, Qpn};
use crate::wq::Ring;

/// The queue pair itself; destroyed when the last of its handles is gone.
pub(crate) struct Core {
    /// Destroyed before the rest is let go of.
    handle: ManuallyDrop<QpHandle>,
    qpn: Qpn,
    pub(super) pd: ProtectionDomain,
    /// The id of the protection domain.
    pub(super) domain: usize,
    /// What may be posted.
    pub(super) caps: ibv_qp_cap,
    pub(super) granted: ibv_qp_cap,
    pub(super) send_ring: Arc<Ring>,
    pub(super) recv_ring: Arc<Ring>,
    pub(super) send_cq: Arc<Shared>,
    pub(super) recv_cq: Arc<Shared>,
    pub(super) events: Arc<ObjectEvents>,
    /// 0 while work may be posted; [`CLOSED`], or an errno and [`POISONED`].
    trouble: AtomicU64,
}

const CLOSED: u64 = 1 << 32;
const POISONED: u64 = 1 << 33;

/// What a queue pair is made of.
pub(super) struct Parts {
    pub(super) handle: QpHandle,
    pub(super) pd: ProtectionDomain,
    pub(super) caps: ibv_qp_cap,
    pub(super) granted: ibv_qp_cap,
    pub(super) send_ring: Arc<Ring>,
    pub(super) recv_ring: Arc<Ring>,
    pub(super) send_cq: Arc<Shared>,
    pub(super) recv_cq: Arc<Shared>,
    pub(super) events: Arc<ObjectEvents>,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Core {
        let qpn = Qpn::from_raw(parts.handle.number());
        parts.send_ring.set_qpn(qpn);
        parts.recv_ring.set_qpn(qpn);
        Core {
            handle: ManuallyDrop::new(parts.handle),
            qpn,
            domain: parts.pd.id(),
            pd: parts.pd,
            caps: parts.caps,
            granted: parts.granted,
            send_ring: parts.send_ring,
            recv_ring: parts.recv_ring,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            events: parts.events,
            trouble: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn qp(&self) -> &QpHandle {
        &self.handle
    }

    #[inline]
    pub(super) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(super) fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Whether work may be posted.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Refusal> {
        match self.trouble.load(Ordering::Relaxed) {
            0 => Ok(()),
            trouble => Err(self.trouble(trouble)),
        }
    }

    #[cold]
    fn trouble(&self, trouble: u64) -> Refusal {
        if trouble & CLOSED != 0 {
            return Refusal::Closed { qpn: self.qpn };
        }
        Refusal::Poisoned { qpn: self.qpn, errno: Errno::from_raw(trouble as u32 as i32) }
    }

    /// A post failed: the refusal for it, and no more posts if it may have been taken.
    #[cold]
    pub(super) fn refused(&self, verb: &'static str, errno: Errno, taken: bool) -> Refusal {
        if !taken {
            return Refusal::Device { verb, qpn: self.qpn, errno };
        }
        let poison = POISONED | u64::from(errno.raw() as u32);
        self.trouble.fetch_or(poison, Ordering::Relaxed);
        Refusal::Unsure { verb, qpn: self.qpn, errno }
    }

    /// To the error state: what is posted is flushed, and nothing more can be.
    pub(super) fn close(&self) -> Result<()> {
        self.trouble.fetch_or(CLOSED, Ordering::Relaxed);
        let attr = ibv_qp_attr { qp_state: QpState::ERR.raw(), ..zeroed_attr() };
        self.handle.modify(&attr, mask::STATE).map_err(|errno| {
            let what = "the queue pair could not be brought to the error state";
            self.fault(self.state_now(), QpState::ERR, Some(errno), what)
        })
    }

    /// The state as the device tells it; unknown when it does not.
    pub(super) fn state_now(&self) -> QpState {
        let attr = self.handle.query(mask::STATE);
        attr.map_or(QpState::from_raw(u32::MAX), |attr| QpState::from_raw(attr.qp_state))
    }

    pub(super) fn fault(
        &self,
        from: QpState,
        to: QpState,
        errno: Option<Errno>,
        what: impl Into<Box<str>>,
    ) -> Error {
        let device = self.context().device().name().into();
        let (qpn, what) = (self.qpn, what.into());
        let fault = TransitionFault { device, qpn, from, to, errno, what };
        event!(warn, %fault, "a queue pair's state could not be changed");
        Error::Transition(Box::new(fault))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let context = self.context().clone();
        context.events().unregister(self.handle.key() as u64, &self.events);
        // SAFETY: taken once, here; nobody uses it after.
        let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
        match handle.destroy() {
            Ok(()) => {}
            // The kernel destroyed it with the device.
            Err((handle, errno)) if context.went_with(errno) => handle.gone(),
            Err((handle, errno)) => {
                // The device may still touch what is posted: that stays in its tables, and they stay.
                std::mem::forget((handle, self.send_ring.clone(), self.recv_ring.clone()));
                context.leaked("queue pair", errno);
                return;
            }
        }
        // The device touches nothing of it any more: who polls gives out what is left.
        self.send_cq.destroyed(&self.send_ring);
        self.recv_cq.destroyed(&self.recv_ring);
    }
}
