//! E0277: of an unreliable connection nothing comes back, and so nothing is read.

use rdma_verbs::wr::{Read, Write};
use rdma_verbs_misuse::{buffer, remote, see, unreliable};

fn main() {
    let mut qp = unreliable();
    see(qp.send_queue().post(Write::new(buffer(), remote())));
    #[cfg(feature = "misuse")]
    see(qp.send_queue().post(Read::new(buffer(), remote())));
    see(Read::new(buffer(), remote()));
}
