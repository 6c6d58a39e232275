//! Peers of a connection over TCP that say nothing, half, or what cannot be: typed errors within the
//! deadline, no descriptor left, and the listener goes on.

#![allow(clippy::result_large_err)] // the queue pair itself comes back

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rdma_verbs::{
    ConnectOptions, ConnectRecord, Connector, Endpoint, Errno, Error, ExchangeProblem,
    ExchangeStep, Gid, GidDirectory, GidType, Listener, Mtu, Psn, QpState, Qpn, RecordError,
    RefuseReason, Resolver, Terms,
};

use super::connect::{Host, LONG, both, on_port, problem, refusal};
use super::directory::held;
use super::pair::Pair;
use super::rig::{alone, ip};

const SHORT: Duration = Duration::from_millis(200);

fn terms(gid: IpAddr) -> Terms {
    let qpn = Qpn::new(77).expect("24 bits");
    let mut endpoint = Endpoint::new(qpn, Psn::random(), gid.into());
    endpoint.mtu = Some(Mtu::B1024);
    Terms::new(endpoint, Some(GidType::ROCE_V2))
}

fn step(error: &Error) -> ExchangeStep {
    match error {
        Error::Exchange(fault) => fault.step,
        error => panic!("{error}"),
    }
}

/// What a client hears until the end.
fn heard(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LONG)).expect("it can be");
    let mut heard = Vec::new();
    // A reset ends it too.
    let _ = stream.read_to_end(&mut heard);
    heard
}

#[test]
fn a_listener_and_its_clients() {
    let mut host = Host::new();
    let mut listener = host.listen(host.ip(1)).patience(SHORT);
    let to = listener.local_addr();
    let good = ConnectRecord::Request(terms(host.ip(2))).to_bytes();
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = good;
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        bytes.to_vec()
    };
    let no_gid: Vec<_> = (24..40).map(|at| (at, 0)).collect();
    type Expected = fn(&ExchangeProblem) -> bool;
    let wrong: [(&str, Vec<u8>, Expected); 9] = [
        ("version", with(&[(9, 7)]), |p| {
            *p == ExchangeProblem::Record(RecordError::Version { theirs: 7, ours: 1 })
        }),
        ("zero GID", with(&no_gid), |p| *p == ExchangeProblem::Record(RecordError::ZeroGid)),
        ("MTU", with(&[(22, 9)]), |p| *p == ExchangeProblem::Record(RecordError::Mtu(9))),
        ("QPN", with(&[(15, 1)]), |p| *p == ExchangeProblem::Record(RecordError::Qpn(1))),
        ("kind", ConnectRecord::Ready.to_bytes().into(), |p| {
            *p == ExchangeProblem::Record(RecordError::OutOfTurn { kind: 3, expected: 1 })
        }),
        ("protocol", b"GET / HTTP/1.1\r\n\r\n".into(), |p| {
            matches!(p, ExchangeProblem::Record(RecordError::Magic(_)))
        }),
        ("flood", [b"rdmaverb\0\x01".to_vec(), vec![0xff; 3000]].concat(), |p| {
            matches!(p, ExchangeProblem::Record(RecordError::Kind(0xff)))
        }),
        ("half", good[..200].to_vec(), |p| *p == ExchangeProblem::Closed { received: 200 }),
        ("nothing", vec![], |p| *p == ExchangeProblem::Closed { received: 0 }),
    ];
    let before = held().1;
    for (what, bytes, expected) in &wrong {
        let mut client = TcpStream::connect(to).expect("it listens");
        client.write_all(bytes).expect("there is room");
        client.shutdown(Shutdown::Write).expect("it is connected");
        let error = listener.accept(LONG).expect_err(what);
        println!("{what}: {error}");
        assert!(
            expected(problem(&error)) && step(&error) == ExchangeStep::Request,
            "{what}: {error}"
        );
        let told = heard(&mut client);
        if let ExchangeProblem::Record(_) = problem(&error) {
            let told = told.as_slice().try_into().expect("one record");
            let told = ConnectRecord::parse(told).expect("a valid one");
            let ConnectRecord::Refusal { reason, .. } = told else { panic!("{told:?}") };
            let version =
                matches!(problem(&error), ExchangeProblem::Record(RecordError::Version { .. }));
            let expected = if version { RefuseReason::VERSION } else { RefuseReason::BAD_RECORD };
            assert_eq!(reason, expected, "{what}");
        } else {
            assert!(told.is_empty(), "{what}");
        }
    }
    // One that is silent, and one that is reset: the others do not wait for them.
    let silent = TcpStream::connect(to).expect("it listens");
    let mut slow = TcpStream::connect(to).expect("it listens");
    slow.write_all(&good[..100]).expect("there is room");
    let begun = Instant::now();
    for _ in 0..2 {
        let error = listener.accept(LONG).expect_err("silent");
        assert!(
            matches!(problem(&error), ExchangeProblem::TimedOut { waited } if *waited >= SHORT)
        );
    }
    assert!((SHORT..LONG).contains(&begun.elapsed()));
    assert_eq!(listener.greeting(), 0);
    drop((silent, slow));
    let error = listener.accept(SHORT).expect_err("nobody");
    assert_eq!((step(&error), listener.local_addr()), (ExchangeStep::Listen, to));
    assert_eq!(held().1, before, "descriptors");

    // More than are heard out at a time: the first make room, and a real one among them is served.
    let mut listener = host.listen(host.ip(1));
    let to = listener.local_addr();
    let queue_pair = host.queue_pair();
    let is_crowded = |error: &Error| *problem(error) == ExchangeProblem::Crowded { most: 256 };
    let (client, server) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| -> Vec<TcpStream> {
            (0..300).map(|_| TcpStream::connect(to).expect("it listens")).collect()
        });
        for _ in 0..300 - 256 {
            assert!(is_crowded(&listener.accept(LONG).expect_err("too many")));
        }
        assert_eq!(listener.greeting(), 256);
        let flood = flood.join().expect("no panic");
        let host = &host;
        let client = scope.spawn(|| host.connector.connect(to, host.queue_pair(), on_port(), LONG));
        let incoming = loop {
            match listener.accept(LONG) {
                Ok(incoming) => break incoming,
                Err(error) => assert!(is_crowded(&error), "{error}"),
            }
        };
        let server = incoming.accept(queue_pair, on_port(), LONG);
        drop(flood);
        (client.join().expect("no panic"), server)
    });
    host.talk(&mut client.expect("connected"), &mut server.expect("connected"));
    drop(listener);
    assert_eq!(held().1, before, "descriptors");
}

/// Clients that ask rightly and then go, say nothing, or say what is out of turn.
#[test]
fn a_server_and_its_client() {
    let host = Host::new();
    let mut listener = host.listen(host.ip(1));
    let to = listener.local_addr();
    let good = ConnectRecord::Request(terms(host.ip(2))).to_bytes();
    let before = held().1;
    type Expected = fn(&ExchangeProblem) -> bool;
    let cases: [(&str, &[u8], bool, Expected); 4] = [
        ("goes", &[], true, |p| *p == ExchangeProblem::Closed { received: 0 }),
        ("half", &good[..9], true, |p| *p == ExchangeProblem::Closed { received: 9 }),
        ("again", &good, false, |p| {
            *p == ExchangeProblem::Record(RecordError::OutOfTurn { kind: 1, expected: 3 })
        }),
        ("silent", &[], false, |p| matches!(p, ExchangeProblem::TimedOut { .. })),
    ];
    for (what, then, goes, expected) in cases {
        for posted in [false, true] {
            let mut client = TcpStream::connect(to).expect("it listens");
            client.write_all(&good).expect("there is room");
            let incoming = listener.accept(LONG).expect("a request");
            client.write_all(then).expect("there is room");
            if goes {
                client.shutdown(Shutdown::Write).expect("it is connected");
            }
            let queue_pair = if posted { host.queue_pair() } else { host.bare() };
            let failed = incoming.accept(queue_pair, on_port(), SHORT).expect_err(what);
            assert!(expected(problem(&failed.error)), "{what}: {failed}");
            assert_eq!(step(&failed.error), ExchangeStep::Ready);
            // It had been connected. Brought back, unless that would lose what is posted.
            let state = failed.queue_pair.state().expect("it is asked");
            assert_eq!(state, if posted { QpState::ERR } else { QpState::INIT }, "{what}");
            let told = heard(&mut client);
            let reply = told.first_chunk().expect("a reply");
            assert!(matches!(ConnectRecord::parse(reply), Ok(ConnectRecord::Reply(_))));
        }
    }
    // One who is not reset before the answer: it is gone when the answer is read.
    let client = TcpStream::connect(to).expect("it listens");
    drop(client);
    let error = listener.accept(LONG).expect_err("gone");
    assert!(matches!(problem(&error), ExchangeProblem::Closed { received: 0 }), "{error}");
    assert_eq!(held().1, before, "descriptors");
}

/// Servers that are none, refuse, or never answer; each time the queue pair comes back.
#[test]
fn a_client_and_its_server() {
    let host = Host::new();
    let before = held().1;
    let mut queue_pair = host.queue_pair();
    let silent = TcpListener::bind(SocketAddr::new(host.ip(1), 0)).expect("a free port");
    let to = silent.local_addr().expect("an address");
    let begun = Instant::now();
    let failed = host.connector.connect(to, queue_pair, on_port(), SHORT).expect_err("no answer");
    assert!((SHORT..LONG).contains(&begun.elapsed()));
    assert_eq!(step(&failed.error), ExchangeStep::Reply);
    assert!(matches!(problem(&failed.error), ExchangeProblem::TimedOut { .. }), "{failed}");
    queue_pair = failed.queue_pair;
    let (mut at_server, _) = silent.accept().expect("it came");
    let told = heard(&mut at_server);
    assert_eq!(told.len(), 2 * ConnectRecord::LEN, "the request, and that it was given up");
    drop((at_server, silent));

    let failed = host.connector.connect(to, queue_pair, on_port(), LONG).expect_err("nobody");
    let refused = ExchangeProblem::Tcp { call: "connect", errno: Errno::ECONNREFUSED };
    assert_eq!((problem(&failed.error), step(&failed.error)), (&refused, ExchangeStep::Connect));
    queue_pair = failed.queue_pair;

    let listener = host.listen(host.ip(1));
    let error = Listener::bind(listener.local_addr(), &host.resolver).expect_err("in use");
    let in_use = ExchangeProblem::Tcp { call: "bind", errno: Errno::EADDRINUSE };
    assert_eq!((problem(&error), step(&error)), (&in_use, ExchangeStep::Listen));
    assert!(error.to_string().starts_with(&listener.local_addr().to_string()), "{error}");
    drop(listener);

    // An address without a device, of either end: both are told, and which there are.
    ip(&["addr", "add", "203.0.113.5/32", "dev", "lo"]);
    let nowhere: IpAddr = [203, 0, 113, 5].into();
    let mut listener = host.listen(nowhere);
    let failed = std::thread::scope(|scope| {
        let (host, to) = (&host, listener.local_addr());
        let client = scope.spawn(move || host.connector.connect(to, queue_pair, on_port(), LONG));
        let error = listener.accept(LONG).expect_err("no request");
        let failed = client.join().expect("no panic").expect_err("no device");
        assert_eq!(refusal(&error).0, RefuseReason::NO_SOURCE);
        failed
    });
    let Error::NoDeviceForAddress(there) = &failed.error else { panic!("{failed}") };
    assert!(there.address == nowhere && !there.available.is_empty(), "{there}");
    queue_pair = failed.queue_pair;
    let options = ConnectOptions::new(queue_pair_row(&host));
    let offered = host.queue_pair();
    let (client, server) =
        both(&host, &mut listener, options, |incoming| incoming.accept(offered, on_port(), LONG));
    assert!(matches!(server.expect_err("no device").error, Error::NoDeviceForAddress(_)));
    assert_eq!(refusal(&client.expect_err("told").error).0, RefuseReason::NO_SOURCE);
    ip(&["addr", "del", "203.0.113.5/32", "dev", "lo"]);
    drop(listener);
    assert_eq!(queue_pair.state().expect("it is asked"), QpState::INIT);
    assert_eq!(held().1, before, "descriptors");
}

fn queue_pair_row(host: &Host) -> &'static rdma_verbs::GidEntry {
    let gids = host.context.gids().fresh().expect("the table can be read");
    let row = gids.rows().iter().find(|row| row.ip() == Some(host.ip(1))).expect("it is there");
    Box::leak(Box::new(*row))
}

/// A GID that nobody answers at is found out by the resolver: the kernel would wait a second in RTR.
#[test]
fn a_peer_whose_gid_does_not_answer() {
    let _alone = alone();
    let directory = GidDirectory::open().expect("a directory");
    let resolver = Resolver::open(&directory).expect("a resolver");
    let pair = Pair::new(&directory);
    pair.ask_fast();
    let list = rdma_verbs::DeviceList::new().expect("devices can be listed");
    let context = list.find(&pair.device).expect("it is there").open().expect("it opens");
    let pd = rdma_verbs::ProtectionDomain::new(&context).expect("a PD");
    let cq = rdma_verbs::CompletionQueue::new(&context, 64).expect("a CQ");
    let make = || {
        let made = rdma_verbs::QueuePair::rc(&pd, &cq, &cq).send_depth(2).recv_depth(2).build();
        let init = rdma_verbs::InitOptions::new(rdma_verbs::PortNum::FIRST);
        made.expect("a queue pair").init(&init).expect("to INIT")
    };
    let server = TcpListener::bind(SocketAddr::new(pair.ip(1), 0)).expect("a free port");
    let to = server.local_addr().expect("an address");
    for silent in [pair.ip(99), Ipv4Addr::new(203, 0, 113, 77).into()] {
        let connector = Connector::new(&resolver);
        let (failed, told) = std::thread::scope(|scope| {
            let client = scope.spawn(|| connector.connect(to, make(), on_port(), LONG));
            let (mut stream, _) = server.accept().expect("it comes");
            let mut request = [0; ConnectRecord::LEN];
            stream.read_exact(&mut request).expect("a request");
            let reply = ConnectRecord::Reply(terms(silent)).to_bytes();
            stream.write_all(&reply).expect("there is room");
            let mut told = [0; ConnectRecord::LEN];
            stream.read_exact(&mut told).expect("a refusal");
            (client.join().expect("no panic").expect_err("nobody"), told)
        });
        println!("{failed}");
        let told = ConnectRecord::parse(&told).expect("a valid one");
        let is_told = matches!(told, ConnectRecord::Refusal { reason, .. } if reason == RefuseReason::UNREACHABLE);
        assert!(is_told, "{told:?}");
        match &failed.error {
            Error::Unreachable { neighbour, .. } => assert_eq!(*neighbour, silent),
            Error::Transition(fault) => assert_eq!(fault.errno, Some(Errno::ENETUNREACH)),
            error => panic!("{error}"),
        }
        assert_eq!(failed.queue_pair.state().expect("it is asked"), QpState::INIT);
    }
    // A deadline that is sooner than the kernel's patience holds.
    std::fs::write(format!("/proc/sys/net/ipv4/neigh/{}/retrans_time_ms", pair.near), "1000")
        .expect("the kernel takes it");
    let begun = Instant::now();
    let failed = std::thread::scope(|scope| {
        let connector = Connector::new(&resolver);
        let client = scope.spawn(move || connector.connect(to, make(), on_port(), SHORT));
        let (mut stream, _) = server.accept().expect("it comes");
        stream.write_all(&ConnectRecord::Reply(terms(pair.ip(98))).to_bytes()).expect("room");
        client.join().expect("no panic").expect_err("nobody")
    });
    assert_eq!(step(&failed.error), ExchangeStep::Path, "{failed}");
    assert!((SHORT..Duration::from_secs(1)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let gid = Gid::from(pair.ip(98));
    assert!(!gid.is_zero());
    drop((failed, cq, pd, context, directory, resolver));
}
