//! Queue pairs connected over TCP, on rxe: both ways, many at a time, and rows that move meanwhile.
//!
//! Each test is alone: it opens a directory, which delays the removal of every device.

#![allow(clippy::result_large_err)] // the queue pair itself comes back

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::RwLockWriteGuard;
use std::task::Poll;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{
    CompletionQueue, ConnectOptions, Connected, Connecting, Connector, Context, Error,
    ExchangeProblem, Failed, GidDirectory, GidEntry, Incoming, Init, InitOptions, Listener, Mtu,
    Offer, Pool, PortNum, PrivateData, ProtectionDomain, QpState, QueuePair, RefuseReason,
    Resolver, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::rc::{completions, everything};
use super::rig::{Rig, alone, ip, wait_until};

/// No test needs as long.
pub(crate) const LONG: Duration = Duration::from_secs(30);
const PORT: PortNum = PortNum::FIRST;

/// One host, with a device whose addresses are 198.18.n.1 and .2, and all that queue pairs need.
pub(crate) struct Host {
    pub(crate) resolver: Resolver,
    pub(crate) connector: Connector,
    pub(crate) context: Context,
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: Pool,
    pd: ProtectionDomain,
    pub(crate) rig: Rig,
    _alone: RwLockWriteGuard<'static, ()>,
}

impl Host {
    pub(crate) fn new() -> Host {
        let alone = alone();
        let rig = Rig::within_alone();
        let context = rig.open();
        rig.add_addresses(&context, 2);
        let directory = GidDirectory::open().expect("a directory");
        let resolver = Resolver::open(&directory).expect("a resolver");
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let cq = CompletionQueue::new(&context, 4096).expect("a CQ");
        let pool = Pool::new(&pd, 64, 256).expect("a pool");
        let connector = Connector::new(&resolver);
        Host { resolver, connector, context, cq, pool, pd, rig, _alone: alone }
    }

    /// In Init, with one receive posted.
    pub(crate) fn queue_pair(&self) -> QueuePair<Init> {
        let mut queue_pair = self.bare();
        let receive = Receive::new(self.pool.take().expect("a buffer"));
        queue_pair.recv_queue().post(receive).expect("room");
        queue_pair
    }

    /// Without.
    pub(crate) fn bare(&self) -> QueuePair<Init> {
        let builder = QueuePair::rc(&self.pd, &self.cq, &self.cq).send_depth(2).recv_depth(2);
        let queue_pair = builder.max_inline(16).build().expect("a queue pair");
        queue_pair.init(&InitOptions::new(PORT).access(everything())).expect("to INIT")
    }

    pub(crate) fn ip(&self, host: u8) -> IpAddr {
        [198, 18, self.rig.number(), host].into()
    }

    fn row(&self, ip: IpAddr) -> GidEntry {
        let gids = self.context.gids().fresh().expect("the table can be read");
        *gids.rows().iter().find(|row| row.ip() == Some(ip)).expect("the address is there")
    }

    pub(crate) fn listen(&self, ip: IpAddr) -> Listener {
        Listener::bind(SocketAddr::new(ip, 0), &self.resolver).expect("a free port")
    }

    /// A message each way, the server's first: it finds a receive, and the client's queue pair ready.
    pub(crate) fn talk(&mut self, client: &mut Connected, server: &mut Connected) {
        for end in [server, client] {
            let send = Send::new(Inline(b"hello")).signaled();
            end.queue_pair.send_queue().post(send).expect("room");
        }
        let seen = completions(&mut self.cq, 4);
        assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    }
}

pub(crate) fn on_port() -> ConnectOptions {
    ConnectOptions::on_port(PORT)
}

pub(crate) type Outcome = Result<Connected, Failed<Init>>;

/// Both ends of one connection, each on a thread of its own.
pub(crate) fn both(
    host: &Host,
    listener: &mut Listener,
    client: impl Into<Offer>,
    server: impl FnOnce(Incoming) -> Outcome,
) -> (Outcome, Outcome) {
    let (to, queue_pair, offer) = (listener.local_addr(), host.queue_pair(), client.into());
    std::thread::scope(|scope| {
        let client = scope.spawn(move || host.connector.connect(to, queue_pair, offer, LONG));
        let server = server(listener.accept(LONG).expect("a request"));
        (client.join().expect("no panic"), server)
    })
}

/// Advances a client until its request is there.
pub(crate) fn request(client: &mut Connecting, listener: &mut Listener) -> Incoming {
    let until = Instant::now() + LONG;
    loop {
        assert!(client.advance().is_pending() && Instant::now() < until, "{client:?}");
        if let Poll::Ready(incoming) = listener.advance() {
            return incoming.expect("a request");
        }
        let mut fds = [PollFd::new(client, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut fds, Some(&second)).expect("it can wait");
    }
}

pub(crate) fn problem(error: &Error) -> &ExchangeProblem {
    match error {
        Error::Exchange(fault) => &fault.problem,
        error => panic!("{error}"),
    }
}

pub(crate) fn refusal(error: &Error) -> (RefuseReason, &str) {
    match problem(error) {
        ExchangeProblem::Refused { reason, text } => (*reason, text),
        problem => panic!("{problem:?}"),
    }
}

#[test]
fn both_ends_can_send_at_once() {
    let mut host = Host::new();
    let data = |text: &[u8]| PrivateData::new(text).expect("it is short");
    let mut listener = host.listen(host.ip(1));
    let offer = Offer::new(on_port().reads(4).answers(2).mtu(Mtu::B512)).private_data(data(b"c"));
    let offered = host.queue_pair();
    let (client, server) = both(&host, &mut listener, offer, |incoming| {
        assert_eq!(
            incoming.local_addr(),
            SocketAddr::new(host.ip(1), incoming.local_addr().port())
        );
        assert_eq!((&*incoming.terms().private_data, incoming.terms().reads), (&b"c"[..], 4));
        let options = on_port().reads(8).answers(16).mtu(Mtu::B256);
        incoming.accept(offered, Offer::new(options).private_data(data(b"server")), LONG)
    });
    let (mut client, mut server) = (client.expect("connected"), server.expect("connected"));
    assert_eq!(
        (client.queue_pair.mtu(), server.queue_pair.mtu()),
        (Some(Mtu::B256), Some(Mtu::B256))
    );
    assert_eq!(&*client.peer.private_data, b"server");
    assert_eq!(client.peer.endpoint.reads, Some(4), "16, of which 4 are wanted");
    assert_eq!(client.peer.endpoint.qpn, server.queue_pair.qpn());
    assert_eq!(server.peer.endpoint.psn, client.queue_pair.psn());
    for end in [&client, &server] {
        let path = end.path.as_ref().expect("it is known");
        assert!(path.is_local && path.source == host.ip(1), "{path}");
        assert_eq!(Some(path.gid.row), end.queue_pair.source());
    }
    host.talk(&mut client, &mut server);
    // The TCP connection is theirs now, and tells the end.
    drop(client);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut server.stream, &mut rest).expect("it is closed");
    assert!(rest.is_empty());
}

#[test]
fn addresses_of_all_kinds() {
    let mut host = Host::new();
    let netdev = &host.rig.netdev;
    let six: IpAddr = "2001:db8:1::1".parse().expect("an address");
    let near: IpAddr = "fe80::77".parse().expect("an address");
    ip(&["addr", "add", &format!("{six}/64"), "dev", netdev, "nodad"]);
    ip(&["addr", "add", &format!("{near}/64"), "dev", netdev, "nodad"]);
    let there = |ip: &IpAddr| {
        let gids = host.context.gids().fresh().expect("the table can be read");
        gids.rows().iter().any(|row| row.ip() == Some(*ip))
    };
    wait_until("the addresses are in the table", || [six, near].iter().all(there));
    let scope = host.row(near).ifindex().expect("an interface");
    let SocketAddr::V6(local) = SocketAddr::new(near, 0) else { panic!("it is IPv6") };
    let linked = SocketAddrV6::new(*local.ip(), 0, 0, scope);
    let loopback = |text: &str| SocketAddr::new(text.parse().expect("an address"), 0);
    for address in [
        SocketAddr::new(host.ip(2), 0),
        SocketAddr::new(six, 0),
        linked.into(),
        loopback("127.0.0.1"),
        loopback("::1"),
    ] {
        let mut listener = Listener::bind(address, &host.resolver).expect("a free port");
        let queue_pair = host.queue_pair();
        let (client, server) = both(&host, &mut listener, on_port(), |incoming| {
            incoming.accept(queue_pair, on_port(), LONG)
        });
        let (mut client, mut server) = (client.expect("connected"), server.expect("connected"));
        let source = client.queue_pair.source().expect("a row").ip();
        if !address.ip().is_loopback() {
            assert_eq!(source, Some(address.ip()));
        }
        println!("{address}: {}", client.path.as_ref().expect("a path"));
        host.talk(&mut client, &mut server);
    }
    // From another address of the host than the kernel would choose.
    let mut listener = host.listen(host.ip(1));
    let queue_pair = host.queue_pair();
    let offer = Offer::new(on_port()).local_address(host.ip(2), 0);
    let (client, server) = both(&host, &mut listener, offer, |incoming| {
        assert_eq!(incoming.address().ip(), host.ip(2));
        incoming.accept(queue_pair, on_port(), LONG)
    });
    let (mut client, mut server) = (client.expect("connected"), server.expect("connected"));
    assert_eq!(client.queue_pair.source().and_then(|row| row.ip()), Some(host.ip(2)));
    host.talk(&mut client, &mut server);
    // From one family to the other; rows that are given go before all that could be found.
    let mut listener = host.listen(host.ip(1));
    let options = ConnectOptions::new(&host.row(six));
    let queue_pair = host.queue_pair();
    let (client, server) = both(&host, &mut listener, options, |incoming| {
        incoming.accept(queue_pair, on_port(), LONG)
    });
    let (mut client, mut server) = (client.expect("connected"), server.expect("connected"));
    assert!(server.queue_pair.source().and_then(|row| row.ip()).is_some_and(|ip| ip.is_ipv6()));
    host.talk(&mut client, &mut server);
    let queue_pair = host.queue_pair();
    let (client, server) = both(&host, &mut listener, options, |incoming| {
        incoming.accept(queue_pair, ConnectOptions::new(&host.row(host.ip(1))), LONG)
    });
    let (client, server) = (client.expect_err("unlike"), server.expect_err("unlike"));
    assert!(matches!(problem(&server.error), ExchangeProblem::Unlike { .. }), "{server:?}");
    assert_eq!(refusal(&client.error).0, RefuseReason::UNLIKE);
    assert_eq!(refusal(&client.error).1, server.error.to_string());
}

/// The queue pair that comes back is as it was: its receive is still there, and it can be connected.
#[test]
fn a_refused_queue_pair_is_used_again() {
    let mut host = Host::new();
    let mut listener = host.listen(host.ip(1));
    let to = listener.local_addr();
    let (mut client, reason) = (host.queue_pair(), RefuseReason::application(7));
    for round in 0..3 {
        let text = "no room ".repeat(100);
        let failed = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| host.connector.connect(to, client, on_port(), LONG));
            listener.accept(LONG).expect("a request").refuse(reason, &text);
            connecting.join().expect("no panic").expect_err("it was refused")
        });
        let (told, words) = refusal(&failed.error);
        assert_eq!(
            (told.as_application(), words),
            (Some(7), &text[..PrivateData::MOST]),
            "{round}"
        );
        assert_eq!(failed.queue_pair.state().expect("it is asked"), QpState::INIT);
        client = failed.queue_pair;
    }
    let queue_pair = host.queue_pair();
    let (client, server) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| host.connector.connect(to, client, on_port(), LONG));
        let incoming = listener.accept(LONG).expect("a request");
        let server = incoming.accept(queue_pair, on_port(), LONG);
        (connecting.join().expect("no panic"), server)
    });
    host.talk(&mut client.expect("connected"), &mut server.expect("connected"));
}

/// The address of a row moves to another index, and another address to its own, while the server thinks:
/// with a receive posted, which a detour over the wrong row would lose.
#[test]
fn a_row_that_moves_between_lookup_and_rtr() {
    let mut host = Host::new();
    let netdev = host.rig.netdev.clone();
    let change = |what: &str, host: &Host, number: u8| {
        ip(&["addr", what, &format!("{}/32", host.ip(number)), "dev", &netdev]);
    };
    let settle = |host: &Host, expected: &[(u8, bool)]| {
        wait_until("the table has it", || {
            let gids = host.context.gids().fresh().expect("the table can be read");
            let there =
                |number: u8| gids.rows().iter().any(|row| row.ip() == Some(host.ip(number)));
            expected.iter().all(|(number, is)| there(*number) == *is)
        });
    };
    let mut listener = host.listen([127, 0, 0, 1].into());
    for server_moves in [false, true] {
        let before = host.row(host.ip(1));
        let [mine, theirs] = [2, 1].map(|number| ConnectOptions::new(&host.row(host.ip(number))));
        let (client, server) = if server_moves { (mine, theirs) } else { (theirs, mine) };
        let to = listener.local_addr();
        let mut connecting = host.connector.start(to, host.queue_pair(), client, LONG);
        let incoming = request(&mut connecting, &mut listener);
        change("del", &host, 1);
        settle(&host, &[(1, false)]);
        let other = if server_moves { 4 } else { 3 };
        change("add", &host, other);
        settle(&host, &[(other, true)]);
        change("add", &host, 1);
        settle(&host, &[(1, true)]);
        assert_eq!(host.row(host.ip(other)).index(), before.index(), "in its place");
        assert_ne!(host.row(host.ip(1)).index(), before.index());
        let queue_pair = host.queue_pair();
        let (client, server) = std::thread::scope(|scope| {
            let client = scope.spawn(|| connecting.wait());
            let server = incoming.accept(queue_pair, server, LONG);
            (client.join().expect("no panic"), server)
        });
        let (mut client, mut server) = (client.expect("connected"), server.expect("connected"));
        let moved = if server_moves { &server } else { &client };
        let row = moved.queue_pair.source().expect("a row");
        assert_eq!((row.ip(), row.index()), (Some(host.ip(1)), host.row(host.ip(1)).index()));
        host.talk(&mut client, &mut server);
    }
    // And when it has gone for good, both are told.
    for server_goes in [false, true] {
        let options = [1, 2].map(|number| ConnectOptions::new(&host.row(host.ip(number))));
        let (client, server) = if server_goes { (options[1], options[0]) } else { options.into() };
        let offered = host.queue_pair();
        let (client, server) = both(&host, &mut listener, client, |incoming| {
            change("del", &host, 1);
            settle(&host, &[(1, false)]);
            incoming.accept(offered, server, LONG)
        });
        let (client, server) = (client.expect_err("gone"), server.expect_err("gone"));
        let (own, other) = if server_goes { (&server, &client) } else { (&client, &server) };
        assert!(matches!(own.error, Error::GidMoved(_)), "{own:?}");
        // Nothing of this host's addresses is told.
        let told = "no row of the GID tables can be used for it";
        assert_eq!(refusal(&other.error), (RefuseReason::NO_SOURCE, told));
        assert_eq!(own.queue_pair.state().expect("it is asked"), QpState::INIT);
        change("add", &host, 1);
        settle(&host, &[(1, true)]);
    }
}
