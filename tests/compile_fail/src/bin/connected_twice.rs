//! E0382: a transition takes the queue pair.

use rdma_verbs::Endpoint;
use rdma_verbs_misuse::{init, options, see};

fn main() {
    let (qp, options) = (init(), options());
    let peer: Endpoint = qp.endpoint(&options).expect("an address");
    see(qp.connect(&peer, &options));
    #[cfg(feature = "misuse")]
    see(qp.connect(&peer, &options));
}
