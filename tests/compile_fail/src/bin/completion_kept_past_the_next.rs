//! E0499: one completion at a time.

use rdma_verbs_misuse::{completions, see};

fn main() {
    let mut cq = completions();
    let mut drain = cq.poll().expect("it can be polled");
    let first = drain.next();
    #[cfg(not(feature = "misuse"))]
    see(first);
    see(drain.next());
    #[cfg(feature = "misuse")]
    see(first);
}
