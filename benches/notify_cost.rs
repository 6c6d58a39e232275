//! The example `notify_cost`, natively, on the interposer's empty provider: what asking for a completion notification
//! costs above the raw call, where that does nothing.
//!
//! ```text
//! cargo bench --bench notify_cost                 the table, and instructions a call (needs valgrind)
//! cargo bench --bench notify_cost -- --json       as the example
//! cargo bench --bench notify_cost -- -n 100000    as the example, with all of its options
//! ```
//!
//! The raw loop is in C (`raw_loop.c`) where there is `cc`, and the example's own where there is none.

mod c_loop;
#[path = "../tests/interposed/mod.rs"]
mod interposed;
#[path = "../examples/notify_cost/main.rs"]
#[allow(dead_code)] // its main
mod notify_cost;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use c_loop::CLoop;
use clap::Parser;
use notify_cost::Options;
use notify_cost::raw::Loops;

const DEVICE: &str = "empty0";

fn main() -> ExitCode {
    // Cargo says that it is a bench.
    let arguments: Vec<String> =
        std::env::args().filter(|argument| argument != "--bench").collect();
    if std::env::var_os("LD_PRELOAD").is_none() {
        let failed = Command::new(std::env::current_exe().expect("own path"))
            .args(&arguments[1..])
            .env("LD_PRELOAD", interposed::interposer())
            .exec();
        panic!("this program starts again: {failed}");
    }
    let mut options = Options::parse_from(arguments);
    options.device.get_or_insert_with(|| DEVICE.into());
    let loops = match CLoop::build() {
        // SAFETY: raw_loop.c has them: they ask, or ask and then poll.
        #[allow(unsafe_code)]
        Ok(c) => unsafe { Loops::of_c(c.raw_request, c.raw_request_and_poll) },
        Err(why) => {
            eprintln!("notify_cost: without C: {why}");
            Loops::OURS
        }
    };
    let counts = !options.json && options.only.is_none();
    match notify_cost::output(&options, loops) {
        Ok(text) => print!("{text}"),
        Err(error) => {
            eprintln!("notify_cost: {error}");
            return ExitCode::FAILURE;
        }
    }
    if counts {
        let calls = ["raw", "ours", "raw-poll", "arm"];
        let told = calls.map(|call| format!("{call} {}", instructions(call).unwrap_or("-".into())));
        println!("instructions a call: {}", told.join(", "));
    }
    ExitCode::SUCCESS
}

/// What a hundred thousand more calls add to a run, a call.
fn instructions(call: &str) -> Option<String> {
    let run = |calls: u32| -> Option<f64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args(["--only", call, "-n", &calls.to_string()])
            .output()
            .ok()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        told.split("Collected :").nth(1)?.split_whitespace().next()?.parse().ok()
    };
    Some(format!("{:.1}", (run(110_000)? - run(10_000)?) / 1e5))
}
