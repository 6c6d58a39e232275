//! Queue pairs, completion queues and memory that go in any order, while things are in flight.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{
    CanReceive, CompletionChannel, CompletionQueue, Error, Exposed, Notify, Pool, QueuePair,
    Refusal, Rts, WcStatus,
};

use super::rc::{Ground, Pair, Seen, completions, everything, join, polled};
use super::rig::{Rig, wait_until};

/// No drop, close or finish may take longer.
const HANG: Duration = Duration::from_secs(1);

/// As many receives as the tests post.
const DEEP: usize = 512;

fn in_time<T>(what: &str, step: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let outcome = step();
    assert!(begun.elapsed() < HANG, "{what} took {:?}", begun.elapsed());
    outcome
}

/// Posts receives until there are so many, numbered from 0.
fn fill<S: CanReceive>(queue_pair: &mut QueuePair<S>, pool: &Pool, count: usize) {
    for wr_id in 0..count as u64 {
        let receive = Receive::new(pool.take().expect("a buffer")).wr_id(wr_id);
        queue_pair.recv_queue().post(receive).expect("room");
    }
}

/// Each number from 0 once, flushed, with its buffer.
fn assert_flushed(seen: &[Seen], count: usize, silent: bool) {
    assert_eq!(seen.len(), count);
    for (number, seen) in seen.iter().enumerate() {
        assert_eq!(seen.wr_id, number as u64);
        assert_eq!((seen.status, seen.silent), (WcStatus::WR_FLUSH_ERR, silent), "{seen:?}");
        assert_eq!(seen.memory.len(), 1);
    }
}

fn assert_nothing_more(cq: &mut CompletionQueue) {
    let mut seen = Vec::new();
    polled(cq, &mut seen);
    assert!(seen.is_empty(), "{seen:?}");
    assert_eq!(cq.strays(), 0);
}

/// Two queue pairs, one with all its receives posted, and their completion queue.
struct Deep {
    ground: Ground,
    cq: CompletionQueue,
    pool: Pool,
    a: QueuePair<Rts>,
    b: QueuePair<Rts>,
}

impl Deep {
    fn new(rig: &Rig) -> Deep {
        let ground = Ground::new(rig);
        let cq = ground.cq(4 * DEEP as u32);
        let pool = Pool::new(&ground.pd, 64, 2 * DEEP).expect("a pool");
        let make = || ground.queue_pair(&cq, DEEP as u32);
        let (a, mut b) = (make(), make());
        fill(&mut b, &pool, DEEP);
        let (a, b) = join(a, b, &ground.options());
        Deep { ground, cq, pool, a, b }
    }
}

/// One goes while the other sends: the sender hears of it in the time that its settings give.
#[test]
fn a_peer_that_dies() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let (mut at_a, mut at_b) = (ground.cq(64), ground.cq(64));
    let pool = Pool::new(&ground.pd, 64, 128).expect("a pool");
    let (a, mut b) = (ground.queue_pair(&at_a, 32), ground.queue_pair(&at_b, 32));
    fill(&mut b, &pool, 32);
    // Sent once, and three times again: the peer counts as gone after 4 times 67 ms.
    let options = ground.options().timeout(Duration::from_micros(67_109)).retry_count(3);
    let (mut a, b) = join(a, b, &options);
    let dead = AtomicBool::new(false);
    let (mut posted, mut seen) = (0, Vec::new());
    let silence = thread::scope(|scope| {
        scope.spawn(|| {
            completions(&mut at_b, 8);
            in_time("dropping a queue pair", || drop(b));
            dead.store(true, Ordering::Release);
        });
        let mut died = None;
        // Until a send fails, keeps the queue full.
        while seen.iter().all(|seen: &Seen| seen.status == WcStatus::SUCCESS) {
            let begun: Option<Instant> = died;
            assert!(begun.is_none_or(|died| died.elapsed() < 5 * HANG), "no send fails: {seen:?}");
            if died.is_none() && dead.load(Ordering::Acquire) {
                died = Some(Instant::now());
            }
            if let Some(buffer) = pool.take() {
                match a.send_queue().post(Send::new(buffer).wr_id(posted)) {
                    Ok(()) => posted += 1,
                    Err(failed) => assert!(matches!(failed.refusal, Refusal::Full { .. })),
                }
            }
            let before = seen.len();
            let mut drain = at_a.poll().expect("the queue can be polled");
            while let Some(completion) = drain.next() {
                if completion.status() == WcStatus::RETRY_EXC_ERR {
                    let error = completion.result().expect_err("it failed").to_string();
                    assert!(error.ends_with("no answer"), "{error}");
                }
                seen.push(Seen { memory: Vec::new(), ..Seen::of(completion) });
            }
            if seen.len() == before {
                thread::yield_now();
            }
        }
        died.map_or(Duration::ZERO, |died| died.elapsed())
    });
    assert!(silence < 3 * HANG, "RETRY_EXC_ERR after {silence:?}");
    seen.extend(completions(&mut at_a, posted as usize - seen.len()));
    seen.sort_by_key(|seen| seen.wr_id);
    let numbers: Vec<u64> = seen.iter().map(|seen| seen.wr_id).collect();
    assert_eq!(numbers, (0..posted).collect::<Vec<_>>(), "each once");
    let first = seen.iter().position(|seen| seen.status != WcStatus::SUCCESS).expect("one failed");
    assert_eq!(seen[first].status, WcStatus::RETRY_EXC_ERR, "{:?}", &seen[first..]);
    let rest = &seen[first + 1..];
    assert!(rest.iter().all(|seen| seen.status == WcStatus::WR_FLUSH_ERR), "{rest:?}");
    drop(seen);
    // 32 receives of the one that died: 8 or more were looked at, the rest comes now.
    while at_b.room() != at_b.size() {
        polled(&mut at_b, &mut Vec::new());
    }
    assert_eq!(pool.available(), 128, "every buffer is back");
    assert_eq!((at_a.strays(), at_b.strays()), (0, 0));
}

#[test]
fn closed_with_receives_posted() {
    let rig = Rig::new();
    let Deep { ground: _ground, mut cq, pool, a: _a, mut b } = Deep::new(&rig);
    in_time("closing", || b.close().expect("to ERR"));
    let seen = completions(&mut cq, DEEP);
    assert_flushed(&seen, DEEP, false);
    drop(seen);
    assert_nothing_more(&mut cq);
    let buffer = pool.take().expect("a buffer");
    let refused = b.recv_queue().post(Receive::new(buffer)).expect_err("it is closed");
    assert!(matches!(refused.refusal, Refusal::Closed { .. }), "{refused}");
    drop(refused);
    in_time("dropping", || drop(b));
    assert_nothing_more(&mut cq);
    assert_eq!(pool.available(), pool.count());
}

#[test]
fn dropped_with_receives_posted() {
    let rig = Rig::new();
    let Deep { ground: _ground, mut cq, pool, a, b } = Deep::new(&rig);
    let room = cq.room();
    in_time("dropping", || drop((a, b)));
    assert_eq!(cq.room(), room, "completions of it may still be there");
    let seen = completions(&mut cq, DEEP);
    assert_flushed(&seen, DEEP, true);
    drop(seen);
    assert_nothing_more(&mut cq);
    assert_eq!((cq.room(), pool.available()), (cq.size(), pool.count()));
}

#[test]
fn the_completion_queue_dropped_first() {
    let rig = Rig::new();
    let Deep { ground, cq, pool, mut a, b } = Deep::new(&rig);
    for _ in 0..8 {
        a.send_queue().post(Send::new(pool.take().expect("a buffer"))).expect("room");
    }
    in_time("dropping the completion queue", || drop(cq));
    a.send_queue().post(Send::new(Inline(b"still"))).expect("nobody polls, and it is all the same");
    in_time("dropping a queue pair", || drop(b));
    in_time("dropping its peer", || drop(a));
    assert_eq!(pool.available(), pool.count(), "what nobody can poll goes with the queue pairs");
    in_time("dropping the rest", || drop((ground, pool)));
}

/// A thread that polls until it has so many completions.
fn poller(
    mut cq: CompletionQueue,
    count: usize,
) -> thread::JoinHandle<(CompletionQueue, Vec<Seen>)> {
    thread::spawn(move || {
        let seen = completions(&mut cq, count);
        (cq, seen)
    })
}

#[test]
fn a_poller_on_another_thread() {
    let rig = Rig::new();
    let Deep { ground, cq, pool, a, b } = Deep::new(&rig);
    let polling = poller(cq, DEEP);
    in_time("dropping", || drop(b));
    let (cq, seen) = polling.join().expect("the poller ends");
    assert_flushed(&seen, DEEP, true);
    drop((seen, a));

    // In order: what was posted comes first, and nothing is left.
    let mut b = ground.queue_pair(&cq, DEEP as u32);
    fill(&mut b, &pool, DEEP);
    let polling = poller(cq, DEEP);
    let left = in_time("finishing", || b.finish(HANG));
    let (mut cq, seen) = polling.join().expect("the poller ends");
    assert_eq!(left, 0);
    assert_flushed(&seen, DEEP, false);
    drop(seen);

    // Nobody polls: the time ends, and all of it comes after.
    let mut b = ground.queue_pair(&cq, DEEP as u32);
    fill(&mut b, &pool, DEEP);
    let left = in_time("finishing", || b.finish(Duration::from_millis(50)));
    assert_eq!(left, DEEP);
    let seen = completions(&mut cq, DEEP);
    assert_flushed(&seen, DEEP, false);
    drop(seen);
    assert_nothing_more(&mut cq);
    assert_eq!(pool.available(), pool.count());
}

#[test]
fn finished_by_who_polls() {
    let rig = Rig::new();
    let Deep { ground: _ground, mut cq, pool, mut a, b } = Deep::new(&rig);
    let sends = a.send_queue();
    for _ in 0..2 {
        sends.post(Send::new(pool.take().expect("a buffer"))).expect("room");
    }
    sends.post(Send::new(pool.take().expect("a buffer")).signaled()).expect("room");
    let mut buffers = Vec::new();
    in_time("finishing", || {
        b.finish_polling(&mut [&mut cq], HANG, |completion| {
            buffers.extend(completion.into_buffer());
        })
        .expect("the queue can be polled");
    });
    in_time("finishing the peer", || {
        a.finish_polling(&mut [&mut cq], HANG, |completion| {
            buffers.extend(completion.into_buffer());
        })
        .expect("the queue can be polled");
    });
    assert_eq!(buffers.len(), DEEP + 3);
    assert_eq!(pool.available(), pool.count() - DEEP - 3);
    assert_eq!((cq.room(), cq.strays()), (cq.size(), 0));
}

/// Sends that are complete, and for which the device has nothing to tell: they end with the time given.
#[test]
fn finished_with_silent_sends() {
    let rig = Rig::new();
    let Pair { mut a, mut b, mut cq, pool, pd: _pd } = Pair::new(&rig);
    fill(&mut b, &pool, 3);
    for _ in 0..3 {
        a.send_queue().post(Send::new(pool.take().expect("a buffer"))).expect("room");
    }
    completions(&mut cq, 3);
    let mut count = 0;
    in_time("finishing", || {
        let time = Duration::from_millis(50);
        a.finish_polling(&mut [&mut cq], time, |_| count += 1).expect("it can be polled");
    });
    assert_eq!(count, 3);
    assert_eq!(pool.available(), pool.count());
}

#[test]
fn halves_dropped_on_different_threads() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(128);
    let pool = Pool::new(&ground.pd, 64, 64).expect("a pool");
    for send_first in [true, false] {
        let (a, mut b) = (ground.queue_pair(&cq, 16), ground.queue_pair(&cq, 16));
        fill(&mut b, &pool, 16);
        let (a, b) = join(a, b, &ground.options());
        let ((mut send, recv), (send_b, recv_b)) = (a.split(), b.split());
        send.post(Send::new(pool.take().expect("a buffer")).signaled()).expect("room");
        in_time("dropping halves", || {
            thread::scope(|scope| {
                let (first, second): (Box<dyn FnOnce() + std::marker::Send>, _) = if send_first {
                    (Box::new(|| drop((send, send_b))), Box::new(|| drop((recv, recv_b))) as Box<_>)
                } else {
                    (Box::new(|| drop((recv, recv_b))), Box::new(|| drop((send, send_b))) as Box<_>)
                };
                let second: Box<dyn FnOnce() + std::marker::Send> = second;
                scope.spawn(first).join().expect("it drops");
                scope.spawn(second);
            });
        });
        let seen = completions(&mut cq, 17);
        let flushed = seen.iter().filter(|seen| seen.status == WcStatus::WR_FLUSH_ERR).count();
        // The message may have arrived before, on either side.
        assert!((15..=17).contains(&flushed), "{seen:?}");
        drop(seen);
        assert_nothing_more(&mut cq);
        assert_eq!((cq.room(), pool.available()), (cq.size(), pool.count()));
    }
}

/// A device that is taken away while all of it is in use.
#[test]
fn the_device_goes_under_traffic() {
    let mut rig = Rig::new();
    let node = rig.listed().node();
    let Pair { mut a, mut b, mut cq, pool, pd } = Pair::new(&rig);
    let exposed = Exposed::new(&pd, 4096, everything()).expect("memory");
    let channel = CompletionChannel::new(pd.context()).expect("a channel");
    let mut waited =
        CompletionQueue::builder(pd.context(), 4).channel(&channel).build().expect("a CQ");
    // True when the message arrived. Nobody knows when the first does not.
    let mut round = || {
        let buffer = pool.take().expect("a buffer");
        match b.recv_queue().post(Receive::new(buffer)) {
            Ok(()) => {}
            Err(failed) => assert!(matches!(failed.refusal, Refusal::Full { .. }), "{failed}"),
        }
        let send = Send::new(pool.take().expect("a buffer")).wr_id(1).signaled();
        a.send_queue().post(send).expect("it is polled");
        let (mut seen, begun) = (Vec::new(), Instant::now());
        loop {
            polled(&mut cq, &mut seen);
            if let Some(sent) = seen.iter().find(|seen: &&Seen| seen.wr_id == 1) {
                return sent.status == WcStatus::SUCCESS;
            }
            assert!(begun.elapsed() < HANG, "no completion, not even of a failure");
        }
    };
    assert!(round(), "it works at first");
    let mut removal = rig.begin_removal();
    wait_until("the node has gone", || {
        round();
        !node.exists()
    });
    for _ in 0..20 {
        round();
    }
    // Nothing comes; nothing hangs.
    match in_time("waiting", || waited.wait(Notify::Any, Duration::from_millis(50)).map(|_| ())) {
        Ok(()) | Err(Error::DeviceFatal { .. } | Error::Verb { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let context = pd.context().clone();
    in_time("dropping everything", || drop((pool, exposed, b, cq, waited, a, channel, pd)));
    assert_eq!(context.leaks(), 0);
    assert!(removal.try_wait().expect("it can be asked").is_none(), "the context is still open");
    drop(context);
    wait_until("the device has gone", || removal.try_wait().expect("it can be asked").is_some());
    assert!(removal.wait().expect("it has ended").success());
}

pub(crate) mod cycles;
mod forgotten;
