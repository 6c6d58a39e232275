//! What is posted on a shared receive queue, refused, and taken.

use rdma_verbs::wr::Receive;
use rdma_verbs::{
    CompletionQueue, Errno, Error, EventSubject, EventType, Pool, ProtectionDomain, Queue,
    QueuePair, Refusal, SharedReceiveQueue, WcStatus,
};

use super::{DEPTH, Shared};
use crate::interposed::rig::{Rig, assert_nothing_is_left, completions, open, poll};
use crate::interposed::{faults, interposed};

const OK: WcStatus = WcStatus::SUCCESS;

fn out_of_range<T>(made: Result<T, Error>) -> (u64, u64, u64) {
    match made {
        Err(Error::OutOfRange { asked, least, most, .. }) => (asked, least, most),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was made"),
    }
}

interposed! {
    /// Queue pairs on two completion queues take receives of one supply, each in its turn.
    fn several_queue_pairs_receive() {
        let mut shared = Shared::new();
        let room = (shared.rig.cq.room(), shared.other.room());
        let (mut a, b) = shared.pair(false);
        let (mut c, d) = shared.pair(true);
        let (mut e, f) = shared.pair(true);
        // Of each of these, their own queues' depth, and that of the shared one, once.
        let own = 3 * (2 * 16 + 4);
        assert_eq!((shared.rig.cq.room(), shared.other.room()), (room.0 - own - DEPTH, room.1 - DEPTH));
        shared.post(0..6);
        shared.send(&mut a, b"to b");
        shared.send(&mut c, b"to d");
        shared.send(&mut e, b"to f");
        shared.send(&mut a, b"b 2!");
        let mut seen: Vec<_> = completions(&mut shared.rig.cq, 6);
        seen.retain(|seen| seen.wr_id < 1000);
        let told: Vec<_> = seen.iter().map(|seen| (seen.wr_id, seen.bytes())).collect();
        assert_eq!(told, [(0, &b"to b"[..]), (3, b"b 2!")]);
        let mut drain = shared.other.poll().expect("polled");
        for (wr_id, text, qpn) in [(1, b"to d", d.qpn()), (2, b"to f", f.qpn())] {
            let mut completion = drain.next().expect("a message");
            assert_eq!((completion.wr_id(), completion.qpn(), completion.status()), (wr_id, qpn, OK));
            assert_eq!(completion.byte_len(), 4);
            assert_eq!(completion.take_buffer().as_deref(), Some(&text[..]));
        }
        assert!(drain.next().is_none());
        assert_eq!((shared.srq.in_flight(), shared.srq.overtaken()), (2, 0));
        drop((seen, a, b, c, d, e, f));
        // The room is there again when the queue was seen empty.
        assert_eq!(shared.other.room(), room.1 - DEPTH);
        assert_eq!((poll(&mut shared.other).len(), poll(&mut shared.rig.cq).len()), (0, 0));
        assert_eq!((shared.rig.cq.room(), shared.other.room()), room);
        let Shared { srq, other, rig } = shared;
        let left: Vec<_> = srq.finish().expect("nobody uses it").map(|left| left.wr_id).collect();
        assert_eq!((left, rig.out()), (vec![4, 5], 0));
        drop(other);
        rig.end();
    }

    fn a_full_queue_and_what_cannot_be_posted() {
        let mut shared = Shared::new();
        let number = |refusal| match refusal {
            Refusal::Full { queue: Queue::Receive, on, depth: DEPTH } => format!("{on}"),
            other => panic!("{other:?}"),
        };
        shared.post(0..u64::from(DEPTH));
        let posts = faults::count("ibv_post_srq_recv");
        let failed = shared.srq.post(Receive::new(shared.rig.take()).wr_id(77)).expect_err("full");
        assert!(number(failed.refusal).starts_with("SRQ "), "{failed}");
        assert_eq!(failed.request.as_ref().map(|_| shared.rig.out()), Some(DEPTH as usize + 1));
        let mut batch = shared.srq.batch::<2>();
        number(batch.push(Receive::new(())).expect_err("full").refusal);
        drop((batch, failed));
        let (mut a, b) = shared.pair(true);
        shared.send(&mut a, b"one");
        assert_eq!(completions(&mut shared.other, 1)[0].wr_id, 0);
        let take = || shared.rig.take();
        let refused = shared.srq.post(Receive::new([take(), take(), take()])).expect_err("three");
        assert!(matches!(refused.refusal, Refusal::TooManyEntries { asked: 3, limit: 2, .. }));
        let pd = ProtectionDomain::new(&shared.rig.context).expect("a PD");
        let pool = Pool::new(&pd, 64, 1).expect("a pool");
        let foreign = Receive::new(pool.take().expect("a buffer"));
        let refused = shared.srq.post(foreign).expect_err("of another domain");
        assert!(matches!(refused.refusal, Refusal::OtherDomain { .. }) && refused.request.is_some());
        assert_eq!(faults::count("ibv_post_srq_recv"), posts);
        shared.srq.post(Receive::new([take(), take()]).wr_id(9)).expect("two pieces");
        drop((a, b));
    }

    /// The queue of its own, which it has not, takes nothing, and the device is not asked.
    fn the_own_queue_of_one_that_shares() {
        let mut shared = Shared::new();
        let (_a, mut b) = shared.pair(false);
        let qpn = b.qpn();
        assert_eq!((b.limits().recv_depth, b.granted().recv_depth, b.recv_queue().depth()), (0, 0, 0));
        let refused = b.recv_queue().post(Receive::new(shared.rig.take())).expect_err("shares");
        assert!(matches!(refused.refusal, Refusal::ReceivesShared { qpn: told, .. } if told == qpn));
        assert!(refused.to_string().contains("SRQ"), "{refused}");
        let mut batch = b.recv_queue().batch::<1>();
        let refused = batch.push(Receive::new(shared.rig.take())).expect_err("shares");
        assert!(matches!(refused.refusal, Refusal::ReceivesShared { .. }));
        drop((batch, refused));
        let (_send, mut recv) = b.split();
        assert!(recv.post(Receive::new(())).is_err());
        assert_eq!((recv.in_flight(), faults::count("ibv_post_recv")), (0, 0));
        shared.post(0..1);
    }

    /// From each place of a chain on: the first are the queue's, the others come back, and all goes on.
    fn a_chain_refused_from_any_place() {
        let mut shared = Shared::new();
        let (mut a, b) = shared.pair(true);
        for at in 0..5_u32 {
            for forgets in [false, true] {
                let mut batch = shared.srq.batch_of::<5, 10>();
                for wr_id in 0..5 {
                    let two = [shared.rig.take(), shared.rig.take()];
                    batch.push(Receive::new(two).wr_id(wr_id)).expect("room");
                }
                faults::fail_post("ibv_post_srq_recv", faults::Post::RefuseAt(at), libc::ENOMEM, 1);
                let mut failed = batch.post().expect_err("refused");
                assert!(matches!(failed.refusal, Refusal::Device { errno: Errno::ENOMEM, .. }));
                assert_eq!(failed.taken, at as usize);
                if forgets {
                    std::mem::forget(failed);
                    // Nor does it stay when nothing is put behind it.
                    drop(shared.srq.batch::<1>());
                } else {
                    let mut back = Vec::new();
                    while let Some(mut refused) = failed.next_refused() {
                        let pieces = std::iter::from_fn(|| refused.take()).count();
                        back.push((refused.wr_id(), pieces));
                    }
                    let expected: Vec<_> = (u64::from(at)..5).map(|wr_id| (wr_id, 2)).collect();
                    assert_eq!(back, expected);
                    drop(failed);
                }
                assert_eq!(shared.srq.in_flight(), at);
                assert_eq!(shared.rig.out(), 2 * at as usize);
                for wr_id in 0..u64::from(at) {
                    shared.send(&mut a, b"x");
                    let seen = completions(&mut shared.other, 1);
                    assert_eq!((seen[0].wr_id, seen[0].memory.len()), (wr_id, 2));
                }
                completions(&mut shared.rig.cq, at as usize);
                assert_eq!((shared.srq.in_flight(), shared.rig.out()), (0, 0));
            }
        }
        // One alone, with its memory.
        faults::fail_post("ibv_post_srq_recv", faults::Post::RefuseAt(0), libc::EINVAL, 1);
        let failed = shared.srq.post(Receive::new(shared.rig.take()).wr_id(3)).expect_err("refused");
        shared.srq.post(failed.request.expect("it comes back")).expect("again");
        shared.send(&mut a, b"x");
        assert_eq!(completions(&mut shared.other, 1)[0].wr_id, 3);
        drop(b);
    }

    /// What was taken out of a refused receive has one owner, whatever is forgotten after that.
    fn a_refused_receive_that_is_forgotten_with_its_error() {
        let mut shared = Shared::new();
        for _ in 0..2 * DEPTH {
            let mut batch = shared.srq.batch::<2>();
            for wr_id in 0..2 {
                batch.push(Receive::new(shared.rig.take()).wr_id(wr_id)).expect("room");
            }
            faults::fail_post("ibv_post_srq_recv", faults::Post::RefuseAt(0), libc::ENOMEM, 1);
            let mut failed = batch.post().expect_err("refused");
            let mut refused = failed.next_refused().expect("the first");
            let memory = refused.take().expect("its buffer");
            std::mem::forget(refused);
            std::mem::forget(failed);
            drop(shared.srq.batch::<1>());
            // This one; the other has gone to its pool.
            assert_eq!((shared.rig.out(), shared.srq.in_flight()), (1, 0));
            drop(memory);
            assert_eq!(shared.rig.out(), 0);
        }
    }

    /// What a post that names nothing took is not known: the memory stays, and nothing more is posted.
    fn a_post_that_names_nothing() {
        use faults::Post::{LostForeign, LostUnnamed, TakenForeign, TakenUnnamed};
        for how in [TakenUnnamed, LostUnnamed, TakenForeign, LostForeign] {
            let mut shared = Shared::new();
            let (mut a, b) = shared.pair(false);
            shared.post(0..1);
            let mut batch = shared.srq.batch::<3>();
            for wr_id in 1..4 {
                batch.push(Receive::new(shared.rig.take()).wr_id(wr_id)).expect("room");
            }
            faults::fail_post("ibv_post_srq_recv", how, libc::EIO, 1);
            let mut failed = batch.post().expect_err("it says so");
            assert!(matches!(failed.refusal, Refusal::Unsure { errno: Errno::EIO, .. }), "{failed}");
            assert!(failed.taken == 3 && failed.next_refused().is_none());
            drop(failed);
            let refused = shared.srq.post(Receive::new(shared.rig.take())).expect_err("poisoned");
            assert!(matches!(refused.refusal, Refusal::Poisoned { errno: Errno::EIO, .. }));
            drop(refused);
            let taken = matches!(how, TakenUnnamed | TakenForeign);
            let count = if taken { 4 } else { 1 };
            for wr_id in 0..count {
                shared.send(&mut a, b"x");
                let seen = completions(&mut shared.rig.cq, 2);
                assert!(seen.iter().any(|seen| seen.wr_id == wr_id && seen.status == OK));
            }
            assert_eq!((shared.srq.in_flight() as u64, shared.rig.out() as u64), (4 - count, 4 - count));
            drop((a, b));
            poll(&mut shared.rig.cq);
            let left = shared.srq.finish().expect("nobody uses it");
            assert_eq!(left.map(|left| left.wr_id).collect::<Vec<_>>(), (count..4).collect::<Vec<_>>());
            assert_eq!(shared.rig.out(), 0);
        }
    }

    fn the_limit_and_other_events() {
        let mut shared = Shared::new();
        let queue = shared.rig.context.subscribe().expect("events");
        let (mut a, b) = shared.pair(false);
        shared.post(0..4);
        assert_eq!(out_of_range(shared.srq.set_limit(DEPTH + 1)), (9, 0, 8));
        shared.srq.set_limit(3).expect("it is set");
        let told = shared.srq.query().expect("told");
        assert_eq!((told.limit, shared.srq.limits().limit), (3, 0));
        assert!(told.depth >= DEPTH && told.max_sge >= 2);
        let mut reached = Vec::new();
        for _ in 0..3 {
            shared.send(&mut a, b"x");
            shared.rig.context.process_events().expect("events");
            reached.push(shared.srq.limit_reached());
        }
        assert_eq!(reached, [false, true, false], "once");
        let event = queue.next_event().expect("told");
        assert_eq!((event.kind, event.subject), (
            EventType::SRQ_LIMIT_REACHED,
            EventSubject::Object(Some(shared.srq.id())),
        ));
        assert_eq!(shared.srq.query().expect("told").limit, 0);
        faults::fail("ibv_modify_srq", libc::EINVAL);
        let failed = shared.srq.set_limit(1).expect_err("it fails");
        assert!(matches!(failed, Error::Verb { verb: "ibv_modify_srq", errno: Errno::EINVAL, .. }));
        faults::fail("ibv_query_srq", libc::EIO);
        assert!(matches!(shared.srq.query(), Err(Error::Verb { verb: "ibv_query_srq", .. })));
        // It fails: what is posted stays, and nothing more is taken.
        let address = faults::nth("srq", 0).addr() as u64;
        faults::raise(Some("loop0"), EventType::SRQ_ERR.raw(), address);
        shared.srq.post(Receive::new(shared.rig.take())).expect("nobody has told it yet");
        shared.rig.context.process_events().expect("events");
        let calls = faults::count("ibv_post_srq_recv");
        let refused = shared.srq.post(Receive::new(shared.rig.take())).expect_err("failed");
        assert!(matches!(refused.refusal, Refusal::Failed { .. }) && refused.request.is_some());
        assert_eq!(shared.srq.take_events().collect::<Vec<_>>(), [EventType::SRQ_ERR]);
        assert_eq!(shared.srq.take_events().count(), 0);
        let refused = shared.srq.post(Receive::new(shared.rig.take())).expect_err("failed");
        assert!(matches!(refused.refusal, Refusal::Failed { .. }));
        assert_eq!(faults::count("ibv_post_srq_recv"), calls);
        drop((a, b));
    }

    fn what_cannot_be_made() {
        let rig = Rig::new();
        let make = |depth, sge| SharedReceiveQueue::builder(&rig.pd, depth).max_sge(sge).build();
        for depth in [0, 16_384, u32::MAX] {
            assert_eq!(out_of_range(make(depth, 1)), (depth.into(), 1, 16_383));
        }
        for entries in [0, 33, u32::MAX] {
            assert_eq!(out_of_range(make(4, entries)), (entries.into(), 1, 32));
        }
        faults::fail("ibv_create_srq", libc::ENOMEM);
        assert!(matches!(make(4, 1), Err(Error::NoMemory { what: "a shared receive queue", .. })));
        faults::fail("ibv_create_srq", libc::EPERM);
        let Err(Error::Verb { verb: "ibv_create_srq", errno: Errno::EPERM, .. }) = make(4, 1) else {
            panic!("it fails")
        };
        let srq = make(16, 1).expect("a queue");
        assert_eq!((srq.depth(), srq.limits().max_sge), (16, 1));
        assert!(srq.granted().depth >= 16);
        // On what its queue pairs cannot be made.
        let build = |pd: &ProtectionDomain, cq: &CompletionQueue, srq: &SharedReceiveQueue| {
            QueuePair::rc(pd, &rig.cq, cq).shared_receive_queue(srq).build().map(drop)
        };
        let small = CompletionQueue::new(&rig.context, 15).expect("a CQ");
        let full = build(&rig.pd, &small, &srq).expect_err("full");
        assert!(matches!(full, Error::CompletionQueueFull { asked: 16, left: 15, .. }), "{full}");
        let pd = ProtectionDomain::new(&rig.context).expect("a PD");
        let other = build(&pd, &rig.cq, &srq).expect_err("of another domain");
        assert!(matches!(other, Error::OtherDevice { .. }), "{other}");
        let context = open("loop0");
        let domain = ProtectionDomain::new(&context).expect("a PD");
        let foreign = SharedReceiveQueue::builder(&domain, 4).build().expect("a queue");
        let other = build(&rig.pd, &rig.cq, &foreign).expect_err("of another device");
        assert!(matches!(other, Error::OtherDevice { .. }), "{other}");
        // One that the device refuses takes no room.
        let room = rig.cq.room();
        faults::fail("ibv_create_qp", libc::ENOMEM);
        assert!(matches!(build(&rig.pd, &rig.cq, &srq), Err(Error::NoMemory { .. })));
        assert_eq!(rig.cq.room(), room);
        let handle = srq.handle();
        drop(srq);
        let made = QueuePair::rc(&rig.pd, &rig.cq, &rig.cq).shared_receive_queue(&handle).build();
        assert!(matches!(made, Err(Error::SharedReceiveQueueGone)));
        assert_eq!((rig.cq.room(), faults::live("srq")), (room, 1));
        drop((foreign, domain, context, pd, small, made, handle));
        rig.end();
        assert_nothing_is_left();
    }

    /// It was dropped, but not its queue pairs: no more are made, and what is posted is still received.
    fn an_owner_that_goes_first() {
        let mut shared = Shared::new();
        let (mut a, b) = shared.pair(true);
        shared.post(0..3);
        let handle = shared.srq.handle();
        let Shared { srq, mut other, mut rig } = shared;
        drop(srq);
        let made = QueuePair::rc(&rig.pd, &rig.cq, &rig.cq).shared_receive_queue(&handle).build();
        assert!(matches!(made, Err(Error::SharedReceiveQueueGone)));
        let send = rdma_verbs::wr::Send::new(rig.filled(b"late")).signaled();
        a.send_queue().post(send).expect("room");
        assert_eq!(completions(&mut other, 1)[0].bytes(), b"late");
        rig.completions(1);
        assert_eq!((rig.out(), faults::live("srq")), (2, 1));
        drop((a, b));
        assert_eq!((rig.out(), faults::live("srq")), (2, 0), "its completions may be there");
        assert_eq!(poll(&mut other), []);
        assert_eq!(rig.out(), 0);
        drop((other, made));
        poll(&mut rig.cq);
        rig.end();
    }
}
