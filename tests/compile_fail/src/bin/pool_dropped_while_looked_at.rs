//! E0505: what a pool tells of itself is of it.

use rdma_verbs_misuse::{pool, see};

fn main() {
    let pool = pool();
    let pd = pool.protection_domain();
    #[cfg(feature = "misuse")]
    drop(pool);
    see(pd);
}
