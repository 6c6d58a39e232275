//! Measures what receiving costs: into the fragments of a page pool, into buffers that are registered one by
//! one, and into buffers that were registered beforehand, which is the limit.
//!
//! One to sixteen streams come from a sender to a receiver, which measures: what came in a second, and what its
//! thread had of the processor for it. The modes take turns on the same streams; a mode begins when the
//! receives of the one before are used up. The GID is chosen by the directory, which also tells when the device
//! is taken away: then the streams end in order, and that is no error.

#![forbid(unsafe_code)]

#[path = "../common/args.rs"]
mod args;
mod chart;
#[path = "../common/mod.rs"]
mod common;
pub(crate) mod exchange;
#[path = "../common/local.rs"]
mod local;
mod measure;
mod memory;
pub(crate) mod options;
mod receiver;
mod report;
mod sender;
mod session;
mod stop;
mod streams;
mod supply;
#[path = "../common/svg.rs"]
mod svg;
#[path = "../common/tcp.rs"]
mod tcp;

use std::process::ExitCode;

use clap::Parser;
use rdma_verbs::{DeviceList, GidDirectory};

pub(crate) use options::Options;
use report::Row;
use session::Door;

/// The name of this program, at both ends.
const PROGRAM: &str = "page_pool";
const C_PROGRAM: &str = PROGRAM;
/// The TCP port of the receiver.
const PORT: u16 = 18516;

fn main() -> ExitCode {
    let options = Options::parse();
    common::exit(PROGRAM, run(&options).and_then(|output| common::print(&output)))
}

/// Runs one end, or both, and gives what is left to print: with `--json` all.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.check()?;
    if let Some(file) = &options.svg {
        svg::check(file)?;
    }
    if let Some(absence) = DeviceList::new().map_err(text)?.absence() {
        return Err(absence.to_string());
    }
    let directory = GidDirectory::open().map_err(text)?;
    // Lets go of a device that is to be taken away, and tells everybody here.
    let _watcher = directory.watch().map_err(text)?;
    let rows = match &options.server {
        Some(host) => {
            let sent = session::send(options, host, options.port.unwrap_or(PORT), &directory)?;
            return Ok(format!("{sent} messages sent\n"));
        }
        None if options.both => both(options, &directory)?,
        None => {
            let door = Door::open(options, options.port.unwrap_or(PORT), &directory)?;
            session::receive(options, &door, &directory)?
        }
    };
    if let Some(file) = &options.svg {
        chart::draw(file, &rows)?;
    }
    if options.json {
        return Ok(serde_json::to_string_pretty(&rows).map_err(text)? + "\n");
    }
    Ok(String::new())
}

/// Both ends, each on a thread.
fn both(options: &Options, directory: &GidDirectory) -> Result<Vec<Row>, String> {
    let door = Door::open(options, options.port.unwrap_or(0), directory)?;
    let port = door.port;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || session::send(options, "localhost", port, directory));
        let rows = session::receive(options, &door, directory);
        // A sender that still waits to be let in hears that nobody will.
        drop(door);
        let sender = sender.join().unwrap_or_else(|_| Err("it panicked".into()));
        match (rows, sender) {
            (Ok(rows), Ok(_)) => Ok(rows),
            (Err(receiver), Ok(_)) => Err(format!("the receiver: {receiver}")),
            (Ok(_), Err(sender)) => Err(format!("the sender: {sender}")),
            (Err(receiver), Err(sender)) => {
                Err(format!("the receiver: {receiver}; the sender: {sender}"))
            }
        }
    })
}

/// A line on the way, of a person's output.
fn say(options: &Options, line: &str) -> Result<(), String> {
    if options.json { Ok(()) } else { common::print(line) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
