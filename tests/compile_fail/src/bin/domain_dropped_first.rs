//! E0505: a pool that is being made borrows its domain.

use rdma_verbs::Pool;
use rdma_verbs_misuse::{domain, see};

fn main() {
    let pd = domain();
    let builder = Pool::builder(&pd, 64, 64);
    #[cfg(feature = "misuse")]
    drop(pd);
    see(builder.build());
}
