//! The numbers and names of RDMA, as types: no C value travels through this crate bare.

mod codes;
mod entry;
mod flags;
mod gid;
mod manager;
mod num;
mod parse;
mod refuse;
mod subnet;
#[cfg(feature = "serde")]
mod travel;
mod wanted;
mod work;

pub use codes::{
    AtomicCap, LinkLayer, LinkSpeed, LinkWidth, Mtu, NodeType, PhysState, PortState, TransportType,
};
pub use entry::{GidEntry, GidType, IfName};
pub use flags::{DeviceCaps, PortCaps, RemoteAccess};
pub use gid::{FullGid, Gid, GidScope};
pub use manager::{CmEventType, RejectReason};
pub use num::{GidIndex, Guid, Lid, PKey, PortNum, Psn, Qpn, RKey};
pub use parse::{ParseGidError, ParseGuidError};
pub use refuse::RefuseReason;
pub use subnet::{ParseSubnetError, Subnet};
pub use wanted::{ParseWantedError, Wanted};
pub use work::{QpState, WcOpcode, WcStatus};

pub(crate) use codes::c_enum;
pub(crate) use num::{encoded_time, rnr_code, rnr_delay, time_code};
