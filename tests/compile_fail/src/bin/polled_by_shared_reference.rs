//! E0596: polling takes the queue exclusively.

use std::sync::Arc;

use rdma_verbs_misuse::{completions, see};

fn main() {
    let mut shared = Arc::new(completions());
    #[cfg(feature = "misuse")]
    see(shared.poll().is_ok());
    if let Some(own) = Arc::get_mut(&mut shared) {
        see(own.poll().is_ok());
    }
}
