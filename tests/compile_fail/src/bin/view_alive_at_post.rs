//! E0505: nobody looks at a buffer while the device may write it.

use rdma_verbs::wr::Receive;
use rdma_verbs_misuse::{buffer, connected, see};

fn main() {
    let (mut qp, text) = (connected(), buffer());
    let view = &text[..4];
    see(view);
    see(qp.recv_queue().post(Receive::new(text)));
    #[cfg(feature = "misuse")]
    see(view);
}
