//! The best row towards a peer, in constant time.
//!
//! What [`GidQuery::peer`](crate::GidQuery::peer) finds by looking at every row is laid out here when a
//! directory is built: for each subnet that a usable row is in, its best row, and for peers outside of
//! all, the best that can be routed from. A lookup tries the few prefix lengths there are, the longest
//! first.

use std::net::IpAddr;

use hashbrown::HashTable;

use super::snapshot::{DirectoryRow, Rank};
use crate::gid::hash;
use crate::net::NetSnapshot;
use crate::types::{Gid, GidScope, GidType, Subnet};

/// One for each kind of peer and state of port.
#[derive(Default)]
pub(super) struct Towards {
    kinds: [Kind; 8],
}

/// Rows that can reach one kind of peer, all of ports that are up, or all of ports that are not.
#[derive(Default)]
struct Kind {
    /// The best row of each subnet.
    subnets: HashTable<(Subnet, Best)>,
    /// The prefix lengths there are, the longest first.
    prefixes: Vec<u8>,
    /// The best row for peers outside.
    routed: Option<Best>,
}

#[derive(Clone, Copy)]
struct Best {
    rank: Rank,
    row: u32,
}

/// Peers that the same rows can reach: of one family, and link-local or not.
fn kind(ip: IpAddr) -> usize {
    let link_local = Gid::from(ip).scope() == GidScope::LinkLocal;
    usize::from(ip.is_ipv6()) << 1 | usize::from(link_local)
}

impl Towards {
    /// Adds a usable row, number `row`, of a port that is up or not.
    pub(super) fn add(
        &mut self,
        row: u32,
        of: &DirectoryRow,
        rank: Rank,
        up: bool,
        net: &NetSnapshot,
    ) {
        let entry = of.entry();
        let Some(ip) = entry.ip() else { return };
        let kind = &mut self.kinds[kind(ip) << 1 | usize::from(!up)];
        let best = Best { rank, row };
        if entry.gid_type() != GidType::ROCE_V1 {
            kind.routed = Some(kind.routed.filter(|there| there.rank <= rank).unwrap_or(best));
        }
        for prefix in entry.ifindex().into_iter().flat_map(|ifindex| net.prefixes(ifindex, ip)) {
            if let Some(subnet) = Subnet::new(ip, prefix) {
                kind.add(subnet, best);
            }
        }
    }

    /// The number of the best row towards a peer.
    pub(super) fn best(&self, peer: IpAddr) -> Option<u32> {
        let peer = peer.to_canonical();
        if !is_a_hosts(peer) {
            return None;
        }
        let kind = kind(peer) << 1;
        // A port that is not up comes after every one that is.
        self.kinds.get(kind..=kind + 1)?.iter().find_map(|kind| kind.best(peer))
    }
}

/// Whether an address can be a peer's: not the unspecified one, nor a group's, nor loopback's.
pub(crate) fn is_a_hosts(peer: IpAddr) -> bool {
    let broadcast = matches!(peer, IpAddr::V4(peer) if peer.is_broadcast());
    !(peer.is_unspecified() || peer.is_multicast() || peer.is_loopback() || broadcast)
}

impl Kind {
    fn add(&mut self, subnet: Subnet, best: Best) {
        match self.subnets.find_mut(hash(&subnet), |(there, _)| *there == subnet) {
            Some((_, there)) if there.rank <= best.rank => {}
            Some((_, there)) => *there = best,
            None => {
                let key = |(subnet, _): &(Subnet, Best)| hash(subnet);
                self.subnets.insert_unique(hash(&subnet), (subnet, best), key);
                if let Err(at) = self.prefixes.binary_search_by(|p| subnet.prefix().cmp(p)) {
                    self.prefixes.insert(at, subnet.prefix());
                }
            }
        }
    }

    fn best(&self, peer: IpAddr) -> Option<u32> {
        let in_subnet = self.prefixes.iter().find_map(|prefix| {
            let subnet = Subnet::new(peer, *prefix)?;
            self.subnets.find(hash(&subnet), |(there, _)| *there == subnet).map(|(_, best)| best)
        });
        in_subnet.or(self.routed.as_ref()).map(|best| best.row)
    }
}
