//! What `gids` can be asked.

use std::net::IpAddr;

use clap::Parser;
use rdma_verbs::{
    DirectoryRow, DirectorySnapshot, GidQuery, GidType, IfName, PortNum, Subnet, Wanted,
};

/// Lists the GIDs of this machine's RDMA devices: which device, port and table index carries which
/// GID, of which type, on which network interface.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Only this RDMA device, such as rxe0 or mlx5_0
    #[arg(short, long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Only this port, counted from 1
    #[arg(short, long, value_parser = parse_port)]
    pub(crate) port: Option<PortNum>,
    /// Only rows that carry this GID or IP address, or belong to this network interface; exit 1
    /// when there is none
    #[arg(short, long, value_name = "GID|IP|NETDEV")]
    pub(crate) find: Option<Wanted>,
    /// Only rows whose address is in this range, such as 192.0.2.0/24
    #[arg(long)]
    pub(crate) subnet: Option<Subnet>,
    /// Only rows of this type
    #[arg(short, long, value_name = "v1|v2|ib", value_parser = parse_type)]
    pub(crate) r#type: Option<GidType>,
    /// Only the row at this index, given by hand
    #[arg(short, long)]
    pub(crate) index: Option<u32>,
    /// Which GID to use towards this address, and why not each of the others; exit 1 when none
    /// reaches it
    #[arg(long = "for", value_name = "ADDR")]
    pub(crate) towards: Option<IpAddr>,
    /// Every row with the reason it is taken or not; exit 1 when none is
    #[arg(short, long)]
    pub(crate) explain: bool,
    /// One JSON array of objects instead of a table; with --watch, one object for each change, a
    /// line each
    #[arg(long)]
    pub(crate) json: bool,
    /// Then go on, and print each row that comes (+) or goes (-), with the time from its event to
    /// its being visible to every lookup
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// End --watch after so many seconds
    #[arg(long, value_name = "N", requires = "watch")]
    pub(crate) seconds: Option<u64>,
    /// Tell at the end what the caches did
    #[arg(short, long)]
    pub(crate) stats: bool,
    /// Read sysfs only: no device is opened
    #[arg(long)]
    pub(crate) sysfs: bool,
    /// What a lookup costs on the first and on the last device: entry by entry, by table calls,
    /// checked and cached
    #[arg(long, conflicts_with_all = ["watch", "explain", "towards", "find", "device", "port", "subnet", "type", "index", "sysfs"])]
    pub(crate) bench: bool,
}

impl Options {
    /// The query that the options make.
    pub(crate) fn query(&self) -> GidQuery {
        let mut query = GidQuery::new();
        if let Some(name) = &self.device {
            query = query.device(name);
        }
        if let Some(port) = self.port {
            query = query.port(port);
        }
        if let Some(index) = self.index {
            query = query.index(index);
        }
        if let Some(subnet) = self.subnet {
            query = query.subnet(subnet);
        }
        if let Some(gid_type) = self.r#type {
            query = query.gid_type(gid_type);
        }
        if let Some(peer) = self.towards {
            query = query.peer(peer);
        }
        match self.find {
            Some(Wanted::Gid(gid)) => query.gid(gid),
            Some(Wanted::Ip(ip)) => query.ip(ip),
            Some(Wanted::Netdev(name)) => query.netdev(name),
            _ => query,
        }
    }

    /// Whether any filter was given.
    pub(crate) fn filters(&self) -> bool {
        self.query() != GidQuery::new()
    }

    /// Whether a row is among those asked for.
    pub(crate) fn concerns(&self, snapshot: &DirectorySnapshot, row: &DirectoryRow) -> bool {
        let entry = row.entry();
        let device = snapshot.device_of(row).map(|device| device.name());
        let name = |name: &IfName| entry.netdev() == Some(name.as_str());
        self.device.as_deref().is_none_or(|wanted| device == Some(wanted))
            && self.port.is_none_or(|port| port == entry.port())
            && self.index.is_none_or(|index| index == entry.index())
            && self.subnet.is_none_or(|subnet| entry.ip().is_some_and(|ip| subnet.contains(ip)))
            && self.r#type.is_none_or(|gid_type| gid_type == entry.gid_type())
            && self.find.as_ref().is_none_or(|wanted| match wanted {
                Wanted::Gid(gid) => entry.gid() == *gid,
                Wanted::Ip(ip) => entry.ip() == Some(*ip),
                Wanted::Netdev(wanted) => name(wanted),
                _ => false,
            })
    }
}

fn parse_port(text: &str) -> Result<PortNum, String> {
    let number = text.parse().map_err(|_| "a port is a number from 1 to 255")?;
    PortNum::new(number).ok_or_else(|| "ports are counted from 1".into())
}

fn parse_type(text: &str) -> Result<GidType, String> {
    match text.to_ascii_lowercase().as_str() {
        "v1" | "roce v1" => Ok(GidType::ROCE_V1),
        "v2" | "roce v2" => Ok(GidType::ROCE_V2),
        "ib" => Ok(GidType::IB),
        _ => Err("a type is v1, v2 or ib".into()),
    }
}
