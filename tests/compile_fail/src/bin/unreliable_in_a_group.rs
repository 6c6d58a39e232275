//! E0308: only datagrams are sent to groups.

use rdma_verbs::{Gid, MulticastAttachment};
use rdma_verbs_misuse::{datagrams, see};

fn main() {
    see(MulticastAttachment::new(&datagrams(), Gid::ZERO));
    #[cfg(feature = "misuse")]
    see(MulticastAttachment::new(&rdma_verbs_misuse::unreliable(), Gid::ZERO));
}
