//! Memory that a device may touch.
//!
//! * `pool`: [`Pool`], one mapping and one registration, handed out as [`Buffer`]s; nobody but this
//!   program and the device reads or writes them. `buffer` has them, and [`SharedBuffer`].
//! * `exposed`: [`Exposed`], what a peer may read or write as well, by copies and atomics only, and
//!   [`RemoteSlice`], what a peer exposed.
//! * `window`: [`MemoryWindow`], a grant of a part of exposed memory that work requests give and end.
//! * `piece`: what may stand in a work request, and what of it the device may do.
//! * `held`: memory as the table of work requests in flight holds it, in one word.
//! * `map`: pages from the kernel. `free`: which buffers of a pool nobody has.
//!
//! The one rule: memory is unmapped, or becomes somebody else's, only after the device cannot touch it.
//! A buffer that is posted is owned by the table of work requests in flight (`wq`), whoever else has
//! gone; a mapping goes after its deregistration succeeded, and stays for ever if it does not.

mod buffer;
mod exposed;
mod free;
mod held;
mod map;
mod piece;
mod pool;
mod remote;
mod window;

pub use buffer::{Buffer, SharedBuffer};
pub use exposed::{Exposed, ExposedRange, RevokeError};
pub use held::Memory;
pub use map::{PageSize, PlainMemory};
pub use piece::{Gather, Inline, Piece, Scatter, WritablePiece};
pub use pool::{Pool, PoolBuilder};
pub use remote::RemoteSlice;
pub use window::MemoryWindow;

pub(crate) use free::FreeList;
pub(crate) use held::Held;
pub(crate) use piece::{ANY_DOMAIN, MAX_PIECES, Pieces};
pub(crate) use window::{Posted, Shared, Told, Windows};

use crate::error::{Errno, Error, Object};
use crate::pd::ProtectionDomain;

/// Access of a registration that is not remote (`IBV_ACCESS_LOCAL_WRITE`).
const LOCAL_WRITE: u32 = 1;
/// That windows can be bound on it (`IBV_ACCESS_MW_BIND`).
const MW_BIND: u32 = 1 << 4;

/// Why memory could not be registered: what was asked, and the limit that is the usual reason.
fn not_registered(pd: &ProtectionDomain, bytes: usize, errno: Errno) -> Error {
    let device: Box<str> = pd.context().device().name().into();
    if errno == Errno::ENOMEM {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        return Error::NoMemory { device, what: "memory", asked: bytes as u64, limit };
    }
    Error::Verb { verb: "ibv_reg_mr", object: Object::device(&device), errno }
}
