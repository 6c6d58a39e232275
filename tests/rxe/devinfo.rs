//! `devinfo` against the C program of the same purpose, key by key.

use std::collections::BTreeMap;
use std::process::Command;

use clap::Parser;

use super::devinfo_example::{Options, output};
use super::rig::Rig;

/// The keys and values of either program.
fn parsed(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(": ").or(line.split_once(":\t")))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

#[test]
fn it_tells_what_the_c_program_tells() {
    let rig = Rig::new();
    rig.add_addresses(&rig.open(), 2);
    for arguments in [&["-d", &*rig.device][..], &["-v", "-d", &*rig.device]] {
        let c = Command::new("ibv_devinfo").args(arguments).output().expect("ibv_devinfo");
        assert!(c.status.success(), "{c:?}");
        let c = parsed(&String::from_utf8_lossy(&c.stdout));
        let ours = [&["devinfo"], arguments].concat();
        let ours = parsed(&output(&Options::parse_from(ours)).expect("it prints"));
        if arguments.contains(&"-v") {
            assert_eq!(ours["kernel_driver"], "rdma_rxe (provider rxe)");
            assert!(ours["doorbell"].starts_with("system call: "), "{ours:?}");
            assert!(ours.contains_key("write_combining"), "{ours:?}");
        }
        let common: Vec<&String> = c.keys().filter(|key| ours.contains_key(*key)).collect();
        let expected = if arguments.contains(&"-v") { 55 } else { 15 };
        assert!(
            common.len() >= expected,
            "{} in common: {common:?}\n{c:?}\n{ours:?}",
            common.len()
        );
        for key in common {
            assert_eq!(ours[key], c[key], "{key}");
        }
    }
}

#[test]
fn one_port_and_names() {
    let rig = Rig::new();
    let with =
        |arguments: &[&str]| output(&Options::parse_from([&["devinfo"], arguments].concat()));
    let list = with(&["-l"]).expect("names");
    assert!(list.contains(&format!("\t{}\n", rig.device)), "{list}");
    assert!(with(&["-d", &rig.device, "-i", "1"]).expect("port 1").contains("port:"));
    assert_eq!(with(&["-d", &rig.device, "-i", "2"]), Err("no device could be opened".into()));
}
