//! What callers get wrong with datagrams: each is refused before the device sees it, by a text that names the queue
//! pair, the limit and what was asked, and comes back with its memory; or it is lost, as datagrams are.

use std::time::Duration;

use rdma_verbs::wr::{Datagram, Inline, Receive};
use rdma_verbs::{
    AddressHandle, AddressVector, Context, Pool, ProtectionDomain, QKey, Qpn, Refusal, WcStatus,
};

use super::datagrams::{QKEY, handle, ready};
use crate::interposed::rig::{Rig, Seen, ends, open, poll, row};
use crate::interposed::{faults, interposed};

/// Of the interposer's ports.
const MTU: usize = 4096;

/// A handle of a protection domain that is not the rig's.
fn elsewhere(context: &Context) -> (ProtectionDomain, AddressHandle) {
    let pd = ProtectionDomain::new(context).expect("a PD");
    let row = row(context);
    let handle = AddressHandle::new(&pd, &AddressVector::new(&row, row.gid()));
    (pd, handle.expect("a handle"))
}

interposed! {
    fn messages_above_the_mtu() {
        let mut rig = Rig::new();
        let (mut a, b) = (ready(&rig, 0), ready(&rig, 0));
        let pool = Pool::new(&rig.pd, MTU, 4).expect("a pool");
        let filled = |len| {
            let mut buffer = pool.take().expect("a buffer");
            buffer.set_len(len).expect("it fits");
            buffer
        };
        let (to, qpn, posts) = (handle(&rig), b.qpn(), faults::count("ibv_post_send"));
        let expected = Refusal::MessageTooLong { qpn: a.qpn(), asked: MTU as u64 + 1, limit: MTU as u64 };
        let text = format!("a message of 4097 bytes on QP {}: the port carries 4096", a.qpn());
        let sends = a.send_queue();
        let two = (filled(MTU), filled(1));
        let refused = sends.post(Datagram::new(two, &to, qpn, QKEY)).expect_err("too long");
        assert_eq!((refused.refusal, refused.to_string()), (expected, text));
        let two = refused.request.expect("it comes back").into_memory();
        let mut batch = sends.batch_of::<2, 4>();
        batch.push(Datagram::new(Inline(b"short"), &to, qpn, QKEY)).expect("room");
        let refused = batch.push(Datagram::new(two, &to, qpn, QKEY)).expect_err("too long");
        assert_eq!((refused.refusal, batch.len()), (expected, 1));
        drop((refused, batch));
        assert_eq!((pool.available(), faults::count("ibv_post_send"), faults::live("ah")), (4, posts, 1));
        // The longest that there can be goes.
        sends.post(Datagram::new(filled(MTU), &to, qpn, QKEY).signaled()).expect("room");
        assert_eq!(ends(&rig.completions(1)), [(0, WcStatus::SUCCESS)]);
        drop((a, b, to, pool));
        rig.end();
    }

    /// Of another domain of the same context, of the same device opened once more, of another device.
    fn handles_of_other_domains() {
        let mut rig = Rig::new();
        let (mut a, b) = (ready(&rig, 0), ready(&rig, 1));
        let (qpn, posts) = (b.qpn(), faults::count("ibv_post_send"));
        let expected = Refusal::OtherDomain { what: "an address handle", on: a.qpn().into() };
        let text = format!("an address handle of another protection domain than that of QP {}", a.qpn());
        let sends = a.send_queue();
        let mut buffer = rig.filled(b"text");
        for context in [rig.context.clone(), open("loop0"), open("empty0")] {
            let (pd, to) = elsewhere(&context);
            let refused = sends.post(Datagram::new(buffer, &to, qpn, QKEY)).expect_err("a PD");
            assert_eq!((refused.refusal, refused.to_string()), (expected, text.clone()));
            buffer = refused.request.expect("it comes back").into_memory();
            assert_eq!(&buffer[..], b"text");
            let datagram = Datagram::new(Inline(b"inline"), &to, qpn, QKEY);
            let refused = sends.batch::<2>().push(datagram).expect_err("a PD");
            assert_eq!(refused.refusal, expected);
            assert!(refused.request.is_some(), "it comes back");
            // What came back holds the handle, which goes with it.
            drop((pd, to));
            assert_eq!(faults::live("ah"), 1);
            drop(refused);
            assert_eq!(faults::live("ah"), 0);
        }
        assert_eq!(faults::count("ibv_post_send"), posts);
        // And it goes on.
        sends.post(Datagram::new(buffer, &handle(&rig), qpn, QKEY).wr_id(1).signaled()).expect("room");
        assert_eq!(ends(&rig.completions(2)).len(), 2);
        drop((a, b));
        rig.end();
    }

    /// With a Q_Key that the receiver has not, or to nobody: the send is complete, nothing comes, and the receive
    /// is there for the next.
    fn a_key_that_is_not_the_receivers() {
        let mut rig = Rig::new();
        let (mut a, mut b) = (ready(&rig, 0), ready(&rig, 0));
        b.recv_queue().post(Receive::new(rig.take()).wr_id(100)).expect("room");
        let to = handle(&rig);
        let nobody = Qpn::new(0xff_fff0).expect("24 bits");
        for (wr_id, qpn, qkey) in [(1, b.qpn(), QKey::new(QKEY.get() ^ 1)), (2, nobody, QKEY)] {
            let datagram = Datagram::new(rig.filled(b"lost"), &to, qpn, qkey).wr_id(wr_id);
            a.send_queue().post(datagram.signaled()).expect("room");
            assert_eq!(ends(&rig.completions(1)), [(wr_id, WcStatus::SUCCESS)]);
            assert_eq!(rig.out(), 1, "the receive");
        }
        let datagram = Datagram::new(rig.filled(b"came"), &to, b.qpn(), QKEY).wr_id(3);
        a.send_queue().post(datagram.signaled()).expect("room");
        let mut seen = rig.completions(2);
        seen.sort_by_key(|seen| seen.wr_id);
        assert_eq!(ends(&seen), [(3, WcStatus::SUCCESS), (100, WcStatus::SUCCESS)]);
        drop(seen);
        // One that nothing comes for is given back at the end.
        b.recv_queue().post(Receive::new(rig.take()).wr_id(101)).expect("room");
        let lost = Datagram::new((), &to, b.qpn(), QKey::new(0)).signaled();
        a.send_queue().post(lost).expect("room");
        assert_eq!(rig.completions(1)[0].status, WcStatus::SUCCESS);
        let mut left = Vec::new();
        b.finish_polling(&mut [&mut rig.cq], Duration::from_secs(10), |mut completion| {
            left.push(Seen::of(&mut completion));
        })
        .expect("polled");
        assert_eq!(ends(&left), [(101, WcStatus::WR_FLUSH_ERR)]);
        drop((left, to, a));
        assert_eq!((poll(&mut rig.cq).len(), rig.out()), (0, 0));
        rig.end();
    }
}
