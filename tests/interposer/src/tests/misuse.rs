//! What would be undefined with a real device ends the program: seen from outside, in a process of
//! its own each.

use std::process::Command;
use std::ptr::null_mut;

use super::polling::{call, make, push, start, tells};
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
}
