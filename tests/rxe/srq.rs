//! Shared receive queues on rxe.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{
    CompletionQueue, Error, EventType, Init, InitOptions, Pool, QueuePair, Refusal,
    SharedReceiveQueue, WcStatus,
};

use super::rc::{Ground, completions, join};
use super::rig::{Rig, wait_until};

fn receiver(ground: &Ground, cq: &CompletionQueue, srq: &SharedReceiveQueue) -> QueuePair<Init> {
    let builder = QueuePair::rc(&ground.pd, cq, cq).send_depth(4).shared_receive_queue(srq);
    let made = builder.build().expect("a queue pair");
    made.init(&InitOptions::new(ground.row.port())).expect("to INIT")
}

fn fill(srq: &mut SharedReceiveQueue, pool: &Pool) {
    while let Some(buffer) = pool.take() {
        if let Err(failed) = srq.post(Receive::new(buffer)) {
            assert!(matches!(failed.refusal, Refusal::Full { .. }), "{failed}");
            return;
        }
    }
}

/// Polls until nothing came after all its queue pairs were destroyed.
fn empty(cq: &mut CompletionQueue) {
    wait_until("the completion queue is empty", || {
        let mut drain = cq.poll().expect("polled");
        let mut came = false;
        while drain.next().is_some() {
            came = true;
        }
        drop(drain);
        !came && cq.room() == cq.size()
    });
}

/// Three queue pairs, two completion queues, one supply; the limit is told once.
#[test]
fn one_supply_for_several() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let pool = Pool::new(&ground.pd, 256, 64).expect("a pool");
    let (mut send_cq, mut one, mut two) = (ground.cq(256), ground.cq(128), ground.cq(128));
    let built = SharedReceiveQueue::builder(&ground.pd, 24).max_sge(2).build();
    let mut srq = built.expect("a shared receive queue");
    let queue = ground.context.subscribe().expect("events");
    assert!(srq.granted().depth >= 24 && srq.granted().max_sge >= 2, "{:?}", srq.granted());
    for wr_id in 0..12 {
        srq.post(Receive::new(pool.take().expect("a buffer")).wr_id(wr_id)).expect("room");
    }
    let mut batch = srq.batch_of::<12, 24>();
    for wr_id in 12..24 {
        let two = [pool.take().expect("a buffer"), pool.take().expect("a buffer")];
        batch.push(Receive::new(two).wr_id(wr_id)).expect("room");
    }
    batch.post().expect("posted");
    let full = srq.post(Receive::new(())).expect_err("full");
    assert!(matches!(full.refusal, Refusal::Full { depth: 24, .. }), "{full}");
    srq.set_limit(22).expect("armed");
    assert_eq!(srq.query().expect("told").limit, 22);
    let cqs = [&one, &two, &two];
    let pairs = cqs.map(|cq| {
        join(ground.queue_pair(&send_cq, 8), receiver(&ground, cq, &srq), &ground.options())
    });
    let mut pairs = pairs;
    let qpns = [pairs[0].1.qpn(), pairs[1].1.qpn(), pairs[2].1.qpn()];
    for (number, (a, _)) in pairs.iter_mut().enumerate() {
        for _ in 0..2 {
            let text = [number as u8; 300];
            let first = {
                let mut b = pool.take().expect("a buffer");
                b.fill_from(&text[..100]).expect("it fits");
                b
            };
            a.send_queue().post(Send::new(first).signaled()).expect("room");
        }
    }
    completions(&mut send_cq, 6);
    let mut seen = Vec::new();
    for (cq, count) in [(&mut one, 2), (&mut two, 4)] {
        let begin = Instant::now();
        let mut came = 0;
        while came < count {
            assert!(begin.elapsed() < Duration::from_secs(10), "{came} of {count}");
            let mut drain = cq.poll().expect("polled");
            while let Some(mut completion) = drain.next() {
                assert_eq!((completion.status(), completion.byte_len()), (WcStatus::SUCCESS, 100));
                let buffer = completion.take_buffer().expect("a buffer");
                assert_eq!(completion.qpn(), qpns[usize::from(buffer[0])]);
                seen.push(completion.wr_id());
                came += 1;
            }
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    wait_until("the limit is told", || {
        ground.context.process_events().expect("events");
        srq.limit_reached()
    });
    let told = std::iter::from_fn(|| queue.next_event())
        .find(|event| event.kind == EventType::SRQ_LIMIT_REACHED);
    let object = rdma_verbs::EventSubject::Object(Some(srq.id()));
    assert_eq!(told.map(|event| event.subject), Some(object));
    assert_eq!((srq.query().expect("told").limit, srq.in_flight(), srq.overtaken()), (0, 18, 0));
    // Its end: all that nobody took.
    let failed = srq.finish().expect_err("queue pairs use it");
    assert!(matches!(failed.error, Error::InUse { .. }));
    drop(pairs);
    for cq in [&mut send_cq, &mut one, &mut two] {
        empty(cq);
    }
    let left = failed.queue.finish().expect("nobody uses it");
    let left: Vec<_> = left.map(|left| (left.wr_id, left.memory.len())).collect();
    let expected: Vec<_> = (6..24).map(|wr_id| (wr_id, if wr_id < 12 { 1 } else { 2 })).collect();
    assert_eq!(left, expected);
    assert_eq!(pool.available(), pool.count());
}

/// What is too much is told by the limit, before the device is asked.
#[test]
fn beyond_the_limits() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let limits = ground.context.limits();
    let (depth, entries) = (limits.max_srq_wr, limits.max_srq_sge);
    assert!(limits.max_srq > 0 && depth > 0 && entries > 0, "{limits:?}");
    let build =
        |depth, entries| SharedReceiveQueue::builder(&ground.pd, depth).max_sge(entries).build();
    for (asked, made) in
        [(0, build(0, 1)), (depth + 1, build(depth + 1, 1)), (entries + 1, build(4, entries + 1))]
    {
        let Err(Error::OutOfRange { asked: told, .. }) = made else { panic!("{asked}") };
        assert_eq!(told, u64::from(asked));
    }
    let most = build(depth.min(1 << 20), 1).expect("as deep as it can be");
    let cq = ground.cq(64);
    let made = QueuePair::rc(&ground.pd, &cq, &cq).shared_receive_queue(&most).build();
    assert!(matches!(made, Err(Error::CompletionQueueFull { .. })));
}

/// Queue pairs that fail, and that die, while messages come, on two completion queues with a thread each: each
/// buffer is in flight or in the pool, and at the end all are in the pool.
#[test]
fn queue_pairs_that_die_under_traffic() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let pool = Pool::new(&ground.pd, 64, 96).expect("a pool");
    let mut srq = SharedReceiveQueue::builder(&ground.pd, 64).build().expect("a queue");
    let (mut send_cq, mut one, mut two) = (ground.cq(2048), ground.cq(64), ground.cq(64));
    let (stop, received) = (AtomicBool::new(false), AtomicUsize::new(0));
    for round in 0..3 {
        stop.store(false, Ordering::Release);
        let before = received.load(Ordering::Relaxed);
        let mut pairs: Vec<_> = (0..8)
            .map(|number| {
                let cq = if number % 2 == 0 { &one } else { &two };
                let receiver = receiver(&ground, cq, &srq);
                Some(join(ground.queue_pair(&send_cq, 32), receiver, &ground.options()))
            })
            .collect();
        fill(&mut srq, &pool);
        thread::scope(|scope| {
            for cq in [&mut one, &mut two] {
                let (stop, received) = (&stop, &received);
                scope.spawn(move || {
                    loop {
                        let stopped = stop.load(Ordering::Acquire);
                        let mut drain = cq.poll().expect("polled");
                        let mut came = false;
                        while let Some(mut completion) = drain.next() {
                            came = true;
                            if completion.is_success() {
                                let buffer = completion.take_buffer().expect("a buffer");
                                assert_eq!(buffer[..], [7; 32]);
                                received.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        drop(drain);
                        if stopped && !came {
                            return;
                        }
                        thread::yield_now();
                    }
                });
            }
            let begin = Instant::now();
            let mut died = 0;
            while died < pairs.len() {
                assert!(begin.elapsed() < Duration::from_secs(30), "{died} have died");
                for (a, _) in pairs.iter_mut().flatten() {
                    let _ = a.send_queue().post(Send::new(Inline(&[7; 32])));
                }
                fill(&mut srq, &pool);
                drain(&mut send_cq);
                // The next to die: when so many more messages came.
                if received.load(Ordering::Relaxed) > before + 20 * (died + 1) {
                    match died % 3 {
                        0 => drop(pairs[died].take()),
                        1 => {
                            let (_, b) = pairs[died].as_ref().expect("it lives");
                            b.close().expect("to ERR");
                            drop(pairs[died].take());
                        }
                        _ => {
                            let (a, b) = pairs[died].take().expect("it lives");
                            drop(b);
                            drop(a);
                        }
                    }
                    died += 1;
                }
            }
            stop.store(true, Ordering::Release);
        });
        empty(&mut send_cq);
        let in_flight = srq.in_flight() as usize;
        assert_eq!(pool.count() - pool.available(), in_flight, "round {round}");
        assert!(received.load(Ordering::Relaxed) > before + 100);
        assert_eq!((one.strays(), two.strays()), (0, 0));
    }
    empty(&mut one);
    empty(&mut two);
    let in_flight = srq.in_flight() as usize;
    let left = srq.finish().expect("nobody uses it");
    eprintln!("{} left, {} of them taken by queue pairs that died", left.len(), left.overtaken());
    assert_eq!(left.len(), in_flight);
    drop(left);
    assert_eq!((pool.available(), ground.context.leaks()), (pool.count(), 0));
}

fn drain(cq: &mut CompletionQueue) {
    let mut drain = cq.poll().expect("polled");
    while drain.next().is_some() {}
}

/// Many of them made, used and dropped, in this order and that: nothing is left.
#[test]
fn made_and_dropped_again_and_again() {
    let _alone = super::rig::alone();
    let rig = Rig::within_alone();
    let ground = Ground::new(&rig);
    let figures = || {
        let status = fs::read_to_string("/proc/self/status").expect("status");
        let line =
            |name: &str| status.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        let descriptors = fs::read_dir("/proc/self/fd").expect("own descriptors").count();
        (line("VmPin").expect("pinned"), line("VmLck"), descriptors, ground.context.leaks())
    };
    let cycle = |number: usize| {
        let pool = Pool::new(&ground.pd, 64, 32).expect("a pool");
        let mut cq = ground.cq(256);
        let mut srq = SharedReceiveQueue::builder(&ground.pd, 16).build().expect("a queue");
        let (mut a, b) =
            join(ground.queue_pair(&cq, 8), receiver(&ground, &cq, &srq), &ground.options());
        fill(&mut srq, &pool);
        a.send_queue().post(Send::new(Inline(b"hello")).signaled()).expect("room");
        completions(&mut cq, 2);
        match number % 4 {
            0 => drop((srq, b, a, cq, pool)),
            1 => drop((pool, cq, a, b, srq)),
            2 => drop((b, srq, pool, a, cq)),
            _ => {
                drop((a, b));
                empty(&mut cq);
                assert_eq!(srq.finish().expect("nobody uses it").len(), 15);
                assert_eq!(pool.available(), 32);
            }
        }
    };
    (0..4).for_each(cycle);
    let before = figures();
    (0..40).for_each(cycle);
    assert_eq!(figures(), before);
}

/// The device is to go while messages come: it goes when all that was made on it has, and nothing hangs.
#[test]
fn a_device_that_goes_under_traffic() {
    let mut rig = Rig::new();
    let ground = Ground::new(&rig);
    let pool = Pool::new(&ground.pd, 64, 64).expect("a pool");
    let (mut send_cq, mut cq) = (ground.cq(256), ground.cq(64));
    let mut srq = SharedReceiveQueue::builder(&ground.pd, 32).build().expect("a queue");
    let mut pairs: Vec<_> = (0..2)
        .map(|_| {
            let receiver = receiver(&ground, &cq, &srq);
            join(ground.queue_pair(&send_cq, 16), receiver, &ground.options())
        })
        .collect();
    fill(&mut srq, &pool);
    let mut removal = rig.begin_removal();
    // What becomes of the messages is the network's matter: each call returns.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        for (a, _) in &mut pairs {
            let _ = a.send_queue().post(Send::new(Inline(&[7; 32])).signaled());
        }
        drain(&mut send_cq);
        drain(&mut cq);
        fill(&mut srq, &pool);
        let _ = ground.context.process_events();
    }
    assert!(removal.try_wait().expect("it can be asked").is_none(), "the context is still open");
    let begin = Instant::now();
    drop(pairs);
    empty(&mut send_cq);
    empty(&mut cq);
    let in_flight = srq.in_flight() as usize;
    let left = srq.finish().expect("nobody uses it");
    assert_eq!((left.len(), pool.count() - pool.available()), (in_flight, in_flight));
    drop((left, cq, send_cq));
    assert_eq!((pool.available(), ground.context.leaks()), (pool.count(), 0));
    drop((pool, ground));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    wait_until("the device has gone", || removal.try_wait().expect("it can be asked").is_some());
    assert!(removal.wait().expect("it has ended").success());
}
