//! Multicast groups joined through the connection manager.

use std::net::{IpAddr, Ipv4Addr};

use clap::Parser;
use rdma_verbs::cm::{EventChannel, MulticastGroup};
use rdma_verbs::transport::Ud;
use rdma_verbs::wr::{Datagram, Inline, Receive};
use rdma_verbs::{AddressHandle, AddressVector, Error, Gid, Qpn, QueuePair, Rts};

use super::{PATIENCE, Parts, Place};
use crate::multicast_example::{Options, run};
use crate::rig::together;
use crate::ud::received;

fn group(last: u8) -> IpAddr {
    Ipv4Addr::new(239, 80, 1, last).into()
}

fn queue_pair(parts: &Parts, group: &MulticastGroup, receives: usize) -> QueuePair<Rts, Ud> {
    let made = QueuePair::ud(&parts.pd, &parts.cq, &parts.cq).send_depth(8).recv_depth(8);
    let made = made.max_inline(16).build().expect("a queue pair");
    let mut made = group.init(made).expect("to INIT");
    for _ in 0..receives {
        made.recv_queue().post(Receive::new(parts.pool.take().expect("a buffer"))).expect("room");
    }
    made.activate().expect("to RTS")
}

/// Two receivers get every datagram; the sender is not in the group; whoever leaves gets none.
#[test]
fn two_receivers() {
    let _machine = together();
    let place = Place::get(0);
    let channel = EventChannel::new().expect("a channel");
    let joined = channel.join(place.ip(), group(1), PATIENCE).expect("joined");
    assert_eq!((joined.gid(), joined.lid().0), (Gid::from(group(1)), 0));
    assert_eq!(joined.device().map(|device| device.name()), Some(&*place.device));
    let context = joined.context().expect("it opens");
    let mut parts = Parts::new(&context);
    let (mut a, b, c) = (
        queue_pair(&parts, &joined, 0),
        queue_pair(&parts, &joined, 6),
        queue_pair(&parts, &joined, 6),
    );
    let of_b = joined.attach(&b).expect("attached");
    let of_c = joined.attach(&c).expect("attached");
    let address = joined.address().expect("an address");
    assert_eq!(address.source().and_then(|row| row.ip()), Some(place.ip()));
    assert_eq!(address.destination(), joined.gid());
    let to = AddressHandle::new(&parts.pd, &address).expect("a handle");
    let send = |a: &mut QueuePair<Rts, Ud>, to: &AddressHandle, qpn| {
        let datagram = Datagram::new(Inline(b"to all"), to, qpn, joined.qkey());
        a.send_queue().post(datagram.signaled()).expect("room");
    };
    for _ in 0..4 {
        send(&mut a, &to, Qpn::MULTICAST);
        for came in received(&mut parts.cq, 2, 1) {
            assert_eq!((&*came.message, came.source.qpn), (&b"to all"[..], a.qpn()));
        }
    }
    drop(of_b);
    send(&mut a, &to, Qpn::MULTICAST);
    assert_eq!(received(&mut parts.cq, 1, 1).len(), 1);
    // The host has left: the network brings nothing here.
    let (qkey, row) = (joined.qkey(), *address.source().expect("a row"));
    drop(joined);
    let datagram = Datagram::new((), &to, Qpn::MULTICAST, qkey).signaled();
    a.send_queue().post(datagram).expect("room");
    let here = AddressVector::new(&row, row.gid());
    let here = AddressHandle::new(&parts.pd, &here).expect("a handle");
    let datagram = Datagram::new(Inline(b"after"), &here, c.qpn(), qkey).signaled();
    a.send_queue().post(datagram).expect("room");
    assert_eq!(received(&mut parts.cq, 1, 2)[0].message, b"after");
    drop(of_c);
    assert_eq!(context.leaks(), 0);
}

/// Joined twice on one channel, on several, and let go of in any order, with what was made of it.
#[test]
fn let_go_of_in_any_order() {
    let _machine = together();
    let place = Place::get(0);
    let mut random = crate::seed::Random::new("cm::multicast");
    for _ in 0..20 {
        let channel = EventChannel::new().expect("a channel");
        let join = |last| channel.join(place.ip(), group(last), PATIENCE).expect("joined");
        let (one, again, other) = (join(2), join(2), join(3));
        let context = one.context().expect("it opens");
        let parts = Parts::new(&context);
        let a = queue_pair(&parts, &one, 2);
        let (first, second) =
            (one.attach(&a).expect("attached"), other.attach(&a).expect("attached"));
        let mut all: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(channel.clone()),
            Box::new(one),
            Box::new(again),
            Box::new(other),
            Box::new(parts),
            Box::new(a),
            Box::new(first),
            Box::new(second),
        ];
        while !all.is_empty() {
            drop(all.swap_remove(random.below(all.len() as u32) as usize));
        }
        drop(channel);
        assert_eq!(context.leaks(), 0);
    }
}

#[test]
fn groups_that_cannot_be_joined() {
    let _machine = together();
    let place = Place::get(0);
    let channel = EventChannel::new().expect("a channel");
    let failed = |here: IpAddr, group: IpAddr| {
        channel.join(here, group, PATIENCE).map(|_| ()).expect_err("it cannot be joined")
    };
    let nowhere = Ipv4Addr::LOCALHOST.into();
    let error = failed(nowhere, group(4));
    assert!(!error.to_string().contains('\n'), "{error}");
    let error = failed(Ipv4Addr::new(203, 0, 113, 7).into(), group(4));
    assert!(matches!(error, Error::NoDeviceForAddress(_)), "{error}");
    // What is no group, and what is of the other family.
    for group in [place.ip(), "ff0e::1".parse().expect("an address")] {
        let error = failed(place.ip(), group);
        assert!(matches!(error, Error::BadAddress { .. }), "{error}");
        assert!(error.to_string().contains("is no multicast group of"), "{error}");
    }
    // Of another device.
    let joined = channel.join(place.ip(), group(5), PATIENCE).expect("joined");
    let other = Parts::new(&Place::get(1).open());
    let (parts, wanted) = (Parts::new(&joined.context().expect("open")), joined.qkey());
    let made = QueuePair::ud(&other.pd, &other.cq, &other.cq).build().expect("a queue pair");
    let failed = joined.init(made).expect_err("another device");
    assert!(matches!(failed.error, Error::OtherDevice { .. }), "{}", failed.error);
    let a = queue_pair(&parts, &joined, 0);
    assert_ne!(wanted.get(), 0);
    joined.attach(&a).expect("attached").detach().expect("left");
}

#[test]
fn the_example() {
    let _machine = together();
    let place = Place::get(0);
    let (here, group) = (place.ip().to_string(), group(9).to_string());
    let options = |more: &[&str]| {
        Options::try_parse_from([&["multicast", &here, &group], more].concat()).expect("arguments")
    };
    let long = "x".repeat(200);
    for text in ["hello", &long] {
        let output = run(&options(&["--both", "--send", text, "-n", "3"])).expect("it runs");
        let lines: Vec<_> = output.lines().collect();
        assert_eq!(lines.len(), 6, "{output}");
        for receiver in ["receiver 0: ", "receiver 1: "] {
            let of = lines.iter().filter(|line| line.starts_with(receiver) && line.ends_with(text));
            assert_eq!(of.count(), 3, "{output}");
        }
    }
    let sent = run(&options(&["--send", "to nobody", "-n", "2"])).expect("it runs");
    assert_eq!(sent, format!("2 datagrams sent to {group}\n"));
    let error = run(&options(&["--timeout", "0.3"])).expect_err("nobody sends");
    assert!(error.contains("the next datagram did not come within the time"), "{error}");
    let error = run(&options(&["--send", &"x".repeat(257)])).expect_err("too long");
    assert!(error.contains("a text of 257 bytes: at most 256"), "{error}");
    let no_group = Options::try_parse_from(["multicast", &here, &here]).expect("arguments");
    assert!(run(&no_group).expect_err("no group").contains("is no multicast group"));
}
