//! What `rping` of rdma-core does, on this crate: a client's text is read by the server, written back, and
//! compared. Either end works with the C program's other end.
//!
//! The client exposes a buffer with a text, and tells where it is; the server reads it, says so, and, told
//! of a second buffer, writes it there, and says so.

#![forbid(unsafe_code)]

mod client;
#[path = "../common/mod.rs"]
mod common;
mod link;
mod options;
mod server;
mod wire;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_verbs::cm::EventChannel;

pub(crate) use options::Options;

/// How long a step of connecting may take.
const STEP: Duration = Duration::from_secs(10);

/// When all is to be over.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// So many seconds from now, or never.
    fn new(seconds: Option<u64>) -> Deadline {
        Deadline(seconds.and_then(|s| Instant::now().checked_add(Duration::from_secs(s))))
    }

    /// What is left; `None` without end.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// What is left for a step of connecting.
    pub(crate) fn step(self) -> Duration {
        self.left().map_or(STEP, |left| left.min(STEP))
    }
}

fn main() -> ExitCode {
    common::exit("rping", run(&Options::parse()))
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let deadline = Deadline::new(options.deadline);
    if options.client {
        return client::run(options, options.peer()?, deadline);
    }
    let channel = EventChannel::new().map_err(|error| error.to_string())?;
    let listener = channel.listen(options.at()?, 16).map_err(|error| error.to_string())?;
    if !options.both {
        return server::run(options, &listener, deadline);
    }
    // A port of 0 is chosen by the listener.
    let port = listener.local_addr().ok_or("the listener has no address")?.port();
    let peer = (options.peer()?.ip(), port).into();
    let serving = options.clone();
    let server = std::thread::spawn(move || server::run(&serving, &listener, deadline));
    // If it fails, a server that waits for it is left behind.
    client::run(options, peer, deadline)?;
    server.join().unwrap_or_else(|_| Err("the server's thread panicked".into()))
}
