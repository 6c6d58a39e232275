//! Connecting: what is wrong with a path, told before the device is asked or after, and rows that move.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    ConnectOptions, Context, DeviceList, Endpoint, Errno, Error, Gid, GidEntry, Init, Mtu, Pool,
    ProtectionDomain, Psn, QpState, Qpn, QueuePair, TransitionFault, WcStatus,
};

use super::pair::Pair as Link;
use super::rc::{Ground, bytes, completions, join, polled};
use super::rig::{Rig, ip, ip_batch, run, wait_until};

/// The fault of a connection that fails; the queue pair comes back.
fn fault(queue_pair: QueuePair<Init>, to: &Endpoint, options: &ConnectOptions) -> TransitionFault {
    let failed = queue_pair.connect(to, options).expect_err("it cannot be connected");
    assert_eq!(failed.queue_pair.state().expect("it can be asked"), QpState::INIT);
    match failed.error {
        Error::Transition(fault) => *fault,
        error => panic!("{error}"),
    }
}

fn qpn(number: u32) -> Qpn {
    Qpn::new(number).expect("24 bits")
}

fn endpoint(gid: impl Into<Gid>) -> Endpoint {
    Endpoint::new(qpn(0x123), Psn::random(), gid.into())
}

/// The row of an address, once it is there.
fn row_of(context: &Context, address: impl Into<Gid>) -> GidEntry {
    let (gid, mut found) = (address.into(), None);
    wait_until("the address is in the table", || {
        let snapshot = context.gids().fresh().expect("the table can be read");
        found = snapshot.by_gid(&gid).next().copied();
        found.is_some()
    });
    found.expect("it was waited for")
}

/// Nobody has the address, or nobody knows the way: the error tells the whole path.
#[test]
fn nobody_there() {
    // For its place among the tests that are not alone.
    let _rig = Rig::new();
    let link = Link::bare();
    let (v4, v6) = (link.ip(1), link.ipv6(1));
    ip(&["addr", "add", &format!("{v4}/24"), "dev", &link.near]);
    ip(&["addr", "add", &format!("{v6}/64"), "dev", &link.near, "nodad"]);
    let list = DeviceList::new().expect("devices can be listed");
    let context = list.find(&link.device).expect("it is listed").open().expect("it opens");
    // From an interface that is told, IPv4 takes what has no route for a neighbour.
    let beyond: IpAddr = Ipv4Addr::new(100, 64, 0, 1).into();
    let beyond_v6 = "2001:db8:dead::1".parse().expect("an address");
    for (from, to, errno, hint) in [
        (v4, link.ip(99), Errno::ETIMEDOUT, "does not answer"),
        (v4, beyond, Errno::ETIMEDOUT, "not on this network"),
        (v6, beyond_v6, Errno::ENETUNREACH, "there is no route"),
    ] {
        let row = row_of(&context, from);
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let ground = Ground { context: context.clone(), row, pd };
        let (cq, options) = (ground.cq(64), ground.options());
        let begun = Instant::now();
        let fault = fault(ground.queue_pair(&cq, 4), &endpoint(to), &options);
        let took = begun.elapsed();
        let text = fault.to_string();
        println!("{took:?}: {text}");
        assert!(took < Duration::from_secs(3), "{took:?}: {text}");
        assert_eq!((fault.from, fault.to), (QpState::INIT, QpState::RTR));
        assert_eq!(fault.errno, Some(errno), "{text}");
        let index = format!("index {} ", row.index());
        let (from, to) = (Gid::from(from).to_string(), Gid::from(to).to_string());
        for part in [hint, &index, &from, &link.near, &to, "1024", "INIT to RTR", &link.device] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
    drop(context);
}

/// What a device would answer EINVAL for, without a word why.
#[test]
fn refused_before_the_device() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let cq = ground.cq(256);
    let own = Gid::from(ground.row.ipv4().expect("an IPv4 row"));
    let options = ground.options();
    let zero = Gid::from_bytes([0; 16]);
    let v6: Gid = "fe80::1".parse().expect("a GID");
    let by_lid = ConnectOptions::by_lid(ground.row.port());
    let cases = [
        (endpoint(v6), options, "different families"),
        (endpoint(zero), options, "dgid: the destination's GID is zero"),
        (Endpoint { gid: None, ..endpoint(own) }, options, "dgid"),
        (endpoint(own), by_lid, "is_global"),
        (Endpoint { qpn: qpn(1), ..endpoint(own) }, options, "dest_qp_num"),
        (Endpoint { mtu: Some(Mtu::from_raw(0)), ..endpoint(own) }, options, "path_mtu"),
        (endpoint(own), options.service_level(16), "ah_attr.sl"),
        (endpoint(own), options.flow_label(1 << 20), "flow_label"),
    ];
    for (to, options, what) in cases {
        let begun = Instant::now();
        let fault = fault(ground.queue_pair(&cq, 4), &to, &options);
        assert_eq!(fault.errno, None, "{fault}");
        assert!(fault.to_string().contains(what), "{what} is not in: {fault}");
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    }
    // And one that failed can be connected after all.
    let failed = ground.queue_pair(&cq, 4).connect(&endpoint(zero), &options);
    let again = failed.expect_err("a zero GID").queue_pair;
    join(again, ground.queue_pair(&cq, 4), &options);
}

/// The GID is right and nobody has the number: the send tells that nothing answers.
#[test]
fn a_queue_pair_that_is_not_there() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(64);
    let options = ground.options().timeout(Duration::from_micros(16_777)).retry_count(2);
    let gone = {
        let queue_pair = ground.queue_pair(&cq, 4);
        queue_pair.endpoint(&options).expect("an address")
    };
    let mut a = ground.queue_pair(&cq, 4).connect(&gone, &options).expect("it is not asked");
    let begun = Instant::now();
    a.send_queue().post(Send::new(()).wr_id(1)).expect("room");
    a.send_queue().post(Send::new(()).wr_id(2).signaled()).expect("room");
    loop {
        let mut drain = cq.poll().expect("the queue can be polled");
        if let Some(completion) = drain.next() {
            let text = completion.result().expect_err("nobody is there").to_string();
            assert_eq!((completion.wr_id(), completion.status()), (1, WcStatus::RETRY_EXC_ERR));
            assert!(text.contains("no answer"), "{text}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(3), "no completion");
    }
    let rest = completions(&mut cq, 1);
    assert_eq!((rest[0].wr_id, rest[0].status), (2, WcStatus::WR_FLUSH_ERR));
    assert_eq!(a.state().expect("it can be asked"), QpState::ERR);
}

/// Two devices on one wire, in one namespace: they reach each other by their link-local GIDs.
struct Wire {
    devices: [String; 2],
    netdevs: [String; 2],
    _rig: Rig,
}

impl Wire {
    fn new(mtus: [u32; 2]) -> Wire {
        let rig = Rig::new();
        let number = rig.number();
        let netdevs = [format!("wa{number}"), format!("wb{number}")];
        let devices = [format!("wire{number}a"), format!("wire{number}b")];
        let [a, b] = &netdevs;
        ip(&["link", "add", a, "type", "veth", "peer", "name", b]);
        for ((netdev, device), mtu) in netdevs.iter().zip(&devices).zip(mtus) {
            ip_batch(&format!("link set {netdev} mtu {mtu}\nlink set {netdev} up\n"));
            run("/bin/rdma", &["link", "add", device, "type", "rxe", "netdev", netdev]);
        }
        Wire { devices, netdevs, _rig: rig }
    }

    fn ground(&self, at: usize) -> Ground {
        let list = DeviceList::new().expect("devices can be listed");
        let device = list.find(&self.devices[at]).expect("it is listed");
        let context = device.open().expect("it opens");
        let snapshot = context.gids().fresh().expect("the table can be read").to_arc();
        let row = *snapshot.rows().first().expect("its link-local GID");
        let pd = ProtectionDomain::new(&context).expect("a PD");
        Ground { context, row, pd }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            ip(&["link", "del", &self.netdevs[0]]);
        }
    }
}

#[test]
fn the_smaller_of_both_mtus() {
    let wire = Wire::new([9000, 1500]);
    let (large, small) = (wire.ground(0), wire.ground(1));
    let mtu = |ground: &Ground| ground.context.port(ground.row.port()).map(|port| port.active_mtu);
    assert_eq!(mtu(&large).expect("the port can be asked").bytes(), Some(4096));
    assert_eq!(mtu(&small).expect("the port can be asked").bytes(), Some(1024));
    let (mut at_a, mut at_b) = (large.cq(16), small.cq(16));
    let pool = |ground: &Ground| Pool::new(&ground.pd, 10_000, 2).expect("a pool");
    let (pool_a, pool_b) = (pool(&large), pool(&small));
    for (most, expected) in [(None, 1024), (Some(512), 512), (Some(4096), 1024)] {
        let options = |ground: &Ground| {
            let options = ground.options();
            let asked =
                most.map(|most| [256, 512, 1024, 2048, 4096].iter().position(|m| *m == most));
            asked.flatten().map_or(options, |at| options.mtu(Mtu::from_raw(at as u32 + 1)))
        };
        let (a, mut b) = (large.queue_pair(&at_a, 4), small.queue_pair(&at_b, 4));
        b.recv_queue().post(Receive::new(pool_b.take().expect("a buffer"))).expect("room");
        // Only one side asks for less; either has to come to the same.
        let told_a = a.endpoint(&options(&large)).expect("an address");
        let told_b = b.endpoint(&small.options()).expect("an address");
        let mut a = a.connect(&told_b, &options(&large)).expect("connected");
        let b = b.connect(&told_a, &small.options()).expect("connected");
        for mtu in [a.mtu(), b.mtu()] {
            assert_eq!(mtu.and_then(Mtu::bytes), Some(expected), "{most:?}");
        }
        let mut buffer = pool_a.take().expect("a buffer");
        buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        a.send_queue().post(Send::new(buffer).signaled()).expect("room");
        let received = completions(&mut at_b, 1);
        assert_eq!((received[0].status, received[0].byte_len), (WcStatus::SUCCESS, 10_000));
        let came = bytes(&received[0].memory[0]);
        assert!(came.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
        assert_eq!(completions(&mut at_a, 1)[0].status, WcStatus::SUCCESS);
        drop((a, b));
        polled(&mut at_a, &mut Vec::new());
        polled(&mut at_b, &mut Vec::new());
    }
}

/// An address of the rig's own: the `host`-th.
fn address(rig: &Rig, host: u8) -> String {
    format!("198.18.{}.{host}/32", rig.number())
}

fn change(rig: &Rig, what: &str, host: u8) {
    ip(&["addr", what, &address(rig, host), "dev", &rig.netdev]);
}

/// Where an address is in the table.
fn place(ground: &Ground, gid: Gid) -> Option<u32> {
    let snapshot = ground.context.gids().fresh().expect("the table can be read");
    snapshot.by_gid(&gid).next().map(|row| row.index())
}

/// What stands where the row of host 1 stood.
#[derive(Clone, Copy)]
enum There {
    Another,
    Nothing,
}

/// Takes the row that the ground has looked up away; brings its address back elsewhere, or not at all.
fn move_row(rig: &Rig, ground: &Ground, there: There, back: bool) -> Gid {
    let gid = ground.row.gid();
    let index = ground.row.index();
    change(rig, "del", 1);
    wait_until("the row has gone", || place(ground, gid).is_none());
    let mut other = gid.bytes();
    other[15] = 99;
    let other = Gid::from_bytes(other);
    change(rig, "add", 99);
    wait_until("another is in its place", || place(ground, other) == Some(index));
    if back {
        change(rig, "add", 1);
        wait_until("it is back", || place(ground, gid).is_some_and(|at| at != index));
    }
    if let There::Nothing = there {
        change(rig, "del", 99);
        wait_until("its place is empty", || place(ground, other).is_none());
    }
    gid
}

/// The row moved between its lookup and its use: the address is used from where it is now.
#[test]
fn a_row_that_moved() {
    for there in [There::Another, There::Nothing] {
        let rig = Rig::new();
        let ground = Ground::new(&rig);
        let mut cq = ground.cq(64);
        let gid = move_row(&rig, &ground, there, true);
        let options = ground.options();
        let (a, b) = (ground.queue_pair(&cq, 4), ground.queue_pair(&cq, 4));
        let (mut a, mut b) = join(a, b, &options);
        for queue_pair in [&a, &b] {
            let source = queue_pair.source().expect("a row");
            assert_eq!((source.gid(), Some(source.index())), (gid, place(&ground, gid)));
            assert_ne!(source.index(), ground.row.index());
        }
        b.recv_queue().post(Receive::new(())).expect("room");
        a.send_queue().post(Send::new(()).signaled()).expect("room");
        let seen = completions(&mut cq, 2);
        assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    }
}

/// Its address has gone from the port: no other is used instead, and the queue pair can be connected
/// otherwise.
#[test]
fn a_row_that_has_gone() {
    for there in [There::Another, There::Nothing] {
        let rig = Rig::new();
        let ground = Ground::new(&rig);
        let cq = ground.cq(64);
        let gid = move_row(&rig, &ground, there, false);
        let to = endpoint(gid);
        let failed = ground.queue_pair(&cq, 4).connect(&to, &ground.options());
        let failed = failed.expect_err("its source has gone");
        let Error::GidMoved(moved) = &failed.error else { panic!("{}", failed.error) };
        assert_eq!((moved.row.gid(), moved.now), (gid, None));
        assert_eq!(moved.there.is_some(), matches!(there, There::Another), "{moved}");
        assert_eq!(failed.queue_pair.state().expect("it can be asked"), QpState::INIT);
        change(&rig, "add", 2);
        let row = row_of(&ground.context, Ipv4Addr::new(198, 18, rig.number(), 2));
        let ground = Ground { row, ..ground };
        join(failed.queue_pair, ground.queue_pair(&cq, 4), &ground.options());
    }
}

/// Connects a queue pair whose row moved, with receives posted, which come back flushed in the end.
fn connect_with_receives(there: There, back: bool) {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(64);
    let pool = Pool::new(&ground.pd, 64, 4).expect("a pool");
    let mut a = ground.queue_pair(&cq, 4);
    for wr_id in 0..4 {
        let memory = pool.take().expect("a buffer");
        a.recv_queue().post(Receive::new(memory).wr_id(wr_id)).expect("room");
    }
    let gid = move_row(&rig, &ground, there, back);
    match a.connect(&endpoint(gid), &ground.options()) {
        // From where the address is now, with the receives.
        Ok(a) => {
            assert_eq!(a.source().map(|row| row.index()), place(&ground, gid));
            assert!(back);
            drop(a);
        }
        Err(failed) => {
            let Error::GidMoved(_) = &failed.error else { panic!("{}", failed.error) };
            let state = failed.queue_pair.state().expect("it can be asked");
            assert_ne!(state, QpState::RTR, "from an address that was not asked for");
            if state == QpState::INIT {
                failed.queue_pair.close().expect("to ERR");
            }
        }
    }
    let seen = completions(&mut cq, 4);
    let numbers: Vec<u64> = seen.iter().map(|seen| seen.wr_id).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert!(seen.iter().all(|seen| seen.status == WcStatus::WR_FLUSH_ERR), "{seen:?}");
    drop(seen);
    assert_eq!(pool.available(), pool.count());
}

/// With receives posted the queue pair cannot be brought back: they are not lost.
#[test]
fn receives_and_a_row_that_has_gone() {
    connect_with_receives(There::Another, false);
    connect_with_receives(There::Nothing, false);
}

/// Nor where its address is in another row: it is used from there, or they come back.
#[test]
fn receives_and_a_row_that_moved() {
    connect_with_receives(There::Another, true);
    connect_with_receives(There::Nothing, true);
}
