//! Safe RDMA verbs (libibverbs) whose heart is a **cached GID lookup**: which port and table index
//! of a device carries this GID, this IP address or this network interface, answered in
//! nanoseconds from a snapshot of the GID tables.
//!
//! ```no_run
//! use rdma_verbs::{DeviceList, GidType, Result};
//!
//! fn main() -> Result<()> {
//!     let devices = DeviceList::new()?;
//!     if let Some(why) = devices.absence() {
//!         eprintln!("{why}");
//!     }
//!     for device in &devices {
//!         // Opening reads the GID tables of all ports, in one system call.
//!         let context = device.open()?;
//!         let gids = context.gids().cached();
//!         for row in gids.rows() {
//!             println!("{} {row}", device.name());
//!         }
//!         // From memory: no system call, no lock, no allocation.
//!         let address = "192.0.2.1".parse().expect("an address");
//!         let row = gids.by_ip(address).find(|row| row.gid_type() == GidType::ROCE_V2);
//!         if let Some(row) = row {
//!             println!("{address} is index {} of port {}", row.index(), row.port());
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Where things are
//!
//! | you want | look at |
//! |---|---|
//! | the devices of this machine, or why there are none | [`DeviceList`], [`Absence`] |
//! | to open one, its limits, its ports | [`Device::open`], [`Context`], [`DeviceLimits`], [`PortAttr`] |
//! | its GID tables | [`Context::gids`]: [`GidCache`] gives a [`GidSnapshot`] of [`GidEntry`] rows |
//! | the tables of a device you may not open | [`Device::gids_from_sysfs`] |
//! | to read and print GIDs | [`Gid`], [`ParseGidError`], [`Wanted`] |
//! | what went wrong | [`Error`], [`Errno`] |
//!
//! # Safety, threads, teardown
//!
//! No `unsafe` is needed to use this crate. All types are [`Send`] and [`Sync`]. An open device
//! stays open while any clone of its [`Context`] lives, and any order of dropping is right. Nothing
//! here panics on what a kernel, a device or a file answers.
//!
//! # Features
//!
//! `rdma-sys` (default): the declarations of C come from the headers of the machine that builds.
//! Needs libclang 15 or older and the -dev packages of rdma-core. Without it (`default-features =
//! false`) the crate has its own, needs only `libibverbs.so.1`, and is otherwise the same.

// Lints stand in Cargo.toml: `unsafe_code` is denied but in `sys`, the seam to C.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod cache;
mod context;
mod device;
mod directory;
mod error;
mod event;
mod gid;
mod kept;
mod limits;
mod net;
mod pinned;
mod pkey;
mod port;
mod query;
mod sys;
mod types;

pub use cache::{Cache, SnapshotRef};
pub use context::Context;
pub use device::{Absence, Device, DeviceList};
pub use directory::{
    DirectoryDevice, DirectoryRef, DirectoryRow, DirectorySnapshot, DirectoryStats, GidDirectory,
    Locality, TableSource, Watcher,
};
pub use error::{Errno, Error, GidMoved, Object, Result};
pub use event::{Event, EventQueue, EventSubject, EventType, ObjectId};
pub use gid::{GidCache, GidSnapshot, Matches, PortTable, Row};
pub use kept::CacheStats;
pub use limits::DeviceLimits;
pub use net::{
    AddressScope, HostNet, HwAddr, Interface, LocalAddress, NetCache, NetSnapshot, Uevents,
};
pub use pkey::{PKeyCache, PKeySnapshot, PortPKeys};
pub use port::PortAttr;
pub use query::{Choice, Criterion, Explained, Explanation, GidQuery, Reason, Verdict};
pub use types::{
    AtomicCap, DeviceCaps, FullGid, Gid, GidEntry, GidIndex, GidScope, GidType, Guid, IfName, Lid,
    LinkLayer, LinkSpeed, LinkWidth, Mtu, NodeType, PKey, ParseGidError, ParseSubnetError,
    ParseWantedError, PhysState, PortCaps, PortNum, PortState, RKey, Subnet, TransportType, Wanted,
};
