//! States of addresses and interfaces, and peers that are none.

use super::*;

/// Addresses that another host has, that are still being checked, that are on their way out, or made up
/// for a time.
#[test]
fn addresses_in_other_states() {
    let rows = "rxe0: 1 0 2001:db8::1 v2 e | 1 1 2001:db8::2 v2 e";
    for (flags, verdict) in [
        (libc::IFA_F_DADFAILED, "Rejected(Duplicate)"),
        (libc::IFA_F_TENTATIVE, "Rejected(Tentative)"),
        (libc::IFA_F_DEPRECATED, "Behind(Passing)"),
        (libc::IFA_F_TEMPORARY, "Behind(Passing)"),
    ] {
        let host = directory(rows, &format!("e 2001:db8::1/64+{flags} e 2001:db8::2/64"));
        let expected = ["rxe0 1 1: Best".to_owned(), format!("rxe0 1 0: {verdict}")];
        assert_eq!(explained(&GidQuery::new(), &host), expected, "{flags:#x}");
        let peer = ip("2001:db8::99");
        assert_eq!(best(&GidQuery::new().peer(peer), &host).2, 1);
        assert_eq!(host.towards(peer).map(|row| row.entry().index()), Some(1));
    }
}

/// A VLAN that is down on a port that is up.
#[test]
fn an_interface_that_is_down() {
    let host = directory(
        "rxe0: 1 0 ::ffff:192.0.2.1 v2 e.9 | 1 1 ::ffff:198.51.100.1 v2 e",
        "e.9! 192.0.2.1/24 e 198.51.100.1/24",
    );
    let peer = ip("192.0.2.9");
    let query = GidQuery::new().peer(peer);
    assert_eq!(explained(&query, &host), ["rxe0 1 1: Best", "rxe0 1 0: Behind(State)"]);
    assert_eq!(host.towards(peer).map(|row| row.entry().index()), Some(1));
}

/// One address with two prefixes reaches what either holds.
#[test]
fn an_address_with_two_prefixes() {
    let host = directory("rxe0: 1 0 ::ffff:192.0.2.1 v1 e", "e 192.0.2.1/24 e 192.0.2.1/32");
    let peer = ip("192.0.2.9");
    assert_eq!(best(&GidQuery::new().peer(peer), &host).2, 0);
    assert_eq!(host.towards(peer).map(|row| row.entry().index()), Some(0));
    assert_eq!(host.towards(ip("192.0.3.9")), None, "RoCE v1 is not routed");
}

/// Addresses that no host on a network has.
#[test]
fn what_is_no_peer() {
    let host = directory(
        "rxe0: 1 0 ::ffff:192.0.2.1 v2 e | 1 1 2001:db8::1 v2 e",
        "e 192.0.2.1/24 e 2001:db8::1/64",
    );
    for peer in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "127.0.0.1", "::1"] {
        let peer = ip(peer);
        let error = GidQuery::new().peer(peer).best(&host).expect_err("no peer").to_string();
        assert!(error.contains("the peer's address is no host's"), "{error}");
        assert_eq!(host.towards(peer), None);
    }
}

/// A row by its place has what every other lookup tells of it.
#[test]
fn a_row_by_its_place() {
    let host = directory(
        "a: 1 3 ::ffff:192.0.2.1 v2 e\nb: 1 0 fe80::1 v2 e | 1 7 ::ffff:192.0.2.250 v2 e",
        "e 192.0.2.1/24 e fe80::1/64",
    );
    let at = |device, index| host.row(device, PortNum::FIRST, index);
    assert_eq!(at("a", 3), host.by_ip(ip("192.0.2.1")).next());
    assert_eq!(at("b", 7).map(DirectoryRow::is_local), Some(false));
    assert_eq!(at("b", 7).and_then(|row| row.entry().netdev()), None);
    assert_eq!((at("b", 1), at("c", 0)), (None, None));
}
