//! What a query can say of a row.

use std::fmt;

/// What a query says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It fits, and is the one to use.
    Best,
    /// It fits, but the best comes before it, by this.
    Behind(Criterion),
    /// It fits the filters and cannot be used, or does not fit them.
    Rejected(Reason),
}

/// What tells two rows that fit apart, in the order in which it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Criterion {
    /// The best one's port and interface are up, and its own are not.
    State,
    /// The best one's subnet holds the peer, more closely.
    Subnet,
    /// The best one's type comes first.
    Type,
    /// The best one's address reaches further.
    Reach,
    /// The best one is an IPv4 address.
    Family,
    /// Its address is deprecated, or made up for a time (IPv6), and the best one's is not.
    Passing,
    /// The best one's place comes first.
    Place,
}

/// Why a row is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Another device than asked for.
    OtherDevice,
    /// Another port than asked for.
    OtherPort,
    /// Another index than asked for.
    OtherIndex,
    /// Another network interface than asked for.
    OtherNetdev,
    /// Another GID than asked for.
    OtherGid,
    /// Another IP address than asked for.
    OtherIp,
    /// Not in the range asked for.
    NotInSubnet,
    /// Another type than asked for.
    OtherType,
    /// Its interface is not in this network namespace.
    NoInterface,
    /// Its address is not on its interface here.
    NotOnInterface,
    /// Its device cannot be opened; its rows are known from sysfs.
    DeviceClosed,
    /// Its type is none that this crate knows.
    UnknownType,
    /// Its index is beyond the 255 that verbs can carry.
    IndexTooLarge,
    /// Its address is another host's too (IPv6 duplicate address detection).
    Duplicate,
    /// Its address is still being checked (IPv6 duplicate address detection).
    Tentative,
    /// The peer's address is no host's on a network: unspecified, multicast, broadcast, loopback.
    NoPeer,
    /// It is an InfiniBand GID, and the peer an IP address.
    NoIpAddress,
    /// It is of the other address family than the peer.
    PeerFamily,
    /// It is a link-local address, and the peer is not.
    LinkLocalOnly,
    /// The peer is a link-local address, and it is not.
    PeerLinkLocal,
    /// It is RoCE v1, which is not routed, and the peer is outside its subnet.
    NotRouted,
}

impl Reason {
    /// Whether the row just is not among those asked for, however usable it may be.
    pub fn is_filter(self) -> bool {
        matches!(
            self,
            Reason::OtherDevice
                | Reason::OtherPort
                | Reason::OtherIndex
                | Reason::OtherNetdev
                | Reason::OtherGid
                | Reason::OtherIp
                | Reason::NotInSubnet
                | Reason::OtherType
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::OtherDevice => "another device",
            Reason::OtherPort => "another port",
            Reason::OtherIndex => "another index",
            Reason::OtherNetdev => "another netdev",
            Reason::OtherGid => "another GID",
            Reason::OtherIp => "another IP address",
            Reason::NotInSubnet => "not in the subnet",
            Reason::OtherType => "another type",
            Reason::NoInterface => "exists, not usable here: its netdev is in another namespace",
            Reason::NotOnInterface => "exists, not usable here: its netdev here lacks the address",
            Reason::DeviceClosed => "its device cannot be opened",
            Reason::UnknownType => "of unknown type",
            Reason::IndexTooLarge => "its index is beyond the 255 that verbs carry",
            Reason::Duplicate => "its address is another host's too",
            Reason::Tentative => "its address is still being checked",
            Reason::NoPeer => "the peer's address is no host's: unspecified, a group's or loopback",
            Reason::NoIpAddress => "an InfiniBand GID, and the peer is an IP address",
            Reason::PeerFamily => "of another address family than the peer",
            Reason::LinkLocalOnly => "link-local, and the peer is not",
            Reason::PeerLinkLocal => "not link-local, and the peer is",
            Reason::NotRouted => "RoCE v1 is not routed, and the peer is outside its subnet",
        })
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Criterion::State => "its port or interface is not up",
            Criterion::Subnet => "the best one's subnet holds the peer more closely",
            Criterion::Type => "the best one's type comes first",
            Criterion::Reach => "the best one's address reaches further",
            Criterion::Family => "the best one is IPv4",
            Criterion::Passing => "its address is deprecated or temporary",
            Criterion::Place => "the best one's place comes first",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Best => f.write_str("best"),
            Verdict::Behind(criterion) => write!(f, "fits; {criterion}"),
            Verdict::Rejected(reason) => reason.fmt(f),
        }
    }
}
