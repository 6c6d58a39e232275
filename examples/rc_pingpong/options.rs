//! What `rc_pingpong` can be asked.

use std::time::Duration;

use clap::Parser;
use rdma_verbs::{Mtu, PortNum};

use super::args::{parse_mtu, parse_port, parse_timeout};

/// Sends a message to and fro between two queue pairs of the reliable connected transport, and tells how
/// long it takes. Speaks with C's ibv_rc_pingpong, whose flags it has.
#[derive(Parser, Clone)]
#[command(version)]
pub(crate) struct Options {
    /// The server's name or address; without one, this is the server
    #[arg(conflicts_with = "both")]
    pub(crate) host: Option<String>,
    /// Both ends in one process, on a thread each
    #[arg(long)]
    pub(crate) both: bool,
    /// The TCP port on which the two ends find each other; 0 for a free one [default: 18515; with
    /// --both 0]
    #[arg(short, long)]
    pub(crate) port: Option<u16>,
    /// The RDMA device, such as rxe0 or mlx5_0 [default: the best one towards the peer]
    #[arg(short = 'd', long, value_name = "DEVICE")]
    pub(crate) ib_dev: Option<String>,
    /// The device's port, counted from 1
    #[arg(short, long, default_value = "1", value_parser = parse_port)]
    pub(crate) ib_port: PortNum,
    /// The message, in bytes
    #[arg(short, long, default_value_t = 4096)]
    pub(crate) size: u64,
    /// The most that the path MTU may be: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value = "1024", value_parser = parse_mtu)]
    pub(crate) mtu: Mtu,
    /// How many receives to post at a time; fewer where they would take more than 4 MiB
    #[arg(short, long, default_value_t = 500)]
    pub(crate) rx_depth: u32,
    /// How often it goes to and fro
    #[arg(short = 'n', long, default_value_t = 1000)]
    pub(crate) iters: u32,
    /// The service level, 0 to 15
    #[arg(short = 'l', long, default_value_t = 0)]
    pub(crate) sl: u8,
    /// Sleep until completions come, instead of polling
    #[arg(short, long)]
    pub(crate) events: bool,
    /// The row of the port's GID table to use, given by hand [default: the best one towards the peer]
    #[arg(short, long, value_name = "INDEX")]
    pub(crate) gid_idx: Option<u32>,
    /// Look at every byte that is received
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// Tell what lies between the messages that come, by the device's clock
    #[arg(short, long)]
    pub(crate) ts: bool,
    /// Post sends by the extended calls (ibv_wr_*)
    #[arg(short = 'N', long)]
    pub(crate) new_send: bool,
    /// One JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// When to give up, whatever is waited for, with exit 1
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_timeout)]
    pub(crate) timeout: Duration,
    /// The processor to run on; two, for the server and the client, with --both
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1..=2)]
    pub(crate) cpu: Vec<usize>,
}

impl Options {
    /// What can be found wrong before anything is done. How long a message can be, memory and port say.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Options { rx_depth: 0, .. } => {
                Err("--rx-depth 0: there is nothing to receive into".into())
            }
            Options { iters: 0, .. } => Err("--iters 0: there is nothing to do".into()),
            Options { sl: 16.., .. } => Err(format!("--sl {}: it can be 0 to 15", self.sl)),
            _ => Ok(()),
        }
    }
}
