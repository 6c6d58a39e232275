//! `page_pool` with itself, in one process and in two, and what it cannot be asked.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

use super::limits::memory::{as_another_user, may_lock};
use super::page_pool_example::{Options, run};
use super::pingpong::{port, rig, wait_until_listening};
use super::rig::Rig;

pub(crate) fn options(arguments: &[&str]) -> Options {
    let all = [&["page_pool"], arguments].concat();
    Options::try_parse_from(all).expect("arguments")
}

/// What our program tells: one object for each size and mode.
pub(crate) fn ours(arguments: &[&str]) -> Result<Vec<Value>, String> {
    let all = [&["--json"], arguments].concat();
    run(&options(&all)).map(|json| serde_json::from_str(&json).expect("JSON"))
}

fn failure(arguments: &[&str]) -> String {
    let begun = Instant::now();
    let error = run(&options(arguments)).expect_err("it cannot be done");
    let most = options(arguments).timeout + Duration::from_secs(20);
    assert!(begun.elapsed() < most, "{arguments:?}: {:?}", begun.elapsed());
    assert!(!error.contains('\n'), "{arguments:?}: one line: {error}");
    error
}

fn of(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// What is true of every row that was measured to its end.
fn check(row: &Value, streams: u64, size: u64, mode: &str) {
    assert_eq!((row["size"].as_u64(), &row["mode"]), (Some(size), &mode.into()), "{row}");
    let all = (row["streams"].as_u64(), row["streams_left"].as_u64());
    assert_eq!(all, (Some(streams), Some(streams)), "{row}");
    assert_eq!((&row["device_gone"], row["fragments_lost"].as_u64()), (&false.into(), Some(0)));
    let rate = of(row, "messages_per_sec");
    assert!(rate > 0.0 && of(row, "cpu_us_per_message") > 0.0, "{row}");
    assert!(of(row, "registration_us") > 0.0, "{row}");
    let bits = rate * size as f64 * 8.0;
    assert!((bits / 1e9 / of(row, "gbit_per_sec") - 1.0).abs() < 0.01, "{row}");
    let made = row["registrations"].as_u64().expect("a number");
    assert_eq!(made > 0, mode == "per-buffer", "{row}");
    assert!(row["page_size"].as_u64().is_some_and(|bytes| bytes >= 4096), "{row}");
}

const MODES: [&str; 3] = ["pages", "per-buffer", "static"];

#[test]
fn all_modes_and_sizes() {
    let rig = rig();
    for srq in [false, true] {
        let place = ["--both", "-d", &rig.device, "-n", "3", "-t", "0.1", "--rounds", "2"];
        let srq_too: &[&str] = if srq { &["--srq"] } else { &[] };
        let rows = ours(&[&place[..], &["-s", "64,100,4096,65536"], srq_too].concat());
        let rows = rows.unwrap_or_else(|error| panic!("shared {srq}: {error}"));
        let kinds = [64, 100, 4096, 65536].map(|size| MODES.map(|mode| (size, mode)));
        assert_eq!(rows.len(), 12);
        for (row, (size, mode)) in rows.iter().zip(kinds.as_flattened()) {
            check(row, 3, *size, mode);
            assert_eq!((&row["srq"], row["rounds"].as_u64()), (&srq.into(), Some(2)), "{row}");
            assert_eq!(row["device"], *rig.device);
        }
    }
    // Those that were asked for, of the fewest streams and of the most.
    for (streams, text) in [(1, "1"), (16, "16")] {
        let place = ["--both", "-d", &rig.device, "-n", text, "-t", "0.05"];
        let rows = ours(&[&place[..], &["--mode", "static,pages"]].concat()).expect("rows");
        assert_eq!(rows.len(), 2);
        check(&rows[0], streams, 4096, "pages");
        check(&rows[1], streams, 4096, "static");
    }
}

#[test]
fn a_picture_of_it() {
    let rig = rig();
    let svg = std::env::temp_dir().join(format!("{}.svg", rig.device));
    let place = ["--both", "-d", &rig.device, "-n", "2", "-t", "0.05", "--svg"];
    let rows = ours(&[&place[..], &[svg.to_str().expect("text")]].concat()).expect("rows");
    let drawn = std::fs::read_to_string(&svg).expect("it was written");
    std::fs::remove_file(&svg).expect("it was written");
    assert_eq!(rows.len(), 3);
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{drawn}");
    for mode in MODES {
        assert!(drawn.contains(mode), "{mode}: {drawn}");
    }
}

/// Another process, which does as this one says.
#[test]
#[ignore = "the test below runs it in a process of its own"]
fn as_a_sender() {
    let arguments = std::env::var("RDMA_TEST_SENDER").expect("the parent tells");
    let sent = run(&options(&arguments.split(' ').collect::<Vec<_>>())).expect("it sends");
    assert!(sent.ends_with(" messages sent\n") && !sent.starts_with("0 "), "{sent}");
}

#[test]
fn two_processes() {
    let rig = rig();
    let port = port();
    let place = ["-d", &rig.device, "-p", &port, "--timeout", "60"];
    let receiver = [&place[..], &["-n", "2", "-t", "0.1", "-s", "64,4096"]].concat();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| ours(&receiver));
        wait_until_listening(&port);
        let output = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "page_pool::as_a_sender", "--ignored", "--nocapture"])
            .env("RDMA_TEST_SENDER", [&place[..], &["localhost"]].concat().join(" "))
            .output();
        let rows = receiver.join().expect("no panic").expect("it receives");
        let output = output.expect("the child starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let kinds = [64, 4096].map(|size| MODES.map(|mode| (size, mode)));
        assert_eq!(rows.len(), 6);
        for (row, (size, mode)) in rows.iter().zip(kinds.as_flattened()) {
            check(row, 2, *size, mode);
        }
    });
}

#[test]
fn what_cannot_be() {
    let rig = rig();
    let on = |arguments: &[&str]| failure(&[&["--both", "-d", &rig.device], arguments].concat());
    for size in ["0", "63", "65537", "64,65537", "18446744073709551615"] {
        let error = on(&["-s", size]);
        let bad = size.trim_start_matches("64,");
        assert!(error.contains(&format!("--size {bad}:")) && error.contains("65536"), "{error}");
    }
    for streams in ["0", "17", "4294967295"] {
        let error = on(&["-n", streams]);
        assert!(error.contains(&format!("--streams {streams}: there can be 1 to 16")), "{error}");
    }
    for seconds in ["0", "NaN", "inf", "1e9", "0.001"] {
        let error = on(&["-t", seconds]);
        assert!(error.contains("--seconds") && error.contains("0.01 to 86400"), "{error}");
    }
    let error = on(&["-r", "0"]);
    assert!(error.contains("--rounds 0") && error.contains("1000"), "{error}");
    let error = failure(&["--both", "-d", "nothing7"]);
    assert!(error.contains("nothing7"), "{error}");
    let error = on(&["-i", "9"]);
    assert!(error.contains('9'), "{error}");
    let error = on(&["-x", "900"]);
    assert!(error.contains("900"), "{error}");
    for file in ["/no/such/folder/x.svg", "/dev/full", "/"] {
        let error = on(&["-t", "0.05", "--svg", file]);
        assert!(error.contains(file), "{error}");
    }
    // Words that do not go together are told by the parser.
    for words in [&["--both", "host"][..], &["host", "-s", "64"], &["-m", "none"], &["-s", "-1"]] {
        Options::try_parse_from([&["page_pool"], words].concat()).map(|_| ()).expect_err("words");
    }
    assert_nothing_left(&rig);
}

fn assert_nothing_left(rig: &Rig) {
    let output = Command::new("/bin/rdma").args(["resource", "show", "mr"]).output();
    let text = output.expect("/bin/rdma").stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains(&format!("dev {} ", rig.device)), "{text}");
}

#[test]
fn nobody_there() {
    let rig = rig();
    let port = port();
    let place = ["-d", &rig.device, "-p", &port, "--timeout", "1"];
    let error = failure(&[&place[..], &["localhost"]].concat());
    assert!(error.contains(&port) && error.contains("localhost"), "{error}");
    let error = failure(&place);
    assert!(error.contains("--timeout"), "{error}");
    // Somebody else is there.
    let other =
        TcpListener::bind(("127.0.0.1", port.parse().expect("a port"))).expect("it is free");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            let (mut stream, _) = other.accept().expect("a sender");
            stream.write_all(b"SSH-2.0-something else that talks first\r\n").expect("it hears");
            stream
        });
        let error = failure(&[&place[..], &["127.0.0.1"]].concat());
        assert!(error.contains("no page_pool"), "{error}");
    });
    let error = failure(&[&place[..], &["no.such.host.invalid"]].concat());
    assert!(error.contains("no.such.host.invalid"), "{error}");
    assert_nothing_left(&rig);
}

#[test]
fn another_user_with_little_to_lock() {
    as_another_user(&rig(), "page_pool::with_little_to_lock");
}

/// With 8 MiB there are fewer slabs, if any; with 64 KiB the limit is told.
#[test]
#[ignore = "the test before runs it as another user"]
fn with_little_to_lock() {
    let device = may_lock(8 << 20);
    let place = ["--both", "-d", &device, "-n", "4", "-t", "0.05"];
    for (size, text) in [(64, "64"), (4096, "4096"), (65536, "65536")] {
        let rows = ours(&[&place[..], &["-s", text]].concat()).expect("8 MiB are enough");
        assert_eq!(rows.len(), 3);
        rows.iter().zip(MODES).for_each(|(row, mode)| check(row, 4, size, mode));
    }
    may_lock(64 << 10);
    let error = failure(&place);
    assert!(error.contains("65536"), "{error}");
}
