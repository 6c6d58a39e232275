//! Futures on tokio, on rxe: a hundred clients of an echo server, events, tables and paths, connections both
//! ways; futures that are dropped at random leave nothing behind.

#![allow(clippy::result_large_err)] // what was given to a step that failed comes back

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_verbs::aio::{self, Completions, Events};
use rdma_verbs::cm::{ConnectionParams, EventChannel};
use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{
    CmReason, CompletionQueue, Destination, Error, EventType, ExchangeProblem, GidDirectory, Pool,
    ProtectionDomain, QueuePair, RejectReason, RemoteAccess, Resolver, WcStatus,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::cm::{PATIENCE, Parts, Place, Server};
use super::connect::{Host, LONG, on_port, problem};
use super::directory::held;
use super::echo_example::{self, Options};
use super::pair::{Pair, wait_for};
use super::rig::{Rig, alone, ip, wait_until};

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn several_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Waits until it holds, as a task.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The echo server and its clients, on a device of the test's own.
fn echo(rig: &Rig, arguments: &[&str]) -> String {
    let at = format!("198.18.{}.1", rig.number());
    let all = [&["echo", "--both", "--timeout", "500", "--bind", &at], arguments].concat();
    let options = Options::try_parse_from(all).expect("arguments");
    let lines = echo_example::run(&options).expect("every message came back");
    println!("{arguments:?}: {lines}");
    lines
}

/// A hundred clients, of 20 messages or as many as `RDMA_TEST_MESSAGES` says; then fewer, whose futures are
/// dropped at random. Every buffer comes back, and descriptors, threads and memory are what they were.
#[test]
fn an_echo_server() {
    let messages = std::env::var("RDMA_TEST_MESSAGES").unwrap_or("20".into());
    let seed = std::env::var("RDMA_TEST_SEED").unwrap_or_else(|_| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("after 1970").as_nanos().to_string().chars().rev().take(9).collect()
    });
    println!("an_echo_server: RDMA_TEST_SEED={seed}");
    let _alone = alone();
    let rig = Rig::within_alone();
    rig.add_addresses(&rig.open(), 1);
    let dropped = ["--clients", "8", "--messages", "40", "--cancel", "--seed", &seed];
    echo(&rig, &["--clients", "4", "--messages", "20"]);
    echo(&rig, &dropped);
    let before = held();
    let lines = echo(&rig, &["--clients", "100", "--messages", &messages]);
    assert!(lines.contains("served 100 connections"), "{lines}");
    let between = held();
    let lines = echo(&rig, &[&dropped[..], &["--threads", "2"]].concat());
    assert!(lines.contains("8 connections, 320 messages"), "{lines}");
    // A thread that has been waited for may still be listed.
    wait_until("the runtime's threads are gone", || held().0 == before.0);
    let after = held();
    println!("threads, descriptors, KiB: before {before:?}, between {between:?}, after {after:?}");
    assert_eq!(after.1, before.1, "descriptors");
    assert!(between.2 < before.2 + 8192 && after.2 < between.2 + 4096, "memory");
}

/// Events reach whoever waits for them, and tables are kept true by a task.
#[test]
fn events_and_tables() {
    let rig = Rig::new();
    one_thread().block_on(async {
        let context = rig.open();
        let mut events = Events::new(&context).expect("a subscriber");
        let watched = rig.open();
        let watching = tokio::spawn(aio::watch(watched.clone()));
        let rows = watched.gids().cached().rows().len();
        let address = format!("198.18.{}.1/32", rig.number());
        for command in ["add", "del"] {
            ip(&["addr", command, &address, "dev", &rig.netdev]);
            loop {
                let event = timeout(LONG, events.next()).await.expect("an event").expect("it");
                if event.kind == EventType::GID_CHANGE {
                    break;
                }
            }
            let expected = if command == "add" { rows + 1 } else { rows };
            // Of both: whoever waits for events keeps the tables true as well.
            until("the table shows it", || watched.gids().cached().rows().len() == expected).await;
            assert_eq!(context.gids().cached().rows().len(), expected);
        }
        watching.abort();
        let _ = watching.await;
        drop((events, context, watched));
    });
}

/// A directory and a resolver, kept true by tasks; paths as futures: from memory, looked for, dropped, and of a
/// neighbour that does not answer.
#[test]
fn directories_and_paths() {
    let _alone = alone();
    let directory = GidDirectory::open().expect("a directory");
    let pair = Pair::new(&directory);
    pair.ask_fast();
    let resolver = Resolver::open(&directory).expect("a resolver");
    let runtime = one_thread();
    runtime.block_on(async {
        let watching = [
            tokio::spawn(aio::watch(directory.clone())),
            tokio::spawn(aio::watch(directory.clone())),
        ];
        let following = tokio::spawn(aio::watch(resolver.clone()));
        let there: IpAddr = [10, 77, pair.number, 9].into();
        ip(&["addr", "add", &format!("{there}/32"), "dev", &pair.near]);
        until("the directory has it", || directory.cached().by_ip(there).next().is_some()).await;
        let to = Destination::new(pair.ip(2));
        for _ in 0..50 {
            resolver.forget();
            let dropped = aio::resolve(&resolver, &to, LONG);
            let _ = timeout(Duration::ZERO, dropped).await;
        }
        let path = aio::resolve(&resolver, &to, LONG).await.expect("a path");
        assert_eq!(*path.gid.device, *pair.device);
        assert_eq!(resolver.start(&to).await.expect("from memory").gid, path.gid);
        let nobody = Destination::new(pair.ip(99));
        let error = aio::resolve(&resolver, &nobody, LONG).await.expect_err("nobody is there");
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        resolver.forget();
        let zero = aio::resolve(&resolver, &nobody, Duration::ZERO).await;
        assert!(matches!(zero, Err(Error::ResolveTimeout { .. })), "{zero:?}");
        // The task takes in what makes the memory wrong.
        ip(&["route", "add", "blackhole", &format!("{}/32", pair.ip(2))]);
        until("the path is forgotten", || resolver.cached(&to).is_none()).await;
        ip(&["route", "del", "blackhole", &format!("{}/32", pair.ip(2))]);
        for task in watching.into_iter().chain([following]) {
            task.abort();
            let _ = task.await;
        }
    });
    drop(runtime);
    wait_for(&directory, pair.ip(1), &pair.device);
    // They hold its device.
    drop((resolver, directory));
    drop(pair);
}

/// Connections over TCP: accepted and made as tasks, refused, timed out, and dropped half-way.
#[test]
fn connections_over_tcp() {
    let mut host = Host::new();
    let runtime = several_threads();
    let (mut client, mut server) = runtime.block_on(async {
        let mut listener = aio::Listener::new(host.listen(host.ip(1))).expect("a listener");
        let to = listener.local_addr();
        let early = timeout(Duration::from_millis(20), listener.accept()).await;
        assert!(early.is_err(), "{early:?}");
        // Half-way is the request, or anything before it.
        for wait in [0, 1, 5, 20] {
            let connecting = aio::connect(&host.connector, to, host.queue_pair(), on_port(), LONG);
            let _ = timeout(Duration::from_millis(wait), connecting).await;
        }
        // A queue pair that is kept: the server never answers.
        let patience = Duration::from_millis(200);
        let mut kept = host.connector.start(to, host.queue_pair(), on_port(), patience);
        let early = timeout(Duration::from_millis(20), kept.ended()).await;
        assert!(early.is_err(), "{early:?}");
        kept.ended().await.expect("its time is over");
        let failed = kept.finish().expect_err("nobody answered");
        assert!(matches!(problem(&failed.error), ExchangeProblem::TimedOut { .. }), "{failed}");
        // Those that were dropped have come, or are told of as errors; the listener goes on.
        let serve = async {
            loop {
                let Ok(incoming) = listener.accept().await else { continue };
                let server = incoming.start(host.queue_pair(), on_port(), LONG);
                if let Ok(connected) = server.await {
                    return connected;
                }
            }
        };
        let client = aio::connect(&host.connector, to, failed.queue_pair, on_port(), LONG);
        let both = timeout(LONG, async { tokio::join!(client, serve) }).await;
        let (client, server) = both.expect("in time");
        (client.expect("connected"), server)
    });
    // What came back of those that were dropped is looked at first.
    while host.cq.poll().expect("it can be polled").next().is_some() {}
    host.talk(&mut client, &mut server);
    drop((client, server));
    while host.cq.poll().expect("it can be polled").next().is_some() {}
    assert_eq!(host.pool.available(), host.pool.count(), "every receive came back");
}

/// Who is woken for an event of the connection manager may take in others at once: no lock is held by who wakes.
#[test]
fn a_waker_that_calls_back() {
    struct CallsBack(EventChannel, AtomicBool);
    impl Wake for CallsBack {
        fn wake(self: Arc<Self>) {
            self.0.process_events().expect("events");
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let server = Server::new();
    let back = Arc::new(CallsBack(server.channel.clone(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&back));
    one_thread().block_on(async {
        let mut request = pin!(server.listener.next_request());
        let early = request.as_mut().poll(&mut TaskContext::from_waker(&waker));
        assert!(early.is_pending(), "nobody has asked");
        let client = EventChannel::new().expect("a channel");
        let id = client.resolve(server.at(), PATIENCE).expect("resolved");
        let parts = Parts::new(&server.context);
        client.share(&server.context);
        let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        let asked = id.connect(ready, &ConnectionParams::new()).expect("asked");
        until("it is woken", || back.1.load(Ordering::Relaxed)).await;
        let request = timeout(LONG, request).await.expect("in time").expect("a request");
        drop((request, asked));
    });
}

/// The connection manager's steps as futures; one channel for both ends, and both ends hear that it ends.
#[test]
fn connections_of_the_manager() {
    let server = Server::new();
    let parts = Parts::new(&server.context);
    several_threads().block_on(async {
        let client = EventChannel::new().expect("a channel");
        client.share(&server.context);
        let resolve = async || {
            let id = client.id().expect("an id").resolve_addr(server.at(), PATIENCE);
            let id = id.expect("begun").await.expect("resolved");
            id.resolve_route(PATIENCE).expect("begun").await.expect("a route")
        };
        let dropped = timeout(Duration::from_millis(20), server.listener.next_request()).await;
        assert!(dropped.is_err(), "{dropped:?}");
        for round in 0..10 {
            let id = resolve().await;
            let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
            let params = ConnectionParams::new();
            let connecting = id.connect(ready, &params).expect("asked");
            let serve = async {
                let request = server.listener.next_request().await.expect("a request");
                let ready = request.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
                request.accept(ready, &params).expect("accepted").within(PATIENCE).await
            };
            let (ours, theirs) = tokio::join!(connecting, serve);
            let (ours, theirs) = (ours.expect("connected"), theirs.expect("established"));
            let ended = timeout(Duration::ZERO, ours.connection.disconnected()).await;
            assert!(ended.is_err(), "{ended:?}");
            let (first, second) = match round % 2 {
                0 => (&ours.connection, &theirs.connection),
                _ => (&theirs.connection, &ours.connection),
            };
            let all = async {
                // Two wait for one.
                tokio::join!(first.disconnected(), first.disconnected(), async {
                    first.disconnect()?;
                    second.disconnected().await?;
                    // It agrees.
                    second.disconnect()
                })
            };
            let ended = timeout(PATIENCE, all).await.expect("all hear of it");
            assert!(matches!(ended, (Ok(()), Ok(()), Ok(()))), "{ended:?}");
        }
        // Refused, and not answered in time: the queue pair comes back.
        let id = resolve().await;
        let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        let connecting = id.connect(ready, &ConnectionParams::new()).expect("asked");
        let request = server.listener.next_request().await.expect("a request");
        assert!(timeout(Duration::from_millis(20), connecting.ended()).await.is_err());
        request.reject(b"no").expect("refused");
        let failed = connecting.within(PATIENCE).await.expect_err("refused");
        let Error::Cm(fault) = &failed.error else { panic!("{failed}") };
        let consumer = RejectReason::CONSUMER_DEFINED;
        let refused =
            matches!(&fault.reason, CmReason::Rejected { reason, .. } if *reason == consumer);
        assert!(refused, "{fault}");
        let id = resolve().await;
        let connecting = id.connect(failed.back, &ConnectionParams::new()).expect("asked");
        let begun = Instant::now();
        let failed = connecting.within(Duration::from_millis(50)).await.expect_err("no answer");
        assert!(begun.elapsed() >= Duration::from_millis(50));
        let Error::Cm(fault) = &failed.error else { panic!("{failed}") };
        assert!(matches!(fault.reason, CmReason::TimedOut { .. }), "{fault}");
        drop(server.listener.next_request().await.expect("its request"));
        // Dropped at random moments.
        for wait in 0..20 {
            let id = resolve().await;
            let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
            let connecting = id.connect(ready, &ConnectionParams::new()).expect("asked");
            let _ = timeout(Duration::from_micros(wait * 300), connecting.into_future()).await;
            drop(timeout(PATIENCE, server.listener.next_request()).await.expect("it came"));
        }
        let place: &Place = server.place;
        assert_eq!(server.at().ip(), place.ip());
    });
}

/// Messages to a task that waits, on a channel of its own: what the interposer cannot show is that the kernel
/// tells.
#[test]
fn completions_that_wake_a_task() {
    let rig = Rig::new();
    let ground = super::rc::Ground::new(&rig);
    one_thread().block_on(async {
        let mut completions = Completions::new(&ground.context, 256).expect("a CQ");
        let (mut other, pool) = (ground.cq(256), Pool::new(&ground.pd, 64, 64).expect("a pool"));
        let a = ground.queue_pair(&other, 64);
        let b = made_on(&ground.pd, &completions, &ground);
        let (mut a, mut b) = super::rc::join(a, b, &ground.options());
        for count in [1, 15, 16, 17, 32] {
            for _ in 0..count {
                b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
            }
            // Once the task sleeps.
            let sender = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                for _ in 0..count {
                    let send = Send::new(Inline(b"x")).signaled();
                    a.send_queue().post(send).expect("room");
                }
                a
            });
            let mut came = 0;
            while came < count {
                let batch = timeout(LONG, completions.next_batch()).await.expect("in time");
                let mut batch = batch.expect("completions");
                while let Some(completion) = batch.next() {
                    assert_eq!(completion.status(), WcStatus::SUCCESS);
                    came += 1;
                }
            }
            a = sender.join().expect("no panic");
            super::rc::completions(&mut other, count);
        }
        assert_eq!(pool.available(), pool.count());
    });
}

fn made_on(
    pd: &ProtectionDomain,
    completions: &Completions,
    ground: &super::rc::Ground,
) -> QueuePair<rdma_verbs::Init> {
    let queue: &CompletionQueue = completions.queue();
    let builder = QueuePair::rc(pd, queue, queue).send_depth(64).recv_depth(64);
    let init = rdma_verbs::InitOptions::new(ground.row.port()).access(super::rc::everything());
    builder.build().expect("a queue pair").init(&init).expect("to INIT")
}

/// The device is taken away while a task waits for its completions. rxe goes when its last context is closed, and
/// goes on working until then: the directory tells, messages still come, what was posted comes back, and futures
/// that are polled later wait, or say that the device is gone.
#[test]
fn a_device_that_is_taken_away() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let ground = super::rc::Ground::new(&rig);
    let pool = Pool::new(&ground.pd, 64, 16).expect("a pool");
    let runtime = one_thread();
    let mut removal = runtime.block_on(async {
        let directory = GidDirectory::open().expect("a directory");
        let watching = tokio::spawn(aio::watch(directory.clone()));
        let tables = tokio::spawn(aio::watch(ground.context.clone()));
        let mut events = Events::new(&ground.context).expect("a subscriber");
        let mut completions = Completions::new(&ground.context, 256).expect("a CQ");
        let make = || made_on(&ground.pd, &completions, &ground);
        let (mut a, mut b) = super::rc::join(make(), make(), &ground.options());
        for _ in 0..4 {
            b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
        }
        let mut command = std::process::Command::new("/bin/rdma");
        let removal = command.args(["link", "del", &rig.device]).spawn().expect("/bin/rdma");
        // Waited for all the while, and nothing comes of it.
        tokio::select! {
            biased;
            batch = completions.next_batch() => panic!("nothing was sent: {:?}", batch.map(drop)),
            () = until("the directory is told", || directory.cached().device(&rig.device).is_none()) => {}
        }
        a.send_queue().post(Send::new(Inline(b"x")).signaled()).expect("room");
        assert_eq!(taken(&mut completions, 2).await, [WcStatus::SUCCESS; 2]);
        drop((a, b));
        assert_eq!(taken(&mut completions, 3).await, [WcStatus::WR_FLUSH_ERR; 3]);
        assert_eq!(pool.available(), pool.count());
        // Nothing is left that could come, for whoever asks.
        let batch = timeout(Duration::from_millis(20), completions.next_batch()).await.map(|_| ());
        assert!(batch.is_err(), "{batch:?}");
        while let Ok(event) = timeout(Duration::from_millis(20), events.next()).await {
            let Err(error) = event else { continue };
            assert!(matches!(error, Error::DeviceFatal { .. }), "{error}");
            break;
        }
        for task in [watching, tables] {
            task.abort();
            let _ = task.await;
        }
        removal
    });
    drop((ground, pool));
    // The runtime may outlive it all.
    wait_until("the removal ends", || removal.try_wait().expect("a child").is_some());
    assert!(removal.wait().expect("a child").success());
    let (_, _) = rig.leave();
}

/// How so many completions ended; their buffers are back.
async fn taken(completions: &mut Completions, count: usize) -> Vec<WcStatus> {
    let mut ends = Vec::new();
    while ends.len() < count {
        let batch = timeout(LONG, completions.next_batch()).await.expect("in time");
        let mut batch = batch.expect("completions");
        while let Some(completion) = batch.next() {
            ends.push(completion.status());
        }
    }
    ends
}
