//! E0597: inline bytes are read when the batch is posted.

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs_misuse::{connected, see};

fn main() {
    let mut qp = connected();
    let longer = [1, 2, 3];
    let mut batch = qp.send_queue().batch::<4>();
    {
        let shorter = [1, 2, 3];
        see(batch.push(Send::new(Inline(&longer))));
        #[cfg(feature = "misuse")]
        see(batch.push(Send::new(Inline(&shorter))));
        see(shorter);
    }
    see(batch.post());
}
