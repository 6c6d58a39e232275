//! E0308: a window is bound on exposed memory, and not on a buffer that this side looks at.

use rdma_verbs::RemoteAccess;
use rdma_verbs::wr::Bind;
use rdma_verbs_misuse::{buffer, connected, exposed, see};

fn main() {
    let window = connected().memory_window().expect("a window");
    let range = exposed().range(0, 8).expect("inside");
    see(Bind::new(window, range, RemoteAccess::READ));
    let window = connected().memory_window().expect("a window");
    #[cfg(feature = "misuse")]
    see(Bind::new(window, buffer(), RemoteAccess::READ));
    #[cfg(not(feature = "misuse"))]
    see((window, buffer()));
}
