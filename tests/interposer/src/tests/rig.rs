//! Two connected queue pairs and a piece of memory.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::*;
use crate::channel::*;
use crate::context::*;
use crate::control::*;
use crate::cq::*;
use crate::device::*;
use crate::memory::*;
use crate::numbers::{access, flag, state, wr as op};
use crate::qp::*;

/// One at a time: there is one world.
static TURN: Mutex<()> = Mutex::new(());

pub(super) const ALL_RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE;
/// How much memory each side has.
pub(super) const SIZE: usize = 4096;

/// A context of `loop0` with a protection domain, a channel, a completion queue on it, 2 queue pairs on
/// that, and memory: the first half is the first queue pair's, so to speak.
pub(super) struct Rig {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq: *mut ibv_cq,
    pub(super) qps: [*mut ibv_qp; 2],
    pub(super) mr: *mut ibv_mr,
    pub(super) memory: *mut u8,
    _turn: MutexGuard<'static, ()>,
}

/// The open device of this name's place in the list.
pub(super) fn open(number: usize) -> *mut ibv_context {
    let list = ibv_get_device_list(None);
    // SAFETY: the list has both devices.
    let context = ibv_open_device(unsafe { list.add(number).read() });
    ibv_free_device_list(list);
    assert!(!context.is_null());
    context
}

/// Its extended operations, as C's inline functions find them.
pub(super) fn extended<'a>(context: *mut ibv_context) -> &'a verbs_context {
    let at = std::mem::offset_of!(verbs_context, context);
    // SAFETY: one stands around every context, and is never freed.
    unsafe { &*context.byte_sub(at).cast::<verbs_context>() }
}

pub(super) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Rig {
    /// Connected, ready to send.
    pub(super) fn new() -> Rig {
        let rig = Rig::unconnected();
        rig.connect();
        rig
    }

    pub(super) fn unconnected() -> Rig {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        rdma_fault_reset();
        let context = open(0);
        let pd = ibv_alloc_pd(context);
        let channel = ibv_create_comp_channel(context);
        let cq = ibv_create_cq(context, 63, null_mut(), channel, 0);
        let memory = Box::leak(vec![0_u64; SIZE * 2 / 8].into_boxed_slice()).as_mut_ptr();
        let mr = ibv_reg_mr(pd, memory.cast(), SIZE * 2, ALL_RIGHTS as c_int);
        assert!(!mr.is_null());
        let qps = [(); 2].map(|()| create_qp(pd, cq, null_mut()));
        Rig { context, pd, channel, cq, qps, mr, memory: memory.cast(), _turn: turn }
    }

    pub(super) fn connect(&self) {
        let [a, b] = self.qps;
        connect(a, b);
        connect(b, a);
    }

    /// The key of a peer's memory.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the region is there while the rig is.
        unsafe { (*self.mr).rkey }
    }

    pub(super) fn address(&self, offset: usize) -> u64 {
        self.memory.expose_provenance() as u64 + offset as u64
    }

    /// These bytes of the memory, for a work request.
    pub(super) fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        // SAFETY: the region is there while the rig is.
        ibv_sge { addr: self.address(offset), length, lkey: unsafe { (*self.mr).lkey } }
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE * 2);
        // SAFETY: inside of the memory.
        unsafe { self.memory.add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    pub(super) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= SIZE * 2);
        // SAFETY: inside of the memory.
        unsafe { std::slice::from_raw_parts(self.memory.add(offset), length) }.to_vec()
    }

    /// All completions there are.
    pub(super) fn poll(&self) -> Vec<ibv_wc> {
        poll_all(self.cq)
    }

    /// Their `wr_id`, status and opcode.
    pub(super) fn polled(&self) -> Vec<(u64, c_uint, c_uint)> {
        let told = self.poll().into_iter();
        told.map(|wc| (wc.wr_id, wc.status, if wc.status == 0 { wc.opcode } else { 0 })).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        rdma_fault_reset();
        for kind in ["qp", "srq"] {
            while let Some(object) = nth(kind, 0) {
                let gone = match kind {
                    "qp" => ibv_destroy_qp(object.cast()),
                    _ => crate::srq::ibv_destroy_srq(object.cast()),
                };
                assert_eq!(gone, 0);
            }
        }
        while let Some(cq) = nth("cq", 0) {
            assert_eq!(ibv_destroy_cq(cq.cast()), 0);
        }
        while let Some(mr) = nth("mr", 0) {
            assert_eq!(ibv_dereg_mr(mr.cast()), 0);
        }
        assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
        assert_eq!(ibv_dealloc_pd(self.pd), 0);
        assert_eq!(ibv_close_device(self.context), 0);
        for kind in ["context", "pd", "mr", "channel", "cq", "qp", "srq", "orphan", "held"] {
            assert_eq!(live(kind), 0, "{kind}");
        }
        let memory = std::ptr::slice_from_raw_parts_mut(self.memory.cast::<u64>(), SIZE * 2 / 8);
        // SAFETY: leaked by `unconnected`, and the device has it no more.
        drop(unsafe { Box::from_raw(memory) });
    }
}

pub(super) fn create_qp(pd: *mut ibv_pd, cq: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
    let cap = ibv_qp_cap {
        max_send_wr: 7,
        max_recv_wr: 7,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
    let (send_cq, recv_cq, qp_context) = (cq, cq, null_mut());
    let mut attr =
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type: 2, sq_sig_all: 0 };
    // SAFETY: the attributes are there.
    let qp = unsafe { ibv_create_qp(pd, &mut attr) };
    assert!(!qp.is_null());
    qp
}

pub(super) const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
pub(super) const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15;
pub(super) const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13;

/// All that the three changes need to connect to `peer`.
pub(super) fn attributes(peer: *mut ibv_qp) -> ibv_qp_attr {
    // SAFETY: all zero is a value of this struct of integers.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    // SAFETY: a queue pair's number does not change.
    attr.dest_qp_num = unsafe { (*peer).qp_num };
    attr.port_num = 1;
    attr.qp_access_flags = access::REMOTE;
    attr.path_mtu = 5;
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (1, 1);
    (attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry) = (12, 14, 7, 7);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    attr.ah_attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 10];
    attr
}

pub(super) fn modify(qp: *mut ibv_qp, attr: &ibv_qp_attr, to: c_uint, mask: c_int) -> c_int {
    let mut attr = ibv_qp_attr { qp_state: to, ..*attr };
    // SAFETY: the attributes are there.
    unsafe { ibv_modify_qp(qp, &mut attr, mask) }
}

/// From Reset to Rts.
pub(super) fn connect(qp: *mut ibv_qp, peer: *mut ibv_qp) {
    let attr = attributes(peer);
    for (to, mask) in [(state::INIT, TO_INIT), (state::RTR, TO_RTR), (state::RTS, TO_RTS)] {
        assert_eq!(modify(qp, &attr, to, mask), 0, "to {to}");
    }
}

/// The state, as the device has it.
pub(super) fn state_of(qp: *mut ibv_qp) -> c_uint {
    // SAFETY: all zero is a value of these structs of integers and pointers.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: there is room for both.
    assert_eq!(unsafe { ibv_query_qp(qp, &mut attr, 1, &mut init) }, 0);
    attr.qp_state
}

pub(super) fn poll_all(cq: *mut ibv_cq) -> Vec<ibv_wc> {
    // SAFETY: all zero is a value of this struct of integers.
    let mut room: [ibv_wc; 128] = unsafe { zeroed() };
    // SAFETY: the queue is there, and so is the room.
    let poll = unsafe { (*(*cq).context).ops.poll_cq.expect("an operation") };
    // SAFETY: as above.
    let count = unsafe { poll(cq, 128, room.as_mut_ptr()) };
    room[..usize::try_from(count).expect("a count")].to_vec()
}

/// A work request that has its pieces with it.
#[derive(Clone)]
pub(super) struct SendWr {
    raw: ibv_send_wr,
    sges: Vec<ibv_sge>,
}

impl Deref for SendWr {
    type Target = ibv_send_wr;

    fn deref(&self) -> &ibv_send_wr {
        &self.raw
    }
}

impl DerefMut for SendWr {
    fn deref_mut(&mut self) -> &mut ibv_send_wr {
        &mut self.raw
    }
}

/// A send of these pieces, signaled.
pub(super) fn send_wr(wr_id: u64, sges: &[ibv_sge]) -> SendWr {
    // SAFETY: all zero is a value of this struct of integers, pointers and a union of them.
    let mut raw: ibv_send_wr = unsafe { zeroed() };
    (raw.wr_id, raw.opcode, raw.send_flags) = (wr_id, op::SEND, flag::SIGNALED);
    SendWr { raw, sges: sges.to_vec() }
}

/// A request for a peer's memory.
pub(super) fn rdma_wr(
    wr_id: u64,
    opcode: c_uint,
    sges: &[ibv_sge],
    remote_addr: u64,
    rkey: u32,
) -> SendWr {
    let mut wr = send_wr(wr_id, sges);
    wr.opcode = opcode;
    wr.wr.rdma = rdma { remote_addr, rkey };
    wr
}

/// Posts a chain of these; what it gave, and the place of the one that was named.
pub(super) fn post_sends(qp: *mut ibv_qp, wrs: &mut [SendWr]) -> (c_int, Option<usize>) {
    let mut chain: Vec<ibv_send_wr> = Vec::new();
    for wr in wrs {
        let (sg_list, num_sge) = (wr.sges.as_mut_ptr(), wr.sges.len() as c_int);
        chain.push(ibv_send_wr { sg_list, num_sge, ..wr.raw });
    }
    let first = chain.as_mut_ptr();
    for n in 1..chain.len() {
        // SAFETY: inside of the chain.
        unsafe { (*first.add(n - 1)).next = first.add(n) };
    }
    let mut bad = null_mut();
    // SAFETY: the queue pair is there; the chain ends with its last, whose `next` is NULL.
    let gave =
        unsafe { ((*(*qp).context).ops.post_send.expect("an operation"))(qp, first, &mut bad) };
    let place = (bad.addr().wrapping_sub(first.addr())) / size_of::<ibv_send_wr>();
    (gave, (!bad.is_null()).then_some(place))
}

pub(super) fn post_send(qp: *mut ibv_qp, wr: SendWr) {
    assert_eq!(post_sends(qp, &mut [wr]), (0, None));
}

/// Posts a receive.
pub(super) fn post_recv(qp: *mut ibv_qp, wr_id: u64, sges: &mut [ibv_sge]) -> c_int {
    let (sg_list, num_sge) = (sges.as_mut_ptr(), sges.len() as c_int);
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
    let mut bad = null_mut();
    // SAFETY: the queue pair is there, and so is the work request.
    unsafe { ((*(*qp).context).ops.post_recv.expect("an operation"))(qp, &mut wr, &mut bad) }
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

pub(super) fn live(kind: &str) -> i64 {
    // SAFETY: a text.
    unsafe { rdma_fault_live(c(kind).as_ptr()) }
}

pub(super) fn nth(kind: &str, number: c_int) -> Option<*mut c_void> {
    // SAFETY: a text.
    let found = unsafe { rdma_fault_nth(c(kind).as_ptr(), number) };
    (!found.is_null()).then_some(found)
}

pub(super) fn fail(verb: &str, errno: c_int, every: c_int, times: c_int) {
    // SAFETY: a text.
    assert_eq!(unsafe { rdma_fault_fail(c(verb).as_ptr(), errno, every, times) }, 0, "{verb}");
}

pub(super) fn fail_post(verb: &str, mode: c_int, at: c_int) {
    // SAFETY: a text.
    let set = unsafe { rdma_fault_post(c(verb).as_ptr(), mode, at, libc::EIO, 1) };
    assert_eq!(set, 0, "{verb}");
}

pub(super) fn spoil(what: &str, value: u64, count: c_int) {
    // SAFETY: a text.
    assert_eq!(unsafe { rdma_fault_spoil(c(what).as_ptr(), value, count) }, 0, "{what}");
}

pub(super) fn count(verb: &str) -> i64 {
    // SAFETY: a text.
    unsafe { rdma_fault_count(c(verb).as_ptr()) }
}
