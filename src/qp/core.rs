//! What the handles of one queue pair share.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::shared::SharedCore;
use crate::context::Context;
use crate::cq::Shared;
use crate::error::{Errno, Error, Refusal, Result, TransitionFault};
use crate::event::ObjectEvents;
use crate::mem::Windows;
use crate::pd::ProtectionDomain;
use crate::sys::QpHandle;
use crate::sys::abi::{ibv_qp_attr, ibv_qp_cap};
use crate::sys::qp::{mask, zeroed_attr};
use crate::trace::event;
use crate::types::{Capability, DeviceCaps, Gid, Lid, QpState, Qpn};
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
    /// Where it receives from, if not from its own queue, which then has room for nothing. Destroyed after it.
    pub(super) shared: Option<Arc<SharedCore>>,
    /// The multicast groups that it is in, each as often as somebody wants it to be.
    groups: Mutex<Vec<(Gid, Lid)>>,
    /// Those of type 2, which go before it.
    pub(super) windows: OnceLock<Arc<Windows>>,
    /// Whether its device has atomics.
    pub(super) atomics: bool,
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
    pub(super) shared: Option<Arc<SharedCore>>,
    /// Whether it is one of datagrams.
    pub(super) datagrams: bool,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Core {
        let qpn = Qpn::from_raw(parts.handle.number());
        let invalidated = invalidated_flags(parts.pd.context());
        parts.send_ring.set_qpn(qpn, parts.datagrams);
        parts.recv_ring.set_qpn(qpn, parts.datagrams);
        parts.recv_ring.set_invalidated(invalidated);
        if let Some(shared) = &parts.shared {
            shared.table.set_invalidated(invalidated);
            if parts.datagrams {
                shared.table.note_datagrams();
            }
        }
        Core {
            atomics: parts.pd.context().supports(Capability::Atomics),
            windows: OnceLock::new(),
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
            shared: parts.shared,
            groups: Mutex::new(Vec::new()),
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

    pub(crate) fn context(&self) -> &Context {
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
        Refusal::Poisoned { on: self.qpn.into(), errno: Errno::from_raw(trouble as u32 as i32) }
    }

    /// A post failed: the refusal for it, and no more posts if it may have been taken.
    #[cold]
    pub(super) fn refused(&self, verb: &'static str, errno: Errno, taken: bool) -> Refusal {
        if !taken {
            return Refusal::Device { verb, on: self.qpn.into(), errno };
        }
        let poison = POISONED | u64::from(errno.raw() as u32);
        self.trouble.fetch_or(poison, Ordering::Relaxed);
        Refusal::Unsure { verb, on: self.qpn.into(), errno }
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

    /// Into a multicast group; nothing but a note when it is in it.
    pub(crate) fn attach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let mut groups = self.groups();
        if !groups.contains(&(group, lid)) {
            self.handle.attach(group, lid)?;
        }
        groups.push((group, lid));
        Ok(())
    }

    /// Out of it, if nobody else wants it there.
    pub(crate) fn detach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let mut groups = self.groups();
        let Some(at) = groups.iter().position(|there| *there == (group, lid)) else {
            return Ok(());
        };
        groups.swap_remove(at);
        if groups.contains(&(group, lid)) { Ok(()) } else { self.handle.detach(group, lid) }
    }

    fn groups(&self) -> MutexGuard<'_, Vec<(Gid, Lid)>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Which flags of a completion say that the peer invalidated a key: `IBV_WC_WITH_INV`, and on a device that
/// checks no checksums `IBV_WC_IP_CSUM_OK` too. That is the number which the kernel has for the first, and rxe
/// hands it out as it is.
fn invalidated_flags(context: &Context) -> u32 {
    const IP_CSUM_OK: u32 = 1 << 2;
    const WITH_INV: u32 = 1 << 3;
    let caps = context.limits().capabilities;
    let sums = [DeviceCaps::UD_IP_CSUM, DeviceCaps::RC_IP_CSUM, DeviceCaps::RAW_IP_CSUM];
    if sums.iter().any(|sum| caps.contains(*sum)) { WITH_INV } else { WITH_INV | IP_CSUM_OK }
}

impl Drop for Core {
    fn drop(&mut self) {
        let context = self.context().clone();
        context.events().unregister(self.handle.key() as u64, &self.events);
        if let Some(windows) = self.windows.get() {
            // In the error state no bind begins any more. If that fails, so will its binds.
            let _ = self.close();
            windows.end();
        }
        // The kernel destroys none that is in a group.
        while let Some((group, lid)) = self.groups().pop() {
            // Of one that it was in twice, the second fails.
            let _ = self.handle.detach(group, lid);
        }
        // SAFETY: taken once, here; nobody uses it after.
        let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
        match handle.destroy() {
            Ok(()) => {}
            // The kernel destroyed it with the device.
            Err((handle, errno)) if context.went_with(errno) => handle.gone(),
            Err((handle, errno)) => {
                // The device may still touch what is posted: that stays in its tables, and they stay.
                std::mem::forget((handle, self.send_ring.clone(), self.recv_ring.clone()));
                // And into what is posted on that, which cannot be destroyed either.
                std::mem::forget(self.shared.clone());
                context.leaked("queue pair", errno);
                return;
            }
        }
        // The device touches nothing of it any more: who polls gives out what is left.
        self.send_cq.destroyed(&self.send_ring);
        match &self.shared {
            Some(shared) => self.recv_cq.leave_shared(&shared.table, true),
            None => self.recv_cq.destroyed(&self.recv_ring),
        }
    }
}
