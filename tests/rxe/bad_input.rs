//! Ports and indices out of range, devices that go: a typed error, never a panic.

use std::path::Path;
use std::time::{Duration, Instant};

use rdma_verbs::{DeviceList, Errno, Error, PortNum};

use super::rig::{Rig, alone, wait_until};

#[test]
fn a_port_that_is_not_there() {
    let rig = Rig::new();
    let context = rig.open();
    for number in [2, 255] {
        let port = PortNum::new(number).expect("a port number");
        let error = context.port(port).expect_err("rxe has one port");
        assert_eq!(
            error.to_string(),
            format!("{} has no port {number}: its ports are 1 to 1", rig.device)
        );
        assert!(matches!(context.query_gid(port, 0), Err(Error::NoSuchPort { ports: 1, .. })));
        assert_eq!(context.gids().cached().port(port), None);
    }
}

#[test]
fn an_index_that_is_not_there() {
    let rig = Rig::new();
    let context = rig.open();
    for index in [1024, u32::MAX] {
        let error = context.query_gid(PortNum::FIRST, index).expect_err("1024 rows");
        let expected = format!(
            "{} port 1 index {index} is outside the GID table: its length is 1024",
            rig.device
        );
        assert_eq!(error.to_string(), expected);
    }
    let error = context.query_gid(PortNum::FIRST, 1023).expect_err("an empty row");
    assert!(matches!(error, Error::GidRowEmpty { .. }), "{error}");
}

#[test]
fn a_device_that_is_not_there() {
    let rig = Rig::new();
    let list = DeviceList::new().expect("devices can be listed");
    let error = list.find("no-such-device").expect_err("it is not listed").to_string();
    assert!(error.contains("no RDMA device named \"no-such-device\""), "{error}");
    assert!(error.contains(&rig.device), "it lists what there is: {error}");
}

#[test]
fn a_device_that_went_between_listing_and_opening() {
    let mut rig = Rig::new();
    let device = rig.listed();
    rig.remove();
    let begun = Instant::now();
    let error = device.open().expect_err("it has gone");
    assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("{} has gone", rig.device)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2), "no stall: {:?}", begun.elapsed());
    let error = device.gids_from_sysfs().expect_err("it has gone").to_string();
    assert!(error.contains("ENOENT"), "{error}");
}

/// Another device comes behind the node of one that went: it is not taken for the one listed.
#[test]
fn a_node_that_is_anothers_by_now() {
    let _alone = alone();
    let mut first = Rig::within_alone();
    let listed = first.listed();
    first.remove();
    let second = Rig::within_alone();
    assert_eq!(second.listed().node(), listed.node(), "the kernel numbers nodes anew");
    let error = listed.open().expect_err("it has gone");
    assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
    second.open();
}

/// The network interface goes while the device is open: rows vanish, the port says so.
#[test]
fn a_device_that_goes_while_it_is_open() {
    let mut rig = Rig::new();
    let context = rig.open();
    let kept = context.gids().cached().to_arc();
    let device = rig.listed();
    let mut removal = rig.begin_removal();
    let node = device.node();
    let class = Path::new("/sys/class/infiniband_verbs").join(node.file_name().expect("a name"));
    wait_until("the node has gone", || !node.exists() && !class.exists());
    let error = device.open().expect_err("it is being removed");
    assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
    let error = context.port(PortNum::FIRST).expect_err("its interface has gone");
    assert!(matches!(error, Error::Verb { errno: Errno::ENODEV, .. }), "{error}");
    wait_until("the rows have gone", || {
        context.gids().fresh().expect("the table can still be read").rows().is_empty()
    });
    assert!(!kept.rows().is_empty(), "a kept snapshot never changes");
    drop(context);
    let status = removal.wait().expect("the removal ends");
    assert!(status.success(), "{status}");
}
