//! The numbers and names of RDMA, as types: no C value travels through this crate bare.

mod entry;
mod gid;
mod num;
mod parse;
mod wanted;

pub use entry::{GidEntry, GidType, IfName};
pub use gid::{FullGid, Gid, GidScope};
pub use num::{GidIndex, Guid, Lid, LinkLayer, Mtu, PKey, PortNum, PortState, RKey};
pub use parse::ParseGidError;
pub use wanted::Wanted;

pub(crate) use num::{c_enum, encoded_time};
