//! Posting by the extended calls: what fails. Such a failure does not say what was taken, so that memory stays with
//! the queue until that is destroyed, and comes back then.

use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{Calls, Error, Refusal, WcStatus};

use crate::interposed::faults::Post;
use crate::interposed::rig::{Rig, poll};
use crate::interposed::{faults, interposed, leaks_on_purpose};

/// Its queue pairs are posted on by the extended calls.
fn rig() -> Rig {
    Rig::new().posted(Calls::Extended)
}

/// How the last call of a post can fail, with how much of it taken.
const FAILURES: [Post; 4] =
    [Post::RefuseAt(0), Post::LostUnnamed, Post::TakenUnnamed, Post::TakenBefore(2)];

interposed! {
    fn queue_pairs_that_cannot_be_made() {
        let mut rig = rig();
        let make = || rig.builder().build();
        for (errno, expected) in [
            (libc::EOPNOTSUPP, "loop0 has no extended calls to post by"),
            (libc::ENOSYS, "loop0 has no extended calls to post by"),
            (libc::EPERM, "ibv_create_qp_ex on loop0: EPERM (1): Operation not permitted"),
        ] {
            // Also for fewer work requests.
            faults::fail_every("create_qp_ex", errno, 1, Some(if errno == libc::EOPNOTSUPP { 3 } else { 1 }));
            assert_eq!(make().expect_err("it fails").to_string(), expected);
        }
        // Without inline data too.
        faults::fail_every("create_qp_ex", libc::ENOMEM, 1, Some(2));
        let error = make().expect_err("no memory");
        assert!(matches!(error, Error::NoMemory { what: "a queue pair", .. }), "{error}");
        // More inline than there is room for is told as with the plain call.
        let error = rig.builder().max_inline(1 << 20).build();
        let error = error.expect_err("too much");
        assert!(matches!(error, Error::InlineNotGranted { .. }), "{error}");
        let made = rig.builder().calls(Calls::WhereKnownGood).build().expect("a queue pair");
        assert_eq!(made.calls(), Calls::Classic, "nothing is known of this provider");
        drop(made);
        assert_eq!(poll(&mut rig.cq), []);
        assert_eq!(rig.cq.room(), rig.cq.size());
        rig.end();
    }

    fn a_post_that_fails() {
        for how in [Post::RefuseAt(0), Post::LostUnnamed, Post::TakenUnnamed] {
            let mut rig = rig();
            let (mut a, mut b) = rig.pair();
            b.recv_queue().post(Receive::new(rig.take()).wr_id(50)).expect("room");
            faults::fail_post("wr_complete", how, libc::EIO, 1);
            let request = Send::new(rig.filled(b"who knows")).signaled().wr_id(1);
            let failed = a.send_queue().post(request).expect_err("it fails");
            assert!(matches!(failed.refusal, Refusal::Unsure { .. }), "{how:?}: {failed}");
            assert!(failed.to_string().contains("ibv_wr_complete"), "{how:?}: {failed}");
            assert!(failed.request.is_none(), "{how:?}: the device may have it");
            drop(failed);
            assert_eq!(rig.out(), 2, "{how:?}");
            let refused = a.send_queue().post(Send::new(rig.filled(b"more"))).expect_err("poisoned");
            assert!(matches!(refused.refusal, Refusal::Poisoned { .. }), "{refused}");
            assert!(refused.request.is_some(), "that was not taken");
            drop(refused);
            // If it was taken, it completes.
            let seen = poll(&mut rig.cq);
            let taken = how == Post::TakenUnnamed;
            assert_eq!(seen.len(), if taken { 2 } else { 0 }, "{how:?}: {seen:?}");
            drop((seen, a, b));
            let left = poll(&mut rig.cq);
            assert_eq!(left.len(), if taken { 0 } else { 2 }, "{how:?}: each once: {left:?}");
            assert!(left.iter().all(|seen| seen.status == WcStatus::WR_FLUSH_ERR));
            drop(left);
            assert_eq!((rig.out(), rig.cq.strays()), (0, 0), "{how:?}");
            rig.end();
        }
    }

    fn a_batch_that_fails() {
        for how in FAILURES {
            let mut rig = rig();
            let (mut a, mut b) = rig.pair();
            for _ in 0..4 {
                b.recv_queue().post(Receive::new(rig.take())).expect("room");
            }
            let filled: Vec<_> = (0..4).map(|_| rig.filled(b"of four")).collect();
            faults::fail_post("wr_complete", how, libc::EIO, 1);
            let mut batch = a.send_queue().batch::<4>();
            for (wr_id, buffer) in (0..).zip(filled) {
                batch.push(Send::new(buffer).signaled().wr_id(wr_id)).expect("room");
            }
            let error = batch.post().expect_err("it fails");
            assert!(matches!(error.refusal, Refusal::Unsure { .. }), "{how:?}: {error}");
            drop(error);
            let came = poll(&mut rig.cq);
            drop((a, b));
            let left = poll(&mut rig.cq);
            assert_eq!(came.len() + left.len(), 8, "{how:?}: each once: {came:?}, {left:?}");
            drop((came, left));
            assert_eq!((rig.out(), rig.cq.strays()), (0, 0), "{how:?}");
            rig.end();
        }
    }

    /// A flush is a request too.
    fn a_flush_that_fails() {
        let mut rig = rig();
        let (mut a, mut b) = rig.pair();
        b.recv_queue().post(Receive::new(rig.take())).expect("room");
        a.send_queue().post(Send::new(Inline(b"silent"))).expect("room");
        faults::fail_post("wr_complete", Post::LostUnnamed, libc::EIO, 1);
        let error = a.send_queue().flush().expect_err("it fails");
        assert!(error.to_string().contains("ibv_wr_complete"), "{error}");
        drop((a, b));
        let left = poll(&mut rig.cq);
        assert_eq!(left.len(), 2, "the send and the receive: {left:?}");
        drop(left);
        rig.end();
    }

    /// Its memory stays, as after a plain call.
    fn a_queue_pair_that_cannot_be_destroyed() {
        leaks_on_purpose();
        let rig = rig();
        let (mut a, b) = rig.pair();
        faults::stall(true);
        a.send_queue().post(Send::new(rig.filled(b"under way"))).expect("room");
        faults::fail("ibv_destroy_qp", libc::EBUSY);
        drop((a, b));
        assert_eq!(rig.out(), 1, "the device may still read it");
        assert_eq!(rig.context.leaks(), 1);
    }
}
