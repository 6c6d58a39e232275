//! E0277: a queue pair of datagrams binds no windows.

use rdma_verbs::SendQueue;
use rdma_verbs::transport::{Rc, Ud};
use rdma_verbs::wr::Bind;
use rdma_verbs_misuse::see;

#[cfg(not(feature = "misuse"))]
type Transport = Rc;
#[cfg(feature = "misuse")]
type Transport = Ud;

fn bind(queue: &mut SendQueue<Transport>, bind: Bind) {
    queue.post(bind).expect("room");
}

fn main() {
    see(bind);
    see::<(Option<Rc>, Option<Ud>)>((None, None));
}
