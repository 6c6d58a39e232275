//! E0382: a window that is being bound is the queue's.

use rdma_verbs::RemoteAccess;
use rdma_verbs::wr::Bind;
use rdma_verbs_misuse::{connected, exposed, see};

fn main() {
    let mut qp = connected();
    let window = qp.memory_window().expect("a window");
    let range = exposed().range(0, 8).expect("inside");
    see(window.remote());
    qp.send_queue().post(Bind::new(window, range, RemoteAccess::READ)).expect("room");
    #[cfg(feature = "misuse")]
    see(window.remote());
}
