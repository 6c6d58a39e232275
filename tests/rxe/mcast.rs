//! Multicast groups, on rxe.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use rdma_verbs::wr::{Datagram, Inline};
use rdma_verbs::{AddressHandle, AddressVector, Error, Gid, MulticastAttachment, Qpn};

use super::rig::{Rig, ip};
use super::ud::{Ground, QKEY, received, row_of};

/// A group of this rig's own, and the socket by which the host is in it.
fn joined(rig: &Rig) -> (Gid, UdpSocket) {
    let group = Ipv4Addr::new(239, 77, 0, rig.number());
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let here = Ipv4Addr::new(198, 18, rig.number(), 1);
    socket.join_multicast_v4(&group, &here).expect("the host is in the group");
    (group.into(), socket)
}

/// Two receivers get every datagram, once; the sender is in no group; who has left gets none.
#[test]
fn two_receivers() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let (group, _socket) = joined(&rig);
    let (mut a, b, c) = (ground.queue_pair(4), ground.queue_pair(16), ground.queue_pair(16));
    let of_b = MulticastAttachment::new(&b, group).expect("attached");
    let twice = MulticastAttachment::new(&b, group).expect("attached");
    let of_c = MulticastAttachment::new(&c, group).expect("attached");
    assert_eq!(of_b.group(), group);
    let to =
        AddressHandle::new(&ground.pd, &AddressVector::new(&ground.row, group)).expect("a handle");
    for number in 0..8_u32 {
        let text = Datagram::new(Inline(b"to all"), &to, Qpn::MULTICAST, QKEY).imm(number);
        a.send_queue().post(text.signaled()).expect("room");
        let came = received(&mut ground.cq, 2, 1);
        for came in &came {
            assert_eq!((came.imm, &*came.message), (Some(number), &b"to all"[..]));
            assert_eq!((came.source.qpn, came.from, came.to), (a.qpn(), ground.row.gid(), group));
        }
    }
    // It is in the group as long as anybody wants it there.
    drop(of_b);
    let send = |a: &mut rdma_verbs::QueuePair<_, _>| {
        let text = Datagram::new((), &to, Qpn::MULTICAST, QKEY);
        a.send_queue().post(text.signaled()).expect("room");
    };
    send(&mut a);
    assert_eq!(received(&mut ground.cq, 2, 1).len(), 2);
    twice.detach().expect("it was there");
    send(&mut a);
    assert_eq!(received(&mut ground.cq, 1, 1).len(), 1);
    // What is sent to itself comes after what would have come.
    let text = Datagram::new(Inline(b"b"), &ground.here(), b.qpn(), QKEY).signaled();
    a.send_queue().post(text).expect("room");
    assert_eq!(received(&mut ground.cq, 1, 1)[0].message, b"b");
    // The queue pair goes first, and the attachment after it.
    drop(c);
    drop(of_c);
    assert_eq!(ground.context.leaks(), 0);
}

/// The same over IPv6.
#[test]
fn a_group_of_ipv6() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let number = rig.number();
    let here: IpAddr = format!("2001:db8:77:{number:x}::1").parse().expect("an address");
    ip(&["addr", "add", &format!("{here}/128"), "dev", &rig.netdev, "nodad"]);
    let row = row_of(&ground.context, here);
    let group = format!("ff0e::77:{number:x}").parse().expect("an address");
    let socket = UdpSocket::bind("[::]:0").expect("a socket");
    let interface = row.ifindex().expect("an interface");
    socket.join_multicast_v6(&group, interface).expect("the host is in the group");
    let (mut a, b) = (ground.queue_pair(0), ground.queue_pair(2));
    let _attached = MulticastAttachment::new(&b, group.into()).expect("attached");
    let address = AddressVector::new(&row, group.into());
    let to = AddressHandle::new(&ground.pd, &address).expect("a handle");
    let text = Datagram::new(Inline(b"six"), &to, Qpn::MULTICAST, QKEY);
    a.send_queue().post(text.signaled()).expect("room");
    let came = received(&mut ground.cq, 1, 1);
    assert_eq!((&*came[0].message, came[0].to), (&b"six"[..], group.into()));
}

/// More than the device has is an error that tells the limits, and it goes on.
#[test]
fn more_than_there_is_room_for() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let limits = ground.context.limits();
    let group = |number: u32| Gid::from(Ipv4Addr::from(0xef00_0000 | number));
    let members: Vec<_> =
        (0..=limits.max_mcast_qp_attach).map(|_| ground.small_queue_pair()).collect();
    let (last, others) = members.split_last().expect("some");
    let attach = |of: &_, number| MulticastAttachment::new(of, group(number));
    let mut attached: Vec<_> =
        others.iter().map(|of| attach(of, 1).expect("there is room")).collect();
    let error = attach(last, 1).expect_err("it is full");
    let Error::MulticastFull { in_each, groups, .. } = &error else { panic!("{error}") };
    assert_eq!((*in_each, *groups), (limits.max_mcast_qp_attach, limits.max_mcast_grp));
    assert!(error.to_string().contains(&format!("{in_each} queue pairs in each")), "{error}");
    attached.pop();
    let again = attach(last, 1).expect("there is room again");
    drop((again, attached));

    let mut attached = Vec::new();
    for number in 0..limits.max_mcast_grp {
        attached.push(attach(last, number).expect("there is room"));
    }
    let error = attach(last, limits.max_mcast_grp).expect_err("it is full");
    assert!(matches!(error, Error::MulticastFull { .. }), "{error}");
    let (named, groups) = (group(limits.max_mcast_grp), limits.max_mcast_grp);
    let told = format!("{}: no room for {named}: it can have {groups} multicast", rig.device);
    assert!(error.to_string().starts_with(&told), "{error}");
    attached.truncate(7);
    attached.push(attach(last, limits.max_mcast_grp).expect("there is room again"));
    drop(attached);

    let error = MulticastAttachment::new(last, ground.row.gid()).expect_err("no group");
    assert!(matches!(error, Error::BadAddress { .. }), "{error}");
    assert!(error.to_string().ends_with("is no multicast group"), "{error}");
    drop(members);
    assert_eq!(ground.context.leaks(), 0);
}

/// Queue pair, attachments and all else go in any order.
#[test]
fn any_order() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let (group, _socket) = joined(&rig);
    let mut random = super::seed::Random::new("mcast::any_order");
    for _ in 0..40 {
        let queue_pair = ground.small_queue_pair();
        let attach = || MulticastAttachment::new(&queue_pair, group).expect("attached");
        let (one, two) = (attach(), attach());
        let other = Gid::from(Ipv4Addr::new(239, 78, 0, 1));
        let three = MulticastAttachment::new(&queue_pair, other).expect("attached");
        let mut all: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(queue_pair), Box::new(one), Box::new(two), Box::new(three)];
        while !all.is_empty() {
            drop(all.swap_remove(random.below(all.len() as u32) as usize));
        }
    }
    assert_eq!(ground.context.leaks(), 0);
}
