//! The server's side: who comes, and what he asks for.

#![allow(clippy::result_large_err)] // the queue pair itself comes back

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno as Io;
use rustix::net::{self, SocketFlags};

use super::machine::host;
use super::reason::{reason_for, text_for};
use super::record::ConnectRecord;
use super::wire::{Wire, refused, tcp};
use super::{Connected, Connecting, Offer, Terms};
use crate::error::{Error, ExchangeFault, ExchangeProblem, ExchangeStep, RecordError, Result};
use crate::qp::{Failed, Init, QueuePair};
use crate::resolve::Resolver;
use crate::types::RefuseReason;

/// How many clients at a time may not have told yet what they want.
const MOST: usize = 256;
/// How long each of them has for it, unless that is set.
const PATIENCE: Duration = Duration::from_secs(5);
/// What stands for the listening socket in the set; clients are counted from 1.
const LISTENING: u64 = 0;

/// Listens for clients that want their queue pairs connected, on a TCP port.
///
/// Hears out up to 256 clients at a time, each for as long as its [`patience`](Listener::patience): one that
/// is silent keeps nobody waiting. Who is no client, says nothing, or goes away is given out as an error
/// that names him, and the listener goes on. When more come, the one that has been silent for longest makes
/// room.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rdma_verbs::{
///     CompletionQueue, ConnectOptions, DeviceList, GidDirectory, InitOptions, Listener, PortNum,
///     ProtectionDomain, QueuePair, Resolver,
/// };
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let resolver = Resolver::open(&GidDirectory::open()?)?;
///     let context = DeviceList::new()?.find("rxe0")?.open()?;
///     let pd = ProtectionDomain::new(&context)?;
///     let cq = CompletionQueue::new(&context, 128)?;
///     let mut listener = Listener::bind("0.0.0.0:7471".parse()?, &resolver)?;
///     loop {
///         let incoming = match listener.accept(Duration::from_secs(3600)) {
///             Ok(incoming) => incoming,
///             Err(error) => {
///                 eprintln!("{error}");
///                 continue;
///             }
///         };
///         let queue_pair = QueuePair::rc(&pd, &cq, &cq).build()?;
///         let queue_pair = queue_pair.init(&InitOptions::new(PortNum::FIRST))?;
///         let options = ConnectOptions::on_port(PortNum::FIRST);
///         match incoming.accept(queue_pair, options, Duration::from_secs(10)) {
///             Ok(connected) => println!("{} from {}", connected.peer.endpoint.qpn, connected.address),
///             Err(failed) => eprintln!("{failed}"),
///         }
///     }
/// }
/// ```
pub struct Listener {
    listener: TcpListener,
    local: SocketAddr,
    resolver: Resolver,
    patience: Duration,
    /// The listening socket and those of `greeting`.
    set: OwnedFd,
    greeting: Vec<Greeting>,
    /// The number of the next client.
    next: u64,
}

/// A client that has not said yet what it wants.
struct Greeting {
    number: u64,
    wire: Wire,
    address: SocketAddr,
    begun: Instant,
}

/// A client's request, to be accepted or refused. Dropping it closes the connection, of which the client
/// is told nothing but that.
#[must_use = "the client waits for an answer"]
pub struct Incoming {
    wire: Wire,
    address: SocketAddr,
    local: SocketAddr,
    terms: Terms,
    resolver: Resolver,
}

impl Listener {
    /// Listens at this address of the host; at port 0 at one that is free, which
    /// [`local_addr`](Listener::local_addr) tells. GIDs and paths are found with this resolver. Takes two
    /// descriptors, and one for each client that is heard out.
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`]: a port in use (`EADDRINUSE`), an address that is not this host's
    /// (`EADDRNOTAVAIL`); [`Error::Host`].
    pub fn bind(address: SocketAddr, resolver: &Resolver) -> Result<Listener> {
        let fault = |call, error: std::io::Error| {
            let problem = ExchangeProblem::Tcp { call, errno: error.into() };
            Error::Exchange(Box::new(ExchangeFault {
                address,
                step: ExchangeStep::Listen,
                problem,
            }))
        };
        let listener = TcpListener::bind(address).map_err(|error| fault("bind", error))?;
        let not_blocking = listener.set_nonblocking(true);
        not_blocking.map_err(|error| fault("ioctl", error))?;
        let local = listener.local_addr().map_err(|error| fault("getsockname", error))?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(host("epoll_create1"))?;
        add(&set, listener.as_fd(), LISTENING)?;
        Ok(Listener {
            listener,
            local,
            resolver: resolver.clone(),
            patience: PATIENCE,
            set,
            greeting: Vec::new(),
            next: LISTENING + 1,
        })
    }

    /// How long a client may take until all of its request has come: 5 s unless set.
    pub fn patience(mut self, patience: Duration) -> Listener {
        self.patience = patience;
        self
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// How many clients have come that have not told yet what they want.
    pub fn greeting(&self) -> usize {
        self.greeting.len()
    }

    /// The next client's request, waiting for it (`poll`) for at most this long.
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`]. At the step [`Listen`](ExchangeStep::Listen), and with this end's address:
    /// nobody came. Else it is about the client that it names, which has been told and closed: nothing
    /// within the [`patience`](Listener::patience), half a record, another protocol or version, a field
    /// that cannot be, gone again. The listener goes on in any case.
    ///
    /// [`Error::Host`]: no more files may be open (`EMFILE`); the client waits, and so the next call fails
    /// too until some are closed.
    pub fn accept(&mut self, timeout: Duration) -> Result<Incoming> {
        let begun = Instant::now();
        let deadline = begun.checked_add(timeout);
        loop {
            if let Poll::Ready(outcome) = self.advance() {
                return outcome;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                let problem = ExchangeProblem::TimedOut { waited: begun.elapsed() };
                let (address, step) = (self.local, ExchangeStep::Listen);
                return Err(Error::Exchange(Box::new(ExchangeFault { address, step, problem })));
            }
            let until = [deadline, self.deadline()].into_iter().flatten().min();
            let left = until.map(|at| at.saturating_duration_since(now));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.set, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Io::INTR) => {}
                Err(errno) => return Err(host("poll")(errno)),
            }
        }
    }

    /// The next client's request, or what became of one, without waiting: `Pending` when there is nothing
    /// to tell. For a loop: wait until the descriptor ([`AsFd`]) is readable or the
    /// [`deadline`](Listener::deadline) has come, then call this until it is pending.
    ///
    /// # Errors
    ///
    /// As [`accept`](Listener::accept), but for the time, which is up to you.
    pub fn advance(&mut self) -> Poll<Result<Incoming>> {
        if let Some(impatient) = self.deadline().filter(|at| Instant::now() >= *at) {
            let is_over = |it: &Greeting| it.begun.checked_add(self.patience) <= Some(impatient);
            if let Some(at) = self.greeting.iter().position(is_over) {
                let mut client = self.dismiss(at);
                let waited = client.begun.elapsed();
                return Poll::Ready(Err(client.refuse(ExchangeProblem::TimedOut { waited })));
            }
        }
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            // One at a time: the kernel gives those that are ready out in turn.
            let mut ready = [none];
            match epoll::wait(&self.set, &mut ready[..], Some(&at_once)) {
                Ok(0) => return Poll::Pending,
                Ok(_) => {}
                Err(Io::INTR) => continue,
                Err(errno) => return Poll::Ready(Err(host("epoll_wait")(errno))),
            }
            let [event] = ready;
            let outcome = match event.data.u64() {
                LISTENING => self.take_one().transpose(),
                number => self.hear(number),
            };
            if let Some(outcome) = outcome {
                return Poll::Ready(outcome);
            }
        }
    }

    /// When the patience with some client is over; `None` when there is none.
    pub fn deadline(&self) -> Option<Instant> {
        // They have come in this order.
        self.greeting.first().and_then(|first| first.begun.checked_add(self.patience))
    }

    /// Takes one TCP connection, and hears what it has sent already. The error for a client that makes
    /// room for it.
    fn take_one(&mut self) -> Result<Option<Incoming>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, address) = match net::acceptfrom_with(&self.listener, flags) {
            Ok(taken) => taken,
            // Nobody, or one whose connection failed before it was taken: Linux tells that here.
            Err(
                Io::AGAIN
                | Io::INTR
                | Io::CONNABORTED
                | Io::PROTO
                | Io::NOPROTOOPT
                | Io::NETDOWN
                | Io::NETUNREACH
                | Io::HOSTDOWN
                | Io::HOSTUNREACH
                | Io::OPNOTSUPP
                | Io::NONET,
            ) => return Ok(None),
            Err(errno) => return Err(host("accept4")(errno)),
        };
        let Some(address) = address.and_then(|address| SocketAddr::try_from(address).ok()) else {
            return Ok(None);
        };
        let (number, begun) = (self.next, Instant::now());
        self.next += 1;
        add(&self.set, socket.as_fd(), number)?;
        self.greeting.push(Greeting { number, wire: Wire::new(socket), address, begun });
        if let Some(heard) = self.hear(number) {
            return heard.map(Some);
        }
        if self.greeting.len() > MOST {
            let problem = ExchangeProblem::Crowded { most: MOST };
            return Err(self.dismiss(0).refuse(problem));
        }
        Ok(None)
    }

    /// Reads what a client has sent; `None` while that is not all.
    fn hear(&mut self, number: u64) -> Option<Result<Incoming>> {
        let at = self.greeting.iter().position(|client| client.number == number)?;
        let record = match self.greeting.get_mut(at)?.wire.receive() {
            Poll::Ready(record) => record,
            Poll::Pending => return None,
        };
        let mut client = self.dismiss(at);
        let problem = match record {
            Ok(ConnectRecord::Request(terms)) => match local_of(&client.wire) {
                Ok(local) => {
                    let Greeting { wire, address, .. } = client;
                    let resolver = self.resolver.clone();
                    return Some(Ok(Incoming { wire, address, local, terms, resolver }));
                }
                Err(errno) => tcp("getsockname", errno),
            },
            Ok(ConnectRecord::Refusal { reason, text }) => refused(reason, &text),
            Ok(other) => {
                let (kind, expected) = (other.kind(), 1);
                ExchangeProblem::Record(RecordError::OutOfTurn { kind, expected })
            }
            Err(problem) => problem,
        };
        Some(Err(client.refuse(problem)))
    }

    /// No longer one that is heard out.
    fn dismiss(&mut self, at: usize) -> Greeting {
        let client = self.greeting.remove(at);
        let _ = epoll::delete(&self.set, &client.wire);
        client
    }
}

impl Greeting {
    /// Tells the client, and the caller.
    fn refuse(&mut self, problem: ExchangeProblem) -> Error {
        let (address, step) = (self.address, ExchangeStep::Request);
        let error = Error::Exchange(Box::new(ExchangeFault { address, step, problem }));
        if let Some(reason) = reason_for(&error) {
            self.wire.refuse(reason, &text_for(&error));
        }
        error
    }
}

impl Incoming {
    /// The client's address on TCP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that the client came to, of this host.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What the client tells: its queue pair, its settings, its private data. What a peer says of itself,
    /// of which only the form was checked.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Connects this queue pair to the client's, within `timeout`: path, RTR, RTS, reply, and then waits
    /// for the client's last word. Receives may be posted before; after this both ends can send.
    ///
    /// # Errors
    ///
    /// As [`Connector::connect`](super::Connector::connect).
    pub fn accept(
        self,
        queue_pair: QueuePair<Init>,
        offer: impl Into<Offer>,
        timeout: Duration,
    ) -> Result<Connected, Failed<Init>> {
        self.start(queue_pair, offer, timeout).wait()
    }

    /// Begins to accept, for a program with a loop of its own. Nothing is done until it is advanced; the
    /// time runs.
    pub fn start(
        self,
        queue_pair: QueuePair<Init>,
        offer: impl Into<Offer>,
        timeout: Duration,
    ) -> Connecting {
        let Incoming { wire, address, local, terms, resolver } = self;
        let offered = (queue_pair, offer.into());
        Connecting::server(&resolver, (wire, local), (address, terms), offered, timeout)
    }

    /// Refuses the client, without waiting: it sees
    /// [`ExchangeProblem::Refused`] with this reason and
    /// as much of the text as there is room for, [`PrivateData::MOST`](super::PrivateData::MOST) bytes.
    pub fn refuse(mut self, reason: RefuseReason, text: &str) {
        self.wire.refuse(reason, text);
    }
}

impl AsFd for Listener {
    /// Readable when [`advance`](Listener::advance) has something to do. Only to wait on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local_addr", &self.local)
            .field("greeting", &self.greeting.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("address", &self.address)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}

fn add(set: &OwnedFd, fd: BorrowedFd<'_>, number: u64) -> Result<()> {
    let data = epoll::EventData::new_u64(number);
    epoll::add(set, fd, data, epoll::EventFlags::IN).map_err(host("epoll_ctl"))
}

fn local_of(wire: &Wire) -> Result<SocketAddr, Io> {
    net::getsockname(wire).and_then(SocketAddr::try_from)
}
