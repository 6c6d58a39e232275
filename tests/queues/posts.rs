//! Posts that fail: what is said of it, and where the memory is.

use std::fmt::Debug;

use rdma_verbs::wr::{FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{
    BatchError, Errno, Exposed, Memory, PostError, QueuePair, Refusal, Rts, WcOpcode, WcStatus,
};

use crate::interposed::faults::Post;
use crate::interposed::rig::{BUFFERS, DEPTH, Rig, ends, everything, forget, poll, word};
use crate::interposed::{faults, interposed};

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

/// The request of a post that the device refused.
#[track_caller]
fn given_back<R: Debug>(failed: Result<(), PostError<R>>, verb: &str, errno: i32) -> R {
    let failed = failed.expect_err("it is refused");
    match failed.refusal {
        Refusal::Device { verb: told, errno: why, .. } => {
            assert_eq!((told, why.raw()), (verb, errno));
        }
        refusal => panic!("{refusal:?}"),
    }
    failed.request.expect("the request comes back")
}

#[track_caller]
fn assert_unsure(refusal: Refusal, verb: &str, errno: i32) {
    match refusal {
        Refusal::Unsure { verb: told, errno: why, .. } => {
            assert_eq!((told, why.raw()), (verb, errno));
        }
        refusal => panic!("{refusal:?}"),
    }
}

/// The numbers and the memory of what a batch gives back.
fn refused(failed: &mut BatchError<'_>) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(mut refused) = failed.next_refused() {
        let mut bytes = Vec::new();
        while let Some(memory) = refused.take() {
            match memory {
                Memory::Buffer(buffer) => bytes.extend_from_slice(&buffer),
                Memory::Shared(buffer) => bytes.extend_from_slice(&buffer),
                other => panic!("{other:?}"),
            }
        }
        all.push((refused.wr_id(), bytes));
    }
    all
}

/// Receives for so many messages, numbered from 100.
fn receives(rig: &Rig, qp: &mut QueuePair<Rts>, count: u64) {
    for wr_id in 0..count {
        qp.recv_queue().post(Receive::new(rig.take()).wr_id(100 + wr_id)).expect("room");
    }
}

/// That both queues of a queue pair take nothing any more, and why.
fn assert_poisoned(rig: &Rig, qp: &mut QueuePair<Rts>, errno: i32) {
    let number = qp.qpn();
    let is_poisoned = |refusal: Refusal| {
        let Refusal::Poisoned { on, errno: why } = refusal else { panic!("{refusal:?}") };
        assert_eq!((on, why.raw()), (number.into(), errno));
    };
    let calls = faults::count("ibv_post_send") + faults::count("ibv_post_recv");
    let out = rig.out();
    let (sends, recvs) = qp.queues();
    is_poisoned(sends.post(Send::new(rig.take())).expect_err("poisoned").refusal);
    is_poisoned(recvs.post(Receive::new(rig.take())).expect_err("poisoned").refusal);
    let mut batch = sends.batch::<2>();
    is_poisoned(batch.push(Send::new(rig.take())).expect_err("poisoned").refusal);
    drop(batch);
    is_poisoned(recvs.batch::<2>().push(Receive::new(rig.take())).expect_err("poisoned").refusal);
    assert_eq!(rig.out(), out);
    assert_eq!(faults::count("ibv_post_send") + faults::count("ibv_post_recv"), calls);
}

interposed! {
    /// Of each kind of memory: it comes back as it was, and can be posted again.
    fn what_is_refused_comes_back_as_it_was() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        receives(&rig, &mut b, 5);
        let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        exposed.write(8, b"exposed").expect("inside");
        let range = exposed.range(8, 7).expect("inside");
        let shared = rig.filled(b"0123456789").freeze();
        let part = shared.slice(3..6).expect("inside");
        let sends = a.send_queue();
        let fault = || faults::fail_post("ibv_post_send", Post::RefuseAt(0), libc::ENOMEM, 1);
        macro_rules! twice {
            ($request:expr) => {{
                fault();
                let again = given_back(sends.post($request), "ibv_post_send", libc::ENOMEM);
                sends.post(again).expect("it is taken")
            }};
        }
        twice!(Send::new(rig.filled(b"alone")).wr_id(1));
        twice!(Send::new([rig.filled(b"two"), rig.filled(b"buffers")]).wr_id(2).imm(7));
        twice!(Send::new((rig.filled(b"first"), part, range, rig.filled(b"last"))).wr_id(3));
        let inline = b"inline".to_vec();
        twice!(Send::new(Inline(&inline)).wr_id(4));
        drop(inline);
        twice!(Send::new(()).wr_id(5).signaled());
        let seen = rig.completions(10);
        assert!(seen.iter().all(|seen| seen.status == OK), "{seen:?}");
        let came: Vec<_> = seen.iter().filter(|seen| seen.opcode == WcOpcode::RECV).collect();
        let texts: Vec<&[u8]> = came.iter().map(|seen| seen.bytes()).collect();
        let expected: [&[u8]; 5] =
            [b"alone", b"twobuffers", b"first345exposedlast", b"inline", b""];
        assert_eq!(texts, expected);
        assert_eq!(came[1].imm, Some(7));
        drop((seen, shared));
        assert_eq!(rig.out(), 0);
        exposed.revoke().expect("nothing holds it");
        drop((a, b));
        rig.end();
    }

    fn reads_writes_and_atomics_refused_come_back_too() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        let remote = exposed.remote();
        let sends = a.send_queue();
        faults::fail_every("ibv_post_send", libc::EIO, 2, None);
        // Every second call fails: each is tried until it is taken.
        let mut word = rig.take();
        word.set_len(8).expect("it fits");
        let mut into = rig.take();
        into.set_len(5).expect("it fits");
        sends.post(Write::new(rig.filled(b"12345"), remote).wr_id(1).signaled()).expect("taken");
        let again = given_back(
            sends.post(Read::new(into, remote).wr_id(2)), "ibv_post_send", libc::EIO);
        sends.post(again).expect("taken");
        let part = remote.slice(8, 8).expect("inside");
        let again = given_back(
            sends.post(FetchAdd::new(word, part, 3).wr_id(3)), "ibv_post_send", libc::EIO);
        sends.post(again).expect("taken");
        let seen = rig.completions(3);
        assert_eq!(ends(&seen), [(1, OK), (2, OK), (3, OK)]);
        assert_eq!(seen[1].bytes(), b"12345");
        assert_eq!(seen[2].bytes(), [0; 8]);
        drop(seen);
        drop((a, b, exposed));
        rig.end();
    }

    fn receives_refused_come_back_and_are_posted_again() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let fault = || faults::fail_post("ibv_post_recv", Post::RefuseAt(0), libc::ENOMEM, 1);
        let recvs = b.recv_queue();
        fault();
        let two = Receive::new([rig.take(), rig.take()]).wr_id(1);
        let again = given_back(recvs.post(two), "ibv_post_recv", libc::ENOMEM);
        recvs.post(again).expect("taken");
        fault();
        let one = given_back(
            recvs.post(Receive::new(rig.take()).wr_id(2)), "ibv_post_recv", libc::ENOMEM);
        drop(one.into_memory());
        assert_eq!((rig.out(), recvs.in_flight()), (2, 1));
        let sent = [7; 300];
        let long = [rig.filled(&sent[..256]), rig.filled(&sent[256..])];
        a.send_queue().post(Send::new(long).signaled()).expect("room");
        let seen = rig.completions(2);
        let lengths: Vec<usize> = seen[0].memory.iter().map(|memory| match memory {
            Memory::Buffer(buffer) => buffer.len(),
            other => panic!("{other:?}"),
        }).collect();
        assert_eq!((lengths, seen[0].byte_len), (vec![256, 44], 300));
        drop((seen, a, b));
        rig.end();
    }

    /// Of five, from the first, a middle and the last one on: what was not taken comes back, in order,
    /// and the queue goes on.
    fn a_chain_refused_from_any_place() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for at in [0, 2, 4] {
            receives(&rig, &mut b, 10);
            faults::fail_post("ibv_post_send", Post::RefuseAt(at), libc::ENOMEM, 1);
            let mut batch = a.send_queue().batch_of::<5, 20>();
            for wr_id in 0..5 {
                let pieces = [rig.filled(&[wr_id as u8]), rig.filled(b"+")];
                batch.push(Send::new(pieces).wr_id(wr_id)).expect("room");
            }
            let mut failed = batch.post().expect_err("it is refused");
            assert!(matches!(failed.refusal, Refusal::Device { errno: Errno::ENOMEM, .. }));
            assert_eq!(failed.taken, at as usize);
            let expected: Vec<_> = (u64::from(at)..5).map(|n| (n, vec![n as u8, b'+'])).collect();
            assert_eq!(refused(&mut failed), expected);
            assert!(failed.next_refused().is_none());
            drop(failed);
            // The queue goes on, and ends what was taken.
            assert_eq!(a.send_queue().in_flight(), at);
            let last = Send::new(rig.filled(b"last")).wr_id(9).signaled();
            a.send_queue().post(last).expect("room");
            let seen = rig.completions(2 * (at as usize + 1));
            let (came, sent): (Vec<_>, Vec<_>) =
                seen.iter().partition(|seen| seen.opcode == WcOpcode::RECV);
            let numbers: Vec<u64> = sent.iter().map(|seen| seen.wr_id).collect();
            let expected: Vec<u64> = (0..u64::from(at)).chain([9]).collect();
            assert_eq!(numbers, expected);
            assert!(seen.iter().all(|seen| seen.status == OK));
            assert_eq!(came.last().map(|seen| seen.bytes()), Some(&b"last"[..]));
            drop(seen);
            // What was not received into is flushed when the queue pairs go.
            drop((a, b));
            assert_eq!(rig.completions(9 - at as usize).len(), 9 - at as usize);
            assert_eq!(rig.out(), 0);
            (a, b) = rig.pair();
        }
        drop((a, b));
        rig.end();
    }

    fn a_chain_of_receives_refused_from_any_place() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for (round, at) in [0_u64, 2, 4].into_iter().enumerate() {
            faults::fail_post("ibv_post_recv", Post::RefuseAt(at as u32), libc::ENOMEM, 1);
            let mut batch = b.recv_queue().batch::<5>();
            for wr_id in 0..5 {
                batch.push(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
            }
            let mut failed = batch.post().expect_err("it is refused");
            assert_eq!(failed.taken as u64, at);
            let mut back = Vec::new();
            while let Some(refused) = failed.next_refused() {
                back.push(refused.wr_id());
                assert_eq!(refused.into_buffer().expect("its buffer").len(), 256);
            }
            assert_eq!(back, (at..5).collect::<Vec<_>>());
            drop(failed);
            for wr_id in 0..at {
                a.send_queue().post(Send::new(()).wr_id(wr_id).signaled()).expect("room");
            }
            let seen = rig.completions(2 * at as usize);
            assert!(seen.iter().all(|seen| seen.status == OK), "{round}: {seen:?}");
            assert_eq!(b.recv_queue().in_flight(), 0);
            drop(seen);
            assert_eq!(rig.out(), 0);
        }
        drop((a, b));
        rig.end();
    }

    /// What nobody takes back is dropped, at the latest by the next post.
    fn what_is_not_taken_back_is_dropped() {
        let rig = Rig::new();
        let (mut a, b) = rig.pair();
        for forgotten in [false, true] {
            faults::fail_post("ibv_post_send", Post::RefuseAt(0), libc::ENOMEM, 1);
            let mut batch = a.send_queue().batch::<4>();
            for wr_id in 0..4 {
                batch.push(Send::new(rig.take()).wr_id(wr_id)).expect("room");
            }
            let mut failed = batch.post().expect_err("it is refused");
            drop(failed.next_refused().expect("the first"));
            assert_eq!(rig.out(), 3);
            if forgotten {
                forget(failed);
                assert_eq!(rig.out(), 3);
                a.send_queue().post(Send::new(())).expect("room");
            } else {
                drop(failed);
            }
            assert_eq!(rig.out(), 0, "{forgotten}");
        }
        drop((a, b));
        rig.end();
    }

    /// The whole depth can be used after any number of refusals.
    fn refusals_take_no_room() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let sends = a.send_queue();
        for round in 0..100_u32 {
            faults::fail_post("ibv_post_send", Post::RefuseAt(round % 3), libc::ENOMEM, 1);
            let mut batch = sends.batch::<3>();
            for _ in 0..3 {
                batch.push(Write::new(rig.filled(b""), exposed_nowhere())).expect("room");
            }
            drop(batch.post().expect_err("it is refused"));
            sends.flush().expect("it can be flushed");
            let done = poll(&mut rig.cq).len();
            assert_eq!((done as u32, sends.in_flight()), (round % 3, 0));
        }
        // No receive is there: none completes.
        for wr_id in 0..u64::from(DEPTH) {
            sends.post(Send::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        let failed = sends.post(Send::new(rig.take())).expect_err("it is full");
        assert!(matches!(failed.refusal, Refusal::Full { depth: DEPTH, .. }), "{failed}");
        drop(failed);
        drop((a, b));
        assert_eq!(rig.completions(DEPTH as usize).len(), DEPTH as usize);
        rig.end();
    }

    /// The doorbell failed: it may have been taken. What was taken completes, the rest comes flushed when
    /// the queue pair was destroyed, and nothing can be posted until then.
    fn a_post_that_names_nothing() {
        for how in [Post::TakenUnnamed, Post::LostUnnamed, Post::TakenForeign, Post::LostForeign] {
            let taken = matches!(how, Post::TakenUnnamed | Post::TakenForeign);
            for errno in [libc::ENOMEM, libc::EIO] {
                let mut rig = Rig::new();
                let (mut a, mut b) = rig.pair();
                receives(&rig, &mut b, 2);
                a.send_queue().post(Send::new(rig.filled(b"before")).wr_id(1)).expect("room");
                faults::fail_post("ibv_post_send", how, errno, 1);
                let last = Send::new(rig.filled(b"last")).wr_id(2).signaled();
                let failed = a.send_queue().post(last).expect_err("it fails");
                assert_unsure(failed.refusal, "ibv_post_send", errno);
                assert!(failed.request.is_none(), "it may be with the device");
                assert_poisoned(&rig, &mut a, errno);
                assert_eq!(rig.out(), 4);
                if taken {
                    let seen = rig.completions(4);
                    assert_eq!(ends(&seen), [(100, OK), (101, OK), (1, OK), (2, OK)]);
                    drop(seen);
                    assert_eq!(rig.out(), 0);
                } else {
                    assert_eq!(ends(&rig.completions(1)), [(100, OK)]);
                    assert_eq!(rig.out(), 3, "its memory stays");
                }
                drop(a);
                if !taken {
                    let seen = rig.completions(2);
                    assert_eq!(ends(&seen), [(1, FLUSHED), (2, FLUSHED)]);
                    assert!(seen.iter().all(|seen| seen.silent));
                    assert_eq!(seen[1].bytes(), b"last");
                }
                drop(b);
                assert_eq!(rig.completions(usize::from(!taken)).len(), usize::from(!taken));
                rig.end();
            }
        }
    }

    fn a_receive_that_names_nothing() {
        for how in [Post::TakenUnnamed, Post::LostUnnamed, Post::TakenForeign, Post::LostForeign] {
            let taken = matches!(how, Post::TakenUnnamed | Post::TakenForeign);
            let mut rig = Rig::new();
            let (mut a, mut b) = rig.pair();
            faults::fail_post("ibv_post_recv", how, libc::EIO, 1);
            let receive = Receive::new(rig.take()).wr_id(1);
            let failed = b.recv_queue().post(receive).expect_err("it fails");
            assert_unsure(failed.refusal, "ibv_post_recv", libc::EIO);
            assert!(failed.request.is_none(), "it may be with the device");
            assert_poisoned(&rig, &mut b, libc::EIO);
            a.send_queue().post(Send::new(()).wr_id(2).signaled()).expect("room");
            if taken {
                assert_eq!(ends(&rig.completions(2)), [(1, OK), (2, OK)]);
            } else {
                assert_eq!(rig.completions(0), []);
                assert_eq!(rig.out(), 1, "its memory stays");
            }
            drop(b);
            if !taken {
                // And the send has no peer any more.
                let seen = ends(&rig.completions(2));
                assert!(seen.contains(&(1, FLUSHED)), "{seen:?}");
                assert!(seen.contains(&(2, WcStatus::RETRY_EXC_ERR)), "{seen:?}");
            }
            drop(a);
            assert_eq!(rig.completions(0), []);
            rig.end();
        }
    }

    fn a_chain_that_names_nothing() {
        for how in [Post::TakenUnnamed, Post::LostUnnamed, Post::TakenForeign, Post::LostForeign] {
            let taken = matches!(how, Post::TakenUnnamed | Post::TakenForeign);
            let mut rig = Rig::new();
            let (mut a, mut b) = rig.pair();
            receives(&rig, &mut b, 5);
            faults::fail_post("ibv_post_send", how, libc::EIO, 1);
            let mut batch = a.send_queue().batch::<5>();
            for wr_id in 0..5 {
                batch.push(Send::new(rig.take()).wr_id(wr_id)).expect("room");
            }
            let mut failed = batch.post().expect_err("it fails");
            assert_unsure(failed.refusal, "ibv_post_send", libc::EIO);
            assert_eq!(failed.taken, 5, "it is not known, and so all stay");
            assert!(failed.next_refused().is_none());
            drop(failed);
            assert_poisoned(&rig, &mut a, libc::EIO);
            assert!(a.send_queue().flush().is_err());
            let received = if taken { 5 } else { 0 };
            assert_eq!(rig.completions(received).len(), received);
            assert_eq!(rig.out(), if taken { 5 } else { 10 });
            drop(a);
            // Silent ones, of which nothing is known: they count as flushed.
            let seen = rig.completions(5);
            assert_eq!(ends(&seen), (0..5).map(|wr_id| (wr_id, FLUSHED)).collect::<Vec<_>>());
            drop(seen);
            drop(b);
            assert_eq!(rig.completions(5 - received).len(), 5 - received);
            assert_eq!(rig.out(), 0);
            rig.end();
        }
    }

    fn a_flush_that_is_refused_or_names_nothing() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        receives(&rig, &mut b, 2);
        let sends = a.send_queue();
        sends.post(Send::new(rig.take()).wr_id(1)).expect("room");
        faults::fail_post("ibv_post_send", Post::RefuseAt(0), libc::ENOMEM, 1);
        let error = sends.flush().expect_err("it is refused");
        assert!(error.to_string().contains("ENOMEM"), "{error}");
        assert_eq!(sends.in_flight(), 1);
        assert!(sends.flush().expect("it goes on"));
        assert_eq!(ends(&rig.completions(2)), [(100, OK), (1, OK)]);
        sends.post(Send::new(rig.take()).wr_id(2)).expect("room");
        faults::fail_post("ibv_post_send", Post::TakenUnnamed, libc::EIO, 1);
        let error = sends.flush().expect_err("it fails");
        assert!(error.to_string().contains("not known"), "{error}");
        assert_eq!(ends(&rig.completions(2)), [(101, OK), (2, OK)], "it was taken");
        assert_poisoned(&rig, &mut a, libc::EIO);
        drop((a, b));
        assert_eq!(rig.completions(0), []);
        rig.end();
    }

    /// A device that completes what it refused: one of the two has the memory.
    fn refused_and_completed() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let mut wc = faults::Wc { wr_id: word(0, 1, 0), qp_num: a.qpn().get(), ..Default::default() };
        let cq = faults::nth("cq", 0);
        faults::fail_post("ibv_post_send", Post::RefuseAt(0), libc::ENOMEM, 2);
        let failed = a.send_queue().post(Send::new(rig.filled(b"mine")).wr_id(1));
        faults::push(cq, &wc);
        assert_eq!((rig.completions(0).len(), rig.cq.strays()), (0, 1));
        assert_eq!(&given_back(failed, "ibv_post_send", libc::ENOMEM).into_memory()[..], b"mine");
        // Of a chain, while it is being taken back.
        let mut batch = a.send_queue().batch::<3>();
        for wr_id in 0..3 {
            batch.push(Send::new(rig.filled(b"ours")).wr_id(wr_id)).expect("room");
        }
        let mut failed = batch.post().expect_err("it is refused");
        assert_eq!(failed.next_refused().map(|refused| refused.wr_id()), Some(0));
        wc.wr_id = word(0, 1, 2);
        faults::push(cq, &wc);
        let seen = poll(&mut rig.cq);
        let came: Vec<u64> = seen.iter().map(|seen| seen.wr_id).collect();
        drop(seen);
        let mut left = Vec::new();
        while let Some(refused) = failed.next_refused() {
            left.push(refused.wr_id());
        }
        let mut both = [came, left].concat();
        both.sort_unstable();
        assert_eq!(both, [1, 2], "each once");
        drop(failed);
        assert_eq!((rig.out(), a.send_queue().in_flight()), (0, 0));
        drop((a, b));
        assert_eq!(rig.pool.available(), BUFFERS);
        rig.end();
    }
}

/// A place of no bytes that every device takes.
fn exposed_nowhere() -> rdma_verbs::RemoteSlice {
    rdma_verbs::RemoteSlice::new(0, 0, rdma_verbs::RKey::new(0))
}
