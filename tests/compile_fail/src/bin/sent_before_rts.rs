//! E0599: in RTR it receives, and does not send.

use rdma_verbs_misuse::{rtr, see};

fn main() {
    let mut qp = rtr();
    see(qp.recv_queue());
    #[cfg(feature = "misuse")]
    see(qp.send_queue());
    let mut qp = qp.ready_to_send().expect("to RTS");
    see(qp.send_queue());
}
