//! Reading a GID from text, in every spelling that can mean only one thing.

use std::net::Ipv6Addr;
use std::str::FromStr;

use super::{Gid, Guid};

/// A text that is no GID, or could be two.
///
/// A GID is read from the forms that people paste from one tool into another: full or compressed
/// IPv6 (`fe80::2:c903:a1:b2c3`, any case), with the last 32 bits as IPv4 (`::ffff:192.0.2.10`),
/// 16 hex bytes (`fe:80:00:…`), and prefix and GUID (`0xfe80000000000000:0x0002c90300a1b2c3`).
/// Blanks around it are dropped. Sixteen **decimal** bytes, as `perftest` prints them, are
/// refused, and so are sixteen pairs of digits that could be hex or decimal and differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no GID: {problem}")]
pub struct ParseGidError {
    /// The text as given, cut at 64 characters.
    text: Box<str>,
    /// What is wrong with it.
    problem: &'static str,
}

impl ParseGidError {
    /// What is wrong with the text.
    pub fn problem(&self) -> &str {
        self.problem
    }
}

impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Gid, ParseGidError> {
        let fail = |problem| ParseGidError { text: text.chars().take(64).collect(), problem };
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(fail("it is empty"));
        }
        if trimmed.contains('%') {
            return Err(fail("a GID has no scope suffix (%interface)"));
        }
        if let Some(prefix_and_guid) = trimmed.strip_prefix("0x").or(trimmed.strip_prefix("0X")) {
            return prefix_and_interface(prefix_and_guid)
                .ok_or_else(|| fail("a prefix and a GUID are 0x and 16 hex digits each"));
        }
        let groups = trimmed.split(':').count();
        if groups > 9 {
            return byte_list(trimmed, groups).map_err(fail);
        }
        match trimmed.parse::<Ipv6Addr>() {
            Ok(ip) => Ok(ip.into()),
            Err(_) if trimmed.contains(':') => Err(fail("not an IPv6 address nor 16 hex bytes")),
            Err(_) if trimmed.contains('.') => {
                Err(fail("a bare IPv4 address is no GID; its GID is ::ffff: and the address"))
            }
            Err(_) => Err(fail("it has no colons")),
        }
    }
}

/// A text that is no GUID.
///
/// A GUID is read as the tools print it: four groups of four hex digits (`0002:c903:00a1:b2c3`), or 16
/// hex digits behind `0x` (`ibstat`). Blanks around it are dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no GUID: it is four groups of four hex digits, or 0x and 16 of them")]
pub struct ParseGuidError {
    /// The text as given, cut at 64 characters.
    text: Box<str>,
}

impl FromStr for Guid {
    type Err = ParseGuidError;

    fn from_str(text: &str) -> Result<Guid, ParseGuidError> {
        let trimmed = text.trim();
        let guid = match trimmed.strip_prefix("0x").or(trimmed.strip_prefix("0X")) {
            Some(digits) => hex(digits, 16),
            None => {
                let mut groups = trimmed.split(':');
                let four = |_| hex(groups.next()?, 4);
                let parts: Option<Vec<u64>> = (0..4).map(four).collect();
                let whole = parts.filter(|_| groups.next().is_none());
                whole.map(|parts| parts.iter().fold(0, |guid, part| guid << 16 | part))
            }
        };
        guid.map(Guid::new).ok_or_else(|| ParseGuidError { text: text.chars().take(64).collect() })
    }
}

/// The number of exactly so many hex digits.
fn hex(digits: &str, count: usize) -> Option<u64> {
    let all_hex = digits.len() == count && digits.bytes().all(|b| b.is_ascii_hexdigit());
    all_hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// `fe80000000000000:0x0002c90300a1b2c3`, the leading `0x` taken off already.
fn prefix_and_interface(text: &str) -> Option<Gid> {
    let (prefix, interface) = text.split_once(':')?;
    let interface = interface.strip_prefix("0x").or(interface.strip_prefix("0X"))?;
    Some(Gid::from_parts(hex(prefix, 16)?, hex(interface, 16)?))
}

/// Sixteen bytes of two hex digits each, where no decimal reading could be meant.
fn byte_list(text: &str, groups: usize) -> Result<Gid, &'static str> {
    if groups != 16 {
        return Err("a list of bytes has 16 of them");
    }
    let mut bytes = [0; 16];
    let mut surely_hex = false;
    let mut differs = false;
    for (byte, group) in bytes.iter_mut().zip(text.split(':')) {
        if group.len() > 2 {
            return Err("a group of more than two digits: decimal bytes are not read as hex");
        }
        if group.len() != 2 || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("each of 16 bytes is two hex digits");
        }
        *byte = u8::from_str_radix(group, 16).map_err(|_| "each of 16 bytes is two hex digits")?;
        match group.parse::<u8>() {
            Ok(decimal) => differs |= decimal != *byte,
            Err(_) => surely_hex = true,
        }
    }
    if differs && !surely_hex {
        return Err("these 16 bytes could be hex or decimal: write it as an IPv6 address");
    }
    Ok(Gid::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One address in every spelling that the field's tools print.
    #[test]
    fn one_gid_many_spellings() {
        let gid = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 10));
        for text in [
            "::ffff:192.0.2.10",
            "0000:0000:0000:0000:0000:ffff:c000:020a",
            "::ffff:c000:20a",
            "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:0a",
            "::FFFF:C000:20A",
            "0000:0000:0000:0000:0000:FFFF:C000:020A",
            "00:00:00:00:00:00:00:00:00:00:FF:FF:C0:00:02:0A",
            "::ffff:192.0.2.10\n",
            "  ::ffff:192.0.2.10\t ",
        ] {
            assert_eq!(text.parse(), Ok(gid), "{text:?}");
        }
        let ib = Gid::from_parts(0xfe80_0000_0000_0000, 0x0002_c903_00a1_b2c3);
        for text in [
            "0xfe80000000000000:0x0002c90300a1b2c3",
            "0XFE80000000000000:0X0002C90300A1B2C3",
            "fe80::2:c903:a1:b2c3",
            "fe80:0000:0000:0000:0002:c903:00a1:b2c3",
            "fe:80:00:00:00:00:00:00:00:02:c9:03:00:a1:b2:c3",
        ] {
            assert_eq!(text.parse(), Ok(ib), "{text:?}");
        }
    }

    #[test]
    fn what_could_mean_something_else_is_refused() {
        for (text, problem) in [
            ("", "empty"),
            (" \n", "empty"),
            (":::", "not an IPv6"),
            ("fe80::1%eth0", "scope suffix"),
            ("192.0.2.10", "bare IPv4"),
            ("rxe0", "no colons"),
            // perftest's decimal bytes
            ("00:00:00:00:00:00:00:00:00:00:255:255:192:00:02:10", "more than two digits"),
            // 2001:db8::… in decimal bytes, all of two digits: hex 32:01 would be another address
            ("32:01:13:84:00:00:00:00:00:00:00:00:00:00:00:05", "hex or decimal"),
            // fifteen and seventeen bytes
            ("fe:80:00:00:00:00:00:00:00:02:c9:03:00:a1:b2", "16 of them"),
            ("fe:80:00:00:00:00:00:00:00:02:c9:03:00:a1:b2:c3:00", "16 of them"),
            ("fe:80:0:00:00:00:00:00:00:02:c9:03:00:a1:b2:c3", "two hex digits"),
            ("fe:80:+1:00:00:00:00:00:00:02:c9:03:00:a1:b2:c3", "two hex digits"),
            // two decimal numbers
            ("18338657682652659712:3298534883328", "not an IPv6"),
            ("0xfe80000000000000:0002c90300a1b2c3", "16 hex digits"),
            ("0xfe80:0x1", "16 hex digits"),
            ("0xfe80000000000000", "16 hex digits"),
            ("0x+e80000000000000:0x0002c90300a1b2c3", "16 hex digits"),
        ] {
            let error = text.parse::<Gid>().expect_err(text);
            assert!(error.to_string().contains(problem), "{text:?}: {error}");
        }
    }

    /// The same bytes in either reading are not ambiguous.
    #[test]
    fn small_bytes_are_the_same_in_hex_and_decimal() {
        let text = "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:09";
        assert_eq!(text.parse(), Ok(Gid::from_parts(0, 9)));
    }

    proptest! {
        #[test]
        fn both_printed_forms_parse_back(bytes: [u8; 16]) {
            let gid = Gid::from_bytes(bytes);
            prop_assert_eq!(gid.to_string().parse(), Ok(gid));
            prop_assert_eq!(gid.full().to_string().parse(), Ok(gid));
            prop_assert_eq!(gid.full().to_string().len(), 39);
        }

        #[test]
        fn no_text_panics(text in "[0-9a-fA-Fx:.% +]{0,60}|.{0,40}") {
            let _ = text.parse::<Gid>();
        }
    }

    #[test]
    fn guids_are_read_as_they_are_printed() {
        for guid in [0, 1, 0x0002_c903_00a1_b2c3, u64::MAX] {
            let guid = Guid::new(guid);
            assert_eq!(guid.to_string().parse(), Ok(guid));
            assert_eq!(format!(" {:#018x}\n", guid.get()).parse(), Ok(guid));
        }
        let bad = ["", "0x", "0002:c903:00a1", "0002:c903:00a1:b2c3:0", "2:c903:a1:b2c3"];
        for text in bad.into_iter().chain([
            "0x2c90300a1b2c3",
            "+002:c903:00a1:b2c3",
            "0x0002:c903:00a1:b2c3",
        ]) {
            assert!(text.parse::<Guid>().is_err(), "{text:?}");
        }
    }
}
