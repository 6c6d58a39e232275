//! Memory windows, and what a device lacks, on the interposer's devices. Runs on any machine.

mod interposed;

use std::thread;
use std::time::Duration;

use interposed::rig::{Rig, Seen, assert_nothing_is_left, everything, open, poll, wait_until};
use interposed::{faults, interposed};
use rdma_verbs::wr::{Bind, FetchAdd, LocalInvalidate, Read, Receive, Send, Write};
use rdma_verbs::{
    Capability, Errno, Error, Exposed, Memory, MemoryWindow, ProtectionDomain, QueuePair, Refusal,
    RemoteAccess, RemoteSlice, Rts, SendRequest, WcOpcode, WcStatus, WindowFault, WindowType,
};

const OK: WcStatus = WcStatus::SUCCESS;

/// Memory that windows can be bound on, and whose own key grants nothing.
fn exposed(rig: &Rig) -> Exposed {
    Exposed::with_windows(&rig.pd, 4096, RemoteAccess::default()).expect("memory")
}

/// Posts it, and gives the window back that its completion gives.
fn done<R>(rig: &mut Rig, qp: &mut QueuePair<Rts>, request: R) -> MemoryWindow
where
    R: SendRequest + std::fmt::Debug,
{
    qp.send_queue().post(request).expect("it is taken");
    let mut seen = rig.completions(1);
    assert_eq!(seen[0].status, OK);
    window_of(&mut seen[0])
}

fn window_of(seen: &mut Seen) -> MemoryWindow {
    match seen.memory.pop() {
        Some(Memory::Window(window)) => window,
        other => panic!("no window in {other:?}"),
    }
}

fn fault(refusal: Refusal) -> WindowFault {
    match refusal {
        Refusal::Window { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

/// How a write of some bytes there ends.
fn written(rig: &mut Rig, qp: &mut QueuePair<Rts>, to: RemoteSlice, bytes: &[u8]) -> WcStatus {
    let write = Write::new(rig.filled(bytes), to).signaled();
    qp.send_queue().post(write).expect("room");
    rig.completions(1)[0].status
}

interposed! {
    fn a_window_of_type_2_from_bind_to_bind() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let memory = exposed(&rig);
        let window = b.memory_window().expect("a window");
        assert_eq!((window.window_type(), window.remote()), (WindowType::TYPE_2, None));
        let part = memory.range(64, 16).expect("inside");
        let bind = Bind::new(window, part, RemoteAccess::WRITE).wr_id(7);
        let told = bind.remote().expect("it is known");
        let mut window = done(&mut rig, &mut b, bind);
        let remote = window.remote().expect("it is bound");
        assert_eq!((remote, remote.len(), window.access()), (told, 16, Some(RemoteAccess::WRITE)));
        assert_eq!(written(&mut rig, &mut a, remote, b"through a window"), OK);
        let mut there = [0; 16];
        memory.read(64, &mut there).expect("inside");
        assert_eq!(&there, b"through a window");
        // It is held by the window.
        let memory = memory.revoke().expect_err("a window is bound on it");
        assert!(matches!(memory.error, Error::InUse { .. }), "{memory}");
        let memory = memory.exposed;
        let mut last = remote.rkey();
        // As many as there are tags, but one.
        for round in 0..254 {
            window = done(&mut rig, &mut b, LocalInvalidate::new(window));
            assert!(window.remote().is_none() && window.is_usable());
            let part = memory.range(round, 8).expect("inside");
            window = done(&mut rig, &mut b, Bind::new(window, part, everything()));
            let next = window.remote().expect("it is bound");
            assert_eq!(next.rkey(), last.next_tag());
            last = next.rkey();
            assert_eq!(written(&mut rig, &mut a, next, b"8 bytes!"), OK);
        }
        // An old key.
        assert_eq!(written(&mut rig, &mut a, remote, b"x"), WcStatus::REM_ACCESS_ERR);
        drop(window);
        memory.revoke().expect("no window is bound on it");
        drop((a, b));
        rig.end();
    }

    fn what_a_window_does_not_grant() {
        let mut rig = Rig::new();
        let memory = exposed(&rig);
        // Rights, bounds, and another queue pair than that of the window's.
        for case in 0..4 {
            let (mut a, mut b) = rig.pair();
            let (mut c, d) = rig.pair();
            let window = b.memory_window().expect("a window");
            let rights = if case == 0 { RemoteAccess::READ } else { RemoteAccess::WRITE };
            let part = memory.range(64, 16).expect("inside");
            let window = done(&mut rig, &mut b, Bind::new(window, part, rights));
            let remote = window.remote().expect("it is bound");
            let status = match case {
                1 => {
                    let beyond = RemoteSlice::new(remote.address() + 8, 16, remote.rkey());
                    written(&mut rig, &mut a, beyond, &[0; 16])
                }
                2 => written(&mut rig, &mut c, remote, b"x"),
                3 => {
                    let mut word = rig.take();
                    word.set_len(8).expect("it fits");
                    a.send_queue().post(FetchAdd::new(word, remote, 1)).expect("room");
                    rig.completions(1)[0].status
                }
                _ => written(&mut rig, &mut a, remote, b"x"),
            };
            assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{case}");
            drop((a, b, c, d, window));
            while rig.cq.room() < rig.cq.size() {
                poll(&mut rig.cq);
            }
        }
        drop(memory);
        rig.end();
    }

    fn a_window_of_type_1() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let (mut c, d) = rig.pair();
        let memory = exposed(&rig);
        let window = MemoryWindow::type_1(&rig.pd).expect("a window");
        let part = memory.range(0, 16).expect("inside");
        let bind = Bind::new(window, part, everything());
        assert_eq!(bind.remote(), None, "the library picks the key");
        let window = done(&mut rig, &mut b, bind);
        let first = window.remote().expect("it is bound");
        // Through any queue pair.
        assert_eq!(written(&mut rig, &mut a, first, b"one"), OK);
        assert_eq!(written(&mut rig, &mut c, first, b"two"), OK);
        // Bound anew, through another.
        let part = memory.range(32, 16).expect("inside");
        let window = done(&mut rig, &mut a, Bind::new(window, part, everything()));
        let second = window.remote().expect("it is bound");
        assert_ne!(first.rkey(), second.rkey());
        assert_eq!(written(&mut rig, &mut c, second, b"three"), OK);
        let window = done(&mut rig, &mut a, LocalInvalidate::new(window));
        assert!(window.remote().is_none());
        memory.revoke().expect("it is not bound");
        assert_eq!(written(&mut rig, &mut c, second, b"x"), WcStatus::REM_ACCESS_ERR);
        drop((a, b, c, d, window));
        rig.end();
    }

    fn a_peer_invalidates() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let memory = exposed(&rig);
        let window = b.memory_window().expect("a window");
        let other = b.memory_window().expect("another");
        let part = memory.range(0, 64).expect("inside");
        let mut window = done(&mut rig, &mut b, Bind::new(window, part.clone(), everything()));
        let mut other = done(&mut rig, &mut b, Bind::new(other, part, everything()));
        let key = window.remote().expect("it is bound").rkey();
        b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
        a.send_queue().post(Send::new(()).invalidate(key).signaled()).expect("room");
        let mut told = None;
        wait_until("the message comes", || {
            let mut drain = rig.cq.poll().expect("it can be polled");
            while let Some(completion) = drain.next() {
                told = told.or(completion.invalidated());
            }
            told.is_some()
        });
        assert_eq!(told, Some(key));
        assert!(!other.note_invalidated(key) && window.note_invalidated(key));
        assert!(!window.note_invalidated(key), "once");
        assert!(window.remote().is_none() && other.remote().is_some());
        let refused = b.send_queue().post(LocalInvalidate::new(window)).expect_err("it is not bound");
        assert_eq!(fault(refused.refusal), WindowFault::NotBound);
        let window = refused.request.expect("it comes back").into_window();
        let part = memory.range(0, 64).expect("inside");
        let window = done(&mut rig, &mut b, Bind::new(window, part, everything()));
        let again = window.remote().expect("it is bound");
        assert_eq!(again.rkey(), key.next_tag());
        assert_eq!(written(&mut rig, &mut a, again, b"again"), OK);
        drop((a, b, window, other, memory));
        rig.end();
    }

    fn what_is_refused_comes_back() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let memory = exposed(&rig);
        let plain = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        let other_pd = ProtectionDomain::new(&rig.context).expect("a PD");
        let foreign = Exposed::with_windows(&other_pd, 64, everything()).expect("memory");
        let part = || memory.range(0, 64).expect("inside");
        let mut window = a.memory_window().expect("a window");
        let refuse = |qp: &mut QueuePair<Rts>, bind: Bind, expected| {
            let refused = qp.send_queue().post(bind).expect_err("it is refused");
            assert_eq!(fault(refused.refusal), expected);
            let told = format!("a memory window on QP {}: {expected}", qp.qpn());
            assert_eq!(refused.to_string(), told);
            refused.request.expect("it comes back").into_window()
        };
        window = refuse(&mut b, Bind::new(window, part(), everything()), WindowFault::OtherQueuePair);
        let range = plain.range(0, 64).expect("inside");
        window = refuse(&mut a, Bind::new(window, range, everything()), WindowFault::NoBindRight);
        let range = foreign.range(0, 64).expect("inside");
        window = refuse(&mut a, Bind::new(window, range, everything()), WindowFault::OtherDomain);
        let range = memory.range(64, 0).expect("inside");
        window = refuse(&mut a, Bind::new(window, range, everything()), WindowFault::Empty);
        plain.revoke().expect("no window holds it");
        window = done(&mut rig, &mut a, Bind::new(window, part(), everything()));
        window = refuse(&mut a, Bind::new(window, part(), everything()), WindowFault::Bound);
        assert!(window.remote().is_some(), "as it was");
        // Of type 1: of another domain, and in a batch.
        let one = MemoryWindow::type_1(&other_pd).expect("a window");
        let refused = a.send_queue().post(Bind::new(one, foreign.range(0, 8).expect("inside"), everything()));
        let refused = refused.expect_err("of another domain");
        assert!(matches!(refused.refusal, Refusal::OtherDomain { .. }), "{refused}");
        let told = format!("a memory window of another protection domain than that of QP {}", a.qpn());
        assert_eq!(refused.to_string(), told);
        drop(refused);
        let one = MemoryWindow::type_1(&rig.pd).expect("a window");
        let mut batch = a.send_queue().batch::<2>();
        let refused = batch.push(Bind::new(one, part(), everything())).expect_err("not in a batch");
        assert_eq!(fault(refused.refusal), WindowFault::InBatch);
        drop((refused, batch));
        // What the device refuses: with the request, or its window out of a batch.
        let window = done(&mut rig, &mut a, LocalInvalidate::new(window));
        faults::fail_post("ibv_post_send", faults::Post::RefuseAt(0), libc::ENOMEM, 1);
        let refused = a.send_queue().post(Bind::new(window, part(), everything())).expect_err("the device");
        assert!(matches!(refused.refusal, Refusal::Device { errno: Errno::ENOMEM, .. }), "{refused}");
        let window = done(&mut rig, &mut a, refused.request.expect("it comes back"));
        let window = done(&mut rig, &mut a, LocalInvalidate::new(window));
        faults::fail_post("ibv_post_send", faults::Post::RefuseAt(0), libc::ENOMEM, 1);
        let mut batch = a.send_queue().batch::<2>();
        batch.push(Bind::new(window, part(), everything())).expect("room");
        let mut refused = batch.post().expect_err("the device");
        let mut window = match refused.next_refused().and_then(|mut refused| refused.take()) {
            Some(Memory::Window(window)) => window,
            other => panic!("{other:?}"),
        };
        drop(refused);
        // And a batch that is good: bound, told, and used, with one doorbell.
        let bind = Bind::new(window, part(), everything());
        let remote = bind.remote().expect("it is known");
        a.recv_queue().post(Receive::new(rig.take())).expect("room");
        b.recv_queue().post(Receive::new(rig.take())).expect("room");
        let mut batch = a.send_queue().batch::<2>();
        batch.push(bind).expect("room");
        batch.push(Send::new(rig.filled(b"key")).signaled()).expect("room");
        batch.post().expect("posted");
        let mut seen = rig.completions(3);
        let bound = seen.iter_mut().find(|seen| seen.opcode == WcOpcode::BIND_MW).expect("a bind");
        window = window_of(bound);
        assert_eq!(window.remote(), Some(remote));
        drop((seen, a, b, window, memory, foreign, other_pd));
        rig.end();
    }

    /// Of type 1: the call that binds does not tell whether it took what it failed on.
    fn a_bind_of_type_1_that_fails() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let memory = exposed(&rig);
        let window = MemoryWindow::type_1(&rig.pd).expect("a window");
        faults::fail("ibv_bind_mw", libc::ENOMEM);
        let part = memory.range(0, 8).expect("inside");
        let refused = a.send_queue().post(Bind::new(window, part, everything())).expect_err("it fails");
        assert!(matches!(refused.refusal, Refusal::Unsure { verb: "ibv_bind_mw", .. }), "{refused}");
        assert!(refused.request.is_none());
        drop((a, b));
        let mut seen = rig.completions(1);
        let window = window_of(&mut seen[0]);
        assert_eq!((seen[0].status, window.remote(), window.is_usable()), (WcStatus::WR_FLUSH_ERR, None, false));
        let memory = memory.revoke().expect_err("it may be bound");
        drop((window, seen));
        memory.exposed.revoke().expect("it is not");
        rig.end();
    }

    /// In every order, with a bind and an invalidation in flight.
    fn every_order_of_dropping() {
        for kind in [WindowType::TYPE_1, WindowType::TYPE_2] {
            for invalidate in [false, true] {
                for order in 0..120 {
                    dropped_in_order(kind, invalidate, order);
                }
            }
        }
    }

    fn a_window_outlives_its_queue_pair() {
        let mut rig = Rig::new();
        let (a, mut b) = rig.pair();
        let memory = exposed(&rig);
        let window = b.memory_window().expect("a window");
        let part = memory.range(0, 8).expect("inside");
        let window = done(&mut rig, &mut b, Bind::new(window, part.clone(), everything()));
        let other = b.memory_window().expect("another");
        let calls = faults::count("ibv_dealloc_mw");
        drop((a, b));
        // Before the queue pair, for a device counts on that.
        assert_eq!((faults::live("qp"), faults::live("mw")), (0, 0));
        assert_eq!((window.remote(), window.is_usable(), other.is_usable()), (None, false, false));
        // Where a new queue pair may have the place of the old one.
        let (mut a, b) = rig.pair();
        let refused = a.send_queue().post(Bind::new(other, part, everything())).expect_err("its queue pair is gone");
        assert_eq!(fault(refused.refusal), WindowFault::OtherQueuePair);
        drop((refused, window, a, b));
        assert_eq!(faults::count("ibv_dealloc_mw"), calls + 2, "once each");
        memory.revoke().expect("nothing is bound on it");
        rig.end();
    }

    fn a_window_that_cannot_be_deallocated() {
        cannot_be_deallocated(false);
    }

    fn a_window_that_cannot_be_deallocated_before_its_queue_pair() {
        cannot_be_deallocated(true);
    }

    /// Success for a bind that was never carried out, completions that come twice, or name another.
    fn a_device_that_completes_what_it_likes() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let memory = exposed(&rig);
        let window = b.memory_window().expect("a window");
        faults::stall(true);
        let part = memory.range(0, 8).expect("inside");
        b.send_queue().post(Bind::new(window, part, everything())).expect("room");
        // It says that it is done.
        let word = interposed::rig::word(2, 1, 0);
        let wc = faults::Wc { wr_id: word, ..faults::Wc::default() };
        let cq = faults::nth("cq", 0);
        faults::push(cq, &wc);
        faults::push(cq, &wc);
        let mut seen = rig.completions(1);
        let window = window_of(&mut seen[0]);
        assert_eq!(rig.cq.strays(), 1, "once");
        let remote = window.remote().expect("so it says");
        // Used, dropped, and only then bound, to what is not there.
        drop((window, seen));
        memory.revoke().expect("deregistered");
        faults::stall(false);
        b.recv_queue().post(Receive::new(rig.take())).expect("room");
        a.send_queue().post(Send::new(()).signaled()).expect("room");
        wait_until("all is over", || {
            poll(&mut rig.cq);
            rig.cq.strays() > 1
        });
        assert!(remote.len() == 8 && faults::live("mw") == 0);
        drop((a, b));
        rig.end();
    }

    /// Bound on one thread and taken on another: whoever has the window has its key.
    fn bound_on_one_thread_and_taken_on_another() {
        let rig = Rig::new();
        let (a, mut b) = rig.pair();
        let memory = exposed(&rig);
        let Rig { mut cq, pool, pd, context, .. } = rig;
        let (give, take) = std::sync::mpsc::channel::<MemoryWindow>();
        give.send(MemoryWindow::type_1(&pd).expect("a window")).expect("it listens");
        thread::scope(|scope| {
            let memory = &memory;
            let poster = scope.spawn(move || {
                for round in 0..2000 {
                    let window = take.recv_timeout(Duration::from_secs(10)).expect("it comes back");
                    let part = memory.range(round % 64, 8).expect("inside");
                    let bind = Bind::new(window, part, everything());
                    b.send_queue().post(bind).expect("room");
                }
                b
            });
            let mut last = None;
            for round in 0..2000 {
                let mut back = None;
                wait_until("it is bound", || {
                    let mut drain = cq.poll().expect("it can be polled");
                    back = drain.next().and_then(|completion| completion.into_window());
                    back.is_some()
                });
                let window = back.expect("it was looked at");
                let remote = window.remote().expect("it is bound");
                assert_ne!(Some(remote.rkey()), last, "{round}");
                last = Some(remote.rkey());
                // The last has nobody to take it.
                let _ = give.send(window);
            }
            drop(poster.join().expect("it ends"));
        });
        drop((give, a, memory, pool, cq, pd, context));
        assert_nothing_is_left();
    }

    fn what_a_device_lacks_is_told_before_any_call() {
        faults::no_atomics(true);
        let rig = Rig::on("empty0");
        faults::no_atomics(false);
        let unsupported = |error: &Error| match error {
            Error::Unsupported { device, what } if &**device == "empty0" => *what,
            other => panic!("{other}"),
        };
        let registered = faults::count("ibv_reg_mr");
        let error = MemoryWindow::type_1(&rig.pd).expect_err("it has none");
        assert_eq!(unsupported(&error), Capability::MemoryWindow1);
        assert_eq!(error.to_string(), "empty0 has no memory windows of type 1");
        let (mut a, b) = rig.pair();
        assert_eq!(unsupported(&a.memory_window().expect_err("none")), Capability::MemoryWindow2B);
        let rights = RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        let error = Exposed::new(&rig.pd, 64, rights).expect_err("no atomics");
        assert_eq!(unsupported(&error), Capability::Atomics);
        let mut word = rig.take();
        word.set_len(8).expect("it fits");
        let there = RemoteSlice::new(0x1000, 8, rdma_verbs::RKey::new(1));
        let refused = a.send_queue().post(FetchAdd::new(word, there, 1)).expect_err("no atomics");
        assert!(matches!(refused.refusal, Refusal::NoAtomics { .. }), "{refused}");
        drop(refused);
        let error = Exposed::with_windows(&rig.pd, 64, everything()).expect_err("none");
        assert_eq!(unsupported(&error), Capability::MemoryWindow1);
        assert_eq!((faults::count("ibv_reg_mr"), faults::count("ibv_alloc_mw")), (registered, 0));
        for (device, windows) in [("loop0", true), ("empty0", false)] {
            let context = open(device);
            let can = context.capabilities();
            assert_eq!(can.contains(Capability::MemoryWindow2B), windows);
            assert!(can.contains(Capability::Atomics) && !context.supports(Capability::AtomicsWithCpu));
            assert!(context.require(Capability::OnDemandPaging).is_err());
        }
        drop((a, b));
        rig.end();
    }

    fn allocation_fails() {
        let rig = Rig::new();
        let (a, b) = rig.pair();
        faults::fail("ibv_alloc_mw", libc::ENOMEM);
        let error = a.memory_window().expect_err("it fails");
        assert!(matches!(error, Error::Verb { verb: "ibv_alloc_mw", errno: Errno::ENOMEM, .. }), "{error}");
        // Those that were dropped take no room in the queue pair's list.
        for _ in 0..1000 {
            drop(a.memory_window().expect("a window"));
        }
        drop((a, b));
        rig.end();
    }
}

/// One of the orders in which a queue pair, its completion queue, its protection domain, the exposed memory
/// and a window of it can be dropped, with a request on another window in flight.
fn dropped_in_order(kind: WindowType, invalidate: bool, order: usize) {
    let mut rig = Rig::new();
    let (a, mut b) = rig.pair();
    let memory = exposed(&rig);
    let part = || memory.range(0, 64).expect("inside");
    let make = |b: &QueuePair<Rts>| match kind {
        WindowType::TYPE_1 => MemoryWindow::type_1(&rig.pd).expect("a window"),
        _ => b.memory_window().expect("a window"),
    };
    let (bound, flying) = (make(&b), make(&b));
    let bound = done(&mut rig, &mut b, Bind::new(bound, part(), everything()));
    let flying = if invalidate {
        let flying = done(&mut rig, &mut b, Bind::new(flying, part(), everything()));
        faults::stall(true);
        b.send_queue().post(LocalInvalidate::new(flying)).map_err(|error| error.refusal)
    } else {
        faults::stall(true);
        let bind = Bind::new(flying, part(), everything());
        b.send_queue().post(bind).map_err(|error| error.refusal)
    };
    flying.expect("room");
    // A read in flight too, into what the window is bound on.
    let read = Read::new(part(), RemoteSlice::new(0, 64, bound.remote().expect("bound").rkey()));
    b.send_queue().post(read).expect("room");
    drop(a);
    let Rig { cq, pool, pd, context, .. } = rig;
    let mut left: Vec<Box<dyn std::any::Any>> =
        vec![Box::new(b), Box::new(cq), Box::new(pd), Box::new(memory), Box::new(bound)];
    let mut number = order;
    for base in (1..=5).rev() {
        drop(left.remove(number % base));
        number /= base;
    }
    faults::stall(false);
    assert_eq!(context.leaks(), 0, "{kind} {invalidate} {order}");
    drop((pool, context));
    assert_nothing_is_left();
}

/// It stays, with all that a peer may reach by it, and says so.
fn cannot_be_deallocated(by_queue_pair: bool) {
    interposed::leaks_on_purpose();
    let mut rig = Rig::new();
    let (a, mut b) = rig.pair();
    let memory = exposed(&rig);
    let window = b.memory_window().expect("a window");
    let part = memory.range(0, 8).expect("inside");
    let window = done(&mut rig, &mut b, Bind::new(window, part, everything()));
    faults::fail("ibv_dealloc_mw", libc::EBUSY);
    if by_queue_pair {
        drop((a, b));
        assert!(!window.is_usable());
        drop(window);
    } else {
        drop(window);
        drop((a, b));
    }
    // The queue pair too, which this device does not let go of before.
    assert_eq!((rig.context.leaks(), faults::live("mw")), (2, 1));
    let memory = memory.revoke().expect_err("it is exposed for ever");
    assert!(matches!(memory.error, Error::InUse { .. }), "{memory}");
    drop(memory);
    assert_eq!(faults::live("mr"), 2, "the pool's, and that of the memory");
}
