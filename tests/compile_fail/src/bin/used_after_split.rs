//! E0382: after the split there are two queues.

use rdma_verbs_misuse::{connected, see};

fn main() {
    let qp = connected();
    see(qp.qpn());
    let (sends, recvs) = qp.split();
    #[cfg(feature = "misuse")]
    see(qp.qpn());
    see((sends.qpn(), recvs.qpn()));
}
