//! What is too much, too little or of another: told with the limit, and what was asked.

use rdma_verbs::wr::{FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Error, EventType, Exposed, InitOptions, Pool,
    ProtectionDomain, QueuePair, Refusal, RemoteAccess, RemoteSlice, Reset, WcOpcode, WcStatus,
};

use super::rc::{Ground, Pair, bytes, completions, everything, join, polled};
use super::rig::Rig;

pub(crate) mod memory;

/// The text of what was refused, which was not made.
fn refused<T>(outcome: Result<T, Error>) -> Error {
    outcome.map(|_| ()).expect_err("it cannot be")
}

/// Attributes that were not all zero failed every other time.
#[test]
fn a_thousand_queue_pairs() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(64);
    for number in 0..1000 {
        let builder = QueuePair::rc(&ground.pd, &cq, &cq).send_depth(4).recv_depth(4);
        builder.build().unwrap_or_else(|error| panic!("queue pair {number}: {error}"));
        polled(&mut cq, &mut Vec::new());
    }
    assert_eq!(cq.room(), cq.size());
}

#[test]
fn depths_and_entries() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let limits = ground.context.limits();
    let cq = ground.cq(limits.max_cqe);
    let (most, entries) = (limits.max_qp_wr, limits.max_sge.min(32));
    for (at, name, most, fits) in [
        (0, "max_send_wr", most, cq.size()),
        (1, "max_recv_wr", most, cq.size()),
        (2, "max_send_sge", entries, u32::MAX),
        (3, "max_recv_sge", entries, u32::MAX),
    ] {
        let build = |asked| {
            let mut caps = [1; 4];
            caps[at] = asked;
            let builder = QueuePair::rc(&ground.pd, &cq, &cq).send_depth(caps[0]);
            builder.recv_depth(caps[1]).max_send_sge(caps[2]).max_recv_sge(caps[3]).build()
        };
        for bad in [0, most + 1, u32::MAX] {
            let error = refused(build(bad));
            let Error::OutOfRange { what, asked, most: told, .. } = error else {
                panic!("{name} {bad}: {error}");
            };
            assert!(what.contains(name), "{what}");
            assert_eq!((asked, told), (bad.into(), most.into()));
        }
        build(1).unwrap_or_else(|error| panic!("{name} 1: {error}"));
        // As much as the device can, if the completion queue has room for it.
        match build(most) {
            Ok(_) => assert!(most < fits, "{name}"),
            Err(Error::CompletionQueueFull { asked, size, .. }) => {
                assert_eq!((asked, size), (most, cq.size()), "{name}");
                assert!(most >= fits, "{name}");
            }
            Err(error) => panic!("{name} {most}: {error}"),
        }
    }
    for size in [0, limits.max_cqe + 1] {
        let error = refused(CompletionQueue::new(&ground.context, size));
        let Error::OutOfRange { asked, .. } = error else { panic!("{error}") };
        assert_eq!(asked, u64::from(size));
    }
}

#[test]
fn inline_data() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(64);
    let pool = Pool::new(&ground.pd, 4096, 8).expect("a pool");
    let init = InitOptions::new(ground.row.port()).access(everything());
    let text: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
    for asked in [0, 400, 512] {
        let build = || -> QueuePair<Reset> {
            let builder = QueuePair::rc(&ground.pd, &cq, &cq).send_depth(4).recv_depth(4);
            builder.max_inline(asked).build().expect("rxe grants it")
        };
        let a = build();
        let granted = a.limits().max_inline;
        assert!(granted >= asked, "{granted} of {asked}");
        let mut b = build().init(&init).expect("to INIT");
        for _ in 0..2 {
            b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
        }
        let (mut a, b) = join(a.init(&init).expect("to INIT"), b, &ground.options());
        let sends = a.send_queue();
        // To the last byte of what was granted, and not one more.
        for length in [granted as usize, (granted as usize).saturating_sub(1)] {
            let send = Send::new(Inline(&text[..length])).signaled();
            sends.post(send).expect("it was granted");
            let seen = completions(&mut cq, 2);
            let received = seen.iter().find(|seen| seen.opcode == WcOpcode::RECV);
            let received = received.expect("one of two is");
            assert_eq!((received.status, received.byte_len), (WcStatus::SUCCESS, length as u32));
            assert_eq!(bytes(&received.memory[0]), &text[..length]);
        }
        for length in [granted as usize + 1, 4096] {
            let failed = sends.post(Send::new(Inline(&text[..length])).wr_id(7));
            let failed = failed.expect_err("it is more than was granted");
            let Refusal::InlineTooLong { asked, limit, .. } = failed.refusal else {
                panic!("{failed}");
            };
            assert_eq!((asked, limit), (length as u64, granted));
            assert_eq!(failed.request.expect("it comes back").into_memory().0.len(), length);
        }
        drop((a, b));
        polled(&mut cq, &mut Vec::new());
    }
    for asked in [513, 912, u32::MAX] {
        let builder = QueuePair::rc(&ground.pd, &cq, &cq).send_depth(4).recv_depth(4);
        let error = refused(builder.max_inline(asked).build());
        assert!(error.to_string().contains(&format!("max_inline_data {asked}")), "{error}");
    }
    assert_eq!(cq.room(), cq.size(), "what was refused takes no room");
}

#[test]
fn a_full_send_queue() {
    let rig = Rig::new();
    let Pair { mut a, mut b, mut cq, pool, pd: _pd } = Pair::new(&rig);
    for _ in 0..16 {
        b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
    }
    let mut extra = pool.take().expect("a buffer");
    extra.fill_from(b"one too many").expect("it fits");
    let failed = b.recv_queue().post(Receive::new(extra)).expect_err("it is full");
    assert!(matches!(failed.refusal, Refusal::Full { depth: 16, .. }), "{failed}");
    let extra = failed.request.expect("it comes back").into_memory();
    // Nobody polls: all 16 places are taken, though the device is through with them.
    for wr_id in 0..16 {
        a.send_queue().post(Send::new(Inline(b"message")).wr_id(wr_id)).expect("room");
    }
    let failed = a.send_queue().post(Send::new(extra).wr_id(16)).expect_err("it is full");
    assert!(matches!(failed.refusal, Refusal::Full { depth: 16, .. }), "{failed}");
    let extra = failed.request.expect("it comes back");
    let seen = completions(&mut cq, 32);
    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    drop(seen);
    // 14 receives of 16 are posted; then a chain of five whose third has no room.
    let mut receives = b.recv_queue().batch::<14>();
    for _ in 0..14 {
        receives.push(Receive::new(pool.take().expect("a buffer"))).expect("room");
    }
    receives.post().expect("posted");
    let sends = a.send_queue();
    for wr_id in 20..33 {
        sends.post(Send::new(Inline(b"message")).wr_id(wr_id)).expect("room");
    }
    sends.post(extra).expect("it goes the second time");
    let mut chain = sends.batch::<5>();
    for wr_id in [40, 41] {
        chain.push(Send::new(Inline(b"chain")).wr_id(wr_id)).expect("room");
    }
    for wr_id in [42, 43, 44] {
        let mut third = pool.take().expect("a buffer");
        third.fill_from(b"third").expect("it fits");
        let failed = chain.push(Send::new(third).wr_id(wr_id)).expect_err("it is full");
        assert!(matches!(failed.refusal, Refusal::Full { depth: 16, .. }), "{failed}");
        assert_eq!(&failed.request.expect("it comes back").into_memory()[..], b"third");
    }
    assert_eq!(chain.len(), 2);
    for _ in 0..2 {
        b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
    }
    chain.post().expect("two of five");
    let seen = completions(&mut cq, 32);
    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    let received = seen.iter().filter(|seen| seen.opcode == WcOpcode::RECV);
    let told: Vec<&[u8]> = received.map(|seen| bytes(&seen.memory[0])).collect();
    assert_eq!(told[13..], [&b"one too many"[..], b"chain", b"chain"]);
}

#[test]
fn a_completion_queue_that_is_too_small() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(4);
    let size = cq.size();
    let builder = |depth| QueuePair::rc(&ground.pd, &cq, &cq).send_depth(depth).recv_depth(depth);
    let error = refused(builder(size / 2 + 1).build());
    let Error::CompletionQueueFull { asked, left, size: told } = error else { panic!("{error}") };
    assert_eq!((asked, left, told), (size / 2 + 1, size - (size / 2 + 1), size));
    assert_eq!(cq.room(), size, "what was refused takes no room");
    let error = refused(builder(12).build());
    assert!(matches!(error, Error::CompletionQueueFull { asked: 12, .. }), "{error}");
    let one = builder(1).build().expect("it fits");
    assert_eq!(cq.room(), size - 2);
    drop(one);
    assert_eq!(cq.room(), size - 2, "its completions may still be there");
    polled(&mut cq, &mut Vec::new());
    assert_eq!(cq.room(), size);
}

/// All that can be posted is, nobody polls, and all of it completes.
#[test]
fn a_completion_queue_filled_to_the_brim() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let events = ground.context.subscribe().expect("a queue of events");
    let mut cq = ground.cq(100);
    let pool = Pool::new(&ground.pd, 64, cq.size() as usize).expect("a pool");
    let depth = cq.size() / 4;
    let (a, b) = (ground.queue_pair(&cq, depth), ground.queue_pair(&cq, depth));
    let last = cq.room();
    let (mut a, mut b) = join(a, b, &ground.options());
    for number in 0..depth {
        // Half of them answered, half flushed.
        let buffer = pool.take().expect("a buffer");
        b.recv_queue().post(Receive::new(buffer)).expect("room");
        let buffer = pool.take().expect("a buffer");
        a.recv_queue().post(Receive::new(buffer)).expect("room");
        if number < depth / 2 {
            a.send_queue().post(Send::new(Inline(b"message")).signaled()).expect("room");
        }
    }
    b.close().expect("to ERR");
    a.close().expect("to ERR");
    let count = (2 * depth + depth / 2) as usize;
    assert_eq!(completions(&mut cq, count).len(), count);
    drop((a, b));
    let mut more = Vec::new();
    polled(&mut cq, &mut more);
    assert!(more.is_empty(), "{more:?}");
    assert_eq!((cq.room(), cq.strays()), (cq.size(), 0));
    assert!(last < 4);
    ground.context.process_events().expect("they can be taken in");
    while let Some(event) = events.next_event() {
        assert_ne!(event.kind, EventType::CQ_ERR, "it overran");
    }
}

/// A buffer, a completion queue, a channel of another device or protection domain.
#[test]
fn things_of_another() {
    let rig = Rig::new();
    let Pair { mut a, b: _b, mut cq, pool, pd } = Pair::new(&rig);
    let other = ProtectionDomain::new(pd.context()).expect("a PD");
    let strange = Pool::new(&other, 64, 4).expect("a pool");
    let mut buffer = strange.take().expect("a buffer");
    buffer.fill_from(b"strange").expect("it fits");
    let own = pool.take().expect("a buffer");
    let failed = a.send_queue().post(Send::new((own, buffer))).expect_err("of another PD");
    assert!(matches!(failed.refusal, Refusal::OtherDomain { .. }), "{failed}");
    let (_own, buffer) = failed.request.expect("it comes back").into_memory();
    assert_eq!(&buffer[..], b"strange");
    let failed = a.recv_queue().post(Receive::new(buffer)).expect_err("of another PD");
    assert!(matches!(failed.refusal, Refusal::OtherDomain { .. }), "{failed}");
    drop(failed);
    let again = rig.open();
    let cq_of_other = CompletionQueue::new(&again, 64).expect("a CQ");
    let error = refused(QueuePair::rc(&pd, &cq, &cq_of_other).build());
    assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
    let channel = CompletionChannel::new(&again).expect("a channel");
    let error = refused(CompletionQueue::builder(pd.context(), 4).channel(&channel).build());
    assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
    let mut none = Vec::new();
    polled(&mut cq, &mut none);
    assert!(none.is_empty(), "the device saw none of it");
}

/// Wrong places in a peer's memory: before the device where that can be, else by the peer's answer.
#[test]
fn places_of_a_peer() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(64);
    let pool = Pool::new(&ground.pd, 64, 4).expect("a pool");
    let exposed = Exposed::new(&ground.pd, 4096, everything()).expect("memory");
    let second = Exposed::new(&ground.pd, 4096, everything()).expect("memory");
    let readable = Exposed::new(&ground.pd, 4096, RemoteAccess::READ).expect("memory");
    let remote = exposed.remote();
    let mut word = pool.take().expect("a buffer");
    word.set_len(8).expect("it fits");
    let text = |length| {
        let mut buffer = pool.take().expect("a buffer");
        buffer.fill_from(&[7; 64][..length]).expect("it fits");
        buffer
    };
    let (mut a, b) = join(ground.queue_pair(&cq, 8), ground.queue_pair(&cq, 8), &ground.options());
    let sends = a.send_queue();
    let at = remote.slice(4, 8).expect("inside");
    let failed = sends.post(FetchAdd::new(word, at, 1)).expect_err("it is not aligned");
    assert!(matches!(failed.refusal, Refusal::UnalignedAtomic { .. }), "{failed}");
    let word = failed.request.expect("it comes back").into_memory();
    let small = remote.slice(8, 4).expect("inside");
    let failed = sends.post(FetchAdd::new(word, small, 1)).expect_err("8 bytes of 4");
    assert!(matches!(failed.refusal, Refusal::BeyondRemote { asked: 8, there: 4 }), "{failed}");
    drop(failed);
    let end = remote.slice(4096 - 32, 32).expect("inside");
    let failed = sends.post(Write::new(text(64), end)).expect_err("64 bytes of 32");
    assert!(matches!(failed.refusal, Refusal::BeyondRemote { asked: 64, there: 32 }), "{failed}");
    assert_eq!(failed.request.expect("it comes back").into_memory().len(), 64);
    let error = refused(remote.slice(4096, 1));
    assert!(matches!(error, Error::OutOfRange { asked: 4097, most: 4096, .. }), "{error}");
    drop((a, b));
    // The key of another region, no key at all, beyond the region, and a right that was not granted.
    let address = remote.address();
    let cases = [
        RemoteSlice::new(address, 4096, second.remote().rkey()),
        RemoteSlice::new(address, 4096, rdma_verbs::RKey::new(0x00ff_ff00)),
        RemoteSlice::new(address + 4096 - 8, 4096, remote.rkey()),
        RemoteSlice::new(u64::MAX - 8, 4096, remote.rkey()),
        readable.remote(),
    ];
    for (case, remote) in cases.into_iter().enumerate() {
        let (a, b) = (ground.queue_pair(&cq, 8), ground.queue_pair(&cq, 8));
        let (mut a, b) = join(a, b, &ground.options());
        a.send_queue().post(Write::new(text(16), remote).wr_id(9).signaled()).expect("room");
        let seen = completions(&mut cq, 1);
        assert_eq!((seen[0].wr_id, seen[0].status), (9, WcStatus::REM_ACCESS_ERR), "case {case}");
        drop((a, b, seen));
        polled(&mut cq, &mut Vec::new());
    }
    // Reading what may be read.
    let (a, b) = (ground.queue_pair(&cq, 8), ground.queue_pair(&cq, 8));
    let (mut a, _b) = join(a, b, &ground.options());
    a.send_queue().post(Read::new(text(16), readable.remote())).expect("room");
    assert_eq!(completions(&mut cq, 1)[0].status, WcStatus::SUCCESS);
    let mut there = [1; 4096];
    for memory in [&exposed, &second, &readable] {
        memory.read(0, &mut there).expect("inside");
        assert!(there.iter().all(|byte| *byte == 0), "something was written");
    }
}
