//! E0277: who shares a buffer reads it.

use rdma_verbs::wr::{Read, Write};
use rdma_verbs_misuse::{buffer, remote, see, shared};

fn main() {
    see(Write::new(shared(), remote()));
    #[cfg(feature = "misuse")]
    see(Read::new(shared(), remote()));
    see(Read::new(buffer(), remote()));
}
