//! Connections over TCP by the dozen and by the thousand.

#![allow(clippy::result_large_err)] // the queue pair itself comes back

use std::task::Poll;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs::{Connected, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connect::{Host, LONG, on_port, request};
use super::directory::held;
use super::rc::completions;

/// 64 at a time, of one thread with a loop, and of a thread each.
#[test]
fn many_at_a_time() {
    const MANY: usize = 64;
    let mut host = Host::new();
    let mut listener = host.listen(host.ip(1));
    let to = listener.local_addr();
    let begun = Instant::now();
    let mut under_way: Vec<_> =
        (0..MANY).map(|_| host.connector.start(to, host.queue_pair(), on_port(), LONG)).collect();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    under_way.iter_mut().for_each(|one| assert!(one.advance().is_pending()));
    while !under_way.is_empty() {
        let mut fds: Vec<_> = under_way.iter().map(|one| PollFd::new(one, PollFlags::IN)).collect();
        fds.push(PollFd::new(&listener, PollFlags::IN));
        let soonest = under_way.iter().filter_map(|one| one.deadline()).min();
        let left = soonest.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        poll(&mut fds, left.as_ref()).expect("it can wait");
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        let mut pending = Vec::new();
        for mut one in under_way {
            if ready.next() == Some(true) && one.advance().is_ready() {
                match one.finish() {
                    Ok(connected) => done.push(connected),
                    Err(error) => failed.push(error),
                }
            } else {
                pending.push(one);
            }
        }
        under_way = pending;
        while let Poll::Ready(incoming) = listener.advance() {
            let incoming = incoming.expect("a request");
            let mut server = incoming.start(host.queue_pair(), on_port(), LONG);
            assert!(server.advance().is_pending());
            under_way.push(server);
        }
    }
    println!("{MANY} at a time, one thread: {:?}", begun.elapsed());
    assert!(failed.is_empty() && done.len() == 2 * MANY, "{failed:?}");
    everybody_sends(&mut host, &mut done);
    done.clear();

    let begun = Instant::now();
    let mut done: Vec<Connected> = std::thread::scope(|scope| {
        let host = &host;
        let connect = || host.connector.connect(to, host.queue_pair(), on_port(), LONG);
        let clients: Vec<_> = (0..MANY).map(|_| scope.spawn(connect)).collect();
        let servers = (0..MANY).map(|_| {
            let incoming = listener.accept(LONG).expect("a request");
            scope.spawn(move || incoming.accept(host.queue_pair(), on_port(), LONG))
        });
        let servers: Vec<_> = servers.collect();
        let all = clients.into_iter().chain(servers);
        all.map(|end| end.join().expect("no panic").expect("connected")).collect()
    });
    println!("{MANY} at a time, a thread each: {:?}", begun.elapsed());
    everybody_sends(&mut host, &mut done);
}

/// One message of each, to its own peer's receive.
fn everybody_sends(host: &mut Host, ends: &mut [Connected]) {
    for end in &mut *ends {
        end.queue_pair.send_queue().post(Send::new(Inline(b"x")).signaled()).expect("room");
    }
    let seen = completions(&mut host.cq, 2 * ends.len());
    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
}

/// Connects and disconnects: `RDMA_TEST_CONNECTS` of them, 300 unless told, after which descriptors,
/// threads and memory are what they were.
#[test]
fn connects_and_disconnects() {
    let count = std::env::var("RDMA_TEST_CONNECTS").ok().and_then(|count| count.parse().ok());
    let count: u32 = count.unwrap_or(300);
    let mut host = Host::new();
    let mut listener = host.listen(host.ip(1));
    let to = listener.local_addr();
    let mut before = (0, 0, 0);
    let mut times = [Duration::ZERO; 4];
    let warm_up = count.min(100);
    for number in 0..count + warm_up {
        if number == warm_up {
            before = held();
            times = Default::default();
        }
        let mut begun = Instant::now();
        let mut lap = |at: usize| {
            times[at] += begun.elapsed();
            begun = Instant::now();
        };
        let pair = [host.bare(), host.bare()];
        lap(0);
        let [client, server] = pair;
        let mut client = host.connector.start(to, client, on_port(), LONG);
        let incoming = request(&mut client, &mut listener);
        lap(1);
        let mut server = incoming.start(server, on_port(), LONG);
        let _ = server.advance();
        let client = client.wait().expect("connected");
        let server = server.wait().expect("connected");
        lap(2);
        drop((client, server));
        // What queues held of it comes back when it was seen empty.
        while host.cq.poll().expect("it can be polled").next().is_some() {}
        lap(3);
    }
    let after = held();
    let [create, request, connect, destroy] = times.map(|time| time / count);
    println!(
        "{count} connects: {:?} each; create {create:?}, TCP and request {request:?}, \
         path, RTR, RTS, reply and ready {connect:?}, destroy {destroy:?}; before {before:?}, after {after:?}",
        create + request + connect + destroy
    );
    assert_eq!((after.0, after.1), (before.0, before.1), "threads and descriptors");
    assert!(after.2 < before.2 + 4096, "{before:?} to {after:?}");
}
