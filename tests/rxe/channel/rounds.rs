//! Many rounds of random timing between arming, completing and waiting.
//!
//! As many as take half a minute where the processors are emulated; a hundred thousand, in two minutes,
//! with `RDMA_TEST_ROUNDS=5`, which says how many times as many.

use std::sync::atomic::{AtomicBool, AtomicU32};

use super::*;
use crate::seed::Random;

fn times(rounds: u32) -> u32 {
    let factor = std::env::var("RDMA_TEST_ROUNDS").ok();
    factor.map_or(rounds, |factor| factor.parse::<u32>().expect("a number") * rounds)
}

/// As many completions as may be there and not seen.
const AHEAD: u32 = 24;

/// Posts completions at random moments, and so in any between the other's arming, looking and going to
/// sleep; now and then only when all were seen, so that he sleeps.
fn produce(
    rounds: u32,
    queue_pair: &mut QueuePair<Rts>,
    nowhere: RemoteSlice,
    seen: &AtomicU32,
    mut random: Random,
) {
    for posted in 0..rounds {
        let ahead = if random.below(16) == 0 { 0 } else { AHEAD };
        let begun = Instant::now();
        while posted - seen.load(Ordering::Acquire) > ahead {
            assert!(begun.elapsed() < LOST, "round {posted}: a completion is slept through");
            thread::yield_now();
        }
        random.dawdle(2000);
        write(queue_pair, nowhere);
    }
}

/// Sees them: by the library's own wait, or by a loop whose steps are random times apart.
fn consume(
    total: u32,
    channel: &CompletionChannel,
    cq: &mut CompletionQueue,
    seen: &AtomicU32,
    mut random: Random,
    own_loop: bool,
) {
    let mut count = 0;
    while count < total {
        let by_hand = own_loop && random.below(2) == 0;
        let before = count;
        let mut drain = if by_hand {
            cq.arm(Notify::Any).expect("armed")
        } else {
            cq.wait(Notify::Any, LOST).expect("it can be waited for")
        };
        while let Some(completion) = drain.next() {
            assert_eq!(completion.status(), WcStatus::SUCCESS);
            count += 1;
        }
        if count != before {
            seen.store(count, Ordering::Release);
            random.dawdle(1000);
        } else if by_hand {
            random.dawdle(2000);
            assert!(readable(channel, LOST), "{count} of {total}, and then nothing");
            channel.process_events().expect("they can be taken");
        } else {
            assert_eq!(count, total, "a wait of {LOST:?} gave nothing");
        }
    }
}

#[test]
fn one_queue() {
    let rounds = times(8_000);
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let mut cq = on(&channel, 64);
    let (mut a, _b, _other, nowhere) = writer(&ground, &cq);
    let mut random = Random::new("channel::rounds::one_queue");
    let seen = AtomicU32::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        let of_producer = random.fork();
        scope.spawn(|| produce(rounds, &mut a, nowhere, &seen, of_producer));
        consume(rounds, &channel, &mut cq, &seen, random, true);
    });
    println!("{rounds} rounds in {:?}", begun.elapsed());
    assert_eq!(cq.strays(), 0);
}

/// Two queues on one channel, from one thread.
#[test]
fn two_queues_one_thread() {
    let rounds = times(3_000);
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let (mut one, mut two) = (on(&channel, 64), on(&channel, 64));
    let (mut a, _b, _other, nowhere) = writer(&ground, &one);
    let (mut c, _d, _another, _) = writer(&ground, &two);
    let mut random = Random::new("channel::rounds::two_queues_one_thread");
    let counts = [AtomicU32::new(0), AtomicU32::new(0)];
    let begun = Instant::now();
    thread::scope(|scope| {
        for (at, queue_pair) in [&mut a, &mut c].into_iter().enumerate() {
            let (of_producer, seen) = (random.fork(), &counts[at]);
            scope.spawn(move || produce(rounds, queue_pair, nowhere, seen, of_producer));
        }
        let mut totals = [0, 0];
        while totals != [rounds; 2] {
            let found = channel.wait(&mut [&mut one, &mut two], Notify::Any, LOST);
            let found = found.expect("it can be waited for").expect("something comes");
            let cq = if found == 0 { &mut one } else { &mut two };
            let mut drain = cq.poll().expect("the queue can be polled");
            while let Some(completion) = drain.next() {
                assert_eq!(completion.status(), WcStatus::SUCCESS);
                totals[found] += 1;
            }
            counts[found].store(totals[found], Ordering::Release);
            random.dawdle(1000);
        }
    });
    println!("2 times {rounds} rounds in {:?}", begun.elapsed());
}

/// Two queues on one channel, a thread each, and others that come and go with events of their own.
#[test]
fn two_threads_and_queues_that_go() {
    let rounds = times(3_000);
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let mut random = Random::new("channel::rounds::two_threads_and_queues_that_go");
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let churned = thread::scope(|scope| {
        let (ground, channel, stop) = (&ground, &channel, &stop);
        let of_churn = random.fork();
        let churn = scope.spawn(move || churn(ground, channel, stop, of_churn));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let mut random = random.fork();
                scope.spawn(move || {
                    let mut cq = on(channel, 64);
                    let (mut a, _b, _other, nowhere) = writer(ground, &cq);
                    let seen = AtomicU32::new(0);
                    let (seen, of_producer) = (&seen, random.fork());
                    thread::scope(|scope| {
                        scope.spawn(|| produce(rounds, &mut a, nowhere, seen, of_producer));
                        // Its own loop on a descriptor that others read would be woken by them.
                        consume(rounds, channel, &mut cq, seen, random, false);
                    });
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Release);
        ended.into_iter().for_each(|ended| ended.expect("no completion is slept through"));
        churn.join().expect("queues come and go")
    });
    println!("2 times {rounds} rounds, {churned} queues, in {:?}", begun.elapsed());
    assert!(churned > 100, "{churned}");
    assert!(!readable(&channel, Duration::ZERO), "an event of one that is gone");
}

/// Makes completion queues, has an event raised for each, and drops them, until told to stop.
fn churn(
    ground: &Ground,
    channel: &CompletionChannel,
    stop: &AtomicBool,
    mut random: Random,
) -> u32 {
    let pool = Pool::new(&ground.pd, 64, 4).expect("a pool");
    let mut count = 0;
    while !stop.load(Ordering::Acquire) {
        let mut cq = on(channel, 8);
        let mut queue_pair: QueuePair<Init> = ground.queue_pair(&cq, 2);
        let memory = pool.take().expect("a buffer");
        queue_pair.recv_queue().post(Receive::new(memory)).expect("room");
        assert!(cq.arm(Notify::Any).expect("armed").is_empty());
        queue_pair.close().expect("to ERR");
        match random.below(4) {
            0 => {}
            1 => drop(channel.process_events().expect("they can be taken")),
            2 => {
                let mut drain = cq.wait(Notify::Any, LOST).expect("it can be waited for");
                assert!(drain.next().is_some(), "flushed, and not told");
            }
            _ => random.dawdle(5000),
        }
        let begun = Instant::now();
        if random.below(2) == 0 {
            drop((cq, queue_pair))
        } else {
            drop((queue_pair, cq))
        }
        assert!(begun.elapsed() < LOST / 2, "dropping took {:?}", begun.elapsed());
        count += 1;
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pool.available(), pool.count());
    count
}
