//! Listing, opening, limits and ports.

use rdma_verbs::TransportType;
use rdma_verbs::{DeviceCaps, DeviceList, GidType, LinkLayer, Mtu, NodeType, PortNum, PortState};

use super::rig::{Rig, alone};

#[test]
fn a_device_is_listed_with_its_names_and_numbers() {
    let rig = Rig::new();
    let device = rig.listed();
    assert_eq!(device.name(), rig.device);
    assert!(device.node().starts_with("/dev/infiniband"), "{}", device.node().display());
    assert!(device.node().exists());
    assert_eq!(
        device.sysfs_path(),
        std::path::Path::new("/sys/class/infiniband").join(&rig.device)
    );
    assert_ne!(device.guid().get(), 0);
    assert!(device.index().is_some(), "kernel and library tell the device's number");
    assert_eq!(device.node_type(), NodeType::CA);
    assert_eq!(device.transport_type(), TransportType::IB);
    let list = DeviceList::new().expect("devices can be listed");
    assert!(!list.is_empty());
    assert_eq!(list.absence(), None);
}

/// The extended query answers on a real provider, which rdma-sys's lookup never finds: the fields
/// that only it fills are there.
#[test]
fn limits_are_those_of_rxe() {
    let rig = Rig::new();
    let context = rig.open();
    let limits = context.limits();
    assert_eq!(limits.ports, 1);
    assert_eq!(limits.node_guid, rig.listed().guid());
    assert_eq!(limits.max_cqe, 32767);
    assert_eq!(limits.max_sge, 32);
    assert_eq!(limits.max_srq_sge, 27);
    assert!(limits.completion_vectors >= 1);
    assert!(limits.capabilities.contains(DeviceCaps::MEM_WINDOW));
    let context_of_seam = crate::seam::open(&rig.device);
    let raw = context_of_seam.query_device().expect("the query answers");
    assert_eq!(raw.phys_port_cnt_ex, 1, "a field that only the extended query fills");
}

#[test]
fn a_port_tells_its_state() {
    let rig = Rig::new();
    let context = rig.open();
    assert_eq!(context.ports().collect::<Vec<_>>(), [PortNum::FIRST]);
    let port = context.port(PortNum::FIRST).expect("port 1 answers");
    assert_eq!(port.state, PortState::ACTIVE);
    assert_eq!(port.link_layer, LinkLayer::ETHERNET);
    assert_eq!(port.gid_table_len, 1024);
    assert_eq!(port.pkey_table_len, 1);
    assert_eq!((port.max_mtu, port.active_mtu), (Mtu::B4096, Mtu::B1024));
    assert!(port.grh_required && port.needs_gid());
    super::rig::ip(&["link", "set", &rig.netdev, "down"]);
    super::rig::wait_until("the port is down", || {
        context.port(PortNum::FIRST).expect("port 1 answers").state == PortState::DOWN
    });
}

#[test]
fn the_default_gid_is_row_0() {
    let rig = Rig::new();
    let context = rig.open();
    let gids = context.gids().cached();
    let row = gids.row(PortNum::FIRST, 0).expect("row 0");
    assert_eq!(row.gid_type(), GidType::ROCE_V2);
    assert_eq!(row.netdev(), Some(&*rig.netdev));
    assert_eq!(context.query_gid(PortNum::FIRST, 0).expect("row 0"), row.gid());
}

/// Descriptors are back where they were after many opens, however they were dropped.
#[test]
fn closing_gives_everything_back() {
    // The programs under test open every device there is.
    let _alone = alone();
    let rig = Rig::within_alone();
    let node = rig.listed().node();
    let open_nodes = || {
        let links = std::fs::read_dir("/proc/self/fd").expect("own descriptors").flatten();
        links.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == node)).count()
    };
    for _ in 0..20 {
        let context = rig.open();
        let clone = context.clone();
        drop(context);
        assert_eq!(open_nodes(), 1);
        assert!(clone.port(PortNum::FIRST).is_ok(), "open while a clone lives");
    }
    assert_eq!(open_nodes(), 0);
}
