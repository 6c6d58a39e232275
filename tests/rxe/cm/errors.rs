//! What the connection manager refuses, and how that is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rdma_verbs::cm::{ConnectionParams, EventChannel};
use rdma_verbs::{CmReason, Errno, Error, GidDirectory, RejectReason, RemoteAccess};

use super::super::pair::Pair;
use super::super::rig::{alone, ip, together};
use super::{PATIENCE, Parts, Place, Server};

fn reason(error: &Error) -> &CmReason {
    match error {
        Error::Cm(fault) => &fault.reason,
        other => panic!("{other}"),
    }
}

/// An interface without an RDMA device; 203.0.113.`n` is its address.
struct Plain(String);

impl Plain {
    fn new(host: u8) -> (Plain, IpAddr) {
        let name = format!("plain{host}");
        ip(&["link", "add", &name, "type", "dummy"]);
        ip(&["link", "set", &name, "up"]);
        let address = Ipv4Addr::new(203, 0, 113, host);
        ip(&["addr", "add", &format!("{address}/32"), "dev", &name]);
        (Plain(name), address.into())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        ip(&["link", "del", &self.0]);
    }
}

#[test]
fn four_ways_of_not_getting_there_have_four_messages() {
    // A directory holds others' devices open, and the kernel makes no namespace while one of them is going.
    let _alone = alone();
    let server = Server::within_alone();
    let (_plain, plain) = Plain::new(201);
    let channel = EventChannel::new().expect("a channel");
    let quick = Duration::from_millis(300);
    let resolve = |to: IpAddr| {
        let resolved = channel.resolve((to, 7174).into(), quick);
        resolved.expect_err("there is no way there")
    };
    let own = server.at().ip();

    // An address of this host that has no device, for a peer and for this side.
    let no_device = resolve(plain);
    let bind = channel.id().expect("an id").bind((plain, 0).into()).expect_err("no device");
    for error in [&no_device, &bind.error] {
        let Error::NoDeviceForAddress(told) = error else { panic!("{error}") };
        assert_eq!(told.address, plain);
        assert!(told.available.iter().any(|there| there.address == own), "{told}");
    }
    // An address that is not of this host.
    let elsewhere: IpAddr = Ipv4Addr::new(203, 0, 113, 77).into();
    let failed = channel.id().expect("an id").bind((elsewhere, 0).into()).expect_err("not here");
    assert!(failed.to_string().contains("not an address of this host"), "{failed}");
    // The id is as it was.
    failed.back.bind((own, 0).into()).expect("bound");

    let no_route = resolve(Ipv4Addr::new(198, 51, 99, 1).into());
    assert!(
        matches!(&no_route, Error::NoRoute { errno: Some(Errno::ENETUNREACH), .. }),
        "{no_route}"
    );

    let directory = GidDirectory::open().expect("a directory");
    let pair = Pair::new(&directory);
    drop(directory);
    let silent = resolve(pair.ip(77));
    assert_eq!(*reason(&silent), CmReason::NoAnswer);

    let id = channel.resolve((own, 9).into(), PATIENCE).expect("resolved");
    let parts = Parts::new(&server.context);
    let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let asked = id.connect(ready, &ConnectionParams::new()).expect("asked");
    let nobody = asked.wait(PATIENCE).expect_err("nobody listens").error;
    assert!(
        matches!(
            reason(&nobody),
            CmReason::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }
        ),
        "{nobody}"
    );

    let texts = [no_device, no_route, silent, nobody].map(|error| error.to_string());
    println!("{texts:#?}");
    for (n, text) in texts.iter().enumerate() {
        assert!(texts.iter().skip(n + 1).all(|other| other != text));
    }
    drop(channel);
}

#[test]
fn private_data_and_depths_beyond_the_limits_are_refused_with_the_limit() {
    let server = Server::new();
    let parts = Parts::new(&server.context);
    let id = server.channel.resolve(server.at(), PATIENCE).expect("resolved");
    let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let params = ConnectionParams::new().private_data(&[1; 57]);
    let failed = id.connect(ready, &params).expect_err("57 bytes");
    assert!(matches!(failed.error, Error::OutOfRange { asked: 57, most: 56, .. }), "{failed}");
    let (id, ready) = failed.back;
    let failed = id.connect(ready, &ConnectionParams::new().reads(255)).expect_err("too many");
    assert!(matches!(failed.error, Error::OutOfRange { asked: 255, .. }), "{failed}");
    let (id, ready) = failed.back;
    let connecting = id.connect(ready, &ConnectionParams::new().private_data(&[1; 56]));
    let connecting = connecting.expect("asked");
    let request = server.request();
    assert_eq!(request.private_data()[..], [1; 56]);
    let ready = request.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let params = ConnectionParams::new().private_data(&[2; 197]);
    let failed = request.accept(ready, &params).expect_err("197 bytes");
    assert!(matches!(failed.error, Error::OutOfRange { asked: 197, most: 196, .. }), "{failed}");
    let error = connecting.wait(PATIENCE).expect_err("the request was dropped").error;
    assert!(
        matches!(reason(&error), CmReason::Rejected { reason: RejectReason::CONSUMER_DEFINED, .. }),
        "{error}"
    );
}

#[test]
fn a_port_in_use() {
    let server = Server::new();
    let channel = EventChannel::new().expect("a channel");
    let failed = channel.id().expect("an id").bind(server.at()).expect_err("in use");
    assert_eq!(*reason(&failed.error), CmReason::AddressInUse);
    let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, server.at().port()));
    let failed = channel.id().expect("an id").bind(all).expect_err("in use on one");
    assert_eq!(*reason(&failed.error), CmReason::AddressInUse);
    // Two that agree to share it, of which one can listen.
    let shared = |port| {
        let mut id = channel.id().expect("an id");
        id.set_reuse_addr(true).expect("set");
        id.bind((server.at().ip(), port).into()).map_err(|failed| failed.error)
    };
    let first = shared(0).expect("bound");
    let second = shared(first.local_addr().expect("bound").port()).expect("bound, too");
    let failed = second.listen(1).expect_err("only one that has it alone can listen");
    assert_eq!(*reason(&failed.error), CmReason::AddressInUse);
    drop(first);
    failed.back.listen(1).expect("it listens");
}

/// A listener at all addresses has no device; each request has its own.
#[test]
fn a_wildcard_listener_has_no_device_and_its_requests_have() {
    let _machine = together();
    let (one, other) = (Place::get(0), Place::get(1));
    let channel = EventChannel::new().expect("a channel");
    let all = channel.id().expect("an id");
    let all = all.bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("bound");
    assert!(all.device().is_none());
    let listener = all.listen(8).expect("it listens");
    assert!(listener.device().is_none());
    let port = listener.local_addr().expect("a port").port();
    let mut kept = Vec::new();
    for place in [one, other] {
        let context = place.open();
        channel.share(&context);
        let parts = Parts::new(&context);
        let at = (place.ip(), port).into();
        let id = channel.resolve(at, PATIENCE).expect("resolved");
        let shared = id.context().expect("shared");
        assert_eq!(shared.device().name(), place.device);
        let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
        let connecting = id.connect(ready, &ConnectionParams::new()).expect("asked");
        let request = listener.accept(PATIENCE).expect("events").expect("a request");
        assert_eq!(request.device().name(), place.device);
        assert_eq!(request.device().port().get(), 1);
        kept.push((request, connecting, parts));
    }
    // A queue pair of the other device.
    let (request, _, _) = &kept[0];
    let failed = request.init(kept[1].2.queue_pair(), RemoteAccess::READ).expect_err("other");
    assert!(matches!(failed.error, Error::OtherDevice { .. }), "{failed}");
}

#[test]
fn a_server_that_does_not_answer_is_given_up_at_the_deadline() {
    let server = Server::new();
    let parts = Parts::new(&server.context);
    let id = server.channel.resolve(server.at(), PATIENCE).expect("resolved");
    let ready = id.init(parts.queue_pair(), RemoteAccess::READ).expect("to INIT");
    let connecting = id.connect(ready, &ConnectionParams::new()).expect("asked");
    let short = Duration::from_millis(50);
    let failed = connecting.wait(short).expect_err("nobody accepts");
    assert_eq!(*reason(&failed.error), CmReason::TimedOut { waited: short });
    // The client has gone: accepting what it asked for fails, at once or when nothing comes of it.
    let request = server.request();
    let gone = match request.init(parts.queue_pair(), RemoteAccess::READ) {
        Err(failed) => failed.error,
        Ok(ready) => match request.accept(ready, &ConnectionParams::new()) {
            Err(failed) => failed.error,
            Ok(accepting) => accepting.wait(PATIENCE).expect_err("gone").error,
        },
    };
    assert!(matches!(reason(&gone), CmReason::Disconnected | CmReason::Rejected { .. }), "{gone}");
    // The listener goes on.
    let client = EventChannel::new().expect("a channel");
    server.connect(&parts, &client);
}
