//! The server: accepts what comes, and closes what has ended.

use std::collections::HashMap;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Instant;

use rdma_verbs::{
    ConnectOptions, Connecting, DeviceList, Error, GidDirectory, Incoming, InitOptions, Listener,
    QueuePair, RefuseReason, Resolver, Rts,
};

use super::super::options::{Deadline, Options};
use super::super::parts::Parts;
use super::super::{Served, TICK, text};
use super::Finder;
use super::waiting::Waiting;

/// The listener's number; clients have others.
const LISTENER: usize = 0;

pub(crate) struct Server {
    listener: Listener,
    finder: Finder,
    directory: GidDirectory,
}

#[allow(clippy::large_enum_variant)] // most are of the larger kind, most of the time
enum Client {
    Connecting(Box<Connecting>),
    Connected(Box<QueuePair<Rts>>, TcpStream),
}

struct Clients<'a> {
    options: &'a Options,
    deadline: Deadline,
    waiting: Waiting,
    all: HashMap<usize, Client>,
    next: usize,
    parts: HashMap<usize, Parts>,
    served: Served,
}

impl Server {
    pub(crate) fn new(at: SocketAddr) -> Result<Server, String> {
        let directory = GidDirectory::open().map_err(text)?;
        let resolver = Resolver::open(&directory).map_err(text)?;
        let finder = Finder::new(&directory, &resolver);
        let listener = Listener::bind(at, &resolver).map_err(text)?;
        Ok(Server { listener, finder, directory })
    }

    /// The port, chosen by the kernel where 0 was asked for.
    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().port()
    }

    /// Until as many have come and gone, or `stop` says so.
    pub(crate) fn serve(
        mut self,
        options: &Options,
        deadline: Deadline,
        stop: &AtomicBool,
    ) -> Result<Served, String> {
        let waiting = Waiting::new()?;
        waiting.add(&self.listener, LISTENER)?;
        let (all, parts) = (HashMap::new(), HashMap::new());
        let served = Served::default();
        let mut clients =
            Clients { options, deadline, waiting, all, next: LISTENER + 1, parts, served };
        while clients.served.count < options.connections && !stop.load(Ordering::Relaxed) {
            if deadline.is_over() {
                return Err(clients.served.too_few(options));
            }
            let ready = clients.waiting.wait(TICK)?;
            if ready.is_empty() {
                clients.expire();
                self.take_all(&mut clients)?;
            }
            for number in ready {
                match number {
                    LISTENER => self.take_all(&mut clients)?,
                    number => clients.go_on(number),
                }
            }
        }
        Ok(clients.served)
    }

    /// Whoever wants to be connected.
    fn take_all(&mut self, clients: &mut Clients<'_>) -> Result<(), String> {
        while let Poll::Ready(came) = self.listener.advance() {
            let incoming = match came {
                Ok(incoming) => incoming,
                Err(error @ Error::Host { .. }) => return Err(text(error)),
                Err(error) => {
                    clients.served.failed(&text(error));
                    continue;
                }
            };
            if let Err(error) = self.begin(clients, incoming) {
                clients.served.failed(&error);
            }
        }
        Ok(())
    }

    /// From the address that the client came to.
    fn begin(&self, clients: &mut Clients<'_>, incoming: Incoming) -> Result<(), String> {
        let place = match self.finder.find(incoming.local_addr().ip()) {
            Ok(place) => place,
            Err(error) => {
                // What this host has is none of the client's business.
                incoming.refuse(RefuseReason::NO_SOURCE, "no RDMA device has that address");
                return Err(text(error));
            }
        };
        if !clients.parts.contains_key(&place.device) {
            let snapshot = self.directory.cached();
            let device = snapshot.devices().get(place.device).ok_or("the device has gone")?;
            let list = DeviceList::new().map_err(text)?;
            let context = list.find(device.name()).and_then(|device| device.open());
            let made = context.and_then(|it| Parts::new(it, clients.options.connections));
            clients.parts.insert(place.device, made.map_err(text)?);
        }
        let parts = clients.parts.get_mut(&place.device).ok_or("a device without parts")?;
        let queue_pair = parts.queue_pair().map_err(text)?;
        let queue_pair = queue_pair.init(&InitOptions::new(place.row.port())).map_err(text)?;
        let options = ConnectOptions::new(&place.row);
        let mut connecting = incoming.start(queue_pair, options, clients.deadline.step());
        if connecting.advance().is_ready() {
            return clients.connected(connecting);
        }
        let number = clients.number();
        clients.waiting.add(&connecting, number)?;
        clients.all.insert(number, Client::Connecting(Box::new(connecting)));
        Ok(())
    }
}

impl Clients<'_> {
    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn connected(&mut self, connecting: Connecting) -> Result<(), String> {
        let connected = connecting.finish().map_err(text)?;
        let (queue_pair, stream) = (connected.queue_pair, connected.stream);
        stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        let number = self.number();
        self.waiting.add(&stream, number)?;
        self.all.insert(number, Client::Connected(Box::new(queue_pair), stream));
        Ok(())
    }

    /// One that has something to say.
    fn go_on(&mut self, number: usize) {
        match self.all.remove(&number) {
            Some(Client::Connecting(mut connecting)) => {
                if connecting.advance().is_pending() {
                    self.all.insert(number, Client::Connecting(connecting));
                    return;
                }
                self.waiting.remove(&connecting);
                if let Err(error) = self.connected(*connecting) {
                    self.served.failed(&error);
                }
            }
            Some(Client::Connected(queue_pair, mut stream)) => match stream.read(&mut [0; 1]) {
                Ok(1..) => {
                    self.all.insert(number, Client::Connected(queue_pair, stream));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.all.insert(number, Client::Connected(queue_pair, stream));
                }
                _ => {
                    drop(queue_pair);
                    self.served.count += 1;
                }
            },
            None => {}
        }
    }

    /// Those whose time is over.
    fn expire(&mut self) {
        let now = Instant::now();
        let late = self.all.iter().filter_map(|(number, client)| match client {
            Client::Connecting(it) if it.deadline().is_some_and(|at| at <= now) => Some(*number),
            _ => None,
        });
        let late: Vec<usize> = late.collect();
        late.into_iter().for_each(|number| self.go_on(number));
    }
}
