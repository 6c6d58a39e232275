//! Queue pairs of datagrams, on rxe.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rdma_verbs::transport::Ud;
use rdma_verbs::wr::{Datagram, Inline, Receive};
use rdma_verbs::{
    AddressHandle, AddressVector, Buffer, Calls, Completion, CompletionQueue, Context,
    DatagramSource, Errno, Error, Gid, GidEntry, Grh, Init, InitOptions, Mtu, Pool, PortNum,
    ProtectionDomain, QKey, Qpn, QueuePair, Refusal, Rts, WcStatus,
};

use super::rig::{Rig, ip, wait_until};

pub(crate) const QKEY: QKey = QKey::new(0x1111_1111);
/// What rxe has on an interface with an MTU of 1500.
const MTU: usize = 1024;

/// The row of an address, once the table has it.
pub(crate) fn row_of(context: &Context, address: IpAddr) -> GidEntry {
    let mut found = None;
    wait_until("the address is in the table", || {
        found = context.gids().fresh().expect("a read").by_ip(address).next().copied();
        found.is_some()
    });
    found.expect("it was found")
}

/// One device, opened, and what queue pairs of datagrams are made of.
pub(crate) struct Ground {
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: Pool,
    pub(crate) pd: ProtectionDomain,
    pub(crate) row: GidEntry,
    pub(crate) context: Context,
    pub(crate) posted: Calls,
}

impl Ground {
    /// With the IPv4 address 198.18.`n`.1.
    pub(crate) fn new(rig: &Rig) -> Ground {
        let context = rig.open();
        rig.add_addresses(&context, 1);
        let row = row_of(&context, Ipv4Addr::new(198, 18, rig.number(), 1).into());
        Ground::on(context, row)
    }

    pub(crate) fn on(context: Context, row: GidEntry) -> Ground {
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let cq = CompletionQueue::new(&context, 512).expect("a CQ");
        let pool = Pool::new(&pd, 2048, 64).expect("a pool");
        Ground { cq, pool, pd, row, context, posted: Calls::Classic }
    }

    /// Polled and posted on by these calls; sends have one entry then.
    pub(crate) fn by(self, polled: Calls, posted: Calls) -> Ground {
        let cq = CompletionQueue::builder(&self.context, 512).calls(polled).build();
        Ground { cq: cq.expect("a CQ"), posted, ..self }
    }

    pub(crate) fn in_init(&self, qkey: QKey) -> QueuePair<Init, Ud> {
        let entries = if self.posted == Calls::Classic { 3 } else { 1 };
        let made = QueuePair::ud(&self.pd, &self.cq, &self.cq).max_inline(64);
        let made = made.max_send_sge(entries).calls(self.posted);
        let made = made.send_depth(16).recv_depth(16).build().expect("a queue pair");
        made.init(&InitOptions::new(self.row.port()).qkey(qkey)).expect("to INIT")
    }

    /// Ready, with so many receives posted, numbered from 100.
    pub(crate) fn queue_pair(&self, receives: u64) -> QueuePair<Rts, Ud> {
        let mut queue_pair = self.in_init(QKEY);
        for wr_id in 100..100 + receives {
            let receive = Receive::new(self.pool.take().expect("a buffer")).wr_id(wr_id);
            queue_pair.recv_queue().post(receive).expect("room");
        }
        queue_pair.activate().expect("to RTS")
    }

    /// In INIT, with room for nothing much.
    pub(crate) fn small_queue_pair(&self) -> QueuePair<Init, Ud> {
        let made = QueuePair::ud(&self.pd, &self.cq, &self.cq).send_depth(1).recv_depth(1);
        let made = made.build().expect("a queue pair");
        made.init(&InitOptions::new(self.row.port()).qkey(QKEY)).expect("to INIT")
    }

    /// To the row itself: rxe sends to itself.
    pub(crate) fn here(&self) -> AddressHandle {
        let address = AddressVector::new(&self.row, self.row.gid());
        AddressHandle::new(&self.pd, &address).expect("an address handle")
    }

    pub(crate) fn filled(&self, text: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().expect("a buffer");
        buffer.fill_from(text).expect("it fits");
        buffer
    }
}

/// A datagram as it was received.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) source: DatagramSource,
    pub(crate) from: Gid,
    pub(crate) to: Gid,
    pub(crate) tos: (u8, u32, u8),
    pub(crate) imm: Option<u32>,
    pub(crate) header: [u8; Grh::LEN],
    pub(crate) message: Vec<u8>,
}

/// Waits for that many datagrams, and as many completions of sends.
pub(crate) fn received(cq: &mut CompletionQueue, count: usize, sends: usize) -> Vec<Came> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut came, mut sent) = (Vec::new(), 0);
    while came.len() < count || sent < sends {
        assert!(Instant::now() < deadline, "{count} and {sends}, but there are {came:?}, {sent}");
        let mut drain = cq.poll().expect("the queue can be polled");
        while let Some(completion) = drain.next() {
            completion.result().expect("carried out");
            let (imm, len) = (completion.imm(), completion.byte_len() as usize);
            let Some(source) = completion.datagram() else {
                assert!(!completion.opcode().is_receive());
                sent += 1;
                continue;
            };
            let buffer = completion.into_buffer().expect("a buffer");
            assert_eq!(buffer.len(), len);
            let (grh, message) = Grh::split(&buffer).expect("a header");
            assert!(source.has_grh && grh.is_roce_v2());
            came.push(Came {
                source,
                from: grh.source(),
                to: grh.destination(),
                tos: (grh.traffic_class(), grh.flow_label(), grh.hop_limit()),
                imm,
                header: *grh.bytes(),
                message: message.to_vec(),
            });
        }
    }
    assert_eq!((came.len(), sent), (count, sends));
    came
}

fn ipv6(rig: &Rig) -> IpAddr {
    format!("2001:db8:{:x}::5", rig.number()).parse().expect("an address")
}

/// Everything that a datagram can be, over both families.
#[test]
fn messages_over_ipv4_and_ipv6() {
    let rig = Rig::new();
    messages(&rig, Ground::new(&rig));
}

pub(crate) fn messages(rig: &Rig, mut ground: Ground) {
    ip(&["addr", "add", &format!("{}/128", ipv6(rig)), "dev", &rig.netdev, "nodad"]);
    let six = row_of(&ground.context, ipv6(rig));
    let (mut a, b) = (ground.queue_pair(0), ground.queue_pair(12));
    let several = a.limits().max_send_sge > 1;
    assert_eq!((a.mtu(), b.source()), (Some(Mtu::B1024), None));
    for (row, flow) in [(ground.row, 0), (six, 0xabcde)] {
        let address = AddressVector::new(&row, row.gid()).traffic_class(0x28).flow_label(flow);
        let to = AddressHandle::new(&ground.pd, &address).expect("a handle");
        assert_eq!(to.source().map(|source| source.gid()), Some(row.gid()));
        assert_eq!((to.address().destination(), to.address().source()), (row.gid(), Some(&row)));
        let long: Vec<u8> = (0..MTU).map(|at| at as u8).collect();
        let sends = a.send_queue();
        sends.post(Datagram::new(ground.filled(b"hello"), &to, b.qpn(), QKEY)).expect("room");
        let inline = Datagram::new(Inline(b"inline"), &to, b.qpn(), QKEY).imm(0xdead_beef);
        sends.post(inline).expect("room");
        sends.post(Datagram::new((), &to, b.qpn(), QKEY).solicited()).expect("room");
        sends.post(Datagram::new(ground.filled(&long), &to, b.qpn(), QKEY)).expect("room");
        if several {
            let parts = (ground.filled(b"one"), ground.filled(b"two").freeze());
            sends.post(Datagram::new(parts, &to, b.qpn(), QKEY).signaled()).expect("room");
        } else {
            let part = ground.filled(b"onetwo").freeze();
            sends.post(Datagram::new(part, &to, b.qpn(), QKEY).signaled()).expect("room");
        }
        let came = received(&mut ground.cq, 5, 5);
        for came in &came {
            assert_eq!((came.source.qpn, came.source.pkey_index), (a.qpn(), 0));
            assert_eq!((came.from, came.to), (row.gid(), row.gid()));
            // rxe does not send the flow label.
            assert_eq!(came.tos, (0x28, 0, 64));
        }
        let messages: Vec<&[u8]> = came.iter().map(|came| &*came.message).collect();
        assert_eq!(messages, [&b"hello"[..], b"inline", b"", &long, b"onetwo"]);
        assert_eq!(came[1].imm, Some(0xdead_beef));
        assert_eq!(came[0].imm, None);
    }
    assert_eq!(ground.pool.available(), 64 - 2);
    assert_eq!(ground.cq.strays(), 0);
}

/// What is wrong is refused before the device sees it, and nothing of it is lost.
#[test]
fn datagrams_that_are_refused() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let (mut a, b) = (ground.queue_pair(0), ground.queue_pair(1));
    let (to, at_a) = (ground.here(), a.qpn());
    let sends = a.send_queue();
    let mut buffer = ground.pool.take().expect("a buffer");
    buffer.set_len(MTU + 1).expect("it fits");
    let refused = sends.post(Datagram::new(buffer, &to, b.qpn(), QKEY).wr_id(7)).expect_err("long");
    let Refusal::MessageTooLong { asked: 1025, limit: 1024, .. } = refused.refusal else {
        panic!("{refused}")
    };
    let on = refused.to_string();
    assert_eq!(on, format!("a message of 1025 bytes on QP {at_a}: the port carries 1024"));
    let mut buffer = refused.request.expect("it comes back").into_memory();
    assert_eq!(buffer.len(), MTU + 1);
    buffer.set_len(MTU).expect("it fits");

    let other = ProtectionDomain::new(&ground.context).expect("a PD");
    let address = *to.address();
    let again = ProtectionDomain::new(&rig.open()).expect("a PD");
    let not = format!("of another protection domain than that of QP {at_a}");
    // Of the same device, and of one that was opened once more.
    for domain in [&other, &again] {
        let elsewhere = AddressHandle::new(domain, &address).expect("a handle");
        let datagram = Datagram::new(buffer, &elsewhere, b.qpn(), QKEY);
        let refused = sends.post(datagram).expect_err("a PD");
        assert!(matches!(refused.refusal, Refusal::OtherDomain { .. }), "{refused}");
        assert_eq!(refused.to_string(), format!("an address handle {not}"));
        buffer = refused.request.expect("it comes back").into_memory();
    }
    let foreign = Pool::new(&other, 64, 1).expect("a pool").take().expect("a buffer");
    let refused = sends.post(Datagram::new(foreign, &to, b.qpn(), QKEY)).expect_err("a PD");
    assert!(matches!(refused.refusal, Refusal::OtherDomain { .. }), "{refused}");
    assert_eq!(refused.to_string(), format!("memory {not}"));
    let inline = [0; 65];
    let refused = sends.post(Datagram::new(Inline(&inline), &to, b.qpn(), QKEY)).expect_err("long");
    assert!(matches!(refused.refusal, Refusal::InlineTooLong { .. }), "{refused}");

    // It goes on.
    sends.post(Datagram::new(buffer, &to, b.qpn(), QKEY).signaled()).expect("room");
    assert_eq!(received(&mut ground.cq, 1, 1)[0].message.len(), MTU);
    assert_eq!(ground.pool.available(), 64);
}

/// The device drops a datagram with a wrong Q_Key, or to nobody, without a word: what is sent after it
/// arrives first, and completes what was sent before.
#[test]
fn a_wrong_key_is_dropped_by_the_device() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let (mut a, b) = (ground.queue_pair(0), ground.queue_pair(2));
    let to = ground.here();
    let port = |ground: &Ground| ground.context.port(PortNum::FIRST).expect("a port");
    let before = port(&ground).qkey_violation_count;
    let sends = a.send_queue();
    let wrong = QKey::new(QKEY.get() ^ 1);
    sends.post(Datagram::new(Inline(b"wrong"), &to, b.qpn(), wrong)).expect("room");
    let nobody = Qpn::new(0xff_fff0).expect("24 bits");
    sends.post(Datagram::new(Inline(b"nobody"), &to, nobody, QKEY)).expect("room");
    sends.post(Datagram::new(Inline(b"right"), &to, b.qpn(), QKEY).signaled()).expect("room");
    let came = received(&mut ground.cq, 1, 3);
    assert_eq!(came[0].message, b"right");
    sends.post(Datagram::new((), &to, b.qpn(), QKEY).signaled()).expect("room");
    assert_eq!(received(&mut ground.cq, 1, 1)[0].message, b"");
    let counted = port(&ground).qkey_violation_count - before;
    assert_eq!(counted, 1, "the wrong key, and not what went to nobody");
}

/// A receive without room for header and message is never a success, and its buffer comes back: older kernels'
/// rxe fails it, newer ones' drops the datagram.
#[test]
fn a_receive_that_is_too_short() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    for room in [16, 39, 44] {
        let short = Pool::new(&ground.pd, room, 2).expect("a pool");
        let mut a = ground.queue_pair(0);
        let mut b = ground.in_init(QKEY);
        b.recv_queue().post(Receive::new(short.take().expect("a buffer")).wr_id(9)).expect("room");
        let b = b.activate().expect("to RTS");
        let to = ground.here();
        let text = Datagram::new(Inline(b"12345"), &to, b.qpn(), QKEY);
        a.send_queue().post(text.wr_id(1).signaled()).expect("room");
        let mut ends = Vec::new();
        let mut each = |completion: Completion<'_>| {
            let (wr_id, is_success) = (completion.wr_id(), completion.is_success());
            assert!(is_success || completion.datagram().is_none() && completion.byte_len() == 0);
            let left = completion.into_buffer().map(|buffer| buffer.len());
            ends.push((wr_id, is_success, left));
        };
        let patience = Duration::from_secs(5);
        wait_until("it is sent", || {
            a.send_queue().in_flight() == 0 || {
                let mut drain = ground.cq.poll().expect("the queue can be polled");
                while let Some(completion) = drain.next() {
                    each(completion);
                }
                false
            }
        });
        b.finish_polling(&mut [&mut ground.cq], patience, &mut each).expect("polled");
        ends.sort();
        assert_eq!(ends, [(1, true, None), (9, false, Some(0))]);
        assert_eq!(short.available(), 2);
    }
}

/// The handle is held by what is in flight, and destroyed with the last of it.
#[test]
fn a_handle_dropped_in_flight() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let (mut a, b) = (ground.queue_pair(0), ground.queue_pair(10));
    for round in 0..20 {
        let to = ground.here();
        for wr_id in 0..10 {
            let datagram = Datagram::new(Inline(b"on its way"), &to, b.qpn(), QKEY).wr_id(wr_id);
            let datagram = if wr_id == 9 { datagram.signaled() } else { datagram };
            a.send_queue().post(datagram).expect("room");
        }
        drop(to);
        let came = received(&mut ground.cq, if round == 0 { 10 } else { 0 }, 10);
        assert!(came.iter().all(|came| came.message == b"on its way"));
    }
    assert_eq!(ground.context.leaks(), 0);
}

/// Each of what there is dropped in many orders, with datagrams in flight and completions not looked at.
#[test]
fn everything_in_any_order() {
    let rig = Rig::new();
    let context = rig.open();
    rig.add_addresses(&context, 1);
    let row = row_of(&context, Ipv4Addr::new(198, 18, rig.number(), 1).into());
    let mut random = super::seed::Random::new("everything_in_any_order");
    for _ in 0..60 {
        let ground = Ground::on(context.clone(), row);
        let (mut a, b) = (ground.queue_pair(2), ground.queue_pair(8));
        let to = ground.here();
        for number in 0..12_u64 {
            let datagram = Datagram::new(ground.filled(b"text"), &to, b.qpn(), QKEY).wr_id(number);
            a.send_queue().post(datagram).expect("room");
        }
        let (send, recv) = a.split();
        let Ground { cq, pool, pd, context, .. } = ground;
        let mut all: Vec<Box<dyn Any>> = vec![
            Box::new(cq),
            Box::new(pool),
            Box::new(pd),
            Box::new(context),
            Box::new(to),
            Box::new(send),
            Box::new(recv),
            Box::new(b),
        ];
        while !all.is_empty() {
            let next = random.below(all.len() as u32) as usize;
            drop(all.swap_remove(next));
        }
    }
    assert_eq!(context.leaks(), 0);
}

/// Closing flushes; what nobody was to be told of comes at the end, and is not waited for.
#[test]
fn flushed_at_close() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let (mut a, b) = (ground.queue_pair(4), ground.queue_pair(0));
    let to = ground.here();
    for wr_id in 0..3 {
        let datagram = Datagram::new(ground.filled(b"to nobody"), &to, b.qpn(), QKEY).wr_id(wr_id);
        a.send_queue().post(datagram).expect("room");
    }
    let (mut sends, mut flushed) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    a.finish_polling(&mut [&mut ground.cq], Duration::from_secs(10), |completion| {
        if completion.opcode().is_receive() {
            assert_eq!(completion.status(), WcStatus::WR_FLUSH_ERR);
            assert_eq!(completion.datagram(), None);
            flushed.push(completion.wr_id());
        } else {
            sends.push(completion.wr_id());
        }
        assert!(completion.into_buffer().is_some());
    })
    .expect("it can be polled");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((sends, flushed), (vec![0, 1, 2], vec![100, 101, 102, 103]));
    assert_eq!(ground.pool.available(), 64);

    let mut c = ground.queue_pair(0);
    c.close().expect("to the error state");
    let refused = c.send_queue().post(Datagram::new((), &to, b.qpn(), QKEY)).expect_err("closed");
    assert!(matches!(refused.refusal, Refusal::Closed { .. }), "{refused}");
}

#[test]
fn a_batch_of_datagrams() {
    let rig = Rig::new();
    let mut ground = Ground::new(&rig);
    let (mut a, b, c) = (ground.queue_pair(0), ground.queue_pair(4), ground.queue_pair(4));
    let to = ground.here();
    // One that is dropped sends nothing.
    let mut batch = a.send_queue().batch::<2>();
    batch.push(Datagram::new(ground.filled(b"never"), &to, b.qpn(), QKEY)).expect("room");
    drop(batch);
    assert_eq!(ground.pool.available(), 64 - 8);
    let mut batch = a.send_queue().batch_of::<6, 8>();
    for (number, qpn) in [b.qpn(), c.qpn()].into_iter().cycle().take(4).enumerate() {
        let text = format!("number {number}");
        let buffer = ground.filled(text.as_bytes());
        let other = ground.here();
        batch.push(Datagram::new(buffer, &other, qpn, QKEY).imm(number as u32)).expect("room");
    }
    batch.push(Datagram::new(Inline(b"last"), &to, b.qpn(), QKEY)).expect("room");
    batch.push(Datagram::new((), &to, c.qpn(), QKEY).signaled()).expect("room");
    batch.post().expect("posted");
    // Of two receivers, and so in no order.
    let mut came = received(&mut ground.cq, 6, 6);
    came.sort_by(|one, other| one.message.cmp(&other.message));
    let messages: Vec<&[u8]> = came.iter().map(|came| &*came.message).collect();
    assert_eq!(messages, [&b""[..], b"last", b"number 0", b"number 1", b"number 2", b"number 3"]);
    assert_eq!(came[5].imm, Some(3));
}

/// Addresses that no handle can be made of, each with an error that says why.
#[test]
fn handles_that_cannot_be_made() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let new = |address: &AddressVector| AddressHandle::new(&ground.pd, address).map(|_| ());
    let to = |ip: &str| Gid::from(ip.parse::<IpAddr>().expect("an address"));
    // No route goes there from here.
    ip(&["addr", "add", &format!("{}/128", ipv6(&rig)), "dev", &rig.netdev, "nodad"]);
    let six = row_of(&ground.context, ipv6(&rig));
    let error = new(&AddressVector::new(&six, to("2001:db8:ffff::9"))).expect_err("no route");
    let Error::Verb { verb: "ibv_create_ah", errno, .. } = error else { panic!("{error}") };
    assert!(matches!(errno, Errno::ENETUNREACH | Errno::EHOSTUNREACH), "{errno}");
    for (address, what) in [
        (AddressVector::new(&ground.row, to("2001:db8::1")), "different families"),
        (AddressVector::new(&ground.row, Gid::ZERO), "the destination's GID is zero"),
        (AddressVector::new(&ground.row, ground.row.gid()).service_level(16), "is to be 0 to 15"),
        (AddressVector::new(&ground.row, ground.row.gid()).flow_label(1 << 20), "20 bits"),
        (AddressVector::by_lid(PortNum::FIRST, rdma_verbs::Lid(3)), "needs a GID"),
    ] {
        let error = new(&address).expect_err("it cannot be");
        assert!(matches!(error, Error::BadAddress { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let error = new(&AddressVector::by_lid(PortNum::new(2).expect("a port"), rdma_verbs::Lid(3)));
    assert!(matches!(error, Err(Error::NoSuchPort { .. })), "{error:?}");
}

/// The kernel asks for the next hop, and gives up.
#[test]
fn a_neighbour_that_does_not_answer() {
    // The directory opens the devices of all: one that is going would wait for it, and the namespace for that.
    let _alone = super::rig::alone();
    let directory = rdma_verbs::GidDirectory::open().expect("a directory");
    let pair = super::pair::Pair::new(&directory);
    pair.ask_fast();
    let context = {
        let list = rdma_verbs::DeviceList::new().expect("a list");
        list.find(&pair.device).expect("listed").open().expect("it opens")
    };
    let row = row_of(&context, pair.ip(1));
    let pd = ProtectionDomain::new(&context).expect("a PD");
    let begun = Instant::now();
    let silent = AddressVector::new(&row, pair.ip(77).into());
    let error = AddressHandle::new(&pd, &silent).expect_err("nobody is there");
    let Error::Verb { verb: "ibv_create_ah", errno, .. } = &error else { panic!("{error}") };
    assert!(matches!(*errno, Errno::ETIMEDOUT | Errno::EHOSTUNREACH), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // The domain goes on.
    let answers = AddressVector::new(&row, pair.ip(2).into());
    AddressHandle::new(&pd, &answers).expect("it answers");
    drop((pd, context, directory));
}

/// Rows that are swapped between lookup and use, and one that is another's: caught once the row is pinned.
#[test]
fn a_row_that_moved() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let address = |host| IpAddr::from(Ipv4Addr::new(198, 18, rig.number(), host));
    let change = |what: &str, host| {
        ip(&["addr", what, &format!("{}/32", address(host)), "dev", &rig.netdev]);
    };
    change("add", 2);
    let (one, two) = (ground.row, row_of(&ground.context, address(2)));
    change("del", 1);
    change("del", 2);
    wait_until("both are gone", || {
        ground.context.gids().fresh().expect("a read").rows().len() == 1
    });
    let new = |row: &GidEntry| {
        AddressHandle::new(&ground.pd, &AddressVector::new(row, Gid::from(address(2))))
    };
    change("add", 2);
    row_of(&ground.context, address(2));
    let error = new(&one).expect_err("it has gone");
    assert!(matches!(error, Error::GidMoved(_)), "{error}");
    change("add", 1);
    let now = row_of(&ground.context, address(1));
    assert_eq!((now.index(), now.gid()), (two.index(), one.gid()), "they are swapped");
    let handle = new(&one).expect("found where it is now");
    assert_eq!(handle.source().map(|row| (row.index(), row.gid())), Some((two.index(), one.gid())));
    assert_eq!(ground.context.leaks(), 0);
}

/// Of no datagram nothing is told of its way.
#[test]
fn a_message_of_a_connection_is_no_datagram() {
    let rig = Rig::new();
    let mut pair = super::rc::Pair::new(&rig);
    let receive = Receive::new(pair.pool.take().expect("a buffer"));
    pair.b.recv_queue().post(receive).expect("room");
    let send = rdma_verbs::wr::Send::new(Inline(b"x")).signaled();
    pair.a.send_queue().post(send).expect("room");
    let mut count = 0;
    wait_until("both are complete", || {
        let mut drain = pair.cq.poll().expect("the queue can be polled");
        while let Some(completion) = drain.next() {
            assert_eq!(completion.datagram(), None);
            assert!(completion.is_success());
            count += 1;
        }
        count == 2
    });
}
