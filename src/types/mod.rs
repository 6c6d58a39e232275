//! The numbers and names of RDMA, as types: no C value travels through this crate bare.

mod entry;
mod flags;
mod gid;
mod num;
mod parse;
mod subnet;
mod wanted;

pub use entry::{GidEntry, GidType, IfName};
pub use flags::{DeviceCaps, PortCaps};
pub use gid::{FullGid, Gid, GidScope};
pub use num::{
    AtomicCap, GidIndex, Guid, Lid, LinkLayer, LinkSpeed, LinkWidth, Mtu, NodeType, PKey,
    PhysState, PortNum, PortState, RKey, TransportType,
};
pub use parse::ParseGidError;
pub use subnet::{ParseSubnetError, Subnet};
pub use wanted::{ParseWantedError, Wanted};

pub(crate) use num::{c_enum, encoded_time};
