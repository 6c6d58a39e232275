//! Faults of completions and events, and `empty0`.

use std::ptr::null_mut;

use super::rig::*;
use crate::abi::ibv_async_event;
use crate::control::*;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::event::{ibv_ack_async_event, ibv_get_async_event};
use crate::numbers::{status, wc};
use crate::qp::ibv_destroy_qp;
use crate::work::completion;

/// All events there are: number and element.
pub(super) fn events(rig: &Rig) -> Vec<(i32, u64)> {
    let mut found = Vec::new();
    // SAFETY: the context and its descriptor are there.
    unsafe { libc::fcntl((*rig.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK) };
    loop {
        let mut event = ibv_async_event { element: [0; 8], event_type: -1 };
        // SAFETY: there is room for an event.
        if unsafe { ibv_get_async_event(rig.context, &mut event) } != 0 {
            return found;
        }
        found.push((event.event_type, u64::from_ne_bytes(event.element)));
        // SAFETY: it was given.
        unsafe { ibv_ack_async_event(&mut event) };
    }
}

fn message(rig: &Rig, n: u64) {
    let [a, b] = rig.qps;
    assert_eq!(post_recv(b, n, &mut [rig.sge(SIZE, 8)]), 0);
    post_send(a, send_wr(n + 100, &[rig.sge(0, 8)]));
}

#[test]
fn completions_are_held_back_and_let_go() {
    let rig = Rig::new();
    rdma_fault_hold(1);
    message(&rig, 1);
    assert!(rig.poll().is_empty());
    assert_eq!(live("held"), 2);
    assert_eq!(rdma_fault_release(1), 1);
    assert_eq!(rig.polled(), [(1, 0, wc::RECV)]);
    rdma_fault_hold(0);
    assert_eq!(rig.polled(), [(101, 0, wc::SEND)]);
}

#[test]
fn a_device_that_stands_still_goes_on_step_by_step() {
    let rig = Rig::new();
    rdma_fault_stall(1);
    message(&rig, 1);
    message(&rig, 2);
    rig.write(0, b"late");
    assert_eq!(rdma_fault_step(1), 1);
    assert_eq!(rig.poll().len(), 2);
    assert_eq!(rig.read(SIZE, 4), b"late");
    rdma_fault_stall(0);
    assert_eq!(rig.poll().len(), 2);
}

#[test]
fn the_device_touches_what_it_has_and_nothing_else() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    let mut read = 0;
    assert_eq!(rdma_fault_touch_all(0x55, Some(&mut read)), 0);
    assert_eq!(post_recv(b, 1, &mut [rig.sge(SIZE, 4), rig.sge(SIZE + 8, 4)]), 0);
    assert_eq!(rdma_fault_touch_all(0x55, None), 8);
    assert_eq!(rig.read(SIZE, 13), *b"UUUU\0\0\0\0UUUU\0");
    rdma_fault_hold(1);
    post_send(a, send_wr(2, &[rig.sge(0, 8)]));
    assert_eq!((rdma_fault_touch_all(0x56, Some(&mut read)), read), (8, 8), "not told yet");
    assert_eq!(rdma_fault_release(1), 1);
    assert_eq!((rdma_fault_touch_all(0x57, Some(&mut read)), read), (0, 8), "told");
    assert_eq!(ibv_destroy_qp(a), 0);
    assert_eq!((rdma_fault_touch_all(0x57, Some(&mut read)), read), (0, 0), "destroyed");
    rdma_fault_hold(0);
    assert_eq!(rig.poll().len(), 2, "what a dead queue pair told is there");
    // What is deregistered is left alone.
    assert_eq!(post_recv(b, 1, &mut [rig.sge(SIZE, 4)]), 0);
    assert_eq!(crate::memory::ibv_dereg_mr(rig.mr), 0);
    assert_eq!(rdma_fault_touch_all(0x58, None), 0);
}

#[test]
fn completions_are_spoilt_lost_and_doubled() {
    let rig = Rig::new();
    spoil("wr_id", 4711, 1);
    spoil("opcode", 99, 1);
    message(&rig, 1);
    assert_eq!(rig.polled(), [(4711, 0, 99), (101, 0, wc::SEND)]);
    spoil("copies", 2, 1);
    message(&rig, 2);
    assert_eq!(rig.polled(), [(2, 0, wc::RECV), (2, 0, wc::RECV), (102, 0, wc::SEND)]);
    spoil("copies", 0, 2);
    message(&rig, 3);
    assert!(rig.poll().is_empty());
    let mut wc = completion(u64::MAX, 77, 0);
    wc.byte_len = u32::MAX;
    // SAFETY: a completion.
    assert_eq!(unsafe { rdma_fault_push(rig.cq, &wc) }, 0);
    assert_eq!(rig.polled(), [(u64::MAX, 77, 0)]);
    // SAFETY: a completion, and no queue.
    assert_eq!(unsafe { rdma_fault_push(null_mut(), &wc) }, -1);
}

#[test]
fn a_queue_that_overflows_loses_and_tells() {
    let rig = Rig::new();
    let small = ibv_create_cq(rig.context, 1, null_mut(), null_mut(), 0);
    let wc = completion(1, status::SUCCESS, 0);
    for _ in 0..3 {
        // SAFETY: a completion.
        assert_eq!(unsafe { rdma_fault_push(small, &wc) }, 0);
    }
    assert_eq!(events(&rig), [(0, small.addr() as u64); 2]);
    assert_eq!(poll_all(small).len(), 1);
    assert_eq!(ibv_destroy_cq(small), 0);
}

#[test]
fn events_of_any_number() {
    let rig = Rig::new();
    let raise = |kind, element| {
        // SAFETY: a text.
        assert_eq!(unsafe { rdma_fault_raise(c"loop0".as_ptr(), kind, element) }, 1);
    };
    raise(4711, 1 << 40);
    raise(9, 300);
    raise(8, 0);
    raise(1, rig.qps[0].addr() as u64);
    assert_eq!(rdma_fault_gid_move(2, 5), 0);
    let qp = rig.qps[0].addr() as u64;
    assert_eq!(events(&rig), [(4711, 1 << 40), (9, 300), (8, 0), (1, qp), (18, 1), (18, 1)]);
    assert_eq!(rdma_fault_gid_move(5, 2), 0);
    // SAFETY: texts.
    assert_eq!(unsafe { rdma_fault_raise(c"empty0".as_ptr(), 8, 0) }, 0, "not open");
    // SAFETY: as above.
    assert_eq!(unsafe { rdma_fault_raise(c"loop7".as_ptr(), 8, 0) }, -1);
}

#[test]
fn the_empty_device_completes_at_once() {
    let rig = Rig::new();
    let context = open(1);
    let pd = crate::memory::ibv_alloc_pd(context);
    let cq = ibv_create_cq(context, 15, null_mut(), null_mut(), 0);
    let qp = create_qp(pd, cq, null_mut());
    let mut silent = send_wr(3, &[]);
    silent.send_flags = 0;
    for _ in 0..10 {
        assert_eq!(post_recv(qp, 1, &mut []), 0);
        let mut chain = [send_wr(2, &[]), silent.clone(), send_wr(4, &[])];
        assert_eq!(post_sends(qp, &mut chain), (0, None));
        let told: Vec<_> =
            poll_all(cq).iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len)).collect();
        assert_eq!(told, [(1, 0, wc::RECV, 64), (2, 0, wc::SEND, 64), (4, 0, wc::SEND, 64)]);
    }
    assert_eq!(ibv_destroy_qp(qp), 0);
    assert_eq!(ibv_destroy_cq(cq), 0);
    assert_eq!(crate::memory::ibv_dealloc_pd(pd), 0);
    assert_eq!(crate::context::ibv_close_device(context), 0);
    drop(rig);
}

#[test]
fn a_context_that_is_closed_takes_all_along() {
    let rig = Rig::new();
    let context = open(0);
    let pd = crate::memory::ibv_alloc_pd(context);
    let cq = ibv_create_cq(context, 1, null_mut(), null_mut(), 0);
    create_qp(pd, cq, null_mut());
    assert_eq!(crate::context::ibv_close_device(context), 0);
    assert_eq!(live("orphan"), 3);
    assert_eq!((live("pd"), live("cq"), live("qp")), (1, 1, 2));
    rdma_fault_reset();
    drop(rig);
}
