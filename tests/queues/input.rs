//! What callers get wrong: a typed error that names the limit and what was asked, before the device sees it
//! where that can be, and the memory back.

use std::fmt::Debug;
use std::time::Duration;

use rdma_verbs::wr::{CompareSwap, FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Context, Endpoint, Error, Exposed, Gid, Notify, Pool,
    PortNum, PostError, ProtectionDomain, Qpn, QueuePair, RKey, Refusal, RemoteSlice, WcStatus,
};

use crate::interposed::rig::{DEPTH, Rig, SIZE, ends, everything, open, poll};
use crate::interposed::{faults, interposed};

/// That a number was refused: what it was, and what it can be; the text has both.
#[track_caller]
fn assert_out_of_range<T>(made: Result<T, Error>, of: &str, number: u64, can: (u64, u64)) {
    match made.err().expect("it is refused") {
        error @ Error::OutOfRange { what, asked, least, most } => {
            assert!(what.contains(of), "{what}");
            assert_eq!((asked, least, most), (number, can.0, can.1), "{what}");
            let text = error.to_string();
            assert!(text.contains(&number.to_string()) && text.contains(&can.1.to_string()));
        }
        error => panic!("{error:?}"),
    }
}

/// Why a request was not taken; it is back.
#[track_caller]
fn refusal<R: Debug>(posted: Result<(), PostError<R>>) -> Refusal {
    let failed = posted.expect_err("it is refused");
    assert!(failed.request.is_some(), "it comes back");
    assert_eq!(failed.refusal.to_string(), failed.to_string());
    failed.refusal
}

#[track_caller]
fn assert_other_device<T>(made: Result<T, Error>, what: &str, device: &str) {
    match made.err().expect("it is refused") {
        Error::OtherDevice { what: told, ours, theirs } => {
            assert_eq!((told, &*ours, &*theirs), (what, "loop0", device));
        }
        error => panic!("{error:?}"),
    }
}

/// How often the device was asked to do something with memory or queues.
fn calls() -> u64 {
    let verbs = [
        "ibv_reg_mr",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_post_send",
        "ibv_post_recv",
    ];
    verbs.map(faults::count).iter().sum()
}

fn domain(context: &Context) -> ProtectionDomain {
    ProtectionDomain::new(context).expect("a PD")
}

interposed! {
    fn sizes_of_memory() {
        let rig = Rig::new();
        let before = calls();
        let pool = |size, count| Pool::new(&rig.pd, size, count);
        let longest = 1 << 31;
        for size in [0, longest as usize + 1, usize::MAX] {
            assert_out_of_range(pool(size, 1), "size of a buffer", size as u64, (1, longest));
        }
        let most = (1 << 24) - 2;
        for count in [0, most as usize + 1, usize::MAX] {
            assert_out_of_range(pool(64, count), "number of buffers", count as u64, (1, most));
        }
        // Of a size and a number that can be, more than the device registers.
        let asked = 1 << 41;
        assert_out_of_range(pool(1 << 31, 1 << 10), "a pool's memory", asked, (1, 1 << 40));
        let exposed = |len| Exposed::new(&rig.pd, len, everything());
        for len in [0, (1 << 40) + 1, usize::MAX] {
            let most = 1 << 40;
            assert_out_of_range(exposed(len), "length of exposed memory", len as u64, (1, most));
        }
        assert_eq!(calls(), before);
        let mut buffer = rig.take();
        assert_out_of_range(buffer.set_len(SIZE + 1), "length of a buffer", 257, (0, 256));
        assert_out_of_range(buffer.fill_from(&[1; 300]), "length of a buffer", 300, (0, 256));
        assert_eq!((buffer.len(), buffer[0]), (SIZE, 0), "as before");
        let shared = buffer.freeze();
        assert_out_of_range(shared.slice(..257), "part of a buffer", 257, (0, 256));
        assert_out_of_range(shared.slice(300..), "part of a buffer", 300, (0, 256));
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = shared.slice(9..4);
        assert_out_of_range(backwards, "part of a buffer", 9, (0, 4));
        assert_out_of_range(shared.slice(..=usize::MAX), "part", u64::MAX, (0, 256));
        let whole = shared.slice(0..0).expect("nothing of it");
        assert!(whole.is_empty());
        drop((shared, whole));
        rig.end();
    }

    fn places_in_exposed_memory() {
        let rig = Rig::new();
        let exposed = Exposed::new(&rig.pd, 100, everything()).expect("memory");
        let end = "end of a part of exposed memory";
        assert_out_of_range(exposed.range(90, 11).map(drop), end, 101, (0, 100));
        assert_out_of_range(exposed.range(usize::MAX, 2).map(drop), end, u64::MAX, (0, 100));
        assert_out_of_range(exposed.read(100, &mut [0]), end, 101, (0, 100));
        assert_out_of_range(exposed.write(1, &[0; 100]), end, 101, (0, 100));
        assert_out_of_range(exposed.atomic_u8(100).map(drop), end, 101, (0, 100));
        assert_out_of_range(exposed.atomic_u64(96).map(drop), end, 104, (0, 100));
        let error = exposed.atomic_u64(12).map(drop).expect_err("no multiple of 8");
        assert!(matches!(error, Error::Unaligned { at: 12, to: 8, .. }), "{error:?}");
        let remote = exposed.remote();
        let end = "end of a part of a peer's memory";
        assert_out_of_range(remote.slice(100, 1), end, 101, (0, 100));
        assert_out_of_range(remote.slice(u64::MAX, 1), end, u64::MAX, (0, 100));
        assert!(exposed.range(100, 0).expect("its end").is_empty());
        // A range is no longer than a message.
        let big = Exposed::new(&rig.pd, (1 << 31) + 4096, everything()).expect("memory");
        let range = big.range(0, (1 << 31) + 1).map(drop);
        assert_out_of_range(range, "part of exposed memory", (1 << 31) + 1, (0, 1 << 31));
        assert_eq!(big.range(4096, 1 << 31).expect("inside").len(), 1 << 31);
        drop((exposed, big));
        rig.end();
    }

    fn messages_that_are_too_long() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let pool = Pool::new(&rig.pd, 1 << 31, 2).expect("memory that nobody touches");
        let exposed = Exposed::new(&rig.pd, 1 << 33, everything()).expect("the same");
        let two = || [pool.take().expect("a buffer"), pool.take().expect("a buffer")];
        let (before, qpn) = (calls(), a.qpn());
        let sends = a.send_queue();
        let told = |told| {
            let expected = Refusal::MessageTooLong { qpn, asked: 1 << 32, limit: 1 << 31 };
            assert_eq!(told, expected);
        };
        told(refusal(sends.post(Send::new(two()))));
        told(refusal(sends.post(Write::new(two(), exposed.remote()))));
        told(refusal(sends.post(Read::new(two(), exposed.remote()))));
        told(refusal(sends.batch_of::<2, 4>().push(Send::new(two()))));
        assert_eq!((pool.available(), calls(), sends.in_flight()), (2, before, 0));
        // One byte more than the longest, which itself is taken.
        let mut one = two();
        one[1].set_len(1).expect("it fits");
        let refused = refusal(sends.post(Send::new(one)));
        assert!(matches!(refused, Refusal::MessageTooLong { asked, .. } if asked == (1 << 31) + 1));
        sends.post(Send::new(pool.take().expect("a buffer")).wr_id(1)).expect("it can be sent");
        drop((a, b));
        assert_eq!(ends(&rig.completions(1)), [(1, WcStatus::WR_FLUSH_ERR)]);
        drop((pool, exposed));
        rig.end();
    }

    fn more_entries_than_the_queue_pair_was_made_for() {
        let rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let qpn = a.qpn();
        let before = calls();
        let five = || std::array::from_fn::<_, 5, _>(|_| rig.take());
        let expected = Refusal::TooManyEntries { on: qpn.into(), asked: 5, limit: 4 };
        let sends = a.send_queue();
        let remote = RemoteSlice::new(0, 1 << 20, RKey::new(0));
        assert_eq!(refusal(sends.post(Send::new(five()))), expected);
        assert_eq!(refusal(sends.post(Write::new(five(), remote))), expected);
        assert_eq!(refusal(sends.post(Read::new(five(), remote))), expected);
        let mut batch = sends.batch_of::<2, 8>();
        assert_eq!(refusal(batch.push(Send::new(five()))), expected);
        drop(batch);
        let forty = std::array::from_fn::<_, 40, _>(|_| rig.take());
        let expected = Refusal::TooManyEntries { on: qpn.into(), asked: 40, limit: 4 };
        assert_eq!(refusal(sends.post(Send::new(forty))), expected);
        let expected = Refusal::TooManyEntries { on: b.qpn().into(), asked: 5, limit: 4 };
        let recvs = b.recv_queue();
        assert_eq!(refusal(recvs.post(Receive::new(five()))), expected);
        assert_eq!(refusal(recvs.batch_of::<2, 8>().push(Receive::new(five()))), expected);
        assert_eq!((rig.out(), calls()), (0, before));
        drop((a, b));
        rig.end();
    }

    fn inline_beyond_what_was_granted() {
        let mut rig = Rig::new();
        let mut ended = 0;
        for (asked, granted) in [(0, 16), (17, 17), (400, 400), (512, 512)] {
            let make = || {
                let made = QueuePair::rc(&rig.pd, &rig.cq, &rig.cq).max_inline(asked).build();
                made.expect("a queue pair").init(&rig.init_options()).expect("to INIT")
            };
            let (mut a, mut b) = rig.connect(make(), make());
            assert_eq!((a.limits().max_inline, a.granted().max_inline), (granted, granted));
            let bytes = vec![7; granted as usize + 1];
            let before = calls();
            let qpn = a.qpn();
            let sends = a.send_queue();
            let expected = Refusal::InlineTooLong { qpn, asked: u64::from(granted) + 1, limit: granted };
            assert_eq!(refusal(sends.post(Send::new(Inline(&bytes)))), expected);
            let remote = RemoteSlice::new(0, 1 << 20, RKey::new(0));
            assert_eq!(refusal(sends.post(Write::new(Inline(&bytes), remote))), expected);
            assert_eq!(refusal(sends.batch::<1>().push(Send::new(Inline(&bytes)))), expected);
            assert_eq!(calls(), before);
            let into = Pool::new(&rig.pd, 512, 1).expect("a pool");
            b.recv_queue().post(Receive::new(into.take().expect("a buffer"))).expect("room");
            sends.post(Send::new(Inline(&bytes[1..])).signaled()).expect("it is what was granted");
            let seen = rig.completions(2);
            assert_eq!(seen[0].bytes(), &bytes[1..]);
            ended += 1;
        }
        assert_eq!(ended, 4);
        for asked in [513, 912, u32::MAX] {
            let made = QueuePair::rc(&rig.pd, &rig.cq, &rig.cq).max_inline(asked).build();
            let error = made.expect_err("no device here grants it");
            assert!(error.to_string().contains(&format!("max_inline_data {asked}")), "{error}");
            assert!(matches!(error, Error::InlineNotGranted { .. }), "{error:?}");
        }
        rig.end();
    }

    fn a_peers_memory_that_is_too_short() {
        let rig = Rig::new();
        let (mut a, b) = rig.pair();
        let before = calls();
        let sends = a.send_queue();
        let remote = RemoteSlice::new(0x1000, 10, RKey::new(7));
        let expected = Refusal::BeyondRemote { asked: 11, there: 10 };
        let eleven = || rig.filled(&[1; 11]);
        assert_eq!(refusal(sends.post(Write::new(eleven(), remote))), expected);
        assert_eq!(refusal(sends.post(Write::new(eleven(), remote).imm(1))), expected);
        assert_eq!(refusal(sends.post(Read::new(eleven(), remote))), expected);
        assert_eq!(refusal(sends.post(Write::new(Inline(&[1; 11]), remote))), expected);
        let two = [rig.filled(&[1; 10]), rig.filled(&[1; 1])];
        assert_eq!(refusal(sends.batch_of::<1, 2>().push(Write::new(two, remote))), expected);
        assert_eq!((rig.out(), calls()), (0, before));
        drop((a, b));
        rig.end();
    }

    fn atomics_that_cannot_be() {
        let rig = Rig::new();
        let (mut a, b) = rig.pair();
        let before = calls();
        let sends = a.send_queue();
        let at = |address| RemoteSlice::new(address, 64, RKey::new(7));
        for address in [0x1001, 0x1004, 0xffff_ffff_ffff_ffff] {
            let expected = Refusal::UnalignedAtomic { address };
            let word = || rig.filled(&[0; 8]);
            assert_eq!(refusal(sends.post(FetchAdd::new(word(), at(address), 1))), expected);
            assert_eq!(refusal(sends.post(CompareSwap::new(word(), at(address), 1, 2))), expected);
        }
        for length in [0, 4, 7, 9, 16] {
            let expected = Refusal::AtomicLength { asked: length as u64 };
            let word = rig.filled(&vec![0; length]);
            assert_eq!(refusal(sends.post(FetchAdd::new(word, at(0x1000), 1))), expected);
        }
        let halves = [rig.filled(&[0; 4]), rig.filled(&[0; 4])];
        let expected = Refusal::AtomicLength { asked: 8 };
        assert_eq!(refusal(sends.post(CompareSwap::new(halves, at(0x1000), 1, 2))), expected);
        let expected = Refusal::AtomicLength { asked: 0 };
        assert_eq!(refusal(sends.post(FetchAdd::new((), at(0x1000), 1))), expected);
        let short = RemoteSlice::new(0x1000, 7, RKey::new(7));
        let expected = Refusal::BeyondRemote { asked: 8, there: 7 };
        let word = rig.filled(&[0; 8]);
        assert_eq!(refusal(sends.post(FetchAdd::new(word, short, 1))), expected);
        assert_eq!((rig.out(), calls()), (0, before));
        drop((a, b));
        rig.end();
    }

    /// A key is checked by the peer's device: the memory is back with its answer.
    fn keys_of_other_memory() {
        for which in 0..4 {
            let mut rig = Rig::new();
            let (mut a, b) = rig.pair();
            let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
            let other = Exposed::new(&rig.pd, 64, everything()).expect("memory");
            let foreign = Exposed::new(&domain(&rig.context), 64, everything()).expect("memory");
            let read_only = Exposed::new(&rig.pd, 64, rdma_verbs::RemoteAccess::READ);
            let read_only = read_only.expect("memory");
            let (address, len) = (exposed.remote().address(), exposed.remote().len());
            let remote = match which {
                0 => RemoteSlice::new(address, len, other.remote().rkey()),
                1 => RemoteSlice::new(address, len, RKey::new(0xdead_beef)),
                2 => foreign.remote(),
                _ => read_only.remote(),
            };
            let write = Write::new(rig.filled(b"denied"), remote).wr_id(1);
            a.send_queue().post(write).expect("room");
            let seen = rig.completions(1);
            assert_eq!(ends(&seen), [(1, WcStatus::REM_ACCESS_ERR)], "{which}");
            assert_eq!(seen[0].bytes(), b"denied");
            drop(seen);
            for memory in [&exposed, &other, &foreign] {
                let mut bytes = [1; 64];
                memory.read(0, &mut bytes).expect("inside");
                assert_eq!(bytes, [0; 64]);
            }
            drop((a, b, exposed, other, foreign, read_only));
            rig.end();
        }
    }

    fn objects_of_other_devices() {
        let rig = Rig::new();
        let again = open("loop0");
        let empty = open("empty0");
        let before = calls();
        for (context, name) in [(&again, "loop0"), (&empty, "empty0")] {
            let cq = CompletionQueue::new(context, 127).expect("a CQ");
            let sends = QueuePair::rc(&rig.pd, &cq, &rig.cq).build();
            assert_other_device(sends, "the send completion queue", name);
            let recvs = QueuePair::rc(&rig.pd, &rig.cq, &cq).build();
            assert_other_device(recvs, "the receive completion queue", name);
            let channel = CompletionChannel::new(context).expect("a channel");
            let on = CompletionQueue::builder(&rig.context, 15).channel(&channel).build();
            assert_other_device(on, "a completion channel", name);
            assert_eq!(cq.room(), cq.size());
        }
        assert_eq!(calls() - before, 2, "the completion queues");
        assert_eq!(rig.cq.room(), rig.cq.size());
        drop((again, empty));
        rig.end();
    }

    fn memory_of_other_domains() {
        let rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let expected = |qpn: rdma_verbs::Qpn| Refusal::OtherDomain { what: "memory", on: qpn.into() };
        let (at_a, at_b) = (expected(a.qpn()), expected(b.qpn()));
        let others = [domain(&rig.context), domain(&open("loop0")), domain(&open("empty0"))];
        for pd in &others {
            let pool = Pool::new(pd, 64, 8).expect("a pool");
            let exposed = Exposed::new(pd, 64, everything()).expect("memory");
            let remote = RemoteSlice::new(0, 1 << 20, RKey::new(0));
            let take = || pool.take().expect("a buffer");
            let before = calls();
            let sends = a.send_queue();
            assert_eq!(refusal(sends.post(Send::new(take()))), at_a);
            assert_eq!(refusal(sends.post(Send::new(take().freeze()))), at_a);
            assert_eq!(refusal(sends.post(Send::new(exposed.range(0, 8).expect("inside")))), at_a);
            assert_eq!(refusal(sends.post(Send::new((rig.take(), take())))), at_a);
            assert_eq!(refusal(sends.post(Read::new(take(), remote))), at_a);
            assert_eq!(refusal(sends.post(Write::new([rig.take(), take()], remote))), at_a);
            assert_eq!(refusal(sends.batch::<2>().push(Send::new(take()))), at_a);
            let recvs = b.recv_queue();
            assert_eq!(refusal(recvs.post(Receive::new(take()))), at_b);
            assert_eq!(refusal(recvs.post(Receive::new([rig.take(), take()]))), at_b);
            let range = exposed.range(0, 8).expect("inside");
            assert_eq!(refusal(recvs.post(Receive::new(range))), at_b);
            assert_eq!(refusal(recvs.batch::<2>().push(Receive::new(take()))), at_b);
            assert_eq!((rig.out(), pool.available(), calls()), (0, 8, before));
            exposed.revoke().expect("nothing holds it");
        }
        // Inline bytes and nothing at all are of any.
        a.send_queue().post(Send::new(Inline(b"any"))).expect("room");
        a.send_queue().post(Send::new(())).expect("room");
        drop((a, b, others));
        let mut rig = rig;
        assert_eq!(rig.completions(2).len(), 2);
        rig.end();
    }

    fn addresses_that_cannot_be() {
        let rig = Rig::new();
        let (mut a, b) = (rig.init(), rig.init());
        let options = rig.options();
        let good = b.endpoint(&options).expect("an address");
        let zero = Gid::from_bytes([0; 16]);
        let v6 = "2001:db8::10".parse().expect("a GID");
        let before = faults::count("ibv_modify_qp");
        for (peer, told) in [
            (Endpoint { gid: Some(zero), ..good }, "GID is zero"),
            (Endpoint { gid: None, ..good }, "GID is zero"),
            (Endpoint { gid: Some(v6), ..good }, "grh"),
            (Endpoint { qpn: Qpn::new(0).expect("a number"), ..good }, "dest_qp_num"),
            (Endpoint { qpn: Qpn::new(1).expect("a number"), ..good }, "dest_qp_num"),
            (Endpoint { mtu: Some(rdma_verbs::Mtu::from_raw(0)), ..good }, "path_mtu"),
        ] {
            let failed = a.connect(&peer, &options).expect_err("it cannot be");
            let Error::Transition(fault) = &failed.error else { panic!("{:?}", failed.error) };
            assert_eq!(fault.errno, None);
            assert!(fault.what.contains(told), "{fault}");
            a = failed.queue_pair;
        }
        // Without a GID on this side.
        let by_lid = rdma_verbs::ConnectOptions::by_lid(PortNum::FIRST);
        let failed = a.connect(&good, &by_lid).expect_err("Ethernet needs one");
        assert!(failed.error.to_string().contains("is_global"), "{}", failed.error);
        a = failed.queue_pair;
        assert_eq!(faults::count("ibv_modify_qp"), before, "the device was not asked");
        for (options, told) in
            [(options.retry_count(8), "retry_cnt"), (options.rnr_retry(9), "rnr_retry")]
        {
            let failed = a.connect(&good, &options).expect_err("7 is the most");
            assert!(failed.error.to_string().contains(told), "{}", failed.error);
            a = failed.queue_pair;
        }
        // A row of another device's table.
        let empty = open("empty0");
        let foreign = rdma_verbs::ConnectOptions::new(&crate::interposed::rig::row(&empty));
        let failed = a.connect(&good, &foreign).expect_err("the row is not of this device");
        assert!(matches!(failed.error, Error::GidMoved(_)), "{:?}", failed.error);
        let (a, b) = rig.connect(failed.queue_pair, b);
        drop((a, b, empty));
        rig.end();
    }

    fn ports_that_are_not_there() {
        let rig = Rig::new();
        let port = PortNum::new(2).expect("a number");
        let init = rdma_verbs::InitOptions::new(port);
        let failed = rig.make().init(&init).expect_err("it has one port");
        assert!(matches!(failed.error, Error::NoSuchPort { ports: 1, .. }), "{:?}", failed.error);
        let init = rig.init_options().pkey_index(5);
        let failed = failed.queue_pair.init(&init).expect_err("it has one partition");
        assert!(failed.error.to_string().contains("pkey_index 5"), "{}", failed.error);
        drop(failed);
        rig.end();
    }

    fn depths_and_entries_of_queues() {
        let rig = Rig::new();
        let before = calls();
        let (wr, sge) = (16_383, 32);
        for number in [0, wr + 1, u32::MAX] {
            let can = (1, wr.into());
            assert_out_of_range(
                rig.builder().send_depth(number).build(), "max_send_wr", number.into(), can);
            assert_out_of_range(
                rig.builder().recv_depth(number).build(), "max_recv_wr", number.into(), can);
        }
        for number in [0, sge + 1, u32::MAX] {
            let can = (1, sge.into());
            assert_out_of_range(
                rig.builder().max_send_sge(number).build(), "max_send_sge", number.into(), can);
            assert_out_of_range(
                rig.builder().max_recv_sge(number).build(), "max_recv_sge", number.into(), can);
        }
        assert_eq!((calls(), rig.cq.room()), (before, rig.cq.size()));
        for size in [0, 65_536, u32::MAX] {
            let made = CompletionQueue::new(&rig.context, size);
            assert_out_of_range(made, "size of a completion queue", size.into(), (1, 65_535));
        }
        for vector in [4, u32::MAX] {
            let made = CompletionQueue::builder(&rig.context, 15).vector(vector).build();
            assert_out_of_range(made, "completion vector", vector.into(), (0, 3));
        }
        for batch in [0, 257, usize::MAX] {
            let made = CompletionQueue::builder(&rig.context, 15).batch(batch).build();
            assert_out_of_range(made, "batch of a completion queue", batch as u64, (1, 256));
        }
        assert_eq!(calls(), before);
        // The limits themselves.
        let most = CompletionQueue::builder(&rig.context, 65_535).vector(3).batch(256).build();
        let most = most.expect("a CQ");
        let made = QueuePair::rc(&rig.pd, &most, &most).send_depth(wr).recv_depth(wr);
        let made = made.max_send_sge(sge).max_recv_sge(sge).build().expect("a queue pair");
        assert_eq!((made.limits().send_depth, made.limits().max_send_sge), (wr, sge));
        drop((made, most));
        rig.end();
    }

    /// Room for all that can be in flight, or no queue pair.
    fn a_completion_queue_without_room() {
        let rig = Rig::new();
        let mut small = CompletionQueue::new(&rig.context, 4).expect("a CQ");
        assert_eq!(small.size(), 7);
        let make = |send, recv| {
            QueuePair::rc(&rig.pd, &small, &small).send_depth(send).recv_depth(recv).build()
        };
        for (send, recv, asked, left) in [(8, 1, 8, 7), (4, 4, 4, 3), (7, 1, 1, 0)] {
            let error = make(send, recv).expect_err("no room");
            let Error::CompletionQueueFull { asked: told, left: rest, size: 7 } = error else {
                panic!("{error:?}")
            };
            assert_eq!((told, rest, small.room()), (asked, left, 7));
        }
        let first = make(4, 3).expect("it fits");
        assert_eq!(small.room(), 0);
        make(1, 1).expect_err("no room");
        drop(first);
        assert_eq!(small.room(), 0, "its completions may still be there");
        assert_eq!(poll(&mut small), []);
        assert_eq!(small.room(), 7);
        drop(small);
        rig.end();
    }

    fn full_queues() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let (full_a, full_b) = (
            Refusal::Full { queue: rdma_verbs::Queue::Send, on: a.qpn().into(), depth: DEPTH },
            Refusal::Full { queue: rdma_verbs::Queue::Receive, on: b.qpn().into(), depth: DEPTH },
        );
        for round in 0..3 {
            faults::stall(true);
            for wr_id in 0..u64::from(DEPTH) {
                a.send_queue().post(Send::new(rig.take()).wr_id(wr_id)).expect("room");
                b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
            }
            let before = calls();
            assert_eq!(refusal(a.send_queue().post(Send::new(rig.take()))), full_a);
            assert_eq!(refusal(a.send_queue().batch::<1>().push(Send::new(rig.take()))), full_a);
            assert_eq!(refusal(b.recv_queue().post(Receive::new(rig.take()))), full_b);
            assert_eq!(refusal(b.recv_queue().batch::<1>().push(Receive::new(rig.take()))), full_b);
            assert_eq!((calls(), rig.out()), (before, 2 * DEPTH as usize));
            assert_eq!(a.send_queue().in_flight() + b.recv_queue().in_flight(), 2 * DEPTH);
            faults::stall(false);
            // Signaled often enough to come free without a word from the caller.
            let seen = rig.completions(2 * DEPTH as usize);
            assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{round}: {seen:?}");
        }
        // A batch for more than there is room for is full at that point.
        let mut batch = a.send_queue().batch::<{ DEPTH as usize + 1 }>();
        faults::stall(true);
        for _ in 0..DEPTH {
            batch.push(Send::new(rig.take())).expect("room");
        }
        assert_eq!(refusal(batch.push(Send::new(rig.take()))), full_a);
        batch.post().expect("room");
        drop((a, b));
        assert_eq!(rig.completions(DEPTH as usize).len(), DEPTH as usize);
        rig.end();
    }

    fn full_batches() {
        let rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let before = calls();
        let requests = Refusal::BatchFull { what: "work requests", room: 2 };
        let entries = Refusal::BatchFull { what: "scatter/gather entries", room: 3 };
        let mut batch = a.send_queue().batch::<2>();
        batch.push(Send::new(rig.take())).expect("room");
        batch.push(Send::new(())).expect("room");
        assert_eq!(refusal(batch.push(Send::new(rig.take()))), requests);
        assert_eq!(batch.len(), 2);
        drop(batch);
        let mut batch = a.send_queue().batch_of::<2, 3>();
        batch.push(Send::new([rig.take(), rig.take()])).expect("room");
        assert_eq!(refusal(batch.push(Send::new([rig.take(), rig.take()]))), entries);
        batch.push(Send::new(rig.take())).expect("there is room for one");
        drop(batch);
        let mut batch = b.recv_queue().batch::<2>();
        batch.push(Receive::new(rig.take())).expect("room");
        batch.push(Receive::new(rig.take())).expect("room");
        assert_eq!(refusal(batch.push(Receive::new(rig.take()))), requests);
        drop(batch);
        let mut batch = b.recv_queue().batch_of::<2, 3>();
        batch.push(Receive::new([rig.take(), rig.take()])).expect("room");
        assert_eq!(refusal(batch.push(Receive::new([rig.take(), rig.take()]))), entries);
        drop(batch);
        let none = a.send_queue().batch::<4>();
        assert!(none.is_empty());
        none.post().expect("nothing to post");
        assert_eq!((rig.out(), calls()), (0, before));
        assert_eq!((a.send_queue().in_flight(), b.recv_queue().in_flight()), (0, 0));
        drop((a, b));
        rig.end();
    }

    fn more_memory_than_may_be_locked() {
        let rig = Rig::new();
        let held = faults::live("mr_bytes");
        faults::memory_limit(held + 64 * 1024);
        let error = Pool::new(&rig.pd, 1 << 20, 1).expect_err("it is more");
        let Error::NoMemory { asked, limit, .. } = error else { panic!("{error:?}") };
        let own = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        assert_eq!((asked, limit), (1 << 20, own));
        let first = Pool::new(&rig.pd, 32 << 10, 1).expect("half of it");
        let second = Exposed::new(&rig.pd, 32 << 10, everything()).expect("the other half");
        assert!(matches!(Pool::new(&rig.pd, 32 << 10, 1), Err(Error::NoMemory { .. })));
        drop(first);
        Pool::new(&rig.pd, 32 << 10, 1).expect("there is room again");
        second.revoke().expect("nothing holds it");
        assert_eq!(faults::live("mr_bytes"), held);
        rig.end();
    }

    fn waiting_without_a_channel() {
        let mut rig = Rig::new();
        let no_channel = |waited: Result<(), Error>| {
            assert!(matches!(waited, Err(Error::NoChannel)), "{waited:?}");
        };
        no_channel(rig.cq.arm(Notify::Any).map(drop));
        no_channel(rig.cq.wait(Notify::Any, Duration::from_secs(10)).map(drop));
        let channel = CompletionChannel::new(&rig.context).expect("a channel");
        let other = CompletionChannel::new(&rig.context).expect("a channel");
        let cq = CompletionQueue::builder(&rig.context, 15).channel(&other).build();
        let mut cq = cq.expect("a CQ");
        let long = Duration::from_secs(10);
        no_channel(channel.wait(&mut [&mut rig.cq], Notify::Any, long).map(drop));
        no_channel(channel.wait(&mut [&mut cq], Notify::Any, long).map(drop));
        let waited = other.wait(&mut [&mut cq], Notify::Any, Duration::from_millis(1));
        assert_eq!(waited.expect("it can be waited on"), None);
        drop((cq, channel, other));
        rig.end();
    }

    /// A flush that the peer is known not to allow.
    fn a_flush_that_is_not_allowed() {
        let mut rig = Rig::new();
        let make = || {
            rig.make().init(&rdma_verbs::InitOptions::new(rig.row.port())).expect("to INIT")
        };
        let (mut a, mut b) = rig.connect(make(), make());
        b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
        let qpn = a.qpn();
        let sends = a.send_queue();
        assert!(!sends.flush().expect("nothing to flush"));
        sends.post(Send::new(rig.take()).wr_id(2)).expect("room");
        let error = sends.flush().expect_err("it is not allowed");
        let Error::Refused(Refusal::FlushNotAllowed { qpn: told }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(told, qpn);
        sends.post(Send::new(()).wr_id(3).signaled()).expect("room");
        assert!(!sends.flush().expect("nothing to flush"));
        drop((a, b));
        let seen = rig.completions(3);
        assert_eq!(seen[0].wr_id, 1);
        drop(seen);
        rig.end();
    }
}
