//! E0599: a queue has one handle.

use rdma_verbs_misuse::{connected, see};

fn main() {
    let (sends, recvs) = connected().split();
    #[cfg(feature = "misuse")]
    see(sends.clone());
    see((sends, recvs));
}
