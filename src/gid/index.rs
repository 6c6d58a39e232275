//! Rows of GID tables, indexed by GID and by network interface: what the snapshot of one device
//! and that of all devices are both made of.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::slice;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::types::{Gid, GidEntry};

/// One hash function for all snapshots: keys are this host's own addresses, so nobody can choose
/// them to collide.
const HASHER: FixedState = FixedState::with_seed(0);

pub(crate) fn hash<K: Hash + ?Sized>(key: &K) -> u64 {
    HASHER.hash_one(key)
}

/// A row of some table, which carries a GID.
pub trait Row: Copy {
    /// The row of the device's own table.
    fn entry(&self) -> &GidEntry;
}

impl Row for GidEntry {
    #[inline]
    fn entry(&self) -> &GidEntry {
        self
    }
}

/// Rows in their order, found in constant time.
pub(crate) struct Index<R> {
    rows: Box<[R]>,
    /// One for each GID there is. Its first row stands in it, so that a lookup that finds one
    /// touches one place of the table and no other memory.
    by_gid: HashTable<GidSlot<R>>,
    /// For every GID, and then for every interface, the numbers of its rows.
    grouped: Box<[u32]>,
    by_ifindex: HashTable<Group<u32>>,
}

/// The rows that carry one GID.
struct GidSlot<R> {
    first: R,
    start: u32,
    count: u32,
}

/// The rows that share a key: `count` numbers from `start` on in `grouped`.
struct Group<K> {
    key: K,
    start: u32,
    count: u32,
}

impl<R: Row> Index<R> {
    /// Indexes rows, which stay in their order.
    pub(crate) fn new(rows: Vec<R>) -> Index<R> {
        let mut grouped = Vec::with_capacity(2 * rows.len());
        let mut by_gid = HashTable::with_capacity(rows.len());
        let gid = |slot: &GidSlot<R>| hash(&slot.first.entry().gid());
        group_by(
            &rows,
            &mut grouped,
            |row| Some(row.gid()),
            |first, Group { key, start, count }| {
                by_gid.insert_unique(hash(&key), GidSlot { first: *first, start, count }, gid);
            },
        );
        let mut by_ifindex = HashTable::new();
        group_by(&rows, &mut grouped, GidEntry::ifindex, |_, group| {
            by_ifindex.insert_unique(hash(&group.key), group, |group| hash(&group.key));
        });
        Index { rows: rows.into(), by_gid, grouped: grouped.into(), by_ifindex }
    }

    pub(crate) fn rows(&self) -> &[R] {
        &self.rows
    }

    #[inline]
    pub(crate) fn by_gid(&self, gid: &Gid) -> Matches<'_, R> {
        match self.by_gid.find(hash(gid), |slot| slot.first.entry().gid() == *gid) {
            Some(slot) => Matches {
                first: Some(&slot.first),
                rest: self.group(slot.start + 1, slot.count - 1).iter(),
                rows: &self.rows,
                only_addresses: false,
            },
            None => Matches::none(),
        }
    }

    #[inline]
    pub(crate) fn by_ip(&self, ip: IpAddr) -> Matches<'_, R> {
        // A GID of an InfiniBand port may look like an address and is none.
        Matches { only_addresses: true, ..self.by_gid(&ip.into()) }
    }

    pub(crate) fn by_ifindex(&self, ifindex: u32) -> Matches<'_, R> {
        match self.by_ifindex.find(hash(&ifindex), |group| group.key == ifindex) {
            Some(group) => Matches {
                first: None,
                rest: self.group(group.start, group.count).iter(),
                rows: &self.rows,
                only_addresses: false,
            },
            None => Matches::none(),
        }
    }

    fn group(&self, start: u32, count: u32) -> &[u32] {
        let start = start as usize;
        self.grouped.get(start..start + count as usize).unwrap_or_default()
    }
}

/// Appends to `grouped` the row numbers of each key in turn, keys sorted, rows in their order, and
/// tells of each group with its first row.
fn group_by<R: Row, K: Ord + Copy>(
    rows: &[R],
    grouped: &mut Vec<u32>,
    key: impl Fn(&GidEntry) -> Option<K>,
    mut tell: impl FnMut(&R, Group<K>),
) {
    let keyed = rows.iter().zip(0_u32..);
    let mut keyed: Vec<_> =
        keyed.filter_map(|(row, number)| Some((key(row.entry())?, number, row))).collect();
    keyed.sort_by_key(|(key, number, _)| (*key, *number));
    for same in keyed.chunk_by(|(a, ..), (b, ..)| a == b) {
        let [(key, _, first), ..] = same else { continue };
        let start = grouped.len() as u32;
        grouped.extend(same.iter().map(|(_, number, _)| number));
        tell(first, Group { key: *key, start, count: same.len() as u32 });
    }
}

/// The rows that a lookup found, in their order.
#[derive(Debug)]
pub struct Matches<'a, R = GidEntry> {
    first: Option<&'a R>,
    rest: slice::Iter<'a, u32>,
    rows: &'a [R],
    only_addresses: bool,
}

impl<R> Clone for Matches<'_, R> {
    fn clone(&self) -> Self {
        Matches { rest: self.rest.clone(), ..*self }
    }
}

impl<R: Row> Matches<'_, R> {
    pub(crate) fn none() -> Self {
        Matches { first: None, rest: [].iter(), rows: &[], only_addresses: false }
    }

    /// Whether there is no row left.
    pub fn is_empty(&self) -> bool {
        self.clone().next().is_none()
    }
}

impl<'a, R: Row> Iterator for Matches<'a, R> {
    type Item = &'a R;

    #[inline]
    fn next(&mut self) -> Option<&'a R> {
        loop {
            let row = match self.first.take() {
                Some(first) => first,
                None => self.rows.get(*self.rest.next()? as usize)?,
            };
            if !self.only_addresses || row.entry().gid_type().is_roce() {
                return Some(row);
            }
        }
    }
}

impl<R: Row> std::iter::FusedIterator for Matches<'_, R> {}
