//! Safe RDMA verbs (libibverbs) whose heart is a **cached GID lookup**: which device, port and table
//! index carries this GID, this IP address or this network interface, and which one to use towards a
//! peer, answered in nanoseconds from a snapshot of all GID tables that the devices' own events keep
//! true.
//!
//! ```no_run
//! use rdma_verbs::{DeviceList, GidDirectory, GidQuery, GidType, Result};
//!
//! fn main() -> Result<()> {
//!     if let Some(why) = DeviceList::new()?.absence() {
//!         eprintln!("{why}");
//!     }
//!     // Opens every device and reads its GID tables; the thread keeps them true.
//!     let directory = GidDirectory::open()?;
//!     let _watcher = directory.watch()?;
//!     // From memory: no system call, no lock, no allocation.
//!     let snapshot = directory.cached();
//!     let address = "192.0.2.1".parse().expect("an address");
//!     for row in snapshot.by_ip(address).filter(|row| row.is_local()) {
//!         println!("{address} is {}", row.entry());
//!     }
//!     // Which to use towards a peer. If none can be, the error lists what there is, and why not.
//!     let peer = "192.0.2.77".parse().expect("an address");
//!     let choice = GidQuery::new().gid_type(GidType::ROCE_V2).peer(peer).best(&snapshot)?;
//!     println!("{} port {} index {}", choice.device, choice.port, choice.index);
//!     Ok(())
//! }
//! ```
//!
//! Two queue pairs that know each other's address, and a message:
//!
//! ```no_run
//! # fn tell(_: rdma_verbs::Endpoint) -> rdma_verbs::Endpoint { unimplemented!() }
//! use rdma_verbs::{
//!     CompletionQueue, ConnectOptions, DeviceList, InitOptions, Pool, ProtectionDomain, QueuePair,
//!     Result, wr,
//! };
//!
//! fn main() -> Result<()> {
//!     let context = DeviceList::new()?.find("rxe0")?.open()?;
//!     let ours = "192.0.2.1".parse().expect("an address");
//!     let row = *context.gids().cached().find(&ours)?.next().expect("what is found has a row");
//!     let pd = ProtectionDomain::new(&context)?;
//!     let mut cq = CompletionQueue::new(&context, 128)?;
//!     let pool = Pool::new(&pd, 4096, 64)?;
//!     let mut qp = QueuePair::rc(&pd, &cq, &cq).build()?.init(&InitOptions::new(row.port()))?;
//!     // A buffer that is posted is the queue's, and comes back with its completion.
//!     let buffer = pool.take().expect("a buffer");
//!     qp.recv_queue().post(wr::Receive::new(buffer))?;
//!     let options = ConnectOptions::new(&row);
//!     let peer = tell(qp.endpoint(&options)?); // by whatever you have: a socket, a file
//!     let mut qp = qp.connect(&peer, &options)?;
//!     let mut buffer = pool.take().expect("a buffer");
//!     buffer.fill_from(b"hello")?;
//!     qp.send_queue().post(wr::Send::new(buffer).wr_id(7).signaled())?;
//!     let mut left = 2;
//!     while left > 0 {
//!         let mut completions = cq.poll()?;
//!         while let Some(mut completion) = completions.next() {
//!             completion.result()?;
//!             println!("{}: {:?}", completion.wr_id(), completion.take_buffer());
//!             left -= 1;
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
//! | the GIDs of all devices, and which to use | [`GidDirectory`], [`DirectorySnapshot`], [`GidQuery`] |
//! | the devices of this machine, or why there are none | [`DeviceList`], [`Absence`] |
//! | to open one, its limits, its ports | [`Device::open`], [`Context`], [`DeviceLimits`], [`Capability`], [`PortAttr`] |
//! | what a device counts: packets, bytes, errors | [`Device::port_counters`], [`Device::port_hw_counters`], [`Counters`] |
//! | its tables alone | [`Context::gids`], [`Context::pkeys`]: a [`Cache`] of [`GidSnapshot`], [`PKeySnapshot`] |
//! | the tables of a device you may not open | [`Device::gids_from_sysfs`], [`GidDirectory::open_sysfs`] |
//! | a row to be what it was when you use it | [`Context::with_row`], [`GidMoved`] |
//! | asynchronous events | [`Context::process_events`], [`Context::subscribe`], [`Event`] |
//! | the path to a peer: source, device, port, GID, next hop | [`Resolver`], [`Destination`], [`Path`] |
//! | memory for messages | [`Pool`], [`Buffer`], [`SharedBuffer`]; [`wr::Inline`]; to receive at high rates [`PagePool`] |
//! | memory that a peer reads or writes | [`Exposed`], [`RemoteSlice`], [`MemoryWindow`] |
//! | to send, receive, write, read, do atomics | [`QueuePair`], [`SendQueue`], [`RecvQueue`], [`wr`] |
//! | one supply of receives for many queue pairs | [`SharedReceiveQueue`] |
//! | what became of it, and the memory back | [`CompletionQueue`], [`Completion`] |
//! | to wait for that | [`CompletionQueue::wait`], [`CompletionChannel`] |
//! | datagrams, and multicast groups | [`QueuePair::ud`], [`wr::Datagram`], [`AddressHandle`], [`Grh`], [`MulticastAttachment`] |
//! | queue pairs connected over TCP, as a client or a server | [`Connector`], [`Listener`], [`Connected`] |
//! | the same as futures, on tokio | the module `aio`, of the feature `tokio` |
//! | to connect by IP address and port, as sockets do | [`cm`]: [`cm::EventChannel`], [`cm::Id`], [`cm::Listener`] |
//! | this host's interfaces and addresses | [`HostNet`], [`NetSnapshot`] |
//! | to read and print GIDs | [`Gid`], [`ParseGidError`], [`Wanted`], [`Subnet`] |
//! | how work requests reach the device | [`Context::doorbell`], [`QueuePair::doorbell`], [`Doorbell`] |
//! | what went wrong | [`Error`], [`Errno`] |
//!
//! The [`guide`] has a page for those who come [from C](guide::coming_from_c) or [from other
//! crates](guide::coming_from_rust), and on [memory](guide::memory_model), [teardown](guide::teardown) and
//! [which GID](guide::which_gid) to use.
//!
//! # Safety, threads, teardown
//!
//! No `unsafe` is needed to use this crate; only what others made, a context ([`Context::from_raw`]) or memory
//! ([`Exposed::from_raw`], [`Exposed::from_dma_buf`]), is taken at their word. All types can be sent to another
//! thread, and all but the queues and page pools used from several at a time: those take `&mut self`, where C has
//! a lock. An open device
//! stays open while any clone of its [`Context`] lives, and any order of dropping is right. Memory that was
//! posted is the queue's until its completion, whatever else was dropped; what a queue pair had in flight
//! when it was dropped comes back where completions are polled, or goes with the completion queue. Nothing
//! here panics on what a kernel, a device or a file answers. An open device delays its removal: a
//! [`GidDirectory`] lets go of one when the kernel tells that it goes and somebody takes that in.
//!
//! # Features
//!
//! `rdma-sys` (default): the declarations of C come from the headers of the machine that builds.
//! Needs libclang 15 or older and the -dev packages of rdma-core. Without it (`default-features =
//! false`) the crate has its own, needs only `libibverbs.so.1`, and is otherwise the same.
//!
//! `serde`: [`Gid`], [`Guid`], [`IfName`], [`Subnet`], [`GidType`], [`GidEntry`], the numbers ([`PortNum`],
//! [`GidIndex`], [`Qpn`], [`Psn`], [`QKey`], [`RKey`], [`Lid`], [`PKey`], [`Mtu`] as bytes), [`RemoteAccess`], and what
//! a program puts into messages of its own, [`Endpoint`] and [`RemoteSlice`], are read and written; [`Wanted`] is read. Formats for people
//! get text (a GID by the parser of its `FromStr`), others bytes. What cannot be is an error of the format.
//!
//! `tracing`: events and spans with the target `rdma_verbs`: devices opened, come and gone; rows of GID tables that
//! came and went; asynchronous events; steps of connecting, with the peer; refused changes of state; neighbours that
//! are looked for; objects that could not be destroyed. Never on the data path, nor in a lookup that finds nothing to
//! take in. A subscriber is called under this crate's locks: it must not call `checked`, `fresh` or the like.
//! Without the feature nothing of it is compiled.
//!
//! `tokio`: the module `aio`, with completions, events, connections and paths as futures. Without it nothing
//! is asynchronous, and descriptors ([`AsFd`](std::os::fd::AsFd)) serve a loop of any kind.

// Lints stand in Cargo.toml: `unsafe_code` is denied but in `sys`, the seam to C.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod ah;
#[cfg(feature = "tokio")]
pub mod aio;
mod cache;
mod calls;
pub mod cm;
mod connect;
mod context;
mod counters;
mod cq;
mod device;
mod directory;
mod doorbell;
mod error;
mod event;
mod gid;
pub mod guide;
mod kept;
mod limits;
mod mcast;
mod mem;
mod net;
mod pd;
mod pinned;
mod pkey;
mod port;
mod qp;
mod query;
mod resolve;
mod srq;
mod sync;
mod sys;
mod tasks;
mod trace;
mod types;
mod wq;

pub use ah::{AddressHandle, AddressVector};
pub use cache::{Cache, SnapshotRef};
pub use calls::Calls;
pub use connect::{
    ConnectRecord, Connected, Connecting, Connector, Incoming, Listener, Offer, PrivateData, Terms,
};
pub use context::Context;
pub use counters::Counters;
pub use cq::{
    Completion, CompletionChannel, CompletionQueue, CompletionQueueBuilder, CompletionQueueHandle,
    Drain, Notify,
};
pub use device::{Absence, Device, DeviceList};
pub use directory::{
    DirectoryDevice, DirectoryRef, DirectoryRow, DirectorySnapshot, DirectoryStats, GidDirectory,
    Locality, TableSource, Watcher,
};
pub use doorbell::{Certainty, Doorbell, DoorbellKind, DoorbellSwitch, ReadAt, WriteCombining};
pub use error::{
    AddressWithDevice, CmFault, CmReason, Errno, Error, ExchangeFault, ExchangeProblem,
    ExchangeStep, GidMoved, NoDeviceForAddress, Object, Queue, QueueOwner, RecordError, Refusal,
    Result, TransitionFault, WindowFault,
};
pub use event::{Event, EventQueue, EventSubject, EventType, ObjectId};
pub use gid::{GidCache, GidSnapshot, Matches, PortTable, Row};
pub use kept::CacheStats;
pub use limits::{
    DeviceLimits, ExtendedLimits, OnDemandPaging, PacketPacing, PciAtomics, TagMatching,
};
pub use mcast::MulticastAttachment;
pub use mem::{
    Buffer, Exposed, ExposedRange, Fragment, FromMemoryError, Gather, IntoMemoryError, Memory,
    MemoryWindow, PagePool, PagePoolBuilder, PagePoolStats, PageSize, Piece, PlainMemory, Pool,
    PoolBuilder, Region, RemoteSlice, RevokeError, Scatter, SharedBuffer, WritablePiece,
};
pub use net::{
    AddressScope, HostNet, HwAddr, Interface, LocalAddress, NetCache, NetSnapshot, Uevents,
};
pub use pd::ProtectionDomain;
pub use pkey::{PKeyCache, PKeySnapshot, PortPKeys};
pub use port::PortAttr;
pub use qp::transport;
pub use qp::{
    BatchError, CanReceive, ConnectOptions, Endpoint, Failed, Init, InitOptions, PostError,
    QueuePair, QueuePairBuilder, QueuePairLimits, RecvBatch, RecvQueue, Refill, RefillStop,
    Refused, Reset, Rtr, Rts, SendBatch, SendQueue, SendRequest, SharedReceiveQueueHandle,
};
pub use query::{Choice, Criterion, Explained, Explanation, GidQuery, Reason, Verdict};
pub use resolve::{Destination, Path, Resolution, Resolver, ResolverStats};
pub use srq::{
    FinishError, Left, LeftReceive, SharedReceiveQueue, SharedReceiveQueueBuilder,
    SharedReceiveQueueLimits,
};
pub use types::{
    AtomicCap, Capabilities, Capability, CmEventType, DatagramSource, DeviceCaps, DeviceTime,
    FullGid, Gid, GidEntry, GidIndex, GidScope, GidType, Grh, Guid, IfName, Lid, LinkLayer,
    LinkSpeed, LinkWidth, Mtu, NodeType, OdpCaps, PKey, ParseGidError, ParseGuidError,
    ParseSubnetError, ParseWantedError, PciAtomicSizes, PhysState, PortCaps, PortNum, PortState,
    Psn, QKey, QpState, Qpn, RKey, RawPacketCaps, RefuseReason, RejectReason, RemoteAccess, Subnet,
    TransportCaps, TransportType, Wanted, WcOpcode, WcStatus, WindowType,
};

/// Work requests: what is posted on a [`SendQueue`], a [`RecvQueue`] or a [`SharedReceiveQueue`].
///
/// They have a module of their own because their names are those of well-known traits too: write
/// `wr::Send::new(buffer)`.
pub mod wr {
    pub use crate::mem::Inline;
    pub use crate::qp::{
        Bind, CompareSwap, Datagram, FetchAdd, LocalInvalidate, Read, Receive, Send, Write,
    };
}

/// What the crate's documentation says of threads: held at compile time.
const _: fn() = || {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<(DeviceList, Device, Context, EventQueue, GidCache, PKeyCache, Doorbell)>();
    any_thread::<(GidDirectory, Watcher, DirectorySnapshot, GidQuery, Explanation)>();
    any_thread::<(Resolver, Resolution, Path)>();
    any_thread::<(Connector, Connecting, Listener, Incoming, Connected)>();
    any_thread::<(cm::EventChannel, cm::Id<cm::Idle>, cm::Step<cm::RouteResolved>, cm::Listener)>();
    any_thread::<(cm::ConnectionRequest, cm::Connecting, cm::Accepting, cm::Connected)>();
    any_thread::<(HostNet, Uevents, NetSnapshot, Error)>();
    any_thread::<(ProtectionDomain, Pool, Buffer, SharedBuffer, Exposed, ExposedRange)>();
    any_thread::<(PagePool, Fragment, Region)>();
    any_thread::<(MemoryWindow, wr::Bind, wr::LocalInvalidate)>();
    any_thread::<(CompletionQueue, CompletionChannel, QueuePair<Rts>, SendQueue, RecvQueue)>();
    any_thread::<(SharedReceiveQueue, SharedReceiveQueueHandle, Left)>();
    any_thread::<(QueuePair<Rts, transport::Ud>, AddressHandle, MulticastAttachment)>();
};
