//! Ends of every kind: in any order, on any thread, with events under way; nothing hangs, nothing stays.

use std::sync::mpsc;
use std::time::Duration;

use rdma_verbs::cm::{ConnectionParams, EventChannel};
use rdma_verbs::{CmEventType, CmReason, Error, RejectReason, RemoteAccess};

use super::super::rig::{alone, wait_until};
use super::{PATIENCE, Parts, Server};

/// Runs something that must not hang.
fn within<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    wait.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("{what}: {why}"))
}

fn rejected_by_program(error: &Error) -> bool {
    let Error::Cm(fault) = error else { return false };
    matches!(fault.reason, CmReason::Rejected { reason: RejectReason::CONSUMER_DEFINED, .. })
}

/// A server that never accepts and closes: the listener with requests that nobody has taken, and one that
/// was taken.
#[test]
fn a_server_that_closes_refuses() {
    let server = Server::new();
    let parts = Parts::new(&server.context);
    let client = EventChannel::new().expect("a channel");
    let ask = |number: u8| {
        let id = client.resolve(server.at(), PATIENCE).expect("resolved");
        let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        id.connect(ready, &ConnectionParams::new().private_data(&[number])).expect("asked")
    };
    let mut asked: Vec<_> = (0..3).map(ask).collect();
    let mut come = 0;
    wait_until("all have come", || {
        come += server.channel.process_events().expect("events");
        come == 3
    });
    let request = server.request();
    // Requests come in any order.
    let taken = asked.remove(request.private_data()[0].into());
    let Server { listener, .. } = server;
    within("the listener goes", move || drop(listener));
    for asked in asked {
        let failed = asked.wait(PATIENCE).expect_err("nobody accepts");
        assert!(rejected_by_program(&failed.error), "{failed}");
    }
    // What was taken lives on without its listener.
    assert!(!taken.ready(Duration::ZERO).expect("events"));
    within("the request goes", move || drop(request));
    let failed = taken.wait(PATIENCE).expect_err("nobody accepts");
    assert!(rejected_by_program(&failed.error), "{failed}");
}

/// A client that ends what it asked for at once, before and after it was accepted.
#[test]
fn a_client_that_goes_at_once() {
    let server = Server::new();
    let parts = Parts::new(&server.context);
    let client = EventChannel::new().expect("a channel");
    for when in 0..3 {
        let id = client.resolve(server.at(), PATIENCE).expect("resolved");
        let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        let connecting = id.connect(ready, &ConnectionParams::new()).expect("asked");
        let request = server.request();
        let ready = request.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        let accepting = request.accept(ready, &ConnectionParams::new()).expect("accepted");
        match when {
            // It never says that it has understood.
            0 => {
                drop(connecting);
                let failed = accepting.wait(PATIENCE).expect_err("the client has gone");
                assert!(matches!(failed.error, Error::Cm(_)), "{failed}");
            }
            // It ends what was made, before the server has looked.
            1 => {
                let ours = connecting.wait(PATIENCE).expect("connected");
                ours.connection.disconnect().expect("a request to end");
                let theirs = accepting.wait(PATIENCE).expect("it was established");
                assert!(theirs.connection.wait_disconnected(PATIENCE).expect("events"));
                let event = theirs.connection.next_event().expect("events").expect("the end");
                assert_eq!(event.kind, CmEventType::DISCONNECTED);
                theirs.connection.disconnect().expect("agreed");
            }
            // Its program ends.
            _ => {
                let ours = connecting.wait(PATIENCE).expect("connected");
                drop(ours);
                let theirs = accepting.wait(PATIENCE).expect("it was established");
                assert!(theirs.connection.wait_disconnected(PATIENCE).expect("events"));
            }
        }
    }
    // The listener goes on.
    server.connect(&parts, &client);
}

/// Events of an id that nobody took, or took and did not ask for, do not keep it from being dropped.
#[test]
fn an_id_goes_with_events_pending() {
    let server = Server::new();
    let steps = |count: usize| -> Vec<_> {
        let ids = (0..count).map(|_| server.channel.id().expect("an id"));
        ids.map(|id| id.resolve_addr(server.at(), PATIENCE).expect("begun")).collect()
    };
    let mut all = steps(8);
    let last = all.pop().expect("eight");
    // Those before it have theirs by then, taken in for them.
    last.wait(PATIENCE).expect("resolved");
    within("ids with events in their slots go", move || drop(all));
    let all = steps(8);
    within("ids with events in the kernel go", move || drop(all));
    // Nothing of theirs is left, and what comes now is another id's.
    let id = server.channel.resolve(server.at(), PATIENCE).expect("resolved");
    assert!(id.device().is_some());
}

/// Ids dropped on one thread while another one takes their events in.
#[test]
fn ids_go_while_another_thread_takes_events_in() {
    let server = Server::new();
    let (channel, at) = (server.channel.clone(), server.at());
    let taker = channel.clone();
    let (stop, stopped) = mpsc::channel::<()>();
    let taking = std::thread::spawn(move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            taker.process_events().expect("events");
            std::thread::yield_now();
        }
    });
    within("ids come and go", move || {
        for _ in 0..200 {
            let id = channel.id().expect("an id");
            drop(id.resolve_addr(at, PATIENCE).expect("begun"));
        }
    });
    drop(stop);
    taking.join().expect("no panic");
}

#[test]
fn everything_goes_in_any_order() {
    for order in 0..4 {
        let server = Server::new();
        let parts = Parts::new(&server.context);
        let client = EventChannel::new().expect("a channel");
        let (ours, theirs) = server.connect(&parts, &client);
        let Server { context, channel, listener, _machine, .. } = server;
        within("a connection goes", move || {
            // The handle of a channel before its ids, which hold it.
            drop((client, channel));
            match order {
                0 => drop((listener, parts, context, ours, theirs)),
                1 => drop((theirs.queue_pair, ours.connection, parts, ours.queue_pair, context)),
                2 => drop((ours.queue_pair, theirs.connection, context, listener, parts)),
                _ => {
                    let other = std::thread::spawn(move || drop((theirs, listener)));
                    drop((ours, parts, context));
                    other.join().expect("no panic");
                }
            }
        });
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("it can be listed").count()
}

/// Resident memory, in KiB, without that of the program's file, which in the guest is memory too.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it can be read");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("it is told");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn two_hundred_connections_leave_nothing_behind() {
    let _alone = alone();
    let server = Server::within_alone();
    let client = EventChannel::new().expect("a channel");
    let mut parts = Parts::new(&server.context);
    let mut round = || {
        // The room of the queue pairs before.
        while parts.cq.poll().expect("the queue can be polled").next().is_some() {}
        let (ours, theirs) = server.connect(&parts, &client);
        ours.connection.disconnect().expect("a request to end");
        assert!(theirs.connection.wait_disconnected(PATIENCE).expect("events"));
        theirs.connection.disconnect().expect("agreed");
        assert!(ours.connection.wait_disconnected(PATIENCE).expect("events"));
    };
    (0..20).for_each(|_| round());
    let before = (open_files(), memory());
    (0..200).for_each(|_| round());
    let after = (open_files(), memory());
    println!("files and KiB before {before:?}, after {after:?}");
    assert_eq!(before.0, after.0);
    assert!(after.1 < before.1 + 2048, "{before:?} to {after:?}");
    assert_eq!(server.context.leaks(), 0);
}
