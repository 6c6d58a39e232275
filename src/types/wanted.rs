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

/// A text that is no GID, IP address or name of a network interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is {problem}")]
pub struct ParseWantedError {
    /// The text as given, cut at 64 characters.
    text: Box<str>,
    problem: Box<str>,
}

impl FromStr for Wanted {
    type Err = ParseWantedError;

    /// Digits and dots are an IPv4 address; what has a colon is a GID (an IPv6 address is one); all
    /// else is the name of a network interface.
    fn from_str(text: &str) -> Result<Wanted, ParseWantedError> {
        let trimmed = text.trim();
        let fail = |problem: &str| ParseWantedError {
            text: text.chars().take(64).collect(),
            problem: problem.into(),
        };
        if trimmed.contains(':') {
            let gid: Result<_, ParseGidError> = trimmed.parse();
            return gid
                .map(Wanted::Gid)
                .map_err(|error| fail(&format!("no GID: {}", error.problem())));
        }
        if !trimmed.is_empty() && trimmed.bytes().all(|b| b == b'.' || b.is_ascii_digit()) {
            let ip: Result<Ipv4Addr, _> = trimmed.parse();
            return ip.map(|ip| Wanted::Ip(ip.into())).map_err(|_| fail("no IPv4 address"));
        }
        let name = IfName::new(trimmed).map(Wanted::Netdev);
        name.ok_or_else(|| fail("no GID, no IP address, and no name of a network interface"))
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
        for (bad, problem) in [
            ("", "no GID, no IP address, and no name"),
            ("a-name-too-long-for-one", "no GID, no IP address, and no name"),
            ("192.0.2.10/24", "no GID, no IP address, and no name"),
            ("192.0.2.300", "no IPv4 address"),
            ("192.0.2.010", "no IPv4 address"),
            ("192.0.2", "no IPv4 address"),
            ("fe80::1%e0", "scope suffix"),
        ] {
            let error = bad.parse::<Wanted>().expect_err(bad).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
