//! What `cmtime` can be asked; the letters are the C program's.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use serde::Serialize;

use super::Step;

/// Tells what each step of connecting takes. Every connection does one step before any does the next. Without
/// -s it is the server, and ends after as many connections.
///
/// With --cm rdmacm either end can be cmtime of rdma-core.
#[derive(Parser, Clone, Debug)]
#[command(version, disable_version_flag = true)]
pub(crate) struct Options {
    /// The server, by address or name
    #[arg(short, long)]
    pub(crate) server: Option<String>,
    /// The address of this side; a server's are all unless given
    #[arg(short, long, value_name = "ADDR")]
    pub(crate) bind: Option<IpAddr>,
    /// How many, at most 100000
    #[arg(short, long, value_name = "N", default_value_t = 100)]
    pub(crate) connections: u32,
    /// The port
    #[arg(short, long, default_value_t = 7471)]
    pub(crate) port: u16,
    /// How long a step may take, of all connections together; those that are not done then have failed
    #[arg(short, long, value_name = "MS", default_value_t = 60_000)]
    pub(crate) timeout: u32,
    /// How long all of it may take, waiting for clients included
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) deadline: u32,
    /// The RDMA connection manager, or this crate's exchange over TCP; or both, one after the other
    #[arg(long, value_delimiter = ',', default_value = "rdmacm")]
    pub(crate) cm: Vec<Manager>,
    /// Of verbs: how the device, port and index of an address are found: in the snapshot of all tables, or
    /// entry by entry, as programs do
    #[arg(long, value_delimiter = ',', default_value = "cached")]
    pub(crate) gid_lookup: Vec<GidLookup>,
    /// Of verbs: whether paths are remembered, or all are asked of the kernel
    #[arg(long, value_delimiter = ',', default_value = "cached")]
    pub(crate) resolve: Vec<Resolving>,
    /// Both ends in one process
    #[arg(long)]
    pub(crate) both: bool,
    /// No step after this one
    #[arg(long, value_name = "STEP")]
    pub(crate) until: Option<Step>,
    /// One object for each run, a line each
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the steps of the runs side by side
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// By what is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Manager {
    Rdmacm,
    Verbs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GidLookup {
    Cached,
    Scan,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Resolving {
    Cached,
    Cold,
}

/// How a run is made: one of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct How {
    pub(crate) cm: Manager,
    /// `None` where it is the kernel's business.
    pub(crate) gid_lookup: Option<GidLookup>,
    pub(crate) resolve: Option<Resolving>,
}

impl Options {
    /// What can be found wrong before anything is done.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Options { connections: 0 | 100_001.., .. } => {
                Err(format!("-c {}: it can be 1 to 100000", self.connections))
            }
            Options { timeout: 0, .. } => Err("-t 0: nothing is done in no time".into()),
            Options { server: None, both: false, svg: Some(_), .. } => {
                Err("--svg is of a client: a server measures nothing".into())
            }
            _ => Ok(()),
        }
    }

    /// Every run that is asked for.
    pub(crate) fn runs(&self) -> Vec<How> {
        let mut runs = Vec::new();
        for &cm in &self.cm {
            if cm == Manager::Rdmacm {
                runs.push(How { cm, gid_lookup: None, resolve: None });
                continue;
            }
            for &gid_lookup in &self.gid_lookup {
                for &resolve in &self.resolve {
                    let (gid_lookup, resolve) = (Some(gid_lookup), Some(resolve));
                    runs.push(How { cm, gid_lookup, resolve });
                }
            }
        }
        runs
    }

    /// The first address of the server's name.
    pub(crate) fn server_address(&self) -> Result<Option<SocketAddr>, String> {
        let Some(name) = &self.server else { return Ok(None) };
        let mut found =
            (name.as_str(), self.port).to_socket_addrs().map_err(|e| format!("{name}: {e}"))?;
        let of_family = |at: &SocketAddr| {
            self.bind.is_none_or(|bind| bind.to_canonical().is_ipv4() == at.is_ipv4())
        };
        found.find(of_family).map(Some).ok_or_else(|| format!("{name}: no address fits"))
    }
}

/// When a step, and all of it, must be over.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    all: Instant,
    step: Duration,
}

impl Deadline {
    pub(crate) fn new(options: &Options) -> Deadline {
        let all = Instant::now() + Duration::from_secs(options.deadline.into());
        Deadline { all, step: Duration::from_millis(options.timeout.into()) }
    }

    /// When a step must be over that begins now.
    pub(crate) fn of_step(&self) -> Instant {
        self.all.min(Instant::now() + self.step)
    }

    /// How long a step may take.
    pub(crate) fn step(&self) -> Duration {
        self.step
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.all
    }
}
