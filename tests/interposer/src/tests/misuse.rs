//! What would be undefined with a real device ends the program: seen from outside, in a process of
//! its own each.

use std::process::Command;
use std::ptr::null_mut;

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
}
