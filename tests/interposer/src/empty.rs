//! `empty0`: every signaled work request completes at once, and nothing else is done. What a call
//! costs here is what a call costs. One thread at a time uses a completion queue and what is on it. Nothing
//! is checked, and no call counted.

use std::ffi::c_int;

use crate::abi::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc};
use crate::cq::CqFront;
use crate::numbers::{flag, wc};
use crate::qp::QpFront;

pub(crate) mod polling;
pub(crate) mod posting;

/// What every completion says was transferred.
const BYTES: u32 = 64;

/// The completions of a completion queue. Of more than there is room for, old ones are overwritten.
pub(crate) struct Ring {
    head: u32,
    tail: u32,
    mask: u32,
    entries: Box<[Entry]>,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    wr_id: u64,
    qp_num: u32,
    opcode: u32,
}

impl Entry {
    pub(crate) const NONE: Entry = Entry { wr_id: 0, qp_num: 0, opcode: 0 };
}

impl Ring {
    /// A ring for so many completions, which is there for ever.
    pub(crate) fn leak(capacity: u32) -> *mut Ring {
        let room = (capacity + 1).next_power_of_two();
        let entries = vec![Entry::NONE; room as usize];
        let ring = Ring { head: 0, tail: 0, mask: room - 1, entries: entries.into_boxed_slice() };
        Box::leak(Box::new(ring))
    }

    #[inline(always)]
    fn push(&mut self, entry: Entry) {
        self.put(self.tail, entry);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Where the next goes.
    #[inline(always)]
    fn tail(&self) -> u32 {
        self.tail
    }

    /// Puts one where it is not seen yet.
    #[inline(always)]
    fn put(&mut self, at: u32, entry: Entry) {
        // SAFETY: the mask is the number of entries less one.
        unsafe { *self.entries.get_unchecked_mut((at & self.mask) as usize) = entry };
    }

    /// All before `tail` are seen.
    #[inline(always)]
    fn publish(&mut self, tail: u32) {
        self.tail = tail;
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Entry> {
        if self.head == self.tail {
            return None;
        }
        // SAFETY: the mask is the number of entries less one.
        let entry = unsafe { *self.entries.get_unchecked((self.head & self.mask) as usize) };
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }
}

/// # Safety
///
/// As C's; the queue pair is one of `empty0`, used by one thread at a time.
pub(crate) unsafe extern "C" fn send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    let front = qp.cast::<QpFront>();
    // SAFETY: queue pairs are made with this front around them, and rings stay.
    let (ring, qp_num, all) =
        unsafe { (&mut *(*front).send_ring, (*front).ex.qp.qp_num, (*front).all_signaled) };
    while !wr.is_null() {
        // SAFETY: the chain is the caller's, which ends with NULL.
        let (wr_id, flags, next) = unsafe { ((*wr).wr_id, (*wr).send_flags, (*wr).next) };
        if flags & flag::SIGNALED | all != 0 {
            ring.push(Entry { wr_id, qp_num, opcode: wc::SEND });
        }
        wr = next;
    }
    0
}

/// # Safety
///
/// As [`send`].
pub(crate) unsafe extern "C" fn recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let front = qp.cast::<QpFront>();
    // SAFETY: queue pairs are made with this front around them, and rings stay.
    let (ring, qp_num) = unsafe { (&mut *(*front).recv_ring, (*front).ex.qp.qp_num) };
    while !wr.is_null() {
        // SAFETY: the chain is the caller's, which ends with NULL.
        let (wr_id, next) = unsafe { ((*wr).wr_id, (*wr).next) };
        ring.push(Entry { wr_id, qp_num, opcode: wc::RECV });
        wr = next;
    }
    0
}

/// There are no shared receive queues worth the name here.
pub(crate) unsafe extern "C" fn srq_recv(
    _: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller has room for a pointer.
    unsafe { bad.write(wr) };
    libc::EOPNOTSUPP
}

/// # Safety
///
/// As C's; the completion queue is one of `empty0`, used by one thread at a time.
pub(crate) unsafe extern "C" fn poll(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: completion queues are made with this front around them, and rings stay.
    let ring = unsafe { &mut *(*cq.cast::<CqFront>()).ring };
    let mut count = 0;
    while count < room {
        let Some(entry) = ring.pop() else { break };
        let completion = ibv_wc {
            wr_id: entry.wr_id,
            opcode: entry.opcode,
            byte_len: BYTES,
            qp_num: entry.qp_num,
            ..ibv_wc::ZERO
        };
        // SAFETY: `count` is below the room that the caller has.
        unsafe { wc.add(count as usize).write(completion) };
        count += 1;
    }
    count
}

/// Nobody is ever told.
pub(crate) unsafe extern "C" fn req_notify(_: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    0
}
