//! Completions that are not what they should be, and queues that fail.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send, Write};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Errno, Error, Exposed, Memory, Notify, QpState, QueuePair,
    WcOpcode, WcStatus,
};

use crate::interposed::rig::{DEPTH, Rig, completions, ends, everything, poll, wait_until, word};
use crate::interposed::{faults, interposed};

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

/// Puts a completion of this name into the rig's completion queue.
fn push(wr_id: u64) {
    faults::push(faults::nth("cq", 0), &faults::Wc { wr_id, ..Default::default() });
}

/// Why a completion queue has failed.
#[track_caller]
fn failure(error: Error) -> Errno {
    match error {
        Error::CompletionQueueFailed { device, errno } => {
            assert_eq!(&*device, "loop0");
            errno
        }
        error => panic!("{error:?}"),
    }
}

/// Lengths of the buffers that came back.
fn lengths(memory: &[Memory]) -> Vec<usize> {
    let length = |memory: &Memory| match memory {
        Memory::Buffer(buffer) => buffer.len(),
        other => panic!("{other:?}"),
    };
    memory.iter().map(length).collect()
}

interposed! {
    /// Whatever number a completion has, only one that is in flight is taken out, once.
    fn numbers_of_nothing_in_flight_are_counted_and_dropped() {
        let mut rig = Rig::new();
        let (a, mut b) = rig.pair();
        // A second use of the first two places, so that an old generation is one that was.
        drop((a, b));
        assert_eq!(rig.completions(0), []);
        let a;
        (a, b) = rig.pair();
        for wr_id in 0..3 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        // The receives are at one of the first places, in the second use of it, from 0 on.
        let mut strays = 0;
        for place in (0..8).chain([0x7fff, u16::MAX]) {
            for generation in [0, 1, 3, 4, u16::MAX] {
                for sequence in [0, 1, 2, 3, 15, 16, 1 << 31, u32::MAX] {
                    push(word(place, generation, sequence));
                    strays += 1;
                }
            }
            for sequence in [3, 4, 15, 16, 32, 1 << 31, u32::MAX - 1, u32::MAX] {
                push(word(place, 2, sequence));
                strays += 1;
            }
        }
        for number in [u64::MAX, 1 << 63, 0xdead_beef_dead_beef] {
            push(number);
            strays += 1;
        }
        let mut polls = 0;
        while rig.cq.strays() < strays {
            assert_eq!(poll(&mut rig.cq), []);
            polls += 1;
            assert!(polls < strays, "{} of {strays}", rig.cq.strays());
        }
        assert_eq!((rig.out(), b.recv_queue().in_flight()), (3, 3));
        // They are still there to be received into.
        drop((a, b));
        assert_eq!(ends(&rig.completions(3)), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
        rig.end();
    }

    /// The device says another number than it was told: what it should have said comes when the queue
    /// pair goes.
    fn completions_under_another_number() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
        b.recv_queue().post(Receive::new(rig.take()).wr_id(2)).expect("room");
        faults::spoil("wr_id", word(77, 1, 0), 1);
        a.send_queue().post(Send::new(rig.filled(b"lost")).wr_id(3).signaled()).expect("room");
        assert_eq!(ends(&rig.completions(1)), [(3, OK)]);
        assert_eq!(rig.cq.strays(), 1);
        a.send_queue().post(Send::new(rig.filled(b"found")).wr_id(4).signaled()).expect("room");
        let seen = rig.completions(2);
        assert_eq!(ends(&seen), [(2, OK), (4, OK)]);
        assert_eq!(seen[0].bytes(), b"found");
        drop((a, b));
        assert_eq!(ends(&rig.completions(1)), [(1, FLUSHED)]);
        drop(seen);
        rig.end();
    }

    fn completions_that_come_again() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for round in 0..40_u64 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(round)).expect("room");
            faults::copies(3);
            a.send_queue().post(Send::new(rig.filled(b"once")).wr_id(100 + round).signaled())
                .expect("room");
            let seen = rig.completions(2);
            assert_eq!(ends(&seen), [(round, OK), (100 + round, OK)]);
            assert_eq!(rig.cq.strays(), 2 * (round + 1));
        }
        // And long after, when their slots are others'.
        b.recv_queue().post(Receive::new(rig.take()).wr_id(1000)).expect("room");
        for place in 0..4 {
            for sequence in 0..40 {
                push(word(place, 1, sequence));
            }
        }
        let strays = rig.cq.strays();
        while rig.cq.strays() < strays + 160 {
            assert_eq!(poll(&mut rig.cq), []);
        }
        assert_eq!(b.recv_queue().in_flight(), 1);
        drop((a, b));
        assert_eq!(ends(&rig.completions(1)), [(1000, FLUSHED)]);
        rig.end();
    }

    /// One that never comes is made up for by a later send, or by the end of the queue pair.
    fn completions_that_never_come() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for wr_id in 0..2 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        // That of the first receive, and that of the first send.
        faults::spoil("copies", 0, 2);
        a.send_queue().post(Send::new(rig.filled(b"one")).wr_id(10).signaled()).expect("room");
        assert_eq!(rig.completions(0), []);
        a.send_queue().post(Send::new(rig.filled(b"two")).wr_id(11).signaled()).expect("room");
        let seen = rig.completions(3);
        assert_eq!(ends(&seen), [(1, OK), (10, OK), (11, OK)]);
        let silent: Vec<bool> = seen.iter().map(|seen| seen.silent).collect();
        assert_eq!(silent, [false, true, false]);
        drop((a, b, seen));
        let seen = rig.completions(1);
        assert_eq!((ends(&seen), seen[0].silent), (vec![(0, FLUSHED)], true));
        drop(seen);
        rig.end();
    }

    fn statuses_and_opcodes_of_tomorrow() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for status in [24, 4711, u32::MAX] {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
            faults::spoil("status", status.into(), 2);
            let send = Send::new(rig.filled(b"what?")).wr_id(2).signaled();
            a.send_queue().post(send).expect("room");
            let mut seen = 0;
            let mut drain = rig.cq.poll().expect("it can be polled");
            while let Some(mut completion) = drain.next() {
                assert_eq!(completion.status(), WcStatus::from_raw(status));
                let error = completion.result().expect_err("no success that is known");
                let Error::Failed { opcode, status: told, .. } = &error else {
                    panic!("{error:?}")
                };
                let expected = [WcOpcode::RECV, WcOpcode::SEND][seen];
                assert_eq!((*opcode, *told), (expected, WcStatus::from_raw(status)));
                assert!(error.to_string().contains(&format!("unknown ({status})")), "{error}");
                assert_eq!((completion.byte_len(), completion.imm()), (0, None));
                // What was received is not known to be there.
                let length = completion.take_buffer().expect("its memory").len();
                assert_eq!(length, [0, 5][seen]);
                seen += 1;
            }
            assert_eq!(seen, 2);
        }
        for opcode in [7, 200, 4711, u32::MAX] {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
            faults::spoil("opcode", opcode.into(), 2);
            let send = Send::new(rig.filled(b"what?")).wr_id(2).signaled();
            a.send_queue().post(send).expect("room");
            let seen = rig.completions(2);
            let told = WcOpcode::from_raw(opcode);
            let expected = if told.is_receive() { told } else { WcOpcode::RECV };
            assert_eq!((seen[0].opcode, seen[1].opcode), (expected, WcOpcode::SEND), "{opcode}");
            // Not known to be bytes in the buffer.
            assert_eq!(lengths(&seen[0].memory), [0]);
            assert_eq!(lengths(&seen[1].memory), [5]);
        }
        drop((a, b));
        assert_eq!(rig.completions(0), []);
        rig.end();
    }

    fn more_bytes_than_there_is_room_for() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for told in [257, 511, 512, 513, 1 << 31, u32::MAX] {
            b.recv_queue().post(Receive::new([rig.take(), rig.take()])).expect("room");
            faults::spoil("byte_len", told.into(), 2);
            let mut send = rig.take();
            send.set_len(3).expect("it fits");
            a.send_queue().post(Send::new(send).signaled()).expect("room");
            let seen = rig.completions(2);
            let second = (told as usize - 256).min(256);
            assert_eq!(lengths(&seen[0].memory), [256, second]);
            // Of a send it means nothing.
            assert_eq!((lengths(&seen[1].memory), seen[1].byte_len), (vec![3], 0));
        }
        drop((a, b));
        rig.end();
    }

    /// A write with immediate data tells bytes that are elsewhere.
    fn bytes_that_went_elsewhere_give_no_buffer_a_length() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
        let write = Write::new(rig.filled(b"there"), exposed.remote()).imm(5).signaled();
        a.send_queue().post(write).expect("room");
        let seen = rig.completions(2);
        assert_eq!((seen[0].opcode, seen[0].imm), (WcOpcode::RECV_RDMA_WITH_IMM, Some(5)));
        assert_eq!((lengths(&seen[0].memory), seen[0].byte_len), (vec![0], 5));
        drop((seen, a, b, exposed));
        rig.end();
    }

    /// Completions are held back, and come later, in part, and after their queue pair: each memory comes
    /// once.
    fn completions_that_come_late() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let room = rig.cq.room();
        for wr_id in 0..4 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        faults::hold(true);
        for wr_id in 10..14 {
            a.send_queue().post(Send::new(rig.filled(b"late")).wr_id(wr_id).signaled())
                .expect("room");
        }
        assert_eq!(rig.completions(0), []);
        assert_eq!(faults::live("held"), 8);
        // Nothing that is held back is anybody's yet.
        let touched = faults::touch_all(0x55);
        assert_eq!((touched.written, touched.read), (4 * 256, 4 * 4));
        assert_eq!(faults::release(3), 3);
        assert_eq!(ends(&rig.completions(3)), [(0, OK), (10, OK), (1, OK)]);
        assert_eq!(rig.out(), 5);
        drop((a, b));
        let mut seen = ends(&rig.completions(5));
        seen.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(seen, [2, 3, 11, 12, 13].map(|wr_id| (wr_id, FLUSHED)));
        assert_eq!((rig.out(), rig.cq.room()), (0, room + 4 * DEPTH));
        // Others are at their places when the rest comes.
        let (c, mut d) = rig.pair();
        for wr_id in 20..24 {
            d.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        faults::hold(false);
        assert_eq!(rig.completions(0), []);
        assert_eq!((rig.cq.strays(), rig.out()), (5, 4));
        drop((c, d));
        assert_eq!(rig.completions(4).len(), 4);
        rig.end();
    }

    /// What a queue pair completed before it was destroyed is what it was; what it did not, is flushed;
    /// its room comes back only after both.
    fn completions_of_queue_pairs_that_are_gone() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let room = rig.cq.room();
        for wr_id in 0..3 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        a.send_queue().post(Send::new(rig.filled(b"silent")).wr_id(10)).expect("room");
        a.send_queue().post(Send::new(rig.filled(b"loud")).wr_id(11).signaled()).expect("room");
        let silent = Write::new((), rdma_verbs::RemoteSlice::new(0, 0, rdma_verbs::RKey::new(0)));
        a.send_queue().post(silent.wr_id(12)).expect("room");
        drop((a, b));
        assert_eq!(rig.cq.room(), room);
        let seen = rig.completions(6);
        assert_eq!(
            ends(&seen),
            [(0, OK), (1, OK), (10, OK), (11, OK), (12, FLUSHED), (2, FLUSHED)]
        );
        assert_eq!(seen[0].bytes(), b"silent");
        assert_eq!((rig.cq.room(), rig.cq.strays()), (room + 4 * DEPTH, 0));
        drop(seen);
        rig.end();
    }

    /// A queue pair fails by itself: exactly one completion for each request, in order.
    fn a_queue_pair_that_breaks() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let broken = faults::nth("qp", 0);
        for wr_id in 0..8 {
            a.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        // The peer has no receive: they wait. Every eighth is signaled by the library.
        let mut batch = a.send_queue().batch::<4>();
        for wr_id in 100..104 {
            batch.push(Send::new(rig.filled(b"waits")).wr_id(wr_id)).expect("room");
        }
        batch.post().expect("room");
        for wr_id in 104..110 {
            a.send_queue().post(Send::new(rig.filled(b"waits")).wr_id(wr_id)).expect("room");
        }
        assert_eq!(rig.completions(0), []);
        faults::break_qp(broken);
        let seen = rig.completions(18);
        let expected = (100..110).chain(0..8).map(|wr_id| (wr_id, FLUSHED));
        assert_eq!(ends(&seen), expected.collect::<Vec<_>>());
        assert!(seen.iter().all(|seen| !seen.silent));
        drop(seen);
        assert_eq!(a.state().expect("a state"), QpState::ERR);
        assert_eq!((a.send_queue().in_flight(), a.recv_queue().in_flight()), (0, 0));
        // Nobody told the library: what is posted now is flushed at once.
        a.send_queue().post(Send::new(rig.take()).wr_id(200).signaled()).expect("it is taken");
        a.recv_queue().post(Receive::new(rig.take()).wr_id(201)).expect("it is taken");
        assert_eq!(ends(&rig.completions(2)), [(200, FLUSHED), (201, FLUSHED)]);
        // And the peer gets no answer.
        b.send_queue().post(Send::new(rig.take()).wr_id(300)).expect("it is taken");
        assert_eq!(ends(&rig.completions(1)), [(300, WcStatus::RETRY_EXC_ERR)]);
        assert_eq!((rig.out(), rig.cq.strays()), (0, 0));
        drop((a, b));
        assert_eq!(rig.completions(0), []);
        rig.end();
    }

    /// As on rxe: receives that are posted in ERR are never heard of again, but by the end.
    fn receives_that_vanish() {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        faults::recv_in_err_vanishes(true);
        faults::break_qp(faults::nth("qp", 0));
        for wr_id in 0..u64::from(DEPTH) {
            a.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        assert_eq!(rig.completions(0), []);
        let mut seen = Vec::new();
        a.finish_polling(&mut [&mut rig.cq], Duration::from_millis(20), |completion| {
            seen.push((completion.wr_id(), completion.status()));
        })
        .expect("the queue can be polled");
        let expected: Vec<_> = (0..u64::from(DEPTH)).map(|wr_id| (wr_id, FLUSHED)).collect();
        assert_eq!((seen, rig.out()), (expected, 0));
        drop(b);
        rig.end();
    }

    fn a_completion_queue_that_cannot_be_polled() {
        for errno in [libc::EIO, libc::ENOMEM, 4711, 1] {
            let mut rig = Rig::new();
            let (mut a, mut b) = rig.pair();
            b.recv_queue().post(Receive::new(rig.take()).wr_id(1)).expect("room");
            a.send_queue().post(Send::new(rig.take()).wr_id(2).signaled()).expect("room");
            // Once is enough.
            faults::fail("ibv_poll_cq", errno);
            let calls = faults::count("ibv_poll_cq");
            // -1 is what some say instead of an errno.
            let why = Errno::from_raw(if errno == 1 { libc::EIO } else { errno });
            for _ in 0..3 {
                assert_eq!(failure(rig.cq.poll().map(drop).expect_err("it fails")), why);
            }
            assert_eq!(faults::count("ibv_poll_cq") - calls, 1, "it is not asked again");
            assert_eq!(rig.out(), 2, "the device may still have it");
            let begin = Instant::now();
            let mut came = Vec::new();
            let failed = a.finish_polling(&mut [&mut rig.cq], Duration::from_secs(5), |done| {
                came.push((done.wr_id(), done.status()));
            });
            assert_eq!(failure(failed.expect_err("it has failed")), why);
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
            drop(b);
            loop {
                match rig.cq.poll() {
                    Err(error) => {
                        assert_eq!(failure(error), why);
                        break;
                    }
                    Ok(mut drain) => {
                        while let Some(done) = drain.next() {
                            came.push((done.wr_id(), done.status()));
                        }
                    }
                }
            }
            came.sort_unstable_by_key(|(wr_id, _)| *wr_id);
            assert_eq!(came, [(1, FLUSHED), (2, FLUSHED)]);
            assert_eq!(rig.out(), 0);
            rig.end();
        }
    }

    /// What had been taken from the device before it failed is still given.
    fn a_completion_queue_that_fails_between_two_polls() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        for wr_id in 0..3 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
            a.send_queue().post(Send::new(rig.take()).wr_id(wr_id).signaled()).expect("room");
        }
        drop(rig.cq.poll().expect("it can be polled").next().expect("the first"));
        faults::fail("ibv_poll_cq", libc::EIO);
        assert_eq!(poll(&mut rig.cq).len(), 5);
        failure(rig.cq.poll().map(drop).expect_err("it fails"));
        drop((a, b));
        assert_eq!(rig.out(), 0);
        rig.end();
    }

    /// CQ_ERR ends a wait, with an error.
    fn an_overrun_wakes_who_waits() {
        let rig = Rig::new();
        let channel = CompletionChannel::new(&rig.context).expect("a channel");
        let cq = CompletionQueue::builder(&rig.context, 15).channel(&channel).build();
        let mut cq = cq.expect("a CQ");
        let raw = faults::nth("cq", 1);
        let (error, waited) = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let begin = Instant::now();
                let error = cq.wait(Notify::Any, Duration::from_secs(20)).map(drop);
                (error, begin.elapsed())
            });
            // Armed, and so about to wait.
            wait_until("it is armed", || {
                faults::count("ibv_req_notify_cq") > 0
            });
            faults::raise(Some("loop0"), 0, raw.addr() as u64);
            waiter.join().expect("it ends")
        });
        assert_eq!(failure(error.expect_err("it has failed")), Errno::EIO);
        assert!(waited < Duration::from_secs(5), "{waited:?}");
        failure(cq.poll().map(drop).expect_err("it stays failed"));
        failure(cq.wait(Notify::Any, Duration::ZERO).map(drop).expect_err("it stays failed"));
        drop((cq, channel));
        rig.end();
    }

    /// The same when somebody else took the event in: another waiter of the device, or its own loop.
    fn an_overrun_that_others_took_in_wakes_too() {
        let rig = Rig::new();
        let channel = CompletionChannel::new(&rig.context).expect("a channel");
        let cq = CompletionQueue::builder(&rig.context, 15).channel(&channel).build();
        let mut cq = cq.expect("a CQ");
        faults::raise(Some("loop0"), 0, faults::nth("cq", 1).addr() as u64);
        assert_eq!(rig.context.process_events().expect("they can be read"), 1);
        let begin = Instant::now();
        let error = cq.wait(Notify::Any, Duration::from_secs(2)).map(drop);
        let waited = begin.elapsed();
        assert_eq!(failure(error.expect_err("it has failed")), Errno::EIO);
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        drop((cq, channel));
        rig.end();
    }

    /// Two threads wait for two completion queues of one device, which fail at the same time: whoever takes
    /// the events in, both hear of theirs.
    fn two_overruns_wake_two_who_wait() {
        let rig = Rig::new();
        for round in 0..20 {
            let make = || {
                let channel = CompletionChannel::new(&rig.context).expect("a channel");
                CompletionQueue::builder(&rig.context, 15).channel(&channel).build().expect("a CQ")
            };
            let (mut one, mut two) = (make(), make());
            let raws = [1, 2].map(|number| faults::nth("cq", number).addr() as u64);
            let armed = faults::count("ibv_req_notify_cq");
            std::thread::scope(|scope| {
                let wait = |cq: &mut CompletionQueue| {
                    cq.wait(Notify::Any, Duration::from_secs(2)).map(drop)
                };
                let waiters = [&mut one, &mut two].map(|cq| scope.spawn(move || wait(cq)));
                wait_until("both are armed", || faults::count("ibv_req_notify_cq") == armed + 2);
                for raw in raws {
                    faults::raise(Some("loop0"), 0, raw);
                }
                for waiter in waiters {
                    let waited = waiter.join().expect("it ends");
                    assert_eq!(failure(waited.expect_err("it has failed")), Errno::EIO, "{round}");
                }
            });
        }
        rig.end();
    }

    /// Completions of one queue pair on two completion queues, one of which is gone.
    fn one_of_two_completion_queues_goes() {
        let mut rig = Rig::new();
        let other = CompletionQueue::new(&rig.context, 255).expect("a CQ");
        let make = |send, recv| {
            let made = QueuePair::rc(&rig.pd, send, recv).build().expect("a queue pair");
            made.init(&rig.init_options()).expect("to INIT")
        };
        let (a, b) = rig.connect(make(&rig.cq, &other), make(&rig.cq, &other));
        let (mut a, mut b) = (a, b);
        for wr_id in 0..4 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        a.send_queue().post(Send::new(rig.take()).wr_id(10).signaled()).expect("room");
        drop(other);
        // The device still completes there, and nobody sees it; sends are seen.
        a.send_queue().post(Send::new(rig.take()).wr_id(11).signaled()).expect("room");
        assert_eq!(ends(&completions(&mut rig.cq, 2)), [(10, OK), (11, OK)]);
        assert_eq!(rig.out(), 4);
        drop(b);
        assert_eq!(rig.out(), 0, "dropped with the queue pair");
        drop(a);
        assert_eq!(rig.completions(0), []);
        rig.end();
    }
}
