//! E0499: one thread posts.

use rdma_verbs::wr::Send;
use rdma_verbs_misuse::{connected, see};

fn main() {
    let (mut sends, mut recvs) = connected().split();
    std::thread::scope(|scope| {
        scope.spawn(|| see(sends.post(Send::new(()))));
        #[cfg(feature = "misuse")]
        scope.spawn(|| see(sends.post(Send::new(()))));
        scope.spawn(|| see(recvs.in_flight()));
    });
}
