//! E0515: a completion does not leave where its queue is borrowed.

use rdma_verbs::CompletionQueue;
use rdma_verbs_misuse::{completions, see};

#[cfg(feature = "misuse")]
fn first(cq: &mut CompletionQueue) -> Option<rdma_verbs::Completion<'_>> {
    let mut drain = cq.poll().ok()?;
    drain.next()
}

#[cfg(not(feature = "misuse"))]
fn first(cq: &mut CompletionQueue) -> Option<rdma_verbs::Buffer> {
    let mut drain = cq.poll().ok()?;
    drain.next()?.into_buffer()
}

fn main() {
    see(first(&mut completions()));
}
