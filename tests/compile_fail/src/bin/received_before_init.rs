//! E0599: in RESET nothing can be posted.

use rdma_verbs::InitOptions;
use rdma_verbs::PortNum;
use rdma_verbs_misuse::{reset, see};

fn main() {
    let mut qp = reset();
    #[cfg(feature = "misuse")]
    see(qp.recv_queue());
    qp.set_psn(rdma_verbs::Psn::random());
    let mut qp = qp.init(&InitOptions::new(PortNum::FIRST)).expect("to INIT");
    see(qp.recv_queue());
}
