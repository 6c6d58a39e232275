//! The connection manager, on rxe.

#![allow(clippy::result_large_err)] // what was given to a step that failed comes back

mod errors;
mod multicast;
mod peers;
mod teardown;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{OnceLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rdma_verbs::cm::{
    Connected, ConnectionParams, ConnectionRequest, EventChannel, Listener, PrivateData,
};
use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    CmReason, CompletionQueue, Context, DeviceList, Error, Init, Pool, ProtectionDomain, QueuePair,
    RejectReason, RemoteAccess, Reset, WcOpcode,
};

use super::poll_loop_example;
use super::rig::{Rig, alone, together};

/// Long enough for anything here; a test that waits so long fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a queue pair is made of, on one device.
pub(crate) struct Parts {
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: Pool,
}

impl Parts {
    pub(crate) fn new(context: &Context) -> Parts {
        let pd = ProtectionDomain::new(context).expect("a PD");
        let cq = CompletionQueue::new(context, 512).expect("a CQ");
        let pool = Pool::new(&pd, 128, 16).expect("a pool");
        Parts { pd, cq, pool }
    }

    pub(crate) fn queue_pair(&self) -> QueuePair<Reset> {
        let builder = QueuePair::rc(&self.pd, &self.cq, &self.cq).send_depth(2).recv_depth(2);
        builder.build().expect("a queue pair")
    }
}

/// librdmacm opens a device that an id is bound to, and keeps it open while the process lives: such a
/// device can not be removed before. So these tests share two, which stay.
pub(crate) struct Place {
    pub(crate) device: String,
    number: u8,
}

impl Place {
    pub(crate) fn get(which: usize) -> &'static Place {
        static PLACES: OnceLock<[Place; 2]> = OnceLock::new();
        let make = || {
            let rig = Rig::within_alone();
            rig.add_addresses(&rig.open(), 1);
            let (device, number) = rig.leave();
            Place { device, number }
        };
        &PLACES.get_or_init(|| [make(), make()])[which]
    }

    /// Its address.
    pub(crate) fn ip(&self) -> IpAddr {
        Ipv4Addr::new(198, 18, self.number, 1).into()
    }

    pub(crate) fn open(&self) -> Context {
        let list = DeviceList::new().expect("devices can be listed");
        list.find(&self.device).expect("it is listed").open().expect("it opens")
    }
}

/// A device with an address, and a listener at it.
pub(crate) struct Server {
    pub(crate) place: &'static Place,
    pub(crate) context: Context,
    pub(crate) channel: EventChannel,
    pub(crate) listener: Listener,
    _machine: Option<RwLockReadGuard<'static, ()>>,
}

impl Server {
    pub(crate) fn new() -> Server {
        Server::on(Some(together()))
    }

    /// The same for a test that is alone already.
    pub(crate) fn within_alone() -> Server {
        Server::on(None)
    }

    fn on(machine: Option<RwLockReadGuard<'static, ()>>) -> Server {
        let place = Place::get(0);
        let context = place.open();
        let channel = EventChannel::new().expect("a channel");
        channel.share(&context);
        let listener = channel.listen((place.ip(), 0).into(), 128).expect("it listens");
        Server { place, context, channel, listener, _machine: machine }
    }

    pub(crate) fn at(&self) -> SocketAddr {
        self.listener.local_addr().expect("it has an address")
    }

    pub(crate) fn request(&self) -> ConnectionRequest {
        self.listener.accept(PATIENCE).expect("events").expect("a request in time")
    }

    /// One connection, from the client's side and from the server's.
    pub(crate) fn connect(&self, parts: &Parts, client: &EventChannel) -> (Connected, Connected) {
        let id = client.resolve(self.at(), PATIENCE).expect("resolved");
        let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        let params = ConnectionParams::new();
        let connecting = id.connect(ready, &params).expect("asked");
        let request = self.request();
        let ready = request.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        let accepting = request.accept(ready, &params).expect("accepted");
        let ours = connecting.wait(PATIENCE).expect("connected");
        let theirs = accepting.wait(PATIENCE).expect("established");
        (ours, theirs)
    }
}

/// A queue pair for a request, with one receive.
pub(crate) fn prepared(parts: &Parts, ready: QueuePair<Init>) -> QueuePair<Init> {
    let mut ready = ready;
    let buffer = parts.pool.take().expect("a buffer");
    ready.recv_queue().post(Receive::new(buffer)).expect("room");
    ready
}

/// The message that came, by a poll with a deadline.
pub(crate) fn received(parts: &mut Parts) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "nothing came");
        let mut drain = parts.cq.poll().expect("the queue can be polled");
        while let Some(completion) = drain.next() {
            completion.result().expect("it succeeded");
            if completion.opcode() == WcOpcode::RECV {
                return completion.into_buffer().expect("a buffer").to_vec();
            }
        }
    }
}

#[test]
fn messages_go_both_ways_and_private_data_arrives_padded() {
    let server = Server::new();
    let client = EventChannel::new().expect("a channel");
    client.share(&server.context);
    let (mut here, mut there) = (Parts::new(&server.context), Parts::new(&server.context));

    let id = client.resolve(server.at(), PATIENCE).expect("resolved");
    assert_eq!(id.device().expect("bound").name(), server.place.device);
    assert_eq!(id.peer_addr(), Some(server.at()));
    assert_eq!(id.local_addr().expect("chosen").ip(), server.at().ip());
    let ready = id.init(here.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let ready = prepared(&here, ready);
    let hello = PrivateData::prefixed(b"hello").expect("short");
    let connecting =
        id.connect(ready, &ConnectionParams::new().private_data(&hello)).expect("asked");

    let request = server.request();
    assert_eq!(request.private_data().len(), 56, "padded");
    assert_eq!(request.private_data().message(), Some(&b"hello"[..]));
    assert_eq!(request.device().name(), server.place.device);
    let ready = request.init(there.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let ready = prepared(&there, ready);
    let reply = ConnectionParams::new().private_data(b"abcd");
    let accepting = request.accept(ready, &reply).expect("accepted");

    let mut ours = connecting.wait(PATIENCE).expect("connected");
    assert_eq!((ours.private_data.len(), &ours.private_data[..5]), (196, &b"abcd\0"[..]));
    let mut theirs = accepting.wait(PATIENCE).expect("established");
    let source = ours.queue_pair.source().expect("the row is known");
    assert_eq!(source.gid(), server.at().ip().into());

    for (pair, parts, text) in
        [(&mut ours, &here, b"to server"), (&mut theirs, &there, b"to client")]
    {
        let mut buffer = parts.pool.take().expect("a buffer");
        buffer.fill_from(text).expect("it fits");
        pair.queue_pair.send_queue().post(Send::new(buffer)).expect("room");
    }
    assert_eq!(received(&mut there), b"to server");
    assert_eq!(received(&mut here), b"to client");

    ours.connection.disconnect().expect("a request to end");
    assert!(theirs.connection.wait_disconnected(PATIENCE).expect("events"));
    theirs.connection.disconnect().expect("agreed");
    assert!(ours.connection.wait_disconnected(PATIENCE).expect("events"));
}

#[test]
fn a_refusal_reaches_the_client_with_its_reason() {
    let server = Server::new();
    let parts = Parts::new(&server.context);
    let id = server.channel.resolve(server.at(), PATIENCE).expect("resolved");
    let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let connecting = id.connect(ready, &ConnectionParams::new()).expect("asked");
    let request = server.request();
    let failed = request.reject(&[7; 149]).expect_err("too long");
    assert!(matches!(failed.error, Error::OutOfRange { asked: 149, most: 148, .. }));
    failed.back.reject(b"go").expect("refused");
    let failed = connecting.wait(PATIENCE).expect_err("refused");
    let Error::Cm(fault) = &failed.error else { panic!("{}", failed.error) };
    let CmReason::Rejected { reason, private_data } = &fault.reason else { panic!("{fault}") };
    assert_eq!(*reason, RejectReason::CONSUMER_DEFINED);
    assert_eq!((private_data.len(), &private_data[..3]), (148, &b"go\0"[..]));

    // The queue pair is as it was, and connects another time.
    let id = server.channel.resolve(server.at(), PATIENCE).expect("resolved");
    let connecting = id.connect(failed.back, &ConnectionParams::new()).expect("asked");
    let request = server.request();
    let ready = request.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let accepting = request.accept(ready, &ConnectionParams::new()).expect("accepted");
    connecting.wait(PATIENCE).expect("connected");
    accepting.wait(PATIENCE).expect("established");
}

/// What the connection manager itself says, 655 ms, a sender would wait that found no receive.
#[test]
fn a_sender_that_finds_no_receive_tries_again_soon() {
    let server = Server::new();
    let (here, mut there) = (Parts::new(&server.context), Parts::new(&server.context));
    let client = EventChannel::new().expect("a channel");
    let id = client.resolve(server.at(), PATIENCE).expect("resolved");
    let ready = id.init(here.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let connecting = id.connect(ready, &ConnectionParams::new()).expect("asked");
    let request = server.request();
    let ready = request.init(there.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let accepting = request.accept(ready, &ConnectionParams::new()).expect("accepted");
    let mut ours = connecting.wait(PATIENCE).expect("connected");
    let mut theirs = accepting.wait(PATIENCE).expect("established");
    let mut buffer = here.pool.take().expect("a buffer");
    buffer.fill_from(b"early").expect("it fits");
    ours.queue_pair.send_queue().post(Send::new(buffer)).expect("room");
    // Long enough for the first try to have failed; were it not, the test would only show less.
    std::thread::sleep(Duration::from_millis(20));
    let posted = Instant::now();
    let buffer = there.pool.take().expect("a buffer");
    theirs.queue_pair.recv_queue().post(Receive::new(buffer)).expect("room");
    assert_eq!(received(&mut there), b"early");
    assert!(posted.elapsed() < Duration::from_millis(400), "{:?}", posted.elapsed());
}

/// Every step is begun for all before any is waited for; they end in whatever order.
#[test]
fn many_connections_in_parallel_on_one_channel() {
    const COUNT: usize = 64;
    let server = Server::new();
    let parts = Parts::new(&server.context);
    let steps: Vec<_> = (0..COUNT)
        .map(|_| {
            let id = server.channel.id().expect("an id");
            id.resolve_addr(server.at(), PATIENCE).expect("begun")
        })
        .collect();
    // The last first: the events of the others are kept for them.
    let ids = steps.into_iter().rev().map(|step| step.wait(PATIENCE).expect("resolved"));
    let steps: Vec<_> = ids.map(|id| id.resolve_route(PATIENCE).expect("begun")).collect();
    let connecting: Vec<_> = steps
        .into_iter()
        .map(|step| {
            let id = step.wait(PATIENCE).expect("resolved");
            assert!(id.arrived().is_some());
            let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
            id.connect(ready, &ConnectionParams::new()).expect("asked")
        })
        .collect();
    let accepting: Vec<_> = (0..COUNT)
        .map(|_| {
            let request = server.request();
            let ready = request.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
            request.accept(ready, &ConnectionParams::new()).expect("accepted")
        })
        .collect();
    let ours: Vec<_> =
        connecting.into_iter().map(|c| c.wait(PATIENCE).expect("connected")).collect();
    let theirs: Vec<_> =
        accepting.into_iter().map(|a| a.wait(PATIENCE).expect("established")).collect();
    for connected in &ours {
        connected.connection.disconnect().expect("a request to end");
    }
    for connected in theirs.iter().rev() {
        assert!(connected.connection.wait_disconnected(PATIENCE).expect("events"));
    }
}

/// Threads that wait on one channel, each for its own: whoever takes an event in, its owner wakes.
#[test]
fn threads_share_a_channel() {
    let server = Server::new();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let parts = Parts::new(&server.context);
            (0..32)
                .map(|_| {
                    let request = server.request();
                    let ready = request.init(parts.queue_pair(), RemoteAccess::READ);
                    let ready = ready.expect("to INIT");
                    let accepting = request.accept(ready, &ConnectionParams::new());
                    accepting.expect("accepted").wait(PATIENCE).expect("established")
                })
                .collect::<Vec<_>>()
        });
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let parts = Parts::new(&server.context);
                    (0..4)
                        .map(|_| {
                            let id = server.channel.resolve(server.at(), PATIENCE);
                            let id = id.expect("resolved");
                            let ready = id.init(parts.queue_pair(), RemoteAccess::READ);
                            let asked =
                                id.connect(ready.expect("to INIT"), &ConnectionParams::new());
                            asked.expect("asked").wait(PATIENCE).expect("connected")
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let ours: Vec<_> =
            clients.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!((ours.len(), accepting.join().expect("no panic").len()), (32, 32));
    });
}

/// A loop of the program's own: wait for the descriptor, take events in, see what is ready.
#[test]
fn a_loop_of_ones_own() {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let server = Server::new();
    let id = server.channel.id().expect("an id");
    let step = id.resolve_addr(server.at(), PATIENCE).expect("begun");
    let patience = Timespec::try_from(PATIENCE).expect("a short time");
    while !step.ready(Duration::ZERO).expect("events") {
        let fd = server.channel.as_fd();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "nothing happened");
        server.channel.process_events().expect("events");
    }
    step.wait(Duration::ZERO).expect("it is there");
    assert_eq!(server.channel.process_events().expect("events"), 0);
}

/// The example that has all there is to wait on in one loop. It opens a directory, and so is alone.
#[test]
fn everything_in_one_loop() {
    let _alone = alone();
    let bind = Some(Place::get(0).ip());
    let options = poll_loop_example::Options { bind, messages: 500, timeout: 60 };
    let lines = poll_loop_example::run(&options).expect("all came");
    assert!(lines.contains("500 messages in"), "{lines}");
}
