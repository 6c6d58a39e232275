//! E0505: a completion borrows its completion queue.

use rdma_verbs_misuse::{completions, see};

fn main() {
    let mut cq = completions();
    let mut drain = cq.poll().expect("it can be polled");
    let completion = drain.next();
    #[cfg(feature = "misuse")]
    drop(cq);
    see(completion);
}
