//! What `page_pool` can be asked.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rdma_verbs::{Mtu, PortNum};

use super::args::{parse_mtu, parse_port, parse_timeout};

/// The most streams.
pub(crate) const STREAMS: u32 = 16;
/// The shortest message, and the longest.
pub(crate) const SIZES: (u64, u64) = (64, 65536);

/// Measures what receiving costs: messages of some streams, reliable connected queue pairs, come into memory
/// that is had in three ways. The receiver measures, and is the server; the sender follows it.
#[derive(Parser, Clone)]
#[command(version)]
pub(crate) struct Options {
    /// The receiver's name or address: this is the sender then, which does as the receiver says
    #[arg(conflicts_with_all = ["both", "streams", "size", "seconds", "mode", "rounds", "srq", "json", "svg"])]
    pub(crate) server: Option<String>,
    /// Both ends in one process, on a thread each
    #[arg(long)]
    pub(crate) both: bool,
    /// How many streams there are, 1 to 16
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4)]
    pub(crate) streams: u32,
    /// The message, in bytes, 64 to 65536; several sizes are measured one after the other
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', default_value = "4096")]
    pub(crate) size: Vec<u64>,
    /// How long each mode is measured in a round, 0.01 to 86400
    #[arg(short = 't', long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Where the memory is from [default: all three]
    #[arg(short, long, value_delimiter = ',')]
    pub(crate) mode: Vec<Mode>,
    /// How often the modes are measured in turn, 1 to 1000; medians are told
    #[arg(short, long, default_value_t = 1)]
    pub(crate) rounds: u32,
    /// All streams receive from one shared receive queue
    #[arg(long)]
    pub(crate) srq: bool,
    /// The RDMA device, such as rxe0 or mlx5_0 [default: the best one towards the peer]
    #[arg(short = 'd', long, value_name = "DEVICE")]
    pub(crate) ib_dev: Option<String>,
    /// The device's port, counted from 1
    #[arg(short, long, value_name = "PORT", default_value = "1", value_parser = parse_port)]
    pub(crate) ib_port: PortNum,
    /// The row of the port's GID table to use, given by hand [default: the best one towards the peer]
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    pub(crate) gid_idx: Option<u32>,
    /// The most that the path MTU may be: 256, 512, 1024, 2048 or 4096; the same at both ends [default: the
    /// port's]
    #[arg(long, value_parser = parse_mtu)]
    pub(crate) mtu: Option<Mtu>,
    /// The TCP port on which the two ends find each other; 0 for a free one [default: 18516; with
    /// --both 0]
    #[arg(short, long)]
    pub(crate) port: Option<u16>,
    /// An array of one JSON object for each size and mode, instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the messages per second
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// How long to wait for the other end before giving up: in all until both are connected, and then for
    /// each message
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_timeout)]
    pub(crate) timeout: Duration,
}

/// Where the memory that messages come into is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// A pool of pages that are registered once, and handed out in order
    Pages,
    /// A buffer for each message, registered before and deregistered after it
    PerBuffer,
    /// One set of buffers that are registered beforehand: the limit
    Static,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::Pages, Mode::PerBuffer, Mode::Static];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Mode::Pages => "pages",
            Mode::PerBuffer => "per-buffer",
            Mode::Static => "static",
        }
    }
}

impl Options {
    /// What can be found wrong before anything is done.
    pub(crate) fn check(&self) -> Result<(), String> {
        let &Options { streams, seconds, rounds, .. } = self;
        let (least, most) = SIZES;
        if let Some(size) = self.size.iter().find(|size| !(least..=most).contains(*size)) {
            return Err(format!("--size {size}: a message can be {least} to {most} bytes"));
        }
        if !(1..=STREAMS).contains(&streams) {
            return Err(format!("--streams {streams}: there can be 1 to {STREAMS}"));
        }
        if !(0.01..=86400.0).contains(&seconds) {
            return Err(format!("--seconds {seconds}: it can be 0.01 to 86400"));
        }
        if !(1..=1000).contains(&rounds) {
            return Err(format!("--rounds {rounds}: it can be 1 to 1000"));
        }
        Ok(())
    }

    /// The modes to measure, each once.
    pub(crate) fn modes(&self) -> Vec<Mode> {
        let asked = |mode: &Mode| self.mode.is_empty() || self.mode.contains(mode);
        Mode::ALL.into_iter().filter(asked).collect()
    }

    /// How long each mode is measured in a round.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// The longest message.
    pub(crate) fn longest(&self) -> u64 {
        self.size.iter().copied().max().unwrap_or(SIZES.1)
    }
}
