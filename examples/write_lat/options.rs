//! What `write_lat` can be asked. Letters that perftest's `ib_write_lat` has mean what they mean there.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rdma_verbs::{Mtu, PortNum};

use super::args::{parse_mtu, parse_port, parse_timeout};

/// The longest message, and the room for it.
pub(crate) const LONGEST: u64 = 8 << 20;
/// The most work requests for one doorbell.
pub(crate) const MOST: usize = 64;

/// Tells how long an RDMA write takes until the other end sees it in its memory: half of the time from one
/// write to the next, while one goes to and fro. Speaks with perftest's ib_write_lat, as either end.
#[derive(Parser, Clone)]
#[command(version)]
pub(crate) struct Options {
    /// The server's name or address; without one, this is the server
    #[arg(conflicts_with = "both")]
    pub(crate) server: Option<String>,
    /// Both ends in one process, on a thread each
    #[arg(long)]
    pub(crate) both: bool,
    /// All sizes from 2 bytes to 8 MiB, by powers of two
    #[arg(short, long, conflicts_with = "size")]
    pub(crate) all: bool,
    /// The message, in bytes, 1 to 8388608
    #[arg(short, long, default_value_t = 2)]
    pub(crate) size: u64,
    /// How many writes each end posts, of each size; 3 or more
    #[arg(short = 'n', long, default_value_t = 1000)]
    pub(crate) iters: u32,
    /// The RDMA device, such as rxe0 or mlx5_0 [default: the best one towards the peer]
    #[arg(short = 'd', long, value_name = "DEVICE")]
    pub(crate) ib_dev: Option<String>,
    /// The device's port, counted from 1
    #[arg(short, long, value_name = "PORT", default_value = "1", value_parser = parse_port)]
    pub(crate) ib_port: PortNum,
    /// The row of the port's GID table to use, given by hand [default: the best one towards the peer]
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    pub(crate) gid_idx: Option<u32>,
    /// The path MTU: 256, 512, 1024, 2048 or 4096 [default: the port's]
    #[arg(short, long, value_parser = parse_mtu)]
    pub(crate) mtu: Option<Mtu>,
    /// The TCP port on which the two ends find each other; 0 for a free one [default: 18515; with
    /// --both 0]
    #[arg(short, long)]
    pub(crate) port: Option<u16>,
    /// Do not warn where the processors change their frequency
    #[arg(short = 'F', long)]
    pub(crate) cpu_freq: bool,
    /// The processor to run on; with --both the other end runs on the next one, if there is one
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Messages of up to so many bytes are copied into the work request
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 220)]
    pub(crate) inline: u32,
    /// Messages per second instead, with so many writes for one doorbell, 1 to 64; one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "write_with_imm")]
    pub(crate) batch: Vec<u32>,
    /// Write with immediate data, and wait for its completion instead of for the memory to change
    #[arg(long)]
    pub(crate) write_with_imm: bool,
    /// How work requests reach the device, where the provider has a switch for it; several with --both
    #[arg(long, value_delimiter = ',', default_value = "default")]
    pub(crate) doorbell: Vec<Doorbell>,
    /// What the report calls it: of a process that was started with the switch set
    #[arg(long, hide = true, default_value = "default")]
    pub(crate) doorbell_name: Doorbell,
    /// An array of one JSON object for each size and mode, instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw it
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print how often each time was measured, to three digits
    #[arg(short = 'H', long)]
    pub(crate) histogram: bool,
    /// How long to wait for the other end before giving up: in all until both are connected, and then for
    /// each message
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_timeout)]
    pub(crate) timeout: Duration,
}

/// How a work request reaches the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Doorbell {
    /// As the provider does it by itself
    Default,
    /// Written with the doorbell, as far as it fits
    Blueflame,
    /// The doorbell alone: the device fetches the work request
    Plain,
}

impl Doorbell {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Doorbell::Default => "default",
            Doorbell::Blueflame => "blueflame",
            Doorbell::Plain => "plain",
        }
    }
}

impl Options {
    /// What can be found wrong before anything is done.
    pub(crate) fn check(&self) -> Result<(), String> {
        let &Options { size, iters, .. } = self;
        if !(1..=LONGEST).contains(&size) {
            return Err(format!("--size {size}: a message can be 1 to {LONGEST} bytes"));
        }
        if iters < 3 {
            return Err(format!("--iters {iters}: it can be 3 to {}", u32::MAX));
        }
        if let Some(batch) = self.batch.iter().find(|batch| !(1..=MOST as u32).contains(*batch)) {
            return Err(format!("--batch {batch}: it can be 1 to {MOST}"));
        }
        if self.doorbell.len() > 1 && !self.both {
            return Err("--doorbell: more than one needs both ends in one process (--both)".into());
        }
        Ok(())
    }

    /// The sizes to measure.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        if self.all { (1..24).map(|bit| 1 << bit).collect() } else { vec![self.size] }
    }

    /// The longest of them.
    pub(crate) fn longest(&self) -> u64 {
        if self.all { LONGEST } else { self.size }
    }

    /// The arguments of a process that does the same with a provider's switches set, and tells it as JSON.
    pub(crate) fn for_child(&self, way: Doorbell) -> Vec<String> {
        let mut all = vec!["--json".into(), "-F".into(), format!("--doorbell-name={}", way.name())];
        let mut flag = |is_set: bool, name: &str| all.extend(is_set.then(|| name.to_owned()));
        flag(self.both, "--both");
        flag(self.write_with_imm, "--write-with-imm");
        flag(self.histogram, "--histogram");
        all.push(if self.all { "--all".into() } else { format!("--size={}", self.size) });
        all.push(format!("--iters={}", self.iters));
        all.push(format!("--ib-port={}", self.ib_port));
        all.push(format!("--inline={}", self.inline));
        all.push(format!("--timeout={}", self.timeout.as_secs_f64()));
        all.extend(self.batch.iter().map(|batch| format!("--batch={batch}")));
        all.extend(self.ib_dev.iter().map(|name| format!("--ib-dev={name}")));
        all.extend(self.gid_idx.map(|index| format!("--gid-index={index}")));
        all.extend(self.mtu.and_then(Mtu::bytes).map(|bytes| format!("--mtu={bytes}")));
        all.extend(self.port.map(|port| format!("--port={port}")));
        all.extend(self.cpu.map(|cpu| format!("--cpu={cpu}")));
        all.extend(self.server.iter().flat_map(|server| ["--".to_owned(), server.clone()]));
        all
    }
}
