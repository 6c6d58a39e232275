//! Why queue pairs could not be connected over TCP.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::Errno;
use crate::types::{Gid, RefuseReason};

/// An exchange over TCP that did not end with two connected queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExchangeFault {
    /// The other end; at the step [`Listen`](ExchangeStep::Listen) this end's own address.
    pub address: SocketAddr,
    /// How far it was.
    pub step: ExchangeStep,
    /// What is wrong.
    pub problem: ExchangeProblem,
}

/// How far an exchange was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ExchangeStep {
    /// A listener: its own address, or that nobody came.
    Listen,
    /// The client's TCP connection.
    Connect,
    /// The client's request: sent by the client, awaited by the listener.
    Request,
    /// The server's reply: sent by the server, awaited by the client.
    Reply,
    /// The path, and the queue pair's way to RTS.
    Path,
    /// The client's last word: sent by the client, awaited by the server.
    Ready,
}

/// What is wrong with an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExchangeProblem {
    /// A call on the TCP connection failed: `ECONNREFUSED` where nobody listens, `EADDRINUSE` where
    /// somebody else does.
    Tcp {
        /// The system call.
        call: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// The time was over.
    TimedOut {
        /// How long was waited.
        waited: Duration,
    },
    /// The other end closed the connection without a word of why.
    Closed {
        /// How many bytes of its record had come.
        received: usize,
    },
    /// What the other end sent makes no sense.
    Record(RecordError),
    /// The other end refused.
    Refused {
        /// Why.
        reason: RefuseReason,
        /// Why in its own words; may be empty.
        text: Box<str>,
    },
    /// What the two ends have does not go together.
    Unlike {
        /// What this end has.
        ours: Box<str>,
        /// What the other end has.
        theirs: Box<str>,
    },
    /// More clients at a time than a listener hears out: this one had been silent for longest.
    Crowded {
        /// How many at a time.
        most: usize,
    },
    /// It was given up before it was done.
    Abandoned,
}

/// Why the bytes of a record were not accepted. See [`ConnectRecord`](crate::ConnectRecord).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It does not begin as a record does: another protocol.
    #[error("not a record of this protocol: it begins with {0:02x?}")]
    Magic([u8; 8]),
    /// A version that this crate does not know.
    #[error("version {theirs} of the record; this end knows {ours}")]
    Version {
        /// The other end's.
        theirs: u16,
        /// This end's.
        ours: u16,
    },
    /// A kind that there is none of in this version.
    #[error("a record of kind {0}")]
    Kind(u8),
    /// A record of a kind that has no place where it came.
    #[error("a record of kind {kind} where one of kind {expected} was to come")]
    OutOfTurn {
        /// Its kind.
        kind: u8,
        /// The kind that was to come.
        expected: u8,
    },
    /// Bits that are to be zero are not.
    #[error("bits at byte {at} that are to be zero")]
    Reserved {
        /// Where, from 0.
        at: usize,
    },
    /// A queue pair number of more than 24 bits, or one that cannot be connected to (0 and 1).
    #[error("queue pair number {0:#x}: it is to be 0x2 to 0xffffff")]
    Qpn(u32),
    /// A packet sequence number of more than 24 bits.
    #[error("packet sequence number {0:#x}: it has 24 bits")]
    Psn(u32),
    /// A GID that is zero, or none where there is to be one.
    #[error("the GID is zero")]
    ZeroGid,
    /// A GID that is no host's address: a group's, loopback's, or one where there is to be none.
    #[error("GID {0} cannot be a queue pair's")]
    Gid(Gid),
    /// A type of GID that there is none of in this version.
    #[error("a GID of type {0}")]
    GidType(u8),
    /// A LID that is no port's, or one where there is to be none.
    #[error("LID {0:#x} cannot be a port's")]
    Lid(u16),
    /// A code of an MTU outside 1 to 5.
    #[error("MTU code {0}: it is to be 1 to 5")]
    Mtu(u8),
    /// A number of a setting beyond what it can be.
    #[error("{what} is {value}: it is to be 0 to {most}")]
    Setting {
        /// Which.
        what: &'static str,
        /// What it is.
        value: u8,
        /// What it can be.
        most: u8,
    },
    /// A reason that is no reason: 0.
    #[error("a refusal without a reason")]
    NoReason,
    /// A refusal whose words are no UTF-8, or hold control characters.
    #[error("a refusal whose text is none")]
    Text,
}

impl fmt::Display for ExchangeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExchangeStep::Listen => "listening",
            ExchangeStep::Connect => "the TCP connection",
            ExchangeStep::Request => "the request",
            ExchangeStep::Reply => "the reply",
            ExchangeStep::Path => "the path",
            ExchangeStep::Ready => "the last word",
        })
    }
}

impl fmt::Display for ExchangeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.address, self.step)?;
        match &self.problem {
            ExchangeProblem::Tcp { call, errno } => write!(f, "{call}: {errno}"),
            ExchangeProblem::TimedOut { waited } if self.step == ExchangeStep::Listen => {
                write!(f, "nobody came within {waited:?}")
            }
            ExchangeProblem::TimedOut { waited } => write!(f, "not done within {waited:?}"),
            ExchangeProblem::Closed { received: 0 } => {
                f.write_str("the other end closed the connection")
            }
            ExchangeProblem::Closed { received } => {
                write!(f, "the other end closed the connection after {received} bytes of a record")
            }
            ExchangeProblem::Record(error) => error.fmt(f),
            ExchangeProblem::Refused { reason, text } if text.is_empty() => {
                write!(f, "refused: {reason}")
            }
            ExchangeProblem::Refused { reason, text } => write!(f, "refused: {reason}: {text}"),
            ExchangeProblem::Unlike { ours, theirs } => {
                write!(f, "this end has {ours}, the other {theirs}: they do not go together")
            }
            ExchangeProblem::Crowded { most } => {
                write!(f, "silent for longest of {most} clients, and more came")
            }
            ExchangeProblem::Abandoned => f.write_str("given up before it was done"),
        }
    }
}

impl std::error::Error for ExchangeFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            ExchangeProblem::Tcp { errno, .. } => Some(errno),
            ExchangeProblem::Record(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_peer_the_step_and_the_reason() {
        let address = SocketAddr::from(([192, 0, 2, 1], 7471));
        let text = |step, problem| ExchangeFault { address, step, problem }.to_string();
        let refused =
            |text: &str| ExchangeProblem::Refused { reason: RefuseReason::BUSY, text: text.into() };
        assert_eq!(
            text(ExchangeStep::Reply, refused("")),
            "192.0.2.1:7471: the reply: refused: no room for another connection"
        );
        assert!(text(ExchangeStep::Reply, refused("64 there")).ends_with("connection: 64 there"));
        let waited = Duration::from_secs(2);
        assert_eq!(
            text(ExchangeStep::Listen, ExchangeProblem::TimedOut { waited }),
            "192.0.2.1:7471: listening: nobody came within 2s"
        );
        assert_eq!(
            text(ExchangeStep::Request, ExchangeProblem::Closed { received: 7 }),
            "192.0.2.1:7471: the request: the other end closed the connection after 7 bytes of a record"
        );
        let version = RecordError::Version { theirs: 2, ours: 1 };
        assert!(
            text(ExchangeStep::Reply, ExchangeProblem::Record(version)).contains("version 2 of")
        );
    }
}
