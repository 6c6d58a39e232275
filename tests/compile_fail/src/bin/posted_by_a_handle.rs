//! E0599: one has the shared receive queue and posts; a handle only makes queue pairs.

use rdma_verbs::SharedReceiveQueue;
use rdma_verbs::wr::Receive;
use rdma_verbs_misuse::{buffer, domain, see};

fn main() {
    let domain = domain();
    let mut srq = SharedReceiveQueue::builder(&domain, 8).build().expect("a queue");
    let handle = srq.handle();
    see(srq.post(Receive::new(buffer())));
    #[cfg(feature = "misuse")]
    see(handle.post(Receive::new(buffer())));
    see(handle);
}
