//! E0599: a flush goes to the peer, and datagrams have none.

use rdma_verbs_misuse::{connected, datagrams, see};

fn main() {
    see(connected().send_queue().flush());
    #[cfg(feature = "misuse")]
    see(datagrams().send_queue().flush());
    see(datagrams().send_queue().depth());
}
