//! The exchange as a state machine, of either end, for whoever blocks or polls.
//!
//! The order is what lets either side send as soon as its call has returned: the server's queue pair can
//! send and receive before the reply leaves, the client's before its last word does, and the server
//! returns when that has come.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno as Io;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use super::reason::{reason_for, text_for};
use super::record::{ConnectRecord, Terms};
use super::wire::{Wire, refused, tcp};
use crate::error::{
    Errno, Error, ExchangeFault, ExchangeProblem, ExchangeStep, RecordError, Result,
};
use crate::trace::event;

/// What is to be connected: a queue pair, or in tests a script.
pub(super) trait End {
    /// What the other end is told; `peer` is what it has told, if it spoke first.
    fn offer(&mut self, local: SocketAddr, peer: Option<&Terms>) -> Result<Terms>;

    /// The path to it, without waiting.
    fn path(&mut self, peer: &Terms) -> Poll<Result<()>>;

    /// What to wait on while there is no path yet.
    fn path_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Lets it send and receive. `mine` is what the other end was, or is now to be, told.
    fn up(&mut self, mine: &mut Terms, peer: &Terms) -> Result<()>;
}

pub(super) struct Machine<E> {
    pub(super) end: E,
    /// The other end.
    pub(super) address: SocketAddr,
    is_client: bool,
    /// Where the client's connection comes from, if that is prescribed.
    from: Option<SocketAddr>,
    local: SocketAddr,
    state: State,
    wire: Option<Wire>,
    mine: Option<Terms>,
    peer: Option<Terms>,
    begun: Instant,
    deadline: Option<Instant>,
    /// How it ended.
    failed: Option<Error>,
    /// One descriptor for all that is waited on, for a loop; and what is in it.
    set: Option<OwnedFd>,
    armed: Option<Want>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing is done.
    New,
    /// The TCP connection.
    Connecting,
    Sending,
    Receiving,
    Path,
    Done,
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Want {
    Read,
    Write,
    Path,
}

/// What an exchange leaves.
pub(super) struct Left<E> {
    pub(super) end: E,
    pub(super) address: SocketAddr,
    pub(super) outcome: Result<(Terms, OwnedFd)>,
}

impl<E: End> Machine<E> {
    /// A client's, which begins with the TCP connection.
    pub(super) fn client(
        end: E,
        address: SocketAddr,
        from: Option<SocketAddr>,
        timeout: Duration,
    ) -> Machine<E> {
        let mut machine = Machine::new(end, address, timeout, address);
        (machine.is_client, machine.from) = (true, from);
        machine
    }

    /// A server's, which has got a request on this connection.
    pub(super) fn server(
        end: E,
        (wire, local): (Wire, SocketAddr),
        (address, request): (SocketAddr, Terms),
        timeout: Duration,
    ) -> Machine<E> {
        let mut machine = Machine::new(end, address, timeout, local);
        (machine.wire, machine.peer) = (Some(wire), Some(request));
        machine
    }

    /// A client's whose TCP connection is there already.
    #[cfg(test)]
    pub(super) fn client_on(
        end: E,
        (wire, local): (Wire, SocketAddr),
        timeout: Duration,
    ) -> Machine<E> {
        let mut machine = Machine::new(end, local, timeout, local);
        (machine.is_client, machine.wire) = (true, Some(wire));
        machine
    }

    fn new(end: E, address: SocketAddr, timeout: Duration, local: SocketAddr) -> Machine<E> {
        let begun = Instant::now();
        Machine {
            end,
            address,
            is_client: false,
            from: None,
            local,
            state: State::New,
            wire: None,
            mine: None,
            peer: None,
            begun,
            // One so far away that it cannot be told is none.
            deadline: begun.checked_add(timeout),
            failed: None,
            set: None,
            armed: None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Does what can be done without waiting, and readies the descriptor.
    pub(super) fn advance(&mut self) -> Poll<()> {
        if self.step().is_pending() {
            match self.arm() {
                Ok(()) => return Poll::Pending,
                Err(error) => self.fail(error),
            }
        }
        Poll::Ready(())
    }

    /// Advances to the end, waiting in between.
    pub(super) fn run(&mut self) {
        while self.step().is_pending() {
            let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let waited = match self.wanted() {
                Some((fd, _, flags)) => {
                    poll(&mut [PollFd::from_borrowed_fd(fd, flags)], left.as_ref())
                }
                None => Err(Io::BADF),
            };
            match waited {
                Ok(_) | Err(Io::INTR) => {}
                Err(errno) => self.fail(host("poll")(errno)),
            }
        }
    }

    /// Takes it apart; what is not done is given up.
    pub(super) fn finish(mut self) -> Left<E> {
        if self.state != State::Done {
            let error = self.fault(ExchangeProblem::Abandoned);
            self.fail(error);
        }
        let abandoned = self.fault(ExchangeProblem::Abandoned);
        let outcome = match (self.failed, self.peer, self.wire) {
            (None, Some(peer), Some(wire)) => Ok((peer, wire.into_socket())),
            (failed, ..) => Err(failed.unwrap_or(abandoned)),
        };
        Left { end: self.end, address: self.address, outcome }
    }

    fn step(&mut self) -> Poll<()> {
        while self.state != State::Done {
            if self.deadline.is_some_and(|at| Instant::now() >= at) {
                let waited = self.begun.elapsed();
                let error = self.fault(ExchangeProblem::TimedOut { waited });
                self.fail(error);
                break;
            }
            match self.progress() {
                Poll::Ready(Ok(next)) => {
                    event!(debug, peer = %self.address, from = ?self.state, to = ?next, "exchange");
                    if next == State::Done {
                        event!(info, peer = %self.address, "connected");
                    }
                    self.state = next;
                }
                Poll::Ready(Err(error)) => self.fail(error),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// One state further.
    fn progress(&mut self) -> Poll<Result<State>> {
        let next = match self.state {
            State::New if self.wire.is_none() => self.open(),
            State::New => self.offer(),
            State::Connecting => return self.connected(),
            State::Sending => match self.with_wire(Wire::send) {
                Poll::Ready(Ok(())) => Ok(self.after_sending()),
                Poll::Ready(Err(error)) => Err(error),
                Poll::Pending => return Poll::Pending,
            },
            State::Receiving => match self.with_wire(Wire::receive) {
                Poll::Ready(Ok(record)) => self.received(&record),
                Poll::Ready(Err(error)) => Err(error),
                Poll::Pending => return Poll::Pending,
            },
            State::Path => return self.path(),
            State::Done => Ok(State::Done),
        };
        Poll::Ready(next)
    }

    /// The client's socket.
    fn open(&mut self) -> Result<State> {
        let family = match self.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None);
        let socket = socket.map_err(host("socket"))?;
        if let Some(from) = &self.from {
            net::bind(&socket, from).map_err(|errno| self.fault(tcp("bind", errno)))?;
        }
        let begun = net::connect(&socket, &self.address);
        self.wire = Some(Wire::new(socket));
        match begun {
            Ok(()) | Err(Io::INPROGRESS | Io::INTR) => Ok(State::Connecting),
            Err(errno) => Err(self.fault(tcp("connect", errno))),
        }
    }

    /// Whether the TCP connection is there; then the request.
    fn connected(&mut self) -> Poll<Result<State>> {
        let Some(wire) = &self.wire else { return Poll::Ready(Err(self.closed())) };
        let mut asked = [PollFd::new(wire, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut asked, Some(&at_once)) {
            Ok(0) | Err(Io::INTR) => return Poll::Pending,
            Ok(_) => {}
            Err(errno) => return Poll::Ready(Err(host("poll")(errno))),
        }
        match net::sockopt::socket_error(wire) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => {
                return Poll::Ready(Err(self.fault(tcp("connect", errno))));
            }
        }
        let local = net::getsockname(wire).and_then(SocketAddr::try_from);
        Poll::Ready(match local {
            Ok(local) => {
                self.local = local;
                self.offer()
            }
            Err(errno) => Err(host("getsockname")(errno)),
        })
    }

    /// What the other end is told: by a client at once, by a server when its queue pair is connected.
    fn offer(&mut self) -> Result<State> {
        let mine = self.end.offer(self.local, self.peer.as_ref())?;
        self.mine = Some(mine);
        if !self.is_client {
            return Ok(State::Path);
        }
        self.put(&ConnectRecord::Request(mine));
        Ok(State::Sending)
    }

    fn after_sending(&self) -> State {
        match (self.is_client, self.peer.is_some()) {
            (true, true) => State::Done,
            _ => State::Receiving,
        }
    }

    fn received(&mut self, record: &ConnectRecord) -> Result<State> {
        match (record, self.is_client) {
            (ConnectRecord::Refusal { reason, text }, _) => Err(self.fault(refused(*reason, text))),
            (ConnectRecord::Reply(terms), true) => {
                self.peer = Some(*terms);
                Ok(State::Path)
            }
            (ConnectRecord::Ready, false) => Ok(State::Done),
            (record, is_client) => {
                let expected = if is_client { 2 } else { 3 };
                let error = RecordError::OutOfTurn { kind: record.kind(), expected };
                Err(self.fault(ExchangeProblem::Record(error)))
            }
        }
    }

    /// The path, and what is sent when the queue pair is connected.
    fn path(&mut self) -> Poll<Result<State>> {
        let (Some(mut mine), Some(peer)) = (self.mine, self.peer) else {
            return Poll::Ready(Err(self.closed()));
        };
        match self.end.path(&peer) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let up = self.end.up(&mut mine, &peer).and_then(|()| self.is_still_there());
        Poll::Ready(up.map(|()| {
            self.put(&match self.is_client {
                true => ConnectRecord::Ready,
                false => ConnectRecord::Reply(mine),
            });
            State::Sending
        }))
    }

    /// Before the client's last word, after which nothing is heard any more: whether the server has not given
    /// up meanwhile. It was not listened to while the path was looked for.
    fn is_still_there(&mut self) -> Result<()> {
        let wire = self.wire.as_mut().filter(|_| self.is_client);
        match wire.and_then(Wire::end_of_other) {
            Some(problem) => Err(self.fault(problem)),
            None => Ok(()),
        }
    }

    fn put(&mut self, record: &ConnectRecord) {
        if let Some(wire) = &mut self.wire {
            wire.put(record);
        }
    }

    fn with_wire<T>(
        &mut self,
        with: impl FnOnce(&mut Wire) -> Poll<Result<T, ExchangeProblem>>,
    ) -> Poll<Result<T>> {
        let Some(wire) = &mut self.wire else { return Poll::Ready(Err(self.closed())) };
        with(wire).map(|done| done.map_err(|problem| self.fault(problem)))
    }

    fn fail(&mut self, error: Error) {
        event!(warn, peer = %self.address, %error, "not connected");
        if let (Some(wire), Some(reason)) = (&mut self.wire, reason_for(&error)) {
            wire.refuse(reason, &text_for(&error));
        }
        (self.state, self.failed, self.wire) = (State::Done, Some(error), None);
    }

    fn fault(&self, problem: ExchangeProblem) -> Error {
        let step = match (self.state, self.is_client) {
            (State::New | State::Connecting, true) => ExchangeStep::Connect,
            (State::New | State::Path, _) => ExchangeStep::Path,
            (State::Sending, true) if self.peer.is_none() => ExchangeStep::Request,
            (State::Sending, true) | (State::Receiving, false) => ExchangeStep::Ready,
            _ => ExchangeStep::Reply,
        };
        Error::Exchange(Box::new(ExchangeFault { address: self.address, step, problem }))
    }

    fn closed(&self) -> Error {
        self.fault(ExchangeProblem::Closed { received: 0 })
    }

    /// What the present state waits for.
    fn wanted(&self) -> Option<(BorrowedFd<'_>, Want, PollFlags)> {
        let wire = self.wire.as_ref().map(Wire::as_fd);
        match self.state {
            State::Path => Some((self.end.path_fd()?, Want::Path, PollFlags::IN)),
            State::Receiving => Some((wire?, Want::Read, PollFlags::IN)),
            _ => Some((wire?, Want::Write, PollFlags::OUT)),
        }
    }

    /// Puts what is waited for, and nothing else, into the set.
    fn arm(&mut self) -> Result<()> {
        if self.set.is_none() {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC);
            self.set = Some(set.map_err(host("epoll_create1"))?);
        }
        let (Some(set), Some((fd, want, _))) = (&self.set, self.wanted()) else { return Ok(()) };
        if self.armed == Some(want) {
            return Ok(());
        }
        // A path's descriptor left the set when it was closed.
        if let (Some(Want::Read | Want::Write), Some(wire)) = (self.armed, &self.wire) {
            let _ = epoll::delete(set, wire);
        }
        let flags =
            if want == Want::Write { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        epoll::add(set, fd, epoll::EventData::new_u64(0), flags).map_err(host("epoll_ctl"))?;
        self.armed = Some(want);
        Ok(())
    }
}

impl<E> Machine<E> {
    /// What a loop waits on, once it has been pending.
    pub(super) fn set(&self) -> Option<BorrowedFd<'_>> {
        self.set.as_ref().map(AsFd::as_fd)
    }
}

/// A failed call that concerns the host.
pub(super) fn host(call: &'static str) -> impl Fn(Io) -> Error {
    move |errno| Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
}
