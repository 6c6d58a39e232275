//! Completion channels: no completion is slept through, and waiting costs nothing.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send, Write};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Error, Init, Notify, Pool, QueuePair, RemoteSlice, Rts,
    WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::rc::{Ground, Pair, completions, join};
use super::rig::{Rig, wait_until};

mod rounds;

/// Something that never comes was waited for.
const LOST: Duration = Duration::from_secs(10);

fn on(channel: &CompletionChannel, size: u32) -> CompletionQueue {
    let builder = CompletionQueue::builder(channel.context(), size);
    builder.channel(channel).build().expect("a CQ on the channel")
}

/// A queue pair that writes nothing to itself or its peer: each write is a completion, the cheapest
/// there is.
fn write(queue_pair: &mut QueuePair<Rts>, nowhere: RemoteSlice) {
    queue_pair.send_queue().post(Write::new((), nowhere).signaled()).expect("room");
}

/// Two queue pairs, the first of which completes on `cq`, and what a write of nothing names.
fn writer(
    ground: &Ground,
    cq: &CompletionQueue,
) -> (QueuePair<Rts>, QueuePair<Rts>, CompletionQueue, RemoteSlice) {
    let other = ground.cq(64);
    let (a, b) = (ground.queue_pair(cq, 32), ground.queue_pair(&other, 4));
    let (a, b) = join(a, b, &ground.options());
    (a, b, other, RemoteSlice::new(0, 0, rdma_verbs::RKey::new(0)))
}

/// How many completions one wait gave.
fn waited(cq: &mut CompletionQueue, notify: Notify, timeout: impl Into<Option<Duration>>) -> usize {
    let mut drain = cq.wait(notify, timeout).expect("it can be waited for");
    let mut count = 0;
    while let Some(completion) = drain.next() {
        assert_eq!(completion.status(), WcStatus::SUCCESS);
        count += 1;
    }
    count
}

/// Waits for the channel's descriptor, as a loop of one's own does.
fn readable(channel: &CompletionChannel, timeout: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    poll(&mut fds, Some(&timeout)).expect("poll") == 1
}

/// What came before it was armed, in numbers around the batch: none is slept through.
#[test]
fn bursts_around_the_batch() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let mut cq = on(&channel, 64);
    let (mut a, _b, _other, nowhere) = writer(&ground, &cq);
    for burst in [1, 16, 17, 31, 32] {
        (0..burst).for_each(|_| write(&mut a, nowhere));
        let mut came = 0;
        while came < burst {
            let begun = Instant::now();
            let count = waited(&mut cq, Notify::Any, LOST);
            assert_ne!(count, 0, "{came} of {burst}, and then nothing");
            assert!(begun.elapsed() < LOST / 2, "{:?}", begun.elapsed());
            assert!(count <= 16, "more than a batch");
            came += count;
        }
        assert_eq!(came, burst);
        assert_eq!(waited(&mut cq, Notify::Any, Duration::ZERO), 0);
    }
}

#[test]
fn solicited_only() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let (mut sent, mut received) = (ground.cq(64), on(&channel, 64));
    let pool = Pool::new(&ground.pd, 64, 16).expect("a pool");
    let (a, mut b) = (ground.queue_pair(&sent, 8), ground.queue_pair(&received, 8));
    for _ in 0..4 {
        b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
    }
    let (mut a, b) = join(a, b, &ground.options());
    let quiet = Duration::from_millis(200);
    // Plain messages come while it sleeps, and do not wake it.
    let (slept, count) = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(quiet / 4);
            for _ in 0..2 {
                a.send_queue().post(Send::new(()).signaled()).expect("room");
            }
            completions(&mut sent, 2);
        });
        let begun = Instant::now();
        let count = waited(&mut received, Notify::Solicited, quiet);
        (begun.elapsed(), count)
    });
    assert!(slept >= quiet, "woken after {slept:?}");
    // Those that came by then are given all the same; a solicited one wakes it, with the others.
    let mut seen = vec![0; count];
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(quiet / 4);
            a.send_queue().post(Send::new(()).solicited().signaled()).expect("room");
        });
        let begun = Instant::now();
        while seen.len() < 3 {
            let mut drain = received.wait(Notify::Solicited, LOST).expect("it can be waited for");
            while let Some(completion) = drain.next() {
                assert_eq!(completion.status(), WcStatus::SUCCESS);
                seen.push(completion.wr_id());
            }
            assert!(begun.elapsed() < LOST, "{seen:?}");
        }
    });
    // Failures should wake it as well, but what rxe of Linux 6.12 flushes does not: it is there all the same.
    b.close().expect("to ERR");
    assert_eq!(completions(&mut received, 1)[0].status, WcStatus::WR_FLUSH_ERR);
}

/// Events that were taken and not acknowledged, or not even taken, do not stop a completion queue from
/// going.
#[test]
fn events_do_not_block_a_drop() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    for (events, take) in [(1, false), (1, true), (63, true), (64, true), (65, true), (130, true)] {
        let mut cq = on(&channel, 64);
        let (mut a, b, other, nowhere) = writer(&ground, &cq);
        for _ in 0..events {
            while cq.arm(Notify::Any).expect("armed").next().is_some() {}
            write(&mut a, nowhere);
            assert!(readable(&channel, LOST), "no event");
            if take {
                assert_eq!(channel.process_events().expect("they can be taken"), 1);
            }
        }
        let begun = Instant::now();
        drop((a, cq, b, other));
        assert!(begun.elapsed() < Duration::from_secs(1), "{events}: {:?}", begun.elapsed());
    }
    assert!(!readable(&channel, Duration::ZERO), "an event of one that is gone");
    assert_eq!(channel.process_events().expect("they can be taken"), 0);
}

#[test]
fn a_panic_while_a_drain_is_held() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let mut cq = on(&channel, 64);
    let (mut a, _b, _other, nowhere) = writer(&ground, &cq);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut lent = cq.arm(Notify::Any).expect("armed");
        assert!(lent.next().is_none());
        write(&mut a, nowhere);
        write(&mut a, nowhere);
        let mut drain = cq.wait(Notify::Any, LOST).expect("it can be waited for");
        let _completion = drain.next().expect("one came");
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
    assert_eq!(waited(&mut cq, Notify::Any, LOST), 1, "the second is still there");
    let begun = Instant::now();
    // The queue pair goes first: the completion queue itself goes with the last of its queue pairs.
    drop((a, cq, channel));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The time given is kept, and nothing is done in it.
#[test]
fn timeouts() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let (mut cq, mut second) = (on(&channel, 64), on(&channel, 64));
    let (mut a, _b, _other, nowhere) = writer(&ground, &second);
    for millis in [0, 1, 100, 1000] {
        let timeout = Duration::from_millis(millis);
        let (begun, used) = (Instant::now(), cpu());
        assert_eq!(waited(&mut cq, Notify::Any, timeout), 0);
        let (took, used) = (begun.elapsed(), cpu() - used);
        assert!(
            took >= timeout && took < timeout + Duration::from_secs(1),
            "{timeout:?}: {took:?}"
        );
        assert!(used < Duration::from_millis(50), "{timeout:?}: {used:?} of CPU time");
    }
    // Of both, when only one of them is asked; a wait that has an end finds the other's nothing.
    let (begun, used) = (Instant::now(), cpu());
    assert!(second.arm(Notify::Any).expect("armed").is_empty());
    write(&mut a, nowhere);
    assert_eq!(waited(&mut cq, Notify::Any, Duration::from_millis(500)), 0);
    assert!(begun.elapsed() >= Duration::from_millis(500));
    assert!(cpu() - used < Duration::from_millis(50), "the other's event: {:?}", cpu() - used);
    assert_eq!(waited(&mut second, Notify::Any, LOST), 1);
    // Without an end: until something comes.
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            write(&mut a, nowhere);
        });
        let (begun, used) = (Instant::now(), cpu());
        assert_eq!(waited(&mut second, Notify::Any, None), 1);
        assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
        assert!(cpu() - used < Duration::from_millis(50), "{:?}", cpu() - used);
    });
}

/// A loop of one's own, on the descriptor.
#[test]
fn a_loop_of_ones_own() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let mut cq = on(&channel, 64);
    let (mut a, _b, _other, nowhere) = writer(&ground, &cq);
    assert!(!readable(&channel, Duration::ZERO));
    let came = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..500 {
                wait_until("the loop follows", || came.load(Ordering::Acquire) + 20 > number);
                write(&mut a, nowhere);
            }
        });
        while came.load(Ordering::Acquire) < 500 {
            let mut drain = cq.arm(Notify::Any).expect("armed");
            let mut found = false;
            while let Some(completion) = drain.next() {
                assert_eq!(completion.status(), WcStatus::SUCCESS);
                came.fetch_add(1, Ordering::Release);
                found = true;
            }
            if !found {
                assert!(readable(&channel, LOST), "nothing after {came:?}");
                assert!(channel.process_events().expect("they can be taken") > 0);
            }
        }
    });
}

#[test]
fn what_cannot_be_waited_for() {
    let rig = Rig::new();
    let Pair { a: _a, b: _b, mut cq, pool: _pool, pd } = Pair::new(&rig);
    let channel = CompletionChannel::new(pd.context()).expect("a channel");
    let other = CompletionChannel::new(pd.context()).expect("a channel");
    let mut of_other = on(&other, 4);
    let error = channel.wait(&mut [&mut of_other], Notify::Any, Duration::ZERO);
    assert!(matches!(error, Err(Error::NoChannel)), "{error:?}");
    let error = cq.wait(Notify::Any, Duration::ZERO).map(|_| ());
    assert!(matches!(error, Err(Error::NoChannel)), "{error:?}");
    let error = cq.arm(Notify::Any).map(|_| ());
    assert!(matches!(error, Err(Error::NoChannel)), "{error:?}");
    let nothing = channel.wait(&mut [], Notify::Any, Duration::ZERO);
    assert!(matches!(nothing, Ok(None)), "{nothing:?}");
    // A channel of the same device, opened again, is another device's.
    let again = rig.open();
    let builder = CompletionQueue::builder(&again, 4).channel(&channel);
    let error = builder.build().expect_err("of another context");
    assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
}
