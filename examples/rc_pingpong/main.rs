//! Sends a message to and fro between two queue pairs, and tells how long it takes: what C's
//! `ibv_rc_pingpong` does, in its own words over TCP, so that either can be the other end.
//!
//! The GID is chosen by the directory, towards the peer; C's needs to be told an index. A server hears the
//! peer's GID before it chooses, a client knows the server's address. And nothing waits for ever.

#![forbid(unsafe_code)]

#[path = "../common/args.rs"]
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
const PROGRAM: &str = "rc_pingpong";
const C_PROGRAM: &str = "ibv_rc_pingpong";

fn main() -> ExitCode {
    let options = Options::parse();
    common::exit(PROGRAM, run(&options).and_then(|output| common::print(&output)))
}
