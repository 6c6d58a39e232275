//! E0308: there is no reference to its bytes.

use rdma_verbs_misuse::{exposed, see};

fn main() {
    let exposed = exposed();
    #[cfg(feature = "misuse")]
    let bytes: &[u8] = &exposed;
    #[cfg(not(feature = "misuse"))]
    let bytes: &[u8] = &exposed.revoke().expect("nothing holds it");
    see(bytes);
}
