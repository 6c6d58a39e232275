//! The TCP connection by which the two ends of an example find each other, as the C program of the same
//! purpose has it; and the deadline of what is waited for.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Why the two ends did not find each other.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// There is nobody, or no such host, or the port is taken.
    #[error("{what}: {error}")]
    Network { what: String, error: std::io::Error },
    /// It went away before it had said everything.
    #[error("the peer closed the connection after {came} of {wanted} bytes of {what}")]
    Closed { what: &'static str, came: usize, wanted: usize },
    /// It went away and does not listen.
    #[error("the peer closed the connection before it heard {what}")]
    Gone { what: &'static str },
    /// What it said is not what the C program says.
    #[error("the peer is no {}: instead of {what} it sent {text:?}", super::C_PROGRAM)]
    Garbage { what: &'static str, text: String },
    /// The time is over.
    #[error("{what} did not come within {after:?} (--timeout)")]
    TimedOut { what: &'static str, after: Duration },
}

/// The connection to the other end.
pub(crate) struct Peer {
    stream: TcpStream,
    deadline: Deadline,
}

/// Opens the port to the client, on all addresses.
pub(crate) fn listen(port: u16) -> Result<TcpListener, ExchangeError> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|error| match error {
        // Taken: it would be for the other family too. Else there is no IPv6 here.
        error if error.kind() == ErrorKind::AddrInUse => Err(error),
        _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
    });
    listener.map_err(|error| network(format!("TCP port {port}"), error))
}

/// Waits for the client.
pub(crate) fn accept(listener: &TcpListener, deadline: Deadline) -> Result<Peer, ExchangeError> {
    let failed = |error| network("waiting for the client".into(), error);
    loop {
        let left = deadline.left();
        if left.is_zero() {
            return Err(ExchangeError::TimedOut { what: "a client", after: deadline.after() });
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(Peer { stream: listener.accept().map_err(failed)?.0, deadline }),
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

/// Goes to the server.
pub(crate) fn connect(host: &str, port: u16, deadline: Deadline) -> Result<Peer, ExchangeError> {
    let failed = |error| network(format!("{host}, TCP port {port}"), error);
    let mut last = ErrorKind::NotFound.into();
    for address in (host, port).to_socket_addrs().map_err(failed)? {
        let left = deadline.left();
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(Peer { stream, deadline }),
            Err(error) => last = error,
        }
    }
    if deadline.left().is_zero() {
        return Err(ExchangeError::TimedOut { what: "the server", after: deadline.after() });
    }
    Err(failed(last))
}

impl Peer {
    /// The other end's address, where it tells something: not that of this host to itself.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        let ip = self.stream.peer_addr().ok()?.ip().to_canonical();
        (!ip.is_loopback()).then_some(ip)
    }

    /// Waits until the other end has what it wants too, which it tells by closing; C's does at once.
    pub(crate) fn part(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        while self.read("the peer's end", &mut [0]).is_ok() {}
    }

    /// Tells all of these bytes, which are few.
    pub(crate) fn write(&mut self, what: &'static str, bytes: &[u8]) -> Result<(), ExchangeError> {
        // Fewer than fit into any socket: it cannot block.
        self.stream.write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ExchangeError::Gone { what },
            _ => network(format!("telling {what}"), error),
        })
    }

    /// Hears as many bytes as there is room for, by the deadline.
    pub(crate) fn read(
        &mut self,
        what: &'static str,
        bytes: &mut [u8],
    ) -> Result<(), ExchangeError> {
        let (mut came, wanted) = (0, bytes.len());
        while came < wanted {
            let (left, after) = (self.deadline.left(), self.deadline.after());
            if left.is_zero() {
                return Err(ExchangeError::TimedOut { what, after });
            }
            let read = self
                .stream
                .set_read_timeout(Some(left))
                .and_then(|()| self.stream.read(&mut bytes[came..]));
            match read {
                Ok(0) => return Err(ExchangeError::Closed { what, came, wanted }),
                Ok(more) => came += more,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(ExchangeError::Closed { what, came, wanted });
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(network(format!("hearing {what}"), error)),
                },
            }
        }
        Ok(())
    }
}

fn network(what: String, error: std::io::Error) -> ExchangeError {
    ExchangeError::Network { what, error }
}

pub(crate) fn garbage(what: &'static str, bytes: &[u8]) -> ExchangeError {
    ExchangeError::Garbage { what, text: String::from_utf8_lossy(bytes).into_owned() }
}

/// When all must be over.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    end: Instant,
    after: Duration,
}

impl Deadline {
    pub(crate) fn new(after: Duration) -> Deadline {
        Deadline { end: Instant::now() + after, after }
    }

    /// The time that is left; none of it when it is over.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// How long it was at first.
    pub(crate) fn after(&self) -> Duration {
        self.after
    }
}
