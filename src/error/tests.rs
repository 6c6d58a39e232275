//! What errors say, and how large they are.

use super::*;

#[test]
fn errors_name_object_limit_and_what_was_asked() {
    let port = PortNum::new(1).expect("1 is a port number");
    let error = Error::GidIndexOutOfRange { object: Object::row("rxe0", port, 4096), len: 1024 };
    assert_eq!(
        error.to_string(),
        "rxe0 port 1 index 4096 is outside the GID table: its length is 1024"
    );
    let error =
        Error::NoSuchDevice { name: "rxe9".into(), available: vec!["rxe0".into(), "rxe1".into()] };
    assert_eq!(error.to_string(), "no RDMA device named \"rxe9\"; there is rxe0, rxe1");
    let error = Error::NoSuchDevice { name: "rxe9".into(), available: vec![] };
    assert_eq!(error.to_string(), "no RDMA device named \"rxe9\"; there is no RDMA device");
}

#[test]
fn errors_of_paths() {
    let netdev = IfName::new("e0").expect("a name");
    let neighbour = IpAddr::from([192, 0, 2, 1]);
    let text = |remembered| Error::Unreachable { neighbour, netdev, remembered }.to_string();
    assert_eq!(
        text(None),
        "192.0.2.1 on e0 does not answer: the kernel asked for its hardware address in vain"
    );
    assert_eq!(
        text(Some(Duration::from_millis(250))),
        "192.0.2.1 on e0 does not answer: found out 250ms ago, and not asked again so soon"
    );
    let waited = Duration::from_millis(500);
    assert_eq!(
        Error::ResolveTimeout { neighbour, netdev, waited }.to_string(),
        "192.0.2.1 on e0 has not answered within 500ms: the kernel still asks"
    );
}

#[test]
fn an_error_stays_small_enough_to_return() {
    assert!(size_of::<Error>() <= 64, "{}", size_of::<Error>());
}
