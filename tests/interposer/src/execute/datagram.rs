//! Carrying out sends of datagrams.

use super::Outcome::{self, Done, Failed, Wait};
use crate::bytes;
use crate::numbers::{flag, state, status, transport, wc, wr};
use crate::states;
use crate::work::{Send, completion};
use crate::world::{World, there};

impl World {
    /// One message to whomever it names: lost when that is nobody, or does not want it.
    pub(super) fn datagram(&mut self, id: usize, work: &Send) -> Outcome {
        let Some((pd, number)) = self.qps.get(&id).map(|qp| (qp.pd, qp.number)) else {
            return Wait;
        };
        let local = match &work.inline {
            Some(bytes) => Some(vec![bytes::segment_of(bytes)]),
            None => self.local(pd, &work.sges, false),
        };
        let Some(local) = local else { return Failed(status::LOC_PROT_ERR) };
        let Some(to) = work.to else { return Failed(status::LOC_QP_OP_ERR) };
        // The end of the program when it was destroyed: a real device would read what is not there.
        let handle = std::ptr::without_provenance::<u8>(to.handle);
        let handle = there(&mut self.ahs, handle, "address handle");
        if handle.pd != pd {
            return Failed(status::LOC_QP_OP_ERR);
        }
        let header = header(handle.source, handle.target);
        let length = bytes::total(&local);
        let peer = self.numbers.get(&to.number).copied();
        let takes = peer.and_then(|peer| self.qps.get(&peer)).is_some_and(|peer| {
            peer.transport == transport::UD
                && matches!(peer.state, state::RTR | state::RTS)
                && peer.attr.qkey == to.qkey
        });
        let Some(peer) = peer.filter(|_| takes) else { return Done(length) };
        if !self.has_recv(peer) {
            return Done(length);
        }
        let Some((recv, pd)) = self.take_recv_of(peer) else { return Done(length) };
        let mut told = completion(recv.wr_id, status::SUCCESS, 0);
        let came = length + header.len() as u64;
        (told.opcode, told.byte_len, told.src_qp) = (wc::RECV, came as u32, number);
        told.wc_flags = wc::GRH;
        if work.opcode == wr::SEND_WITH_IMM {
            (told.imm_data, told.wc_flags) = (work.imm, wc::GRH | wc::WITH_IMM);
        }
        let room = self.local(pd, &recv.sges, true);
        match room {
            Some(target) if came <= recv.room() => {
                let source: Vec<_> =
                    std::iter::once(bytes::segment_of(&header)).chain(local).collect();
                // SAFETY: the target is inside of memory that is registered for writing; the source is
                // registered, or copied, or here.
                unsafe { bytes::copy(&source, &target) };
                self.end_recv(peer, recv, pd, told, work.flags & flag::SOLICITED != 0);
            }
            _ => {
                let here = completion(0, status::LOC_LEN_ERR, 0);
                self.end_recv(peer, recv, pd, here, false);
            }
        }
        Done(length)
    }
}

/// What stands before a datagram: of addresses of IPv4 an IPv4 header in the second half, as RoCE v2 has it.
fn header(source: [u8; 16], target: [u8; 16]) -> [u8; 40] {
    let mut header = [0; 40];
    if states::is_v4(&source) {
        (header[20], header[28], header[29]) = (0x45, 64, 17);
        header[32..36].copy_from_slice(&source[12..]);
        header[36..].copy_from_slice(&target[12..]);
    } else {
        (header[0], header[6], header[7]) = (0x60, 17, 64);
        header[8..24].copy_from_slice(&source);
        header[24..].copy_from_slice(&target);
    }
    header
}
