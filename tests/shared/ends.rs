//! Every order of dropping, what cannot be destroyed, and what is left.

use std::any::Any;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    CompletionQueue, Errno, Error, InitOptions, Pool, ProtectionDomain, QueuePair,
    SharedReceiveQueue,
};

use super::{DEPTH, Shared};
use crate::interposed::rig::{
    Random, SIZE, assert_nothing_is_left, completions, everything, open, poll, row,
};
use crate::interposed::{faults, interposed, leaks_on_purpose};

/// All that there is around a shared receive queue, with receives posted, taken, and told: each can be dropped
/// at any time.
fn everything_there_is(seed: u64) -> Vec<(&'static str, Box<dyn Any>)> {
    let context = open("loop0");
    let row = row(&context);
    let pd = ProtectionDomain::new(&context).expect("a PD");
    let pool = Pool::new(&pd, SIZE, 32).expect("a pool");
    let send_cq = CompletionQueue::new(&context, 255).expect("a CQ");
    let mut cq = CompletionQueue::new(&context, 255).expect("a CQ");
    let mut srq = SharedReceiveQueue::builder(&pd, 8).max_sge(2).build().expect("a queue");
    let handle = srq.handle();
    let options = rdma_verbs::ConnectOptions::new(&row);
    let init = InitOptions::new(row.port()).access(everything());
    let a = QueuePair::rc(&pd, &send_cq, &send_cq).build().expect("a QP").init(&init);
    let b = QueuePair::rc(&pd, &send_cq, &cq).shared_receive_queue(&handle).build();
    let (a, b) = (a.expect("to INIT"), b.expect("a QP").init(&init).expect("to INIT"));
    let (at_a, at_b) = (a.endpoint(&options).expect("it"), b.endpoint(&options).expect("it"));
    let mut a = a.connect(&at_b, &options).expect("connected");
    let b = b.connect(&at_a, &options).expect("connected");
    let take = || pool.take().expect("a buffer");
    for _ in 0..4 {
        srq.post(Receive::new([take(), take()])).expect("room");
    }
    // One is told, one is told and was not looked at, one may be swallowed, one is there.
    a.send_queue().post(Send::new(take())).expect("room");
    let mut drain = cq.poll().expect("polled");
    drop(drain.next().expect("a message"));
    assert!(drain.next().is_none());
    drop(drain);
    a.send_queue().post(Send::new(take())).expect("room");
    faults::hold(true);
    a.send_queue().post(Send::new(take())).expect("room");
    if seed % 3 == 0 {
        faults::hold(false);
    }
    if seed % 3 == 1 {
        faults::copies(0);
        a.send_queue().post(Send::new(take())).expect("room");
    }
    vec![
        ("context", Box::new(context)),
        ("pd", Box::new(pd)),
        ("pool", Box::new(pool)),
        ("send cq", Box::new(send_cq)),
        ("cq", Box::new(cq)),
        ("srq", Box::new(srq)),
        ("handle", Box::new(handle)),
        ("sender", Box::new(a)),
        ("receiver", Box::new(b)),
    ]
}

/// Drops them in this order, with the device writing after each.
fn drop_all(all: Vec<(&'static str, Box<dyn Any>)>, byte: u8) {
    let order: Vec<&str> = all.iter().map(|(what, _)| *what).collect();
    let begin = Instant::now();
    for (_, object) in all {
        drop(object);
        faults::touch_all(byte);
    }
    assert!(begin.elapsed() < Duration::from_secs(1), "{order:?}: {:?}", begin.elapsed());
    assert_eq!(faults::all_live(), [], "{order:?}");
    assert_eq!(faults::live("orphan"), 0, "{order:?}");
    faults::reset();
}

/// Every order of so many things, by Heap's way.
fn orders(count: usize, each: &mut dyn FnMut(&[usize])) {
    let mut order: Vec<usize> = (0..count).collect();
    let mut stack = vec![0; count];
    each(&order);
    let mut at = 0;
    while at < count {
        if stack[at] < at {
            order.swap(if at % 2 == 0 { 0 } else { stack[at] }, at);
            each(&order);
            stack[at] += 1;
            at = 0;
        } else {
            stack[at] = 0;
            at += 1;
        }
    }
}

interposed! {
    /// All orders of pool, completion queue, shared receive queue, handle, sender and receiver, after context and
    /// protection domain, which others keep.
    fn every_order_of_six() {
        let mut count = 0;
        orders(6, &mut |order| {
            let mut all: Vec<_> = everything_there_is(count).into_iter().map(Some).collect();
            let first = all.drain(..2).flatten().collect::<Vec<_>>();
            let mut all: Vec<_> = all.into_iter().filter(|thing| {
                !matches!(thing, Some(("send cq", _)))
            }).collect();
            let chosen = order.iter().filter_map(|at| all[*at].take());
            drop_all(first.into_iter().chain(chosen).collect(), count as u8);
            count += 1;
        });
        assert_eq!(count, 720);
    }

    fn orders_at_random() {
        for seed in 0..600 {
            let mut all = everything_there_is(seed);
            Random::new(seed + 1).shuffle(&mut all);
            let first = seed as usize % all.len();
            all.swap(0, first);
            drop_all(all, seed as u8);
        }
    }

    /// It and what is posted on it stays; nothing of it is anybody's.
    fn one_that_cannot_be_destroyed() {
        leaks_on_purpose();
        for (round, errno) in [libc::EBUSY, libc::EIO, 4711].into_iter().enumerate() {
            let mut shared = Shared::new();
            let pair = shared.pair(true);
            shared.post(0..3);
            drop(pair);
            faults::fail("ibv_destroy_srq", errno);
            let Shared { srq, mut other, mut rig } = shared;
            drop(srq);
            assert_eq!((rig.context.leaks(), rig.out()), (1, 3));
            assert_eq!((poll(&mut other).len(), poll(&mut rig.cq).len()), (0, 0));
            assert_eq!(rig.out(), 3, "the device may write there");
            let mut mine = rig.take();
            mine.fill(1);
            assert_eq!(faults::touch_all(9).written, (round as u64 + 1) * 3 * SIZE as u64);
            assert!(mine.iter().all(|byte| *byte == 1));
            drop((mine, other, rig));
            assert_eq!(faults::touch_all(9).written, (round as u64 + 1) * 3 * SIZE as u64);
            let there = [faults::live("srq"), faults::live("mr"), faults::live("cq"), faults::live("qp")];
            assert_eq!(there, [round as u64 + 1, round as u64 + 1, 0, 0]);
        }
    }

    /// A queue pair that stays keeps what it receives into.
    fn a_queue_pair_that_cannot_be_destroyed() {
        leaks_on_purpose();
        let mut shared = Shared::new();
        let (a, b) = shared.pair(false);
        shared.post(0..3);
        drop(a);
        faults::fail("ibv_destroy_qp", libc::EBUSY);
        drop(b);
        poll(&mut shared.rig.cq);
        let failed = shared.srq.finish().expect_err("a queue pair is there");
        assert!(matches!(failed.error, Error::InUse { .. }), "{failed}");
        drop(failed.queue);
        assert_eq!((shared.rig.context.leaks(), shared.rig.out()), (1, 3));
        assert_eq!(faults::touch_all(1).written, 3 * SIZE as u64);
        drop((shared.other, shared.rig));
        assert_eq!((faults::live("srq"), faults::live("qp"), faults::live("mr")), (1, 1, 1));
        assert_eq!(faults::touch_all(1).written, 3 * SIZE as u64);
    }

    /// Given up only when nobody uses it; what queue pairs swallowed is told and comes back.
    fn what_is_left() {
        let mut shared = Shared::new();
        let (mut a, b) = shared.pair(true);
        shared.post(0..6);
        shared.send(&mut a, b"0");
        faults::copies(0);
        shared.send(&mut a, b"swallowed");
        shared.send(&mut a, b"2");
        assert_eq!(completions(&mut shared.other, 2).iter().map(|seen| seen.wr_id).collect::<Vec<_>>(), [0, 2]);
        assert_eq!((shared.srq.in_flight(), shared.srq.overtaken()), (4, 1));
        let in_use = |failed: rdma_verbs::FinishError| {
            let Error::InUse { by, .. } = failed.error else { panic!("{failed}") };
            (failed.queue, by)
        };
        let (srq, by) = in_use(shared.srq.finish().expect_err("in use"));
        assert!(by.contains("queue pairs"));
        shared.srq = srq;
        // It goes on.
        let handle = shared.srq.handle();
        let (mut c, d) = shared.pair(false);
        shared.send(&mut c, b"3");
        assert!(completions(&mut shared.rig.cq, 5).iter().any(|seen| seen.wr_id == 3));
        shared.send(&mut c, b"4, not looked at");
        drop((a, b, c, d));
        assert_eq!((shared.srq.in_flight(), shared.srq.overtaken()), (3, 1));
        let (srq, by) = in_use(shared.srq.finish().expect_err("it may complete"));
        assert!(by.contains("completion queues"));
        assert!(completions(&mut shared.rig.cq, 2).iter().any(|seen| seen.wr_id == 4));
        poll(&mut shared.rig.cq);
        let (srq, _) = in_use(srq.finish().expect_err("one was not polled"));
        assert_eq!(poll(&mut shared.other), []);
        // The handle is as good as it was.
        let made = QueuePair::rc(&shared.rig.pd, &shared.rig.cq, &shared.other)
            .shared_receive_queue(&handle)
            .build();
        drop(made.expect("a queue pair"));
        poll(&mut shared.rig.cq);
        poll(&mut shared.other);
        faults::fail("ibv_destroy_srq", libc::EAGAIN);
        let failed = srq.finish().expect_err("the device will not");
        let Error::Verb { verb: "ibv_destroy_srq", errno: Errno::EAGAIN, .. } = failed.error else {
            panic!("{failed}")
        };
        let mut srq = failed.queue;
        srq.post(Receive::new([shared.rig.take(), shared.rig.take()]).wr_id(9)).expect("it goes on");
        assert_eq!(srq.overtaken(), 1);
        let mut left = srq.finish().expect("nobody uses it");
        assert_eq!((left.len(), left.overtaken(), faults::live("srq")), (3, 1, 0));
        let (first, second) = (left.next().expect("one"), left.next().expect("two"));
        assert_eq!((first.wr_id, second.wr_id), (1, 5));
        assert_eq!((first.memory.len(), shared.rig.out()), (1, 4));
        drop(left);
        assert_eq!(shared.rig.out(), 2);
        drop((first, second));
        assert_eq!((shared.rig.out(), shared.rig.cq.strays() + shared.other.strays()), (0, 0));
        drop(shared.other);
        drop(handle);
        shared.rig.end();
        assert_nothing_is_left();
    }

    /// A completion that was made before the queue pair was destroyed, and comes after the shared queue was, is a
    /// receive all the same.
    fn told_after_its_end() {
        let mut shared = Shared::new();
        let (mut a, b) = shared.pair(true);
        shared.post(0..2);
        shared.send(&mut a, b"it came");
        let Shared { srq, mut other, rig } = shared;
        drop((a, b, srq));
        assert_eq!((faults::live("srq"), rig.out()), (0, 3));
        let mut drain = other.poll().expect("polled");
        let mut completion = drain.next().expect("it came");
        let buffer = completion.take_buffer().expect("its buffer");
        assert_eq!((&buffer[..], completion.wr_id()), (&b"it came"[..], 0));
        drop(completion);
        assert!(drain.next().is_none());
        drop(drain);
        poll(&mut other);
        let mut rig = rig;
        rig.completions(1);
        assert_eq!(rig.out(), 1, "the other was dropped with the table");
        drop((buffer, other));
        rig.end();
    }

    /// A batch that was forgotten, a refusal that was forgotten: the next post drops what was in them.
    fn what_was_forgotten() {
        let mut shared = Shared::new();
        for _ in 0..3 * DEPTH {
            let mut batch = shared.srq.batch::<4>();
            for _ in 0..4 {
                batch.push(Receive::new(shared.rig.take())).expect("room");
            }
            std::mem::forget(batch);
        }
        assert_eq!((shared.srq.in_flight(), shared.rig.out()), (0, 0));
        let mut batch = shared.srq.batch::<4>();
        batch.push(Receive::new(shared.rig.take())).expect("room");
        std::mem::forget(batch);
        let Shared { srq, other, mut rig } = shared;
        drop(srq);
        drop(other);
        assert_eq!(rig.out(), 0);
        poll(&mut rig.cq);
        rig.end();
    }
}
