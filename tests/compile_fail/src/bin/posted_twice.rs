//! E0382: one buffer is in one work request.

use rdma_verbs::wr::Receive;
use rdma_verbs_misuse::{buffer, connected, see};

fn main() {
    let (mut qp, one, two) = (connected(), buffer(), buffer());
    see(qp.recv_queue().post(Receive::new(one)));
    #[cfg(feature = "misuse")]
    let two = {
        see(two);
        one
    };
    see(qp.recv_queue().post(Receive::new(two)));
}
