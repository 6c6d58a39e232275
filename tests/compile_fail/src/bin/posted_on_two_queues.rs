//! E0382: one buffer is on one queue.

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs_misuse::{buffer, connected, see};

fn main() {
    let (mut qp, text) = (connected(), buffer());
    let (sends, recvs) = qp.queues();
    see(sends.post(Send::new(text)));
    #[cfg(feature = "misuse")]
    see(recvs.post(Receive::new(text)));
    see(recvs.post(Receive::new(buffer())));
}
