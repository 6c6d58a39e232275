//! E0505: inline bytes are read when the batch is posted.

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs_misuse::{connected, see};

fn main() {
    let mut qp = connected();
    let bytes = vec![1, 2, 3];
    let mut batch = qp.send_queue().batch::<4>();
    see(batch.push(Send::new(Inline(&bytes))));
    #[cfg(feature = "misuse")]
    drop(bytes);
    see(batch.post());
}
