//! What the connection manager could not do.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::Errno;
use crate::types::{CmEventType, RejectReason};

/// Something that the connection manager could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmFault {
    /// The C function, `rdma_connect` and its like.
    pub call: &'static str,
    /// This side's address, where it is known.
    pub local: Option<SocketAddr>,
    /// The peer's, where it is known.
    pub peer: Option<SocketAddr>,
    /// Why.
    pub reason: CmReason,
}

/// Why the connection manager could not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmReason {
    /// Somebody has the port on that address already; see
    /// [`reuse_addr`](crate::cm::Id::set_reuse_addr).
    AddressInUse,
    /// The address could not be resolved: the neighbour did not answer in time.
    NoAnswer,
    /// The peer did not answer the request for a connection.
    Unreachable(Errno),
    /// The peer, or its connection manager, refused.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What the peer says besides, as it was received: padded with zeros to
        /// [`MAX_IN_REJECT`](crate::cm::MAX_IN_REJECT) bytes.
        private_data: Box<[u8]>,
    },
    /// The connection ended before it was made.
    Disconnected,
    /// The device is to be removed: drop what is made on it.
    DeviceRemoved,
    /// The time was over; the step may still end, but nobody waits for it any more.
    TimedOut {
        /// How long was waited.
        waited: Duration,
    },
    /// The call failed.
    Failed(Errno),
    /// An event told of a failure.
    Event {
        /// Which.
        kind: CmEventType,
        /// Its status: of most, an errno, negative.
        status: i32,
    },
}

impl fmt::Display for CmFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if let Some(local) = self.local.filter(|local| self.peer.is_none() || local.port() != 0) {
            write!(f, " from {local}")?;
        }
        if let Some(peer) = self.peer {
            write!(f, " to {peer}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl fmt::Display for CmReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CmReason::AddressInUse => f.write_str("the port is in use there"),
            CmReason::NoAnswer => f.write_str(
                "the address could not be resolved in time: the neighbour, or the router, does not answer",
            ),
            CmReason::Unreachable(errno) => {
                write!(f, "the peer does not answer the request for a connection ({errno:?})")
            }
            CmReason::Rejected { reason, private_data } => {
                write!(f, "{} ({reason}, {})", why_rejected(*reason), reason.raw())?;
                match private_data.iter().rposition(|byte| *byte != 0) {
                    Some(last) => write!(f, ", with {} bytes of private data", last + 1),
                    None => Ok(()),
                }
            }
            CmReason::Disconnected => f.write_str("the peer ended it before it was made"),
            CmReason::DeviceRemoved => f.write_str("the device is to be removed"),
            CmReason::TimedOut { waited } => write!(f, "not done within {waited:?}"),
            CmReason::Failed(errno) => write!(f, "{errno}{}", hint(*errno)),
            CmReason::Event { kind, status } => {
                write!(f, "{kind} with status {status}")?;
                match status {
                    ..0 => write!(f, ", {}", Errno::from_raw(status.saturating_neg())),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// What a refusal means.
fn why_rejected(reason: RejectReason) -> &'static str {
    match reason {
        RejectReason::CONSUMER_DEFINED => "the peer's program refused, or went away",
        RejectReason::INVALID_SERVICE_ID => "nobody listens on that port there",
        RejectReason::STALE_CONN => "the peer believes that the queue pair is connected already",
        RejectReason::TIMEOUT => "the peer waited in vain for an answer",
        RejectReason::NO_RESOURCES | RejectReason::NO_QP => "the peer has no resources for it",
        RejectReason::INSUFFICIENT_RESP_RESOURCES => {
            "the peer does not answer so many reads at a time"
        }
        _ => "the peer's connection manager refused",
    }
}

/// What to do about it, where that is known.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENODEV | Errno::ENOENT => {
            "; the connection manager is not there: `modprobe rdma_ucm`, and give this container \
             /dev/infiniband/rdma_cm"
        }
        Errno::EACCES | Errno::EPERM => "; give this user /dev/infiniband/rdma_cm",
        _ => "",
    }
}

impl std::error::Error for CmFault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_both_ends_and_what_it_means() {
        let peer = Some("192.0.2.1:7174".parse().expect("an address"));
        let fault =
            |reason| CmFault { call: "rdma_connect", local: None, peer, reason }.to_string();
        let rejected =
            |reason, text: &[u8]| CmReason::Rejected { reason, private_data: text.into() };
        assert_eq!(
            fault(rejected(RejectReason::CONSUMER_DEFINED, b"no\0\0")),
            "rdma_connect to 192.0.2.1:7174: the peer's program refused, or went away \
             (CONSUMER_DEFINED, 28), with 2 bytes of private data"
        );
        assert!(
            fault(rejected(RejectReason::INVALID_SERVICE_ID, &[0; 148])).contains("nobody listens")
        );
        let event = CmReason::Event { kind: CmEventType::from_raw(77), status: -110 };
        assert!(fault(event).contains("unknown (77) with status -110, ETIMEDOUT"));
        assert!(
            CmReason::Event { kind: CmEventType::ADDR_ERROR, status: i32::MIN }
                .to_string()
                .contains("errno 2147483647")
        );
    }
}
