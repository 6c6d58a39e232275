//! Memory that a device may touch.
//!
//! * `pool`: [`Pool`], one mapping and one registration, handed out as [`Buffer`]s; nobody but this
//!   program and the device reads or writes them. `buffer` has them, and [`SharedBuffer`].
//! * `pages`: [`PagePool`], the receive path's pages, handed out in order as [`Fragment`]s.
//! * `exposed`: [`Exposed`], what a peer may read or write as well, by copies and atomics only, and
//!   [`RemoteSlice`], what a peer exposed.
//! * `window`: [`MemoryWindow`], a grant of a part of exposed memory that work requests give and end.
//! * `piece`: what may stand in a work request, and what of it the device may do.
//! * `held`: memory as the table of work requests in flight holds it, in one word.
//! * `registered`: memory and its registration. `region`: [`Region`], memory that the user brings. `map`: pages from the kernel. `extent`: where a buffer or
//!   fragment is. `free`: which buffers of a pool nobody has.
//!
//! The one rule: memory is unmapped, or becomes somebody else's, only after the device cannot touch it.
//! A buffer that is posted is owned by the table of work requests in flight (`wq`), whoever else has
//! gone; a mapping goes after its deregistration succeeded, and stays for ever if it does not.

mod buffer;
mod exposed;
mod extent;
mod free;
mod held;
mod map;
mod pages;
mod piece;
mod pool;
mod region;
mod registered;
mod remote;
mod window;

pub use buffer::{Buffer, SharedBuffer};
pub use exposed::{Exposed, ExposedRange, RevokeError};
pub use held::Memory;
pub use map::{PageSize, PlainMemory};
pub use pages::{Fragment, PagePool, PagePoolBuilder, PagePoolStats};
pub use piece::{Gather, Inline, Piece, Scatter, WritablePiece};
pub use pool::{FromMemoryError, IntoMemoryError, Pool, PoolBuilder};
pub use region::Region;
pub use remote::RemoteSlice;
pub use window::MemoryWindow;

pub(crate) use free::FreeList;
pub(crate) use held::Held;
pub(crate) use piece::{ANY_DOMAIN, MAX_PIECES, Pieces};
pub(crate) use window::{Posted, Shared, Told, Windows};

/// Access of a registration that is not remote (`IBV_ACCESS_LOCAL_WRITE`).
const LOCAL_WRITE: u32 = 1;
/// That windows can be bound on it (`IBV_ACCESS_MW_BIND`).
const MW_BIND: u32 = 1 << 4;
