//! E0499: while a batch is collected, nothing else is posted on its queue.

use rdma_verbs::wr::Receive;
use rdma_verbs_misuse::{buffer, see, shared_queue};

fn main() {
    let mut srq = shared_queue();
    let mut batch = srq.batch::<2>();
    see(batch.push(Receive::new(buffer())));
    #[cfg(feature = "misuse")]
    see(srq.post(Receive::new(buffer())));
    see(batch.post());
}
