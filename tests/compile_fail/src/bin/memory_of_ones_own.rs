//! E0277: only this crate's memory is posted.

use rdma_verbs::wr::Send;
use rdma_verbs_misuse::{buffer, see};

fn main() {
    let bytes = vec![1, 2, 3];
    #[cfg(feature = "misuse")]
    see(Send::new(bytes));
    #[cfg(not(feature = "misuse"))]
    see(bytes);
    see(Send::new(buffer()));
}
