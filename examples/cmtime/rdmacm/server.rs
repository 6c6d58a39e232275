//! The server: accepts what comes, and agrees to its end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::RemoteAccess;
use rdma_verbs::cm::{
    Accepting, Connected, ConnectionParams, ConnectionRequest, EventChannel, Listener,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::options::{Deadline, Options};
use super::super::parts::Parts;
use super::super::{Served, TICK, text};

/// As many requests may wait as the kernel allows.
const BACKLOG: u32 = 65_535;

pub(crate) struct Server {
    channel: EventChannel,
    listener: Listener,
}

/// What came, the oldest first. Only the first of each is asked for: the others' events wait with them.
#[derive(Default)]
struct Clients {
    parts: Vec<Parts>,
    accepting: VecDeque<(Instant, Accepting)>,
    connected: VecDeque<Connected>,
    served: Served,
}

impl Server {
    pub(crate) fn new(at: SocketAddr) -> Result<Server, String> {
        let channel = EventChannel::new().map_err(text)?;
        let listener = channel.listen(at, BACKLOG).map_err(text)?;
        Ok(Server { channel, listener })
    }

    /// The port, chosen by the kernel where 0 was asked for.
    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |at| at.port())
    }

    /// Until as many have come and gone, or `stop` says so.
    pub(crate) fn serve(
        self,
        options: &Options,
        deadline: Deadline,
        stop: &AtomicBool,
    ) -> Result<Served, String> {
        let mut clients = Clients::default();
        while clients.served.count < options.connections && !stop.load(Ordering::Relaxed) {
            if deadline.is_over() {
                return Err(clients.served.too_few(options));
            }
            let tick = Timespec::try_from(TICK).ok();
            match poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], tick.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(format!("poll: {errno}")),
            }
            self.channel.process_events().map_err(text)?;
            while let Some(request) = self.listener.accept(Duration::ZERO).map_err(text)? {
                match clients.accept(request, options) {
                    Ok(accepting) => clients.accepting.push_back((Instant::now(), accepting)),
                    Err(error) => clients.served.failed(&error),
                }
            }
            clients.go_on(deadline)?;
        }
        Ok(clients.served)
    }
}

impl Clients {
    fn accept(
        &mut self,
        request: ConnectionRequest,
        options: &Options,
    ) -> Result<Accepting, String> {
        let known =
            self.parts.iter().position(|parts| request.device().is(parts.context().device()));
        let at = match known {
            Some(at) => at,
            None => {
                let context = request.context().map_err(text)?;
                self.parts.push(Parts::new(context, options.connections).map_err(text)?);
                self.parts.len() - 1
            }
        };
        let queue_pair = self.parts[at].queue_pair().map_err(text)?;
        let ready = request.init(queue_pair, RemoteAccess::default()).map_err(text)?;
        request.accept(ready, &ConnectionParams::new()).map_err(text)
    }

    fn go_on(&mut self, deadline: Deadline) -> Result<(), String> {
        while let Some((since, first)) = self.accepting.front() {
            let ready = first.ready(Duration::ZERO).map_err(text)?;
            if !ready && since.elapsed() < deadline.step() {
                break;
            }
            let Some((_, first)) = self.accepting.pop_front() else { break };
            match first.wait(Duration::ZERO) {
                Ok(connected) => self.connected.push_back(connected),
                Err(error) => self.served.failed(&text(error)),
            }
        }
        while let Some(first) = self.connected.front() {
            if !first.connection.is_disconnected().map_err(text)? {
                break;
            }
            let Some(Connected { connection, queue_pair, .. }) = self.connected.pop_front() else {
                break;
            };
            match connection.disconnect() {
                Ok(()) => self.served.count += 1,
                Err(error) => self.served.failed(&text(error)),
            }
            drop(queue_pair);
        }
        Ok(())
    }
}
