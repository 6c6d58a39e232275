//! Sixteen queue pairs on one shared receive queue and two completion queues, each polled by a thread of its
//! own, that die at random while messages are under way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{Buffer, CompletionQueue, QueuePair, Rts, SharedReceiveQueue};

use crate::interposed::rig::{Random, Rig, poll};
use crate::interposed::{faults, interposed};

const QUEUE_PAIRS: usize = 16;
const DEPTH: u32 = 64;
/// How long it is waited for until enough messages came.
const ENOUGH: Duration = Duration::from_secs(30);

/// Polls until it is told to stop and nothing came; each buffer is what it says.
fn receive(cq: &mut CompletionQueue, stop: &AtomicBool, received: &AtomicU64) {
    let mut random = Random::new(9);
    loop {
        let stopped = stop.load(Ordering::Acquire);
        let mut came = false;
        let mut drain = cq.poll().expect("polled");
        while let Some(mut completion) = drain.next() {
            came = true;
            if completion.is_success() {
                received.fetch_add(1, Ordering::Relaxed);
                let mut buffer = completion.take_buffer().expect("a buffer");
                assert!(buffer.iter().all(|byte| *byte == buffer[0]), "torn");
                // Ours: nobody else writes there.
                buffer.fill(0xee);
                thread::yield_now();
                assert!(buffer.iter().all(|byte| *byte == 0xee), "two owners");
            }
            if random.once_in(16) {
                drop(completion.take());
            }
        }
        drop(drain);
        if stopped && !came {
            return;
        }
    }
}

/// Keeps it full until it is told to stop.
fn supply(srq: &mut SharedReceiveQueue, pool: &rdma_verbs::Pool, stop: &AtomicBool) {
    let mut random = Random::new(5);
    let take = || -> Option<Buffer> {
        let mut buffer = pool.take()?;
        buffer.fill(0x11);
        Some(buffer)
    };
    while !stop.load(Ordering::Acquire) {
        if random.once_in(2) {
            let Some(buffer) = take() else { continue };
            let _ = srq.post(Receive::new(buffer));
        } else {
            let mut batch = srq.batch::<5>();
            while let Some(buffer) = take() {
                if batch.push(Receive::new(buffer)).is_err() {
                    break;
                }
            }
            if random.once_in(8) {
                drop(batch);
            } else if let Err(mut failed) = batch.post() {
                drop(failed.next_refused());
            }
        }
        thread::yield_now();
    }
}

interposed! {
    fn queue_pairs_that_die_at_random() {
        let rounds = if cfg!(debug_assertions) { 400 } else { 2000 };
        let mut rig = Rig::new();
        let pool = rdma_verbs::Pool::new(&rig.pd, 32, 3 * DEPTH as usize).expect("a pool");
        let mut srq = SharedReceiveQueue::builder(&rig.pd, DEPTH).build().expect("a queue");
        let handle = srq.handle();
        let make_cq = || CompletionQueue::new(&rig.context, 2 * DEPTH).expect("a CQ");
        let (mut one, mut two) = (make_cq(), make_cq());
        let handles = [one.handle(), two.handle()];
        let (stop, stop_pollers) = (AtomicBool::new(false), AtomicBool::new(false));
        let received = AtomicU64::new(0);
        let too_few = |received| received <= rounds as u64 / 2;
        // A send carries no buffer of the pool that receives are of.
        let mut sent = 0_u64;
        thread::scope(|scope| {
            let supplier = scope.spawn(|| supply(&mut srq, &pool, &stop));
            let pollers = [&mut one, &mut two].map(|cq| {
                let (stop, received) = (&stop_pollers, &received);
                scope.spawn(move || receive(cq, stop, received))
            });
            let mut random = Random::new(3);
            let mut pairs: Vec<Option<(QueuePair<Rts>, QueuePair<Rts>)>> =
                (0..QUEUE_PAIRS).map(|_| None).collect();
            // On a busy machine the supplier may come late: it goes on until enough has come, for a while.
            let (begun, mut round) = (Instant::now(), 0);
            let came = || received.load(Ordering::Relaxed);
            while round < rounds || too_few(came()) && begun.elapsed() < ENOUGH {
                round += 1;
                let at = random.below(QUEUE_PAIRS);
                if random.once_in(64) {
                    faults::fail_post("ibv_post_srq_recv", faults::Post::RefuseAt(0), libc::ENOMEM, 1);
                }
                match random.below(12) {
                    // One of them dies, the sender or the receiver first, with messages under way or not.
                    0 => {
                        if random.once_in(2) {
                            faults::stall(true);
                        }
                        if let Some((a, b)) = pairs[at].take() {
                            if random.once_in(2) { drop(a); drop(b) } else { drop(b); drop(a) }
                        }
                        faults::stall(false);
                    }
                    1 => {
                        // Of another, which then fails when it is sent to, and goes later.
                        if let Some((a, b)) = pairs[(at + 1) % QUEUE_PAIRS].take() {
                            b.close().expect("closed");
                            let dead = (a, b);
                            pairs[at] = Some(dead);
                        }
                    }
                    2 => faults::copies(2),
                    3 => faults::copies(0),
                    _ => {}
                }
                let (a, _) = pairs[at].get_or_insert_with(|| {
                    let recv_cq = &handles[round % 2];
                    // The room of dead ones is there when their completion queue was seen empty.
                    let b = loop {
                        let b = QueuePair::rc(&rig.pd, &rig.cq, recv_cq).send_depth(1);
                        match b.shared_receive_queue(&handle).build() {
                            Ok(b) => break b,
                            Err(rdma_verbs::Error::CompletionQueueFull { .. }) => {
                                poll(&mut rig.cq);
                                thread::yield_now();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    };
                    let a = loop {
                        match QueuePair::rc(&rig.pd, &rig.cq, &rig.cq).send_depth(16).recv_depth(1).build() {
                            Ok(a) => break a,
                            Err(_) => drop(poll(&mut rig.cq)),
                        }
                    };
                    let init = rig.init_options();
                    let (a, b) = (a.init(&init).expect("to INIT"), b.init(&init).expect("to INIT"));
                    rig.connect(a, b)
                });
                for _ in 0..random.below(12) {
                    let bytes = [round as u8; 32];
                    let Some(mut buffer) = rig.pool.take() else { break };
                    buffer.fill_from(&bytes).expect("it fits");
                    sent += u64::from(a.send_queue().post(Send::new(buffer).signaled()).is_ok());
                }
                // Some are done by then, and some are not.
                for _ in 0..random.below(100) {
                    poll(&mut rig.cq);
                    thread::yield_now();
                }
                if random.once_in(4) {
                    faults::touch_all(0x42);
                }
            }
            stop.store(true, Ordering::Release);
            supplier.join().expect("it ends");
            drop(pairs);
            stop_pollers.store(true, Ordering::Release);
            for poller in pollers {
                poller.join().expect("it ends");
            }
        });
        let received = received.load(Ordering::Relaxed);
        assert!(sent > rounds as u64 && !too_few(received), "{received} of {sent}");
        while rig.cq.room() != rig.cq.size() {
            poll(&mut rig.cq);
        }
        poll(&mut one);
        poll(&mut two);
        assert_eq!((one.room(), two.room()), (one.size(), two.size()));
        let in_flight = srq.in_flight() as usize;
        assert_eq!(pool.count() - pool.available(), in_flight, "each is in flight, or in the pool");
        let left = srq.finish().expect("nobody uses it");
        assert_eq!(left.len(), in_flight);
        let left: Vec<_> = left.collect();
        assert_eq!(left.iter().map(|left| left.memory.len()).sum::<usize>(), in_flight);
        drop(left);
        assert_eq!((pool.available(), rig.out()), (pool.count(), 0));
        drop((one, two, handles, handle, pool));
        rig.end();
    }
}
