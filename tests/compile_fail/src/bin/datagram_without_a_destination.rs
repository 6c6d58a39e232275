//! E0277: who has no peer says where each message goes.

use rdma_verbs::wr::{Datagram, Send};
use rdma_verbs::{QKey, Qpn};
use rdma_verbs_misuse::{buffer, datagrams, handle, see};

fn main() {
    let mut qp = datagrams();
    see(qp.send_queue().post(Datagram::new(buffer(), &handle(), Qpn::MULTICAST, QKey::new(1))));
    #[cfg(feature = "misuse")]
    see(qp.send_queue().post(Send::new(buffer())));
    see(Send::new(buffer()));
}
