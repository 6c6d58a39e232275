//! E0599: queues are handed out when they can be used.

use rdma_verbs_misuse::{connected, rtr, see};

fn main() {
    #[cfg(feature = "misuse")]
    see(rtr().split());
    see(rtr());
    see(connected().split());
}
