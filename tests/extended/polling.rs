//! Polling by the extended calls: what fails, and what it looks like.

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{Calls, CompletionQueue, Error, WcStatus};

use crate::interposed::faults::Wc;
use crate::interposed::rig::{DEPTH, Rig, assert_nothing_is_left, ends, open, poll, word};
use crate::interposed::{faults, interposed, leaks_on_purpose};

const OK: WcStatus = WcStatus::SUCCESS;

/// A pair on a queue that is polled by the extended calls, with all receives posted, numbered from 0.
macro_rules! receiving {
    ($rig:ident, $a:ident, $b:ident) => {
        let mut $rig = Rig::new().polled(Calls::Extended);
        let (mut $a, mut $b) = $rig.pair();
        for wr_id in 0..DEPTH.into() {
            $b.recv_queue().post(Receive::new($rig.take()).wr_id(wr_id)).expect("room");
        }
    };
}

interposed! {
    fn queues_that_cannot_be_made() {
        let context = open("loop0");
        let make = || CompletionQueue::builder(&context, 16).calls(Calls::Extended).build();
        for (errno, expected) in [
            (libc::EOPNOTSUPP, "loop0 has no extended calls to poll by"),
            (libc::ENOSYS, "loop0 has no extended calls to poll by"),
            (libc::EINVAL, "ibv_create_cq_ex on loop0: EINVAL (22): Invalid argument"),
        ] {
            faults::fail("create_cq_ex", errno);
            assert_eq!(make().expect_err("it fails").to_string(), expected);
        }
        faults::fail("create_cq_ex", libc::ENOMEM);
        let error = make().expect_err("no memory");
        assert!(matches!(error, Error::NoMemory { what: "a completion queue", .. }), "{error}");
        drop(make().expect("it can be made now"));
        // Of a provider that nothing is known of, as this one, it is not chosen.
        let made = CompletionQueue::builder(&context, 16).calls(Calls::WhereKnownGood).build();
        assert_eq!(made.expect("a CQ").calls(), Calls::Classic);
        drop(context);
        assert_nothing_is_left();
    }

    /// It fails before there is a completion: so does the queue, as one that is polled by the plain call.
    fn the_start_of_a_poll_fails() {
        receiving!(rig, a, b);
        a.send_queue().post(Send::new(()).signaled()).expect("room");
        for errno in [libc::EIO, libc::EBUSY] {
            faults::fail("start_poll", errno);
            let error = rig.cq.poll().expect_err("it fails");
            assert!(matches!(error, Error::CompletionQueueFailed { .. }), "{error}");
        }
        let calls = faults::count("start_poll");
        let error = rig.cq.poll().expect_err("for good");
        assert!(matches!(error, Error::CompletionQueueFailed { .. }), "{error}");
        assert_eq!(faults::count("start_poll"), calls, "nothing is asked any more");
        drop((a, b));
        let left = poll(&mut rig.cq);
        assert_eq!(left.len(), DEPTH as usize + 1);
        assert!(left.iter().all(|seen| seen.status == WcStatus::WR_FLUSH_ERR && seen.silent));
        drop(left);
        assert_eq!(rig.out(), 0);
        rig.end();
    }

    /// It fails after some completions: these are given first.
    fn going_on_fails() {
        receiving!(rig, a, b);
        for wr_id in 100..105 {
            a.send_queue().post(Send::new(()).wr_id(wr_id)).expect("room");
        }
        // Each poll of them asks for the next four times.
        faults::fail_every("next_poll", libc::EIO, 3, Some(1));
        let seen = poll(&mut rig.cq);
        assert_eq!(ends(&seen), [(0, OK), (1, OK), (2, OK)]);
        let error = rig.cq.poll().expect_err("now it is told");
        assert!(matches!(error, Error::CompletionQueueFailed { .. }), "{error}");
        drop((a, b, seen));
        let left = poll(&mut rig.cq);
        assert_eq!(left.len(), DEPTH as usize - 3 + 5, "all others, once each: {left:?}");
        drop(left);
        assert_eq!(rig.out(), 0);
        rig.end();
    }

    /// What names nothing in flight is counted and dropped.
    fn completions_of_nobody() {
        receiving!(rig, a, b);
        a.send_queue().post(Send::new(rig.filled(b"mine")).signaled().wr_id(7)).expect("room");
        let raw = rig.cq.as_raw().as_ptr();
        for wr_id in [word(1, 77, 0), word(999, 0, 0), u64::MAX, word(0, 0, 12)] {
            faults::push(raw, &Wc { wr_id, opcode: 128, byte_len: 5, ..Wc::default() });
        }
        let seen = poll(&mut rig.cq);
        assert_eq!((seen.len(), rig.cq.strays()), (2, 4), "{seen:?}");
        drop(seen);
        assert_eq!(rig.out(), DEPTH as usize - 1);
        drop((a, b));
        assert_eq!(poll(&mut rig.cq).len(), DEPTH as usize - 1);
        rig.end();
    }

    /// One that cannot be destroyed stays, as any other.
    fn a_queue_that_cannot_be_destroyed() {
        leaks_on_purpose();
        let rig = Rig::new().polled(Calls::Extended);
        faults::fail("ibv_destroy_cq", libc::EBUSY);
        let context = rig.context.clone();
        drop(rig);
        assert_eq!(context.leaks(), 1);
    }
}
