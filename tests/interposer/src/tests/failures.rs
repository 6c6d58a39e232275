//! Queue pairs that fail, and posts that do.

use super::rig::*;
use crate::control::*;
use crate::cq::ibv_destroy_cq;
use crate::numbers::{state, status, wc, wr as op};
use crate::qp::ibv_destroy_qp;

const FLUSH: u32 = status::WR_FLUSH_ERR;

#[test]
fn a_failure_flushes_everything_in_order() {
    let rig = Rig::new();
    let [a, _] = rig.qps;
    for n in 11..=13 {
        assert_eq!(post_recv(a, n, &mut [rig.sge(0, 8)]), 0);
    }
    let mut bad = rig.sge(0, 8);
    bad.lkey += 1;
    let mut quiet = send_wr(3, &[]);
    quiet.send_flags = 0;
    let bad = [bad];
    let mut wrs = [send_wr(1, &[]), send_wr(2, &bad), quiet, send_wr(4, &[])];
    // No receive is there: they all wait.
    assert_eq!(post_sends(a, &mut wrs), (0, None));
    assert_eq!(post_recv(rig.qps[1], 21, &mut []), 0);
    assert_eq!(
        rig.polled(),
        [
            (21, 0, wc::RECV),
            (1, 0, wc::SEND),
            (2, status::LOC_PROT_ERR, 0),
            (3, FLUSH, 0),
            (4, FLUSH, 0),
            (11, FLUSH, 0),
            (12, FLUSH, 0),
            (13, FLUSH, 0),
        ]
    );
    assert_eq!(state_of(a), state::ERR);
    // What is posted now is flushed, too.
    post_send(a, send_wr(5, &[]));
    assert_eq!(post_recv(a, 14, &mut []), 0);
    assert_eq!(rig.polled(), [(5, FLUSH, 0), (14, FLUSH, 0)]);
    rdma_fault_recv_in_err_vanishes(1);
    assert_eq!(post_recv(a, 15, &mut []), 0);
    assert!(rig.poll().is_empty());
}

#[test]
fn a_receive_that_is_too_small_fails_both() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    assert_eq!(post_recv(b, 7, &mut [rig.sge(SIZE, 3)]), 0);
    post_send(a, send_wr(1, &[rig.sge(0, 4)]));
    assert_eq!(rig.polled(), [(7, status::LOC_LEN_ERR, 0), (1, status::REM_INV_REQ_ERR, 0)]);
}

#[test]
fn a_peer_that_is_gone_is_told() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    post_send(a, send_wr(1, &[]));
    assert!(rig.poll().is_empty());
    assert_eq!(post_recv(b, 7, &mut []), 0);
    assert_eq!(post_recv(b, 8, &mut []), 0);
    assert_eq!(ibv_destroy_cq(rig.cq), libc::EBUSY);
    assert_eq!(ibv_destroy_qp(b), 0);
    post_send(a, send_wr(2, &[]));
    // What was there stays; the receive that was not used yields nothing.
    let expected = [(7, 0, wc::RECV), (1, 0, wc::SEND), (2, status::RETRY_EXC_ERR, 0)];
    assert_eq!(rig.polled(), expected);
}

#[test]
fn no_receive_and_no_patience() {
    let rig = Rig::unconnected();
    let [a, b] = rig.qps;
    let mut attr = attributes(b);
    attr.rnr_retry = 0;
    connect(b, a);
    for (to, mask) in [(state::INIT, TO_INIT), (state::RTR, TO_RTR), (state::RTS, TO_RTS)] {
        assert_eq!(modify(a, &attr, to, mask), 0);
    }
    post_send(a, send_wr(1, &[]));
    assert_eq!(rig.polled(), [(1, status::RNR_RETRY_EXC_ERR, 0)]);
}

#[test]
fn a_chain_that_does_not_fit_is_taken_to_where_it_does() {
    let rig = Rig::new();
    let [a, _] = rig.qps;
    let mut wrs: Vec<_> = (0..9).map(|n| send_wr(n, &[])).collect();
    assert_eq!(post_sends(a, &mut wrs), (libc::ENOMEM, Some(7)));
    assert_eq!(rdma_fault_break(a.cast()), 0);
    assert_eq!(rig.poll().len(), 7);
}

#[test]
fn posts_fail_in_every_way() {
    let write = |rig: &Rig, n| rdma_wr(n, op::RDMA_WRITE, &[], rig.address(0), rig.rkey());
    // How, what is named, and what was taken.
    let ways = [(0, Some(1), 1), (1, None, 3), (2, None, 0), (3, Some(99), 3), (4, Some(99), 0)];
    for (mode, named, taken) in ways {
        let rig = Rig::new();
        let [a, _] = rig.qps;
        let wrs = [1, 2, 3].map(|n| write(&rig, n));
        fail_post("ibv_post_send", mode, 1);
        let (gave, place) = post_sends(a, &mut wrs.clone());
        assert_eq!(gave, libc::EIO);
        match named {
            Some(99) => assert!(place.is_some_and(|place| place > 2)),
            named => assert_eq!(place, named),
        }
        assert_eq!(rig.poll().len(), taken, "{mode}");
        assert_eq!(post_sends(a, &mut wrs.clone()), (0, None), "only once");
    }
}

#[test]
fn a_verb_fails_as_often_as_it_is_told() {
    let rig = Rig::new();
    fail("ibv_destroy_qp", libc::EBUSY, 2, 1);
    fail("alloc_pd", libc::ENOMEM, 1, 2);
    let [a, b] = rig.qps;
    assert_eq!(ibv_destroy_qp(a), 0);
    assert_eq!(ibv_destroy_qp(b), libc::EBUSY);
    assert_eq!(live("qp"), 1);
    assert_eq!(ibv_destroy_qp(b), 0);
    assert_eq!(count("ibv_destroy_qp"), 3);
    assert!(crate::memory::ibv_alloc_pd(rig.context).is_null());
    assert!(crate::memory::ibv_alloc_pd(rig.context).is_null());
    let pd = crate::memory::ibv_alloc_pd(rig.context);
    assert_eq!(crate::memory::ibv_dealloc_pd(pd), 0);
    // SAFETY: a text.
    assert_eq!(unsafe { rdma_fault_fail(c"ibv_no_such_verb".as_ptr(), 5, 1, 1) }, -1);
}

#[test]
fn a_poll_can_fail() {
    let rig = Rig::new();
    fail("poll_cq", libc::EIO, 1, 1);
    // SAFETY: no room is needed.
    let gave = unsafe { crate::cq::poll(rig.cq, 0, std::ptr::null_mut()) };
    assert_eq!(gave, -libc::EIO);
    assert!(rig.poll().is_empty());
}
