//! Datagrams and their address handles: what is refused, what is in flight, what cannot be destroyed, and every
//! order of dropping. The device ends the program when it is to send by a handle that was destroyed.

use std::any::Any;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rdma_verbs::transport::{Uc, Ud};
use rdma_verbs::wr::{Datagram, Inline, Receive, Send, Write};
use rdma_verbs::{
    AddressHandle, AddressVector, Errno, Error, Exposed, Gid, Grh, InitOptions, Memory,
    MulticastAttachment, PostError, QKey, QueuePair, Refusal, Rts, WcStatus,
};

use crate::interposed::faults::Post;
use crate::interposed::rig::{
    DEPTH, Random, Rig, Seen, assert_nothing_is_left, ends, everything, poll,
};
use crate::interposed::{faults, interposed, leaks_on_purpose};

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
pub(super) const QKEY: QKey = QKey::new(7);

/// Ready, with so many receives, numbered from 100.
pub(super) fn ready(rig: &Rig, receives: u64) -> QueuePair<Rts, Ud> {
    let made = QueuePair::ud(&rig.pd, &rig.cq, &rig.cq).send_depth(DEPTH).recv_depth(DEPTH);
    let made = made.max_inline(64).max_send_sge(3).build().expect("a queue pair");
    let mut made = made.init(&InitOptions::new(rig.row.port()).qkey(QKEY)).expect("to INIT");
    for wr_id in 100..100 + receives {
        made.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
    }
    made.activate().expect("to RTS")
}

pub(super) fn handle(rig: &Rig) -> AddressHandle {
    let address = AddressVector::new(&rig.row, rig.row.gid());
    AddressHandle::new(&rig.pd, &address).expect("a handle")
}

/// What of a datagram is the message.
fn text(seen: &Seen) -> &[u8] {
    Grh::split(seen.bytes()).expect("a header").1
}

/// The request, refused by the device for this reason.
fn given_back<R: std::fmt::Debug>(posted: Result<(), PostError<R>>, errno: i32) -> R {
    let PostError { refusal, request, .. } = posted.expect_err("it is refused");
    let Refusal::Device { errno: why, .. } = refusal else { panic!("{refusal}") };
    assert_eq!(why.raw(), errno);
    request.expect("it comes back")
}

/// Everything there is, with datagrams posted that are not sent.
fn everything_there_is() -> Vec<Box<dyn Any>> {
    let rig = Rig::new();
    let (mut a, b) = (ready(&rig, 2), ready(&rig, 4));
    let (one, two) = (handle(&rig), handle(&rig));
    a.send_queue().post(Datagram::new(rig.take(), &one, b.qpn(), QKEY).signaled()).expect("room");
    faults::stall(true);
    let shared = rig.take().freeze();
    let sends = a.send_queue();
    sends.post(Datagram::new((rig.take(), shared), &one, b.qpn(), QKEY)).expect("room");
    sends.post(Datagram::new(Inline(b"inline"), &two, b.qpn(), QKEY)).expect("room");
    sends.post(Datagram::new((), &two, b.qpn(), QKEY)).expect("room");
    let group = |last| Gid::from(Ipv4Addr::new(239, 0, 0, last));
    let attach = |last| MulticastAttachment::new(&a, group(last)).expect("attached");
    let (first, again, other) = (attach(1), attach(1), attach(2));
    let (send, recv) = a.split();
    let Rig { cq, pool, pd, context, .. } = rig;
    vec![
        Box::new(cq),
        Box::new(pool),
        Box::new(pd),
        Box::new(context),
        Box::new(one),
        Box::new(two),
        Box::new(first),
        Box::new(again),
        Box::new(other),
        Box::new(send),
        Box::new(recv),
        Box::new(b),
    ]
}

interposed! {
    /// Of each kind of memory: it comes back with its handle, and can be posted again.
    fn what_is_refused_comes_back_with_its_handle() {
        let mut rig = Rig::new();
        let (mut a, b) = (ready(&rig, 0), ready(&rig, 5));
        let to = handle(&rig);
        let qpn = b.qpn();
        let sends = a.send_queue();
        macro_rules! twice {
            ($request:expr) => {{
                faults::fail_post("ibv_post_send", Post::RefuseAt(0), libc::ENOMEM, 1);
                let again = given_back(sends.post($request), libc::ENOMEM);
                sends.post(again).expect("it is taken")
            }};
        }
        twice!(Datagram::new(rig.filled(b"alone"), &to, qpn, QKEY).wr_id(1));
        let part = rig.filled(b"0123456789").freeze().slice(3..6).expect("inside");
        twice!(Datagram::new((rig.filled(b"two"), part), &handle(&rig), qpn, QKEY).wr_id(2).imm(9));
        twice!(Datagram::new(Inline(b"inline"), &handle(&rig), qpn, QKEY).wr_id(3));
        twice!(Datagram::new((), &handle(&rig), qpn, QKEY).wr_id(4));
        twice!(Datagram::new([rig.filled(b"a"), rig.filled(b"b")], &to, qpn, QKEY).wr_id(5).signaled());
        let seen = rig.completions(10);
        assert!(seen.iter().all(|seen| seen.status == OK), "{seen:?}");
        let came: Vec<_> = seen.iter().filter(|seen| seen.wr_id >= 100).collect();
        let texts: Vec<&[u8]> = came.iter().map(|seen| text(seen)).collect();
        assert_eq!(texts, [&b"alone"[..], b"two345", b"inline", b"", b"ab"]);
        assert_eq!(came[1].imm, Some(9));
        let grh = Grh::of(came[0].bytes()).expect("a header");
        assert_eq!((grh.source(), grh.destination()), (rig.row.gid(), rig.row.gid()));
        assert_eq!(faults::live("ah"), 1, "the others have gone with their datagrams");
        drop((seen, to));
        assert_eq!((faults::live("ah"), rig.out()), (0, 0));
        drop((a, b));
        rig.end();
    }

    /// What of a batch is not taken comes back, and its handles go; so do those of one that is not posted.
    fn a_batch_that_is_not_taken_whole() {
        let mut rig = Rig::new();
        let (mut a, b) = (ready(&rig, 0), ready(&rig, 4));
        let qpn = b.qpn();
        let mut batch = a.send_queue().batch::<3>();
        for wr_id in 0..3 {
            let datagram = Datagram::new(rig.filled(b"text"), &handle(&rig), qpn, QKEY);
            batch.push(datagram.wr_id(wr_id)).expect("room");
        }
        let full = batch.push(Datagram::new(rig.take(), &handle(&rig), qpn, QKEY)).expect_err("full");
        assert!(matches!(full.refusal, Refusal::BatchFull { .. }));
        assert_eq!(faults::live("ah"), 4);
        drop(full);
        assert_eq!((faults::live("ah"), rig.out()), (3, 7));
        drop(batch);
        assert_eq!((faults::live("ah"), rig.out()), (0, 4));

        let mut batch = a.send_queue().batch_of::<4, 8>();
        let pair = (rig.filled(b"one"), rig.filled(b"two"));
        batch.push(Datagram::new(pair, &handle(&rig), qpn, QKEY).wr_id(1).signaled()).expect("room");
        batch.push(Datagram::new(rig.filled(b"back"), &handle(&rig), qpn, QKEY).wr_id(2)).expect("room");
        batch.push(Datagram::new((), &handle(&rig), qpn, QKEY).wr_id(3)).expect("room");
        batch.push(Datagram::new(Inline(b"x"), &handle(&rig), qpn, QKEY).wr_id(4)).expect("room");
        faults::fail_post("ibv_post_send", Post::RefuseAt(1), libc::ENOMEM, 1);
        let mut failed = batch.post().expect_err("not whole");
        assert_eq!(failed.taken, 1);
        let refused = failed.next_refused().expect("the second");
        assert_eq!(refused.wr_id(), 2);
        assert_eq!(&*refused.into_buffer().expect("its buffer"), b"back");
        let mut refused = failed.next_refused().expect("the third");
        assert_eq!((refused.wr_id(), refused.take().map(|_| ())), (3, None));
        drop(refused);
        assert_eq!(faults::live("ah"), 2);
        drop(failed);
        assert_eq!(faults::live("ah"), 1);
        let seen = rig.completions(2);
        assert_eq!(ends(&seen), [(100, OK), (1, OK)]);
        assert_eq!(text(&seen[0]), b"onetwo");
        assert_eq!(faults::live("ah"), 0);
        drop((seen, a, b));
        rig.end();
    }

    /// A failure that does not say what was taken: the handle stays until the queue pair is destroyed.
    fn a_handle_of_what_may_be_sent() {
        for how in [Post::TakenUnnamed, Post::LostUnnamed] {
            let rig = Rig::new();
            let (mut a, b) = (ready(&rig, 0), ready(&rig, 1));
            faults::stall(true);
            faults::fail_post("ibv_post_send", how, libc::EIO, 1);
            let datagram = Datagram::new(rig.take(), &handle(&rig), b.qpn(), QKEY);
            let failed = a.send_queue().post(datagram).expect_err("unsure");
            assert!(matches!(failed.refusal, Refusal::Unsure { .. }) && failed.request.is_none());
            drop(failed);
            assert_eq!((faults::live("ah"), rig.out()), (1, 2));
            faults::stall(false);
            drop((a, b));
            drop(rig);
            assert_nothing_is_left();
        }
    }

    /// The last that holds it is the datagram; its completion lets go of it, taken or not.
    fn a_handle_dropped_in_flight() {
        let mut rig = Rig::new();
        let (mut a, b) = (ready(&rig, 0), ready(&rig, 3));
        faults::stall(true);
        let to = handle(&rig);
        for wr_id in 0..3 {
            let datagram = Datagram::new(rig.filled(b"text"), &to, b.qpn(), QKEY).wr_id(wr_id);
            let datagram = if wr_id == 2 { datagram.signaled() } else { datagram };
            a.send_queue().post(datagram).expect("room");
        }
        drop(to);
        assert_eq!(faults::live("ah"), 1);
        faults::stall(false);
        let seen = rig.completions(6);
        assert!(seen.iter().all(|seen| seen.status == OK && seen.memory.len() == 1), "{seen:?}");
        assert_eq!(faults::live("ah"), 0);
        // A completion that is dropped unseen.
        let datagram = Datagram::new((), &handle(&rig), b.qpn(), QKEY).signaled();
        a.send_queue().post(datagram).expect("room");
        let mut drain = rig.cq.poll().expect("polled");
        let mut completion = drain.next().expect("a completion");
        assert!(completion.take().is_none() && completion.take_buffer().is_none());
        drop(completion);
        assert_eq!(faults::live("ah"), 0);
        drop((seen, a, b));
        rig.end();
    }

    /// A receive that is too short fails, and gives its buffer back; the queue pair goes on.
    fn a_receive_that_is_too_short() {
        let mut rig = Rig::new();
        let (mut a, mut b) = (ready(&rig, 0), ready(&rig, 0));
        let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
        let range = exposed.range(0, 42).expect("inside");
        b.recv_queue().post(Receive::new(range).wr_id(1)).expect("room");
        b.recv_queue().post(Receive::new(rig.take()).wr_id(2)).expect("room");
        for _ in 0..2 {
            let datagram = Datagram::new(Inline(b"four"), &handle(&rig), b.qpn(), QKEY);
            a.send_queue().post(datagram.wr_id(9).signaled()).expect("room");
        }
        let seen = rig.completions(4);
        let all = [(1, WcStatus::LOC_LEN_ERR), (9, OK), (2, OK), (9, OK)];
        assert_eq!(ends(&seen), all);
        assert_eq!(text(&seen[2]), b"four");
        assert!(matches!(seen[0].memory[..], [Memory::Exposed(_)]));
        drop((seen, a, b, exposed));
        rig.end();
    }

    /// Silent datagrams have nothing behind them that could be flushed: they come when all is over, at once.
    fn silent_datagrams_at_the_end() {
        let mut rig = Rig::new();
        let (mut a, b) = (ready(&rig, 2), ready(&rig, 0));
        for wr_id in 0..3 {
            let datagram = Datagram::new(rig.take(), &handle(&rig), b.qpn(), QKEY).wr_id(wr_id);
            a.send_queue().post(datagram).expect("room");
        }
        let begun = Instant::now();
        let mut seen = Vec::new();
        a.finish_polling(&mut [&mut rig.cq], Duration::from_secs(30), |mut completion| {
            seen.push(Seen::of(&mut completion));
        })
        .expect("polled");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let mut all = ends(&seen);
        all.sort_by_key(|end| end.0);
        assert_eq!(all, [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED), (100, FLUSHED), (101, FLUSHED)]);
        assert_eq!(faults::live("ah"), 0);
        drop((seen, b));
        rig.end();
    }

    /// It may still send: the handles stay with it.
    fn a_queue_pair_that_cannot_be_destroyed() {
        leaks_on_purpose();
        let mut rig = Rig::new();
        let (mut a, b) = (ready(&rig, 0), ready(&rig, 1));
        faults::stall(true);
        let datagram = Datagram::new(rig.filled(b"late"), &handle(&rig), b.qpn(), QKEY);
        a.send_queue().post(datagram).expect("room");
        faults::fail("ibv_destroy_qp", libc::EBUSY);
        drop(a);
        assert_eq!((rig.context.leaks(), faults::live("ah")), (1, 1));
        // Sent after all, by a handle that is there.
        faults::stall(false);
        assert_eq!(faults::step(1), 0);
        let seen = poll(&mut rig.cq);
        assert_eq!(ends(&seen), [(100, OK)]);
        drop((seen, b, rig));
        assert_eq!(faults::live("ah"), 1);
    }

    fn a_handle_that_cannot_be_destroyed() {
        leaks_on_purpose();
        let rig = Rig::new();
        faults::fail("ibv_destroy_ah", libc::EBUSY);
        drop(handle(&rig));
        assert_eq!(rig.context.leaks(), 1);
        faults::fail("ibv_create_ah", libc::ENOMEM);
        let address = AddressVector::new(&rig.row, rig.row.gid());
        let error = AddressHandle::new(&rig.pd, &address).expect_err("none");
        assert!(matches!(error, Error::Verb { verb: "ibv_create_ah", errno: Errno::ENOMEM, .. }));
        // The domain that it is of stays with it.
        drop(rig);
        assert_eq!((faults::live("ah"), faults::live("pd")), (1, 1));
    }

    fn everything_in_any_order() {
        for seed in 0..300 {
            faults::reset();
            let mut all = everything_there_is();
            Random::new(seed + 1).shuffle(&mut all);
            let go_on = seed as usize % all.len();
            for (number, object) in all.into_iter().enumerate() {
                if number == go_on {
                    faults::stall(false);
                }
                drop(object);
            }
            assert_nothing_is_left();
        }
    }

    /// Groups are left before the queue pair is destroyed; one that cannot be keeps it.
    fn groups_that_cannot_be_joined_or_left() {
        leaks_on_purpose();
        let rig = Rig::new();
        let a = ready(&rig, 0);
        let group = Gid::from(Ipv4Addr::new(239, 0, 0, 1));
        for (errno, full) in [(libc::ENOMEM, true), (libc::ENOSPC, true), (libc::EINVAL, false)] {
            faults::fail("ibv_attach_mcast", errno);
            let error = MulticastAttachment::new(&a, group).expect_err("not joined");
            assert_eq!(matches!(error, Error::MulticastFull { .. }), full, "{error}");
            assert!(full || matches!(error, Error::Verb { verb: "ibv_attach_mcast", .. }), "{error}");
        }
        let attached = MulticastAttachment::new(&a, group).expect("joined");
        faults::fail("ibv_detach_mcast", libc::EIO);
        let error = attached.detach().expect_err("not left");
        assert!(matches!(error, Error::Verb { verb: "ibv_detach_mcast", .. }), "{error}");
        drop(a);
        assert_eq!(rig.context.leaks(), 1, "it is in a group to the end");
    }

    /// The unreliable connected transport, in any order, with messages and writes in flight.
    fn unreliable_connections_in_any_order() {
        for seed in 0..200 {
            faults::reset();
            let rig = Rig::new();
            let make = || {
                let made = QueuePair::uc(&rig.pd, &rig.cq, &rig.cq).build().expect("a queue pair");
                made.init(&rig.init_options()).expect("to INIT")
            };
            let (a, mut b) = (make(), make());
            b.recv_queue().post(Receive::new(rig.take())).expect("room");
            let options = rig.options();
            let at_a = a.endpoint(&options).expect("an address");
            let at_b = b.endpoint(&options).expect("an address");
            let mut a: QueuePair<Rts, Uc> = a.connect(&at_b, &options).expect("connected");
            let b = b.connect(&at_a, &options).expect("connected");
            let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
            let mut few = rig.take();
            few.set_len(8).expect("it fits");
            let sends = a.send_queue();
            sends.post(Send::new(rig.take()).signaled()).expect("room");
            faults::stall(seed % 2 == 0);
            sends.post(Write::new(few, exposed.remote())).expect("room");
            // Finds no receive: lost.
            sends.post(Send::new(rig.take())).expect("room");
            assert!(sends.flush().expect("no leave is needed"));
            let (send, recv) = a.split();
            let Rig { cq, pool, pd, context, .. } = rig;
            let mut all: Vec<Box<dyn Any>> = vec![
                Box::new(cq),
                Box::new(pool),
                Box::new(pd),
                Box::new(context),
                Box::new(exposed),
                Box::new(send),
                Box::new(recv),
                Box::new(b),
            ];
            Random::new(seed + 1).shuffle(&mut all);
            drop(all);
            assert_nothing_is_left();
        }
    }
}
