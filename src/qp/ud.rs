//! Datagrams: queue pairs of the unreliable datagram transport, and what they send.

#![deny(unsafe_code)]
#![allow(private_interfaces, private_bounds)] // methods of `sealed`, called by nobody else

use std::sync::Arc;

use super::request::{SendRequest, What, flag, sealed};
use super::state::Failed;
use super::transport::Ud;
use super::{Core, Init, QueuePair, QueuePairBuilder, Reset, Rts};
use crate::ah::AddressHandle;
use crate::cq::CompletionQueueHandle;
use crate::error::Result;
use crate::mem::{Gather, Held, Pieces};
use crate::pd::ProtectionDomain;
use crate::sys::abi::ibv_sge;
use crate::types::{QKey, QpState, Qpn};

impl QueuePair<Reset, Ud> {
    /// A queue pair of datagrams: it has no peer, each message names its own destination
    /// ([`Datagram`]). A receive has room for 40 bytes before those of the message: the
    /// [`Grh`](crate::Grh).
    pub fn ud<'a>(
        pd: &'a ProtectionDomain,
        send_cq: &'a impl AsRef<CompletionQueueHandle>,
        recv_cq: &'a impl AsRef<CompletionQueueHandle>,
    ) -> QueuePairBuilder<'a, Ud> {
        QueuePairBuilder::new(pd, send_cq.as_ref(), recv_cq.as_ref())
    }
}

impl<S> QueuePair<S, Ud> {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl QueuePair<Init, Ud> {
    /// From now on it receives and sends (INIT to RTR to RTS, `ibv_modify_qp`).
    ///
    /// The port's MTU, which bounds what it sends, is that of now; of a device whose MTU becomes smaller
    /// later, what is longer is lost.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition), with the queue pair, which is in the error state if only
    /// the second transition failed; [`Error::Verb`](crate::Error::Verb) when the port cannot be asked.
    #[doc(alias = "ibv_modify_qp")]
    #[allow(clippy::result_large_err)] // the queue pair comes back
    pub fn activate(mut self) -> Result<QueuePair<Rts, Ud>, Failed<Init, Ud>> {
        match self.try_activate() {
            Ok(()) => Ok(self.become_()),
            Err(error) => Err(Failed { error, queue_pair: self }),
        }
    }

    fn try_activate(&mut self) -> Result<()> {
        let Some(port) = self.path.map(|path| path.init.port) else { return Ok(()) };
        let mtu = self.context().port(port)?.active_mtu;
        let Some(bytes) = mtu.bytes() else {
            let what = format!("active_mtu: port {port} has {mtu}, which is no MTU");
            return Err(self.core.fault(QpState::INIT, QpState::RTR, None, what));
        };
        self.core.to_rts_of_datagrams(self.psn.get())?;
        self.send.max_message = bytes.into();
        if let Some(path) = &mut self.path {
            path.mtu = Some(mtu);
        }
        Ok(())
    }
}

/// A message to a queue pair of datagrams, or a multicast group (`IBV_WR_SEND`): at most as long as the
/// port's MTU.
///
/// That it is complete says that it was sent, not that it arrived. It holds the address handle until then.
#[derive(Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct Datagram<M> {
    memory: To<M>,
    what: What,
}

/// Memory, and where it goes.
#[derive(Debug)]
#[allow(unreachable_pub)] // named by a public trait, and by nobody else
pub struct To<M> {
    memory: M,
    to: AddressHandle,
}

impl<M: Gather> Datagram<M> {
    /// To this queue pair at this address, which takes datagrams with this Q_Key. A multicast group has the
    /// number [`Qpn::MULTICAST`].
    ///
    /// With another Q_Key than [it has](crate::InitOptions::qkey), or to a number that nobody has, the datagram is
    /// complete all the same, and the receiver's device drops it without a word. At most it counts wrong keys
    /// ([`PortAttr::qkey_violation_count`](crate::PortAttr)).
    #[inline]
    pub fn new(memory: M, to: &AddressHandle, qpn: Qpn, qkey: QKey) -> Datagram<M> {
        let flags = if M::INLINE { flag::INLINE } else { 0 };
        let what = What::datagram(flags, to.number(), qpn.get(), qkey.get());
        Datagram { memory: To { memory, to: to.clone() }, what }
    }
}

impl<M> Datagram<M> {
    /// With 32 bits of the caller's, in host order (`IBV_WR_SEND_WITH_IMM`).
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        self.what.with_imm(imm);
        self
    }

    /// The caller's own number, which the completion gives back (`wr_id`); 0 unless asked.
    #[inline]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.what.wr_id = wr_id;
        self
    }

    /// Asks for a completion of its own as soon as it is complete (`IBV_SEND_SIGNALED`); see
    /// [`SendQueue`](super::SendQueue) for when the library asks by itself.
    #[inline]
    pub fn signaled(mut self) -> Self {
        self.what.flags |= flag::SIGNALED;
        self
    }

    /// Wakes a receiver that waits for solicited messages only (`IBV_SEND_SOLICITED`).
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.what.flags |= flag::SOLICITED;
        self
    }

    /// The memory, of a datagram that was not posted.
    pub fn into_memory(self) -> M {
        self.memory.memory
    }
}

impl<M: Gather> SendRequest<Ud> for Datagram<M> {}

impl<M: Gather> sealed::Request for Datagram<M> {
    type Memory = To<M>;
    const DATAGRAM: bool = true;

    #[inline]
    fn split(self) -> (What, To<M>) {
        (self.what, self.memory)
    }

    #[inline]
    fn join(what: What, memory: To<M>) -> Self {
        Datagram { memory, what }
    }

    #[inline]
    fn what(&self) -> &What {
        &self.what
    }

    #[inline]
    fn memory(&self) -> &To<M> {
        &self.memory
    }
}

impl<M: Pieces> Pieces for To<M> {
    const COUNT: usize = M::COUNT;
    const INLINE: bool = M::INLINE;

    #[inline]
    fn for_each(&self, receive: bool, each: &mut impl FnMut(ibv_sge, usize)) {
        self.memory.for_each(receive, each);
    }

    #[inline]
    fn address_domain(&self) -> Option<usize> {
        Some(self.to.domain())
    }

    #[inline]
    fn hold(self, each: &mut impl FnMut(Held)) {
        self.memory.hold(each);
        each(Held::address(self.to));
    }

    fn restore(next: &mut impl FnMut() -> Option<(Held, ibv_sge)>) -> Option<To<M>> {
        let memory = M::restore(next);
        // Taken in any case.
        let to = next().and_then(|(held, _)| held.into_address().ok());
        Some(To { memory: memory?, to: to? })
    }
}
