//! The loop in C that the data path is measured against, on both of the interposer's devices: a C
//! program sees there what it should.

mod interposed;
#[path = "../benches/c_loop/mod.rs"]
mod measured;

#[path = "../examples/notify_cost/main.rs"]
#[allow(dead_code)] // its main
mod notify_cost;

use clap::Parser;
use interposed::{faults, interposed};
use measured::CLoop;
use notify_cost::raw::Loops;
use notify_cost::{Options, output};
use serde_json::Value;

/// What `notify_cost` prints.
fn asked(loops: Loops, arguments: &[&str]) -> String {
    let options = Options::parse_from([&["notify_cost"], arguments].concat());
    output(&options, loops).expect("it can be measured")
}

fn c_loops() -> Loops {
    let c = CLoop::build().expect("raw_loop.c is compiled");
    // SAFETY: raw_loop.c has them: they ask, or ask and then poll.
    #[allow(unsafe_code)]
    unsafe {
        Loops::of_c(c.raw_request, c.raw_request_and_poll)
    }
}

interposed! {
    fn a_c_program_runs_on_both_devices() {
        let c = CLoop::build().expect("raw_loop.c is compiled");
        for device in ["loop0", "empty0"] {
            let mut pair = c.open(device, 1, 64).expect("a queue pair");
            for batch in [1, 2, 16, 64] {
                let time = pair.run(6400, batch).expect("every message arrives");
                println!("{device}, batches of {batch}: {:.1} ns a message", time.as_nanos() as f64 / 6400.0);
            }
            assert!(pair.run(1, 65).is_none(), "more than there is room for");
        }
        assert!(c.open("loop0", 9, 64).is_none(), "an empty row");
        assert!(c.open("no-such-device", 1, 64).is_none());
        assert_eq!(faults::all_live(), []);
        // 6400 messages, four times.
        assert_eq!(faults::count("ibv_post_send"), 6400 + 3200 + 400 + 100);
    }

    /// Both sides, and both loops of the raw one, ask and poll as often as they say.
    fn every_side_makes_the_same_calls() {
        for loops in [Loops::OURS, c_loops()] {
            for call in ["raw", "ours", "raw-poll", "arm"] {
                faults::reset();
                assert_eq!(asked(loops, &["-d", "loop0", "-n", "1003", "--only", call]), "");
                let calls = (faults::count("ibv_req_notify_cq"), faults::count("ibv_poll_cq"));
                let polls = if ["raw", "ours"].contains(&call) { 0 } else { 1003 };
                assert_eq!(calls, (1003, polls), "{call} by {}", loops.made_by);
            }
        }
        assert_eq!(faults::all_live(), []);
    }

    fn the_table_and_the_object_agree() {
        let text = asked(c_loops(), &["-d", "empty0", "-n", "100", "--runs", "3"]);
        assert!(text.starts_with("empty0: 100 calls a run, median of 3 runs, raw (cc) "), "{text}");
        assert!(text.contains("after completions: ours") && text.contains("101.283"), "{text}");
        let told = asked(Loops::OURS, &["-d", "empty0", "-n", "100", "--runs", "3", "--json"]);
        let told: Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!((&told["raw_loop"], &told["batch"]), (&"rustc".into(), &10.into()));
        assert_ne!(told["counter_mhz"].is_number(), told["counter_refused"].is_string());
        assert_eq!(told["counter_mhz"].is_number(), told["empty"]["raw"]["cycles"].is_object());
    }

    fn a_failure_is_told() {
        for (loops, call) in [(Loops::OURS, "raw"), (c_loops(), "raw-poll"), (Loops::OURS, "ours")] {
            faults::fail_every("ibv_req_notify_cq", libc::EIO, 700, Some(1));
            let arguments = ["notify_cost", "-d", "loop0", "-n", "1000", "--only", call];
            let error = output(&Options::parse_from(arguments), loops).expect_err("it fails");
            assert!(error.contains("a raw call returned 5") || error.contains("EIO"), "{error}");
            assert!(!error.contains('\n'), "{error}");
            faults::reset();
        }
    }

    /// When the cycle counter is no clock.
    fn a_counter_that_is_not_steady_is_refused() {
        use notify_cost::counter::{check_flags, steady};
        let both = "processor\t: 0\nflags\t\t: fpu constant_tsc tsc nonstop_tsc\n";
        assert_eq!(check_flags(both), Ok(()));
        let one = check_flags("flags : fpu constant_tsc tsc\n").expect_err("one is missing");
        assert_eq!(one, "the processor's flags lack nonstop_tsc");
        let none = check_flags("").expect_err("both are missing");
        assert_eq!(none, "the processor's flags lack constant_tsc and nonstop_tsc");
        assert_eq!(steady(3466.0, 3468.0).map(|counter| counter.mhz), Ok(3467.0));
        for (first, second) in [(3466.0, 3566.0), (0.0, 0.0), (f64::NAN, 1.0), (f64::INFINITY, 1.0)] {
            let refused = steady(first, second).expect_err("it is not steady");
            assert!(refused.starts_with("it went at "), "{refused}");
        }
    }
}
