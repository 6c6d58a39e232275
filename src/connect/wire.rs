//! Records on a stream socket that never waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;

use rustix::io::Errno as Io;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::record::{ConnectRecord, PrivateData, check_prefix};
use crate::error::{Errno, ExchangeProblem};
use crate::types::RefuseReason;

/// How often what is still unread is read away before a connection is closed.
const MOST_DRAINED: usize = 16;

/// A connection that records travel on, one at a time in each direction.
pub(super) struct Wire {
    socket: OwnedFd,
    out: [u8; ConnectRecord::LEN],
    sent: usize,
    into: [u8; ConnectRecord::LEN],
    received: usize,
}

impl Wire {
    /// On a stream socket that does not block.
    pub(super) fn new(socket: OwnedFd) -> Wire {
        let none = [0; ConnectRecord::LEN];
        Wire { socket, out: none, sent: ConnectRecord::LEN, into: none, received: 0 }
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// What [`send`](Wire::send) is to send next.
    pub(super) fn put(&mut self, record: &ConnectRecord) {
        (self.out, self.sent) = (record.to_bytes(), 0);
    }

    /// Sends what was put.
    pub(super) fn send(&mut self) -> Poll<Result<(), ExchangeProblem>> {
        while let Some(left) = self.out.get(self.sent..).filter(|left| !left.is_empty()) {
            match send(&self.socket, left, SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Io::INTR) => {}
                Err(Io::AGAIN) => return Poll::Pending,
                Err(errno) => {
                    // Perhaps the other end has said why it closed.
                    let told = match self.receive() {
                        Poll::Ready(Ok(ConnectRecord::Refusal { reason, text })) => {
                            refused(reason, &text)
                        }
                        _ => tcp("send", errno),
                    };
                    return Poll::Ready(Err(told));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next record, when all of it has come; no more than it is read.
    pub(super) fn receive(&mut self) -> Poll<Result<ConnectRecord, ExchangeProblem>> {
        while let Some(room) = self.into.get_mut(self.received..).filter(|room| !room.is_empty()) {
            match recv(&self.socket, room, RecvFlags::empty()) {
                Ok((_, 0)) => {
                    let received = self.received;
                    return Poll::Ready(Err(ExchangeProblem::Closed { received }));
                }
                Ok((_, count)) => {
                    self.received += count;
                    // Another protocol need not send as much as a record.
                    let begin = self.into.get(..self.received).unwrap_or(&self.into);
                    if let Err(error) = check_prefix(begin) {
                        return Poll::Ready(Err(ExchangeProblem::Record(error)));
                    }
                }
                Err(Io::INTR) => {}
                Err(Io::AGAIN) => return Poll::Pending,
                Err(errno) => return Poll::Ready(Err(tcp("recv", errno))),
            }
        }
        self.received = 0;
        Poll::Ready(ConnectRecord::parse(&self.into).map_err(ExchangeProblem::Record))
    }

    /// What the other end has said already, where it has nothing to say but that it ends; what else it may
    /// have sent stays for later.
    pub(super) fn end_of_other(&mut self) -> Option<ExchangeProblem> {
        let mut said = [0; ConnectRecord::LEN];
        match recv(&self.socket, &mut said, RecvFlags::PEEK) {
            Ok((_, 0)) => Some(ExchangeProblem::Closed { received: 0 }),
            Ok((_, ConnectRecord::LEN)) => match ConnectRecord::parse(&said) {
                Ok(ConnectRecord::Refusal { reason, text }) => Some(refused(reason, &text)),
                _ => None,
            },
            Ok(_) | Err(Io::AGAIN | Io::INTR) => None,
            Err(errno) => Some(tcp("recv", errno)),
        }
    }

    /// Tells the other end why it ends, as far as that can be done without waiting.
    pub(super) fn refuse(&mut self, reason: RefuseReason, text: &str) {
        // Behind half a record it would not be understood.
        if (1..ConnectRecord::LEN).contains(&self.sent) {
            return;
        }
        self.put(&ConnectRecord::Refusal { reason, text: PrivateData::text(text) });
        let _ = self.send();
        // What is closed with something unread is reset, and what was sent last is lost by it.
        let _ = shutdown(&self.socket, Shutdown::Write);
        for _ in 0..MOST_DRAINED {
            match recv(&self.socket, &mut self.into, RecvFlags::empty()) {
                Ok((_, 1..)) => {}
                _ => break,
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) fn refused(reason: RefuseReason, text: &PrivateData) -> ExchangeProblem {
    ExchangeProblem::Refused { reason, text: text.as_text().into() }
}

pub(super) fn tcp(call: &'static str, errno: Io) -> ExchangeProblem {
    ExchangeProblem::Tcp { call, errno: Errno::from_raw(errno.raw_os_error()) }
}
