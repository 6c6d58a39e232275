//! Which device, port and GID a way is for.

use std::net::IpAddr;
use std::sync::Arc;

use super::way::Way;
use crate::directory::{DirectoryRow, DirectorySnapshot, Rank, address_of};
use crate::error::{AddressWithDevice, Error, NoDeviceForAddress};
use crate::net::{HwAddr, Interface, LocalAddress, NetSnapshot};
use crate::query::{Choice, GidQuery};
use crate::types::{Gid, GidScope, GidType, IfName};

/// The most addresses that an error lists.
const LISTED: usize = 16;

/// A row to send from, and the interface that has its address.
pub(super) struct Found<'a> {
    row: &'a DirectoryRow,
    pub(super) interface: &'a Interface,
}

impl Found<'_> {
    /// The row with all that is needed to use it.
    pub(super) fn choice(&self, snapshot: &DirectorySnapshot) -> Option<Choice> {
        let device = Arc::clone(&snapshot.device_of(self.row)?.name);
        let row = *self.row.entry();
        Some(Choice { device, port: row.port(), index: row.gid_index()?, row })
    }
}

/// The row for a way: of those that carry its source on the interface that packets leave by, the best.
/// RoCE v2 comes before RoCE v1, which no router passes on; a port that is up before one that is not.
/// On IPoIB it is the row with the GID of the interface's own port.
pub(super) fn find<'a>(
    snapshot: &'a DirectorySnapshot,
    way: &Way,
    routed: bool,
) -> Option<Found<'a>> {
    let net = snapshot.net();
    let fits = |row: &&DirectoryRow| {
        let on_it = row.entry().ifindex().is_none_or(|ifindex| ifindex == way.ifindex);
        (way.local || on_it) && is_usable(snapshot, row, routed)
    };
    let order = |row: &&DirectoryRow| {
        let up = snapshot.device_of(row).is_some_and(|device| device.may_be_up(row, net));
        (!up, Rank::of(row, net))
    };
    let mut rows = snapshot.by_ip(way.source).filter(fits);
    let first = rows.next();
    let best = match (first, rows.next()) {
        // The usual case needs no order.
        (Some(only), None) => Some(only),
        (Some(first), Some(second)) => [first, second].into_iter().chain(rows).min_by_key(order),
        (None, _) => None,
    };
    match best {
        Some(row) => {
            let ifindex = row.entry().ifindex();
            let ifindex = ifindex.or_else(|| Some(net.by_ip(way.source).next()?.ifindex()));
            Some(Found { row, interface: net.by_ifindex(ifindex?)? })
        }
        None if way.local => {
            net.by_ip(way.source).find_map(|a| find_infiniband(snapshot, a.ifindex()))
        }
        None => find_infiniband(snapshot, way.ifindex),
    }
}

/// The row with the GID of an IPoIB interface's port.
fn find_infiniband(snapshot: &DirectorySnapshot, ifindex: u32) -> Option<Found<'_>> {
    let interface = snapshot.net().by_ifindex(ifindex)?;
    let is_infiniband = interface.hw_type() == libc::ARPHRD_INFINIBAND;
    let gid = interface.hw_addr().filter(|_| is_infiniband)?.ipoib_gid()?;
    let mut rows = snapshot.by_gid(&gid).filter(|row| row.entry().gid_type() == GidType::IB);
    Some(Found { row: rows.find(|row| is_usable(snapshot, row, true))?, interface })
}

fn is_usable(snapshot: &DirectorySnapshot, row: &DirectoryRow, routed: bool) -> bool {
    let entry = row.entry();
    let reaches = match entry.gid_type() {
        GidType::ROCE_V2 | GidType::IB => true,
        GidType::ROCE_V1 => !routed,
        _ => false,
    };
    reaches
        && row.is_local()
        && entry.gid_index().is_some()
        && !snapshot.device_of(row).is_none_or(|device| device.is_closed())
        && address_of(entry, snapshot.net()).is_none_or(LocalAddress::is_usable)
}

/// Whether an interface's neighbours need not be looked for, and what packets to them carry then: on
/// one without them (`IFF_NOARP`, loopback) its own hardware address, between two points nothing.
pub(super) fn without_neighbours(net: &NetSnapshot, ifindex: u32) -> Option<Option<HwAddr>> {
    let interface = net.by_ifindex(ifindex)?;
    let has = |flag: libc::c_int| interface.flags() & flag as u32 != 0;
    match () {
        () if has(libc::IFF_NOARP) || has(libc::IFF_LOOPBACK) => Some(interface.hw_addr()),
        () if has(libc::IFF_POINTOPOINT) => Some(None),
        () => None,
    }
}

/// The error for a way whose source has no row: what there is instead.
pub(crate) fn no_device(snapshot: &DirectorySnapshot, address: IpAddr, ifindex: u32) -> Error {
    let net = snapshot.net();
    let hint = match snapshot.by_ip(address).next() {
        None if net.by_ip(address).next().is_none() => {
            Some("it is not an address of this host".into())
        }
        None => None,
        Some(_) => match GidQuery::new().ip(address).best(snapshot) {
            Ok(choice) => Some(format!("its GID is that of {choice}").into()),
            Err(Error::NoGidFits { rows, .. }) => Some(rows),
            Err(_) => None,
        },
    };
    let mut available: Vec<AddressWithDevice> = Vec::new();
    let mut more = 0;
    // Those that are likely to be meant come first.
    let is_link_local =
        |there: &AddressWithDevice| Gid::from(there.address).scope() == GidScope::LinkLocal;
    let global = addresses_with_device(snapshot).filter(|there| !is_link_local(there));
    for there in global.chain(addresses_with_device(snapshot).filter(is_link_local)) {
        match () {
            () if available.contains(&there) => {}
            () if available.len() < LISTED => available.push(there),
            () => more += 1,
        }
    }
    let netdev = net.by_ifindex(ifindex).filter(|interface| !interface.is_loopback());
    Error::NoDeviceForAddress(Box::new(NoDeviceForAddress {
        address,
        netdev: netdev.and_then(Interface::if_name),
        hint,
        available: available.into(),
        more,
    }))
}

/// Every local address that has a usable row; more than once where there are several types.
fn addresses_with_device(
    snapshot: &DirectorySnapshot,
) -> impl Iterator<Item = AddressWithDevice> + '_ {
    let net = snapshot.net();
    let named = |address, row: &DirectoryRow, netdev: Option<IfName>| {
        let device = (*snapshot.device_of(row)?.name).into();
        Some(AddressWithDevice { address, device, netdev })
    };
    // Of two types of one address the second is passed over, so that what is counted is addresses.
    let is_first = move |row: &&DirectoryRow| {
        let same = |other: &&DirectoryRow| {
            (other.device(), other.entry().ifindex()) == (row.device(), row.entry().ifindex())
                && is_usable(snapshot, other, false)
        };
        snapshot.by_gid(&row.entry().gid()).find(same).is_none_or(|first| first == *row)
    };
    let roce = snapshot.rows().iter().filter(|row| row.entry().gid_type().is_roce());
    let roce = roce.filter(|row| is_usable(snapshot, row, false)).filter(is_first);
    let roce = roce.filter_map(move |row| {
        let interface = row.entry().ifindex().and_then(|ifindex| net.by_ifindex(ifindex));
        named(row.entry().ip()?, row, interface.and_then(Interface::if_name))
    });
    let infiniband = net.addresses().iter().filter_map(move |address| {
        let found = find_infiniband(snapshot, address.ifindex())?;
        named(address.ip(), found.row, found.interface.if_name())
    });
    roce.chain(infiniband)
}
