//! What an errno or a status of the connection manager means.

#![deny(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::slot::CmEvent;
use crate::error::{CmFault, CmReason, Errno, Error};
use crate::resolve::no_device_for;
use crate::types::{CmEventType, RejectReason};

/// A failed step: something of it is given back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Failed<T> {
    /// Why.
    pub error: Error,
    /// What was to be used: an id in the state it was in, a queue pair.
    pub back: T,
}

impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Error {
        failed.error
    }
}

pub(super) fn fault(
    call: &'static str,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    reason: CmReason,
) -> Error {
    Error::Cm(Box::new(CmFault { call, local, peer, reason }))
}

/// A call that failed.
pub(super) fn call(
    call: &'static str,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    errno: Errno,
) -> Error {
    let failed = || fault(call, local, peer, CmReason::Failed(errno));
    let of_a_state = matches!(call, "rdma_init_qp_attr" | "rdma_accept" | "rdma_establish");
    match (errno, local, peer) {
        // The connection is not in a state any more where that could be asked.
        (Errno::EINVAL, ..) if of_a_state => fault(call, local, peer, CmReason::Disconnected),
        (Errno::EADDRINUSE, ..) => fault(call, local, peer, CmReason::AddressInUse),
        (Errno::ENODEV | Errno::EADDRNOTAVAIL, Some(local), None) => {
            let ip = local.ip();
            // The port is another's who has it on every address, or on this one.
            if errno == Errno::EADDRNOTAVAIL && (ip.is_unspecified() || is_here(local)) {
                return fault(call, Some(local), peer, CmReason::AddressInUse);
            }
            if ip.is_unspecified() { failed() } else { no_device_for(ip) }
        }
        (Errno::ENODEV, _, Some(peer)) => no_device(local, peer),
        (Errno::ENETUNREACH | Errno::EHOSTUNREACH, _, Some(peer)) => no_route(peer, errno),
        _ => failed(),
    }
}

/// An event that ended a step otherwise than it should.
pub(super) fn event(
    call: &'static str,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    event: &CmEvent,
) -> Error {
    let errno = Errno::from_raw(event.status.saturating_neg());
    let reason = match event.kind {
        CmEventType::ADDR_ERROR => match (errno, peer) {
            (Errno::ENODEV, Some(peer)) => return no_device(local, peer),
            (Errno::ENETUNREACH | Errno::EHOSTUNREACH, Some(peer)) => return no_route(peer, errno),
            (Errno::ETIMEDOUT, _) => CmReason::NoAnswer,
            _ => CmReason::Event { kind: event.kind, status: event.status },
        },
        CmEventType::UNREACHABLE => CmReason::Unreachable(errno),
        CmEventType::REJECTED => CmReason::Rejected {
            reason: RejectReason::from_raw(event.status),
            private_data: (*event.private_data).into(),
        },
        CmEventType::DISCONNECTED | CmEventType::TIMEWAIT_EXIT => CmReason::Disconnected,
        CmEventType::DEVICE_REMOVAL => CmReason::DeviceRemoved,
        kind => CmReason::Event { kind, status: event.status },
    };
    fault(call, local, peer, reason)
}

pub(super) fn timed_out(
    call: &'static str,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    waited: Duration,
) -> Error {
    fault(call, local, peer, CmReason::TimedOut { waited })
}

/// The address to send from has no device: which that is, the id tells if it was bound, and else the route.
fn no_device(local: Option<SocketAddr>, peer: SocketAddr) -> Error {
    let bound = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
    no_device_for(bound.or_else(|| source(peer)).unwrap_or(peer.ip()))
}

fn no_route(peer: SocketAddr, errno: Errno) -> Error {
    let reason = format!("{errno}").into();
    Error::NoRoute { to: peer.ip().to_string().into(), reason, errno: Some(errno) }
}

/// The address that packets to the peer are sent from. Nothing is sent.
fn source(peer: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Whether it is an address of this host.
fn is_here(address: SocketAddr) -> bool {
    let mut address = address;
    address.set_port(0);
    UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::PrivateData;

    #[test]
    fn statuses_have_a_meaning() {
        let peer: SocketAddr = "192.0.2.1:7174".parse().expect("an address");
        let told = |kind, status| {
            let at = std::time::Instant::now();
            let event = CmEvent { kind, status, private_data: PrivateData::default(), at };
            match super::event("rdma_connect", None, Some(peer), &event) {
                Error::Cm(fault) => fault.reason,
                other => panic!("{other}"),
            }
        };
        assert!(matches!(
            told(CmEventType::REJECTED, 28),
            CmReason::Rejected { reason: RejectReason::CONSUMER_DEFINED, .. }
        ));
        assert_eq!(told(CmEventType::ADDR_ERROR, -110), CmReason::NoAnswer);
        assert_eq!(told(CmEventType::UNREACHABLE, -110), CmReason::Unreachable(Errno::ETIMEDOUT));
        assert_eq!(told(CmEventType::DISCONNECTED, 0), CmReason::Disconnected);
        let kind = CmEventType::from_raw(99);
        assert_eq!(told(kind, i32::MIN), CmReason::Event { kind, status: i32::MIN });
        let error = super::call("rdma_resolve_addr", None, Some(peer), Errno::ENETUNREACH);
        assert!(matches!(error, Error::NoRoute { errno: Some(Errno::ENETUNREACH), .. }));
    }
}
