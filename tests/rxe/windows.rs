//! Memory windows on rxe, and atomics of several queue pairs on one word.

use std::sync::atomic::Ordering;
use std::thread;

use rdma_verbs::wr::{Bind, FetchAdd, LocalInvalidate, Read, Receive, Send, Write};
use rdma_verbs::{
    Capability, CompletionQueue, Error, Exposed, Memory, MemoryWindow, QueuePair, RemoteAccess,
    RemoteSlice, Rts, SendRequest, WcOpcode, WcStatus, WindowType,
};

use super::rc::{Ground, Pair, Seen, bytes, completions, everything, join};
use super::rig::Rig;

const OK: WcStatus = WcStatus::SUCCESS;

/// Memory that windows can be bound on, and whose own key grants nothing.
fn exposed(pair: &Pair) -> Exposed {
    Exposed::with_windows(&pair.pd, 4096, RemoteAccess::default()).expect("memory")
}

fn window_of(seen: Seen) -> MemoryWindow {
    assert_eq!(seen.status, OK, "{seen:?}");
    match seen.memory.into_iter().next() {
        Some(Memory::Window(window)) => window,
        other => panic!("no window in {other:?}"),
    }
}

/// Posts it, and gives the window back that its completion gives.
fn done<R>(cq: &mut CompletionQueue, qp: &mut QueuePair<Rts>, request: R) -> MemoryWindow
where
    R: SendRequest + std::fmt::Debug,
{
    qp.send_queue().post(request).expect("it is taken");
    window_of(completions(cq, 1).remove(0))
}

/// How a write from `a` to there ends.
fn written(pair: &mut Pair, to: RemoteSlice, text: &[u8]) -> WcStatus {
    let write = Write::new(pair.filled(text), to).signaled();
    pair.a.send_queue().post(write).expect("room");
    completions(&mut pair.cq, 1)[0].status
}

#[test]
fn a_window_of_type_2() {
    let rig = Rig::new();
    bound_invalidated_and_bound_again(Pair::new(&rig));
}

pub(crate) fn bound_invalidated_and_bound_again(mut pair: Pair) {
    let memory = exposed(&pair);
    let window = pair.b.memory_window().expect("rxe has them");
    let part = memory.range(64, 64).expect("inside");
    let bind = Bind::new(window, part.clone(), everything());
    let told = bind.remote().expect("its key is known");
    let window = done(&mut pair.cq, &mut pair.b, bind);
    assert_eq!(window.remote(), Some(told));
    assert_eq!(written(&mut pair, told, b"through a window"), OK);
    let mut into = pair.pool.take().expect("a buffer");
    into.set_len(16).expect("it fits");
    pair.a.send_queue().post(Read::new(into, told)).expect("room");
    let seen = completions(&mut pair.cq, 1);
    assert_eq!((seen[0].status, bytes(&seen[0].memory[0])), (OK, &b"through a window"[..]));
    drop(part);
    let held = memory.revoke().expect_err("a window is bound on it");
    assert!(matches!(held.error, Error::InUse { .. }), "{held}");
    let memory = held.exposed;
    // Bound again, elsewhere and with another key.
    let window = done(&mut pair.cq, &mut pair.b, LocalInvalidate::new(window));
    assert!(window.remote().is_none() && window.is_usable());
    let part = memory.range(128, 8).expect("inside");
    let window = done(&mut pair.cq, &mut pair.b, Bind::new(window, part, everything()));
    let again = window.remote().expect("it is bound");
    assert_eq!((again.rkey(), again.len()), (told.rkey().next_tag(), 8));
    assert_eq!(written(&mut pair, again, b"8 bytes!"), OK);
    assert_eq!(written(&mut pair, told, b"x"), WcStatus::REM_ACCESS_ERR, "its old key");
    drop(window);
    let plain = memory.revoke().expect("no window is bound on it");
    assert_eq!((&plain[64..80], &plain[128..136]), (&b"through a window"[..], &b"8 bytes!"[..]));
    assert_eq!(pair.pd.context().leaks(), 0);
}

#[test]
fn what_this_side_invalidates_cannot_be_reached() {
    invalidated(|pair, window| Some(done(&mut pair.cq, &mut pair.b, LocalInvalidate::new(window))));
}

#[test]
fn what_the_peer_invalidates_cannot_be_reached() {
    invalidated(|pair, mut window| {
        let key = window.remote().expect("it is bound").rkey();
        let receive = Receive::new(pair.pool.take().expect("a buffer"));
        pair.b.recv_queue().post(receive).expect("room");
        let send = Send::new(()).invalidate(key).signaled();
        pair.a.send_queue().post(send).expect("room");
        let (mut count, mut told) = (0, None);
        super::rig::wait_until("the message comes", || {
            let mut drain = pair.cq.poll().expect("it can be polled");
            while let Some(completion) = drain.next() {
                assert!(completion.is_success(), "{completion:?}");
                told = told.or(completion.invalidated());
                count += 1;
            }
            count == 2
        });
        assert_eq!(told, Some(key));
        assert!(window.note_invalidated(key));
        Some(window)
    });
}

#[test]
fn what_a_dropped_window_granted_cannot_be_reached() {
    invalidated(|_, window| {
        drop(window);
        None
    });
}

/// Ends the grant of a window in this way, which gives the window back or not.
fn invalidated(end: impl FnOnce(&mut Pair, MemoryWindow) -> Option<MemoryWindow>) {
    let rig = Rig::new();
    let mut pair = Pair::new(&rig);
    let memory = exposed(&pair);
    let window = pair.b.memory_window().expect("rxe has them");
    let part = memory.range(0, 64).expect("inside");
    let window = done(&mut pair.cq, &mut pair.b, Bind::new(window, part, everything()));
    let mut remote = window.remote().expect("it is bound");
    assert_eq!(written(&mut pair, remote, b"before"), OK);
    if let Some(window) = end(&mut pair, window) {
        // It can be bound again, and then be ended as well.
        let part = memory.range(64, 64).expect("inside");
        let window = done(&mut pair.cq, &mut pair.b, Bind::new(window, part, everything()));
        remote = window.remote().expect("it is bound");
        assert_eq!(written(&mut pair, remote, b"again"), OK);
        drop(done(&mut pair.cq, &mut pair.b, LocalInvalidate::new(window)));
    }
    // Nothing is bound on it, and nobody reaches it.
    let plain = memory.revoke().expect("it can be had");
    assert_eq!(written(&mut pair, remote, b"after"), WcStatus::REM_ACCESS_ERR);
    assert_eq!(&plain[..6], b"before");
    assert_eq!(pair.pd.context().leaks(), 0);
}

#[test]
fn a_window_of_type_1() {
    let rig = Rig::new();
    let mut pair = Pair::new(&rig);
    let memory = exposed(&pair);
    let window = MemoryWindow::type_1(&pair.pd).expect("rxe has them");
    assert_eq!(window.window_type(), WindowType::TYPE_1);
    let part = memory.range(0, 64).expect("inside");
    let window = done(&mut pair.cq, &mut pair.b, Bind::new(window, part, everything()));
    let first = window.remote().expect("it is bound");
    assert_eq!(written(&mut pair, first, b"one"), OK);
    // Bound anew while it is bound, through the other queue pair; and then to nothing, twice over.
    let part = memory.range(64, 64).expect("inside");
    let mut window = done(&mut pair.cq, &mut pair.a, Bind::new(window, part, everything()));
    for _ in 0..2 {
        let second = window.remote().expect("it is bound");
        assert_ne!(first.rkey(), second.rkey());
        assert_eq!(written(&mut pair, second, b"two"), OK);
        window = done(&mut pair.cq, &mut pair.b, LocalInvalidate::new(window));
        assert!(window.remote().is_none());
        let part = memory.range(64, 64).expect("inside");
        window = done(&mut pair.cq, &mut pair.b, Bind::new(window, part, everything()));
    }
    let window = done(&mut pair.cq, &mut pair.b, LocalInvalidate::new(window));
    let plain = memory.revoke().expect("nothing is bound on it");
    assert_eq!((&plain[..3], &plain[64..67]), (&b"one"[..], &b"two"[..]));
    assert_eq!(written(&mut pair, first, b"x"), WcStatus::REM_ACCESS_ERR);
    drop(window);
    assert_eq!(pair.pd.context().leaks(), 0);
}

#[test]
fn bound_and_told_with_one_doorbell() {
    let rig = Rig::new();
    let mut pair = Pair::new(&rig);
    let memory = exposed(&pair);
    let receive = Receive::new(pair.pool.take().expect("a buffer")).wr_id(3);
    pair.a.recv_queue().post(receive).expect("room");
    let window = pair.b.memory_window().expect("rxe has them");
    let part = memory.range(0, 64).expect("inside");
    let bind = Bind::new(window, part, RemoteAccess::WRITE).wr_id(1);
    let remote = bind.remote().expect("its key is known");
    let message = pair.filled(&remote.rkey().get().to_be_bytes());
    let mut batch = pair.b.send_queue().batch::<2>();
    batch.push(bind).expect("room");
    batch.push(Send::new(message).wr_id(2).signaled()).expect("room");
    batch.post().expect("posted");
    let mut seen = completions(&mut pair.cq, 3);
    assert_eq!(bytes(&seen[2].memory[0]), remote.rkey().get().to_be_bytes());
    assert_eq!(seen[0].opcode, WcOpcode::BIND_MW);
    let window = window_of(seen.remove(0));
    assert_eq!(written(&mut pair, remote, b"told"), OK);
    // Only what was granted.
    let mut into = pair.pool.take().expect("a buffer");
    into.set_len(4).expect("it fits");
    pair.a.send_queue().post(Read::new(into, remote)).expect("room");
    assert_eq!(completions(&mut pair.cq, 1)[0].status, WcStatus::REM_ACCESS_ERR);
    drop((window, memory));
    assert_eq!(pair.pd.context().leaks(), 0);
}

/// On a real kernel, with windows bound and being bound: whoever goes first.
#[test]
fn windows_and_what_they_are_of_in_any_order() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    for order in 0..24 {
        let mut cq = ground.cq(64);
        let (a, b) = (ground.queue_pair(&cq, 16), ground.queue_pair(&cq, 16));
        let (a, mut b) = join(a, b, &ground.options());
        let memory = Exposed::with_windows(&ground.pd, 4096, everything()).expect("memory");
        let part = || memory.range(0, 64).expect("inside");
        let first = b.memory_window().expect("rxe has them");
        let first = done(&mut cq, &mut b, Bind::new(first, part(), everything()));
        let one = MemoryWindow::type_1(&ground.pd).expect("rxe has them");
        let one = done(&mut cq, &mut b, Bind::new(one, part(), everything()));
        for _ in 0..4 {
            let flying = b.memory_window().expect("rxe has them");
            let bind = Bind::new(flying, part(), everything());
            b.send_queue().post(bind).expect("room");
        }
        let mut left: Vec<Box<dyn std::any::Any>> =
            vec![Box::new((a, b)), Box::new(cq), Box::new(memory), Box::new((first, one))];
        let mut number = order;
        for base in (1..=4).rev() {
            drop(left.remove(number % base));
            number /= base;
        }
        assert_eq!(ground.context.leaks(), 0, "{order}");
    }
}

#[test]
fn what_rxe_can_do() {
    let rig = Rig::new();
    let context = rig.open();
    let can = context.capabilities();
    let has = [
        Capability::Atomics,
        Capability::MemoryWindow1,
        Capability::MemoryWindow2B,
        Capability::Invalidate,
        Capability::SharedReceiveQueues,
        Capability::Multicast,
    ];
    let lacks = [
        Capability::AtomicsWithCpu,
        Capability::CompletionTimestamps,
        Capability::DeviceMemory,
        Capability::TagMatching,
        Capability::PacketPacing,
    ];
    assert!(has.iter().all(|what| can.contains(*what)), "{can:?}");
    assert!(!lacks.iter().any(|what| can.contains(*what)), "{can:?}");
    let error = context.require(Capability::CompletionTimestamps).expect_err("it has none");
    let name = context.device().name();
    assert_eq!(error.to_string(), format!("{name} has no completion timestamps"));
}

/// Each addition counts, whichever queue pair it came by.
#[test]
fn atomics_of_two_queue_pairs_add_up() {
    const EACH: u64 = 300;
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let memory = Exposed::new(&ground.pd, 64, everything()).expect("memory");
    let word = memory.remote().slice(8, 8).expect("inside");
    let pool = rdma_verbs::Pool::new(&ground.pd, 8, 16).expect("a pool");
    let mut before: Vec<u64> = thread::scope(|scope| {
        let adders: Vec<_> = [1_u64, 1000]
            .into_iter()
            .map(|add| {
                let mut cq = ground.cq(64);
                let (a, b) = (ground.queue_pair(&cq, 8), ground.queue_pair(&cq, 8));
                let (mut a, b) = join(a, b, &ground.options());
                let pool = &pool;
                scope.spawn(move || {
                    let mut before = Vec::new();
                    for _ in 0..EACH {
                        let into = pool.take().expect("a buffer");
                        a.send_queue().post(FetchAdd::new(into, word, add)).expect("room");
                        let seen = completions(&mut cq, 1);
                        assert_eq!(seen[0].status, OK, "{seen:?}");
                        let there = bytes(&seen[0].memory[0]).try_into().expect("8 bytes");
                        before.push(u64::from_ne_bytes(there));
                    }
                    drop(b);
                    before
                })
            })
            .collect();
        adders.into_iter().flat_map(|adder| adder.join().expect("it ends")).collect()
    });
    assert_eq!(memory.atomic_u64(8).expect("inside").load(Ordering::Acquire), EACH * 1001);
    before.sort_unstable();
    before.dedup();
    assert_eq!(before.len() as u64, 2 * EACH, "no two found the same");
}
