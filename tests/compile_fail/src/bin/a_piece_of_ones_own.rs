//! E0277: nobody else says what a device may touch.

use rdma_verbs::Piece;
use rdma_verbs_misuse::{buffer, see};

struct Mine;

#[cfg(feature = "misuse")]
impl Piece for Mine {}

fn both(piece: impl Piece) {
    see(piece);
}

fn main() {
    see(Mine);
    both(buffer());
}
