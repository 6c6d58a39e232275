//! The records and the state machine, over socket pairs: no device.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::machine::{End, Left, Machine};
use super::record::{ConnectRecord, PrivateData, Terms};
use super::wire::Wire;
use crate::error::{Error, ExchangeProblem, ExchangeStep, RecordError, Result};
use crate::qp::Endpoint;
use crate::types::{Gid, GidType, Lid, Mtu, Psn, Qpn, RefuseReason, RemoteAccess};

const LONG: Duration = Duration::from_secs(20);

fn somewhere() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 7471))
}

fn terms(qpn: u32) -> Terms {
    Terms {
        endpoint: Endpoint {
            qpn: Qpn::from_raw(qpn),
            psn: Psn::random(),
            gid: Some(Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1))),
            lid: Lid(0),
            mtu: Some(Mtu::B1024),
            reads: Some(4),
            access: Some(RemoteAccess::READ | RemoteAccess::WRITE),
        },
        gid_type: Some(GidType::ROCE_V2),
        reads: 2,
        timeout: Duration::from_nanos(4096 << 14),
        retry_count: 6,
        rnr_retry: 7,
        min_rnr_timer: Duration::from_micros(640),
        private_data: PrivateData::new(b"hello").expect("it is short"),
    }
}

#[test]
fn records_say_what_they_were_made_of() {
    let text = PrivateData::text("a\nb\u{e9}");
    for record in [
        ConnectRecord::Request(terms(2)),
        ConnectRecord::Reply(terms(0xff_ffff)),
        ConnectRecord::Ready,
        ConnectRecord::Refusal { reason: RefuseReason::BUSY, text },
    ] {
        assert_eq!(ConnectRecord::parse(&record.to_bytes()), Ok(record));
    }
    assert_eq!(text.as_text(), "a b\u{e9}");
    let long = "\u{20ac}".repeat(100);
    assert_eq!(PrivateData::text(&long).as_text(), "\u{20ac}".repeat(64), "cut between characters");
    assert!(PrivateData::new(&[1; 192]).is_ok());
    let error = PrivateData::new(&[1; 193]).expect_err("one too many");
    assert_eq!(error.to_string(), "the length of private data is to be 193: it can be 0 to 192");
}

/// The layout is a promise: numbers at their places, in network order.
#[test]
fn the_layout() {
    let bytes = ConnectRecord::Request(terms(0x01_0203)).to_bytes();
    assert_eq!(&bytes[..12], b"rdmaverb\0\x01\x01\x03");
    assert_eq!(bytes[12..16], [0, 1, 2, 3]);
    assert_eq!((bytes[22], bytes[23]), (3, 6));
    assert_eq!(bytes[34..40], [0xff, 0xff, 192, 0, 2, 1]);
    assert_eq!(bytes[40..49], [4, 2, 14, 6, 7, 12, 0, 0, 5]);
    assert_eq!(&bytes[64..70], b"hello\0");
}

#[test]
fn every_field_is_checked() {
    let good = ConnectRecord::Request(terms(17)).to_bytes();
    let wrong = |changes: &[(usize, u8)]| {
        let mut bytes = good;
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        ConnectRecord::parse(&bytes).expect_err("it is wrong")
    };
    let own = |at, to| wrong(&[(at, to)]);
    assert!(matches!(own(0, b'R'), RecordError::Magic(_)));
    assert_eq!(own(9, 2), RecordError::Version { theirs: 2, ours: 1 });
    assert_eq!(own(10, 0), RecordError::Kind(0));
    assert_eq!(own(10, 5), RecordError::Kind(5));
    assert_eq!(own(10, 3), RecordError::Reserved { at: 11 });
    assert_eq!(own(11, 4), RecordError::GidType(4));
    assert_eq!(own(12, 1), RecordError::Qpn(0x0100_0011));
    assert_eq!(own(15, 1), RecordError::Qpn(1));
    assert!(matches!(own(16, 1), RecordError::Psn(0x0100_0000..)));
    assert_eq!(own(21, 9), RecordError::Lid(9), "no LID on Ethernet");
    assert_eq!(own(22, 0), RecordError::Mtu(0));
    assert_eq!(own(22, 6), RecordError::Mtu(6));
    assert_eq!(own(23, 1), RecordError::Reserved { at: 23 });
    let no_gid: Vec<_> = (24..40).map(|at| (at, 0)).collect();
    assert_eq!(wrong(&no_gid), RecordError::ZeroGid);
    assert!(matches!(own(36, 239), RecordError::Gid(_)), "a group");
    assert!(matches!(own(36, 127), RecordError::Gid(_)), "loopback");
    assert!(matches!(own(24, 0xff), RecordError::Gid(_)), "a group");
    assert!(matches!(own(11, 0), RecordError::Gid(_)), "by LID, and with a GID");
    assert_eq!(own(11, 1), RecordError::Lid(0), "InfiniBand without a LID");
    assert_eq!(wrong(&[(11, 1), (20, 0xc0)]), RecordError::Lid(0xc000), "multicast");
    for (at, most) in [(42, 31), (43, 7), (44, 7), (45, 31)] {
        let error = own(at, most + 1);
        assert!(
            matches!(error, RecordError::Setting { value, .. } if value == most + 1),
            "{error}"
        );
    }
    assert_eq!(own(46, 1), RecordError::Reserved { at: 46 }, "a reason");
    assert!(matches!(own(48, 193), RecordError::Setting { value: 193, most: 192, .. }));
    assert_eq!(own(63, 1), RecordError::Reserved { at: 63 });
    assert_eq!(own(255, 1), RecordError::Reserved { at: 255 });
    let refusal = |reason, text: &[u8]| {
        let text = PrivateData::new(text).expect("it is short");
        let reason = RefuseReason::from_raw(reason);
        ConnectRecord::parse(&ConnectRecord::Refusal { reason, text }.to_bytes())
    };
    assert_eq!(refusal(0, b""), Err(RecordError::NoReason));
    assert_eq!(refusal(1, b"\xff"), Err(RecordError::Text));
    assert_eq!(refusal(1, b"\x1b[2J"), Err(RecordError::Text));
    assert!(refusal(4711, b"").is_ok(), "unknown reasons are carried");
    let mut later = ConnectRecord::Refusal { reason: RefuseReason::BUSY, text: PrivateData::EMPTY };
    let mut bytes = later.to_bytes();
    bytes[9] = 2;
    assert_eq!(ConnectRecord::parse(&bytes), Ok(later), "one of a later version");
    later = ConnectRecord::Ready;
    let mut bytes = later.to_bytes();
    bytes[9] = 2;
    assert_eq!(
        ConnectRecord::parse(&bytes),
        Err(RecordError::Version { theirs: 2, ours: 1 }),
        "told of the version first"
    );
}

/// An end that does what it is told to.
struct Scripted {
    mine: Terms,
    /// Until it is readable there is no path.
    path: Option<OwnedFd>,
    no_path: bool,
    fails: bool,
    up: Option<Terms>,
}

impl Scripted {
    fn new(qpn: u32) -> Scripted {
        Scripted { mine: terms(qpn), path: None, no_path: false, fails: false, up: None }
    }
}

impl End for Scripted {
    fn offer(&mut self, _: SocketAddr, _: Option<&Terms>) -> Result<Terms> {
        Ok(self.mine)
    }

    fn path(&mut self, _: &Terms) -> Poll<Result<()>> {
        if self.no_path {
            let (to, reason) = ("nowhere".into(), "a script".into());
            return Poll::Ready(Err(Error::NoRoute { to, reason, errno: None }));
        }
        let Some(wake) = &self.path else { return Poll::Ready(Ok(())) };
        match rustix::io::read(wake, &mut [0; 8]) {
            Ok(_) => {
                self.path = None;
                Poll::Ready(Ok(()))
            }
            Err(_) => Poll::Pending,
        }
    }

    fn path_fd(&self) -> Option<BorrowedFd<'_>> {
        self.path.as_ref().map(AsFd::as_fd)
    }

    fn up(&mut self, mine: &mut Terms, peer: &Terms) -> Result<()> {
        if self.fails {
            return Err(Error::NoChannel);
        }
        mine.endpoint.mtu = mine.endpoint.mtu.min(peer.endpoint.mtu);
        self.up = Some(*peer);
        Ok(())
    }
}

/// Two machines that are connected, the client's and the server's; the server's has the request.
fn both(client: Scripted, server: Scripted) -> (Machine<Scripted>, Machine<Scripted>) {
    let (near, far) = UnixStream::pair().expect("a socket pair");
    near.set_nonblocking(true).expect("it can be");
    far.set_nonblocking(true).expect("it can be");
    let mut client = Machine::client_on(client, (Wire::new(near.into()), somewhere()), LONG);
    assert_eq!(client.advance(), Poll::Pending);
    let mut wire = Wire::new(far.into());
    let Poll::Ready(Ok(ConnectRecord::Request(request))) = wire.receive() else {
        panic!("no request")
    };
    (client, Machine::server(server, (wire, somewhere()), (somewhere(), request), LONG))
}

/// One machine, and the stream to its other end.
fn alone(is_client: bool, timeout: Duration) -> (Machine<Scripted>, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a socket pair");
    near.set_nonblocking(true).expect("it can be");
    let wire = (Wire::new(near.into()), somewhere());
    let machine = match is_client {
        true => Machine::client_on(Scripted::new(17), wire, timeout),
        false => Machine::server(Scripted::new(17), wire, (somewhere(), terms(18)), timeout),
    };
    (machine, far)
}

fn problem(left: Left<Scripted>) -> (ExchangeStep, ExchangeProblem) {
    match left.outcome {
        Err(Error::Exchange(fault)) => (fault.step, fault.problem),
        other => panic!("{:?}", other.map(|(terms, _)| terms)),
    }
}

#[test]
fn both_ends_come_up_and_tell_each_other() {
    let mut small = Scripted::new(17);
    small.mine.endpoint.mtu = Some(Mtu::B512);
    let (mut client, mut server) = both(small, Scripted::new(18));
    assert_eq!(server.advance(), Poll::Pending, "it waits for the last word");
    assert!(server.end.up.is_some(), "it can receive before it replies");
    assert_eq!(client.advance(), Poll::Ready(()));
    assert_eq!(server.advance(), Poll::Ready(()));
    let (client, server) = (client.finish(), server.finish());
    let (of_server, _) = client.outcome.expect("it is connected");
    let (of_client, _) = server.outcome.expect("it is connected");
    assert_eq!((of_server.endpoint.qpn.get(), of_client.endpoint.qpn.get()), (18, 17));
    assert_eq!(of_server.endpoint.mtu, Some(Mtu::B512), "the one that is used");
    assert_eq!((client.end.up, server.end.up), (Some(of_server), Some(of_client)));
}

/// Every step waits on one descriptor, which is readable when there is more to do.
#[test]
fn one_descriptor_for_a_loop() {
    let wake = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let (mut near, mut far) = (Scripted::new(17), Scripted::new(18));
    (near.path, far.path) = (Some(wake()), Some(wake()));
    let wakes: Vec<OwnedFd> = [&near.path, &far.path]
        .map(|wake| wake.as_ref().expect("there").try_clone().expect("a copy"))
        .into();
    let (mut client, mut server) = both(near, far);
    let readable = |machine: &Machine<Scripted>| {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let set = machine.set().expect("it has been pending");
        poll(&mut [PollFd::from_borrowed_fd(set, PollFlags::IN)], Some(&at_once)) == Ok(1)
    };
    let go = |wake: &OwnedFd| rustix::io::write(wake, &1_u64.to_ne_bytes()).expect("it counts");
    assert_eq!(server.advance(), Poll::Pending);
    assert!(!readable(&server) && !readable(&client));
    go(&wakes[1]);
    assert!(readable(&server));
    assert_eq!(server.advance(), Poll::Pending);
    assert!(!readable(&server) && readable(&client), "the reply has come");
    assert_eq!(client.advance(), Poll::Pending);
    assert!(!readable(&client));
    go(&wakes[0]);
    assert!(readable(&client));
    assert_eq!(client.advance(), Poll::Ready(()));
    assert!(readable(&server));
    assert_eq!(server.advance(), Poll::Ready(()));
    assert!(client.finish().outcome.is_ok() && server.finish().outcome.is_ok());
}

#[test]
fn what_fails_at_one_end_is_told_at_the_other() {
    type Break = fn(&mut Scripted);
    let no_path: Break = |end| end.no_path = true;
    let device: Break = |end| end.fails = true;
    for (fault, reason) in [(no_path, RefuseReason::UNREACHABLE), (device, RefuseReason::DEVICE)] {
        for at_client in [true, false] {
            let (mut near, mut far) = (Scripted::new(17), Scripted::new(18));
            fault(if at_client { &mut near } else { &mut far });
            let (mut client, mut server) = both(near, far);
            let _ = server.advance();
            assert_eq!(client.advance(), Poll::Ready(()));
            assert_eq!(server.advance(), Poll::Ready(()));
            let (client, server) = (client.finish(), server.finish());
            let (own, others) = if at_client { (client, server) } else { (server, client) };
            let error = own.outcome.expect_err("it failed");
            let (_, told) = problem(others);
            let text = error.to_string().into();
            assert_eq!(told, ExchangeProblem::Refused { reason, text });
        }
    }
}

#[test]
fn giving_up_is_told_too() {
    let (client, mut server) = both(Scripted::new(17), Scripted::new(18));
    assert_eq!(server.advance(), Poll::Pending);
    assert_eq!(problem(client.finish()), (ExchangeStep::Reply, ExchangeProblem::Abandoned));
    assert_eq!(server.advance(), Poll::Ready(()));
    let (step, told) = problem(server.finish());
    let is_it = matches!(told, ExchangeProblem::Refused { reason: RefuseReason::ABANDONED, .. });
    assert!(step == ExchangeStep::Ready && is_it, "{told:?}");
}

#[test]
fn a_peer_that_goes_or_says_half_or_nonsense() {
    let reply = ConnectRecord::Reply(terms(18)).to_bytes();
    let mut later = reply;
    later[9] = 2;
    let cases: [(&[u8], ExchangeProblem); 6] = [
        (&[], ExchangeProblem::Closed { received: 0 }),
        (&reply[..100], ExchangeProblem::Closed { received: 100 }),
        (b"SSH-", ExchangeProblem::Record(RecordError::Magic(*b"SSH-\0\0\0\0"))),
        (
            &later[..10],
            ExchangeProblem::Closed { received: 10 }, // it might still become a refusal
        ),
        (&later, ExchangeProblem::Record(RecordError::Version { theirs: 2, ours: 1 })),
        (
            &ConnectRecord::Ready.to_bytes(),
            ExchangeProblem::Record(RecordError::OutOfTurn { kind: 3, expected: 2 }),
        ),
    ];
    for (sent, expected) in cases {
        let (mut client, mut far) = alone(true, LONG);
        assert_eq!(client.advance(), Poll::Pending);
        far.write_all(sent).expect("there is room");
        far.shutdown(std::net::Shutdown::Write).expect("it is connected");
        client.run();
        assert_eq!(problem(client.finish()), (ExchangeStep::Reply, expected.clone()));
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).expect("it is closed");
        let told = heard.len() - ConnectRecord::LEN;
        let is_told = matches!(expected, ExchangeProblem::Record(_));
        assert_eq!(told, if is_told { ConnectRecord::LEN } else { 0 }, "{expected:?}");
    }
}

/// Byte by byte, and more than was asked for: no more than a record is read.
#[test]
fn records_in_pieces_and_too_much() {
    let (mut client, mut far) = alone(true, LONG);
    assert_eq!(client.advance(), Poll::Pending);
    for byte in ConnectRecord::Reply(terms(18)).to_bytes() {
        assert_eq!(client.advance(), Poll::Pending);
        far.write_all(&[byte]).expect("there is room");
    }
    far.write_all(b"for the program").expect("there is room");
    assert_eq!(client.advance(), Poll::Ready(()));
    let (_, socket) = client.finish().outcome.expect("it is connected");
    let mut stream = UnixStream::from(socket);
    far.shutdown(std::net::Shutdown::Write).expect("it is connected");
    stream.set_nonblocking(false).expect("it can be");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("it is a text");
    assert_eq!(rest, "for the program");
}

/// What the server says while the client looks for the path is heard before the last word: else only the
/// server would know.
#[test]
fn a_server_that_gives_up_while_the_path_is_looked_for() {
    let wake = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    for gives_up in [true, false] {
        let mut near = Scripted::new(17);
        near.path = Some(wake.try_clone().expect("a copy"));
        let (mut client, mut server) = both(near, Scripted::new(18));
        assert_eq!(server.advance(), Poll::Pending);
        assert_eq!(client.advance(), Poll::Pending, "it looks for the path");
        let server = if gives_up { Err(server.finish()) } else { Ok(server) };
        rustix::io::write(&wake, &1_u64.to_ne_bytes()).expect("it counts");
        assert_eq!(client.advance(), Poll::Ready(()));
        let client = client.finish();
        assert!(client.end.up.is_some());
        match server {
            Err(_) => {
                let (step, told) = problem(client);
                let reason = RefuseReason::ABANDONED;
                let is_told =
                    matches!(told, ExchangeProblem::Refused { reason: its, .. } if its == reason);
                assert!(step == ExchangeStep::Path && is_told, "{step}: {told:?}");
            }
            Ok(_) => assert!(client.outcome.is_ok()),
        }
    }
}

#[test]
fn a_silent_peer_ends_with_the_deadline() {
    let short = Duration::from_millis(50);
    for is_client in [true, false] {
        let (mut machine, far) = alone(is_client, short);
        let begun = Instant::now();
        machine.run();
        assert!((short..LONG).contains(&begun.elapsed()));
        let (_, problem) = problem(machine.finish());
        assert!(matches!(problem, ExchangeProblem::TimedOut { waited } if waited >= short));
        drop(far);
    }
}
