//! E0277: who has a peer sends to nobody else.

use rdma_verbs::wr::{Datagram, Send};
use rdma_verbs::{QKey, Qpn};
use rdma_verbs_misuse::{buffer, connected, handle, see};

fn main() {
    let mut qp = connected();
    see(qp.send_queue().post(Send::new(buffer())));
    #[cfg(feature = "misuse")]
    see(qp.send_queue().post(Datagram::new(buffer(), &handle(), Qpn::MULTICAST, QKey::new(1))));
    see(Datagram::new(buffer(), &handle(), Qpn::MULTICAST, QKey::new(1)));
}
