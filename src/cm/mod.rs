//! Connecting through the RDMA connection manager (librdmacm): by IP address and port, as sockets do, on
//! RoCE and InfiniBand, and with programs in any language that do so too.
//!
//! An [`Id`] goes from state to state: [`bind`](Id::bind), resolve the address, resolve the route, connect;
//! or listen, and accept [requests](ConnectionRequest). A step that takes time is begun by its call and
//! ended by an event: [`Step`], [`Connecting`], [`Accepting`] are waited for, or asked whether they are
//! ready, and any number can be under way on one [`EventChannel`].
//!
//! Protection domain, completion queues and queue pair are the program's own: the device is known when the
//! address is resolved, or the request has come ([`Id::context`], [`ConnectionRequest::context`]).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use rdma_verbs::cm::{ConnectionParams, EventChannel};
//! use rdma_verbs::{CompletionQueue, ProtectionDomain, QueuePair, RemoteAccess, Result};
//!
//! const PATIENCE: Duration = Duration::from_secs(5);
//!
//! fn connect() -> Result<()> {
//!     let channel = EventChannel::new()?;
//!     let id = channel.resolve("192.0.2.1:7174".parse().expect("an address"), PATIENCE)?;
//!     let context = id.context()?;
//!     let pd = ProtectionDomain::new(&context)?;
//!     let cq = CompletionQueue::new(&context, 128)?;
//!     let queue_pair = id.init(QueuePair::rc(&pd, &cq, &cq).build()?, RemoteAccess::READ)?;
//!     // Receives are posted here: the peer may send as soon as it is connected.
//!     let connected = id.connect(queue_pair, &ConnectionParams::new())?.wait(PATIENCE)?;
//!     connected.connection.disconnect()
//! }
//!
//! fn serve() -> Result<()> {
//!     let listener = EventChannel::new()?.listen("0.0.0.0:7174".parse().expect("an address"), 16)?;
//!     while let Some(request) = listener.accept(Duration::from_secs(3600))? {
//!         // Of whichever device it came to; opened once, and shared.
//!         let context = request.context()?;
//!         let pd = ProtectionDomain::new(&context)?;
//!         let cq = CompletionQueue::new(&context, 128)?;
//!         let queue_pair = request.init(QueuePair::rc(&pd, &cq, &cq).build()?, RemoteAccess::READ)?;
//!         let connected = request.accept(queue_pair, &ConnectionParams::new())?.wait(PATIENCE)?;
//!         connected.connection.wait_disconnected(Duration::from_secs(60))?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! librdmacm opens each device that an id is bound to, besides, and keeps it open to the end of the
//! process: a device cannot be removed before, where the kernel waits for that.
//!
//! Every event is copied and acknowledged in the call that takes it, so that dropping an id never waits for
//! a program to have seen its events. Ids, requests, connections, queue pairs and channels may be dropped
//! in any order and on any thread.

#![allow(clippy::result_large_err)] // what was given to a step that failed comes back

mod channel;
mod connection;
mod core;
mod data;
mod device;
mod fault;
mod id;
mod listener;
mod multicast;
mod params;
mod slot;
mod step;
#[cfg(feature = "tokio")]
mod tasks;

pub use channel::EventChannel;
pub use connection::{Accepting, Connected, Connecting, Connection};
pub use data::{MAX_IN_REJECT, MAX_IN_REPLY, MAX_IN_REQUEST, PrivateData};
pub use device::BoundDevice;
pub use fault::Failed;
pub use id::{AddressResolved, Bound, HasDevice, Id, Idle, RouteResolved};
pub use listener::{ConnectionRequest, Listener};
pub use multicast::MulticastGroup;
pub use params::ConnectionParams;
pub use slot::CmEvent;
pub use step::{Awaited, Step};
