//! E0505: nobody has an atomic of what is given up.

use rdma_verbs_misuse::{exposed, see};

fn main() {
    let exposed = exposed();
    let word = exposed.atomic_u64(0).expect("inside");
    #[cfg(feature = "misuse")]
    see(exposed.revoke());
    see(word);
}
