//! A range of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// An IP address and how many of its leading bits count: `198.51.100.128/25`, `2001:db8:1::/48`.
///
/// Bits behind the prefix are dropped. An IPv4-mapped IPv6 range of 96 bits or more is the IPv4
/// range it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subnet {
    /// As IPv6, IPv4 ones mapped; zero behind the prefix.
    bits: u128,
    /// Of the 128.
    len: u8,
}

/// A text that is no range of addresses, or a prefix longer than the address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no subnet: {problem}")]
pub struct ParseSubnetError {
    /// The text as given, cut at 64 characters.
    text: Box<str>,
    problem: Box<str>,
}

impl Subnet {
    /// The range; `None` when the prefix is longer than the address: 32 for IPv4, 128 for IPv6.
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Subnet> {
        let (bits, len) = match ip {
            IpAddr::V4(ip) if prefix <= 32 => (ip.to_ipv6_mapped().to_bits(), 96 + prefix),
            IpAddr::V6(ip) if prefix <= 128 => (ip.to_bits(), prefix),
            _ => return None,
        };
        Some(Subnet { bits: bits & mask(len), len })
    }

    /// Whether the address is in the range. IPv4 ranges hold IPv4 addresses, and IPv6 ranges IPv6
    /// ones; a mapped address is an IPv4 one.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (bits, v4) = match ip {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped().to_bits(), true),
            IpAddr::V6(ip) => (ip.to_bits(), ip.to_ipv4_mapped().is_some()),
        };
        v4 == self.is_ipv4() && bits & mask(self.len) == self.bits
    }

    /// The first address.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from_bits(self.bits).to_canonical()
    }

    /// The prefix's length: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub fn prefix(&self) -> u8 {
        if self.is_ipv4() { self.len - 96 } else { self.len }
    }

    /// Whether it is a range of IPv4 addresses.
    fn is_ipv4(&self) -> bool {
        self.len >= 96 && Ipv6Addr::from_bits(self.bits).to_ipv4_mapped().is_some()
    }
}

/// The leading `len` bits of 128.
fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl FromStr for Subnet {
    type Err = ParseSubnetError;

    fn from_str(text: &str) -> Result<Subnet, ParseSubnetError> {
        let fail = |problem: String| ParseSubnetError {
            text: text.chars().take(64).collect(),
            problem: problem.into(),
        };
        let (ip, prefix) = text
            .trim()
            .split_once('/')
            .ok_or_else(|| fail("an address, a slash and a prefix length are wanted".into()))?;
        let ip: IpAddr = ip.parse().map_err(|_| fail(format!("{ip:?} is no IP address")))?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let number = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|_| number);
        prefix
            .and_then(|prefix| Subnet::new(ip, prefix))
            .ok_or_else(|| fail(format!("the prefix length is a number from 0 to {most}")))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip(), self.prefix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(subnet: &str, ip: &str) -> bool {
        let subnet: Subnet = subnet.parse().expect(subnet);
        subnet.contains(ip.parse().expect(ip))
    }

    #[test]
    fn ranges() {
        assert!(holds("198.51.100.128/25", "198.51.100.128"));
        assert!(holds("198.51.100.128/25", "198.51.100.255"));
        assert!(!holds("198.51.100.128/25", "198.51.100.127"));
        assert!(holds("198.51.100.200/25", "198.51.100.129"), "host bits are dropped");
        assert!(holds("0.0.0.0/0", "203.0.113.9"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1"), "IPv4 only");
        assert!(holds("192.0.2.7/32", "192.0.2.7"));
        assert!(!holds("192.0.2.7/32", "192.0.2.8"));
        assert!(holds("2001:db8:1::/48", "2001:db8:1:ffff::1"));
        assert!(!holds("2001:db8:1::/48", "2001:db8:2::1"));
        assert!(holds("::/0", "fe80::1"));
        assert!(!holds("::/0", "192.0.2.1"), "IPv6 only");
        assert!(!holds("::/0", "::ffff:192.0.2.1"), "a mapped address is IPv4");
        assert!(holds("::ffff:192.0.2.0/120", "192.0.2.9"));
        assert!(holds("2001:db8::1/128", "2001:db8::1"));
    }

    #[test]
    fn prints_what_it_is() {
        for (text, printed) in [
            ("198.51.100.200/25", "198.51.100.128/25"),
            (" 10.0.0.0/8\n", "10.0.0.0/8"),
            ("2001:db8:1::9/48", "2001:db8:1::/48"),
            ("::ffff:192.0.2.9/120", "192.0.2.0/24"),
        ] {
            let subnet: Subnet = text.parse().expect(text);
            assert_eq!(subnet.to_string(), printed);
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for (text, problem) in [
            ("198.51.100.0/33", "from 0 to 32"),
            ("2001:db8::/129", "from 0 to 128"),
            ("198.51.100.0/-1", "from 0 to 32"),
            ("198.51.100.0/+1", "from 0 to 32"),
            ("198.51.100.0/", "from 0 to 32"),
            ("198.51.100.0", "a slash"),
            ("e0/24", "no IP address"),
            ("fe80::1%e0/64", "no IP address"),
        ] {
            let error = text.parse::<Subnet>().expect_err(text).to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert_eq!(Subnet::new("192.0.2.1".parse().expect("an address"), 33), None);
    }
}
