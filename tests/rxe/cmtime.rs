//! `cmtime` with itself, by either manager; with the C program at either end; and asked for what cannot be.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::RwLockReadGuard;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

use super::cm::Place;
use super::cmtime_example::options::Deadline;
use super::cmtime_example::{Options, measure, run};
use super::rig::{together, wait_until};

/// In this order, as C's program has them.
const STEPS: [&str; 8] = [
    "create id",
    "bind addr",
    "resolve addr",
    "resolve route",
    "create qp",
    "connect",
    "disconnect",
    "destroy",
];

fn options(arguments: &[&str]) -> Options {
    Options::try_parse_from([&["cmtime"], arguments].concat()).expect("arguments")
}

/// What every run tells.
fn told(arguments: &[&str]) -> Vec<Value> {
    let options = options(arguments);
    let deadline = Deadline::new(&options);
    let reports = options.runs().into_iter().map(|how| {
        let report = measure(&options, how, deadline).unwrap_or_else(|e| panic!("{how:?}: {e}"));
        let table = report.table();
        assert!(table.lines().count() == 10 && report.failure().is_none(), "{table}");
        serde_json::from_str(&report.json().expect("JSON")).expect("JSON")
    });
    reports.collect()
}

fn failure(arguments: &[&str]) -> String {
    let begun = Instant::now();
    let error = run(&options(arguments)).expect_err("it cannot be done");
    assert!(begun.elapsed() < Duration::from_secs(40), "{arguments:?}: {:?}", begun.elapsed());
    assert!(!error.contains('\n'), "{arguments:?}: one line: {error}");
    error
}

/// A port of one test's own.
fn port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(21_000);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// A device with an address, which stays: librdmacm keeps it open while this process lives. Beside others,
/// but those who are to be alone.
fn place() -> (RwLockReadGuard<'static, ()>, String) {
    let machine = together();
    (machine, Place::get(0).ip().to_string())
}

/// Whether a step was taken, and its figures fit each other.
fn check(step: &str, figures: &Value) -> bool {
    if figures.is_null() {
        return false;
    }
    let of =
        |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{step}: {key}: {figures}"));
    let (min, p50, p99, max) = (of("min_us"), of("p50_us"), of("p99_us"), of("max_ms") * 1e3);
    assert!(0.0 < min && min <= p50 && p50 <= p99 && p99 <= max + 1e-6, "{step}: {figures}");
    assert!(of("us_per_conn") * 0.999 <= of("total_ms") * 1e3, "{step}: {figures}");
    assert!(max <= of("total_ms") * 1e3 + 1e-6, "{step}: {figures}");
    assert_eq!(figures.as_object().map(serde_json::Map::len), Some(6), "{step}: {figures}");
    true
}

/// The names of the steps that were not taken.
fn not_taken(told: &Value) -> Vec<&'static str> {
    let steps = told["steps"].as_object().expect("an object");
    assert_eq!(steps.len(), STEPS.len(), "{told}");
    STEPS.into_iter().filter(|step| !check(step, &steps[*step])).collect()
}

#[test]
fn both_ends_are_ours() {
    let (_machine, address) = place();
    let all = ["--both", "-c", "20", "-p", "0", "-b", &address, "--cm", "rdmacm,verbs"];
    let ways = ["--gid-lookup", "cached,scan", "--resolve", "cached,cold"];
    let told = told(&[&all[..], &ways].concat());
    assert_eq!(told.len(), 5);
    for one in &told {
        assert_eq!((&one["connections"], &one["failed"]), (&20.into(), &0.into()), "{one}");
    }
    assert_eq!(told[0]["cm"], "rdmacm");
    assert!(told[0]["gid_lookup"].is_null() && told[0]["resolve"].is_null(), "{}", told[0]);
    assert!(not_taken(&told[0]).is_empty(), "{}", told[0]);
    let mut ways = Vec::new();
    for one in &told[1..] {
        assert_eq!(
            (&one["cm"], not_taken(one)),
            (&"verbs".into(), vec!["create id", "resolve route"])
        );
        ways.push((one["gid_lookup"].as_str(), one["resolve"].as_str()));
    }
    let (cached, scan, cold) = (Some("cached"), Some("scan"), Some("cold"));
    assert_eq!(ways, [(cached, cached), (cached, cold), (scan, cached), (scan, cold)]);
}

/// Without an address there is no step that binds, and after `--until` there is none at all.
#[test]
fn steps_that_are_not_taken() {
    let (_machine, address) = place();
    let both = ["--both", "-c", "3", "-p", "0", "-s", &address, "--cm", "rdmacm,verbs"];
    let all = told(&both);
    assert_eq!(not_taken(&all[0]), ["bind addr"]);
    assert_eq!(not_taken(&all[1]), ["create id", "bind addr", "resolve route"]);
    for one in told(&[&both[..], &["--until", "resolve-addr"]].concat()) {
        assert!(not_taken(&one).ends_with(&STEPS[3..]), "{one}");
    }
}

/// The chart has every run's name, and a bar for each step that was taken.
#[test]
fn charts() {
    let (_machine, address) = place();
    let file = std::env::temp_dir().join(format!("cmtime-{}.svg", std::process::id()));
    let path = file.to_str().expect("text");
    let all = ["--both", "-c", "3", "-p", "0", "-b", &address, "--cm", "rdmacm,verbs"];
    run(&options(&[&all[..], &["--json", "--svg", path]].concat())).expect("drawn");
    let svg = std::fs::read_to_string(&file).expect("written");
    std::fs::remove_file(&file).expect("there");
    let steps = STEPS.map(|step| format!("\n{step}\n"));
    let words = ["<svg", "</svg>", "rdmacm", "verbs, lookup cached", "of 3 that do each step"];
    for text in words.into_iter().chain(steps.iter().map(String::as_str)) {
        assert!(svg.contains(text), "{text:?} in {svg}");
    }
    // Of each run at each step the time and its unit, or that there was no such step.
    let is_time = |line: &&str| {
        let parts =
            line.split_once(' ').and_then(|(value, unit)| Some((value.parse().ok()?, unit)));
        parts.is_some_and(|(value, unit): (f64, _)| {
            value > 0.0 && ["ns", "µs", "ms", "s"].contains(&unit)
        })
    };
    let (times, none) =
        (svg.lines().filter(is_time).count(), svg.lines().filter(|line| *line == "-").count());
    assert!(none == 2 && times >= 14, "{times} times, {none} without: {svg}");
}

fn c_program(arguments: &[&str]) -> Child {
    let mut command = Command::new("cmtime");
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("cmtime of rdma-core")
}

/// Whether somebody listens on the port, as the kernel tells it.
fn is_taken(address: &str, port: &str) -> bool {
    let all = Command::new("/bin/rdma").args(["resource", "show", "cm_id"]).output();
    let all = String::from_utf8(all.expect("/bin/rdma").stdout).expect("text");
    let at = format!("src-addr {address}:{port} ");
    all.lines().any(|line| line.contains("state LISTEN") && line.contains(&at))
}

/// `RDMA_TEST_CMTIME`, or some dozens.
fn count() -> String {
    std::env::var("RDMA_TEST_CMTIME").unwrap_or_else(|_| "48".into())
}

/// Whether C's program here is of the kind that ours is like. Later ones (of rdma-core 56) have other steps,
/// connect once to warm up and then twice as often as they are told, without queue pairs the second time, where
/// a client and a server of their own refuse each other: nothing to be measured against.
fn c_is_alike() -> bool {
    let usage = Command::new("cmtime").arg("-h").output().expect("cmtime is in the guest").stdout;
    let alike = !String::from_utf8_lossy(&usage).contains("base_qpn");
    if !alike {
        println!("skipped: C's cmtime here is another program than the one that ours is like");
    }
    alike
}

#[test]
fn our_client_with_a_server_in_c() {
    if !c_is_alike() {
        return;
    }
    let (_machine, address) = place();
    let (port, count) = (port(), count());
    let mut server = c_program(&["-b", &address, "-p", &port, "-c", &count]);
    wait_until("the server listens", || is_taken(&address, &port));
    let told = told(&["-s", &address, "-b", &address, "-p", &port, "-c", &count]);
    assert_eq!((&told[0]["failed"], not_taken(&told[0]).len()), (&0.into(), 0), "{}", told[0]);
    // Its threads can miss each other at the end, and then wait for ever.
    let _ = server.kill();
    let _ = server.wait();
}

#[test]
fn a_client_in_c_with_our_server() {
    if !c_is_alike() {
        return;
    }
    let (_machine, address) = place();
    let (port, count) = (port(), count());
    let client = std::thread::scope(|scope| {
        let server = options(&["-b", &address, "-p", &port, "-c", &count, "--deadline", "300"]);
        let server = scope.spawn(move || run(&server));
        wait_until("the server listens", || is_taken(&address, &port));
        let mut client = c_program(&["-s", &address, "-b", &address, "-p", &port, "-c", &count]);
        let served = server.join().expect("no panic");
        if served.is_err() {
            let _ = client.kill();
        }
        served.expect("served");
        client
    });
    let output = client.wait_with_output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("error"), "{output:?}");
    assert!(text.lines().filter(|line| line.contains(':')).count() == 8, "{text}");
}

#[test]
fn bad_input() {
    let (_machine, address) = place();
    let port = port();
    let at = ["-s", &address, "-p", &port];
    for (arguments, what) in [
        (&["-c", "0"][..], "-c 0: it can be 1 to 100000"),
        (&["-c", "100001"], "it can be 1 to 100000"),
        (&["-t", "0"], "-t 0"),
        (&["-c", "3"], "nobody listens on that port"),
        (&["-c", "3", "--cm", "verbs"], "Connection refused"),
        (&["--svg", "/no/such/folder/file.svg"], "/no/such/folder/file.svg: No such file"),
    ] {
        let error = failure(&[&at[..], arguments].concat());
        assert!(error.contains(what), "{arguments:?}: {error}");
    }
    let error = failure(&["--svg", "/tmp/none.svg"]);
    assert!(error.contains("a server measures nothing"), "{error}");
    assert!(!PathBuf::from("/tmp/none.svg").exists());
    // Nobody comes.
    for cm in ["rdmacm", "verbs"] {
        let error = failure(&["-b", &address, "-p", &port, "--deadline", "1", "--cm", cm]);
        assert!(error.contains("0 of 100 connections came within 1 s"), "{error}");
    }
    // An address without a device: those that have one are told, and which device it is.
    let (has_one, device) =
        (format!("{address} ({}", Place::get(0).device), "no RDMA device for 127.0.0.1");
    for arguments in [
        &["--cm", "verbs", "-b", "127.0.0.1"][..],
        &["--cm", "verbs", "--gid-lookup", "scan", "-b", "127.0.0.1"],
        &["--cm", "rdmacm", "-b", "127.0.0.1"],
    ] {
        let error = failure(&[&["-s", &address, "-c", "2"], arguments].concat());
        // The list has an end, and other tests have devices, too.
        let listed = error.contains(&has_one) || error.contains(" more");
        assert!(error.contains(device) && listed, "{arguments:?}: {error}");
    }
    let error = failure(&["-s", "no.such.host.invalid", "-c", "1", "--svg", "/tmp/none.svg"]);
    assert!(error.starts_with("no.such.host.invalid: "), "{error}");
    assert!(!PathBuf::from("/tmp/none.svg").exists());
    assert!(Options::try_parse_from(["cmtime", "--cm", "ib"]).is_err());
}
