//! Completions and events as futures, on the interposer's device: what fails, who is woken, and that no
//! buffer is lost to a future that was dropped. On rxe: `tests/rxe/aio.rs`.

mod interposed;

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use rdma_verbs::aio::{Completions, Events};
use rdma_verbs::wr::{Receive, Send, Write};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, CompletionQueueHandle, Context, Error, EventType, Notify,
    QueuePair, RKey, RemoteSlice, Result, Rts, WcStatus, aio,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use interposed::rig::{Rig, Seen, assert_nothing_is_left};
use interposed::{faults, interposed};

/// Something that never comes was waited for.
const LOST: Duration = Duration::from_secs(20);

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn several_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Two queue pairs, connected, whose completions come here.
fn pair(rig: &Rig, on: &impl AsRef<CompletionQueueHandle>) -> (QueuePair<Rts>, QueuePair<Rts>) {
    let make = || {
        let builder = QueuePair::rc(&rig.pd, on, on).send_depth(16).recv_depth(16);
        let queue_pair = builder.build().expect("a queue pair");
        queue_pair.init(&rig.init_options()).expect("to INIT")
    };
    rig.connect(make(), make())
}

fn write(queue_pair: &mut QueuePair<Rts>) {
    let nowhere = RemoteSlice::new(0, 0, RKey::new(0));
    queue_pair.send_queue().post(Write::new((), nowhere).signaled()).expect("room");
}

/// So many completions.
async fn seen(completions: &mut Completions, count: usize) -> Result<Vec<Seen>> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let batch = timeout(LOST, completions.next_batch()).await;
        let mut batch = batch.unwrap_or_else(|_| panic!("{count} completions: {seen:?}"))?;
        while let Some(mut completion) = batch.next() {
            seen.push(Seen::of(&mut completion));
        }
    }
    Ok(seen)
}

interposed! {
    /// A message that comes before, while and after it is waited for; on runtimes of both kinds.
    fn a_message_at_any_time() {
        for runtime in [one_thread(), several_threads()] {
            let rig = Rig::new();
            runtime.block_on(async {
                let mut completions = Completions::new(&rig.context, 64).expect("a CQ");
                let (mut a, mut b) = pair(&rig, &completions);
                for round in 0..100 {
                    b.recv_queue().post(Receive::new(rig.take())).expect("room");
                    if round % 2 == 0 {
                        // Waits when it comes.
                        assert!(timeout(Duration::ZERO, completions.next_batch()).await.is_err());
                    }
                    a.send_queue().post(Send::new(rig.filled(b"hello")).signaled()).expect("room");
                    let seen = seen(&mut completions, 2).await.expect("completions");
                    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
                    assert_eq!(rig.out(), 2);
                    drop(seen);
                }
                drop((a, b, completions));
            });
            assert_eq!(rig.out(), 0);
            rig.end();
        }
        assert_nothing_is_left();
    }

    /// Of many on one channel only those are woken that have something; a future that is not polled
    /// any more keeps no other waiting.
    fn many_on_one_channel() {
        let rig = Rig::new();
        one_thread().block_on(async {
            let channel = CompletionChannel::new(&rig.context).expect("a channel");
            let make = || {
                let builder = CompletionQueue::builder(&rig.context, 64).channel(&channel);
                Completions::build(builder).expect("a CQ")
            };
            let (mut stuck, mut quiet, mut busy) = (make(), make(), make());
            let (mut a, _b) = pair(&rig, &busy);
            let mut stuck = pin!(stuck.next_batch());
            let once = poll_fn(|cx| Poll::Ready(stuck.as_mut().poll(cx).is_pending()));
            assert!(once.await, "nothing is there");
            let polls = Arc::new(AtomicU64::new(0));
            let counting = Arc::clone(&polls);
            let nothing = tokio::spawn(async move {
                let mut nothing = pin!(quiet.next_batch());
                poll_fn(|cx| {
                    counting.fetch_add(1, Ordering::Relaxed);
                    nothing.as_mut().poll(cx).map(|_| ())
                })
                .await;
            });
            for _ in 0..500 {
                write(&mut a);
                seen(&mut busy, 1).await.expect("its completion");
            }
            assert!(!nothing.is_finished(), "something where nothing is");
            assert!(polls.load(Ordering::Relaxed) <= 2, "{polls:?}");
            nothing.abort();
            let _ = nothing.await;
        });
        rig.end();
    }

    /// Who is woken may do anything at once, though an executor had better not: take in further events, make and
    /// drop completion queues. No lock is held by who wakes.
    fn a_waker_that_calls_back() {
        struct CallsBack {
            channel: CompletionChannel,
            context: Context,
            calls: AtomicU64,
        }
        impl Wake for CallsBack {
            fn wake(self: Arc<Self>) {
                self.channel.process_events().expect("events");
                self.context.process_events().expect("events");
                let builder = CompletionQueue::builder(&self.context, 4).channel(&self.channel);
                drop(builder.build().expect("a CQ"));
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
        }
        let rig = Rig::new();
        let channel = CompletionChannel::new(&rig.context).expect("a channel");
        let builder = CompletionQueue::builder(&rig.context, 64).channel(&channel);
        let mut completions = Completions::build(builder).expect("a CQ");
        let (mut a, b) = pair(&rig, &completions);
        let calls = AtomicU64::new(0);
        let back = Arc::new(CallsBack { channel, context: rig.context.clone(), calls });
        let waker = Waker::from(Arc::clone(&back));
        one_thread().block_on(async {
            // Told by an event of the channel, and by one of the device.
            let queue = completions.queue().as_raw().addr().get() as u64;
            let failed = || assert_eq!(faults::raise(None, 0, queue), 1, "CQ_ERR");
            let happen: [&mut dyn FnMut(); 2] = [&mut || write(&mut a), &mut || failed()];
            for (number, happen) in happen.into_iter().enumerate() {
                let calls = back.calls.load(Ordering::Relaxed);
                let mut next = pin!(completions.next_batch());
                let waiting = next.as_mut().poll(&mut TaskContext::from_waker(&waker));
                assert!(waiting.is_pending(), "{number}: nothing is there");
                happen();
                let woken = async {
                    while back.calls.load(Ordering::Relaxed) == calls {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                timeout(LOST, woken).await.unwrap_or_else(|_| panic!("{number}: nobody is woken"));
                let ended = timeout(LOST, next).await.expect("it is told");
                if number == 0 {
                    let mut batch = ended.expect("a completion");
                    assert!(batch.next().is_some() && batch.next().is_none());
                } else {
                    let error = ended.expect_err("the queue failed");
                    assert!(matches!(error, Error::CompletionQueueFailed { .. }), "{error}");
                }
            }
        });
        drop((a, b, completions, waker, back));
        rig.end();
        assert_nothing_is_left();
    }

    /// One that always has something gives others their turn.
    fn a_busy_one_is_fair() {
        let rig = Rig::new();
        one_thread().block_on(async {
            let mut completions = Completions::new(&rig.context, 64).expect("a CQ");
            let (mut a, _b) = pair(&rig, &completions);
            let (stop, stopped) = tokio::sync::oneshot::channel();
            let other = tokio::spawn(async move {
                for _ in 0..100 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                stop.send(()).expect("it is waited for");
            });
            let mut batches = 0_u64;
            let mut stopped = stopped;
            while stopped.try_recv().is_err() {
                write(&mut a);
                // Ready at once, every time: but for the budget it would never let go.
                let mut batch = completions.next_batch().await.expect("a completion");
                while let Some(completion) = batch.next() {
                    completion.result().expect("written");
                }
                batches += 1;
            }
            other.await.expect("no panic");
            assert!(batches > 1000, "{batches}");
        });
        rig.end();
    }

    /// Dropped at any moment, it loses nothing.
    fn dropped_futures_lose_nothing() {
        let rig = Rig::new();
        several_threads().block_on(async {
            let mut completions = Completions::new(&rig.context, 64).expect("a CQ");
            let (mut a, mut b) = pair(&rig, &completions);
            let (mut sent, mut came, mut dropped) = (0_u64, 0_u64, 0_u64);
            while came < 2 * 3000 {
                if sent < 3000 && sent * 2 < came + 8 {
                    b.recv_queue().post(Receive::new(rig.take()).wr_id(sent)).expect("room");
                    a.send_queue().post(Send::new(rig.filled(b"x")).signaled()).expect("room");
                    sent += 1;
                }
                let batch = completions.next_batch();
                // A half of them are polled once, some not at all.
                let batch = match came % 5 {
                    0 => { drop(batch); None }
                    1 | 2 => timeout(Duration::ZERO, batch).await.ok(),
                    _ => Some(timeout(LOST, batch).await.expect("a completion")),
                };
                let Some(batch) = batch else {
                    dropped += 1;
                    let mut batch = completions.poll().expect("it can be polled");
                    if let Some(completion) = batch.next() {
                        completion.result().expect("sent");
                        came += 1;
                    }
                    continue;
                };
                let mut batch = batch.expect("a completion");
                // One of a batch: the rest is given by the next.
                if let Some(completion) = batch.next() {
                    completion.result().expect("sent");
                    came += 1;
                }
            }
            assert!(dropped > 100, "{dropped}");
            assert_eq!(rig.out(), 0);
        });
        rig.end();
    }

    /// Polled once more when it was ready: a panic, as of every `async fn`, by which nothing is lost.
    fn polled_after_it_was_ready() {
        let rig = Rig::new();
        one_thread().block_on(async {
            let mut completions = Completions::new(&rig.context, 64).expect("a CQ");
            let (mut a, mut b) = pair(&rig, &completions);
            b.recv_queue().post(Receive::new(rig.take())).expect("room");
            a.send_queue().post(Send::new(rig.filled(b"hello")).signaled()).expect("room");
            {
                let mut batch = pin!(completions.next_batch());
                poll_fn(|cx| batch.as_mut().poll(cx).map(drop)).await;
                let again = poll_fn(|cx| {
                    let again = AssertUnwindSafe(|| batch.as_mut().poll(cx).map(drop));
                    Poll::Ready(catch_unwind(again).is_err())
                });
                assert!(again.await, "it is over");
            }
            let seen = seen(&mut completions, 2).await.expect("completions");
            assert_eq!(rig.out(), 2);
            drop((seen, a, b, completions));
        });
        assert_eq!(rig.out(), 0);
        rig.end();
    }

    /// A queue pair that another thread destroys wakes who waits for its completions.
    fn a_queue_pair_that_is_destroyed() {
        let rig = Rig::new();
        one_thread().block_on(async {
            let mut completions = Completions::new(&rig.context, 64).expect("a CQ");
            let (a, mut b) = pair(&rig, &completions);
            for wr_id in 0..4 {
                b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
            }
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                drop((a, b));
            });
            let seen = seen(&mut completions, 4).await.expect("what was left");
            thread.join().expect("no panic");
            assert!(seen.iter().all(|seen| seen.status == WcStatus::WR_FLUSH_ERR), "{seen:?}");
            assert_eq!(rig.out(), 4);
            drop(seen);
            assert_eq!(rig.out(), 0);
        });
        rig.end();
    }

    /// A completion queue that fails while it is waited for ends the wait, and what was posted comes back when
    /// the queue pairs go.
    fn a_completion_queue_that_fails() {
        let rig = Rig::new();
        one_thread().block_on(async {
            let mut completions = Completions::new(&rig.context, 64).expect("a CQ");
            let (a, mut b) = pair(&rig, &completions);
            b.recv_queue().post(Receive::new(rig.take())).expect("room");
            let raw = faults::nth("cq", 1).addr() as u64;
            let waiting = timeout(LOST, seen(&mut completions, 1));
            let raising = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                // CQ_ERR.
                faults::raise(Some("loop0"), 0, raw);
            };
            let (outcome, ()) = tokio::join!(waiting, raising);
            let error = outcome.expect("woken").expect_err("it has failed");
            assert!(matches!(error, Error::CompletionQueueFailed { .. }), "{error}");
            let again = completions.next_batch().await.map(drop);
            assert!(matches!(again, Err(Error::CompletionQueueFailed { .. })), "{again:?}");
            drop((a, b));
            let left = seen(&mut completions, 1).await.expect("what was left");
            assert_eq!(left[0].status, WcStatus::WR_FLUSH_ERR);
            drop(left);
            assert_eq!(rig.out(), 0);
        });
        rig.end();
    }

    /// A device that fails ends every wait with that, and events with the last event first.
    fn a_device_that_fails() {
        let rig = Rig::new();
        several_threads().block_on(async {
            let channel = CompletionChannel::new(&rig.context).expect("a channel");
            let make = || {
                let builder = CompletionQueue::builder(&rig.context, 64).channel(&channel);
                Completions::build(builder).expect("a CQ")
            };
            let (mut one, mut other) = (make(), make());
            let mut alone = Completions::new(&rig.context, 64).expect("a CQ");
            let (a, mut b) = pair(&rig, &one);
            b.recv_queue().post(Receive::new(rig.take())).expect("room");
            let mut events = Events::new(&rig.context).expect("a subscriber");
            let watching = tokio::spawn(aio::watch(rig.context.clone()));
            let raising = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                // DEVICE_FATAL.
                faults::raise(Some("loop0"), 8, 0);
            };
            let all = async {
                tokio::join!(seen(&mut one, 1), seen(&mut other, 1), seen(&mut alone, 1), events.next(), raising)
            };
            let (one_ended, other_ended, alone_ended, event, ()) =
                timeout(LOST, all).await.expect("all are woken");
            for ended in [one_ended, other_ended, alone_ended] {
                assert!(matches!(ended, Err(Error::DeviceFatal { .. })), "{ended:?}");
            }
            assert_eq!(event.expect("the event").kind, EventType::DEVICE_FATAL);
            let after = events.next().await;
            assert!(matches!(after, Err(Error::DeviceFatal { .. })), "{after:?}");
            let watched = timeout(LOST, watching).await.expect("it ends").expect("no panic");
            assert!(matches!(watched, Err(Error::DeviceFatal { .. })), "{watched:?}");
            drop((a, b));
            let left = seen(&mut one, 1).await.expect("what was left");
            assert_eq!(left.len(), 1);
            drop(left);
            assert_eq!(rig.out(), 0);
        });
        rig.end();
    }

    /// Each subscriber has every event, whoever takes it in.
    fn events_for_everybody() {
        let rig = Rig::new();
        one_thread().block_on(async {
            let mut both = [(); 2].map(|()| Events::new(&rig.context).expect("a subscriber"));
            let [one, other] = &mut both;
            let nothing = timeout(Duration::from_millis(20), one.next()).await;
            assert!(nothing.is_err(), "{nothing:?}");
            for round in 0..50 {
                // PORT_ACTIVE of port 1.
                faults::raise(Some("loop0"), 9, 1);
                if round % 2 == 0 {
                    rig.context.gids().checked().expect("taken in by a lookup");
                }
                let events = timeout(LOST, async { tokio::join!(one.next(), other.next()) }).await;
                let (first, second) = events.expect("both are told");
                let first = first.expect("an event");
                assert_eq!(first.kind, EventType::PORT_ACTIVE);
                assert_eq!(first, second.expect("an event"));
            }
            assert_eq!(one.lost(), 0);
        });
        rig.end();
    }

    /// A completion queue that tasks waited for can be waited for by a thread, and by tasks of another
    /// runtime, while the first one lives, and when it is gone.
    fn threads_and_runtimes_in_turn() {
        let rig = Rig::new();
        let (first, second) = (one_thread(), several_threads());
        let mut completions = Completions::new(&rig.context, 64).expect("a CQ");
        let (mut a, b) = pair(&rig, &completions);
        for _ in 0..10 {
            for runtime in [&first, &second] {
                let waited = runtime.block_on(async {
                    let nothing = timeout(Duration::from_millis(1), completions.next_batch());
                    assert!(nothing.await.is_err());
                    write(&mut a);
                    seen(&mut completions, 1).await
                });
                assert_eq!(waited.expect("its completion").len(), 1);
            }
            let queue = completions.queue_mut();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    write(&mut a);
                });
                let mut batch = queue.wait(Notify::Any, LOST).expect("it can be waited for");
                assert!(batch.next().is_some());
            });
        }
        drop(first);
        let waited = second.block_on(async {
            write(&mut a);
            seen(&mut completions, 1).await
        });
        assert_eq!(waited.expect("its completion").len(), 1);
        let mut queue = completions.into_inner();
        drop((a, b));
        assert!(queue.poll().expect("it can be polled").next().is_none());
        drop((queue, second));
        rig.end();
    }
}
