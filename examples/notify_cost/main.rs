//! What asking for a completion notification costs: the raw call (`ibv_req_notify_cq`), and this crate's
//! ([`CompletionQueue::request_notify`](rdma_verbs::CompletionQueue::request_notify)), alternating in one run.
//!
//! Natively, on a provider that does nothing: `cargo bench --bench notify_cost`.

// Not `forbid`, as in every other example: `raw` calls C by itself, which is what ours is compared with.
#![deny(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
pub(crate) mod counter;
pub(crate) mod measure;
pub(crate) mod raw;
pub(crate) mod subject;

use std::fmt::Write;
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};

use counter::Counter;
use measure::{Compared, Plan, Situation, Spread};
use raw::Loops;
use subject::{Call, Subject};

/// Times asking for a completion notification, raw and by this crate, in turn.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// This RDMA device; the first one unless given
    #[arg(short, long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// How many calls of each a run has
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) calls: u32,
    /// How many runs; the median of each figure is told
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) runs: u16,
    /// Ask to be told of solicited completions only
    #[arg(short, long)]
    pub(crate) solicited: bool,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Just so many calls of one kind, untimed: for strace, callgrind and the like
    #[arg(long, value_name = "CALL", conflicts_with_all = ["runs", "json"])]
    pub(crate) only: Option<Call>,
}

fn main() -> ExitCode {
    let output = output(&Options::parse(), Loops::OURS);
    common::exit("notify_cost", output.and_then(|text| common::print(&text)))
}

/// What the program prints.
pub(crate) fn output(options: &Options, loops: Loops) -> Result<String, String> {
    let mut subject = Subject::open(options.device.as_deref(), options.solicited, loops)?;
    if let Some(call) = options.only {
        subject.call(call, options.calls.into())?;
        return Ok(String::new());
    }
    let counter = Counter::calibrate();
    let plan = Plan {
        calls: options.calls.into(),
        runs: options.runs.into(),
        counter: counter.as_ref().ok().copied(),
    };
    let request = |used| Compared { raw: Call::Raw, ours: Call::Ours, used };
    let arm = Compared { raw: Call::RawPoll, ours: Call::Arm, used: false };
    let empty = plan.measure(&mut subject, request(false))?;
    let used = plan.measure(&mut subject, request(true))?;
    let polled = plan.measure(&mut subject, arm)?;
    let situations = [
        ("empty", "empty queue", empty),
        ("after_completions", "after completions", used),
        ("with_poll", "empty queue, and poll", polled),
    ];
    if options.json {
        let mut told = json!({
            "device": subject.device, "calls": plan.calls, "runs": plan.runs, "batch": plan.batch(),
            "solicited": options.solicited, "raw_loop": loops.made_by,
            "counter_mhz": counter.as_ref().ok().map(|counter| counter.mhz),
            "counter_refused": counter.as_ref().err(),
        });
        for (key, _, situation) in situations {
            told[key] = serde_json::to_value(situation).unwrap_or(Value::Null);
        }
        return Ok(format!("{told:#}\n"));
    }
    let mut text = format!(
        "{}: {} calls a run, median of {} runs, raw ({}) and ours in turn\n",
        subject.device, plan.calls, plan.runs, loops.made_by
    );
    let _ = match &counter {
        Ok(counter) => writeln!(
            text,
            "cycles: of single calls, reading the counter included, at {:.3} MHz; ns: by the clock, {} calls at a time",
            counter.mhz,
            plan.batch()
        ),
        Err(why) => {
            writeln!(text, "no cycles: {why}; ns: by the clock, {} calls at a time", plan.batch())
        }
    };
    text += HEAD;
    for (_, what, situation) in &situations {
        rows(&mut text, what, situation, counter.as_ref().ok());
    }
    Ok(text + PUBLISHED)
}

const HEAD: &str = concat!(
    "                                 ------------- cycles -------------   ------------ ns ------------\n",
    "                                     ave       min       max    ave ns       ave       min       max\n",
);
/// What the same measure gave in 2007, elsewhere.
const PUBLISHED: &str = concat!(
    "published, of a device's driver at 3466.727 MHz (2007):\n",
    "without an extra argument        101.283        91       247     29.22\n",
    "with it                          103.311        91       221     29.80\n",
    "difference                         2.028                          0.58\n",
);

fn rows(text: &mut String, what: &str, situation: &Situation, counter: Option<&Counter>) {
    let Situation { raw, ours, difference_ns, difference_cycles } = situation;
    for (side, cost) in [("raw", raw), ("ours", ours)] {
        let _ = write!(text, "{:30}", format!("{what}: {side}"));
        let _ = match (cost.cycles, counter) {
            (Some(Spread { ave, min, max }), Some(counter)) => {
                write!(text, "{ave:10.3}{min:10.0}{max:10.0}{:10.2}", counter.ns(ave))
            }
            _ => write!(text, "{:>10}{:>10}{:>10}{:>10}", "-", "-", "-", "-"),
        };
        let Spread { ave, min, max } = cost.ns;
        let _ = writeln!(text, "{ave:10.2}{min:10.2}{max:10.2}");
    }
    let cycles = difference_cycles.map_or("-".into(), |cycles| format!("{cycles:.3}"));
    let _ = writeln!(text, "{:30}{cycles:>10}{:30}{difference_ns:10.2}", "difference", "");
}
