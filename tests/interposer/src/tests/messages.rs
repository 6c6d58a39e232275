//! Sends and receives.

use super::rig::*;
use crate::abi::{ibv_qp, ibv_srq, ibv_srq_attr, ibv_srq_init_attr_ex};
use crate::numbers::{flag, status, wc, wr as op};
use crate::srq::{ibv_create_srq, ibv_modify_srq};
use std::mem::zeroed;
use std::ptr::null_mut;

#[test]
fn a_message_arrives_with_its_length() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    assert_eq!(post_recv(b, 7, &mut [rig.sge(SIZE, 100)]), 0);
    rig.write(0, b"hello");
    post_send(a, send_wr(1, &[rig.sge(0, 5)]));
    let told = rig.poll();
    assert_eq!(told.len(), 2);
    let recv = told[0];
    assert_eq!((recv.wr_id, recv.status, recv.opcode, recv.byte_len), (7, 0, wc::RECV, 5));
    // SAFETY: both are there.
    assert_eq!((recv.qp_num, recv.src_qp), unsafe { ((*b).qp_num, (*a).qp_num) });
    assert_eq!((told[1].wr_id, told[1].status, told[1].opcode), (1, 0, wc::SEND));
    assert_eq!(rig.read(SIZE, 6), b"hello\0");
}

#[test]
fn pieces_are_gathered_and_scattered() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    rig.write(0, b"abcdefgh");
    let mut target = [rig.sge(SIZE, 1), rig.sge(SIZE + 10, 0), rig.sge(SIZE + 20, 50)];
    assert_eq!(post_recv(b, 7, &mut target), 0);
    let source = [rig.sge(4, 4), rig.sge(0, 0), rig.sge(0, 4)];
    post_send(a, send_wr(1, &source));
    assert_eq!(rig.poll()[0].byte_len, 8);
    assert_eq!(
        (rig.read(SIZE, 2), rig.read(SIZE + 20, 8)),
        (b"e\0".to_vec(), b"fghabcd\0".to_vec())
    );
}

#[test]
fn nothing_can_be_sent() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    assert_eq!(post_recv(b, 7, &mut []), 0);
    post_send(a, send_wr(1, &[]));
    assert_eq!(rig.polled(), [(7, 0, wc::RECV), (1, 0, wc::SEND)]);
}

#[test]
fn a_send_waits_for_a_receive_and_those_behind_it_too() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    rig.write(0, b"12");
    post_send(a, send_wr(1, &[rig.sge(0, 1)]));
    post_send(a, send_wr(2, &[rig.sge(1, 1)]));
    // What needs no receive waits as well.
    let remote = rig.address(SIZE + 8);
    post_send(a, rdma_wr(3, op::RDMA_WRITE, &[rig.sge(0, 2)], remote, rig.rkey()));
    assert!(rig.poll().is_empty());
    assert_eq!(post_recv(b, 11, &mut [rig.sge(SIZE, 1)]), 0);
    assert_eq!(rig.polled(), [(11, 0, wc::RECV), (1, 0, wc::SEND)]);
    assert_eq!(post_recv(b, 12, &mut [rig.sge(SIZE + 1, 1)]), 0);
    assert_eq!(rig.polled(), [(12, 0, wc::RECV), (2, 0, wc::SEND), (3, 0, wc::RDMA_WRITE)]);
    assert_eq!(rig.read(SIZE, 2), b"12");
}

#[test]
fn immediate_data_and_a_key_that_ends_come_along() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    for n in 0..3 {
        assert_eq!(post_recv(b, n, &mut [rig.sge(SIZE, 8)]), 0);
    }
    let mut wr = send_wr(1, &[rig.sge(0, 4)]);
    (wr.opcode, wr.imm_data) = (op::SEND_WITH_IMM, 0x1234);
    post_send(a, wr);
    let sges = [rig.sge(0, 2)];
    let remote = rig.address(SIZE + 100);
    let mut wr = rdma_wr(2, op::RDMA_WRITE_WITH_IMM, &sges, remote, rig.rkey());
    wr.imm_data = 0x5678;
    rig.write(0, b"xy");
    post_send(a, wr);
    let mut wr = send_wr(3, &[rig.sge(0, 4)]);
    (wr.opcode, wr.imm_data) = (op::SEND_WITH_INV, rig.rkey());
    post_send(a, wr);
    let told = rig.poll();
    let recvs: Vec<_> = told.iter().filter(|wc| wc.opcode & wc::RECV != 0).collect();
    let shown = recvs.iter().map(|w| (w.opcode, w.imm_data, w.wc_flags, w.byte_len));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            (wc::RECV, 0x1234, wc::WITH_IMM, 4),
            (wc::RECV_RDMA_WITH_IMM, 0x5678, wc::WITH_IMM, 2),
            (wc::RECV, rig.rkey(), wc::WITH_INV, 4),
        ]
    );
    assert_eq!(rig.read(SIZE + 100, 2), b"xy");
    // The key is over.
    post_send(a, rdma_wr(4, op::RDMA_WRITE, &[rig.sge(0, 1)], remote, rig.rkey()));
    assert_eq!(rig.polled(), [(4, status::REM_ACCESS_ERR, 0)]);
}

#[test]
fn inline_memory_is_free_at_once_and_needs_no_key() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    let mut text = *b"inline";
    let addr = text.as_mut_ptr().expose_provenance() as u64;
    let mut wr = send_wr(1, &[crate::abi::ibv_sge { addr, length: 6, lkey: 0 }]);
    wr.send_flags |= flag::INLINE;
    post_send(a, wr);
    text = *b"??????";
    assert_eq!(post_recv(b, 7, &mut [rig.sge(SIZE, 6)]), 0);
    assert_eq!((rig.read(SIZE, 6), text), (b"inline".to_vec(), *b"??????"));
    // More than was granted, and a read, are refused.
    let mut wr = send_wr(2, &[rig.sge(0, 65)]);
    wr.send_flags |= flag::INLINE;
    assert_eq!(post_sends(a, &mut [wr]), (libc::EINVAL, Some(0)));
    let sges = [rig.sge(0, 8)];
    let mut wr = rdma_wr(3, op::RDMA_READ, &sges, rig.address(0), rig.rkey());
    wr.send_flags |= flag::INLINE;
    assert_eq!(post_sends(a, &mut [wr]), (libc::EINVAL, Some(0)));
}

#[test]
fn what_is_not_signaled_completes_silently_and_is_freed_by_the_next_that_is() {
    let rig = Rig::new();
    let [a, _] = rig.qps;
    let write = |n: u64| {
        let mut wr = rdma_wr(n, op::RDMA_WRITE, &[], rig.address(SIZE), rig.rkey());
        wr.send_flags = if n == 6 { flag::SIGNALED } else { 0 };
        wr
    };
    for n in 0..7 {
        post_send(a, write(n));
    }
    assert_eq!(post_sends(a, &mut [write(7)]), (libc::ENOMEM, Some(0)), "7 were granted");
    assert_eq!(rig.polled(), [(6, 0, wc::RDMA_WRITE)]);
    for n in 7..14 {
        post_send(a, write(n));
    }
}

fn create_srq(rig: &Rig) -> *mut ibv_srq {
    // SAFETY: all zero is a value of this struct of integers and pointers.
    let mut attr: ibv_srq_init_attr_ex = unsafe { zeroed() };
    (attr.attr.max_wr, attr.attr.max_sge) = (3, 1);
    // SAFETY: the attributes are there.
    let srq = unsafe { ibv_create_srq(rig.pd, &mut attr) };
    assert!(!srq.is_null());
    srq
}

fn post_srq(rig: &Rig, srq: *mut ibv_srq, wr_id: u64) -> i32 {
    let mut sge = rig.sge(SIZE, 8);
    let next = null_mut();
    let mut wr = crate::abi::ibv_recv_wr { wr_id, next, sg_list: &mut sge, num_sge: 1 };
    let mut bad = null_mut();
    // SAFETY: queue and work request are there.
    unsafe { crate::post::srq_recv(srq, &mut wr, &mut bad) }
}

#[test]
fn a_shared_receive_queue_serves_several_and_says_when_it_runs_low() {
    let rig = Rig::new();
    let srq = create_srq(&rig);
    let pairs: [[*mut ibv_qp; 2]; 2] = [(); 2].map(|()| {
        let [a, b] = [create_qp(rig.pd, rig.cq, null_mut()), create_qp(rig.pd, rig.cq, srq)];
        connect(a, b);
        connect(b, a);
        [a, b]
    });
    assert_eq!(post_recv(pairs[0][1], 1, &mut []), libc::EINVAL, "it has no queue of its own");
    for n in 1..=3 {
        assert_eq!(post_srq(&rig, srq, n), 0);
    }
    assert_eq!(post_srq(&rig, srq, 4), libc::ENOMEM);
    let mut limit = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 3 };
    // SAFETY: the attributes are there.
    assert_eq!(unsafe { ibv_modify_srq(srq, &mut limit, 2) }, 0);
    for [a, _] in pairs {
        post_send(a, send_wr(9, &[rig.sge(0, 1)]));
    }
    assert_eq!(super::control::events(&rig), [(15, srq.addr() as u64)]);
    let told: Vec<u64> = rig.poll().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(told, [1, 9, 2, 9]);
    assert_eq!(crate::srq::ibv_destroy_srq(srq), libc::EBUSY);
    // A queue pair that fails flushes none of the shared receives.
    assert_eq!(crate::control::rdma_fault_break(pairs[0][1].cast()), 0);
    assert!(rig.poll().is_empty());
    assert_eq!(super::control::events(&rig), [(16, pairs[0][1].addr() as u64)]);
}
