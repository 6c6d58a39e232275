//! A node that may not be opened: told at once, and sysfs still answers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rdma_verbs::{DeviceList, Error};

use super::rig::{Rig, alone};

const NOBODY: u32 = 65534;

/// Runs [`as_nobody`] in a process of its own, as another user.
fn run_as_nobody(device: &str) -> Output {
    let me = std::env::current_exe().expect("own path");
    Command::new(me)
        .args(["--exact", "permission::as_nobody", "--ignored", "--nocapture"])
        .env("RDMA_TEST_DEVICE", device)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("the child starts")
}

/// What the other user sees.
#[test]
#[ignore = "the other tests of this file run it as another user"]
fn as_nobody() {
    let device = std::env::var("RDMA_TEST_DEVICE").expect("the parent names a device");
    let list = DeviceList::new().expect("devices can be listed");
    let device = list.find(&device).expect("it is listed all the same");
    let begun = Instant::now();
    let error = device.open().expect_err("the node is not ours");
    let stall = begun.elapsed();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    let node = device.node();
    let expected = format!(
        "{}: no permission to open {} (EACCES); give this user read and write access to it",
        device.name(),
        node.display()
    );
    assert_eq!(error.to_string(), expected);
    assert!(stall < Duration::from_secs(2), "libibverbs alone stalls 5 s: {stall:?}");
    let gids = device.gids_from_sysfs().expect("sysfs may be read");
    assert!(!gids.cached().rows().is_empty());
    for other in &list {
        if other.name() != device.name() {
            other.open().expect("one device that is denied stops no other");
        }
    }
}

#[test]
fn a_node_of_mode_600() {
    let _alone = alone();
    let (denied, open) = (Rig::within_alone(), Rig::within_alone());
    let set_mode = |rig: &Rig, mode| {
        fs::set_permissions(rig.listed().node(), fs::Permissions::from_mode(mode)).expect("chmod")
    };
    // Whatever other devices there are must be open to all, and this one to nobody.
    for device in &DeviceList::new().expect("devices can be listed") {
        fs::set_permissions(device.node(), fs::Permissions::from_mode(0o666)).expect("chmod");
    }
    set_mode(&open, 0o666);
    set_mode(&denied, 0o600);
    let output = run_as_nobody(&denied.device);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // Where `/dev/char` is missing, the C call fails at once and says ENOENT.
    fs::rename("/dev/char", "/dev/char.away").expect("/dev/char moves away");
    let output = run_as_nobody(&denied.device);
    fs::rename("/dev/char.away", "/dev/char").expect("/dev/char comes back");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
