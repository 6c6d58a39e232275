//! E0608: a peer may write it at any time.

use rdma_verbs_misuse::{exposed, see};

fn main() {
    let exposed = exposed();
    #[cfg(feature = "misuse")]
    see(&exposed[..4]);
    let mut copy = [0; 4];
    see(exposed.read(0, &mut copy));
}
