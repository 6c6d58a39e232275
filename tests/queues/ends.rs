//! What cannot be destroyed, every order of dropping, and what is forgotten: nothing is freed that the
//! device may touch, nothing is left but what was forgotten, and nothing hangs.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Read, Receive, Send, Write};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Error, Exposed, Memory, Pool, ProtectionDomain, QueuePair,
    WcStatus,
};

use crate::interposed::rig::{
    BUFFERS, DEPTH, Random, Rig, SIZE, assert_nothing_is_left, descriptors, ends, everything, open,
    poll, row,
};
use crate::interposed::{faults, interposed, leaks_on_purpose};

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

/// That the device can still write, and read, so many bytes of what it was given.
#[track_caller]
fn assert_touches(written: usize, read: usize) {
    let touched = faults::touch_all(0xa5);
    assert_eq!((touched.written, touched.read), (written as u64, read as u64));
}

/// All buffers that a pool has now, full of this byte.
fn fill_the_rest(pool: &Pool, byte: u8) -> Vec<rdma_verbs::Buffer> {
    let mut rest: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    rest.iter_mut().for_each(|buffer| buffer.fill(byte));
    rest
}

/// Everything there is, with work posted that is not done: each can be dropped at any time.
fn everything_there_is(seed: u64) -> Vec<(&'static str, Box<dyn Any>)> {
    let context = open("loop0");
    let row = row(&context);
    let pd = ProtectionDomain::new(&context).expect("a PD");
    let channel = CompletionChannel::new(&context).expect("a channel");
    let cq = CompletionQueue::builder(&context, 511).channel(&channel).build().expect("a CQ");
    let mut recv_cq = CompletionQueue::new(&context, 255).expect("a CQ");
    let pool = Pool::new(&pd, SIZE, 32).expect("a pool");
    let exposed = Exposed::new(&pd, 4096, everything()).expect("memory");
    let options = rdma_verbs::ConnectOptions::new(&row).reads(1).answers(1);
    let make = || {
        let made = QueuePair::rc(&pd, &cq, &recv_cq).max_send_sge(3).build().expect("a QP");
        let init = rdma_verbs::InitOptions::new(row.port()).access(everything());
        made.init(&init).expect("to INIT")
    };
    let (a, b) = (make(), make());
    let at_a = a.endpoint(&options).expect("an address");
    let at_b = b.endpoint(&options).expect("an address");
    let mut a = a.connect(&at_b, &options).expect("connected");
    let mut b = b.connect(&at_a, &options).expect("connected");
    let take = || pool.take().expect("a buffer");
    let range = exposed.range(1024, 100).expect("inside");
    let shared = take().freeze();
    for _ in 0..4 {
        a.recv_queue().post(Receive::new(take())).expect("room");
        b.recv_queue().post(Receive::new(take())).expect("room");
    }
    a.recv_queue().post(Receive::new(range.clone())).expect("room");
    // One message arrives, and its completions are there, looked at or not.
    a.send_queue().post(Send::new(take()).signaled()).expect("room");
    if seed % 2 == 0 {
        let mut drain = recv_cq.poll().expect("it can be polled");
        drop(drain.next().expect("a message"));
    }
    faults::stall(true);
    let sends = a.send_queue();
    sends.post(Send::new((take(), shared.clone(), range.clone()))).expect("room");
    sends.post(Read::new(take(), exposed.remote())).expect("room");
    sends.post(Write::new(shared.slice(1..9).expect("inside"), exposed.remote())).expect("room");
    let kept = take();
    let (send, recv) = a.split();
    vec![
        ("context", Box::new(context)),
        ("pd", Box::new(pd)),
        ("channel", Box::new(channel)),
        ("send cq", Box::new(cq)),
        ("recv cq", Box::new(recv_cq)),
        ("pool", Box::new(pool)),
        ("exposed", Box::new(exposed)),
        ("range", Box::new(range)),
        ("shared buffer", Box::new(shared)),
        ("buffer", Box::new(kept)),
        ("send queue", Box::new(send)),
        ("receive queue", Box::new(recv)),
        ("peer", Box::new(b)),
    ]
}

interposed! {
    fn a_queue_pair_that_cannot_be_destroyed() {
        leaks_on_purpose();
        for (round, errno) in [libc::EBUSY, libc::EIO, libc::ENODEV, 4711].into_iter().enumerate() {
            let mut rig = Rig::new();
            let (mut a, b) = rig.pair();
            let raw = faults::nth("qp", round as u32);
            for wr_id in 0..3 {
                a.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
            }
            a.send_queue().post(Send::new(rig.filled(b"waits")).wr_id(10)).expect("room");
            faults::fail("ibv_destroy_qp", errno);
            drop(a);
            assert_eq!(rig.context.leaks(), 1);
            assert_eq!(rig.completions(0), []);
            let rest = fill_the_rest(&rig.pool, 0x11);
            assert_eq!(rest.len(), BUFFERS - 4);
            assert_touches(3 * SIZE, 5);
            assert!(rest.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0x11)));
            drop(rest);
            // It is still there, and so are its completions.
            faults::break_qp(raw);
            let seen = rig.completions(4);
            assert_eq!(ends(&seen), [(10, FLUSHED), (0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
            assert_eq!(seen[0].bytes(), b"waits");
            drop((seen, b));
            assert_eq!(rig.out(), 0);
            let room = rig.cq.room();
            assert_eq!(poll(&mut rig.cq), []);
            assert_eq!(rig.cq.room(), rig.cq.size() - 2 * DEPTH, "its room stays taken");
            assert!(room < rig.cq.room());
            // Everything that it is made of stays with it, and nothing else.
            drop(rig);
            let left = faults::all_live();
            let expected = ["context", "pd", "cq", "qp"].map(|kind| (kind, round as u64 + 1));
            assert_eq!(left, expected, "{errno}");
        }
    }

    /// What was posted on it stays, whatever else goes.
    fn memory_of_a_queue_pair_that_cannot_be_destroyed() {
        leaks_on_purpose();
        for seed in 0..200 {
            faults::reset();
            let before = faults::touch_all(0);
            let mut all = everything_there_is(seed);
            Random::new(seed + 1).shuffle(&mut all);
            faults::fail("ibv_destroy_qp", libc::EBUSY);
            let mut touched = Vec::new();
            for (what, object) in all {
                drop(object);
                touched.push((what, faults::touch_all(0x77)));
            }
            let (_, last) = touched[touched.len() - 1];
            assert!(last.written > before.written, "{touched:?}");
            assert_eq!((faults::live("qp"), faults::live("context")), (seed + 1, seed + 1));
        }
    }

    fn a_pool_that_cannot_be_deregistered() {
        leaks_on_purpose();
        let rig = Rig::new();
        let mut kept = rig.take();
        let Rig { cq, pool, pd, context, .. } = rig;
        faults::fail("ibv_dereg_mr", libc::EBUSY);
        drop(pool);
        assert_eq!(context.leaks(), 0, "a buffer is still out");
        kept.fill(1);
        drop(kept);
        assert_eq!((context.leaks(), faults::live("mr")), (1, 1));
        drop((cq, pd, context));
        let bytes = (BUFFERS * SIZE) as u64;
        let expected = [("context", 1), ("pd", 1), ("mr", 1), ("mr_bytes", bytes)];
        assert_eq!(faults::all_live(), expected);
    }

    /// What a peer may write stays mapped when it could not be deregistered.
    fn exposed_memory_that_cannot_be_deregistered() {
        leaks_on_purpose();
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        let remote = exposed.remote();
        faults::fail("ibv_dereg_mr", libc::EBUSY);
        drop(exposed);
        assert_eq!((rig.context.leaks(), faults::live("mr")), (1, 2));
        let write = Write::new(rig.filled(b"after all"), remote).wr_id(1).signaled();
        a.send_queue().post(write).expect("room");
        let into = rig.filled(b"_________");
        a.send_queue().post(Read::new(into, remote).wr_id(2)).expect("room");
        let seen = rig.completions(2);
        assert_eq!(ends(&seen), [(1, OK), (2, OK)]);
        assert_eq!(seen[1].bytes(), b"after all");
        drop((seen, a, b, rig));
        let left = faults::all_live();
        assert_eq!(left, [("context", 1), ("pd", 1), ("mr", 1), ("mr_bytes", 64)]);
    }

    /// A grant that cannot be ended: the object comes back, and is what it was.
    fn a_grant_that_cannot_be_revoked() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let mut exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        let remote = exposed.remote();
        for errno in [libc::EBUSY, libc::EINVAL, libc::EIO] {
            faults::fail("ibv_dereg_mr", errno);
            let failed = exposed.revoke().expect_err("it is refused");
            let Error::Verb { verb, errno: why, .. } = &failed.error else {
                panic!("{:?}", failed.error)
            };
            assert_eq!((*verb, why.raw()), ("ibv_dereg_mr", errno));
            exposed = failed.exposed;
            assert_eq!(exposed.remote(), remote);
            exposed.write(0, &errno.to_ne_bytes()).expect("inside");
            let mut word = rig.take();
            word.set_len(4).expect("it fits");
            a.send_queue().post(Read::new(word, remote)).expect("room");
            assert_eq!(rig.completions(1)[0].bytes(), errno.to_ne_bytes());
        }
        let range = exposed.range(0, 8).expect("inside");
        let failed = exposed.revoke().expect_err("a range is held");
        assert!(matches!(failed.error, Error::InUse { .. }), "{}", failed.error);
        exposed = failed.exposed;
        a.recv_queue().post(Receive::new(range)).expect("room");
        exposed = exposed.revoke().expect_err("a range is posted").exposed;
        drop((a, b));
        assert_eq!(ends(&rig.completions(1)), [(0, FLUSHED)]);
        let plain = exposed.revoke().expect("nothing holds it any more");
        assert_eq!(plain[..4], libc::EIO.to_ne_bytes());
        assert_eq!(rig.context.leaks(), 0);
        rig.end();
    }

    /// Of what has no memory the failure harms nobody: the kernel destroys it with the context.
    fn queues_channels_and_domains_that_cannot_be_destroyed() {
        for (verb, kind) in [
            ("ibv_destroy_cq", "cq"),
            ("ibv_destroy_comp_channel", "channel"),
            ("ibv_dealloc_pd", "pd"),
        ] {
            let begin = Instant::now();
            let mut all = everything_there_is(0);
            Random::new(7).shuffle(&mut all);
            faults::stall(false);
            faults::fail_every(verb, libc::EBUSY, 1, None);
            drop(all);
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
            assert_eq!(faults::all_live(), [], "{kind}: they go with the context");
            assert!(faults::live("orphan") > 0, "{kind}");
            faults::reset();
        }
        faults::fail("ibv_close_device", libc::EIO);
        drop(Rig::new());
        assert_eq!(faults::all_live(), [("context", 1)]);
    }

    /// A completion queue that could not be destroyed is told of, as everything else is.
    fn a_completion_queue_that_cannot_be_destroyed_is_counted() {
        let Rig { cq, context, .. } = Rig::new();
        faults::fail("ibv_destroy_cq", libc::EBUSY);
        drop(cq);
        assert_eq!(context.leaks(), 1);
    }

    /// Thirteen things, in some thousand orders.
    fn every_order_of_dropping() {
        let fds = descriptors();
        let orders = if cfg!(debug_assertions) { 1500 } else { 5000 };
        for seed in 0..orders {
            let mut all = everything_there_is(seed);
            let mut random = Random::new(seed + 1);
            random.shuffle(&mut all);
            // Each of them is the first, and the last, often enough.
            let first = seed as usize % all.len();
            all.swap(0, first);
            let order: Vec<&str> = all.iter().map(|(what, _)| *what).collect();
            let begin = Instant::now();
            for (_, object) in all {
                drop(object);
                faults::touch_all(seed as u8);
                if random.once_in(8) {
                    faults::step(1);
                }
            }
            assert!(begin.elapsed() < Duration::from_secs(1), "{order:?}: {:?}", begin.elapsed());
            assert_eq!(faults::all_live(), [], "{order:?}");
            assert_eq!(faults::live("orphan"), 0, "{order:?}");
            faults::reset();
        }
        assert_eq!(descriptors(), fds);
    }

    /// Each pair of the things, one before the other, first of all.
    fn every_two_first() {
        let count = everything_there_is(0).len();
        faults::reset();
        for first in 0..count {
            for second in (0..count).filter(|second| *second != first) {
                let mut all: Vec<_> = everything_there_is(second as u64)
                    .into_iter().map(|(_, object)| Some(object)).collect();
                for at in [first, second] {
                    all[at] = None;
                    faults::touch_all(0x33);
                }
                faults::stall(false);
                drop(all);
                assert_eq!(faults::all_live(), [], "{first} {second}");
                assert_eq!(faults::live("orphan"), 0, "{first} {second}");
                faults::reset();
            }
        }
    }

    fn the_completion_queue_goes_first() {
        let rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for wr_id in 0..8 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        a.send_queue().post(Send::new(rig.take()).signaled()).expect("room");
        let Rig { cq, pool, pd, context, .. } = rig;
        drop(cq);
        assert_eq!(pool.available(), BUFFERS - 9);
        assert_touches(7 * SIZE, 0);
        // Work can still be posted; who would hear of it has gone.
        b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
        a.send_queue().post(Send::new(pool.take().expect("a buffer"))).expect("room");
        drop(a);
        assert_eq!(pool.available(), BUFFERS - 9, "those of the other are posted still");
        let begin = Instant::now();
        b.finish(Duration::from_millis(50));
        assert!(begin.elapsed() < Duration::from_secs(1));
        assert_eq!(pool.available(), BUFFERS);
        drop((pool, pd, context));
        assert_nothing_is_left();
    }

    fn dropped_with_512_receives_posted() {
        let context = open("loop0");
        let row = row(&context);
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let mut cq = CompletionQueue::new(&context, 1023).expect("a CQ");
        let pool = Pool::new(&pd, 64, 1024).expect("a pool");
        for how in 0..3 {
            let made = QueuePair::rc(&pd, &cq, &cq).recv_depth(512).build().expect("a queue pair");
            let mut qp = made.init(&rdma_verbs::InitOptions::new(row.port())).expect("to INIT");
            for wr_id in 0..512 {
                let receive = Receive::new(pool.take().expect("a buffer")).wr_id(wr_id);
                qp.recv_queue().post(receive).expect("room");
            }
            qp.recv_queue().post(Receive::new(())).expect_err("it is full");
            assert_touches(512 * 64, 0);
            let begin = Instant::now();
            let mut seen = Vec::new();
            match how {
                0 => drop(qp),
                1 => {
                    qp.close().expect("it can be closed");
                    drop(qp);
                }
                _ => qp.finish_polling(&mut [&mut cq], Duration::from_secs(1), |mut done| {
                    assert!(matches!(done.take(), Some(Memory::Buffer(_))));
                    seen.push((done.wr_id(), done.status()));
                })
                .expect("the queue can be polled"),
            }
            assert_touches(0, 0);
            while seen.len() < 512 {
                let more = ends(&poll(&mut cq));
                assert!(!more.is_empty(), "{} came", seen.len());
                seen.extend(more);
            }
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
            let expected: Vec<_> = (0..512).map(|wr_id| (wr_id, FLUSHED)).collect();
            assert_eq!(seen, expected, "{how}");
            assert_eq!((pool.available(), poll(&mut cq).len()), (1024, 0));
            assert_eq!(cq.room(), cq.size());
        }
        drop((pool, cq, pd, context));
        assert_nothing_is_left();
    }

    /// The poller owns the completion queue; queue pairs are closed, finished and dropped elsewhere.
    fn closed_here_and_polled_there() {
        let rig = Rig::new();
        let pairs: Vec<_> = (0..8).map(|_| rig.pair()).collect();
        let Rig { mut cq, pool, pd, context, .. } = rig;
        let stop = AtomicBool::new(false);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                let mut count = 0;
                loop {
                    let last = stop.load(Ordering::Acquire);
                    let came = poll(&mut cq).len();
                    count += came;
                    if last && came == 0 {
                        return count;
                    }
                }
            });
            for (number, (mut a, mut b)) in pairs.into_iter().enumerate() {
                for _ in 0..8 {
                    let take = || loop {
                        match pool.take() {
                            Some(buffer) => return buffer,
                            None => std::thread::yield_now(),
                        }
                    };
                    b.recv_queue().post(Receive::new(take())).expect("room");
                    a.recv_queue().post(Receive::new(take())).expect("room");
                    a.send_queue().post(Send::new(take())).expect("room");
                }
                match number % 4 {
                    0 => drop((a, b)),
                    1 => {
                        assert_eq!(a.finish(Duration::from_secs(5)), 0);
                        assert_eq!(b.finish(Duration::from_secs(5)), 0);
                    }
                    2 => {
                        let (send, recv) = a.split();
                        std::thread::spawn(move || drop(recv)).join().expect("it ends");
                        b.close().expect("it can be closed");
                        drop((b, send));
                    }
                    _ => {
                        a.close().expect("it can be closed");
                        std::thread::spawn(move || drop((b, a))).join().expect("it ends");
                    }
                }
            }
            stop.store(true, Ordering::Release);
            assert_eq!(poller.join().expect("it ends"), 8 * 8 * 3);
        });
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(pool.available(), BUFFERS);
        drop((pool, cq, pd, context));
        assert_nothing_is_left();
    }

    /// Sends that were carried out, and are not told of, are nothing to wait for.
    fn finished_after_a_silent_send() {
        let mut rig = Rig::new();
        for how in 0..2 {
            let (mut a, mut b) = rig.pair();
            b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
            a.send_queue().post(Send::new(rig.take()).wr_id(2)).expect("room");
            assert_eq!(ends(&poll(&mut rig.cq)), [(1, OK)]);
            let begin = Instant::now();
            let timeout = Duration::from_secs(2);
            let mut seen = Vec::new();
            if how == 0 {
                a.finish_polling(&mut [&mut rig.cq], timeout, |done| seen.push(done.wr_id()))
                    .expect("the queue can be polled");
            } else {
                // Who polls is another.
                let cq = &mut rig.cq;
                std::thread::scope(|scope| {
                    let finished = scope.spawn(move || a.finish(timeout));
                    while !finished.is_finished() {
                        seen.extend(poll(cq).iter().map(|seen| seen.wr_id));
                    }
                    assert_eq!(finished.join().expect("it ends"), 0);
                });
            }
            assert!(begin.elapsed() < Duration::from_secs(1), "{how}: {:?}", begin.elapsed());
            assert_eq!(seen, [2]);
            drop(b);
        }
        rig.end();
    }

    /// A function that gives up half way has left nothing.
    fn early_returns() {
        fn half_way(step: u32) -> Result<(), Error> {
            let context = open("loop0");
            let row = row(&context);
            let stop = |at: u32| if step == at { Err(Error::NoChannel) } else { Ok(()) };
            let pd = ProtectionDomain::new(&context)?;
            stop(1)?;
            let channel = CompletionChannel::new(&context)?;
            stop(2)?;
            let mut cq = CompletionQueue::builder(&context, 511).channel(&channel).build()?;
            stop(3)?;
            let pool = Pool::new(&pd, 64, 64)?;
            let exposed = Exposed::new(&pd, 64, everything())?;
            stop(4)?;
            let a = QueuePair::rc(&pd, &cq, &cq).build()?;
            stop(5)?;
            let b = QueuePair::rc(&pd, &cq, &cq).build()?;
            let init = rdma_verbs::InitOptions::new(row.port()).access(everything());
            let (mut a, b) = (a.init(&init)?, b.init(&init)?);
            a.recv_queue().post(Receive::new(pool.take().expect("a buffer")))?;
            stop(6)?;
            let options = rdma_verbs::ConnectOptions::new(&row);
            let (at_a, at_b) = (a.endpoint(&options)?, b.endpoint(&options)?);
            let mut a = a.ready_to_receive(&at_b, &options)?.ready_to_send()?;
            stop(7)?;
            let b = b.connect(&at_a, &options)?;
            let range = exposed.range(0, 8)?;
            a.send_queue().post(Send::new(range))?;
            let mut batch = a.send_queue().batch::<4>();
            batch.push(Send::new(pool.take().expect("a buffer")))?;
            stop(8)?;
            batch.post()?;
            stop(9)?;
            let (send, recv) = b.split();
            drop(recv);
            stop(10)?;
            let mut drain = cq.poll()?;
            stop(11)?;
            drop(drain.next());
            drop((send, exposed.revoke()?));
            Ok(())
        }
        let fds = descriptors();
        for step in 1..=12 {
            let failed = half_way(step);
            assert!(failed.is_err(), "{step}");
            if step < 12 {
                assert!(matches!(failed, Err(Error::NoChannel)), "{step}: {failed:?}");
            }
            assert_nothing_is_left();
        }
        assert_eq!(descriptors(), fds);
    }

    fn a_thousand_cycles() {
        let fds = descriptors();
        for seed in 0..1000 {
            let mut all = everything_there_is(seed);
            Random::new(seed + 1).shuffle(&mut all);
            faults::stall(false);
        }
        assert_eq!((descriptors(), faults::all_live()), (fds, vec![]));
    }
}
