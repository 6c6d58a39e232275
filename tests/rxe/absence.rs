//! No device to be had, in each of its ways. Without the kernel's modules: `tests/gids.rs`.

use std::fs;
use std::process::Command;

use rdma_verbs::{Absence, DeviceList};

use super::gids_output;
use super::rig::{Rig, alone};

/// What a process sees that starts now: libibverbs reads its providers once.
#[test]
#[ignore = "the other tests of this file run it in a process of its own"]
fn seen_from_a_new_process() {
    let list = DeviceList::new().expect("no device is no error");
    assert!(list.is_empty(), "{list:?}");
    let absence = list.absence().expect("it is empty");
    let seen = match absence {
        Absence::NoNode(_) => "no-node",
        Absence::NoProvider(_) => "no-provider",
        Absence::NoDevice => "no-device",
        Absence::NoSubsystem => "no-subsystem",
        _ => "other",
    };
    let error = gids_output(&[]).expect_err("there is nothing to print");
    assert_eq!(error, absence.to_string());
    assert_eq!(error.lines().count(), 1);
    assert_eq!(seen, std::env::var("RDMA_TEST_ABSENCE").expect("the parent says what to see"));
}

/// Moves a folder away, looks from a new process, and moves it back.
fn without(folder: &str, absence: &str) {
    let _alone = alone();
    let _rig = Rig::within_alone();
    let away = format!("{folder}.away");
    fs::rename(folder, &away).expect("the folder moves away");
    let me = std::env::current_exe().expect("own path");
    let output = Command::new(me)
        .args(["--exact", "absence::seen_from_a_new_process", "--ignored"])
        .env("RDMA_TEST_ABSENCE", absence)
        .output();
    fs::rename(&away, folder).expect("the folder comes back");
    let output = output.expect("the child starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn no_nodes() {
    without("/dev/infiniband", "no-node");
}

#[test]
fn no_provider() {
    without("/etc/libibverbs.d", "no-provider");
}
