//! `mem::forget` of everything: what was forgotten leaks, and nothing else; nothing hangs, and nothing
//! that the device may touch is freed.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send, Write};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Exposed, Notify, PostError, RKey, Refusal, RemoteSlice,
    WcStatus,
};

use crate::interposed::faults::Post;
use crate::interposed::rig::{BUFFERS, DEPTH, Rig, SIZE, ends, everything, forget, poll};
use crate::interposed::{faults, interposed, leaks_on_purpose};

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

/// A write of no bytes, which needs no receive.
fn nothing() -> Write<()> {
    Write::new((), RemoteSlice::new(0, 0, RKey::new(0)))
}

interposed! {
    /// Its slot is free again by the next poll; its memory is lost.
    fn a_completion() {
        // Only the slot had a word of it, and others are put there.
        leaks_on_purpose();
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for round in 0..100_usize {
            b.recv_queue().post(Receive::new(())).expect("room");
            let first = round < 20;
            let send = if first { Some(rig.filled(b"lost")) } else { None };
            match send {
                Some(buffer) => a.send_queue().post(Send::new(buffer).signaled()).expect("room"),
                None => a.send_queue().post(Send::new(()).signaled()).expect("room"),
            }
            let mut drain = rig.cq.poll().expect("it can be polled");
            while let Some(completion) = drain.next() {
                forget(completion);
            }
            assert_eq!((poll(&mut rig.cq).len(), rig.out()), (0, (round + 1).min(20)));
            assert_eq!((a.send_queue().in_flight(), b.recv_queue().in_flight()), (0, 0));
        }
        // The last before the completion queue goes.
        a.send_queue().post(nothing().signaled()).expect("room");
        forget(rig.cq.poll().expect("it can be polled").next().expect("one"));
        let Rig { cq, pool, pd, context, .. } = rig;
        drop(cq);
        drop((a, b, pool));
        // The pool's memory is there as long as its buffers.
        assert_eq!((faults::live("mr"), faults::live("qp"), faults::live("cq")), (1, 0, 0));
        drop((pd, context));
        assert_eq!((faults::live("mr"), faults::live("context")), (1, 1));
    }

    /// Its completions come by the next poll.
    fn a_drain() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for wr_id in 0..5 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
            a.send_queue().post(Send::new(rig.take())).expect("room");
        }
        let mut drain = rig.cq.poll().expect("it can be polled");
        drop(drain.next().expect("the first"));
        forget(drain);
        forget(rig.cq.poll().expect("it can be polled"));
        let seen: Vec<u64> = poll(&mut rig.cq).iter().map(|seen| seen.wr_id).collect();
        assert_eq!(seen, [1, 2, 3, 4]);
        drop((a, b));
        assert_eq!(rig.completions(5).len(), 5);
        rig.end();
    }

    /// Its requests are never posted, and take no room.
    fn a_batch() {
        // What was in its slots is overwritten by what is put there next.
        leaks_on_purpose();
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for round in 0..3 {
            let mut batch = a.send_queue().batch::<4>();
            for _ in 0..4 {
                batch.push(Send::new(rig.take())).expect("room");
            }
            forget(batch);
            let mut batch = b.recv_queue().batch::<4>();
            for _ in 0..4 {
                batch.push(Receive::new(rig.take())).expect("room");
            }
            forget(batch);
            assert_eq!(rig.out(), 8 * (round + 1));
        }
        assert_eq!((a.send_queue().in_flight(), b.recv_queue().in_flight()), (0, 0));
        assert_eq!(faults::count("ibv_post_send") + faults::count("ibv_post_recv"), 0);
        for wr_id in 0..u64::from(DEPTH) {
            b.recv_queue().post(Receive::new(()).wr_id(wr_id)).expect("room");
            a.send_queue().post(Send::new(()).wr_id(100 + wr_id)).expect("room");
        }
        let seen = rig.completions(2 * DEPTH as usize);
        assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
        assert!(seen.iter().all(|seen| seen.memory.is_empty()), "{seen:?}");
        drop((a, b, seen));
        assert_eq!((rig.completions(0).len(), rig.out(), rig.cq.strays()), (0, 24, 0));
        let Rig { cq, pool, pd, context, .. } = rig;
        drop((cq, pool, pd, context));
        assert_eq!((faults::live("mr"), faults::live("qp"), faults::live("cq")), (1, 0, 0));
    }

    /// What was refused, taken out, and forgotten: its memory is lost, and its room is not.
    fn a_refused_request() {
        leaks_on_purpose();
        let rig = Rig::new();
        let (mut a, b) = rig.pair();
        let sends = a.send_queue();
        for round in 0..3 {
            faults::fail_post("ibv_post_send", Post::RefuseAt(0), libc::ENOMEM, 1);
            let mut batch = sends.batch::<2>();
            batch.push(Send::new(rig.take())).expect("room");
            batch.push(Send::new(rig.take())).expect("room");
            let mut failed = batch.post().expect_err("it is refused");
            forget(failed.next_refused().expect("the first"));
            drop(failed);
            assert_eq!(rig.out(), round + 1);
        }
        assert_eq!(sends.in_flight(), 0);
        // As deep as ever.
        for _ in 0..DEPTH {
            sends.post(Send::new(())).expect("room");
        }
        drop((a, b));
    }

    fn a_request_that_was_refused() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        for _ in 0..3 * DEPTH {
            faults::fail_post("ibv_post_send", Post::RefuseAt(0), libc::ENOMEM, 1);
            let failed: PostError<_> =
                a.send_queue().post(Send::new(rig.take())).expect_err("it is refused");
            assert!(matches!(failed.refusal, Refusal::Device { .. }));
            forget(failed);
        }
        assert_eq!((rig.out(), a.send_queue().in_flight()), (48, 0));
        a.send_queue().post(nothing().wr_id(1).signaled()).expect("room");
        assert_eq!(ends(&rig.completions(1)), [(1, WcStatus::SUCCESS)]);
        drop((a, b));
    }

    /// The rest of a batch that was refused, and its error forgotten, when its queue pair ends: it is dropped
    /// before the mark of the end is posted, by which who polls takes out all before.
    fn a_batch_that_was_refused_before_the_end() {
        let mut rig = Rig::new();
        for _ in 0..20 {
            let (mut a, b) = rig.pair();
            a.send_queue().post(nothing().wr_id(1)).expect("room");
            faults::fail_post("ibv_post_send", Post::RefuseAt(1), libc::ENOMEM, 1);
            let mut batch = a.send_queue().batch::<8>();
            for wr_id in 2..10 {
                batch.push(Write::new(rig.take(), RemoteSlice::new(0, SIZE as u64, RKey::new(0))).wr_id(wr_id)).expect("room");
            }
            forget(batch.post().expect_err("it is refused"));
            let done = std::sync::atomic::AtomicBool::new(false);
            let seen = std::thread::scope(|scope| {
                let poller = scope.spawn(|| {
                    let mut seen = Vec::new();
                    while !done.load(std::sync::atomic::Ordering::Acquire) {
                        seen.extend(poll(&mut rig.cq).into_iter().map(|seen| seen.wr_id));
                    }
                    seen.extend(poll(&mut rig.cq).into_iter().map(|seen| seen.wr_id));
                    seen
                });
                assert_eq!(a.finish(Duration::from_secs(20)), 0);
                done.store(true, std::sync::atomic::Ordering::Release);
                poller.join().expect("it polls")
            });
            assert_eq!(seen, [1, 2]);
            drop(b);
            assert_eq!((rig.completions(0).len(), rig.out(), rig.cq.strays()), (0, 0, 0));
        }
        rig.end();
    }

    /// It stays, with what is posted, and what it stands on.
    fn a_queue_pair() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        for wr_id in 0..4 {
            a.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        forget(a);
        assert_eq!(rig.completions(0), []);
        assert_eq!(faults::touch_all(1).written, 4 * SIZE as u64);
        // A half of one is as good.
        let (c, d) = rig.pair();
        let (send, mut recv) = c.split();
        recv.post(Receive::new(rig.take())).expect("room");
        forget(send);
        drop((recv, b, d));
        assert_eq!(rig.completions(0), []);
        assert_eq!(faults::touch_all(2).written, 5 * SIZE as u64);
        assert_eq!(rig.out(), 5);
        let Rig { cq, pool, pd, context, .. } = rig;
        drop((cq, pool, pd, context));
        assert_eq!(faults::touch_all(3).written, 5 * SIZE as u64);
        let kinds = ["context", "pd", "mr", "cq", "qp"];
        assert_eq!(kinds.map(faults::live), [1, 1, 1, 1, 2]);
    }

    /// Nobody polls any more: what its queue pairs had posted stays, and the device is not using it.
    fn a_completion_queue() {
        let rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for wr_id in 0..4 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        let Rig { cq, pool, pd, context, .. } = rig;
        forget(cq);
        a.send_queue().post(Send::new(pool.take().expect("a buffer"))).expect("room");
        let begin = Instant::now();
        assert_eq!(b.finish(Duration::from_millis(20)), 4);
        drop(a);
        assert!(begin.elapsed() < Duration::from_secs(1));
        assert_eq!(faults::touch_all(1).written, 0);
        assert_eq!(pool.available(), BUFFERS - 5);
        drop((pool, pd, context));
        let kinds = ["context", "pd", "mr", "cq", "qp"];
        assert_eq!(kinds.map(faults::live), [1, 1, 1, 1, 0]);
    }

    fn a_channel_while_waited_on() {
        let rig = Rig::new();
        let channel = CompletionChannel::new(&rig.context).expect("a channel");
        let cq = CompletionQueue::builder(&rig.context, 15).channel(&channel).build();
        let mut cq = cq.expect("a CQ");
        forget(channel);
        for _ in 0..3 {
            let came = cq.wait(Notify::Any, Duration::from_millis(1)).expect("it can be waited on");
            assert!(came.is_empty());
        }
        let begin = Instant::now();
        drop((cq, rig));
        assert!(begin.elapsed() < Duration::from_secs(1));
        let kinds = ["context", "pd", "mr", "channel", "cq", "qp"];
        assert_eq!(kinds.map(faults::live), [1, 0, 0, 1, 0, 0]);
    }

    fn a_pool_and_a_buffer() {
        let rig = Rig::new();
        let Rig { cq, pool, pd, context, .. } = rig;
        let buffer = pool.take().expect("a buffer");
        let shared = pool.take().expect("a buffer").freeze();
        forget(pool);
        drop((buffer, shared.clone(), shared));
        let pool = rdma_verbs::Pool::new(&pd, 64, 4).expect("a pool");
        forget(pool.take().expect("a buffer"));
        forget(pool.take().expect("a buffer").freeze());
        assert_eq!((pool.available(), pool.count()), (2, 4));
        drop((pool, cq, pd, context));
        assert_eq!(["context", "pd", "mr", "cq"].map(faults::live), [1, 1, 2, 0]);
    }

    fn exposed_memory_and_its_ranges() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        forget(exposed.range(0, 8).expect("inside"));
        let exposed = exposed.revoke().expect_err("a range is there for ever").exposed;
        let other = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        let remote = other.remote();
        forget(other);
        a.send_queue().post(Write::new(rig.filled(b"still"), remote).signaled()).expect("room");
        assert_eq!(ends(&rig.completions(1)), [(0, WcStatus::SUCCESS)]);
        drop((a, b, exposed, rig));
        assert_eq!(["context", "pd", "mr", "cq"].map(faults::live), [1, 1, 2, 0]);
    }

    /// Of those that own nothing of the device.
    fn builders_requests_and_errors() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        forget(rig.builder());
        forget(rig.context.clone());
        forget(nothing());
        forget(a.send_queue().batch::<8>());
        let failed = a.send_queue().post(Send::new([(); 0].map(|()| rig.take())));
        failed.expect("a send of no pieces");
        drop((a, b));
        assert_eq!(ends(&rig.completions(1)), [(0, FLUSHED)]);
        let Rig { cq, pool, pd, context, .. } = rig;
        drop((cq, pool, pd, context));
        let kinds = ["context", "pd", "mr", "cq", "qp"];
        assert_eq!(kinds.map(faults::live), [1, 0, 0, 0, 0]);
    }
}
