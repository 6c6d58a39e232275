//! The parts of `write_lat`: statistics, what is told over TCP, charts, processes for a doorbell.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use proptest::prelude::*;
use rdma_verbs::{Endpoint, Gid, Lid, Psn, Qpn, RKey, RemoteSlice};

use super::pingpong::rig;
use super::write_lat::{options, ours};
use super::write_lat_example::exchange::{Key, Plan};
use super::write_lat_example::options::{Doorbell, LONGEST};
use super::write_lat_example::stats::{Samples, Summary};
use super::write_lat_example::{Options, chart, doorbell, in_program, svg};

fn summary(all: &[u64]) -> Summary {
    let mut samples = Samples::new().expect("bounds");
    all.iter().for_each(|ns| samples.record(*ns));
    samples.summary(1).expect("there are some")
}

fn in_order(summary: &Summary) -> bool {
    let Summary { t_min, t_max, t_typical, t_avg, p99, p999, t_stdev, .. } = *summary;
    [t_min, t_typical, p99, p999, t_max].is_sorted()
        && (t_min..=t_max).contains(&t_avg)
        && (0.0..=t_max).contains(&t_stdev)
}

#[test]
fn statistics() {
    assert_eq!(Samples::new().expect("bounds").summary(2), None);
    let one = summary(&[1234]);
    assert_eq!((one.samples, one.t_min, one.t_max, one.t_stdev), (1, 1.234, 1.234, 0.0));
    assert_eq!((one.t_typical, one.p99, one.p999, one.t_avg), (1.234, 1.234, 1.234, 1.234));
    let all: Vec<u64> = (1..=1000).map(|number| number * 1000).collect();
    let told = summary(&all);
    assert!(in_order(&told), "{told:?}");
    for (told, right) in [(told.t_typical, 500.0), (told.p99, 990.0), (told.p999, 999.0)] {
        assert!((told / right - 1.0).abs() < 1e-3, "{told} {right}");
    }
    assert!((told.t_avg - 500.5).abs() < 1e-9 && (told.t_stdev - 288.675).abs() < 1e-3, "{told:?}");
    // The most is exact, beyond what the distribution tells apart too.
    let exact = summary(&[0, 7, 123_456_789, 10_000_000_000_001]);
    assert_eq!((exact.t_min, exact.t_max), (0.0, 10_000_000_000.001));
    assert!(in_order(&exact), "{exact:?}");
}

/// Of a run that takes years, the average is what it is, and not negative.
#[test]
fn long_runs() {
    let told = summary(&[u64::MAX; 5]);
    assert_eq!((told.samples, told.t_avg), (5, told.t_max));
    assert!(in_order(&told), "{told:?}");
    let mut samples = Samples::new().expect("bounds");
    for _ in 0..3_000_000 {
        samples.record(3_000_000_000);
    }
    let told = samples.summary(2).expect("some");
    // 9 * 10^15 ns in all, and squares of 27 * 10^24.
    assert_eq!((told.samples, told.t_avg, told.t_min), (3_000_000, 1_500_000.0, 1_500_000.0));
    assert!(told.t_stdev < 1.0, "{told:?}");
    samples.clear();
    assert_eq!(samples.summary(2), None);
    samples.record(8);
    assert_eq!(samples.summary(2).map(|it| (it.t_min, it.t_max)), Some((0.004, 0.004)));
}

fn key(gid: Option<Gid>) -> Key {
    let (qpn, psn) = (Qpn::new(0x12).expect("24 bits"), Psn::new(0x2e_0e6e).expect("24 bits"));
    let endpoint = Endpoint { gid, lid: Lid(0xab), ..Endpoint::new(qpn, psn, Gid::ZERO) };
    Key { endpoint, memory: RemoteSlice::new(0xffff_55fb_b914_f000, LONGEST, RKey::new(0x352)) }
}

/// As the C program tells it, with an address of 64 bits.
#[test]
fn keys() {
    let gid: Gid = "::ffff:192.0.2.10".parse().expect("a GID");
    let text = "00ab:0001:000012:2e0e6e:00000352:ffff55fbb914f000:\
                00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:0a:00000000:\0";
    assert_eq!(key(Some(gid)).text(), text);
    assert_eq!(Key::parse(text.as_bytes()), Some(key(Some(gid))));
    let by_lid = "00ab:0001:000012:2e0e6e:00000352:ffff55fbb914f000:00000000\0";
    assert_eq!(key(None).text(), by_lid);
    assert_eq!(Key::parse(by_lid.as_bytes()), Some(key(None)));
    for wrong in
        [&text[1..], &by_lid[..58], &text.replace("ff:ff", "gg:ff"), &text.replace(':', ";")]
    {
        assert_eq!(Key::parse(wrong.as_bytes()), None, "{wrong}");
    }
}

#[test]
fn plans() {
    let plan = Plan { iters: 0x0102_0304, size: 8 << 20, imm: true, batch: false };
    assert_eq!(&plan.bytes()[..5], b"6.06\0");
    assert_eq!(Plan::parse(&plan.bytes()), Ok(Some(plan)));
    // C's, of both releases; and what is none, or too old.
    assert_eq!(Plan::parse(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"), Ok(None));
    assert_eq!(Plan::parse(b"6.24\0garbagegarb"), Ok(None));
    for wrong in [b"HTTP/1.1 400 Bad", b"5.60\0\0\0\0\0\0\0\0\0\0\0\0", &[0; 16], &[0xff; 16]] {
        assert_eq!(Plan::parse(wrong), Err(()), "{wrong:?}");
    }
    let other = |other: Plan| plan.check(Some(other)).expect_err("another");
    assert_eq!(plan.check(Some(plan)), Ok(()));
    assert_eq!(plan.check(None), Ok(()));
    assert!(other(Plan { iters: 5, ..plan }).contains("--iters 16909060 here and 5 at the peer"));
    assert!(other(Plan { size: 0, ..plan }).contains("--size 8388608 here and --all at the peer"));
    assert!(other(Plan { imm: false, ..plan }).contains("neither --batch nor --write-with-imm"));
    let batch = Plan { batch: true, imm: false, ..plan };
    assert!(batch.check(None).expect_err("C").contains("does not know"));
}

proptest! {
    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(key) = Key::parse(&bytes) {
            prop_assert!(bytes.len() == 59 || bytes.len() == 108, "{key:?}");
        }
        if let Some(Ok(plan)) = bytes.first_chunk().map(Plan::parse) {
            prop_assert!(bytes[..16].contains(&0), "{plan:?}");
        }
    }

    /// A key of which some bytes are others.
    #[test]
    fn damaged_keys(at in 0_usize..108, byte in any::<u8>()) {
        let whole = key(Some(Gid::from_bytes([7; 16])));
        let mut text = whole.text().into_bytes();
        text[at] = byte;
        if let Some(heard) = Key::parse(&text) {
            let same = String::from_utf8(text).expect("text").to_lowercase() == whole.text();
            prop_assert_eq!(heard == whole, same || (5..9).contains(&at) || (98..106).contains(&at));
        }
    }

    #[test]
    fn statistics_are_in_order(all in prop::collection::vec(any::<u64>(), 1..50), shift in 0..64) {
        let all: Vec<u64> = all.iter().map(|ns| ns >> shift).collect();
        let told = summary(&all);
        prop_assert!(in_order(&told), "{:?}", told);
        let exact = |ns: Option<&u64>| ns.map(|ns| *ns as f64 / 1e3);
        prop_assert_eq!(Some(told.t_min), exact(all.iter().min()));
        prop_assert_eq!(Some(told.t_max), exact(all.iter().max()));
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("write_lat-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("one").file_name().into_string().expect("text")).collect()
}

#[test]
fn charts() {
    let rig = rig();
    let folder = folder("charts");
    let (lat, batches) = (folder.join("lat.svg"), folder.join("batch.svg"));
    let place = ["--both", "-d", &rig.device, "-n", "20"];
    let path = lat.to_str().expect("text");
    ours(&[&place[..], &["-s", "16", "--svg", path]].concat()).expect("drawn");
    let svg = fs::read_to_string(&lat).expect("written");
    let own = format!("{}, write, doorbell default", rig.device);
    for text in
        ["<svg", "</svg>", &own, "2014: doorbell only, bare metal", "t_typical, us", "bytes"]
    {
        assert!(svg.contains(text), "{text} in {svg}");
    }
    assert!(!svg.contains("messages/s"));
    let path = batches.to_str().expect("text");
    ours(&[&place[..], &["--batch", "1,2,4", "--svg", path]].concat()).expect("drawn");
    let svg = fs::read_to_string(&batches).expect("written");
    for text in ["</svg>", "messages/s", "2 bytes, doorbell default"] {
        assert!(svg.contains(text), "{text} in {svg}");
    }
    assert!(!svg.contains("2014"));
    // What was there stays when nothing comes of it.
    ours(&["--both", "-d", "no-such-device", "--svg", path]).expect_err("no device");
    assert_eq!(fs::read_to_string(&batches).expect("as it was"), svg);
    assert_eq!(names(&folder).len(), 2);
    fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn charts_that_cannot_be_written() {
    let folder = folder("none");
    let error = svg::check(&folder.join("no/such/folder/x.svg")).expect_err("no folder");
    assert!(error.contains("x.svg: No such file"), "{error}");
    let error = svg::check(&folder).expect_err("a folder");
    assert!(error.contains("Is a directory"), "{error}");
    assert_eq!(svg::check(&folder.join("new.svg")), Ok(()));
    assert!(names(&folder).is_empty());
    // What cannot be put in its place leaves nothing of itself.
    fs::create_dir(folder.join("x.svg")).expect("a folder");
    chart::draw(&folder.join("x.svg"), &[]).expect_err("a folder");
    assert_eq!(names(&folder), ["x.svg"]);
    fs::remove_dir_all(&folder).expect("removed");
}

/// The switches and the arguments of the process that has them.
#[test]
fn a_process_for_a_doorbell() {
    let arguments =
        ["-a", "-n", "7", "-d", "mlx5_0", "-x", "3", "-m", "2048", "-I", "64", "--cpu", "2"];
    let arguments = [&arguments[..], &["--timeout", "1.5", "-p", "7", "-i", "2", "host"]].concat();
    let asked = options(&arguments);
    let set = &[("MLX5_SHUT_UP_BF", "1")];
    let child = doorbell::child(Path::new("/x"), &asked, Doorbell::Plain, set);
    let envs: Vec<_> = child.get_envs().collect();
    assert_eq!(envs, [("MLX5_SHUT_UP_BF".as_ref(), Some("1".as_ref()))]);
    let told: Vec<&str> = child.get_args().filter_map(|argument| argument.to_str()).collect();
    // The same once more, of what the child makes of them.
    let again = Options::try_parse_from([&["write_lat"], &told[..]].concat()).expect("arguments");
    assert_eq!((again.doorbell_name, again.json), (Doorbell::Plain, true));
    assert_eq!(again.for_child(Doorbell::Plain), asked.for_child(Doorbell::Plain));
    assert_eq!(again.server.as_deref(), Some("host"));
    assert_eq!((again.all, again.iters, again.inline, again.cpu), (true, 7, 64, Some(2)));
    assert_eq!(
        (again.gid_idx, again.mtu, again.timeout),
        (asked.gid_idx, asked.mtu, asked.timeout)
    );
}

/// Of a provider without a switch it is measured all the same; a process that fails is told of on a line.
#[test]
fn what_a_process_tells() {
    let rig = rig();
    let folder = folder("child");
    let row = ours(&["--both", "-d", &rig.device, "-n", "20"]).expect("a row");
    let program = |text: &str| {
        let program = folder.join("program");
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("to be run");
        in_program(&program, &options(&["--both", "-d", &rig.device]), Doorbell::Plain)
    };
    let json = serde_json::to_string(&row).expect("JSON");
    let rows = program(&format!("echo '{json}'")).expect("rows");
    assert_eq!((rows.len(), rows[0].bytes, rows[0].iterations), (1, 2, 20));
    for (text, what) in [
        ("echo write_lat: note >&2; echo 'write_lat: why it failed' >&2; exit 1", "why it failed"),
        ("exit 3", "its process ended with exit status: 3"),
        ("kill -9 $$", "signal: 9"),
        ("echo nonsense", "expected"),
    ] {
        let error = program(text).expect_err("it fails");
        assert!(error.starts_with("--doorbell plain: ") && error.contains(what), "{error}");
        assert!(!error.contains('\n') && !error.contains("write_lat: "), "{error}");
    }
    fs::remove_dir_all(&folder).expect("removed");
}
