//! E0599: in INIT it receives, and does not send.

use rdma_verbs_misuse::{init, see};

fn main() {
    let mut qp = init();
    #[cfg(feature = "misuse")]
    see(qp.send_queue());
    see(qp.recv_queue());
}
