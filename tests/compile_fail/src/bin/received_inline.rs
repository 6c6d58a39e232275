//! E0277: inline bytes are only sent.

use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs_misuse::{buffer, see};

fn main() {
    let bytes = [1, 2, 3];
    see(Send::new(Inline(&bytes)));
    #[cfg(feature = "misuse")]
    see(Receive::new(Inline(&bytes)));
    see(Receive::new(buffer()));
}
