//! E0599: who has the shared receive queue posts; a handle only makes queue pairs.

use rdma_verbs::wr::Receive;
use rdma_verbs_misuse::{buffer, see, shared_queue};

fn main() {
    let mut srq = shared_queue();
    let handle = srq.handle();
    see(srq.post(Receive::new(buffer())));
    #[cfg(feature = "misuse")]
    see(handle.post(Receive::new(buffer())));
    see(handle);
}
