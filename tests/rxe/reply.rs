//! Answers to datagrams: where they go, and what finding that costs, beside C.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Datagram, Inline};
use rdma_verbs::{
    AddressHandle, AddressVector, DeviceList, Error, Gid, GidDirectory, GidEntry, Grh,
    MulticastAttachment, PortNum, Qpn, Wanted,
};

use super::raw::Raw;
use super::rig::{Rig, alone, ip, wait_until};
use super::ud::{Came, Ground, QKEY, received, row_of};

/// The row that the peer's datagrams come to, of 250.
const INDEX: u32 = 200;
const ADDRESSES: u32 = 250;

/// A datagram from one row to another.
fn datagram(ground: &mut Ground, from: &GidEntry, to: &GidEntry) -> Came {
    let (mut a, b) = (ground.queue_pair(0), ground.queue_pair(1));
    let to = AddressHandle::new(&ground.pd, &AddressVector::new(from, to.gid())).expect("a handle");
    let text = Datagram::new(Inline(b"question"), &to, b.qpn(), QKEY);
    a.send_queue().post(text.signaled()).expect("room");
    received(&mut ground.cq, 1, 1).remove(0)
}

/// The answer goes back by the row that the question came to, over both families.
#[test]
fn over_ipv4_and_ipv6() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let mut rows = vec![ground.row];
    let number = rig.number();
    for address in [
        format!("198.18.{number}.2/32"),
        format!("2001:db8:{number:x}::1/128"),
        format!("2001:db8:{number:x}::2/128"),
    ] {
        ip(&["addr", "add", &address, "dev", &rig.netdev]);
        let address = address.split('/').next().expect("an address");
        rows.push(row_of(&ground.context, address.parse().expect("an address")));
    }
    let directory = GidDirectory::open().expect("a directory");
    for [one, two] in [[rows[0], rows[1]], [rows[2], rows[3]]] {
        let (mut a, mut b) = (ground.queue_pair(1), ground.queue_pair(1));
        let address = AddressVector::new(&one, two.gid()).traffic_class(0x28);
        let to = AddressHandle::new(&ground.pd, &address).expect("a handle");
        let text = Datagram::new(Inline(b"question"), &to, b.qpn(), QKEY);
        a.send_queue().post(text.signaled()).expect("room");
        let came = received(&mut ground.cq, 1, 1).remove(0);
        let grh = Grh::of(&came.header).expect("40 bytes");
        let back = AddressHandle::reply(&ground.pd, PortNum::FIRST, &came.source, &grh);
        let back = back.expect("a handle");
        let source = back.source().map(|row| row.gid());
        assert_eq!((source, back.address().destination()), (Some(two.gid()), one.gid()));
        // A directory's snapshot says the same.
        let snapshot = directory.checked().expect("a lookup");
        let gids = snapshot.device(&rig.device).expect("the device").gids();
        let address = AddressVector::reply(gids, PortNum::FIRST, &came.source, &grh);
        let address = address.expect("a row");
        assert_eq!(address.source().map(|row| row.index()), Some(two.index()));
        assert_eq!(address.destination(), one.gid());

        let text = Datagram::new(Inline(b"answer"), &back, came.source.qpn, QKEY);
        b.send_queue().post(text.signaled()).expect("room");
        let came = received(&mut ground.cq, 1, 1).remove(0);
        assert_eq!((came.from, came.to, came.tos.0), (two.gid(), one.gid(), 0x28));
        assert_eq!(came.message, b"answer");
    }
    drop(directory);
}

/// What came to a group has no row to answer from; nor has what came to an address that has gone, once that is
/// known; and one that is new is found though nobody has looked.
#[test]
fn rows_that_are_not_there() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let number = rig.number();
    let group = Ipv4Addr::new(239, 79, 0, number);
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.join_multicast_v4(&group, &Ipv4Addr::new(198, 18, number, 1)).expect("joined");
    let (mut a, b) = (ground.queue_pair(0), ground.queue_pair(1));
    let _attached = MulticastAttachment::new(&b, group.into()).expect("attached");
    let address = AddressVector::new(&ground.row, group.into());
    let to = AddressHandle::new(&ground.pd, &address).expect("a handle");
    let text = Datagram::new(Inline(b"to all"), &to, Qpn::MULTICAST, QKEY);
    a.send_queue().post(text.signaled()).expect("room");
    let came = received(&mut ground.cq, 1, 1).remove(0);
    let reply = |came: &Came| {
        let grh = Grh::of(&came.header).expect("40 bytes");
        AddressHandle::reply(&ground.pd, PortNum::FIRST, &came.source, &grh)
    };
    let error = reply(&came).expect_err("a group");
    let Error::GidNotFound { wanted: Wanted::Gid(wanted), .. } = &error else { panic!("{error}") };
    assert_eq!(*wanted, Gid::from(group));

    let second = format!("198.18.{number}.2/32");
    ip(&["addr", "add", &second, "dev", &rig.netdev]);
    // Another reader's table, so that the context is told of nothing.
    let other = rig.open();
    let row = row_of(&other, Ipv4Addr::new(198, 18, number, 2).into());
    assert!(ground.context.gids().cached().by_gid(&row.gid()).is_empty());
    let from = ground.row;
    let came = datagram(&mut ground, &from, &row);
    let reply = |came: &Came| {
        let grh = Grh::of(&came.header).expect("40 bytes");
        AddressHandle::reply(&ground.pd, PortNum::FIRST, &came.source, &grh)
    };
    assert_eq!(reply(&came).expect("found").source().map(|row| row.gid()), Some(row.gid()));
    ip(&["addr", "del", &second, "dev", &rig.netdev]);
    wait_until("the row has gone", || {
        other.gids().fresh().expect("a read").by_gid(&row.gid()).is_empty()
    });
    let error = reply(&came).expect_err("it has gone");
    assert!(matches!(error, Error::GidMoved(_) | Error::GidNotFound { .. }), "{error}");
}

/// A datagram that came to the row at that index, of a device with 250 addresses.
fn far_down(device: &str) -> (Ground, Came) {
    let list = DeviceList::new().expect("a list");
    let context = list.find(device).expect("it is listed").open().expect("it opens");
    let rows = context.gids().fresh().expect("a read");
    let at = |index| *rows.row(PortNum::FIRST, index).expect("a row");
    let (from, to) = (at(1), at(INDEX));
    drop(rows);
    let mut ground = Ground::on(context, from);
    let came = datagram(&mut ground, &from, &to);
    (ground, came)
}

/// Finding the row takes a fiftieth of the time that C's way through the table does, at most, and finds the same.
#[test]
fn the_row_is_found_without_a_walk() {
    let _alone = alone();
    let rig = Rig::within_alone();
    rig.add_addresses(&rig.open(), ADDRESSES);
    let (ground, came) = far_down(&rig.device);
    let raw = Raw::open(&rig.device);
    let grh = Grh::of(&came.header).expect("40 bytes");
    let snapshot = ground.context.gids().cached();
    let ours = || AddressVector::reply(&snapshot, PortNum::FIRST, &came.source, &grh);
    let address = ours().expect("a row");
    let index = address.source().map(|row| row.index());
    assert_eq!(index, Some(INDEX));
    assert_eq!(raw.reply_row(&came.header), Some((INDEX as u8, address.destination())));
    let time = |count: u32, each: &mut dyn FnMut()| -> Duration {
        let begun = Instant::now();
        (0..count).for_each(|_| each());
        begun.elapsed() / count
    };
    // Each against the other beside it.
    let mut ratios: Vec<f64> = (0..15)
        .map(|_| {
            let c = time(4, &mut || assert!(raw.reply_row(&came.header).is_some()));
            let ours = time(2000, &mut || assert!(ours().is_ok()));
            println!("the lookup: {ours:?}, and C's {c:?}");
            c.as_secs_f64() / ours.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("index {INDEX}: C's takes {median:.0} times as long");
    assert!(median >= 50.0, "{ratios:?}");
}

fn mark(what: &str) {
    let _ = fs::metadata(format!("/reply-{what}"));
}

/// One handle by this crate, and one by C, between marks in a trace.
#[test]
#[ignore = "the test below runs it under strace"]
fn one_handle_each() {
    let device = std::env::var("RDMA_TEST_DEVICE").expect("a device");
    let (ground, came) = far_down(&device);
    let raw = Raw::open(&device);
    let grh = Grh::of(&came.header).expect("40 bytes");
    mark("ours");
    let ours = AddressHandle::reply(&ground.pd, PortNum::FIRST, &came.source, &grh);
    mark("c");
    let c = raw.reply(&came.header);
    mark("end");
    assert_eq!(ours.expect("a handle").source().map(|row| row.index()), Some(INDEX));
    assert!(c.is_some());
}

/// A handle for an answer takes two system calls, to make it and to see that the row is still the same; C's two
/// for each row before it, too.
#[test]
fn system_calls_of_an_answer() {
    let _alone = alone();
    let rig = Rig::within_alone();
    rig.add_addresses(&rig.open(), ADDRESSES);
    let trace = "/tmp/reply-trace";
    let output = Command::new("strace")
        .args(["-f", "-o", trace])
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "reply::one_handle_each", "--ignored", "--nocapture"])
        .env("RDMA_TEST_DEVICE", &rig.device)
        .output()
        .expect("strace starts");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
    let trace = fs::read_to_string(trace).expect("a trace");
    let at = |mark: &str| {
        let found = trace.lines().position(|line| line.contains(mark));
        found.unwrap_or_else(|| panic!("no {mark} in {trace}"))
    };
    let (ours, c, end) = (at("/reply-ours"), at("/reply-c"), at("/reply-end"));
    let thread = trace.lines().nth(ours).and_then(|line| line.split(' ').next()).expect("a thread");
    let between = |from: usize, to: usize| -> Vec<&str> {
        let lines = trace.lines().take(to).skip(from + 1);
        lines.filter(|line| line.starts_with(thread)).collect()
    };
    let (ours, c) = (between(ours, c), between(c, end));
    println!("index {INDEX}: {} system calls, and C's {}", ours.len(), c.len());
    assert_eq!(ours.len(), 2, "{ours:#?}");
    assert!(c.len() > 2 * INDEX as usize, "{}: {c:#?}", c.len());
}
