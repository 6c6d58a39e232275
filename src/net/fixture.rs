//! Messages as the kernel sends them, made by hand.

use super::message::{attribute, message};

pub(super) fn number(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

pub(super) fn attributes(list: &[(u16, &[u8])]) -> Vec<u8> {
    list.iter().flat_map(|(kind, value)| attribute(*kind, value)).collect()
}

/// The payload of an `RTM_NEWLINK`: `struct ifinfomsg` of an Ethernet interface, and attributes.
pub(super) fn link(ifindex: u32, flags: u32, attributes: &[u8]) -> Vec<u8> {
    let mut payload = vec![0, 0];
    payload.extend(libc::ARPHRD_ETHER.to_ne_bytes());
    payload.extend(ifindex.to_ne_bytes());
    payload.extend(flags.to_ne_bytes());
    payload.extend(0_u32.to_ne_bytes());
    payload.extend(attributes);
    payload
}

/// The payload of an `RTM_NEWADDR`: `struct ifaddrmsg`, and attributes.
pub(super) fn address(
    family: u8,
    prefix_len: u8,
    flags: u8,
    scope: u8,
    ifindex: u32,
    attributes: &[u8],
) -> Vec<u8> {
    let mut payload = vec![family, prefix_len, flags, scope];
    payload.extend(ifindex.to_ne_bytes());
    payload.extend(attributes);
    payload
}

/// The payload of an `RTM_NEWNEIGH`: `struct ndmsg`, and attributes.
pub(super) fn neighbour(
    family: i32,
    ifindex: u32,
    state: u16,
    flags: u8,
    attributes: &[u8],
) -> Vec<u8> {
    let mut payload = vec![family as u8, 0, 0, 0];
    payload.extend(ifindex.to_ne_bytes());
    payload.extend(state.to_ne_bytes());
    payload.extend([flags, 1]);
    payload.extend(attributes);
    payload
}

/// An `RTM_NEWLINK` message of an interface with this name.
pub(super) fn link_message(sequence: u32, flags: u16, ifindex: u32, name: &str) -> Vec<u8> {
    let payload = link(ifindex, 0, &attributes(&[(3, name.as_bytes())]));
    message(libc::RTM_NEWLINK, flags, sequence, &payload)
}

/// An `RTM_NEWADDR` message of this IPv4 address.
pub(super) fn address_message(sequence: u32, flags: u16, ifindex: u32, ip: [u8; 4]) -> Vec<u8> {
    let payload = address(libc::AF_INET as u8, 24, 0, 0, ifindex, &attributes(&[(2, &ip)]));
    message(libc::RTM_NEWADDR, flags, sequence, &payload)
}
