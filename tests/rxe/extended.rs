//! libibverbs' extended calls on rxe, as far as they are right there: posting with one entry a send; polling since
//! rdma-core 55, which one of the two guests has. What they give is held against what the classic calls give, by the
//! same tests.

use rdma_verbs::wr::{Bind, Inline, Receive, Send, Write};
use rdma_verbs::{
    Calls, Capability, CompletionQueue, Error, Exposed, InitOptions, Memory, Notify, QueuePair,
    Refusal, WcStatus,
};

use super::rc::{self, Ground, Pair, completions};
use super::rig::Rig;
use super::{ud, windows};

/// The rdma-core of this guest, by the name of its library's file.
fn rdma_core() -> u32 {
    let folder = std::fs::read_dir("/usr/lib/x86_64-linux-gnu").expect("a folder");
    let names = folder.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut versions = names.filter_map(|name| {
        let name = name.ok()?;
        name.strip_prefix("libibverbs.so.1.")?.split('.').nth(1)?.parse().ok()
    });
    versions.next().expect("libibverbs is there, with its version")
}

/// How a completion queue can be polled here at best.
fn polling() -> Calls {
    if rdma_core() >= 55 { Calls::Extended } else { Calls::Classic }
}

/// Every combination that is right here but the one that other tests try.
fn combinations() -> Vec<(Calls, Calls)> {
    let mut all = vec![(Calls::Classic, Calls::Extended)];
    if polling() == Calls::Extended {
        all.extend([(Calls::Extended, Calls::Classic), (Calls::Extended, Calls::Extended)]);
    }
    all
}

fn pair(rig: &Rig, (polled, posted): (Calls, Calls)) -> Pair {
    let pair = Pair::by(rig, polled, posted, 1);
    assert_eq!((pair.cq.calls(), pair.a.calls()), (polled, posted));
    pair
}

#[test]
fn messages_by_each_kind_of_call() {
    for calls in combinations() {
        let rig = Rig::new();
        rc::messages(pair(&rig, calls));
    }
}

#[test]
fn memory_of_the_peer_by_each_kind_of_call() {
    for calls in combinations() {
        let rig = Rig::new();
        rc::reads_writes_and_atomics(pair(&rig, calls));
    }
}

#[test]
fn windows_by_each_kind_of_call() {
    for calls in combinations() {
        let rig = Rig::new();
        windows::bound_invalidated_and_bound_again(pair(&rig, calls));
    }
}

#[test]
fn datagrams_by_each_kind_of_call() {
    for (polled, posted) in combinations() {
        let rig = Rig::new();
        let ground = ud::Ground::new(&rig).by(polled, posted);
        ud::messages(&rig, ground);
    }
}

/// rxe takes no local invalidates on this transport, which its kernel has not either: that must not be in the way.
#[test]
fn an_unreliable_connection() {
    for (polled, posted) in combinations() {
        let rig = Rig::new();
        let ground = Ground::new(&rig);
        let cq = CompletionQueue::builder(&ground.context, 256).calls(polled).build();
        let mut cq = cq.expect("a CQ");
        let make = || {
            let made = QueuePair::uc(&ground.pd, &cq, &cq).max_inline(64).calls(posted).build();
            let init = InitOptions::new(ground.row.port()).access(rc::everything());
            made.expect("a queue pair").init(&init).expect("to INIT")
        };
        let (a, mut b) = (make(), make());
        b.recv_queue().post(Receive::new(()).wr_id(1)).expect("room");
        let options = ground.options();
        let at_a = a.endpoint(&options).expect("an address");
        let at_b = b.endpoint(&options).expect("an address");
        let mut a = a.connect(&at_b, &options).expect("connected");
        let mut b = b.connect(&at_a, &options).expect("connected");
        let memory = Exposed::with_windows(&ground.pd, 64, Default::default()).expect("memory");
        let bind = Bind::new(
            b.memory_window().expect("rxe has them"),
            memory.range(0, 64).expect("all"),
            rc::everything(),
        );
        let remote = bind.remote().expect("its key is known");
        b.send_queue().post(bind.wr_id(2)).expect("room");
        let mut bound = completions(&mut cq, 1);
        assert_eq!((bound[0].wr_id, bound[0].status), (2, WcStatus::SUCCESS));
        let Some(Memory::Window(window)) = bound.remove(0).memory.pop() else { panic!("a window") };
        a.send_queue().post(Write::new(Inline(b"written"), remote).wr_id(3)).expect("room");
        a.send_queue().post(Send::new(()).wr_id(4).signaled()).expect("room");
        let seen = completions(&mut cq, 3);
        let all: Vec<_> = seen.iter().map(|seen| (seen.wr_id, seen.status)).collect();
        assert_eq!(all, [1, 3, 4].map(|wr_id| (wr_id, WcStatus::SUCCESS)));
        drop((seen, window, a, b));
        assert_eq!(&memory.revoke().expect("nothing is bound")[..7], b"written");
    }
}

/// Far more than a batch of the poll and the ring have room for, and a queue pair that dies.
#[test]
fn many_in_batches_and_the_end() {
    for calls in combinations() {
        let rig = Rig::new();
        let mut pair = pair(&rig, calls);
        for _ in 0..60 {
            let mut receives = pair.b.recv_queue().batch::<8>();
            for _ in 0..8 {
                let buffer = pair.pool.take().expect("a buffer");
                receives.push(Receive::new(buffer)).expect("room");
            }
            receives.post().expect("room");
            let filled: Vec<_> = (0..8).map(|_| pair.filled(b"one of many")).collect();
            let mut sends = pair.a.send_queue().batch::<8>();
            for buffer in filled {
                sends.push(Send::new(buffer)).expect("room");
            }
            sends.post().expect("room");
            let seen = completions(&mut pair.cq, 16);
            assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
        }
        let left = Receive::new(pair.pool.take().expect("a buffer")).wr_id(9);
        pair.b.recv_queue().post(left).expect("room");
        pair.b.close().expect("to the error state");
        let seen = completions(&mut pair.cq, 1);
        assert_eq!((seen[0].wr_id, seen[0].status), (9, WcStatus::WR_FLUSH_ERR));
        drop(seen);
        drop((pair.a, pair.b));
        drop(pair.cq.poll().expect("it can be polled"));
        assert_eq!((pair.pool.available(), pair.cq.strays()), (64, 0));
    }
}

/// A queue that is polled by the extended calls is waited for as any other.
#[test]
fn notified_and_polled() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let channel = rdma_verbs::CompletionChannel::new(&ground.context).expect("a channel");
    let builder = CompletionQueue::builder(&ground.context, 64).channel(&channel);
    let mut cq = builder.calls(polling()).build().expect("a CQ");
    let queue_pair = || ground.queue_pair_by(&cq, 8, Calls::Extended, 1);
    let (mut a, mut b) = rc::join(queue_pair(), queue_pair(), &ground.options());
    for round in 0..20 {
        b.recv_queue().post(Receive::new(()).wr_id(round)).expect("room");
        a.send_queue().post(Send::new(()).signaled()).expect("room");
        let mut left = 2;
        while left > 0 {
            let mut drain =
                cq.wait(Notify::Any, std::time::Duration::from_secs(20)).expect("a wait");
            assert!(!drain.is_empty(), "round {round}: nothing came");
            while let Some(completion) = drain.next() {
                completion.result().expect("carried out");
                left -= 1;
            }
        }
    }
}

/// What is known to be wrong is not done when it is asked for, and not chosen when that is left to the crate.
#[test]
fn calls_that_are_known_to_be_wrong() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let name = ground.context.device().name().to_owned();
    let polled = |calls| CompletionQueue::builder(&ground.context, 16).calls(calls).build();
    let mut chosen = polled(Calls::WhereKnownGood).expect("a CQ");
    assert_eq!(chosen.calls(), polling());
    if polling() == Calls::Classic {
        let error = polled(Calls::Extended).expect_err("it would tell what is not there");
        let expected = format!(
            "{name} has no extended calls to poll by that are right in this version of its provider"
        );
        assert_eq!(error.to_string(), expected);
    }
    // Lists of entries were wrong until 64, which no guest has.
    assert!(rdma_core() < 64, "look again");
    let posted = |calls, entries| {
        QueuePair::rc(&ground.pd, &chosen, &chosen)
            .send_depth(2)
            .recv_depth(2)
            .max_send_sge(entries)
            .calls(calls)
            .build()
    };
    assert_eq!(posted(Calls::WhereKnownGood, 1).expect("one").calls(), Calls::Extended);
    assert_eq!(posted(Calls::WhereKnownGood, 2).expect("one").calls(), Calls::Classic);
    let error = posted(Calls::Extended, 2).expect_err("its length would be wrong");
    assert!(matches!(error, Error::NotSupported { .. }), "{error}");
    assert!(chosen.poll().expect("it can be polled").next().is_none());
    assert_eq!(chosen.room(), chosen.size(), "no room was taken by what was not made");
}

#[test]
fn times_of_a_device_without_a_clock() {
    let rig = Rig::new();
    let context = rig.open();
    let name = context.device().name();
    let error = CompletionQueue::builder(&context, 16).timestamps(true).build().expect_err("none");
    let Error::Unsupported { what: Capability::CompletionTimestamps, .. } = error else {
        panic!("{error}")
    };
    let error = context.device_time().expect_err("it has no clock");
    assert_eq!(error.to_string(), format!("{name} has no clock that can be read"));
}

/// What the queue pair was not made for is refused before the device is asked, and its memory comes back.
#[test]
fn more_than_it_was_made_for() {
    let rig = Rig::new();
    let mut pair = pair(&rig, (Calls::Classic, Calls::Extended));
    let two = (pair.filled(b"one"), pair.filled(b"two"));
    let refused = pair.a.send_queue().post(Send::new(two)).expect_err("two entries");
    assert!(matches!(refused.refusal, Refusal::TooManyEntries { .. }), "{refused}");
    drop(refused);
    assert_eq!(pair.pool.available(), 64);
}
