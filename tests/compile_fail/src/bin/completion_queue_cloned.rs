//! E0599: there is one of each.

use rdma_verbs_misuse::{completions, see};

fn main() {
    let cq = completions();
    #[cfg(feature = "misuse")]
    see(cq.clone());
    see(cq.context().clone());
}
