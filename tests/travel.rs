//! What travels by the feature `serde`: it comes back as it was, as text and as bytes, and what cannot be is
//! refused.

#![cfg(feature = "serde")]

use std::fmt::Debug;
use std::net::IpAddr;

use proptest::prelude::*;
use rdma_verbs::{
    Endpoint, Gid, GidEntry, GidIndex, GidType, Guid, IfName, Lid, Mtu, PKey, PortNum, Psn, Qpn,
    RKey, RemoteAccess, RemoteSlice, Subnet, Wanted,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// Through JSON, by text and by value, and through a binary format.
fn returns<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T) {
    let text = serde_json::to_string(&value).expect("JSON");
    let back: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(back, value, "{text}");
    let tree = serde_json::to_value(&value).expect("JSON");
    let back: T = serde_json::from_value(tree).expect("what was JSON");
    assert_eq!(back, value);
    let bytes = postcard::to_allocvec(&value).expect("bytes");
    let back: T = postcard::from_bytes(&bytes).expect("what was bytes");
    assert_eq!(back, value);
}

fn refused<T: DeserializeOwned + Debug>(value: serde_json::Value, why: &str) {
    let error = serde_json::from_value::<T>(value.clone()).expect_err("it cannot be").to_string();
    assert!(error.contains(why), "{value}: {error}");
}

fn mtus() -> impl Strategy<Value = Mtu> {
    (1..=5_u32).prop_map(Mtu::from_raw)
}

fn names() -> impl Strategy<Value = IfName> {
    "[!-.0-~]{1,15}".prop_map(|name| IfName::new(&name).expect("no blank and no slash"))
}

fn gids() -> impl Strategy<Value = Gid> {
    let any_gid = any::<[u8; 16]>().prop_map(Gid::from_bytes);
    prop_oneof![any_gid, any::<IpAddr>().prop_map(Gid::from)]
}

fn types() -> impl Strategy<Value = GidType> {
    prop_oneof![0..4_u32, any::<u32>(), Just(u32::MAX)].prop_map(GidType::from_raw)
}

fn ports() -> impl Strategy<Value = PortNum> {
    (1..=u8::MAX).prop_map(|port| PortNum::new(port).expect("not 0"))
}

fn access() -> impl Strategy<Value = RemoteAccess> {
    (0..8_u32).prop_map(|bits| RemoteAccess::from_bits(bits << 1))
}

fn endpoints() -> impl Strategy<Value = Endpoint> {
    let numbers = (0..1_u32 << 24, 0..1_u32 << 24, any::<u16>());
    let told = (proptest::option::of(mtus()), any::<Option<u8>>(), proptest::option::of(access()));
    (numbers, proptest::option::of(gids()), told).prop_map(|((qpn, psn, lid), gid, told)| {
        let (mtu, reads, access) = told;
        let (qpn, psn) = (Qpn::new(qpn).expect("24 bits"), Psn::new(psn).expect("24 bits"));
        Endpoint { qpn, psn, gid, lid: Lid(lid), mtu, reads, access }
    })
}

proptest! {
    #[test]
    fn addresses_come_back(gid in gids(), guid in any::<u64>(), name in names(), gid_type in types()) {
        returns(gid);
        returns(Guid::new(guid));
        returns(name);
        returns(gid_type);
    }

    #[test]
    fn numbers_come_back(port in ports(), index in any::<u8>(), number in 0..1_u32 << 24, key in any::<u32>()) {
        returns(port);
        returns(GidIndex::new(index));
        returns(Qpn::new(number));
        returns(Psn::new(number));
        returns(RKey::new(key));
        returns(Lid(key as u16));
        returns(PKey::new(key as u16));
    }

    #[test]
    fn what_a_peer_is_told_comes_back(
        endpoint in endpoints(), address in any::<u64>(), len in any::<u64>(), key in any::<u32>(),
    ) {
        returns(endpoint);
        returns(RemoteSlice::new(address, len, RKey::new(key)));
    }

    #[test]
    fn rows_come_back(
        port in ports(), index in any::<u32>(), gid in gids(), gid_type in types(),
        ifindex in any::<u32>(), name in proptest::option::of(names()),
    ) {
        returns(GidEntry::new(port, index, gid).with_type(gid_type).with_netdev(ifindex, name));
    }

    #[test]
    fn subnets_come_back(ip in any::<IpAddr>(), prefix in 0..=32_u8) {
        returns(Subnet::new(ip, prefix).expect("at most 32"));
    }

    /// Whatever a peer sends is a value or an error, and a value is one that can be.
    #[test]
    fn any_bytes_are_an_endpoint_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(endpoint) = postcard::from_bytes::<Endpoint>(&bytes) {
            prop_assert!(endpoint.qpn.get() < 1 << 24 && endpoint.psn.get() < 1 << 24);
            prop_assert!(endpoint.mtu.is_none_or(|mtu| mtu.bytes().is_some()));
            returns(endpoint);
        }
    }
}

/// What others read and write: it does not change.
#[test]
fn the_forms_are_these() {
    let gid: Gid = "::ffff:192.0.2.10".parse().expect("a GID");
    let qpn = Qpn::new(0x11).expect("24 bits");
    let endpoint = Endpoint {
        mtu: Some(Mtu::B1024),
        access: Some(RemoteAccess::WRITE),
        ..Endpoint::new(qpn, Psn::new(0x123456).expect("24 bits"), gid)
    };
    assert_eq!(
        serde_json::to_value(endpoint).expect("JSON"),
        json!({"qpn": 17, "psn": 0x123456, "gid": "::ffff:192.0.2.10", "lid": 0, "mtu": 1024,
               "reads": null, "access": 2})
    );
    let row = GidEntry::new(PortNum::FIRST, 3, gid).with_type(GidType::ROCE_V2);
    assert_eq!(
        serde_json::to_value(row.with_netdev(7, IfName::new("eth2"))).expect("JSON"),
        json!({"port": 1, "index": 3, "gid": "::ffff:192.0.2.10", "type": "RoCE v2", "ifindex": 7,
               "netdev": "eth2", "type_assumed": false})
    );
    let slice = RemoteSlice::new(0x7f00_0000_1000, 4096, RKey::new(0x1234));
    assert_eq!(
        serde_json::to_value(slice).expect("JSON"),
        json!({"address": 0x7f00_0000_1000_u64, "len": 4096, "rkey": 0x1234})
    );
    let guid = Guid::new(0x0002_c903_00a1_b2c3);
    assert_eq!(serde_json::to_value(guid).expect("JSON"), json!("0002:c903:00a1:b2c3"));
    assert_eq!(serde_json::to_value(GidType::from_raw(9)).expect("JSON"), json!(9));
    assert_eq!(postcard::to_allocvec(&gid).expect("bytes"), gid.bytes(), "16 bytes and no more");
    assert_eq!(postcard::to_allocvec(&guid).expect("bytes"), guid.get().to_be_bytes());
    // Another spelling is the same GID: the parser is the one of FromStr.
    let spelt: Gid = serde_json::from_value(json!("0xfe80000000000000:0x0002c90300a1b2c3"))
        .expect("prefix and GUID");
    assert_eq!(spelt, "fe80::2:c903:a1:b2c3".parse().expect("a GID"));
    // What people write into settings.
    for text in ["192.0.2.1", "fe80::1", "eth2"] {
        let wanted: Wanted = serde_json::from_value(json!(text)).expect(text);
        assert_eq!(text.parse(), Ok(wanted));
    }
    refused::<Wanted>(json!("192.0.2"), "no IPv4 address");
}

#[test]
fn what_cannot_be_is_refused_and_told() {
    refused::<Gid>(json!("192.0.2.1"), "is no GID");
    refused::<Gid>(json!(7), "a GID");
    refused::<Guid>(json!("2:3"), "is no GUID");
    refused::<IfName>(json!("sixteen-bytes-xx"), "no name of a network interface");
    refused::<IfName>(json!("a/b"), "no name of a network interface");
    refused::<PortNum>(json!(0), "a port number, 1 to 255");
    refused::<PortNum>(json!(256), "256");
    refused::<Qpn>(json!(1 << 24), "a queue pair number of 24 bits");
    refused::<Psn>(json!(1 << 24), "a packet sequence number of 24 bits");
    refused::<Mtu>(json!(1500), "256, 512, 1024, 2048 or 4096");
    refused::<Mtu>(json!(5), "256, 512, 1024, 2048 or 4096");
    refused::<RemoteAccess>(json!(1), "a set of remote access flags");
    refused::<GidType>(json!("RoCE v3"), "a GID type");
    refused::<GidType>(json!(1_u64 << 32), "a GID type");
    refused::<Subnet>(json!("192.0.2.0/33"), "from 0 to 32");
    refused::<Endpoint>(json!({"qpn": 1}), "missing field");
    let error = serde_json::to_string(&Mtu::from_raw(6)).expect_err("no size").to_string();
    assert!(error.contains("an MTU of code 6"), "{error}");
    // Bytes that end early.
    assert!(postcard::from_bytes::<Gid>(&[0; 15]).is_err());
}
