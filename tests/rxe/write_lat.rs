//! `write_lat` with itself, and with perftest's `ib_write_lat` at either end.

use std::process::{Child, Command, Stdio};
use std::sync::RwLockWriteGuard;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

use super::pingpong::{port, wait_until_listening};
use super::rig::{Rig, alone, wait_until};
use super::write_lat_example::{Options, run};

/// A device, and nothing beside. Both ends of a run look at their memory without a pause: with other tests on
/// the two processors of the guest they would take turns of some ms, and be at it for minutes.
fn rig_alone() -> (RwLockWriteGuard<'static, ()>, Rig) {
    let alone = alone();
    let rig = Rig::within_alone();
    rig.add_addresses(&rig.open(), 2);
    (alone, rig)
}

pub(crate) fn options(arguments: &[&str]) -> Options {
    let all = [&["write_lat", "--json", "-F"], arguments].concat();
    Options::try_parse_from(all).expect("arguments")
}

/// What our program tells: one object for each size and mode.
pub(crate) fn ours(arguments: &[&str]) -> Result<Vec<Value>, String> {
    run(&options(arguments)).map(|json| serde_json::from_str(&json).expect("JSON"))
}

pub(crate) fn c_program(arguments: &[&str]) -> Child {
    let mut command = Command::new("ib_write_lat");
    command.arg("-F").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("ib_write_lat")
}

/// What the C program's lines begin with, when it has succeeded: size and iterations.
fn c_rows(mut child: Child) -> Vec<(u64, u64)> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("a child");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let rows = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().map(str::parse);
        Some((fields.next()?.ok()?, fields.next()?.ok()?))
    });
    rows.collect()
}

fn of(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// What is true of every row.
fn check(row: &Value, bytes: u64, iterations: u64) {
    assert_eq!(
        (row["bytes"].as_u64(), row["iterations"].as_u64()),
        (Some(bytes), Some(iterations))
    );
    let order = ["t_min", "t_typical", "p99", "p999", "t_max"].map(|key| of(row, key));
    assert!(order[0] > 0.0 && order.is_sorted(), "{row}");
    assert!((order[0]..=order[4]).contains(&of(row, "t_avg")), "{row}");
    assert!((0.0..=order[4]).contains(&of(row, "t_stdev")), "{row}");
    assert_eq!(row["doorbell"], "default");
}

#[test]
fn both_ends_are_ours() {
    let (_alone, rig) = rig_alone();
    for (size, iters) in [(1, 300), (2, 300), (220, 20), (221, 20), (4096, 20), (65536, 10)] {
        for way in [&[][..], &["-I", "0"], &["--write-with-imm"], &["--write-with-imm", "-I", "0"]]
        {
            let (size_text, iters_text) = (size.to_string(), iters.to_string());
            let place = ["--both", "-d", &rig.device, "-s", &size_text, "-n", &iters_text];
            let rows = ours(&[&place[..], way].concat());
            let rows = rows.unwrap_or_else(|error| panic!("{size} {way:?}: {error}"));
            assert_eq!(rows.len(), 1);
            check(&rows[0], size, iters);
            assert_eq!(rows[0]["samples"].as_u64(), Some(iters - 1), "{}", rows[0]);
            let mode = if way.len() % 2 == 1 { "write_with_imm" } else { "write" };
            assert_eq!(rows[0]["mode"], mode);
            let inline = if way.contains(&"0") { 0 } else { 220 };
            assert_eq!(rows[0]["inline"], inline);
        }
    }
}

/// The sizes of `-a`.
fn sizes() -> Vec<u64> {
    (1..24).map(|bit| 1 << bit).collect()
}

#[test]
fn all_sizes() {
    let (_alone, rig) = rig_alone();
    let rows = ours(&["--both", "-d", &rig.device, "-a", "-n", "3", "--histogram"]).expect("rows");
    assert_eq!(rows.len(), sizes().len());
    for (row, bytes) in rows.iter().zip(sizes()) {
        check(row, bytes, 3);
        let histogram = row["histogram"].as_array().expect("a distribution");
        let counts: u64 = histogram.iter().filter_map(|bin| bin[1].as_u64()).sum();
        assert_eq!(Some(counts), row["samples"].as_u64());
    }
    assert!(of(&rows[22], "t_min") > of(&rows[0], "t_min"), "8 MiB take longer than 2 bytes");
}

#[test]
fn one_doorbell_for_many() {
    let (_alone, rig) = rig_alone();
    for (size, inline) in [(2, 220), (300, 220), (64, 0)] {
        let (size_text, inline_text) = (size.to_string(), inline.to_string());
        let place = ["--both", "-d", &rig.device, "-s", &size_text, "-I", &inline_text];
        let batches = ["-n", "500", "--batch", "1,7,16,64"];
        let rows = ours(&[&place[..], &batches].concat()).expect("rows");
        assert_eq!(rows.len(), 4);
        for (row, batch) in rows.iter().zip([1_u64, 7, 16, 64]) {
            let messages = 500_u64.next_multiple_of(batch);
            check(row, size, messages);
            assert_eq!(row["batch"], batch);
            assert_eq!(row["samples"].as_u64(), Some(messages / batch), "{row}");
            assert!((of(row, "doorbells_per_message") * batch as f64 - 1.0).abs() < 1e-9, "{row}");
            // The median of a message's time, and all of them in all of the time.
            assert!(of(row, "messages_per_sec") > 0.0, "{row}");
            let seconds = of(row, "t_avg") * messages as f64 / 1e6;
            let rate = messages as f64 / seconds;
            assert!((rate / of(row, "messages_per_sec") - 1.0).abs() < 0.01, "{row}");
        }
    }
}

/// Whether this `ib_write_lat` can write with immediate data.
fn c_has_imm() -> bool {
    let output = Command::new("ib_write_lat").arg("--help").output().expect("ib_write_lat");
    String::from_utf8_lossy(&output.stdout).contains("--write_with_imm")
}

/// Size, or all of them; and how it is done, by ours and by C's.
type Way = (Vec<u64>, &'static [&'static str], &'static [&'static str]);

fn ways() -> Vec<Way> {
    let mut ways: Vec<Way> = vec![
        (vec![2], &["-s", "2"], &["-s", "2"]),
        (vec![128], &["-s", "128", "-I", "0"], &["-s", "128"]),
        (vec![65536], &["-s", "65536"], &["-s", "65536"]),
        (sizes(), &["-a"], &["-a"]),
    ];
    if c_has_imm() {
        let (ours, cs) = (&["-s", "64", "--write-with-imm"], &["-s", "64", "--write_with_imm"]);
        ways.push((vec![64], ours, cs));
    }
    ways
}

/// The index is another on either side, which is nobody's business but theirs.
#[test]
fn the_client_is_perftests() {
    let (_alone, rig) = rig_alone();
    for (sizes, our_way, c_way) in ways() {
        let port = port();
        let place = ["-d", &rig.device, "-p", &port, "-n", "5"];
        let server = [&place[..], &["-x", "1", "--timeout", "90"], our_way].concat();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| ours(&server));
            wait_until_listening(&port);
            let rows =
                c_rows(c_program(&[&place[..], &["-x", "2"], c_way, &["localhost"]].concat()));
            let told = server.join().expect("no panic").expect("it plays");
            compare(&sizes, &rows, &told);
        });
    }
}

#[test]
fn the_server_is_perftests() {
    let (_alone, rig) = rig_alone();
    for (sizes, our_way, c_way) in ways() {
        let port = port();
        let place = ["-d", &rig.device, "-p", &port, "-n", "5"];
        let server = c_program(&[&place[..], &["-x", "2"], c_way].concat());
        wait_until_listening(&port);
        let client = [&place[..], &["--timeout", "90"], our_way, &["localhost"]].concat();
        let told = ours(&client).unwrap_or_else(|error| panic!("{our_way:?}: {error}"));
        compare(&sizes, &c_rows(server), &told);
    }
}

fn compare(sizes: &[u64], rows: &[(u64, u64)], told: &[Value]) {
    let expected: Vec<(u64, u64)> = sizes.iter().map(|size| (*size, 5)).collect();
    assert_eq!(rows, expected);
    assert_eq!(told.len(), sizes.len());
    for (row, size) in told.iter().zip(sizes) {
        check(row, *size, 5);
    }
}

/// Either end goes away while the other one waits.
#[test]
fn a_peer_that_dies() {
    let (_alone, rig) = rig_alone();
    let many = ["-n", "100000000"];
    for ours_is_client in [true, false] {
        let port = port();
        let place = [&["-d", &rig.device, "-p", &port, "-s", "64"][..], &many].concat();
        let timeout = ["--timeout", "3"];
        std::thread::scope(|scope| {
            let (ours, mut c) = if ours_is_client {
                let c = c_program(&[&place[..], &["-x", "1"]].concat());
                wait_until_listening(&port);
                let arguments = [&place[..], &timeout, &["localhost"]].concat();
                (scope.spawn(move || ours(&arguments)), c)
            } else {
                let arguments = [&place[..], &timeout].concat();
                let ours = scope.spawn(move || ours(&arguments));
                wait_until_listening(&port);
                (ours, c_program(&[&place[..], &["-x", "1", "localhost"]].concat()))
            };
            // It is connected, and some went to and fro: more than that no condition tells.
            let writes =
                format!("/sys/class/infiniband/{}/ports/1/hw_counters/sent_pkts", rig.device);
            let sent = || -> u64 {
                let text = std::fs::read_to_string(&writes).expect("rxe counts");
                text.trim().parse().expect("a number")
            };
            let before = sent();
            wait_until("they play", || sent() > before + 200);
            c.kill().expect("a child");
            c.wait().expect("a child");
            let begun = Instant::now();
            let error = ours.join().expect("no panic").expect_err("nobody is there");
            assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
            assert!(error.starts_with("write ") && !error.contains('\n'), "{error}");
        });
    }
}
