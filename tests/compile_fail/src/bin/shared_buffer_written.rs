//! E0594: a shared buffer is only read.

use rdma_verbs_misuse::{see, shared};

fn main() {
    let mut shared = shared();
    #[cfg(feature = "misuse")]
    {
        shared[0] = 1;
    }
    see(shared[0]);
    shared = shared.slice(1..).expect("inside");
    see(shared);
}
