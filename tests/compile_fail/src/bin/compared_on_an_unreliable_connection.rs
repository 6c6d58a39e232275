//! E0277: an atomic has an answer, and an unreliable connection none.

use rdma_verbs::wr::{CompareSwap, Send};
use rdma_verbs_misuse::{buffer, remote, see, unreliable};

fn main() {
    let mut qp = unreliable();
    see(qp.send_queue().post(Send::new(buffer())));
    #[cfg(feature = "misuse")]
    see(qp.send_queue().post(CompareSwap::new(buffer(), remote(), 1, 2)));
    see(CompareSwap::new(buffer(), remote(), 1, 2));
}
