//! Work requests that the device has.

use std::ffi::c_uint;

use crate::abi::{ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};
use crate::bytes;
use crate::numbers::{flag, status, wc, wr};
use crate::window::Bind;
use crate::world::World;

/// A send that the device has.
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) opcode: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) signaled: bool,
    pub(crate) sges: Vec<ibv_sge>,
    /// What was copied when it was posted.
    pub(crate) inline: Option<Box<[u8]>>,
    pub(crate) imm: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Of a datagram, where it goes.
    pub(crate) to: Option<To>,
    /// What the memory window that it binds is bound to.
    pub(crate) bind: Bind,
    pub(crate) place: Place,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub(crate) struct To {
    /// The address of the address handle.
    pub(crate) handle: usize,
    pub(crate) number: u32,
    pub(crate) qkey: u32,
}

/// A receive that the device has.
#[derive(Clone)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<ibv_sge>,
    pub(crate) place: Place,
}

/// The place of a work request in its queue, which its completion frees.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The queue pair, or the shared receive queue.
    pub(crate) owner: usize,
    /// A queue pair that was reset has none of its old work.
    pub(crate) epoch: u32,
    pub(crate) number: PlaceNumber,
}

#[derive(Clone, Copy)]
pub(crate) enum PlaceNumber {
    /// The number of a send: all up to it are free then.
    Send(u64),
    /// A receive of a queue pair.
    Recv,
    /// A receive of a shared receive queue.
    Shared,
}

/// Memory of a work request.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) pd: usize,
    pub(crate) sges: Vec<ibv_sge>,
    /// Whether the device writes to it.
    pub(crate) written: bool,
    /// The queue pair or shared receive queue whose end is the end of this.
    pub(crate) owner: usize,
}

/// The entries of a list of C's.
///
/// # Safety
///
/// There are so many.
unsafe fn list(sges: *const ibv_sge, count: i32) -> Vec<ibv_sge> {
    match usize::try_from(count) {
        // SAFETY: there are `count` by the caller's word.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(sges, count) }.to_vec(),
        _ => Vec::new(),
    }
}

impl Send {
    /// Takes in what C posts. Memory to be sent inline is copied.
    ///
    /// # Safety
    ///
    /// `wr` is a work request, its list has as many entries as it says, and inline memory is there.
    pub(crate) unsafe fn read(
        raw: *const ibv_send_wr,
        place: Place,
        all_signaled: bool,
        datagram: bool,
    ) -> Send {
        // SAFETY: the caller has a work request there.
        let raw = unsafe { &*raw };
        // SAFETY: as many entries as the caller says.
        let sges = unsafe { list(raw.sg_list, raw.num_sge) };
        let inline = (raw.send_flags & flag::INLINE != 0).then(|| {
            let segments: Vec<_> = sges.iter().map(|sge| (sge.addr, sge.length.into())).collect();
            // SAFETY: the caller's inline memory is there.
            unsafe { bytes::gather(&segments) }
        });
        let to = datagram.then(|| {
            // SAFETY: a queue pair of datagrams has this field written.
            let ud = unsafe { raw.wr.ud };
            To { handle: ud.ah.addr(), number: ud.remote_qpn, qkey: ud.remote_qkey }
        });
        let (mut remote, mut rkey, mut compare_add, mut swap) = (0, 0, 0, 0);
        match raw.opcode {
            wr::CMP_AND_SWP | wr::FETCH_AND_ADD => {
                // SAFETY: the opcode says that this is the field that was written.
                let atomic = unsafe { raw.wr.atomic };
                (remote, rkey) = (atomic.remote_addr, atomic.rkey);
                (compare_add, swap) = (atomic.compare_add, atomic.swap);
            }
            wr::RDMA_WRITE | wr::RDMA_WRITE_WITH_IMM | wr::RDMA_READ => {
                // SAFETY: as above.
                let rdma = unsafe { raw.wr.rdma };
                (remote, rkey) = (rdma.remote_addr, rdma.rkey);
            }
            _ => {}
        }
        Send {
            wr_id: raw.wr_id,
            opcode: raw.opcode,
            flags: raw.send_flags,
            signaled: all_signaled || raw.send_flags & flag::SIGNALED != 0,
            sges: if inline.is_some() { Vec::new() } else { sges },
            inline,
            imm: raw.imm_data,
            remote,
            rkey,
            compare_add,
            swap,
            to,
            bind: Bind::default(),
            place,
        }
    }

    /// The bind of a window of type 1, which is no work request of C's.
    pub(crate) fn bind(wr_id: u64, flags: c_uint, place: Place, bind: Bind) -> Send {
        Send {
            wr_id,
            opcode: wr::BIND_MW,
            flags,
            signaled: flags & flag::SIGNALED != 0,
            sges: Vec::new(),
            inline: None,
            imm: 0,
            remote: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            to: None,
            bind,
            place,
        }
    }

    /// Whether its memory is written.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.opcode, wr::RDMA_READ | wr::CMP_AND_SWP | wr::FETCH_AND_ADD)
    }

    pub(crate) fn memory(&self, pd: usize) -> Memory {
        let sges = self.sges.clone();
        Memory { pd, sges, written: self.writes(), owner: self.place.owner }
    }

    /// `enum ibv_wc_opcode` of its completion.
    pub(crate) fn completes_as(&self) -> c_uint {
        match self.opcode {
            wr::RDMA_WRITE | wr::RDMA_WRITE_WITH_IMM => wc::RDMA_WRITE,
            wr::RDMA_READ => wc::RDMA_READ,
            wr::BIND_MW => wc::BIND_MW,
            wr::LOCAL_INV => wc::LOCAL_INV,
            wr::CMP_AND_SWP => wc::COMP_SWAP,
            wr::FETCH_AND_ADD => wc::FETCH_ADD,
            _ => wc::SEND,
        }
    }
}

impl Recv {
    /// Takes in what C posts.
    ///
    /// # Safety
    ///
    /// `wr` is a work request, and its list has as many entries as it says.
    pub(crate) unsafe fn read(raw: *const ibv_recv_wr, place: Place) -> Recv {
        // SAFETY: the caller has a work request there.
        let raw = unsafe { &*raw };
        // SAFETY: as many entries as the caller says.
        Recv { wr_id: raw.wr_id, sges: unsafe { list(raw.sg_list, raw.num_sge) }, place }
    }

    pub(crate) fn memory(&self, pd: usize) -> Memory {
        Memory { pd, sges: self.sges.clone(), written: true, owner: self.place.owner }
    }

    /// How much it can take.
    pub(crate) fn room(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// A completion. Of one that failed all that means nothing is made to look wrong.
pub(crate) fn completion(wr_id: u64, status: c_uint, qp_num: u32) -> ibv_wc {
    let failed = status != status::SUCCESS;
    ibv_wc {
        wr_id,
        status,
        opcode: if failed { 0x7bad_0bad } else { 0 },
        vendor_err: if failed { 0x99 } else { 0 },
        byte_len: if failed { u32::MAX } else { 0 },
        imm_data: if failed { 0xbad_0bad } else { 0 },
        qp_num,
        src_qp: 0,
        wc_flags: if failed { u32::MAX } else { 0 },
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

impl World {
    /// A completion was polled: its place, and those of sends before it, can be used again.
    pub(crate) fn free_place(&mut self, place: Place) {
        match place.number {
            PlaceNumber::Shared => {
                if let Some(srq) = self.srqs.get_mut(&place.owner) {
                    srq.taken = srq.taken.saturating_sub(1);
                }
            }
            number => {
                let qp = self.qps.get_mut(&place.owner);
                let Some(qp) = qp.filter(|qp| qp.epoch == place.epoch) else { return };
                match number {
                    PlaceNumber::Send(number) => qp.freed = qp.freed.max(number + 1),
                    _ => qp.recvs_taken = qp.recvs_taken.saturating_sub(1),
                }
            }
        }
    }
}
