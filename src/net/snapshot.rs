//! An immutable, indexed copy of the interfaces and addresses of a network namespace.

#![deny(unsafe_code)]

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::{Interface, LocalAddress};

/// All network interfaces of one network namespace and their addresses, at one moment: unchanging.
///
/// Lookups take constant time, whatever the number of interfaces and addresses, allocate nothing
/// and make no system call. Interfaces and addresses are read one after the other: when something
/// changed in between, an address may stand here whose interface does not, or the other way round.
/// The notification of that change is on its way then, and the next `checked` reads again.
pub struct NetSnapshot {
    generation: u64,
    /// Sorted by number.
    interfaces: Box<[Interface]>,
    /// Sorted by number of the interface; those of one interface in the kernel's order.
    addresses: Box<[LocalAddress]>,
    by_ifindex: HashTable<IfSlot>,
    /// The places in `interfaces` of each name, alternative names too.
    by_name: HashTable<(Box<str>, u32)>,
    by_ip: HashTable<IpSlot>,
    /// For every IP address the places in `addresses`.
    grouped: Box<[u32]>,
    /// The place in `addresses` of each address of each interface: of several prefixes the longest.
    by_both: HashTable<u32>,
}

/// What there is of one interface: its place, and those of its addresses.
struct IfSlot {
    ifindex: u32,
    interface: Option<u32>,
    start: u32,
    count: u32,
}

/// The addresses with one IP: `count` places from `start` on in `grouped`.
struct IpSlot {
    ip: IpAddr,
    start: u32,
    count: u32,
}

/// One hash function for all snapshots: keys are this host's own, so nobody else can choose them
/// to collide.
const HASHER: FixedState = FixedState::with_seed(0);

fn hash<K: Hash + ?Sized>(key: &K) -> u64 {
    HASHER.hash_one(key)
}

/// The key of `by_both`.
fn both(address: &LocalAddress) -> (u32, IpAddr) {
    (address.ifindex(), address.ip())
}

impl NetSnapshot {
    /// A snapshot of interfaces and addresses that a program made itself, for its own tests. Of two
    /// interfaces of one number the first stays.
    pub fn from_parts(interfaces: Vec<Interface>, addresses: Vec<LocalAddress>) -> NetSnapshot {
        NetSnapshot::new(interfaces, addresses, 1)
    }

    /// What there is before the first read.
    pub(super) fn nothing() -> NetSnapshot {
        NetSnapshot::new(Vec::new(), Vec::new(), 0)
    }

    /// The one that follows this one; `None` when everything is as it was.
    pub(super) fn next(
        &self,
        interfaces: Vec<Interface>,
        addresses: Vec<LocalAddress>,
    ) -> Option<NetSnapshot> {
        let next = NetSnapshot::new(interfaces, addresses, self.generation + 1);
        let same = next.interfaces == self.interfaces && next.addresses == self.addresses;
        (!same || self.generation == 0).then_some(next)
    }

    fn new(
        mut interfaces: Vec<Interface>,
        mut addresses: Vec<LocalAddress>,
        generation: u64,
    ) -> NetSnapshot {
        interfaces.sort_by_key(Interface::ifindex);
        interfaces.dedup_by_key(|interface| interface.ifindex());
        addresses.sort_by_key(LocalAddress::ifindex);
        let mut snapshot = NetSnapshot {
            generation,
            by_ifindex: HashTable::with_capacity(interfaces.len()),
            by_name: HashTable::with_capacity(interfaces.len()),
            by_ip: HashTable::with_capacity(addresses.len()),
            grouped: Box::default(),
            by_both: HashTable::with_capacity(addresses.len()),
            interfaces: interfaces.into(),
            addresses: addresses.into(),
        };
        snapshot.index_interfaces();
        snapshot.index_addresses();
        snapshot
    }

    fn index_interfaces(&mut self) {
        let slot_hash = |slot: &IfSlot| hash(&slot.ifindex);
        for (interface, place) in self.interfaces.iter().zip(0_u32..) {
            let ifindex = interface.ifindex();
            let slot = IfSlot { ifindex, interface: Some(place), start: 0, count: 0 };
            self.by_ifindex.insert_unique(hash(&ifindex), slot, slot_hash);
        }
        // A name is only one interface's, but the parts may be made by hand: names go before
        // alternative names, and then the first stays.
        let placed = || self.interfaces.iter().zip(0_u32..);
        let names = placed().filter_map(|(interface, place)| Some((interface.name()?, place)));
        let alternative = placed()
            .flat_map(|(interface, place)| interface.alternative_names().map(move |n| (n, place)));
        for (name, place) in names.chain(alternative) {
            let entry = self.by_name.entry(hash(name), |(n, _)| **n == *name, |(n, _)| hash(&**n));
            entry.or_insert_with(|| (name.into(), place));
        }
    }

    fn index_addresses(&mut self) {
        let mut start = 0;
        for same in self.addresses.chunk_by(|a, b| a.ifindex() == b.ifindex()) {
            let [first, ..] = same else { continue };
            let (ifindex, count) = (first.ifindex(), same.len() as u32);
            let is_it = |slot: &IfSlot| slot.ifindex == ifindex;
            self.by_ifindex
                .entry(hash(&ifindex), is_it, |slot| hash(&slot.ifindex))
                .and_modify(|slot| (slot.start, slot.count) = (start, count))
                .or_insert(IfSlot { ifindex, interface: None, start, count });
            start += count;
        }
        let mut placed: Vec<_> = self.addresses.iter().zip(0_u32..).collect();
        placed.sort_by_key(|(address, place)| (address.ip(), *place));
        self.grouped = placed.iter().map(|(_, place)| *place).collect();
        let mut start = 0;
        for same in placed.chunk_by(|(a, _), (b, _)| a.ip() == b.ip()) {
            let [(first, _), ..] = same else { continue };
            let slot = IpSlot { ip: first.ip(), start, count: same.len() as u32 };
            start += slot.count;
            self.by_ip.insert_unique(hash(&slot.ip), slot, |slot| hash(&slot.ip));
        }
        let addresses = &self.addresses;
        let at = |place: &u32| addresses.get(*place as usize);
        for (address, place) in addresses.iter().zip(0_u32..) {
            let key = both(address);
            let is_it = |place: &u32| at(place).is_some_and(|there| both(there) == key);
            let rehash = |place: &u32| at(place).map_or(0, |there| hash(&both(there)));
            self.by_both
                .entry(hash(&key), is_it, rehash)
                .and_modify(|there| {
                    let longest = at(there).map_or(0, LocalAddress::prefix_len);
                    if address.prefix_len() > longest {
                        *there = place;
                    }
                })
                .or_insert(place);
        }
    }

    /// Moves only when an interface or an address changed.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Every interface, in the order of their numbers.
    #[doc(alias = "if_nameindex")]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Every address, in the order of the interfaces' numbers, those of one interface as the
    /// kernel lists them.
    #[doc(alias = "getifaddrs")]
    pub fn addresses(&self) -> &[LocalAddress] {
        &self.addresses
    }

    /// The interface of this number.
    pub fn by_ifindex(&self, ifindex: u32) -> Option<&Interface> {
        self.interfaces.get(self.slot(ifindex)?.interface? as usize)
    }

    /// The interface of this name; an alternative name will do.
    #[doc(alias = "if_nametoindex")]
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        let (_, place) = self.by_name.find(hash(name), |(there, _)| **there == *name)?;
        self.interfaces.get(*place as usize)
    }

    /// The addresses that have this IP: one for each interface (and prefix) that has it, in the
    /// order of [`addresses`](NetSnapshot::addresses). A link-local address can be on many. An
    /// IPv4 address mapped into IPv6 is looked up as IPv4.
    pub fn by_ip(&self, ip: IpAddr) -> impl Iterator<Item = &LocalAddress> + Clone {
        let ip = ip.to_canonical();
        let places = self.by_ip.find(hash(&ip), |slot| slot.ip == ip).and_then(|slot| {
            self.grouped.get(slot.start as usize..(slot.start + slot.count) as usize)
        });
        let places = places.unwrap_or_default().iter();
        places.filter_map(|place| self.addresses.get(*place as usize))
    }

    /// The addresses of the interface of this number, as the kernel lists them.
    pub fn addresses_of(&self, ifindex: u32) -> &[LocalAddress] {
        self.slot(ifindex)
            .and_then(|slot| {
                self.addresses.get(slot.start as usize..(slot.start + slot.count) as usize)
            })
            .unwrap_or_default()
    }

    /// This address of the interface of this number; of several with different prefixes that with
    /// the longest. An IPv4 address mapped into IPv6 is looked up as IPv4.
    pub fn local(&self, ifindex: u32, ip: IpAddr) -> Option<&LocalAddress> {
        let key = (ifindex, ip.to_canonical());
        let at = |place: &u32| self.addresses.get(*place as usize);
        at(self.by_both.find(hash(&key), |place| at(place).is_some_and(|a| both(a) == key))?)
    }

    /// Whether the interface of this number has this address, in whatever state:
    /// [`local`](NetSnapshot::local) tells whether it can be used.
    pub fn is_local(&self, ifindex: u32, ip: IpAddr) -> bool {
        self.local(ifindex, ip).is_some()
    }

    /// How many leading bits of this address name the network that is directly reached through the
    /// interface of this number; `None` when it does not have the address.
    pub fn local_prefix(&self, ifindex: u32, ip: IpAddr) -> Option<u8> {
        self.local(ifindex, ip).map(LocalAddress::prefix_len)
    }

    /// Every prefix length that this address has on the interface of this number, longest or not.
    pub(crate) fn prefixes(&self, ifindex: u32, ip: IpAddr) -> impl Iterator<Item = u8> {
        let here = self.by_ip(ip).filter(move |address| address.ifindex() == ifindex);
        here.map(LocalAddress::prefix_len)
    }

    fn slot(&self, ifindex: u32) -> Option<&IfSlot> {
        self.by_ifindex.find(hash(&ifindex), |slot| slot.ifindex == ifindex)
    }
}

impl fmt::Debug for NetSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetSnapshot")
            .field("generation", &self.generation)
            .field("interfaces", &self.interfaces)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
