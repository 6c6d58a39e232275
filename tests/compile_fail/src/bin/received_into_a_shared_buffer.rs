//! E0277: who shares a buffer reads it.

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs_misuse::{connected, see, shared};

fn main() {
    let mut qp = connected();
    see(qp.send_queue().post(Send::new(shared())));
    #[cfg(feature = "misuse")]
    see(Receive::new(shared()));
    see(Receive::new(shared().try_unfreeze().expect("the only owner")));
}
