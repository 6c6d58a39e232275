//! E0499: what was refused is taken back first.

use rdma_verbs::wr::Send;
use rdma_verbs_misuse::{connected, see};

fn main() {
    let mut qp = connected();
    let sends = qp.send_queue();
    let failed = sends.batch::<4>().post();
    #[cfg(not(feature = "misuse"))]
    see(failed);
    see(sends.post(Send::new(())));
    #[cfg(feature = "misuse")]
    see(failed);
}
