//! E0499: a completion is of one poll.

use rdma_verbs_misuse::{completions, see};

fn main() {
    let mut cq = completions();
    let mut drain = cq.poll().expect("it can be polled");
    let kept = drain.next().and_then(|completion| {
        let buffer = completion.into_buffer();
        buffer
    });
    #[cfg(feature = "misuse")]
    let kept = (kept, drain.next());
    see(cq.poll().is_ok());
    see(kept);
}
