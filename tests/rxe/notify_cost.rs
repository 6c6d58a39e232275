//! `notify_cost`: what it tells, and that both sides ask the kernel as often.

use std::fs;
use std::process::Command;

use clap::Parser;
use clap::error::ErrorKind;
use rdma_verbs::DoorbellKind;
use serde_json::Value;

use super::notify_cost_example::raw::Loops;
use super::notify_cost_example::subject::{Call, Subject};
use super::notify_cost_example::{Options, output};
use super::rig::Rig;

/// A device that can send to itself.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.add_addresses(&rig.open(), 1);
    rig
}

fn told(arguments: &[&str]) -> Result<String, String> {
    let options = Options::try_parse_from([&["notify_cost"], arguments].concat());
    output(&options.expect("arguments"), Loops::OURS)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_figures_agree_with_each_other() {
    let rig = rig();
    for arguments in [&["-n", "100"][..], &["-n", "7", "--solicited"], &["-n", "1"]] {
        let all = [&["--json", "--runs", "3", "-d", &rig.device], arguments].concat();
        let told = told(&all).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        let told: Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(told["device"], *rig.device);
        assert_eq!(told["runs"], 3);
        assert_eq!(told["solicited"], arguments.contains(&"--solicited"));
        for situation in ["empty", "after_completions", "with_poll"] {
            let of = &told[situation];
            for side in ["raw", "ours"] {
                for unit in ["ns", "cycles"] {
                    let spread = &of[side][unit];
                    // No cycles only where the counter was refused, with a reason.
                    if spread.is_null() {
                        let reason = told["counter_refused"].as_str().unwrap_or_default();
                        assert!(unit == "cycles" && !reason.is_empty(), "{told}");
                        continue;
                    }
                    let [min, ave, max] = ["min", "ave", "max"].map(|key| number(&spread[key]));
                    assert!(0.0 < min && min <= ave && ave <= max, "{situation} {side}: {spread}");
                }
            }
            let difference = number(&of["ours"]["ns"]["ave"]) - number(&of["raw"]["ns"]["ave"]);
            assert!((number(&of["difference_ns"]) - difference).abs() < 1e-9, "{of}");
        }
    }
    let table = told(&["--runs", "1", "-n", "10", "-d", &rig.device]).expect("a table");
    assert!(table.contains("empty queue: ours") && table.contains("103.311"), "{table}");
}

#[test]
fn what_cannot_be_measured() {
    let error = told(&["-d", "no-such-device"]).expect_err("there is none");
    assert!(error.contains("no-such-device") && !error.contains('\n'), "{error}");
    for wrong in [&["-n", "0"][..], &["--runs", "0"], &["-n", "-1"], &["--only", "nothing"]] {
        let arguments = [&["notify_cost"], wrong].concat();
        let error = Options::try_parse_from(arguments).map(drop).expect_err("it is refused");
        let kinds =
            [ErrorKind::ValueValidation, ErrorKind::InvalidValue, ErrorKind::UnknownArgument];
        assert!(kinds.contains(&error.kind()), "{wrong:?}: {error}");
    }
}

const CALLS: u64 = 500;

/// Shows in a trace.
fn mark(what: &str) {
    let _ = fs::metadata(format!("/notify-{what}"));
}

/// Each side in turn, between marks.
#[test]
#[ignore = "the test below runs it under strace"]
fn calls_between_marks() {
    let device = std::env::var("RDMA_TEST_DEVICE").expect("a device");
    let mut subject = Subject::open(Some(&device), false, Loops::OURS).expect("a queue");
    for (name, call) in [("raw", Call::Raw), ("ours", Call::Ours)] {
        mark(&format!("{name}-begin"));
        let done = subject.call(call, CALLS);
        mark(&format!("{name}-end"));
        done.expect("all are answered");
    }
}

/// One system call each, of the same kind, on the same descriptor, and no other.
#[test]
fn both_sides_make_one_system_call_each() {
    let rig = rig();
    let trace = format!("/tmp/notify-trace-{}", rig.device);
    let output = Command::new("strace")
        .args(["-f", "-o", &trace])
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "notify_cost::calls_between_marks", "--ignored", "--nocapture"])
        .env("RDMA_TEST_DEVICE", &rig.device)
        .output()
        .expect("strace starts");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{out}");
    let trace = fs::read_to_string(&trace).expect("a trace");
    let at = |mark: &str| {
        let found = trace.lines().position(|line| line.contains(mark));
        found.unwrap_or_else(|| panic!("no {mark} in {trace}"))
    };
    // The call and its descriptor: of the thread that runs the test, and so of nobody else between the marks.
    let between = |side: &str| -> Vec<String> {
        let (begin, end) =
            (at(&format!("/notify-{side}-begin")), at(&format!("/notify-{side}-end")));
        let lines = trace.lines().take(end).skip(begin + 1);
        let call = |line: &str| {
            let call = line.split_whitespace().nth(1).unwrap_or_default();
            call.trim_end_matches(',').to_owned()
        };
        lines.map(call).collect()
    };
    let (raw, ours) = (between("raw"), between("ours"));
    assert_eq!(raw.len() as u64, CALLS, "{raw:?}");
    assert_eq!(ours, raw);
    let known = ["write(", "ioctl("].iter().any(|name| raw[0].starts_with(name));
    assert!(known && raw.iter().all(|call| *call == raw[0]), "{raw:?}");
}

/// The other report on what a call comes to: rxe's doorbell.
#[test]
fn rxe_rings_by_a_system_call() {
    let rig = rig();
    let context = rig.open();
    let doorbell = context.doorbell();
    assert_eq!((doorbell.provider(), doorbell.driver()), ("rxe", Some("rdma_rxe")));
    assert_eq!(doorbell.kind(), DoorbellKind::SystemCall);
    assert_eq!(doorbell.switches(), []);
    assert_eq!(doorbell.settings(DoorbellKind::SystemCall), Some(&[][..]));
    assert_eq!(doorbell.settings(DoorbellKind::CombinedWrite), None);
    assert_eq!(doorbell.max_inline(), None);
    let text = doorbell.to_string();
    assert!(text.starts_with("system call (rxe, kernel driver rdma_rxe): "), "{text}");
    assert!(text.contains("\nno switches\nwrite combining: "), "{text}");
    let pd = rdma_verbs::ProtectionDomain::new(&context).expect("a PD");
    let cq = rdma_verbs::CompletionQueue::new(&context, 8).expect("a CQ");
    let builder = rdma_verbs::QueuePair::rc(&pd, &cq, &cq).send_depth(2).recv_depth(2);
    let qp = builder.max_inline(64).build().expect("a queue pair");
    assert_eq!(qp.doorbell().max_inline(), Some(qp.granted().max_inline));
    assert!(qp.granted().max_inline >= 64);
}
