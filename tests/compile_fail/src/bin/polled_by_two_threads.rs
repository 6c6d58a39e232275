//! E0499: one thread polls.

use rdma_verbs_misuse::{completions, see};

fn main() {
    let mut cq = completions();
    std::thread::scope(|scope| {
        scope.spawn(|| see(cq.poll().is_ok()));
        #[cfg(feature = "misuse")]
        scope.spawn(|| see(cq.poll().is_ok()));
    });
}
