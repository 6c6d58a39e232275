//! Carrying out sends: from one queue pair to another of this process.

use std::ffi::{c_int, c_uint};

use crate::abi::ibv_wc;
use crate::bytes::{self, Segment};
use crate::cq::Cqe;
use crate::event::Element;
use crate::faults::Held;
use crate::memory::is_message;
use crate::numbers::{access, event, flag, state, status, transport, wc, wr};
use crate::work::{Memory, Recv, Send, completion};
use crate::world::World;

mod datagram;

/// What a completion of a send says it transferred, where that means nothing.
const NO_LENGTH: u32 = 0xdead_beef;

/// What became of a send.
enum Outcome {
    /// It waits: for a receive, or for its peer to be connected.
    Wait,
    /// So many bytes were transferred.
    Done(u64),
    Failed(c_uint),
}

use Outcome::{Done, Failed, Wait};

/// Failures of the sender's own.
const LOCAL: [c_uint; 3] = [status::LOC_LEN_ERR, status::LOC_QP_OP_ERR, status::LOC_PROT_ERR];

/// The other end of a queue pair.
#[derive(Clone, Copy)]
struct Peer {
    id: usize,
    pd: usize,
    /// What it grants, besides what each memory region does.
    rights: u32,
    reads: u8,
    reliable: bool,
}

impl World {
    /// Carries out what can be, on every queue pair.
    pub(crate) fn pump(&mut self) {
        if self.faults.stalled {
            return;
        }
        loop {
            let mut moved = false;
            for id in self.busy.clone() {
                while self.step(id) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Carries out at most so many sends, though the devices stand still.
    pub(crate) fn pump_some(&mut self, most: usize) -> usize {
        let mut count = 0;
        while count < most {
            let Some(_) = self.busy.clone().into_iter().find(|id| self.step(*id)) else { break };
            count += 1;
        }
        count
    }

    /// Carries out one send of a queue pair; false when it has none that can be.
    fn step(&mut self, id: usize) -> bool {
        let Some(qp) = self.qps.get_mut(&id) else { return false };
        if qp.state != state::RTS {
            return false;
        }
        let Some(work) = qp.pending.pop_front() else {
            self.busy.remove(&id);
            return false;
        };
        let transport = qp.transport;
        let outcome = match transport {
            transport::UD => self.datagram(id, &work),
            _ => self.execute(id, &work),
        };
        // Nobody tells the sender of an unreliable transport what became of it.
        let lost = transport == transport::UC
            && match outcome {
                Wait => true,
                Failed(why) => !LOCAL.contains(&why),
                Done(_) => false,
            };
        match if lost { Done(0) } else { outcome } {
            Wait => {
                if let Some(qp) = self.qps.get_mut(&id) {
                    qp.pending.push_front(work);
                }
                false
            }
            Done(length) => {
                if work.signaled {
                    self.end_send(id, work, status::SUCCESS, length);
                }
                true
            }
            Failed(why) => {
                self.end_send(id, work, why, 0);
                self.fail_qp(id);
                true
            }
        }
    }

    fn execute(&mut self, id: usize, work: &Send) -> Outcome {
        let Some(qp) = self.qps.get(&id) else { return Wait };
        let (pd, number, attr) = (qp.pd, qp.number, qp.attr);
        if work.writes() && attr.max_rd_atomic == 0 {
            return Failed(status::LOC_QP_OP_ERR);
        }
        // What nobody but this side hears of.
        match work.opcode {
            wr::BIND_MW => {
                let bound = self.bind(id, pd, &work.bind);
                return if bound { Done(0) } else { Failed(status::MW_BIND_ERR) };
            }
            wr::LOCAL_INV => {
                let ended = self.unbind(id, pd, work.imm);
                return if ended { Done(0) } else { Failed(status::LOC_QP_OP_ERR) };
            }
            _ => {}
        }
        let local = match &work.inline {
            Some(bytes) => Some(vec![bytes::segment_of(bytes)]),
            None => self.local(pd, &work.sges, work.writes()),
        };
        let Some(local) = local else { return Failed(status::LOC_PROT_ERR) };
        let length = bytes::total(&local);
        if !is_message(length) {
            return Failed(status::LOC_LEN_ERR);
        }
        let peer = self.numbers.get(&attr.dest_qp_num).copied();
        let Some((peer_id, peer)) = peer.and_then(|peer| Some((peer, self.qps.get(&peer)?))) else {
            return Failed(status::RETRY_EXC_ERR);
        };
        match peer.state {
            // Not connected yet: a real device asks again and again.
            state::RESET | state::INIT => return Wait,
            state::ERR => return Failed(status::RETRY_EXC_ERR),
            _ if peer.attr.dest_qp_num != number => return Failed(status::RETRY_EXC_ERR),
            _ => {}
        }
        let peer = Peer {
            id: peer_id,
            pd: peer.pd,
            rights: peer.attr.qp_access_flags,
            reads: peer.attr.max_dest_rd_atomic,
            reliable: peer.transport == transport::RC,
        };
        match work.opcode {
            wr::RDMA_READ => self.read(peer, work, &local),
            wr::CMP_AND_SWP | wr::FETCH_AND_ADD => self.atomic(peer, work, &local),
            wr::RDMA_WRITE => match self.write(peer, work, &local) {
                true => Done(length),
                false => Failed(status::REM_ACCESS_ERR),
            },
            _ => self.message(id, peer, work, &local),
        }
    }

    /// The peer's memory that a request names, if it grants that; if not, the peer fails.
    fn granted(&mut self, peer: Peer, work: &Send, length: u64, right: u32) -> Option<Segment> {
        let granted = peer.rights & right != 0 || length == 0;
        let (at, rkey) = (work.remote, work.rkey);
        let found = self
            .remote(peer.pd, at, length, rkey, right)
            .or_else(|| self.in_window(peer.id, peer.pd, at, length, rkey, right));
        let found = found.filter(|_| granted);
        if found.is_none() {
            self.fail_peer(peer, event::QP_ACCESS_ERR);
        }
        found
    }

    fn fail_peer(&mut self, peer: Peer, event: c_int) {
        if !peer.reliable {
            return;
        }
        if let Some(context) = self.qps.get(&peer.id).map(|qp| qp.context) {
            self.raise(context, event, Element::Pointer(peer.id));
        }
        self.fail_qp(peer.id);
    }

    fn write(&mut self, peer: Peer, work: &Send, local: &[Segment]) -> bool {
        let length = bytes::total(local);
        let Some(target) = self.granted(peer, work, length, access::REMOTE_WRITE) else {
            return false;
        };
        // SAFETY: both are inside of memory that is registered, or copied, and the target's region
        // grants writing.
        unsafe { bytes::copy(local, &[target]) };
        true
    }

    fn read(&mut self, peer: Peer, work: &Send, local: &[Segment]) -> Outcome {
        let length = bytes::total(local);
        if peer.reads == 0 {
            self.fail_peer(peer, event::QP_REQ_ERR);
            return Failed(status::REM_INV_REQ_ERR);
        }
        let Some(source) = self.granted(peer, work, length, access::REMOTE_READ) else {
            return Failed(status::REM_ACCESS_ERR);
        };
        // SAFETY: both are inside of memory that is registered, ours for writing.
        unsafe { bytes::copy(&[source], local) };
        Done(length)
    }

    fn atomic(&mut self, peer: Peer, work: &Send, local: &[Segment]) -> Outcome {
        if bytes::total(local) != 8 {
            return Failed(status::LOC_LEN_ERR);
        }
        if peer.reads == 0 || work.remote % 8 != 0 {
            self.fail_peer(peer, event::QP_REQ_ERR);
            return Failed(status::REM_INV_REQ_ERR);
        }
        let Some((target, _)) = self.granted(peer, work, 8, access::REMOTE_ATOMIC) else {
            return Failed(status::REM_ACCESS_ERR);
        };
        // An I/O address of its own may be aligned where the memory is not.
        if target % 8 != 0 {
            self.fail_peer(peer, event::QP_REQ_ERR);
            return Failed(status::REM_INV_REQ_ERR);
        }
        let add = work.opcode == wr::FETCH_AND_ADD;
        let new = |there: u64| {
            if add {
                Some(there.wrapping_add(work.compare_add))
            } else {
                (there == work.compare_add).then_some(work.swap)
            }
        };
        // SAFETY: aligned, inside of memory that is registered for atomics, and so for writing.
        let before = unsafe { bytes::atomic(target, new) }.to_ne_bytes();
        // SAFETY: the local memory is registered for writing.
        unsafe { bytes::copy(&[bytes::segment_of(&before)], local) };
        Done(8)
    }

    /// What takes a receive of the peer's: sends, and writes with immediate data.
    fn message(&mut self, id: usize, peer: Peer, work: &Send, local: &[Segment]) -> Outcome {
        let length = bytes::total(local);
        let (number, rnr_retry) = match self.qps.get(&id) {
            Some(qp) => (qp.number, qp.attr.rnr_retry),
            None => return Wait,
        };
        if !self.has_recv(peer.id) {
            return if rnr_retry == 0 { Failed(status::RNR_RETRY_EXC_ERR) } else { Wait };
        }
        let is_write = work.opcode == wr::RDMA_WRITE_WITH_IMM;
        if is_write && !self.write(peer, work, local) {
            return Failed(status::REM_ACCESS_ERR);
        }
        let Some((recv, pd)) = self.take_recv_of(peer.id) else { return Wait };
        let mut told = completion(recv.wr_id, status::SUCCESS, 0);
        (told.opcode, told.byte_len, told.src_qp) = (wc::RECV, length as u32, number);
        let mut failed = None;
        match work.opcode {
            wr::RDMA_WRITE_WITH_IMM => told.opcode = wc::RECV_RDMA_WITH_IMM,
            _ if length > recv.room() => {
                failed = Some((status::LOC_LEN_ERR, status::REM_INV_REQ_ERR));
            }
            _ => match self.local(pd, &recv.sges, true) {
                // SAFETY: the target is inside of memory that is registered for writing; the source is
                // registered, or copied.
                Some(target) => unsafe { bytes::copy(local, &target) },
                None => failed = Some((status::LOC_PROT_ERR, status::REM_OP_ERR)),
            },
        }
        match work.opcode {
            wr::SEND_WITH_IMM | wr::RDMA_WRITE_WITH_IMM => {
                (told.imm_data, told.wc_flags) = (work.imm, wc::WITH_IMM);
            }
            wr::SEND_WITH_INV if failed.is_none() => {
                (told.imm_data, told.wc_flags) = (work.imm, wc::WITH_INV);
                if !self.invalidate(peer.pd, work.imm) && !self.unbind(peer.id, peer.pd, work.imm) {
                    failed = Some((status::REM_INV_REQ_ERR, status::REM_ACCESS_ERR));
                }
            }
            _ => {}
        }
        if let Some((here, there)) = failed {
            self.end_recv(peer.id, recv, pd, completion(0, here, 0), false);
            self.fail_qp(peer.id);
            return Failed(there);
        }
        self.end_recv(peer.id, recv, pd, told, work.flags & flag::SOLICITED != 0);
        Done(length)
    }

    fn has_recv(&self, id: usize) -> bool {
        let Some(qp) = self.qps.get(&id) else { return false };
        match qp.srq {
            Some(srq) => self.srqs.get(&srq).is_some_and(|srq| !srq.recvs.is_empty()),
            None => !qp.recvs.is_empty(),
        }
    }

    /// The next receive, and the protection domain that its memory is in.
    fn take_recv_of(&mut self, id: usize) -> Option<(Recv, usize)> {
        let qp = self.qps.get_mut(&id)?;
        let Some(srq) = qp.srq else { return Some((qp.recvs.pop_front()?, qp.pd)) };
        let queue = self.srqs.get_mut(&srq)?;
        let taken = (queue.recvs.pop_front()?, queue.pd);
        self.check_srq_limit(srq);
        Some(taken)
    }

    fn end_send(&mut self, id: usize, work: Send, why: c_uint, length: u64) {
        let Some(qp) = self.qps.get(&id) else { return };
        let mut told = completion(work.wr_id, why, qp.number);
        if why == status::SUCCESS {
            told.opcode = work.completes_as();
            told.byte_len = if work.writes() { length as u32 } else { NO_LENGTH };
        }
        let memory = work.memory(qp.pd);
        let cq = qp.send_cq;
        let cqe = Cqe { wc: told, place: Some(work.place), memory: Some(memory), solicited: false };
        self.complete(cq, id, cqe);
    }

    fn end_recv(&mut self, id: usize, recv: Recv, pd: usize, told: ibv_wc, solicited: bool) {
        let Some(qp) = self.qps.get(&id) else { return };
        let told = ibv_wc { wr_id: recv.wr_id, qp_num: qp.number, ..told };
        let memory: Memory = recv.memory(pd);
        let cq = qp.recv_cq;
        self.complete(
            cq,
            id,
            Cqe { wc: told, place: Some(recv.place), memory: Some(memory), solicited },
        );
    }

    /// A queue pair fails: all its work is flushed, in order.
    pub(crate) fn fail_qp(&mut self, id: usize) {
        let Some(qp) = self.qps.get_mut(&id) else { return };
        if qp.state == state::ERR {
            return;
        }
        qp.state = state::ERR;
        let (context, shares) = (qp.context, qp.srq.is_some());
        self.flush_sends(id);
        self.flush_recvs(id);
        if shares {
            self.raise(context, event::QP_LAST_WQE_REACHED, Element::Pointer(id));
        }
    }

    pub(crate) fn flush_sends(&mut self, id: usize) {
        self.busy.remove(&id);
        while let Some(work) = self.qps.get_mut(&id).and_then(|qp| qp.pending.pop_front()) {
            self.end_send(id, work, status::WR_FLUSH_ERR, 0);
        }
    }

    pub(crate) fn flush_recvs(&mut self, id: usize) {
        while let Some(qp) = self.qps.get_mut(&id) {
            let Some(recv) = qp.recvs.pop_front() else { return };
            let pd = qp.pd;
            self.end_recv(id, recv, pd, completion(0, status::WR_FLUSH_ERR, 0), false);
        }
    }

    /// A work request has ended: its completion goes where faults send it.
    fn complete(&mut self, cq: usize, qp: usize, mut cqe: Cqe) {
        let copies = self.faults.spoil(&mut cqe.wc);
        for copy in 0..copies {
            let first = copy == 0;
            let cqe = Cqe { place: cqe.place.filter(|_| first), ..cqe.clone() };
            if self.faults.holding {
                self.held.push_back(Held { cq, qp, cqe });
            } else {
                self.deliver(cq, cqe);
            }
        }
    }
}
