//! Queue pairs connected over a TCP connection, without rdma_cm.
//!
//! The client sends a request, the server a reply, the client its last word, each a [`ConnectRecord`] of
//! one size. GIDs are told by value, and each end resolves its own from the directory: no index travels.
//!
//! * this file: [`Connector`], [`Offer`], [`Connected`]. `connecting`: a connection under way, of either end.
//! * `listener`: [`Listener`], [`Incoming`].
//! * `machine`: the state machine of both. `end`: a queue pair in it. `wire`: records on a socket.
//!   `record`: what they say. `reason`: what one end's failure is to the other.

#![deny(unsafe_code)]
#![allow(clippy::result_large_err)] // the queue pair itself comes back

mod connecting;
mod end;
mod listener;
mod machine;
mod reason;
mod record;
mod wire;

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::Result;
use crate::qp::{ConnectOptions, Failed, Init, QueuePair, Rts};
use crate::resolve::{Path, Resolver};

pub use connecting::Connecting;
pub use listener::{Incoming, Listener};
pub use record::{ConnectRecord, PrivateData, Terms};

/// Connects queue pairs to a [`Listener`]'s. Cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rdma_verbs::{
///     CompletionQueue, ConnectOptions, Connector, Destination, DeviceList, GidDirectory, InitOptions,
///     ProtectionDomain, QueuePair, Resolver,
/// };
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = "192.0.2.77:7471".parse()?;
///     let resolver = Resolver::open(&GidDirectory::open()?)?;
///     // Which device and port lead there.
///     let path = resolver.resolve(&Destination::from(server), Duration::from_secs(5))?;
///     let context = DeviceList::new()?.find(&path.gid.device)?.open()?;
///     let pd = ProtectionDomain::new(&context)?;
///     let cq = CompletionQueue::new(&context, 128)?;
///     let queue_pair = QueuePair::rc(&pd, &cq, &cq).build()?;
///     let queue_pair = queue_pair.init(&InitOptions::new(path.gid.port))?;
///     // Receives can be posted here: before the server sends.
///     let options = ConnectOptions::new(&path.gid.row).reads(4);
///     let connector = Connector::new(&resolver);
///     let connected = connector.connect(server, queue_pair, options, Duration::from_secs(10))?;
///     println!("{:?} towards {:?}", connected.queue_pair, connected.peer.endpoint);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    resolver: Resolver,
}

/// What one end brings into a connection: how its queue pair is to be connected, and what the program
/// tells the other.
///
/// Made from [`ConnectOptions`], which [`connect`](Connector::connect) and its like also take as they are.
/// Options from a row send from that row. Options [`on_port`](ConnectOptions::on_port) on Ethernet send
/// from the row that carries the TCP connection's own address on the queue pair's device and port; where
/// that is loopback's, and at a server whose client is of the other family, from the best of the
/// port's rows.
#[derive(Clone, Debug)]
pub struct Offer {
    options: ConnectOptions,
    from: Option<SocketAddr>,
    private_data: PrivateData,
}

impl Offer {
    /// With these options, and nothing else.
    pub fn new(options: ConnectOptions) -> Offer {
        Offer { options, from: None, private_data: PrivateData::EMPTY }
    }

    /// What the program tells the other end, in the request or the reply.
    pub fn private_data(mut self, data: PrivateData) -> Offer {
        self.private_data = data;
        self
    }

    /// Of a client: makes the TCP connection from this address of the host, at any port; a link-local
    /// one with the number of its interface. The kernel chooses unless asked.
    pub fn local_address(mut self, address: IpAddr, ifindex: u32) -> Offer {
        self.from = Some(match address {
            IpAddr::V4(_) => SocketAddr::new(address, 0),
            IpAddr::V6(address) => std::net::SocketAddrV6::new(address, 0, 0, ifindex).into(),
        });
        self
    }
}

impl From<ConnectOptions> for Offer {
    fn from(options: ConnectOptions) -> Offer {
        Offer::new(options)
    }
}

/// A queue pair that is connected, and what is known of its other end. Both ends can send.
///
/// The server's sends what it wants as soon as its call has returned; so does the client's. If the server's
/// time is over between the client's last word and its arrival, only the server knows: the client's
/// requests then fail, and its `stream` is closed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected {
    /// The queue pair.
    pub queue_pair: QueuePair<Rts>,
    /// What the other end told: its queue pair, its settings, its private data.
    pub peer: Terms,
    /// The other end's address on TCP.
    pub address: SocketAddr,
    /// The path that packets take, with the row that they are sent from; `None` on InfiniBand, and where
    /// the resolver knew none and the kernel did.
    pub path: Option<Path>,
    /// The TCP connection, which blocks again. Nothing of it is needed any more: keep it to be told when
    /// the other program ends, or to talk on it, or drop it.
    pub stream: TcpStream,
}

impl Connector {
    /// One that finds GIDs and paths with this resolver.
    pub fn new(resolver: &Resolver) -> Connector {
        Connector { resolver: resolver.clone() }
    }

    /// Connects a queue pair to one that the server at this address offers: TCP connection, exchange,
    /// path, RTR and RTS, all of it within `timeout`, which waits in between. Receives may be posted
    /// before.
    ///
    /// The path MTU is the smaller of both ports', and of what either asked. Reads and atomics under way
    /// are as many as this end wants and the other answers.
    ///
    /// The path's next hop is looked for before the queue pair is told of it, so that the kernel, which
    /// waits a second for it, need not. If the row moved meanwhile, it is found again by its value.
    ///
    /// # Errors
    ///
    /// With the queue pair, which is in INIT as it was given and can be used again, unless receives were
    /// posted and the other end failed after it was connected: then it is in the error state, which
    /// [`state`](QueuePair::state) tells, and they come back flushed.
    ///
    /// * [`Error::Exchange`](crate::Error::Exchange): TCP, the time, what the other end sent, and why it
    ///   refused.
    /// * [`Error::NoDeviceForAddress`](crate::Error::NoDeviceForAddress),
    ///   [`Error::OtherDevice`](crate::Error::OtherDevice), [`Error::NoGidFits`](crate::Error::NoGidFits):
    ///   no row to send from was found.
    /// * [`Error::GidMoved`](crate::Error::GidMoved): the row has gone.
    /// * [`Error::Unreachable`](crate::Error::Unreachable): the other end's GID does not answer.
    /// * [`Error::Transition`](crate::Error::Transition): the device refused.
    /// * [`Error::Host`](crate::Error::Host): the system refused: `EMFILE`, no more files may be open.
    ///
    /// The other end is told of those that it cannot know of, in the words of the error.
    pub fn connect(
        &self,
        to: SocketAddr,
        queue_pair: QueuePair<Init>,
        offer: impl Into<Offer>,
        timeout: Duration,
    ) -> Result<Connected, Failed<Init>> {
        self.start(to, queue_pair, offer, timeout).wait()
    }

    /// Begins to connect, for a program with a loop of its own. Nothing is done, and no descriptor taken,
    /// until it is advanced; the time runs.
    pub fn start(
        &self,
        to: SocketAddr,
        queue_pair: QueuePair<Init>,
        offer: impl Into<Offer>,
        timeout: Duration,
    ) -> Connecting {
        Connecting::client(&self.resolver, to, queue_pair, offer.into(), timeout)
    }
}

#[cfg(test)]
mod tests;
