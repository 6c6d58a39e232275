//! Tells how long an RDMA write takes, as perftest's `ib_write_lat` does and in its words over TCP, so that
//! either can be the other end; and how many writes a second there are with several for one doorbell.
//!
//! The two ends write to each other in turn, and each waits until the last byte of its memory has changed.
//! Half of the time from one post to the next is the latency. The GID is chosen by the directory.

#![forbid(unsafe_code)]

#[path = "../common/args.rs"]
mod args;
mod batch;
pub(crate) mod chart;
#[path = "../common/mod.rs"]
mod common;
mod cpu;
pub(crate) mod doorbell;
mod end;
pub(crate) mod exchange;
#[path = "../common/local.rs"]
mod local;
pub(crate) mod options;
mod play;
pub(crate) mod report;
mod session;
pub(crate) mod stats;
#[path = "../common/svg.rs"]
pub(crate) mod svg;
#[path = "../common/tcp.rs"]
mod tcp;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use options::Doorbell;
pub(crate) use options::Options;
use report::Row;
use session::{Door, Session};

/// The name of this program, and that of C's.
const PROGRAM: &str = "write_lat";
const C_PROGRAM: &str = "ib_write_lat";
/// The port that C's program takes.
const PORT: u16 = 18515;

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
    if !options.cpu_freq {
        cpu::warn();
    }
    let mut rows: Vec<Row> = Vec::new();
    for way in &options.doorbell {
        let mut each = |row: Row| {
            let first = rows.first().unwrap_or(&row);
            let line = row.line(first);
            let head = if rows.is_empty() { report::head(!options.batch.is_empty()) } else { "" };
            rows.push(row);
            say(options, head.to_owned() + &line)
        };
        match way {
            Doorbell::Default => measure(options, &mut each)?,
            way => in_child(options, *way)?.into_iter().try_for_each(each)?,
        }
    }
    if let Some(file) = &options.svg {
        chart::draw(file, &rows)?;
    }
    if options.json {
        return Ok(serde_json::to_string_pretty(&rows).map_err(text)? + "\n");
    }
    Ok(String::new())
}

/// What is done with each row.
type Each<'a> = &'a mut dyn FnMut(Row) -> Result<(), String>;

/// In this process.
fn measure(options: &Options, each: Each<'_>) -> Result<(), String> {
    if options.both {
        return both(options, each);
    }
    cpu::pin(options.cpu)?;
    let port = options.port.unwrap_or(PORT);
    let session = match &options.server {
        Some(host) => Session::client(options, host, port)?,
        None => Session::server(options, &Door::open(options, port)?)?,
    };
    session.run(options, each)
}

/// Both ends, each on a thread; the client tells.
fn both(options: &Options, each: Each<'_>) -> Result<(), String> {
    let door = Door::open(options, options.port.unwrap_or(0))?;
    let port = door.port;
    let next = cpu::next(options.cpu);
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            cpu::pin(next)?;
            Session::server(options, &door)?.run(options, &mut |_| Ok(()))
        });
        let client = cpu::pin(options.cpu)
            .and_then(|()| Session::client(options, "localhost", port))
            .and_then(|session| session.run(options, each));
        let server = server.join().unwrap_or_else(|_| Err("it panicked".into()));
        match (server, client) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(server), Ok(())) => Err(format!("the server: {server}")),
            (Ok(()), Err(client)) => Err(format!("the client: {client}")),
            (Err(server), Err(client)) => {
                Err(format!("the server: {server}; the client: {client}"))
            }
        }
    })
}

/// In a process that has the provider's switches for it.
fn in_child(options: &Options, way: Doorbell) -> Result<Vec<Row>, String> {
    let program = std::env::current_exe().map_err(text)?;
    in_program(&program, options, way)
}

pub(crate) fn in_program(
    program: &Path,
    options: &Options,
    way: Doorbell,
) -> Result<Vec<Row>, String> {
    let device = session::device(options)?;
    doorbell::measure(program, options, &device, way)
}

/// A line on the way, of a person's output.
fn say(options: &Options, line: String) -> Result<(), String> {
    if options.json { Ok(()) } else { common::print(&line) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
