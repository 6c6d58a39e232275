//! E0499: a batch has its queue alone.

use rdma_verbs::wr::Send;
use rdma_verbs_misuse::{connected, see};

fn main() {
    let mut qp = connected();
    let sends = qp.send_queue();
    let batch = sends.batch::<4>();
    #[cfg(feature = "misuse")]
    see(sends.post(Send::new(())));
    see(batch.post());
    see(sends.post(Send::new(())));
}
