//! All devices at once: found together, followed as they come, change and go.
//!
//! Each test is alone: a directory opens the devices of all, and so delays their removal.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use rdma_verbs::{
    Criterion, Error, GidDirectory, GidQuery, Locality, PortNum, TableSource, Verdict,
};

use super::rig::{Rig, add_namespace, alone, ip, run, wait_until};

fn address(rig: &Rig, host: u8) -> IpAddr {
    Ipv4Addr::new(198, 18, rig.number(), host).into()
}

fn add(netdev: &str, address: IpAddr) {
    ip(&["addr", "add", &format!("{address}/24"), "dev", netdev]);
}

/// Waits until a checked lookup finds the address, on this device.
fn wait_for(directory: &GidDirectory, address: IpAddr, device: &str) {
    wait_until("the address is found", || {
        let snapshot = directory.checked().expect("a checked lookup");
        snapshot
            .by_ip(address)
            .any(|row| snapshot.device_of(row).is_some_and(|found| found.name() == device))
    });
}

/// Whether the device is listed.
fn has(directory: &GidDirectory, device: &str) -> bool {
    directory.checked().expect("a checked lookup").device(device).is_some()
}

#[test]
fn every_device_is_found_together() {
    let _alone = alone();
    let (one, two) = (Rig::within_alone(), Rig::within_alone());
    let directory = GidDirectory::open().expect("a directory");
    for rig in [&one, &two] {
        add(&rig.netdev, address(rig, 1));
        wait_for(&directory, address(rig, 1), &rig.device);
    }
    let snapshot = directory.cached();
    for rig in [&one, &two] {
        let row = snapshot.by_ip(address(rig, 1)).next().expect("a row");
        assert_eq!(snapshot.device_of(row).map(|device| device.name()), Some(&*rig.device));
        assert!(row.is_local());
        assert_eq!(row.entry().netdev(), Some(&*rig.netdev));
        assert!(snapshot.by_gid(&row.entry().gid()).any(|found| found == row));
        assert!(snapshot.by_netdev(&rig.netdev).any(|found| found == row));
        let device = snapshot.device(&rig.device).expect("the device");
        assert!(matches!(device.source(), TableSource::Device), "{device:?}");
        assert_eq!(device.port(PortNum::FIRST).map(|port| port.gid_table_len), Some(1024));
        // Row for row what the device's own cache has.
        let own = rig.open();
        let own = own.gids().fresh().expect("a read");
        assert_eq!(device.gids().rows(), own.rows());
    }
    assert!(snapshot.device("no-such-device").is_none());
    let query = GidQuery::new().ip(address(&two, 1));
    let choice = query.resolve_one(&snapshot).expect("the only one");
    assert_eq!((&*choice.device, choice.row.netdev()), (&*two.device, Some(&*two.netdev)));
}

/// Devices come and go under it; it lets go of one that is to be removed.
#[test]
fn hot_plug() {
    let _alone = alone();
    let directory = GidDirectory::open().expect("a directory");
    let mut rig = Rig::within_alone();
    wait_until("the new device is seen", || has(&directory, &rig.device));
    add(&rig.netdev, address(&rig, 1));
    wait_for(&directory, address(&rig, 1), &rig.device);
    let kept = directory.cached().to_arc();
    let mut removal = rig.begin_removal();
    wait_until("the device is gone", || !has(&directory, &rig.device));
    let status = removal.wait().expect("the removal ends");
    assert!(status.success(), "{status}");
    assert!(directory.cached().by_ip(address(&rig, 1)).is_empty());
    assert!(kept.device(&rig.device).is_some(), "a kept snapshot never changes");
}

/// A device removed and another added under its name: its rows are the new one's.
#[test]
fn another_device_under_the_same_name() {
    let _alone = alone();
    let directory = GidDirectory::open().expect("a directory");
    let rig = Rig::within_alone();
    wait_until("the first device is seen", || has(&directory, &rig.device));
    let other = format!("o{}", rig.number());
    ip(&["link", "add", &other, "type", "dummy"]);
    ip(&["link", "set", &other, "up"]);
    let watcher = directory.watch().expect("a watcher");
    run("/bin/rdma", &["link", "delete", &rig.device]);
    run("/bin/rdma", &["link", "add", &rig.device, "type", "rxe", "netdev", &other]);
    add(&other, address(&rig, 9));
    wait_for(&directory, address(&rig, 9), &rig.device);
    let netdevs: Vec<_> = {
        let snapshot = directory.cached();
        let device = snapshot.device(&rig.device).expect("the device");
        device.gids().rows().iter().map(|row| row.netdev().map(str::to_owned)).collect()
    };
    assert!(netdevs.iter().all(|netdev| netdev.as_deref() == Some(&*other)), "{netdevs:?}");
    run("/bin/rdma", &["link", "delete", &rig.device]);
    watcher.stop().expect("the watcher ran well");
    ip(&["link", "del", &other]);
}

/// A thread keeps `cached` true, and ends when it is told to.
#[test]
fn a_watcher_keeps_it_true() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let directory = GidDirectory::open().expect("a directory");
    let watcher = directory.watch().expect("a watcher");
    add(&rig.netdev, address(&rig, 1));
    wait_until("cached has it", || !directory.cached().by_ip(address(&rig, 1)).is_empty());
    assert!(watcher.is_running());
    let begun = Instant::now();
    watcher.stop().expect("it ran well");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    add(&rig.netdev, address(&rig, 2));
    wait_for(&directory, address(&rig, 2), &rig.device);
}

/// One GID on two devices is told, not guessed.
#[test]
fn one_address_on_two_devices() {
    let _alone = alone();
    let (one, two) = (Rig::within_alone(), Rig::within_alone());
    let directory = GidDirectory::open().expect("a directory");
    let shared = address(&one, 50);
    for rig in [&one, &two] {
        add(&rig.netdev, shared);
        wait_for(&directory, shared, &rig.device);
    }
    let snapshot = directory.cached();
    let query = GidQuery::new().ip(shared);
    assert_eq!(snapshot.by_ip(shared).count(), 2);
    assert!(matches!(query.resolve_one(&snapshot), Err(Error::Ambiguous { .. })));
    let choice = query.device(&two.device).resolve_one(&snapshot).expect("one");
    assert_eq!(&*choice.device, &*two.device);
}

/// A row of a port that is down comes after those of ports that are up.
#[test]
fn a_port_that_is_down_comes_last() {
    let _alone = alone();
    let (one, two) = (Rig::within_alone(), Rig::within_alone());
    let directory = GidDirectory::open().expect("a directory");
    let shared = address(&one, 60);
    for rig in [&one, &two] {
        add(&rig.netdev, shared);
        wait_for(&directory, shared, &rig.device);
    }
    let query = GidQuery::new().ip(shared);
    let first = query.best(&directory.cached()).expect("a row").device;
    let down = if *first == *one.device { &one } else { &two };
    ip(&["link", "set", &down.netdev, "down"]);
    wait_until("the other is best", || {
        let snapshot = directory.checked().expect("a checked lookup");
        query.best(&snapshot).expect("a row").device != first
    });
    let explanation = query.explain(&directory.cached());
    let of_first =
        explanation.rows().iter().find(|row| row.device == first && row.row.ip() == Some(shared));
    assert_eq!(of_first.map(|row| row.verdict), Some(Verdict::Behind(Criterion::State)));
}

/// An interface in another network namespace has its row in the same device's table: visible, and
/// not ours.
#[test]
fn rows_of_another_namespace_are_foreign() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let directory = GidDirectory::open().expect("a directory");
    let (namespace, macvlan) = (format!("ns{}", rig.number()), format!("m{}", rig.number()));
    add_namespace(&namespace);
    ip(&["link", "add", &macvlan, "link", &rig.netdev, "type", "macvlan"]);
    ip(&["link", "set", &macvlan, "netns", &namespace]);
    let foreign = address(&rig, 250);
    let inside = |arguments: &[&str]| ip(&[&["-n", &namespace], arguments].concat());
    inside(&["addr", "add", &format!("{foreign}/24"), "dev", &macvlan]);
    inside(&["link", "set", &macvlan, "up"]);
    add(&rig.netdev, address(&rig, 1));
    wait_for(&directory, foreign, &rig.device);
    wait_for(&directory, address(&rig, 1), &rig.device);

    let snapshot = directory.cached();
    let row = snapshot.by_ip(foreign).next().expect("it is visible");
    assert_ne!(row.locality(), Locality::Local);
    assert_eq!(row.entry().netdev(), None, "not named by whatever has its number here");
    let error = GidQuery::new().ip(foreign).best(&snapshot).expect_err("not ours").to_string();
    assert!(error.contains("exists, not usable here"), "{error}");
    let device = GidQuery::new().device(&rig.device);
    let own = device.clone().best(&snapshot).expect("our own");
    assert_eq!(own.row.ip(), Some(address(&rig, 1)));
    assert!(GidQuery::new().ip(address(&rig, 1)).resolve_one(&snapshot).is_ok());
    ip(&["netns", "del", &namespace]);
}

/// Without opening a device nothing delays its removal, and what addresses come is seen all the same.
#[test]
fn sysfs_holds_no_device() {
    let _alone = alone();
    let mut rig = Rig::within_alone();
    let directory = GidDirectory::open_sysfs().expect("a directory");
    let watcher = directory.watch().expect("a watcher");
    for host in 1..=10 {
        add(&rig.netdev, address(&rig, host));
        wait_until("the watcher saw the address", || {
            !directory.cached().by_ip(address(&rig, host)).is_empty()
        });
    }
    watcher.stop().expect("it ran well");
    let snapshot = directory.cached().to_arc();
    let device = snapshot.device(&rig.device).expect("the device");
    assert!(matches!(device.source(), TableSource::Sysfs), "{device:?}");
    let node = rig.listed().node();
    let held = std::fs::read_dir("/proc/self/fd").expect("own descriptors").flatten();
    assert!(!held.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == node)));
    let begun = Instant::now();
    rig.remove();
    assert!(begun.elapsed() < Duration::from_secs(10));
    wait_until("the device is gone", || !has(&directory, &rig.device));
}

/// A device whose node is missing is not listed by the library; when it is there again it is found.
#[test]
fn a_node_that_is_missing_and_comes_back() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let node = rig.listed().node();
    let away = node.with_extension("away");
    std::fs::rename(&node, &away).expect("the node moves away");
    let directory = GidDirectory::open().expect("a directory");
    let found = directory.cached().device(&rig.device).is_some();
    std::fs::rename(&away, &node).expect("the node comes back");
    assert!(!found, "the library lists no device without its node");
    let snapshot = directory.rescan().expect("a rescan").to_arc();
    let device = snapshot.device(&rig.device).expect("the device");
    assert!(matches!(device.source(), TableSource::Device), "{device:?}");
}

/// What another user sees of a device whose node only root may open.
#[test]
#[ignore = "the test below runs it as another user"]
fn as_nobody() {
    let name = std::env::var("RDMA_TEST_DEVICE").expect("the parent names a device");
    let directory = GidDirectory::open().expect("one device that is denied is no error");
    let snapshot = directory.cached().to_arc();
    let device = snapshot.device(&name).expect("it is listed all the same");
    let TableSource::SysfsInstead(error) = device.source() else { panic!("{device:?}") };
    assert!(matches!(**error, Error::PermissionDenied { .. }), "{error}");
    assert!(!device.gids().rows().is_empty(), "sysfs has its rows");
    let others = || snapshot.devices().iter().filter(|device| device.name() != name);
    assert!(others().count() > 0);
    assert!(others().all(|device| matches!(device.source(), TableSource::Device)));
    // Its rows are found, and never taken: they could not be used.
    let row = snapshot.row(&name, PortNum::FIRST, 0).expect("its default GID");
    assert!(row.is_local());
    let error = GidQuery::new().device(&name).best(&snapshot).expect_err("closed").to_string();
    assert!(error.contains("its device cannot be opened"), "{error}");
    assert!(error.contains("no permission to open"), "{error}");
    // The parent gives the right to it now.
    let go = std::env::var("RDMA_TEST_GO").expect("the parent names a file");
    std::fs::write(&go, "seen").expect("the file can be written");
    wait_until("the device can be opened", || {
        let snapshot = directory.rescan().expect("a rescan");
        let device = snapshot.device(&name).expect("it is listed");
        matches!(device.source(), TableSource::Device)
    });
}

/// A device that cannot be opened is read through sysfs, told in its place, and opened when it can be.
#[test]
fn a_node_that_may_not_be_opened() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let _alone = alone();
    let (denied, _open) = (Rig::within_alone(), Rig::within_alone());
    let set_mode = |node: &Path, mode| {
        std::fs::set_permissions(node, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    for device in &rdma_verbs::DeviceList::new().expect("devices can be listed") {
        set_mode(&device.node(), 0o666);
    }
    let node = denied.listed().node();
    set_mode(&node, 0o600);
    let go = std::env::temp_dir().join(format!("go-{}", denied.device));
    let mut child = std::process::Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "directory::as_nobody", "--ignored", "--nocapture"])
        .env("RDMA_TEST_DEVICE", &denied.device)
        .env("RDMA_TEST_GO", &go)
        .uid(65534)
        .gid(65534)
        .spawn()
        .expect("the child starts");
    wait_until("the other user has seen it", || {
        go.exists() || child.try_wait().expect("a child").is_some()
    });
    set_mode(&node, 0o666);
    let status = child.wait().expect("the child ends");
    assert!(status.success(), "{status}");
    std::fs::remove_file(&go).expect("the child wrote it");
}

/// More devices with news than one `epoll_wait` tells of: one lookup sees them all.
#[test]
fn news_of_many_devices_at_once() {
    let _alone = alone();
    let mut rigs: Vec<Rig> = (0..36).map(|_| Rig::within_alone()).collect();
    let directory = GidDirectory::open().expect("a directory");
    for rig in &rigs {
        add(&rig.netdev, address(rig, 1));
    }
    // Beside the directory: all rows are in the tables, and so all events raised.
    for rig in &rigs {
        let beside = crate::seam::open(&rig.device);
        wait_until("the row is there", || {
            let mut rows = vec![crate::sys::abi::ibv_gid_entry::ZERO; 1024];
            beside.query_gid_table(&mut rows).expect("the table call") == 2
        });
    }
    let snapshot = directory.checked().expect("one lookup").to_arc();
    let seen = rigs.iter().filter(|rig| !snapshot.by_ip(address(rig, 1)).is_empty()).count();
    assert_eq!(seen, rigs.len());
    // In the order of the kernel's numbers, whenever each was first seen.
    let names = |list: &GidDirectory| -> Vec<String> {
        list.cached().devices().iter().map(|device| device.name().to_owned()).collect()
    };
    let sorted: Vec<String> = {
        let list = rdma_verbs::DeviceList::new().expect("devices can be listed");
        let mut numbered: Vec<_> =
            list.iter().map(|device| (device.index(), device.name().to_owned())).collect();
        numbered.sort();
        numbered.into_iter().map(|(_, name)| name).collect()
    };
    assert_eq!(names(&directory), sorted);
    drop(directory);
    rigs.iter_mut().for_each(Rig::remove);
}

/// What `/proc` says of this process: threads, descriptors, resident kilobytes of its own memory. Not of the
/// program's file, which in the guest is memory too, and of which more is looked at as it goes on.
pub(crate) fn held() -> (usize, usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("own status");
    let field = |name: &str| -> usize {
        let line = status.lines().find(|line| line.starts_with(name)).expect(name);
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    };
    let fds = std::fs::read_dir(Path::new("/proc/self/fd")).expect("own descriptors").count();
    (field("Threads:"), fds, field("RssAnon:"))
}

/// Many devices come and go while all are watched: nothing is left of them. A hundred and fifty, or as
/// many as `RDMA_TEST_DEVICES` says.
#[test]
fn devices_that_come_and_go_leave_nothing() {
    let count = std::env::var("RDMA_TEST_DEVICES").map_or(150, |n| n.parse().expect("a number"));
    let _alone = alone();
    let directory = GidDirectory::open().expect("a directory");
    let watcher = directory.watch().expect("a watcher");
    ip(&["link", "add", "many", "type", "dummy"]);
    ip(&["link", "set", "many", "up"]);
    let cycle = |count: usize| {
        for number in 0..count {
            let device = format!("many{}", number % 7);
            run("/bin/rdma", &["link", "add", &device, "type", "rxe", "netdev", "many"]);
            // Now and then it is waited for, so that it is open when it is to go.
            if number % 10 == 0 {
                wait_until("the device is seen", || directory.cached().device(&device).is_some());
            }
            run("/bin/rdma", &["link", "delete", &device]);
        }
        wait_until("all are gone", || {
            directory.cached().devices().iter().all(|device| !device.name().starts_with("many"))
        });
    };
    cycle(50);
    let before = held();
    cycle(count);
    let after = held();
    assert_eq!((after.0, after.1), (before.0, before.1), "threads and descriptors");
    assert!(after.2 < before.2 + 1024, "memory: {} KiB, then {} KiB", before.2, after.2);
    assert!(directory.stats().rescans > 50);
    watcher.stop().expect("the watcher ran well");
    ip(&["link", "del", "many"]);
}
