//! E0599: an exclusive buffer has one owner.

use rdma_verbs_misuse::{buffer, see};

fn main() {
    let one = buffer();
    #[cfg(feature = "misuse")]
    see(one.clone());
    see(one.freeze().clone());
}
