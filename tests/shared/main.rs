//! Shared receive queues on the interposer's device: that every receive comes back once, from whichever
//! completion queue, and that none has two owners.
//!
//! * `posts`: what is posted, refused, and taken. `completions`: what devices say that is not so.
//! * `ends`: every order of dropping, what cannot be destroyed, what is left. `stress`: all of it at once.

#[path = "../interposed/mod.rs"]
mod interposed;

mod completions;
mod ends;
mod posts;
mod stress;

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{CompletionQueue, Init, QueuePair, Rts, SharedReceiveQueue};

use interposed::rig::Rig;

/// A rig, a shared receive queue, and a second completion queue.
pub(crate) struct Shared {
    pub(crate) srq: SharedReceiveQueue,
    pub(crate) other: CompletionQueue,
    pub(crate) rig: Rig,
}

/// How deep the shared receive queue is.
pub(crate) const DEPTH: u32 = 8;

impl Shared {
    pub(crate) fn new() -> Shared {
        let rig = Rig::new();
        let srq = SharedReceiveQueue::builder(&rig.pd, DEPTH).max_sge(2).build();
        let other = CompletionQueue::new(&rig.context, 255).expect("a CQ");
        Shared { srq: srq.expect("a shared receive queue"), other, rig }
    }

    /// One that receives from the shared queue; what it receives completes on the rig's completion queue, or on
    /// the other.
    pub(crate) fn receiver(&self, on_other: bool) -> QueuePair<Init> {
        let recv_cq = if on_other { &self.other } else { &self.rig.cq };
        let builder = QueuePair::rc(&self.rig.pd, &self.rig.cq, recv_cq).send_depth(4);
        let made = builder.shared_receive_queue(&self.srq).build().expect("a queue pair");
        made.init(&self.rig.init_options()).expect("to INIT")
    }

    /// One that sends, and the one of the shared queue that it sends to.
    pub(crate) fn pair(&self, on_other: bool) -> (QueuePair<Rts>, QueuePair<Rts>) {
        self.rig.connect(self.rig.init(), self.receiver(on_other))
    }

    /// Posts receives of these numbers.
    pub(crate) fn post(&mut self, wr_ids: std::ops::Range<u64>) {
        for wr_id in wr_ids {
            self.srq.post(Receive::new(self.rig.take()).wr_id(wr_id)).expect("room");
        }
    }

    pub(crate) fn send(&self, from: &mut QueuePair<Rts>, text: &[u8]) {
        let send = Send::new(self.rig.filled(text)).wr_id(1000).signaled();
        from.send_queue().post(send).expect("room");
    }
}
