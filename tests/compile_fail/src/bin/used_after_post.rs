//! E0382: a buffer that was posted is the queue's.

use rdma_verbs::wr::Send;
use rdma_verbs_misuse::{buffer, connected, see};

fn main() {
    let (mut qp, mut text) = (connected(), buffer());
    text[0] = 1;
    see(qp.send_queue().post(Send::new(text)));
    #[cfg(feature = "misuse")]
    see(text[0]);
}
