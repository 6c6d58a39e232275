//! Asking for a notification by itself, and the doorbell's report on a provider that nobody knows.

use std::time::Duration;

use rdma_verbs::wr::Write;
use rdma_verbs::{
    CompletionChannel, CompletionQueue, DoorbellKind, Errno, Error, Exposed, Notify, QueuePair,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll as wait_for};

use crate::interposed::rig::{Rig, everything, poll, wait_until};
use crate::interposed::{faults, interposed};

/// Whether an event is there.
fn told(channel: &CompletionChannel) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    wait_for(&mut [PollFd::new(channel, PollFlags::IN)], Some(&now)).expect("it can be polled") == 1
}

interposed! {
    /// One event for the next completion; none for those that are there, nor for later ones.
    fn a_request_is_the_call_alone() {
        let rig = Rig::new();
        let channel = CompletionChannel::new(&rig.context).expect("a channel");
        let cq = CompletionQueue::builder(&rig.context, 63).channel(&channel).build();
        let mut cq = cq.expect("a CQ");
        let make = || {
            let made = QueuePair::rc(&rig.pd, &cq, &cq).send_depth(8).recv_depth(8).build().expect("a queue pair");
            made.init(&rig.init_options()).expect("to INIT")
        };
        let (mut a, _b) = rig.connect(make(), make());
        let target = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        let remote = target.remote().slice(0, 8).expect("a part");
        let mut write = || a.send_queue().post(Write::new(rig.filled(&[7; 8]), remote).signaled());
        let count = || faults::count("ibv_req_notify_cq");
        write().expect("room");
        assert!(!told(&channel), "nobody asked");
        cq.request_notify(Notify::Any).expect("it can be asked for");
        assert_eq!(count(), 1);
        assert!(!told(&channel), "what was there raises none");
        assert_eq!(poll(&mut cq).len(), 1);
        write().expect("room");
        wait_until("an event", || told(&channel));
        assert_eq!(channel.process_events().expect("they can be taken"), 1);
        write().expect("room");
        assert_eq!(poll(&mut cq).len(), 2);
        assert!(!told(&channel), "once");
        // Solicited only: the sender's own completion is not.
        cq.request_notify(Notify::Solicited).expect("it can be asked for");
        write().expect("room");
        assert_eq!(poll(&mut cq).len(), 1);
        assert!(!told(&channel), "it is not solicited");
        assert_eq!(count(), 2);
        drop((a, _b));
        drop((cq, channel, target));
        rig.end();
    }

    fn a_request_that_fails() {
        let mut rig = Rig::new();
        let error = rig.cq.request_notify(Notify::Any);
        assert!(matches!(error, Err(Error::NoChannel)), "{error:?}");
        assert_eq!(faults::count("ibv_req_notify_cq"), 0, "nothing was asked");
        let channel = CompletionChannel::new(&rig.context).expect("a channel");
        let cq = CompletionQueue::builder(&rig.context, 15).channel(&channel).build();
        let mut cq = cq.expect("a CQ");
        for errno in [Errno::EIO, Errno::EINVAL, Errno::ENODEV] {
            faults::fail("ibv_req_notify_cq", errno.raw());
            match cq.request_notify(Notify::Any) {
                Err(Error::Verb { verb: "ibv_req_notify_cq", errno: told, object }) => {
                    assert_eq!((told, object.to_string().as_str()), (errno, "loop0"));
                }
                other => panic!("{other:?}"),
            }
            faults::fail("ibv_req_notify_cq", errno.raw());
            let armed = cq.arm(Notify::Any).map(drop);
            assert!(matches!(armed, Err(Error::Verb { verb: "ibv_req_notify_cq", .. })), "{armed:?}");
        }
        // It goes on.
        cq.request_notify(Notify::Any).expect("it can be asked for");
        let waited = cq.wait(Notify::Any, Duration::from_millis(1)).map(|drain| drain.is_empty());
        assert!(waited.expect("it can be waited for"), "nothing came");
        drop((cq, channel));
        rig.end();
    }

    fn the_raw_queue_is_cs() {
        let rig = Rig::new();
        assert_eq!(rig.cq.as_raw().as_ptr(), faults::nth("cq", 0));
        rig.end();
    }

    fn a_doorbell_that_nobody_knows() {
        let rig = Rig::new();
        let doorbell = rig.context.doorbell();
        assert_eq!((doorbell.provider(), doorbell.kind()), ("rdma_interposer", DoorbellKind::Unknown));
        assert_eq!((doorbell.driver(), doorbell.switches().len()), (None, 0));
        assert_eq!((doorbell.settings(DoorbellKind::Mmio), doorbell.max_inline()), (None, None));
        assert!(!doorbell.write_combining().reason().is_empty());
        let qp = rig.make();
        assert_eq!(qp.doorbell().max_inline(), Some(qp.granted().max_inline));
        assert!(qp.granted().max_inline >= 64);
        drop(qp);
        rig.end();
    }
}
