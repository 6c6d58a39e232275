//! What a GID lookup can be asked for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use super::{Gid, IfName, ParseGidError};

/// What a GID table is searched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Wanted {
    /// This GID, on any link.
    Gid(Gid),
    /// This IP address: rows of RoCE ports only, since an InfiniBand GID is no IP address.
    Ip(IpAddr),
    /// Any row of the network interface that has this name now.
    Netdev(IfName),
}

impl FromStr for Wanted {
    type Err = ParseGidError;

    /// An IPv4 address; else, with a colon in it, a GID (an IPv6 address is one); else the name
    /// of a network interface.
    fn from_str(text: &str) -> Result<Wanted, ParseGidError> {
        let trimmed = text.trim();
        if let Ok(ip) = trimmed.parse::<Ipv4Addr>() {
            return Ok(Wanted::Ip(ip.into()));
        }
        match IfName::new(trimmed) {
            Some(name) if !trimmed.contains(':') => Ok(Wanted::Netdev(name)),
            _ => text.parse().map(Wanted::Gid),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Gid(gid) => write!(f, "GID {gid}"),
            Wanted::Ip(ip) => write!(f, "IP {ip}"),
            Wanted::Netdev(name) => write!(f, "netdev {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, printed) in [
            ("192.0.2.10", "IP 192.0.2.10"),
            ("::ffff:192.0.2.10", "GID ::ffff:192.0.2.10"),
            ("fe80::1\n", "GID fe80::1"),
            ("e0.100", "netdev e0.100"),
        ] {
            assert_eq!(text.parse::<Wanted>().map(|w| w.to_string()), Ok(printed.into()), "{text}");
        }
        for bad in ["", "a name too long for one", "fe80::1%e0", "a/b"] {
            assert!(bad.parse::<Wanted>().is_err(), "{bad:?}");
        }
    }
}
