//! E0499: a wait polls.

use std::time::Duration;

use rdma_verbs::Notify;
use rdma_verbs_misuse::{completions, see};

fn main() {
    let mut cq = completions();
    let drain = cq.poll();
    #[cfg(not(feature = "misuse"))]
    see(drain);
    see(cq.wait(Notify::Any, Duration::ZERO).is_ok());
    #[cfg(feature = "misuse")]
    see(drain);
}
