//! An address that has no RDMA device.

use std::fmt;
use std::net::IpAddr;

use crate::types::IfName;

/// An address to send from that no RDMA device can be used with, and those that have one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoDeviceForAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface that packets would leave by, as far as it is known.
    pub netdev: Option<IfName>,
    /// What there is of the address that cannot be used, and why not.
    pub hint: Option<Box<str>>,
    /// Local addresses that have a device: at most 16.
    pub available: Box<[AddressWithDevice]>,
    /// How many more there are.
    pub more: u32,
}

/// A local address, with its RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressWithDevice {
    /// The address.
    pub address: IpAddr,
    /// The device's name.
    pub device: Box<str>,
    /// The interface that has the address.
    pub netdev: Option<IfName>,
}

impl fmt::Display for NoDeviceForAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no RDMA device for {}", self.address)?;
        if let Some(netdev) = &self.netdev {
            write!(f, " on {netdev}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        if self.available.is_empty() {
            return f.write_str("; no address of this host has one");
        }
        f.write_str("; addresses that have one: ")?;
        for (number, there) in self.available.iter().enumerate() {
            write!(f, "{}{there}", if number == 0 { "" } else { ", " })?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl fmt::Display for AddressWithDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.address, self.device)?;
        match &self.netdev {
            Some(netdev) => write!(f, " on {netdev})"),
            None => f.write_str(")"),
        }
    }
}

impl std::error::Error for NoDeviceForAddress {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_lists_what_there_is() {
        let mut error = NoDeviceForAddress {
            address: [192, 0, 2, 1].into(),
            netdev: IfName::new("e0"),
            hint: None,
            available: Box::default(),
            more: 0,
        };
        assert_eq!(
            error.to_string(),
            "no RDMA device for 192.0.2.1 on e0; no address of this host has one"
        );
        let there = |device: &str, netdev| AddressWithDevice {
            address: [192, 0, 2, 9].into(),
            device: device.into(),
            netdev,
        };
        error.available = [there("rxe0", IfName::new("e1")), there("ib0", None)].into();
        (error.more, error.hint) = (3, Some("its GID is on e1".into()));
        assert_eq!(
            error.to_string(),
            "no RDMA device for 192.0.2.1 on e0 (its GID is on e1); addresses that have one: \
             192.0.2.9 (rxe0 on e1), 192.0.2.9 (ib0); and 3 more"
        );
    }
}
