//! What would be undefined with a real device ends the program: seen from outside, in a process of
//! its own each.

use std::process::Command;
use std::ptr::null_mut;

use super::polling::{call, make, push, start, tells};
use super::posting::{Wr, connected, datagrams};
use super::rig::*;
use crate::channel::ibv_get_cq_event;
use crate::control::rdma_fault_wake;
use crate::cq::ibv_destroy_cq;
use crate::memory::ibv_dealloc_pd;
use crate::qp::ibv_destroy_qp;

/// Runs one of the tests below, and gives what it said when it was ended.
fn last_words(name: &str) -> String {
    let me = std::env::current_exe().expect("own path");
    let name = format!("tests::misuse::ends::{name}");
    let arguments = [name.as_str(), "--exact", "--ignored", "--nocapture"];
    let output = Command::new(me).args(arguments).output().expect("this program starts");
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn misuse_ends_the_program_and_says_why() {
    for (name, words) in [
        ("a_post_after_the_end", "ibv_post_send on a queue pair that was destroyed"),
        ("a_second_destruction", "a protection domain is used that is not there"),
        ("an_event_that_nobody_acknowledges", "ibv_destroy_cq waits for events that nobody"),
        ("a_second_start", "ibv_start_poll before the end of another poll"),
        ("a_next_without_a_start", "ibv_next_poll on a completion queue without ibv_start_poll"),
        ("an_end_without_a_start", "ibv_end_poll on a completion queue without ibv_start_poll"),
        ("a_look_without_a_start", "read_opcode on a completion queue without ibv_start_poll"),
        ("a_look_past_the_last", "read_qp_num where there is no completion"),
        ("a_look_at_a_failure", "read_byte_len of a completion that failed"),
        ("the_end_of_a_queue_in_a_poll", "ibv_destroy_cq between ibv_start_poll and ibv_end_poll"),
        ("a_plain_poll_of_an_extended_queue", "ibv_poll_cq on a completion queue that was made by"),
        (
            "an_extended_poll_of_a_plain_queue",
            "ibv_start_poll on a completion queue that was not made",
        ),
        ("a_start_after_the_end", "start_poll on a completion queue that was destroyed"),
        ("a_post_in_a_post", "ibv_wr_start between ibv_wr_start and ibv_wr_complete"),
        ("a_plain_post_in_a_post", "ibv_post_send between ibv_wr_start and ibv_wr_complete"),
        ("the_end_of_a_queue_pair_in_a_post", "ibv_destroy_qp between ibv_wr_start and"),
        ("a_work_request_before_the_start", "ibv_wr_send without ibv_wr_start"),
        ("a_completion_before_the_start", "ibv_wr_complete without ibv_wr_start"),
        ("an_abortion_after_the_end", "ibv_wr_abort without ibv_wr_start"),
        ("a_setter_before_all", "ibv_wr_set_sge before any work request"),
        ("a_second_setter", "ibv_wr_set_sge for a work request that has data, or wants none"),
        ("data_for_an_invalidation", "ibv_wr_set_sge_list for a work request that has data, or"),
        ("a_send_without_data", "ibv_wr_complete after a work request without data"),
        ("one_without_data_before_another", "ibv_wr_send after a work request without data"),
        ("a_datagram_to_nobody", "ibv_wr_complete after a datagram without ibv_wr_set_ud_addr"),
        ("inline_data_without_the_flag", "ibv_wr_set_inline_data, where IBV_SEND_INLINE"),
        ("the_flag_without_inline_data", "ibv_wr_set_sge, where IBV_SEND_INLINE"),
        ("a_call_after_the_end", "wr_start on a queue pair that was destroyed"),
    ] {
        let said = last_words(name);
        assert!(said.contains(words), "{name}: {said}");
    }
}

mod ends {
    use super::*;

    #[test]
    #[ignore = "ends the program"]
    fn a_post_after_the_end() {
        let rig = Rig::new();
        assert_eq!(ibv_destroy_qp(rig.qps[0]), 0);
        post_send(rig.qps[0], send_wr(1, &[]));
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_second_destruction() {
        let rig = Rig::new();
        let pd = crate::memory::ibv_alloc_pd(rig.context);
        assert_eq!(ibv_dealloc_pd(pd), 0);
        ibv_dealloc_pd(pd);
    }

    #[test]
    #[ignore = "ends the program"]
    fn an_event_that_nobody_acknowledges() {
        let rig = Rig::new();
        assert_eq!(rdma_fault_wake(rig.cq), 0);
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: there is room for both.
        assert_eq!(unsafe { ibv_get_cq_event(rig.channel, &mut cq, &mut context) }, 0);
        for qp in rig.qps {
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
        ibv_destroy_cq(rig.cq);
    }

    /// An extended queue of `loop0` with a completion of this status in it, and being polled.
    fn at(rig: &Rig, status: u32) -> *mut crate::abi::ibv_cq_ex {
        let cq = make(rig.context, 7, tells::ALL);
        push(cq, 1, status);
        assert_eq!(start(cq), 0);
        cq
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_second_start() {
        let rig = Rig::new();
        start(at(&rig, 0));
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_next_without_a_start() {
        let rig = Rig::new();
        let cq = make(rig.context, 7, 0);
        assert_eq!(start(cq), libc::ENOENT);
        call!(cq, next_poll);
    }

    #[test]
    #[ignore = "ends the program"]
    fn an_end_without_a_start() {
        let rig = Rig::new();
        let cq = at(&rig, 0);
        call!(cq, end_poll);
        call!(cq, end_poll);
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_look_without_a_start() {
        let rig = Rig::new();
        call!(make(rig.context, 7, 0), read_opcode);
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_look_past_the_last() {
        let rig = Rig::new();
        let cq = at(&rig, 0);
        assert_eq!(call!(cq, next_poll), libc::ENOENT);
        call!(cq, read_qp_num);
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_look_at_a_failure() {
        let rig = Rig::new();
        let cq = at(&rig, 5);
        assert_eq!(call!(cq, read_vendor_err), 0x99);
        assert_eq!(call!(cq, read_qp_num), 4711);
        call!(cq, read_byte_len);
    }

    #[test]
    #[ignore = "ends the program"]
    fn the_end_of_a_queue_in_a_poll() {
        let rig = Rig::new();
        ibv_destroy_cq(at(&rig, 0).cast());
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_plain_poll_of_an_extended_queue() {
        let rig = Rig::new();
        poll_all(make(rig.context, 7, 0).cast());
    }

    #[test]
    #[ignore = "ends the program"]
    fn an_extended_poll_of_a_plain_queue() {
        let rig = Rig::new();
        start(rig.cq.cast());
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_start_after_the_end() {
        let rig = Rig::new();
        let cq = make(rig.context, 7, 0);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
        start(cq);
    }

    /// Runs this on an extended queue pair that is being posted on, or not yet.
    fn posting(begun: bool, what: impl FnOnce(&Rig, Wr)) {
        let rig = Rig::unconnected();
        let wr = connected(&rig);
        if begun {
            call!(wr.qp, wr_start);
        }
        what(&rig, wr);
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_post_in_a_post() {
        posting(true, |_, wr| call!(wr.qp, wr_start));
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_plain_post_in_a_post() {
        posting(true, |_, wr| post_send(wr.qp.cast(), send_wr(1, &[])));
    }

    #[test]
    #[ignore = "ends the program"]
    fn the_end_of_a_queue_pair_in_a_post() {
        posting(true, |_, wr| assert_eq!(ibv_destroy_qp(wr.qp.cast()), 0));
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_work_request_before_the_start() {
        posting(false, |_, wr| call!(wr.qp, wr_send));
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_completion_before_the_start() {
        posting(false, |_, wr| assert_eq!(call!(wr.qp, wr_complete), 0));
    }

    #[test]
    #[ignore = "ends the program"]
    fn an_abortion_after_the_end() {
        posting(true, |_, wr| {
            assert_eq!(call!(wr.qp, wr_complete), 0);
            call!(wr.qp, wr_abort);
        });
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_setter_before_all() {
        posting(true, |rig, wr| wr.sge(rig.sge(0, 8)));
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_second_setter() {
        posting(true, |rig, wr| {
            call!(wr.next(1), wr_send);
            wr.sge(rig.sge(0, 8));
            wr.sge(rig.sge(8, 8));
        });
    }

    #[test]
    #[ignore = "ends the program"]
    fn data_for_an_invalidation() {
        posting(true, |rig, wr| {
            call!(wr.next(1), wr_local_inv, rig.rkey());
            wr.none();
        });
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_send_without_data() {
        posting(true, |_, wr| {
            call!(wr.next(1), wr_send);
            call!(wr.qp, wr_complete);
        });
    }

    #[test]
    #[ignore = "ends the program"]
    fn one_without_data_before_another() {
        posting(true, |_, wr| {
            call!(wr.next(1), wr_send);
            call!(wr.next(2), wr_send);
        });
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_datagram_to_nobody() {
        let rig = Rig::new();
        let ([wr, _], _) = datagrams(&rig);
        call!(wr.qp, wr_start);
        call!(wr.next(1), wr_send);
        wr.none();
        call!(wr.qp, wr_complete);
    }

    #[test]
    #[ignore = "ends the program"]
    fn inline_data_without_the_flag() {
        posting(true, |_, wr| {
            call!(wr.next(1), wr_send);
            wr.inline(b"data");
        });
    }

    #[test]
    #[ignore = "ends the program"]
    fn the_flag_without_inline_data() {
        posting(true, |rig, wr| {
            call!(wr.next_inline(1), wr_send);
            wr.sge(rig.sge(0, 8));
        });
    }

    #[test]
    #[ignore = "ends the program"]
    fn a_call_after_the_end() {
        posting(false, |_, wr| {
            assert_eq!(ibv_destroy_qp(wr.qp.cast()), 0);
            call!(wr.qp, wr_start);
        });
    }
}
