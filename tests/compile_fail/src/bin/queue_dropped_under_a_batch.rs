//! E0505: a batch borrows its queue.

use rdma_verbs_misuse::{connected, see};

fn main() {
    let (mut sends, recvs) = connected().split();
    let batch = sends.batch::<4>();
    #[cfg(feature = "misuse")]
    drop(sends);
    see(batch.post());
    drop(recvs);
}
