//! What each step of connecting takes, as `cmtime` of rdma-core tells it: by the RDMA connection manager, with
//! either of the two programs at either end, or by this crate's own exchange over TCP.

#![forbid(unsafe_code)]

mod chart;
#[path = "../common/mod.rs"]
mod common;
pub(crate) mod options;
mod parts;
mod rdmacm;
pub(crate) mod report;
mod steps;
#[path = "../common/svg.rs"]
mod svg;
mod verbs;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use rdma_verbs::{GidDirectory, GidQuery};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) use options::Options;
use options::{Deadline, How, Manager};
use report::Report;
pub(crate) use steps::{Figures, Run, Step};

/// How long a server sleeps before it looks whether it is to end.
const TICK: Duration = Duration::from_millis(50);

/// What a server has done.
#[derive(Default, Debug)]
pub(crate) struct Served {
    /// Who came and went again, those included that failed.
    count: u32,
    failed: u32,
    error: Option<String>,
}

impl Served {
    fn failed(&mut self, error: &str) {
        (self.count, self.failed) = (self.count + 1, self.failed + 1);
        self.error.get_or_insert_with(|| error.into());
    }

    fn too_few(&self, options: &Options) -> String {
        let Options { connections, deadline, .. } = options;
        format!("{} of {connections} connections came within {deadline} s (--deadline)", self.count)
    }
}

fn main() -> ExitCode {
    common::exit("cmtime", run(&Options::parse()))
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    options.check()?;
    room();
    let deadline = Deadline::new(options);
    if options.server.is_none() && !options.both {
        return serve(options, deadline);
    }
    // Before anything is measured for nothing.
    options.svg.as_deref().map_or(Ok(()), svg::check)?;
    let mut reports = Vec::new();
    for how in options.runs() {
        let report = measure(options, how, deadline)?;
        common::print(&if options.json { report.json()? } else { report.table() })?;
        reports.push(report);
    }
    if let Some(file) = &options.svg {
        chart::draw(file, &reports)?;
    }
    reports.iter().find_map(Report::failure).map_or(Ok(()), Err)
}

/// A connection has a descriptor or more: as many as may be.
fn room() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If not, that is told when there are too few.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// One run of the client, and of the server if it is here too.
pub(crate) fn measure(options: &Options, how: How, deadline: Deadline) -> Result<Report, String> {
    let to = options.server_address()?;
    let mut run = Run::new(options, how, deadline);
    if !options.both {
        client(&mut run, to.ok_or("no server")?)?;
        return Ok(Report::new(run));
    }
    let to = match (to, options.bind) {
        (Some(to), _) => to,
        (None, Some(bind)) => (bind, options.port).into(),
        (None, None) => (some_address()?, options.port).into(),
    };
    let server = Server::new(how.cm, to)?;
    let to = SocketAddr::new(to.ip(), server.port());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| server.serve(options, deadline, &stop));
        let outcome = client(&mut run, to);
        stop.store(true, Ordering::Relaxed);
        let served = server.join().unwrap_or_else(|_| Err("the server's thread panicked".into()));
        // What a client is told, a server knows better.
        outcome.and(served.map(|served| run.error = served.error.or(run.error.take())))
    })?;
    Ok(Report::new(run))
}

fn client(run: &mut Run<'_>, to: SocketAddr) -> Result<(), String> {
    match run.how.cm {
        Manager::Rdmacm => rdmacm::client::run(run, to),
        Manager::Verbs => verbs::client::run(run, to),
    }
}

/// An address of this host that has a device: that of the best row.
fn some_address() -> Result<IpAddr, String> {
    let directory = GidDirectory::open().map_err(text)?;
    let best = GidQuery::new().best(&directory.cached()).map_err(text)?;
    best.row.ip().ok_or_else(|| "no device has an IP address: give one with -b".into())
}

enum Server {
    Rdmacm(rdmacm::server::Server),
    Verbs(Box<verbs::server::Server>),
}

impl Server {
    fn new(cm: Manager, at: SocketAddr) -> Result<Server, String> {
        Ok(match cm {
            Manager::Rdmacm => Server::Rdmacm(rdmacm::server::Server::new(at)?),
            Manager::Verbs => Server::Verbs(Box::new(verbs::server::Server::new(at)?)),
        })
    }

    fn port(&self) -> u16 {
        match self {
            Server::Rdmacm(server) => server.port(),
            Server::Verbs(server) => server.port(),
        }
    }

    fn serve(
        self,
        options: &Options,
        deadline: Deadline,
        stop: &AtomicBool,
    ) -> Result<Served, String> {
        match self {
            Server::Rdmacm(server) => server.serve(options, deadline, stop),
            Server::Verbs(server) => server.serve(options, deadline, stop),
        }
    }
}

/// The server alone: for each manager that is asked for, at the same time.
fn serve(options: &Options, deadline: Deadline) -> Result<(), String> {
    let at = (options.bind.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), options.port).into();
    let mut managers = options.cm.clone();
    managers.dedup();
    let servers = managers.iter().map(|cm| Server::new(*cm, at));
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serve = |server: Server| scope.spawn(|| server.serve(options, deadline, &stop));
        let servers: Vec<_> = servers.into_iter().map(serve).collect();
        for server in servers {
            let served =
                server.join().unwrap_or_else(|_| Err("a server's thread panicked".into()))?;
            let Served { count, failed, error } = served;
            if let Some(error) = error {
                return Err(format!("{failed} of {count} connections failed; the first: {error}"));
            }
        }
        Ok(())
    })
}

pub(crate) fn text<E: Into<rdma_verbs::Error>>(error: E) -> String {
    error.into().to_string()
}
