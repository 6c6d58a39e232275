//! What `echo` can be asked.

use std::net::IpAddr;
use std::time::Duration;

use clap::Parser;

/// An echo server and its clients on tokio: each client sends messages on a queue pair of its own, and looks
/// at what comes back. Queue pairs are connected over TCP.
#[derive(Parser, Clone)]
#[command(version)]
pub(crate) struct Options {
    /// The server's address; without one, this is the server
    #[arg(conflicts_with = "both")]
    pub(crate) server: Option<IpAddr>,
    /// Both in one process
    #[arg(long)]
    pub(crate) both: bool,
    /// The address that the server listens at, which has an RDMA device [default: that of the best GID]
    #[arg(long, value_name = "ADDR", conflicts_with = "server")]
    pub(crate) bind: Option<IpAddr>,
    /// The TCP port on which they find each other; 0 for a free one [default: 7473; with --both 0]
    #[arg(short, long)]
    pub(crate) port: Option<u16>,
    /// How many clients, at a time
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clients: u32,
    /// How many messages each of them sends
    #[arg(short, long, default_value_t = 1000)]
    pub(crate) messages: u64,
    /// The message, in bytes
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    pub(crate) size: u32,
    /// How many messages of a client are under way at a time
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) depth: u32,
    /// Drop futures at random moments, of completions, of connections, of paths, and begin again
    #[arg(long)]
    pub(crate) cancel: bool,
    /// Where randomness begins
    #[arg(long, default_value_t = 1, requires = "cancel")]
    pub(crate) seed: u64,
    /// The threads that tasks run on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,
    /// When clients give up, whatever they wait for
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = parse_timeout)]
    pub(crate) timeout: Duration,
}

impl Options {
    /// The port that the server listens at.
    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.both { 0 } else { 7473 })
    }

    /// The receives of each end: a message that comes finds one, though the last is still on its way back.
    pub(crate) fn receives(&self) -> u32 {
        2 * self.depth
    }
}

/// At most some years: a clock can tell no more.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=1e9).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, from 0.001 to 1000000000".into())
}
