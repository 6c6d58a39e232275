//! Posting call by call, on both devices.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::polling::call;
use super::rig::*;
use crate::abi::*;
use crate::control::*;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::numbers::{flag, state, status, transport, wc, window, wr as op};
use crate::qp::extended::ibv_qp_to_qp_ex;
use crate::qp::ibv_destroy_qp;

/// All that a reliable connection has.
const ALL: u64 = (1 << 10) - 1;

/// What a queue pair is made with that needs nothing special.
pub(super) fn asked(pd: *mut ibv_pd, cq: *mut ibv_cq, ops: u64) -> ibv_qp_init_attr_ex {
    // SAFETY: all zero is a value of this struct of integers and pointers.
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.pd, attr.send_cq, attr.recv_cq) = (pd, cq, cq);
    (attr.qp_type, attr.comp_mask, attr.send_ops_flags) = (transport::RC, 1 | 1 << 6, ops);
    attr.cap = ibv_qp_cap {
        max_send_wr: 7,
        max_recv_wr: 7,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
    attr
}

pub(super) fn try_make(attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, i32> {
    // SAFETY: the domain is there, and so is its context.
    let qp = unsafe {
        let context = (*attr.pd).context;
        (extended(context).create_qp_ex.expect("an operation"))(context, attr)
    };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

/// A queue pair, and what one posts on it.
#[derive(Clone, Copy)]
pub(super) struct Wr {
    pub(super) qp: *mut ibv_qp_ex,
}

impl Wr {
    pub(super) fn make(attr: &mut ibv_qp_init_attr_ex) -> Wr {
        Wr { qp: ibv_qp_to_qp_ex(try_make(attr).expect("a queue pair")) }
    }

    fn with_flags(self, wr_id: u64, flags: u32) -> *mut ibv_qp_ex {
        // SAFETY: the queue pair is there.
        unsafe { ((*self.qp).wr_id, (*self.qp).wr_flags) = (wr_id, flags) };
        self.qp
    }

    /// The next work request has this number, and is signaled.
    pub(super) fn next(self, wr_id: u64) -> *mut ibv_qp_ex {
        self.with_flags(wr_id, flag::SIGNALED)
    }

    pub(super) fn next_inline(self, wr_id: u64) -> *mut ibv_qp_ex {
        self.with_flags(wr_id, flag::SIGNALED | flag::INLINE)
    }

    pub(super) fn sge(self, sge: ibv_sge) {
        call!(self.qp, wr_set_sge, sge.lkey, sge.addr, sge.length);
    }

    pub(super) fn none(self) {
        call!(self.qp, wr_set_sge_list, 0, std::ptr::null());
    }

    pub(super) fn inline(self, bytes: &[u8]) {
        call!(self.qp, wr_set_inline_data, bytes.as_ptr().cast_mut().cast(), bytes.len());
    }

    /// A whole write of nothing.
    fn write(self, rig: &Rig, wr_id: u64) {
        call!(self.next(wr_id), wr_rdma_write, rig.rkey(), rig.address(0));
        self.none();
    }

    fn start(self) {
        call!(self.qp, wr_start);
    }

    fn complete(self) -> i32 {
        call!(self.qp, wr_complete)
    }
}

/// An extended queue pair that is connected to the first of the rig.
pub(super) fn connected(rig: &Rig) -> Wr {
    let wr = Wr::make(&mut asked(rig.pd, rig.cq, ALL));
    connect(wr.qp.cast(), rig.qps[0]);
    connect(rig.qps[0], wr.qp.cast());
    wr
}

/// Two extended queue pairs of datagrams, and where both are reached.
pub(super) fn datagrams(rig: &Rig) -> ([Wr; 2], *mut ibv_ah) {
    let pair = [(); 2].map(|()| {
        let sends = 1 << op::SEND | 1 << op::SEND_WITH_IMM;
        let mut attr = asked(rig.pd, rig.cq, sends);
        attr.qp_type = transport::UD;
        let wr = Wr::make(&mut attr);
        let mut attr = attributes(wr.qp.cast());
        attr.qkey = 0x11;
        for (to, mask) in [(1, 1 | 1 << 4 | 1 << 5 | 1 << 6), (2, 1), (3, 1 | 1 << 16)] {
            assert_eq!(modify(wr.qp.cast(), &attr, to, mask), 0, "to {to}");
        }
        wr
    });
    let mut attr = attributes(rig.qps[0]).ah_attr;
    // SAFETY: the attributes are there.
    let ah = unsafe { crate::address::ibv_create_ah(rig.pd, &mut attr) };
    assert!(!ah.is_null());
    (pair, ah.cast())
}

#[test]
fn every_work_request_does_what_a_plain_one_does() {
    let rig = Rig::unconnected();
    let wr = connected(&rig);
    let (rkey, there) = (rig.rkey(), |offset| rig.address(SIZE + offset));
    for n in 11..=13 {
        assert_eq!(post_recv(rig.qps[0], n, &mut [rig.sge(SIZE + 64, 64)]), 0);
    }
    rig.write(0, b"written, and read again");
    rig.write(SIZE + 32, &7_u64.to_ne_bytes());
    wr.start();
    call!(wr.next(1), wr_rdma_write, rkey, there(0));
    wr.sge(rig.sge(0, 7));
    call!(wr.next(2), wr_rdma_write_imm, rkey, there(7), 0x0a0b_0c0d);
    let pieces = [rig.sge(7, 6), rig.sge(13, 10)];
    call!(wr.qp, wr_set_sge_list, 2, pieces.as_ptr());
    call!(wr.next(3), wr_rdma_read, rkey, there(0));
    wr.sge(rig.sge(100, 23));
    call!(wr.next(4), wr_atomic_fetch_add, rkey, there(32), 5);
    wr.sge(rig.sge(200, 8));
    call!(wr.next(5), wr_atomic_cmp_swp, rkey, there(32), 12, 99);
    wr.sge(rig.sge(208, 8));
    call!(wr.next(6), wr_send);
    wr.sge(rig.sge(0, 7));
    call!(wr.next(7), wr_send_imm, 0x0102_0304);
    wr.none();
    assert!(rig.poll().is_empty());
    assert_eq!(rig.read(SIZE, 1), [0], "nothing is taken yet");
    assert_eq!(wr.complete(), 0);
    let told = rig.poll();
    let short: Vec<_> = told.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
    let expected = [
        (1, 0, wc::RDMA_WRITE),
        (11, 0, wc::RECV_RDMA_WITH_IMM),
        (2, 0, wc::RDMA_WRITE),
        (3, 0, wc::RDMA_READ),
        (4, 0, wc::FETCH_ADD),
        (5, 0, wc::COMP_SWAP),
        (12, 0, wc::RECV),
        (6, 0, wc::SEND),
        (13, 0, wc::RECV),
        (7, 0, wc::SEND),
    ];
    assert_eq!(short, expected);
    assert_eq!((told[1].imm_data, told[8].imm_data), (0x0a0b_0c0d, 0x0102_0304));
    assert_eq!(rig.read(100, 23), b"written, and read again");
    assert_eq!(rig.read(200, 8), 7_u64.to_ne_bytes());
    assert_eq!(rig.read(208, 8), 12_u64.to_ne_bytes());
    assert_eq!(rig.read(SIZE + 32, 8), 99_u64.to_ne_bytes());
    assert_eq!(rig.read(SIZE + 64, 7), b"written");
    // A plain post is one between two of these.
    post_send(wr.qp.cast(), rdma_wr(8, op::RDMA_WRITE, &[], there(0), rkey));
    assert_eq!(rig.polled(), [(8, 0, wc::RDMA_WRITE)]);
    assert_eq!(["wr_start", "ibv_wr_complete", "wr_abort"].map(count), [1, 1, 0]);
}

#[test]
fn windows_are_bound_and_keys_invalidated() {
    let rig = Rig::unconnected();
    let wr = connected(&rig);
    let pd = rig.pd;
    let rights = ALL_RIGHTS | crate::numbers::access::MW_BIND;
    let mr = crate::memory::ibv_reg_mr(pd, rig.memory.cast(), SIZE, rights as i32);
    // SAFETY: the context is open.
    let alloc = unsafe { (*rig.context).ops.alloc_mw.expect("an operation") };
    // SAFETY: the domain is there.
    let mw = unsafe { alloc(pd, window::TYPE_2) };
    // SAFETY: the window is there.
    let rkey = unsafe { (*mw).rkey } + 1;
    let info = ibv_mw_bind_info { mr, addr: rig.address(0), length: 64, mw_access_flags: 2 };
    wr.start();
    call!(wr.next(1), wr_bind_mw, mw, rkey, &info);
    call!(wr.next(2), wr_local_inv, rkey);
    assert_eq!(wr.complete(), 0);
    assert_eq!(rig.polled(), [(1, 0, wc::BIND_MW), (2, 0, wc::LOCAL_INV)]);
    assert_eq!(post_recv(rig.qps[0], 11, &mut []), 0);
    wr.start();
    call!(wr.next(3), wr_send_inv, rig.rkey());
    wr.none();
    assert_eq!(wr.complete(), 0);
    let told = rig.poll();
    assert_eq!((told[0].imm_data, told[0].wc_flags), (rig.rkey(), wc::WITH_INV));
    // SAFETY: the window is there, and bound to nothing.
    assert_eq!(unsafe { ((*rig.context).ops.dealloc_mw.expect("one"))(mw) }, 0);
}

#[test]
fn inline_data_is_copied_when_it_is_set() {
    let rig = Rig::unconnected();
    let wr = connected(&rig);
    assert_eq!(post_recv(rig.qps[0], 11, &mut [rig.sge(SIZE, 64)]), 0);
    let mut data = *b"inline, and gathered";
    wr.start();
    call!(wr.next_inline(1), wr_send);
    wr.inline(&data[..6]);
    call!(wr.next_inline(2), wr_rdma_write, rig.rkey(), rig.address(SIZE + 64));
    let piece = |bytes: &mut [u8]| ibv_data_buf {
        addr: bytes.as_mut_ptr().cast::<c_void>(),
        length: bytes.len(),
    };
    let (front, back) = data.split_at_mut(8);
    let list = [piece(back), piece(front)];
    call!(wr.qp, wr_set_inline_data_list, 2, list.as_ptr());
    call!(wr.next_inline(3), wr_rdma_write, rig.rkey(), rig.address(SIZE + 64));
    call!(wr.qp, wr_set_inline_data_list, 0, std::ptr::null());
    data.fill(0);
    assert_eq!(wr.complete(), 0);
    assert_eq!(rig.poll().len(), 4);
    assert_eq!(rig.read(SIZE, 6), b"inline");
    assert_eq!(rig.read(SIZE + 64, 20), b"and gatheredinline, ");
}

#[test]
fn only_what_was_asked_for_can_be_posted() {
    let rig = Rig::new();
    for number in [0, 1] {
        let context = open(number);
        let pd = crate::memory::ibv_alloc_pd(context);
        let cq = ibv_create_cq(context, 7, null_mut(), null_mut(), 0);
        for ops in (0..10).map(|bit| 1 << bit).chain([ALL, 0]) {
            let wr = Wr::make(&mut asked(pd, cq, ops));
            // SAFETY: the queue pair is there.
            let there = unsafe { &*wr.qp };
            let has = [
                there.wr_rdma_write.is_some(),
                there.wr_rdma_write_imm.is_some(),
                there.wr_send.is_some(),
                there.wr_send_imm.is_some(),
                there.wr_rdma_read.is_some(),
                there.wr_atomic_cmp_swp.is_some(),
                there.wr_atomic_fetch_add.is_some(),
                there.wr_local_inv.is_some(),
                there.wr_bind_mw.is_some(),
                there.wr_send_inv.is_some(),
            ];
            let bits = has.iter().enumerate().map(|(bit, has)| u64::from(*has) << bit);
            assert_eq!(bits.sum::<u64>(), ops);
            assert!(there.wr_set_ud_addr.is_none());
            assert!(there.wr_set_sge.is_some() && there.wr_set_inline_data_list.is_some());
            assert_eq!(ibv_destroy_qp(wr.qp.cast()), 0);
        }
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(crate::memory::ibv_dealloc_pd(pd), 0);
        assert_eq!(crate::context::ibv_close_device(context), 0);
    }
    drop(rig);
}

#[test]
fn what_cannot_be_is_not_made() {
    let rig = Rig::new();
    let refused = |change: fn(&mut ibv_qp_init_attr_ex)| {
        let mut attr = asked(rig.pd, rig.cq, ALL);
        change(&mut attr);
        try_make(&mut attr).expect_err("refused")
    };
    assert_eq!(refused(|attr| attr.comp_mask |= 1 << 2), libc::EOPNOTSUPP);
    assert_eq!(refused(|attr| attr.comp_mask = 1 << 6), libc::EINVAL);
    assert_eq!(refused(|attr| attr.send_ops_flags = 1 << 10), libc::EOPNOTSUPP);
    assert_eq!(refused(|attr| attr.qp_type = transport::UC), libc::EOPNOTSUPP);
    assert_eq!(refused(|attr| attr.qp_type = transport::UD), libc::EOPNOTSUPP);
    assert_eq!(refused(|attr| attr.send_cq = null_mut()), libc::EINVAL);
    assert_eq!(refused(|attr| attr.cap.max_send_sge = 33), libc::EINVAL);
    fail("ibv_create_qp_ex", libc::ENOMEM, 1, 1);
    assert_eq!(refused(|_| {}), libc::ENOMEM);
    let mut attr = asked(rig.pd, rig.cq, ALL);
    attr.cap.max_send_wr = 8;
    let qp = try_make(&mut attr).expect("a queue pair");
    assert_eq!(attr.cap.max_send_wr, 15, "what was granted");
    fail("qp_to_qp_ex", libc::EIO, 1, 1);
    assert!(ibv_qp_to_qp_ex(qp).is_null(), "as told");
    assert_eq!(ibv_qp_to_qp_ex(qp).addr(), qp.addr());
    // Without the flag it is a plain one, as are those of the plain call.
    let mut attr = asked(rig.pd, rig.cq, 0);
    attr.comp_mask = 1;
    assert!(ibv_qp_to_qp_ex(try_make(&mut attr).expect("a queue pair")).is_null());
    assert!(ibv_qp_to_qp_ex(rig.qps[0]).is_null());
    assert_eq!(["create_qp", "create_qp_ex"].map(count), [2, 10]);
}

#[test]
fn a_post_is_taken_as_a_whole_or_not_at_all() {
    let rig = Rig::unconnected();
    let wr = Wr::make(&mut asked(rig.pd, rig.cq, ALL));
    wr.start();
    wr.write(&rig, 1);
    assert_eq!(wr.complete(), libc::EINVAL, "not connected");
    let wr = connected(&rig);
    wr.start();
    assert_eq!(wr.complete(), 0, "nothing");
    wr.start();
    for n in 0..8 {
        wr.write(&rig, n);
    }
    assert_eq!(wr.complete(), libc::ENOMEM, "one too many");
    wr.start();
    wr.write(&rig, 1);
    call!(wr.next_inline(2), wr_send);
    wr.inline(&[0; 65]);
    wr.write(&rig, 3);
    assert_eq!(wr.complete(), libc::EINVAL, "too long");
    wr.start();
    wr.write(&rig, 1);
    call!(wr.next(2), wr_send);
    call!(wr.qp, wr_set_sge_list, 5, [rig.sge(0, 1); 5].as_ptr());
    assert_eq!(wr.complete(), libc::EINVAL, "too many pieces");
    wr.start();
    wr.write(&rig, 1);
    call!(wr.qp, wr_abort);
    assert!(rig.poll().is_empty());
    // All places are free still; what was there before stays when nothing else is taken.
    rdma_fault_stall(1);
    wr.start();
    (0..5).for_each(|n| wr.write(&rig, n));
    assert_eq!(wr.complete(), 0);
    wr.start();
    (5..8).for_each(|n| wr.write(&rig, n));
    assert_eq!(wr.complete(), libc::ENOMEM);
    wr.start();
    (5..7).for_each(|n| wr.write(&rig, n));
    assert_eq!(wr.complete(), 0);
    rdma_fault_stall(0);
    let numbers: Vec<_> = rig.polled().iter().map(|(wr_id, ..)| *wr_id).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_dead_queue_pair_flushes_what_is_told_to_it() {
    let rig = Rig::unconnected();
    let wr = connected(&rig);
    assert_eq!(rdma_fault_break(wr.qp.cast()), 0);
    assert_eq!(state_of(wr.qp.cast()), state::ERR);
    wr.start();
    wr.write(&rig, 1);
    wr.write(&rig, 2);
    assert_eq!(wr.complete(), 0);
    assert_eq!(rig.polled(), [1, 2].map(|n| (n, status::WR_FLUSH_ERR, 0)));
    wr.start();
    (0..8).for_each(|n| wr.write(&rig, n));
    assert_eq!(wr.complete(), libc::ENOMEM);
    assert!(rig.poll().is_empty());
}

#[test]
fn posts_fail_in_every_way() {
    let rig = Rig::unconnected();
    let wr = connected(&rig);
    let post = |count: u64| {
        wr.start();
        (0..count).for_each(|n| wr.write(&rig, n));
        (wr.complete(), rig.poll().len())
    };
    // How, and what was taken.
    for (mode, taken) in [(0, 0), (1, 3), (2, 0), (3, 3), (4, 0), (5, 1)] {
        fail_post("wr_complete", mode, 1);
        assert_eq!(post(3), (libc::EIO, taken), "{mode}");
        assert_eq!(post(3), (0, 3), "only once");
    }
    fail_post("wr_complete", 5, 3);
    assert_eq!(post(3), (0, 3), "none has that place");
    assert_eq!(post(4), (libc::EIO, 3));
    fail("wr_complete", libc::EAGAIN, 2, 1);
    assert_eq!(post(1), (0, 1));
    assert_eq!(post(1), (libc::EAGAIN, 0));
    assert_eq!(post(1), (0, 1));
    // The plain call is another.
    fail_post("post_send", 5, 1);
    assert_eq!(post(3), (0, 3));
    let wrs = [1, 2, 3].map(|n| rdma_wr(n, op::RDMA_WRITE, &[], rig.address(0), rig.rkey()));
    assert_eq!(post_sends(wr.qp.cast(), &mut wrs.clone()), (libc::EIO, None));
    assert_eq!(rig.poll().len(), 1);
}

#[test]
fn datagrams_are_told_call_by_call() {
    let rig = Rig::new();
    let ([from, to], ah) = datagrams(&rig);
    assert_eq!(post_recv(to.qp.cast(), 11, &mut [rig.sge(SIZE, 64)]), 0);
    rig.write(0, b"datagram");
    // SAFETY: numbers do not change.
    let [number, other] = [from, to].map(|wr| unsafe { (*wr.qp).qp.qp_num });
    from.start();
    call!(from.next(1), wr_send_imm, 5);
    // Setters come in any order.
    call!(from.qp, wr_set_ud_addr, ah, other, 0x11);
    from.sge(rig.sge(0, 8));
    call!(from.next(2), wr_send);
    from.none();
    call!(from.qp, wr_set_ud_addr, ah, other, 0x12);
    assert_eq!(from.complete(), 0);
    let told = rig.poll();
    assert_eq!(told.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [11, 1, 2]);
    assert_eq!((told[0].byte_len, told[0].src_qp, told[0].imm_data), (48, number, 5));
    assert_eq!(rig.read(SIZE + 40, 8), b"datagram");
    assert_eq!(crate::address::ibv_destroy_ah(ah.cast()), 0);
}

#[test]
fn the_empty_device_takes_what_is_told() {
    let rig = Rig::new();
    let context = open(1);
    let pd = crate::memory::ibv_alloc_pd(context);
    let cq = ibv_create_cq(context, 15, null_mut(), null_mut(), 0);
    let wr = Wr::make(&mut asked(pd, cq, ALL));
    for _ in 0..10 {
        wr.start();
        call!(wr.next(1), wr_send);
        wr.none();
        call!(wr.with_flags(2, 0), wr_rdma_write, 0, 0);
        wr.inline(b"anything");
        call!(wr.next(3), wr_atomic_fetch_add, 0, 0, 0);
        wr.sge(rig.sge(0, 8));
        assert!(poll_all(cq).is_empty(), "not yet");
        assert_eq!(wr.complete(), 0);
        let told: Vec<_> = poll_all(cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(told, [(1, 0), (3, 0)]);
        wr.start();
        call!(wr.next(4), wr_send);
        call!(wr.qp, wr_abort);
        assert!(poll_all(cq).is_empty());
    }
    assert_eq!(ibv_destroy_qp(wr.qp.cast()), 0);
    assert_eq!(ibv_destroy_cq(cq), 0);
    assert_eq!(crate::memory::ibv_dealloc_pd(pd), 0);
    assert_eq!(crate::context::ibv_close_device(context), 0);
    drop(rig);
}
