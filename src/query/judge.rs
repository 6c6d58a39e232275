//! Whether a row fits a query, and its place in the order.

use std::net::IpAddr;

use super::{Criterion, GidQuery, Reason};
use crate::directory::{
    DirectoryDevice, DirectoryRow, DirectorySnapshot, Locality, Rank, address_of, is_a_hosts,
};
use crate::net::NetSnapshot;
use crate::types::{Gid, GidEntry, GidScope, GidType, Subnet};

/// The order of rows that fit: what [`Criterion`] names, in turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    state: u8,
    subnet: u8,
    rank: Rank,
}

impl Key {
    /// What puts `self` behind the best.
    pub(super) fn behind(&self, best: &Key) -> Criterion {
        match () {
            () if self.state != best.state => Criterion::State,
            () if self.subnet != best.subnet => Criterion::Subnet,
            () if self.rank.gid_type != best.rank.gid_type => Criterion::Type,
            () if self.rank.reach != best.rank.reach => Criterion::Reach,
            () if self.rank.family != best.rank.family => Criterion::Family,
            () if self.rank.passing != best.rank.passing => Criterion::Passing,
            () => Criterion::Place,
        }
    }
}

impl GidQuery {
    /// The rows that fit, each with its place in the order.
    pub(super) fn fitting<'a>(
        &self,
        directory: &'a DirectorySnapshot,
    ) -> Vec<(Key, &'a DirectoryRow)> {
        let judge = |row: &'a DirectoryRow| Some((self.judge(directory, row).ok()?, row));
        // The index narrows what it can.
        match (self.gid, self.ip) {
            (Some(gid), _) => directory.by_gid(&gid).filter_map(judge).collect(),
            (None, Some(ip)) => directory.by_ip(ip).filter_map(judge).collect(),
            (None, None) => directory.rows().iter().filter_map(judge).collect(),
        }
    }

    /// Whether a row fits, and its place in the order; or why it does not.
    pub(super) fn judge(
        &self,
        directory: &DirectorySnapshot,
        row: &DirectoryRow,
    ) -> Result<Key, Reason> {
        self.filter(directory, row)?;
        let net = directory.net();
        let device = directory.device_of(row);
        if device.is_some_and(DirectoryDevice::is_closed) {
            return Err(Reason::DeviceClosed);
        }
        usable(row, net)?;
        let subnet = match self.peer {
            Some(peer) => u8::MAX - reaches(net, row.entry(), peer)?,
            None => 0,
        };
        let up = device.is_none_or(|device| device.may_be_up(row, net));
        Ok(Key { state: u8::from(!up), subnet, rank: Rank::of(row, net) })
    }

    /// Whether a row is among those asked for.
    fn filter(&self, directory: &DirectorySnapshot, row: &DirectoryRow) -> Result<(), Reason> {
        let entry = row.entry();
        let check = |fits: bool, reason| if fits { Ok(()) } else { Err(reason) };
        if let Some(name) = &self.device {
            let device = directory.device_of(row).map(|device| device.name());
            check(device == Some(&**name), Reason::OtherDevice)?;
        }
        if let Some(port) = self.port {
            check(entry.port() == port, Reason::OtherPort)?;
        }
        if let Some(index) = self.index {
            check(entry.index() == index, Reason::OtherIndex)?;
        }
        if let Some(name) = &self.netdev {
            let ifindex = directory.net().by_name(name.as_str()).map(|there| there.ifindex());
            check(ifindex.is_some() && entry.ifindex() == ifindex, Reason::OtherNetdev)?;
        }
        if let Some(gid) = self.gid {
            check(entry.gid() == gid, Reason::OtherGid)?;
        }
        if let Some(ip) = self.ip {
            check(entry.ip() == Some(ip), Reason::OtherIp)?;
        }
        if let Some(subnet) = self.subnet {
            check(entry.ip().is_some_and(|ip| subnet.contains(ip)), Reason::NotInSubnet)?;
        }
        if let Some(gid_type) = self.gid_type {
            check(entry.gid_type() == gid_type, Reason::OtherType)?;
        }
        Ok(())
    }
}

/// Whether a row can be used at all.
fn usable(row: &DirectoryRow, net: &NetSnapshot) -> Result<(), Reason> {
    let entry = row.entry();
    match row.locality() {
        Locality::Local => {}
        Locality::NoInterface => return Err(Reason::NoInterface),
        _ => return Err(Reason::NotOnInterface),
    }
    if !entry.gid_type().is_roce() && entry.gid_type() != GidType::IB {
        return Err(Reason::UnknownType);
    }
    if entry.gid_index().is_none() {
        return Err(Reason::IndexTooLarge);
    }
    match address_of(entry, net) {
        Some(there) if there.is_duplicate() => Err(Reason::Duplicate),
        Some(there) if there.is_tentative() => Err(Reason::Tentative),
        _ => Ok(()),
    }
}

/// How many leading bits of the peer the row's own subnet has, 0 to 128; 0 when the peer is outside
/// of it and has to be routed to.
fn reaches(net: &NetSnapshot, entry: &GidEntry, peer: IpAddr) -> Result<u8, Reason> {
    if !is_a_hosts(peer) {
        return Err(Reason::NoPeer);
    }
    let Some(ip) = entry.ip() else { return Err(Reason::NoIpAddress) };
    if ip.is_ipv4() != peer.is_ipv4() {
        return Err(Reason::PeerFamily);
    }
    let link_local = |ip: IpAddr| Gid::from(ip).scope() == GidScope::LinkLocal;
    match (link_local(ip), link_local(peer)) {
        (true, false) => return Err(Reason::LinkLocalOnly),
        (false, true) => return Err(Reason::PeerLinkLocal),
        _ => {}
    }
    let prefixes = entry.ifindex().into_iter().flat_map(|ifindex| net.prefixes(ifindex, ip));
    let subnets = prefixes.filter_map(|prefix| Subnet::new(ip, prefix));
    let held = subnets.filter(|subnet| subnet.contains(peer)).map(|subnet| subnet.prefix()).max();
    match held {
        Some(prefix) if ip.is_ipv4() => Ok(96 + prefix),
        Some(prefix) => Ok(prefix),
        None if entry.gid_type() == GidType::ROCE_V1 => Err(Reason::NotRouted),
        None => Ok(0),
    }
}
