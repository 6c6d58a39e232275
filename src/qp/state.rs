//! The transitions of a queue pair, and what is wrong when one fails.

#![deny(unsafe_code)]
#![allow(clippy::result_large_err)] // a transition that fails gives the queue pair back

mod told;

use std::fmt;

use super::transport::{Connected, Rc, Transport};
use super::{ConnectOptions, Core, Endpoint, Init, PathNow, QueuePair, Reset, Rtr, Rts};
use crate::error::{Errno, Error, Result};
use crate::port::PortAttr;
use crate::sys::abi::{ibv_ah_attr, ibv_qp_attr};
use crate::sys::qp::{mask, zeroed_attr};
use crate::types::{Mtu, PortNum, QKey, QpState, RemoteAccess, rnr_code, time_code};

pub(crate) use told::Told;

/// A transition that failed: why, and the queue pair, in the state it was in.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Failed<S, T = Rc> {
    /// Why.
    pub error: Error,
    /// The queue pair.
    pub queue_pair: QueuePair<S, T>,
}

impl<S, T> fmt::Debug for Failed<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<S, T> From<Failed<S, T>> for Error {
    fn from(failed: Failed<S, T>) -> Error {
        failed.error
    }
}

/// What a queue pair is to be in [`Init`]: its port, its partition, what its peer may do.
#[derive(Clone, Copy, Debug)]
pub struct InitOptions {
    pub(super) port: PortNum,
    pkey_index: u16,
    access: RemoteAccess,
    qkey: QKey,
}

impl InitOptions {
    /// On this port, in the partition at index 0, the default one; the peer may do nothing but send.
    pub const fn new(port: PortNum) -> InitOptions {
        InitOptions { port, pkey_index: 0, access: RemoteAccess::from_bits(0), qkey: QKey::new(0) }
    }

    /// The partition, by the index of its P_Key in the port's table; see
    /// [`PKeySnapshot`](crate::PKeySnapshot).
    pub const fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// What the peer may do by this queue pair (`qp_access_flags`), with memory that allows it as well.
    pub const fn access(mut self, access: RemoteAccess) -> Self {
        self.access = access;
        self
    }

    /// The Q_Key that datagrams to it must carry, of a queue pair of datagrams (`qkey`); others are dropped
    /// by the device, without a word. 0 unless asked.
    pub const fn qkey(mut self, qkey: QKey) -> Self {
        self.qkey = qkey;
        self
    }
}

impl<T: Transport> QueuePair<Reset, T> {
    /// Gives it a port (RESET to INIT, `ibv_modify_qp`): from now on receives can be posted.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPort`]; [`Error::Transition`], which names what may be wrong; with the queue pair.
    #[doc(alias = "ibv_modify_qp")]
    pub fn init(mut self, options: &InitOptions) -> Result<QueuePair<Init, T>, Failed<Reset, T>> {
        let InitOptions { port, access, .. } = *options;
        // Asking for a port takes as long as this does besides.
        let done = self.context().longest_message(port).and_then(|known| {
            let longest = match known.get() {
                Some(longest) => *longest,
                None => self.context().port(port)?.max_message_size,
            };
            self.core.to_init::<T>(options)?;
            Ok(*known.get_or_init(|| longest))
        });
        match done {
            Ok(longest) => {
                if longest != 0 {
                    self.send.max_message = longest.into();
                }
                let init = *options;
                let (source, mtu, options) = (None, None, None);
                self.path = Some(PathNow { access, init, source, mtu, options, reads: 0 });
                Ok(self.become_())
            }
            Err(error) => Err(Failed { error, queue_pair: self }),
        }
    }
}

impl<T: Connected> QueuePair<Init, T> {
    /// What the peer needs to connect to it, if this side is to be reached by this row of its table
    /// ([`ConnectOptions::new`]), and with these settings.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the port cannot be asked.
    pub fn endpoint(&self, options: &ConnectOptions) -> Result<Endpoint> {
        let attr = self.context().port(options.port())?;
        Ok(Endpoint {
            qpn: self.qpn(),
            psn: self.psn(),
            gid: options.source().map(|row| row.gid()),
            lid: attr.lid,
            mtu: Some(self.mtu_limit(options, &attr)),
            reads: Some(self.answers(options)),
            access: self.path.map(|path| path.access),
        })
    }

    /// Connects it to its peer: INIT to RTR to RTS.
    ///
    /// # Errors
    ///
    /// As [`ready_to_receive`](QueuePair::ready_to_receive) and
    /// [`ready_to_send`](QueuePair::ready_to_send).
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(
        self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<QueuePair<Rts, T>, Failed<Init, T>> {
        let ready = self.ready_to_receive(remote, options)?;
        ready.ready_to_send().map_err(|failed| {
            let queue_pair = failed.queue_pair.again();
            Failed { error: failed.error, queue_pair }
        })
    }

    /// Gives it its peer (INIT to RTR, `ibv_modify_qp`): from now on it receives.
    ///
    /// The path MTU is the smaller of both ports', and of what was asked. The kernel looks up the peer's
    /// hardware address meanwhile: a peer that does not answer takes a second.
    ///
    /// When it succeeded, the row of this side's table is pinned, and read: if it is not what was asked, the
    /// queue pair is brought back and tried with the row where that address is now, if no receives were
    /// posted.
    ///
    /// # Errors
    ///
    /// [`Error::GidMoved`] when the row is not there any more, and when it moved after the queue pair had come to
    /// RTR with it and receives were posted, which going back would lose: then the queue pair is closed, and
    /// they come back flushed. [`Error::Transition`], which names what is, or may be, wrong. All with the
    /// queue pair.
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_receive(
        mut self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<QueuePair<Rtr, T>, Failed<Init, T>> {
        match self.try_rtr(remote, options) {
            Ok(()) => Ok(self.become_()),
            Err(error) => Err(self.not_rtr(error)),
        }
    }

    /// The failure of a way to RTR, with the queue pair in INIT again.
    fn not_rtr(self, error: Error) -> Failed<Init, T> {
        // Left elsewhere by a row that moved, or could not be read, or by a reset halfway.
        if self.core.state_now() == QpState::INIT {
            return Failed { error, queue_pair: self };
        }
        Failed { error, queue_pair: self.become_::<Rtr>().again() }
    }

    fn try_rtr(&mut self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        let context = self.context().clone();
        let attr = context.port(options.port())?;
        let wrong = |what: String| Err(self.core.fault(QpState::INIT, QpState::RTR, None, what));
        let init = self.path.map(|path| path.init);
        if init.is_some_and(|init| init.port != options.port()) {
            let port = options.port();
            return wrong(format!(
                "ah_attr.port_num: the row is of port {port}, the queue pair is not"
            ));
        }
        if remote.qpn.get() < 2 {
            let qpn = remote.qpn;
            return wrong(format!("dest_qp_num: {qpn} is no queue pair that can be connected to"));
        }
        let ours = self.mtu_limit(options, &attr);
        let mtu = remote.mtu.map_or(ours, |theirs| ours.min(theirs));
        if mtu.bytes().is_none() {
            return wrong(format!("path_mtu: {mtu} is no MTU; the port has {}", attr.active_mtu));
        }
        let address = options.address.to(remote.gid, remote.lid);
        if let Some(problem) = address.problem(Some(&attr)) {
            return wrong(problem);
        }
        let mut attempts = 0;
        let made = address.make(&context, |ah| {
            attempts += 1;
            if attempts > 1 {
                self.bring_back()?;
            }
            self.core.to_rtr::<T>(remote, options, mtu, self.answers(options), ah)
        });
        let source = match (made, options.source()) {
            (Ok((_, source)), _) => source,
            // The row moved, and there is no way back to try the other: that is what to tell.
            (Err(error @ Error::InUse { .. }), Some(row)) => {
                return context.confirm_row(row).and(Err(error));
            }
            (Err(error), _) => return Err(error),
        };
        let reads = options.reads.min(remote.reads.unwrap_or(u8::MAX));
        self.send.peer_access = remote.access;
        if let Some(path) = &mut self.path {
            (path.source, path.mtu, path.options, path.reads) =
                (source, Some(mtu), Some(*options), reads);
        }
        Ok(())
    }

    /// From a state that was reached by mistake back to INIT. Receives that are posted would be lost; sends
    /// there are none before RTS.
    fn bring_back(&mut self) -> Result<()> {
        if self.recv.in_flight() != 0 {
            return Err(Error::InUse { what: "the path of a queue pair", by: "receives" });
        }
        self.core.to_reset()?;
        self.path.map_or(Ok(()), |path| self.core.to_init::<T>(&path.init))
    }

    fn mtu_limit(&self, options: &ConnectOptions, attr: &PortAttr) -> Mtu {
        options.mtu.map_or(attr.active_mtu, |mtu| mtu.min(attr.active_mtu))
    }

    fn answers(&self, options: &ConnectOptions) -> u8 {
        let limit = self.context().limits().max_qp_rd_atom;
        options.answers.min(u8::try_from(limit).unwrap_or(u8::MAX))
    }
}

impl<T: Connected> QueuePair<Rtr, T> {
    /// Lets it send (RTR to RTS, `ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// [`Error::Transition`], which names what may be wrong; with the queue pair.
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_send(self) -> Result<QueuePair<Rts, T>, Failed<Rtr, T>> {
        let (options, reads) = match self.path {
            Some(PathNow { options: Some(options), reads, .. }) => (options, reads),
            // There is no way to RTR without.
            _ => {
                let what = "the settings of the connection are not known";
                let error = self.core.fault(QpState::RTR, QpState::RTS, None, what);
                return Err(Failed { error, queue_pair: self });
            }
        };
        match self.core.to_rts::<T>(self.psn.get(), &options, reads) {
            Ok(()) => Ok(self.become_()),
            Err(error) => Err(Failed { error, queue_pair: self }),
        }
    }
}

impl<S, T: Connected> QueuePair<S, T> {
    /// Back to INIT; to the error state, if receives are posted, which would be lost otherwise.
    pub(crate) fn again(self) -> QueuePair<Init, T> {
        let mut queue_pair: QueuePair<Init, T> = self.become_();
        if queue_pair.bring_back().is_err() {
            let _ = queue_pair.core.close();
        }
        queue_pair
    }
}

impl Core {
    fn to_reset(&self) -> Result<()> {
        let attr = ibv_qp_attr { qp_state: QpState::RESET.raw(), ..zeroed_attr() };
        self.qp().modify(&attr, mask::STATE).map_err(|errno| {
            let what = "the queue pair could not be reset";
            self.fault(self.state_now(), QpState::RESET, Some(errno), what)
        })
    }

    pub(super) fn to_init<T: Transport>(&self, options: &InitOptions) -> Result<()> {
        let attr = ibv_qp_attr {
            qp_state: QpState::INIT.raw(),
            port_num: options.port.get(),
            pkey_index: options.pkey_index,
            qp_access_flags: options.access.bits(),
            qkey: options.qkey.get(),
            ..zeroed_attr()
        };
        let own = if T::DATAGRAM { mask::QKEY } else { mask::ACCESS_FLAGS };
        let mask = mask::STATE | mask::PORT | mask::PKEY_INDEX | own;
        self.qp().modify(&attr, mask).map_err(|errno| {
            let InitOptions { port, pkey_index, access, .. } = options;
            let what = format!("port_num {port}, pkey_index {pkey_index} or access {access:?}");
            self.fault(QpState::RESET, QpState::INIT, Some(errno), what)
        })
    }

    fn to_rtr<T: Transport>(
        &self,
        remote: &Endpoint,
        options: &ConnectOptions,
        mtu: Mtu,
        answers: u8,
        ah_attr: &ibv_ah_attr,
    ) -> Result<()> {
        let attr = ibv_qp_attr {
            qp_state: QpState::RTR.raw(),
            path_mtu: mtu.raw(),
            dest_qp_num: remote.qpn.get(),
            rq_psn: remote.psn.get(),
            max_dest_rd_atomic: answers,
            min_rnr_timer: rnr_code(options.min_rnr_timer),
            ah_attr: *ah_attr,
            ..zeroed_attr()
        };
        let mask = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | if T::RELIABLE { mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER } else { 0 };
        self.qp().modify(&attr, mask).map_err(|errno| {
            // Said by the number alone, for who looks the row up anew and tries again.
            if errno == Errno::ENODATA {
                let object = crate::error::Object::row(
                    self.context().device().name(),
                    options.port(),
                    ah_attr.grh.sgid_index.into(),
                );
                return Error::Verb { verb: "ibv_modify_qp", object, errno };
            }
            let what = why_not_rtr(errno, remote, options, mtu);
            self.fault(QpState::INIT, QpState::RTR, Some(errno), what)
        })
    }

    /// INIT to RTR to RTS, of datagrams.
    pub(super) fn to_rts_of_datagrams(&self, psn: u32) -> Result<()> {
        let step = |attr: &ibv_qp_attr, mask, from, to| {
            self.qp().modify(attr, mask).map_err(|errno| {
                let what = "the queue pair of datagrams could not be made ready";
                self.fault(from, to, Some(errno), what)
            })
        };
        let rtr = ibv_qp_attr { qp_state: QpState::RTR.raw(), ..zeroed_attr() };
        step(&rtr, mask::STATE, QpState::INIT, QpState::RTR)?;
        let rts = ibv_qp_attr { qp_state: QpState::RTS.raw(), sq_psn: psn, ..zeroed_attr() };
        step(&rts, mask::STATE | mask::SQ_PSN, QpState::RTR, QpState::RTS).inspect_err(|_| {
            // Not in INIT any more, whatever its type says: nothing is to be posted.
            let _ = self.close();
        })
    }

    fn to_rts<T: Transport>(&self, psn: u32, options: &ConnectOptions, reads: u8) -> Result<()> {
        let limit = self.context().limits().max_qp_init_rd_atom;
        let attr = ibv_qp_attr {
            qp_state: QpState::RTS.raw(),
            sq_psn: psn,
            timeout: time_code(options.timeout),
            retry_cnt: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: reads.min(u8::try_from(limit).unwrap_or(u8::MAX)),
            ..zeroed_attr()
        };
        let wrong = [("retry_cnt", options.retry_count), ("rnr_retry", options.rnr_retry)]
            .into_iter()
            .find(|(_, count)| *count > 7);
        if let Some((name, count)) = wrong {
            let what = format!("{name}: {count} is to be 0 to 7");
            return Err(self.fault(QpState::RTR, QpState::RTS, None, what));
        }
        let retries = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        let mask = mask::STATE | mask::SQ_PSN | if T::RELIABLE { retries } else { 0 };
        self.qp().modify(&attr, mask).map_err(|errno| {
            let what = format!(
                "timeout {:?}, retry_cnt {}, rnr_retry {} or max_rd_atomic {}",
                options.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic
            );
            self.fault(QpState::RTR, QpState::RTS, Some(errno), what)
        })
    }
}

/// What a refusal of RTR may come from: the path, told whole, and what the answer usually means.
fn why_not_rtr(errno: Errno, remote: &Endpoint, options: &ConnectOptions, mtu: Mtu) -> String {
    let from = match options.source() {
        Some(row) => format!("{row}"),
        None => format!("port {}", options.port()),
    };
    let to = match remote.gid {
        Some(gid) => format!("{gid}"),
        None => format!("LID {}", remote.lid),
    };
    let hint = match errno {
        Errno::ETIMEDOUT => "the destination does not answer: wrong GID, or not on this network",
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => "there is no route to the destination",
        Errno::EINVAL => "an attribute is not allowed: ah_attr, path_mtu, dest_qp_num or rq_psn",
        Errno::ENODEV | Errno::EIO => "the device or its network interface has gone",
        _ => "the path could not be set up",
    };
    let qpn = remote.qpn;
    format!("{hint}; from {from} to {to}, queue pair {qpn}, path_mtu {mtu}")
}
