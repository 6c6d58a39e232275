//! E0277: an atomic has an answer, and an unreliable connection none.

use rdma_verbs::wr::FetchAdd;
#[cfg(feature = "misuse")]
use rdma_verbs_misuse::unreliable;
use rdma_verbs_misuse::{buffer, connected, remote, see};

fn main() {
    #[cfg(feature = "misuse")]
    see(unreliable().send_queue().post(FetchAdd::new(buffer(), remote(), 1)));
    see(connected().send_queue().post(FetchAdd::new(buffer(), remote(), 1)));
}
