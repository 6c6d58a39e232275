//! E0382: one buffer is one entry.

use rdma_verbs::wr::Receive;
use rdma_verbs_misuse::{buffer, connected, see};

fn main() {
    let (mut qp, one, two) = (connected(), buffer(), buffer());
    #[cfg(feature = "misuse")]
    see(qp.recv_queue().post(Receive::new([one, one])));
    #[cfg(not(feature = "misuse"))]
    see(qp.recv_queue().post(Receive::new([one, two])));
    #[cfg(feature = "misuse")]
    see(two);
}
