//! The numbers and names of RDMA, as types: no C value travels through this crate bare.

mod capability;
mod clock;
mod codes;
mod datagram;
mod entry;
mod flags;
mod gid;
mod grh;
mod manager;
mod num;
mod parse;
mod refuse;
mod subnet;
#[cfg(feature = "serde")]
mod travel;
mod wanted;
mod work;

pub use capability::{Capabilities, Capability};
pub use clock::DeviceTime;
pub use codes::{
    AtomicCap, LinkLayer, LinkSpeed, LinkWidth, Mtu, NodeType, PhysState, PortState, TransportType,
    WindowType,
};
pub use datagram::DatagramSource;
pub use entry::{GidEntry, GidType, IfName};
pub use flags::{
    DeviceCaps, OdpCaps, PciAtomicSizes, PortCaps, RawPacketCaps, RemoteAccess, TransportCaps,
};
pub use gid::{FullGid, Gid, GidScope};
pub use grh::Grh;
pub use manager::{CmEventType, RejectReason};
pub use num::{GidIndex, Guid, Lid, PKey, PortNum, Psn, QKey, Qpn, RKey};
pub use parse::{ParseGidError, ParseGuidError};
pub use refuse::RefuseReason;
pub use subnet::{ParseSubnetError, Subnet};
pub use wanted::{ParseWantedError, Wanted};
pub use work::{QpState, WcOpcode, WcStatus};

pub(crate) use codes::c_enum;
pub(crate) use num::{encoded_time, rnr_code, rnr_delay, time_code};
