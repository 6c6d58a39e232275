//! Polling entry by entry, on both devices.

use std::ptr::null_mut;

use super::rig::*;
use crate::abi::*;
use crate::control::*;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::numbers::{status, wc};
use crate::qp::ibv_destroy_qp;
use crate::work::completion;

pub(super) use crate::numbers::tells;

/// Calls an operation of a queue or queue pair, as C's inline functions do.
macro_rules! call {
    ($object:expr, $field:ident $(, $arg:expr)*) => {{
        let object = $object;
        // SAFETY: it is there; the operation is its own.
        unsafe { ((*object).$field.expect("an operation"))(object $(, $arg)*) }
    }};
}
pub(super) use call;

/// What a queue is made with that needs nothing special.
pub(super) fn asked(cqe: u32, wc_flags: u64) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex {
        cqe,
        cq_context: null_mut(),
        channel: null_mut(),
        comp_vector: 0,
        wc_flags,
        comp_mask: 0,
        flags: 0,
        parent_domain: null_mut(),
    }
}

pub(super) fn try_make(
    context: *mut ibv_context,
    mut attr: ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, i32> {
    // SAFETY: the context is open.
    let cq = unsafe { (extended(context).create_cq_ex.expect("an operation"))(context, &mut attr) };
    if cq.is_null() { Err(errno()) } else { Ok(cq) }
}

pub(super) fn make(context: *mut ibv_context, cqe: u32, wc_flags: u64) -> *mut ibv_cq_ex {
    try_make(context, asked(cqe, wc_flags)).expect("a queue")
}

pub(super) fn start(cq: *mut ibv_cq_ex) -> i32 {
    call!(cq, start_poll, &mut ibv_poll_cq_attr { comp_mask: 0 })
}

/// Puts a completion into it.
pub(super) fn push(cq: *mut ibv_cq_ex, wr_id: u64, status: u32) {
    // SAFETY: a completion.
    assert_eq!(unsafe { rdma_fault_push(cq.cast(), &completion(wr_id, status, 4711)) }, 0);
}

/// What is read without a call.
fn shown(cq: *mut ibv_cq_ex) -> (u64, u32) {
    // SAFETY: the queue is there.
    unsafe { ((*cq).wr_id, (*cq).status) }
}

/// All that is there, in one poll.
pub(super) fn walk(cq: *mut ibv_cq_ex) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    let mut gave = start(cq);
    if gave == libc::ENOENT {
        return found;
    }
    while gave == 0 {
        found.push(shown(cq));
        gave = call!(cq, next_poll);
    }
    assert_eq!(gave, libc::ENOENT);
    call!(cq, end_poll);
    found
}

fn no_wr() -> (u64, u32) {
    (0x7bad_0bad_7bad_0bad, 0x7bad_0bad)
}

#[test]
fn a_message_is_told_entry_by_entry() {
    let rig = Rig::unconnected();
    let cq = make(rig.context, 7, tells::ALL);
    let [a, b] = [(); 2].map(|()| create_qp(rig.pd, cq.cast(), null_mut()));
    connect(a, b);
    connect(b, a);
    assert_eq!(start(cq), libc::ENOENT, "nothing is begun");
    assert_eq!(start(cq), libc::ENOENT, "nor was by that");
    assert_eq!(post_recv(b, 1, &mut [rig.sge(SIZE, 8)]), 0);
    let mut wr = send_wr(2, &[rig.sge(0, 5)]);
    (wr.opcode, wr.imm_data) = (crate::numbers::wr::SEND_WITH_IMM, 0x0102_0304);
    post_send(a, wr);
    // SAFETY: numbers do not change.
    let (from, to) = unsafe { ((*a).qp_num, (*b).qp_num) };
    assert_eq!(start(cq), 0);
    assert_eq!(shown(cq), (1, 0));
    assert_eq!(call!(cq, read_opcode), wc::RECV);
    assert_eq!(call!(cq, read_byte_len), 5);
    assert_eq!(call!(cq, read_imm_data), 0x0102_0304);
    assert_eq!(call!(cq, read_wc_flags), wc::WITH_IMM);
    assert_eq!((call!(cq, read_qp_num), call!(cq, read_src_qp)), (to, from));
    assert_eq!((call!(cq, read_slid), call!(cq, read_sl)), (0, 0));
    assert_eq!(call!(cq, read_dlid_path_bits), 0);
    assert_eq!(call!(cq, read_vendor_err), 0);
    let first = call!(cq, read_completion_ts);
    assert_eq!(call!(cq, next_poll), 0);
    assert_eq!(shown(cq), (2, 0));
    assert_eq!((call!(cq, read_opcode), call!(cq, read_qp_num)), (wc::SEND, from));
    assert_eq!(call!(cq, read_completion_ts) - first, 100);
    assert_eq!(call!(cq, next_poll), libc::ENOENT);
    assert_eq!(shown(cq), no_wr());
    // What came since is found by the same poll.
    push(cq, 3, status::WR_FLUSH_ERR);
    assert_eq!(call!(cq, next_poll), 0);
    assert_eq!(shown(cq), (3, status::WR_FLUSH_ERR));
    assert_eq!((call!(cq, read_vendor_err), call!(cq, read_qp_num)), (0x99, 4711));
    call!(cq, end_poll);
    assert_eq!(shown(cq), no_wr());
    assert_eq!(start(cq), libc::ENOENT);
    let counts = ["start_poll", "ibv_next_poll", "end_poll", "poll_cq", "create_cq_ex"].map(count);
    assert_eq!(counts, [4, 3, 1, 0, 1]);
}

#[test]
fn only_what_was_asked_for_is_told() {
    let rig = Rig::new();
    for number in [0, 1] {
        let context = open(number);
        for bit in 0..9 {
            let asked_for = if bit == 8 { 0 } else { 1 << bit };
            let cq = make(context, 7, asked_for);
            // SAFETY: the queue is there.
            let there = unsafe { &*cq };
            let told = [
                there.read_byte_len.is_some(),
                there.read_imm_data.is_some(),
                there.read_qp_num.is_some(),
                there.read_src_qp.is_some(),
                there.read_slid.is_some(),
                there.read_sl.is_some(),
                there.read_dlid_path_bits.is_some(),
                there.read_completion_ts.is_some(),
            ];
            let bits = told.iter().enumerate().map(|(bit, told)| u64::from(*told) << bit);
            assert_eq!(bits.sum::<u64>(), asked_for);
            assert!(there.read_opcode.is_some() && there.read_vendor_err.is_some());
            assert!(there.read_wc_flags.is_some());
            assert_eq!(ibv_destroy_cq(cq.cast()), 0);
        }
        assert_eq!(crate::context::ibv_close_device(context), 0);
    }
    drop(rig);
}

#[test]
fn what_is_not_known_is_refused() {
    let rig = Rig::new();
    let refused = |attr| try_make(rig.context, attr).expect_err("refused");
    let plain = |cqe| asked(cqe, tells::STANDARD);
    assert_eq!(refused(asked(7, 1 << 8)), libc::EOPNOTSUPP);
    assert_eq!(refused(asked(7, 1 << 11)), libc::EOPNOTSUPP);
    assert_eq!(refused(plain(0)), libc::EINVAL);
    assert_eq!(refused(plain(65_536)), libc::EINVAL);
    assert_eq!(refused(ibv_cq_init_attr_ex { comp_vector: 4, ..plain(7) }), libc::EINVAL);
    assert_eq!(refused(ibv_cq_init_attr_ex { comp_mask: 2, ..plain(7) }), libc::EINVAL);
    let overrun = ibv_cq_init_attr_ex { comp_mask: 1, flags: 2, ..plain(7) };
    assert_eq!(refused(overrun), libc::EOPNOTSUPP);
    // Flags count where the mask says so.
    for comp_mask in [0, 1] {
        let flags = if comp_mask == 0 { u32::MAX } else { 1 };
        let attr = ibv_cq_init_attr_ex { comp_mask, flags, ..plain(5) };
        let cq = try_make(rig.context, attr).expect("a queue");
        // SAFETY: the queue is there.
        let ibv = unsafe { &(*cq).cq };
        assert_eq!((ibv.context, ibv.cqe), (rig.context, 7));
    }
    rdma_fault_no_clock(1);
    assert_eq!(refused(asked(7, tells::ALL)), libc::EOPNOTSUPP);
    make(rig.context, 7, tells::STANDARD);
}

#[test]
fn a_poll_fails_as_it_is_told() {
    let rig = Rig::new();
    fail("create_cq_ex", libc::ENOMEM, 1, 1);
    assert_eq!(try_make(rig.context, asked(7, 0)), Err(libc::ENOMEM));
    let cq = make(rig.context, 7, 0);
    for n in 1..=3 {
        push(cq, n, 0);
    }
    fail("ibv_start_poll", libc::EIO, 1, 1);
    fail("next_poll", libc::EOVERFLOW, 2, 1);
    assert_eq!(start(cq), libc::EIO, "and nothing is begun");
    assert_eq!(start(cq), 0);
    assert_eq!(call!(cq, next_poll), 0);
    assert_eq!(call!(cq, next_poll), libc::EOVERFLOW);
    assert_eq!(shown(cq), no_wr());
    call!(cq, end_poll);
    assert_eq!(walk(cq), [(3, 0)]);
    let mut attr = ibv_poll_cq_attr { comp_mask: 1 };
    assert_eq!(call!(cq, start_poll, &mut attr), libc::EINVAL);
}

#[test]
fn places_are_free_when_the_next_is_come_to_and_room_at_the_end() {
    let rig = Rig::unconnected();
    let cq = make(rig.context, 7, 0);
    let [a, b] = [(); 2].map(|()| create_qp(rig.pd, cq.cast(), null_mut()));
    connect(a, b);
    connect(b, a);
    // 7 writes are as many as there are places, and as much as there is room for.
    let write = |n| {
        let wr = rdma_wr(n, crate::numbers::wr::RDMA_WRITE, &[], rig.address(0), rig.rkey());
        post_sends(a, &mut [wr])
    };
    for n in 0..7 {
        assert_eq!(write(n), (0, None));
    }
    assert_eq!(start(cq), 0);
    assert_eq!(write(7).0, libc::ENOMEM, "the first is still being looked at");
    assert_eq!(call!(cq, next_poll), 0);
    assert_eq!(write(7).0, 0);
    assert!(super::control::events(&rig).contains(&(0, cq.addr() as u64)), "no room was free");
    call!(cq, end_poll);
    push(cq, 8, 0);
    let rest = [2, 3, 4, 5, 6, 8].map(|n| (n, 0));
    assert_eq!(walk(cq), rest);
}

#[test]
fn channels_tell_of_extended_queues() {
    let rig = Rig::new();
    let attr = ibv_cq_init_attr_ex { channel: rig.channel, ..asked(7, 0) };
    let cq = try_make(rig.context, attr).expect("a queue");
    // SAFETY: the context is open, and the queue there.
    assert_eq!(unsafe { ((*rig.context).ops.req_notify_cq.expect("one"))(cq.cast(), 0) }, 0);
    push(cq, 1, 0);
    let (mut told, mut context) = (null_mut(), null_mut());
    // SAFETY: there is room for both.
    let gave = unsafe { crate::channel::ibv_get_cq_event(rig.channel, &mut told, &mut context) };
    assert_eq!((gave, told), (0, cq.cast()));
    crate::channel::ibv_ack_cq_events(told, 1);
    assert_eq!(walk(cq), [(1, 0)]);
}

#[test]
fn the_empty_device_is_polled_entry_by_entry() {
    let rig = Rig::new();
    let context = open(1);
    let pd = crate::memory::ibv_alloc_pd(context);
    let cq = make(context, 15, tells::ALL);
    let plain = ibv_create_cq(context, 1, null_mut(), null_mut(), 0);
    let qp = create_qp(pd, cq.cast(), null_mut());
    // SAFETY: a number does not change.
    let number = unsafe { (*qp).qp_num };
    let mut time = 0;
    for _ in 0..10 {
        assert_eq!(start(cq), libc::ENOENT);
        assert_eq!(post_recv(qp, 1, &mut []), 0);
        post_send(qp, send_wr(2, &[]));
        assert_eq!(start(cq), 0);
        assert_eq!(shown(cq), (1, 0));
        assert_eq!((call!(cq, read_opcode), call!(cq, read_byte_len)), (wc::RECV, 64));
        let now = call!(cq, read_completion_ts);
        assert!(now > time);
        time = now;
        assert_eq!(call!(cq, next_poll), 0);
        assert_eq!(shown(cq), (2, 0));
        assert_eq!((call!(cq, read_opcode), call!(cq, read_qp_num)), (wc::SEND, number));
        assert_eq!((call!(cq, read_wc_flags), call!(cq, read_imm_data)), (0, 0));
        assert_eq!(call!(cq, next_poll), libc::ENOENT);
        call!(cq, end_poll);
    }
    assert_eq!(ibv_destroy_qp(qp), 0);
    assert_eq!(ibv_destroy_cq(cq.cast()), 0);
    assert_eq!(ibv_destroy_cq(plain), 0);
    assert_eq!(crate::memory::ibv_dealloc_pd(pd), 0);
    assert_eq!(crate::context::ibv_close_device(context), 0);
    drop(rig);
}
