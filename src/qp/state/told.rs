//! Queue pairs that are connected as a connection manager says.

use std::time::Duration;

use super::super::{Init, QueuePair, Rtr, Rts};
use super::Failed;
use crate::error::{Errno, Error, Object, Result};
use crate::sys::abi::ibv_qp_attr;
use crate::sys::qp::mask;
use crate::types::{Gid, GidEntry, Mtu, PortNum, Psn, QpState, rnr_code, time_code};

/// What the queue pair is to have besides what the connection manager says, or of what that says the least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The most reads under way.
    pub(crate) reads: u8,
    /// The reads of the peer that are answered at a time.
    pub(crate) answers: u8,
    pub(crate) min_rnr_timer: Duration,
    pub(crate) timeout: Option<Duration>,
}

/// Attributes, and which of them are meant.
type Attributes = (ibv_qp_attr, i32);

impl QueuePair<Init> {
    /// INIT to RTR to RTS, with the attributes that a connection manager gave for each. `from` is the GID
    /// that it means to send from: after RTR, when the row is pinned, it must be the one at the index it
    /// gave; one that moved is looked up by its value.
    #[allow(clippy::result_large_err)] // the queue pair comes back
    pub(crate) fn connect_as_told(
        mut self,
        rtr: Attributes,
        rts: Attributes,
        from: Option<Gid>,
        told: &Told,
    ) -> Result<QueuePair<Rts>, Failed<Init>> {
        if let Err(error) = self.rtr_as_told(rtr, from, told) {
            return Err(self.not_rtr(error));
        }
        let mut queue_pair: QueuePair<Rtr> = self.become_();
        match queue_pair.rts_as_told(rts, told) {
            Ok(()) => Ok(queue_pair.become_()),
            Err(error) => Err(Failed { error, queue_pair: queue_pair.again() }),
        }
    }

    fn rtr_as_told(
        &mut self,
        (mut attr, mask): Attributes,
        from: Option<Gid>,
        told: &Told,
    ) -> Result<()> {
        let context = self.context().clone();
        attr.qp_state = QpState::RTR.raw();
        // What the connection manager leaves at 0 would be the longest, 655 ms.
        attr.min_rnr_timer = rnr_code(told.min_rnr_timer);
        attr.max_dest_rd_atomic = told.answers;
        let (port, index) = (attr.ah_attr.port_num, attr.ah_attr.grh.sgid_index);
        let row = PortNum::new(port)
            .filter(|_| attr.ah_attr.is_global != 0)
            .and_then(|port| self.row_of(port, index.into(), from?));
        let mut attempts = 0;
        let mut to_rtr = |queue_pair: &mut QueuePair<Init>, index: u8| {
            attempts += 1;
            if attempts > 1 {
                queue_pair.bring_back()?;
            }
            attr.ah_attr.grh.sgid_index = index;
            queue_pair.core.modify_as_told(&attr, mask, index)
        };
        let source = match row {
            Some(row) => Some(context.with_row(&row, |index| to_rtr(&mut *self, index.get()))?.1),
            None => to_rtr(self, index).map(|()| None)?,
        };
        self.send.peer_access = None;
        if let Some(path) = &mut self.path {
            (path.source, path.mtu) = (source, Some(Mtu::from_raw(attr.path_mtu)));
        }
        Ok(())
    }

    /// The row that is meant: at that index, or wherever that GID is.
    fn row_of(&self, port: PortNum, index: u32, gid: Gid) -> Option<GidEntry> {
        let tables = self.context().gids().checked().ok()?;
        let there = tables.row(port, index).filter(|row| row.gid() == gid).copied();
        there.or_else(|| tables.by_gid(&gid).find(|row| row.port() == port).copied())
    }
}

impl QueuePair<Rtr> {
    fn rts_as_told(&mut self, (mut attr, bits): Attributes, told: &Told) -> Result<()> {
        attr.qp_state = QpState::RTS.raw();
        attr.max_rd_atomic = attr.max_rd_atomic.min(told.reads);
        if let Some(timeout) = told.timeout {
            attr.timeout = time_code(timeout);
        }
        if let Some(path) = &mut self.path {
            path.reads = attr.max_rd_atomic;
        }
        if let Some(psn) = Psn::new(attr.sq_psn) {
            self.psn = psn;
        }
        let done = self.core.qp().modify(&attr, bits | mask::STATE);
        done.map_err(|errno| {
            let what = format!(
                "timeout {}, retry_cnt {}, rnr_retry {} or max_rd_atomic {}, of the connection manager",
                attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic
            );
            self.core.fault(QpState::RTR, QpState::RTS, Some(errno), what)
        })
    }
}

impl QueuePair<Rts> {
    /// Back to INIT; to the error state, if receives are posted, which would be lost otherwise.
    pub(crate) fn back_to_init(self) -> QueuePair<Init> {
        self.become_::<Rtr>().again()
    }
}

impl super::Core {
    fn modify_as_told(&self, attr: &ibv_qp_attr, bits: i32, index: u8) -> Result<()> {
        let done = self.qp().modify(attr, bits | mask::STATE | mask::MIN_RNR_TIMER);
        done.map_err(|errno| {
            let device = self.context().device().name();
            // Said by the number alone, for who looks the row up anew and tries again.
            if errno == Errno::ENODATA {
                let port = PortNum::new(attr.ah_attr.port_num);
                let object = Object { port, index: Some(index.into()), ..Object::device(device) };
                return Error::Verb { verb: "ibv_modify_qp", object, errno };
            }
            let to = Gid::from_bytes(attr.ah_attr.grh.dgid.raw);
            let what = format!(
                "the path to {to}, queue pair {}, from index {index}, of the connection manager",
                attr.dest_qp_num
            );
            self.fault(QpState::INIT, QpState::RTR, Some(errno), what)
        })
    }
}
