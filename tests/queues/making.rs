//! Objects that cannot be made, and transitions that are refused.

use rdma_verbs::wr::Receive;
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Errno, Error, Exposed, InitOptions, Pool, ProtectionDomain,
    QpState, QueuePair, Refusal, TransitionFault, WcStatus,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::interposed::rig::{
    DEPTH, Rig, assert_nothing_is_left, completions, ends, everything, open,
};
use crate::interposed::{faults, interposed, leaks_on_purpose};

/// That a call failed with the errno that the verb was made to fail with.
#[track_caller]
fn assert_verb<T>(made: Result<T, Error>, verb: &str, errno: i32) {
    match made.err().expect("it fails") {
        Error::Verb { verb: told, errno: why, object } => {
            assert_eq!((told, why.raw(), &*object.device), (verb, errno, "loop0"));
        }
        error => panic!("{error:?}"),
    }
}

/// That a call failed for want of memory that may be locked.
#[track_caller]
fn assert_no_memory<T>(made: Result<T, Error>, of: &str, at_least: u64) {
    match made.err().expect("it fails") {
        Error::NoMemory { device, what, asked, .. } => {
            assert_eq!((&*device, what), ("loop0", of));
            assert!(asked >= at_least, "{asked}");
        }
        error => panic!("{error:?}"),
    }
}

#[track_caller]
fn fault_of(error: Error) -> TransitionFault {
    match error {
        Error::Transition(fault) => *fault,
        error => panic!("{error:?}"),
    }
}

/// How much address space this process has, in pages.
fn pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("own size");
    statm.split(' ').next().and_then(|size| size.parse().ok()).expect("a number")
}

const ERRNOS: [i32; 5] = [libc::EINVAL, libc::EMFILE, libc::EIO, libc::EOPNOTSUPP, 4711];

interposed! {
    fn a_domain_that_cannot_be_had() {
        let context = open("loop0");
        for errno in ERRNOS.into_iter().chain([libc::ENOMEM]) {
            faults::fail("ibv_alloc_pd", errno);
            assert_verb(ProtectionDomain::new(&context), "ibv_alloc_pd", errno);
        }
        assert_eq!(faults::live("pd"), 0);
        ProtectionDomain::new(&context).expect("it can be had after all");
    }

    fn memory_that_cannot_be_registered() {
        let context = open("loop0");
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let before = pages();
        const SIZE: usize = 1 << 20;
        for _ in 0..64 {
            for errno in ERRNOS {
                faults::fail("ibv_reg_mr", errno);
                assert_verb(Pool::new(&pd, SIZE, 16), "ibv_reg_mr", errno);
                faults::fail("ibv_reg_mr", errno);
                assert_verb(Exposed::new(&pd, 16 * SIZE, everything()), "ibv_reg_mr", errno);
            }
            faults::fail_every("ibv_reg_mr", libc::ENOMEM, 1, Some(2));
            assert_no_memory(Pool::new(&pd, SIZE, 16), "memory", 16 << 20);
            assert_no_memory(Exposed::new(&pd, 16 * SIZE, everything()), "memory", 16 << 20);
        }
        assert_eq!((faults::live("mr"), faults::live("mr_bytes")), (0, 0));
        // It was 10 GiB in all.
        let more = pages().saturating_sub(before) * 4096;
        assert!(more < 256 << 20, "{more} bytes are still mapped");
        Pool::new(&pd, SIZE, 16).expect("it can be had after all");
        drop((pd, context));
        assert_nothing_is_left();
    }

    fn queues_and_channels_that_cannot_be_made() {
        let context = open("loop0");
        for errno in ERRNOS {
            faults::fail("ibv_create_comp_channel", errno);
            assert_verb(CompletionChannel::new(&context), "ibv_create_comp_channel", errno);
            faults::fail("ibv_create_cq", errno);
            assert_verb(CompletionQueue::new(&context, 100), "ibv_create_cq", errno);
        }
        faults::fail("ibv_create_cq", libc::ENOMEM);
        assert_no_memory(CompletionQueue::new(&context, 100), "a completion queue", 100);
        let channel = CompletionChannel::new(&context).expect("a channel");
        faults::fail("ibv_create_cq", libc::EINVAL);
        let failed = CompletionQueue::builder(&context, 100).channel(&channel).build();
        assert_verb(failed, "ibv_create_cq", libc::EINVAL);
        assert_eq!((faults::live("cq"), faults::live("channel")), (0, 1));
        drop((channel, context));
        assert_nothing_is_left();
    }

    /// A channel's descriptors run out after the completion queue was made: it goes again.
    fn a_completion_queue_that_cannot_be_told_of() {
        let context = open("loop0");
        let channel = CompletionChannel::new(&context).expect("a channel");
        let limit = getrlimit(Resource::Nofile);
        let none = Rlimit { current: Some(0), ..limit };
        setrlimit(Resource::Nofile, none).expect("a lower limit");
        let failed = CompletionQueue::builder(&context, 100).channel(&channel).build();
        setrlimit(Resource::Nofile, limit).expect("the old limit");
        let error = failed.expect_err("there are no more descriptors");
        assert!(
            matches!(error, Error::Host { call: "eventfd", errno: Errno::EMFILE }),
            "{error:?}"
        );
        assert_eq!(faults::live("cq"), 0);
        CompletionQueue::builder(&context, 100).channel(&channel).build().expect("it can be made");
    }

    fn a_queue_pair_that_cannot_be_made() {
        let mut rig = Rig::new();
        let room = rig.cq.room();
        for errno in ERRNOS {
            faults::fail("ibv_create_qp", errno);
            assert_verb(rig.builder().max_inline(0).build(), "ibv_create_qp", errno);
        }
        faults::fail("ibv_create_qp", libc::ENOMEM);
        let failed = rig.builder().max_inline(0).build();
        assert_no_memory(failed, "a queue pair", u64::from(2 * DEPTH));
        // Neither with inline data nor without: it is not that.
        faults::fail_every("ibv_create_qp", libc::ENOMEM, 1, Some(2));
        assert_no_memory(rig.builder().build(), "a queue pair", u64::from(2 * DEPTH));
        let error = rig.builder().max_inline(513).build().expect_err("512 are granted");
        assert!(matches!(&error, Error::InlineNotGranted { asked: 513, .. }), "{error:?}");
        let error = rig.builder().recv_depth(1024).build().expect_err("no room for it");
        let Error::CompletionQueueFull { asked: 1024, left, size: 1023 } = error else {
            panic!("{error:?}")
        };
        assert_eq!(left, room - DEPTH, "what is left beside the sends");
        assert_eq!((faults::live("qp"), rig.cq.room()), (0, room));
        for _ in 0..1000 {
            drop(rig.make());
            assert_eq!(rig.completions(0), []);
            assert_eq!(rig.cq.room(), room);
        }
        rig.end();
    }

    /// Whether it is the inline data is found out by a queue pair without: should that one stay, it is told.
    fn a_trial_that_cannot_be_destroyed() {
        leaks_on_purpose();
        let rig = Rig::new();
        faults::fail("ibv_destroy_qp", libc::EBUSY);
        rig.builder().max_inline(513).build().expect_err("512 are granted");
        assert_eq!((faults::live("qp"), rig.context.leaks()), (1, 1));
    }

    /// By the handle of a completion queue that another thread polls; not of one that was dropped.
    fn on_a_completion_queue_of_another_thread() {
        let Rig { mut cq, pd, pool, context, row, .. } = Rig::new();
        let handle = cq.handle();
        let polling = std::thread::spawn(move || {
            let seen = completions(&mut cq, 1);
            (cq, seen.len())
        });
        let init = InitOptions::new(row.port());
        let made = QueuePair::rc(&pd, &handle, &handle).send_depth(8).recv_depth(8).build();
        let mut qp = made.expect("there is room").init(&init).expect("to INIT");
        qp.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
        qp.close().expect("to ERR");
        let (cq, seen) = polling.join().expect("it ends");
        assert_eq!(seen, 1);
        drop((cq, qp));
        let error = QueuePair::rc(&pd, &handle, &handle).build().expect_err("nobody polls");
        assert!(matches!(error, Error::CompletionQueueGone), "{error}");
        drop((handle, pool, pd, context));
        assert_nothing_is_left();
    }

    fn to_init_refused() {
        let rig = Rig::new();
        let mut reset = rig.make();
        for errno in ERRNOS {
            faults::fail("ibv_modify_qp", errno);
            let failed = reset.init(&rig.init_options()).expect_err("it is refused");
            let fault = fault_of(failed.error);
            assert_eq!((fault.from, fault.to), (QpState::RESET, QpState::INIT));
            assert_eq!(fault.errno, Some(Errno::from_raw(errno)));
            assert_eq!((&*fault.device, fault.qpn), ("loop0", failed.queue_pair.qpn()));
            assert!(fault.what.contains("port_num 1"), "{fault}");
            reset = failed.queue_pair;
        }
        faults::fail("ibv_query_port", libc::ENODEV);
        let failed = reset.init(&rig.init_options()).expect_err("the port is not there");
        assert_verb(Err::<(), _>(failed.error), "ibv_query_port", libc::ENODEV);
        faults::fail("ibv_query_qp", libc::EIO);
        assert_verb(failed.queue_pair.state(), "ibv_query_qp", libc::EIO);
        let init = failed.queue_pair.init(&rig.init_options()).expect("it can after all");
        assert_eq!(init.state().expect("a state"), QpState::INIT);
        drop(init);
        rig.end();
    }

    fn to_rtr_and_rts_refused() {
        let mut rig = Rig::new();
        let (mut a, b) = (rig.init(), rig.init());
        let options = rig.options();
        let peer = b.endpoint(&options).expect("an address");
        let errnos = ERRNOS.into_iter().chain([libc::ETIMEDOUT, libc::ENETUNREACH]);
        for errno in errnos {
            faults::fail("ibv_modify_qp", errno);
            let failed = a.connect(&peer, &options).expect_err("it is refused");
            let fault = fault_of(failed.error);
            assert_eq!((fault.from, fault.to), (QpState::INIT, QpState::RTR));
            assert_eq!(fault.errno, Some(Errno::from_raw(errno)));
            let text = fault.to_string();
            for told in [peer.qpn.to_string(), "192.0.2.10".into(), "index 1".into()] {
                assert!(text.contains(&told), "{told} is not in: {text}");
            }
            a = failed.queue_pair;
            assert_eq!(a.state().expect("a state"), QpState::INIT);
            // The second change fails, and the first is taken back.
            faults::fail_every("ibv_modify_qp", errno, 2, Some(1));
            let failed = a.connect(&peer, &options).expect_err("it is refused");
            let fault = fault_of(failed.error);
            assert_eq!((fault.from, fault.to), (QpState::RTR, QpState::RTS));
            assert_eq!(fault.errno, Some(Errno::from_raw(errno)));
            a = failed.queue_pair;
            assert_eq!(a.state().expect("a state"), QpState::INIT);
        }
        faults::reset();
        let (a, b) = rig.connect(a, b);
        assert_eq!(a.state().expect("a state"), QpState::RTS);
        drop((a, b));
        assert_eq!(rig.completions(0), []);
        rig.end();
    }

    /// With receives posted there is no way back that keeps them: they come flushed.
    fn to_rts_refused_with_receives() {
        let mut rig = Rig::new();
        let (mut a, b) = (rig.init(), rig.init());
        for wr_id in 0..3 {
            let receive = Receive::new(rig.take()).wr_id(wr_id);
            a.recv_queue().post(receive).expect("room");
        }
        let options = rig.options();
        let peer = b.endpoint(&options).expect("an address");
        faults::fail_every("ibv_modify_qp", libc::EINVAL, 2, Some(1));
        let failed = a.connect(&peer, &options).expect_err("it is refused");
        let mut a = failed.queue_pair;
        assert_eq!(a.state().expect("a state"), QpState::ERR);
        let flushed = WcStatus::WR_FLUSH_ERR;
        assert_eq!(ends(&rig.completions(3)), [(0, flushed), (1, flushed), (2, flushed)]);
        let refused = a.recv_queue().post(Receive::new(())).expect_err("it is closed");
        assert!(matches!(refused.refusal, Refusal::Closed { .. }), "{refused}");
        drop((a, b));
        rig.end();
    }

    /// A row that moves before RTR is found by its address; one that goes is told of.
    fn a_row_that_moves() {
        let rig = Rig::new();
        let (a, b) = (rig.init(), rig.init());
        let options = rig.options();
        let peer = b.endpoint(&options).expect("an address");
        faults::gid_move(1, 7);
        let a = a.connect(&peer, &options).expect("the row is found");
        assert_eq!(a.source().map(|row| row.index()), Some(7));
        faults::gid_move(7, 16);
        let failed = b.connect(&peer, &options).expect_err("the row has gone");
        let Error::GidMoved(moved) = &failed.error else { panic!("{:?}", failed.error) };
        assert_eq!((moved.row.index(), moved.now), (1, None));
        drop((a, failed));
        rig.end();
    }

    fn a_close_that_is_refused_closes_all_the_same() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        a.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
        faults::fail("ibv_modify_qp", libc::EIO);
        let fault = fault_of(a.close().expect_err("it is refused"));
        assert_eq!((fault.from, fault.to), (QpState::RTS, QpState::ERR));
        assert_eq!(fault.errno, Some(Errno::EIO));
        let refused = a.send_queue().post(rdma_verbs::wr::Send::new(())).expect_err("closed");
        assert!(matches!(refused.refusal, Refusal::Closed { .. }), "{refused}");
        assert_eq!(rig.completions(0), []);
        a.close().expect("it is not refused again");
        assert_eq!(ends(&rig.completions(1)), [(1, WcStatus::WR_FLUSH_ERR)]);
        drop((a, b));
        rig.end();
    }
}
