//! What `rping` can be asked; the letters are the C program's where they mean the same.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use clap::{ArgGroup, Parser};

/// Sends a text to a server, which reads it, and writes it back, over RDMA connections made by the
/// connection manager. Works with rping of rdma-core at either end.
#[derive(Parser, Clone)]
#[command(version, disable_version_flag = true, group = ArgGroup::new("role").required(true))]
pub(crate) struct Options {
    /// The server
    #[arg(short, long, group = "role")]
    pub(crate) server: bool,
    /// The client
    #[arg(short, long, group = "role", requires = "address")]
    pub(crate) client: bool,
    /// Both, in one process
    #[arg(long, group = "role", requires = "address", conflicts_with = "persistent")]
    pub(crate) both: bool,
    /// The server's address; of a server, all unless given, and those of IPv6 with ::
    #[arg(short, long, value_name = "ADDR")]
    pub(crate) address: Option<String>,
    /// The address that the client sends from
    #[arg(short = 'I', long, value_name = "ADDR")]
    pub(crate) source: Option<IpAddr>,
    /// The port; 0 is one that is free
    #[arg(short, long, default_value_t = 7174)]
    pub(crate) port: u16,
    /// How many times; without end unless given
    #[arg(short = 'C', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Bytes of text: 28 to 1048576; the C program takes up to 65535, and its server no more than it was told
    #[arg(short = 'S', long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(28..=1_048_576))]
    pub(crate) size: u32,
    /// Compare what comes back
    #[arg(short = 'V', long)]
    pub(crate) validate: bool,
    /// Print the text
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Tell on stderr what happens
    #[arg(short, long)]
    pub(crate) debug: bool,
    /// The server goes on when a client has gone, and serves any number at a time
    #[arg(short = 'P', long, requires = "server")]
    pub(crate) persistent: bool,
    /// Fail when it is not over after so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) deadline: Option<u64>,
    /// Print the version
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

impl Options {
    /// Where the server listens.
    pub(crate) fn at(&self) -> Result<SocketAddr, String> {
        match &self.address {
            None => Ok((Ipv4Addr::UNSPECIFIED, self.port).into()),
            Some(_) => self.peer(),
        }
    }

    /// Where the client finds it: the first address of that name.
    pub(crate) fn peer(&self) -> Result<SocketAddr, String> {
        let name = self.address.as_deref().unwrap_or_default();
        let mut found = (name, self.port).to_socket_addrs().map_err(|e| format!("{name}: {e}"))?;
        found.next().ok_or_else(|| format!("{name}: no address"))
    }

    pub(crate) fn say(&self, what: impl std::fmt::Display) {
        if self.debug {
            super::common::note("rping", what);
        }
    }
}
