//! A path to a peer: all that a queue pair or an address handle needs to be told.

use std::fmt;
use std::net::IpAddr;

use super::row::Found;
use super::way::Way;
use super::{Destination, row};
use crate::directory::DirectorySnapshot;
use crate::net::HwAddr;
use crate::query::Choice;
use crate::types::{Gid, GidType, IfName};

/// The hop limit where a route has none of its own, as the kernel takes it.
const HOP_LIMIT: u8 = 64;

/// The path to a destination, as the kernel's routes and neighbours and the GID tables have it now: a
/// copy, which stays as it is.
///
/// The kernel looks the neighbour up itself when a queue pair goes to RTR, or an address handle is made;
/// [`next_hop_hw`](Path::next_hop_hw) tells that it will find one, at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// Where to.
    pub destination: IpAddr,
    /// The local address that packets are sent from: what was asked for, or what the route prefers.
    pub source: IpAddr,
    /// The number of the interface they leave by. To an address of this host, that of the source.
    pub ifindex: u32,
    /// Its name; `None` when it is no UTF-8.
    pub netdev: Option<IfName>,
    /// The device, the port and the row of its GID table that are the source's.
    pub gid: Choice,
    /// Who is sent to on the link: the destination itself, or the router towards it.
    pub next_hop: IpAddr,
    /// Its hardware address: a MAC on Ethernet, 20 bytes on InfiniBand. To an address of this host, and on a
    /// link without neighbours (`IFF_NOARP`), that of the interface itself; `None` between two points.
    pub next_hop_hw: Option<HwAddr>,
    /// How many routers may be between, 1 to 255: the route's own hop limit, or 64.
    pub hop_limit: u8,
    /// The largest IP packet, in bytes: the route's own MTU or the interface's, whichever is smaller.
    /// The RDMA path MTU is the largest step that fits into it with RoCE's headers.
    pub mtu: u32,
    /// Whether the destination is an address of this host.
    pub is_local: bool,
}

impl Path {
    pub(super) fn new(
        snapshot: &DirectorySnapshot,
        to: &Destination,
        way: &Way,
        next_hop_hw: Option<HwAddr>,
    ) -> Option<Path> {
        let found = row::find(snapshot, way, way.is_routed(to))?;
        let gid = found.choice(snapshot)?;
        let Found { interface, .. } = found;
        Some(Path {
            destination: to.ip(),
            source: way.source,
            ifindex: interface.ifindex(),
            netdev: interface.if_name(),
            gid,
            next_hop: way.next_hop,
            next_hop_hw: if way.local { interface.hw_addr() } else { next_hop_hw },
            hop_limit: way.hop_limit.unwrap_or(HOP_LIMIT),
            mtu: way.mtu.unwrap_or(u32::MAX).min(interface.mtu()),
            is_local: way.local,
        })
    }

    /// Whether a router is between.
    pub fn is_routed(&self) -> bool {
        self.next_hop != self.destination
    }

    /// The GID to send from.
    pub fn source_gid(&self) -> Gid {
        self.gid.row.gid()
    }

    /// The GID to send to. On RoCE the address is the GID; on InfiniBand it is that of the next hop's
    /// port, which is in its hardware address; `None` when that is not known.
    pub fn destination_gid(&self) -> Option<Gid> {
        match self.gid.row.gid_type() {
            GidType::IB => self.next_hop_hw?.ipoib_gid(),
            _ => Some(self.destination.into()),
        }
    }
}

impl fmt::Display for Path {
    /// `192.0.2.77 from 192.0.2.1: rxe0 port 1 index 1 on e0, next hop 192.0.2.77 at 02:00:00:00:00:02`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { device, port, index, .. } = &self.gid;
        write!(f, "{} from {}: {device} port {port} index {index}", self.destination, self.source)?;
        if let Some(netdev) = &self.netdev {
            write!(f, " on {netdev}")?;
        }
        if self.is_local {
            return f.write_str(", this host");
        }
        write!(f, ", next hop {}", self.next_hop)?;
        match &self.next_hop_hw {
            Some(hw_addr) => write!(f, " at {hw_addr}"),
            None => Ok(()),
        }
    }
}
