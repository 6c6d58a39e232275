//! How plain values travel and are stored, by the feature `serde`: as text where people read them, as
//! bytes or numbers where they do not. What cannot be is refused on the way in.

use std::fmt;
use std::num::NonZeroU32;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{self, Serialize, Serializer};

use super::{
    Gid, GidEntry, GidIndex, GidType, Guid, IfName, Lid, Mtu, PKey, PortNum, Psn, QKey, Qpn, RKey,
    RemoteAccess, Subnet, Wanted,
};

/// A type that is a number, and which numbers it can be.
macro_rules! number {
    ($($name:ident($repr:ty), $get:expr, $make:expr, $expected:literal;)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let get: fn(&$name) -> $repr = $get;
                get(self).serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let number = <$repr>::deserialize(deserializer)?;
                let make: fn($repr) -> Option<$name> = $make;
                make(number).ok_or_else(|| {
                    D::Error::invalid_value(Unexpected::Unsigned(number.into()), &$expected)
                })
            }
        }
    )*};
}

number! {
    PortNum(u8), |port| port.get(), PortNum::new, "a port number, 1 to 255";
    GidIndex(u8), |index| index.get(), |index| Some(GidIndex::new(index)), "a GID index";
    Lid(u16), |lid| lid.0, |lid| Some(Lid(lid)), "a LID";
    PKey(u16), |pkey| pkey.get(), |pkey| Some(PKey::new(pkey)), "a P_Key";
    Qpn(u32), |qpn| qpn.get(), Qpn::new, "a queue pair number of 24 bits";
    Psn(u32), |psn| psn.get(), Psn::new, "a packet sequence number of 24 bits";
    QKey(u32), |qkey| qkey.get(), |qkey| Some(QKey::new(qkey)), "a queue key";
    RKey(u32), |rkey| rkey.get(), |rkey| Some(RKey::new(rkey)), "a remote key";
    RemoteAccess(u32), |access| access.bits(), known_access, "a set of remote access flags";
}

fn known_access(bits: u32) -> Option<RemoteAccess> {
    let all = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let access = RemoteAccess::from_bits(bits);
    all.contains(access).then_some(access)
}

/// As its size in bytes, which no format of its own has to be known for.
impl Serialize for Mtu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.bytes().and_then(|bytes| u16::try_from(bytes).ok());
        let unknown =
            || ser::Error::custom(format_args!("an MTU of code {} has no size", self.raw()));
        serializer.serialize_u16(bytes.ok_or_else(unknown)?)
    }
}

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mtu, D::Error> {
        let bytes = u16::deserialize(deserializer)?;
        let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        all.into_iter().find(|mtu| mtu.bytes() == Some(bytes.into())).ok_or_else(|| {
            let expected = "a path MTU: 256, 512, 1024, 2048 or 4096";
            D::Error::invalid_value(Unexpected::Unsigned(bytes.into()), &expected)
        })
    }
}

/// Reads a text by `read`, without a copy where the format has it whole.
struct Text<T> {
    expected: &'static str,
    read: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).map_err(E::custom)
    }
}

/// A type that is text for people, and bytes in network order otherwise.
macro_rules! text_or_bytes {
    ($($name:ident[$len:literal], $get:expr, $make:expr, $expected:literal;)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let get: fn(&$name) -> [u8; $len] = $get;
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    get(self).serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                if deserializer.is_human_readable() {
                    let read = |text: &str| text.parse().map_err(said);
                    deserializer.deserialize_str(Text { expected: $expected, read })
                } else {
                    let make: fn([u8; $len]) -> $name = $make;
                    <[u8; $len]>::deserialize(deserializer).map(make)
                }
            }
        }
    )*};
}

text_or_bytes! {
    Gid[16], |gid| gid.bytes(), Gid::from_bytes, "a GID";
    Guid[8], |guid| guid.get().to_be_bytes(), |bytes| Guid::new(u64::from_be_bytes(bytes)), "a GUID";
}

/// Types that are text everywhere, and how it is read. `Wanted` is only read: it is what people write into
/// settings, and reads an IPv6 address as the GID that it is.
macro_rules! read_text {
    ($($name:ident, $read:expr, $expected:literal;)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                deserializer.deserialize_str(Text { expected: $expected, read: $read })
            }
        }
    )*};
}

read_text! {
    IfName, |text| IfName::new(text).ok_or_else(|| no_name(text)), "the name of a network interface";
    Subnet, |text| text.parse().map_err(said), "a subnet";
    Wanted, |text| text.parse().map_err(said), "a GID, an IP address or an interface";
}

impl Serialize for IfName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Serialize for Subnet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn said(error: impl fmt::Display) -> String {
    error.to_string()
}

fn no_name(text: &str) -> String {
    let cut: String = text.chars().take(64).collect();
    format!("{cut:?} is no name of a network interface: 1 to 15 bytes without blank or slash")
}

const GID_TYPES: [GidType; 4] =
    [GidType::IB, GidType::ROCE_V1, GidType::ROCE_V2, GidType::UNRECOGNIZED];

/// For people by its name, a number that has none as the number; otherwise as the number.
impl Serialize for GidType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() && GID_TYPES.contains(self) {
            serializer.collect_str(self)
        } else {
            serializer.serialize_u32(self.raw())
        }
    }
}

impl<'de> Deserialize<'de> for GidType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GidType, D::Error> {
        struct NameOrNumber;

        impl Visitor<'_> for NameOrNumber {
            type Value = GidType;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a GID type: IB, RoCE v1, RoCE v2, or a number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<GidType, E> {
                let known = GID_TYPES.into_iter().find(|known| known.to_string() == text);
                known.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<GidType, E> {
                let raw = u32::try_from(number).ok().map(GidType::from_raw);
                raw.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
            }
        }

        if deserializer.is_human_readable() {
            deserializer.deserialize_any(NameOrNumber)
        } else {
            u32::deserialize(deserializer).map(GidType::from_raw)
        }
    }
}

/// A row as it is stored. Its generation counts changes in one process, and stays there.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "GidEntry")]
struct StoredRow {
    port: PortNum,
    index: u32,
    gid: Gid,
    #[serde(rename = "type")]
    gid_type: GidType,
    ifindex: Option<NonZeroU32>,
    netdev: Option<IfName>,
    type_assumed: bool,
}

impl Serialize for GidEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = StoredRow {
            port: self.port(),
            index: self.index(),
            gid: self.gid(),
            gid_type: self.gid_type(),
            ifindex: self.ifindex().and_then(NonZeroU32::new),
            netdev: self.netdev().and_then(IfName::new),
            type_assumed: self.type_assumed(),
        };
        row.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for GidEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GidEntry, D::Error> {
        let row = StoredRow::deserialize(deserializer)?;
        let entry = GidEntry::new(row.port, row.index, row.gid)
            .with_netdev(row.ifindex.map_or(0, NonZeroU32::get), row.netdev);
        Ok(match row.type_assumed {
            true => entry.with_assumed_type(row.gid_type),
            false => entry.with_type(row.gid_type),
        })
    }
}
