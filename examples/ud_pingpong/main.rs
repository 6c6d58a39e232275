//! Sends a datagram to and fro between two queue pairs, and tells how long it takes: what C's
//! `ibv_ud_pingpong` does, in its own words over TCP, so that either can be the other end.
//!
//! Each end has an address handle for the other, of what that told; and 40 bytes before every message that
//! comes, which tell where from.

#![forbid(unsafe_code)]

#[path = "../common/args.rs"]
#[allow(dead_code)] // an MTU is none of its options
mod args;
#[path = "../common/mod.rs"]
mod common;
mod end;
#[path = "../common/exchange.rs"]
pub(crate) mod exchange;
#[path = "../common/local.rs"]
pub(crate) mod local;
mod options;
#[path = "../common/pingpong.rs"]
mod pingpong;
#[path = "../common/play.rs"]
mod play;
#[path = "../common/receives.rs"]
mod receives;
#[path = "../common/stamps.rs"]
mod stamps;
#[path = "../common/tcp.rs"]
mod tcp;

use std::process::ExitCode;

use clap::Parser;

pub(crate) use options::Options;
pub(crate) use pingpong::run;
#[allow(unused_imports)] // the tests have it
pub(crate) use tcp::Deadline;

/// The name of this program, and that of C's.
const PROGRAM: &str = "ud_pingpong";
const C_PROGRAM: &str = "ibv_ud_pingpong";

fn main() -> ExitCode {
    let options = Options::parse();
    common::exit(PROGRAM, run(&options).and_then(|output| common::print(&output)))
}
