//! Every GID of this machine's RDMA devices, or those that carry a GID, an IP or a netdev.
//!
//! The tables are read once for each device, all ports in one system call; every lookup is
//! answered from memory, and with `--watch` the devices' own events keep it true.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod rows;
mod watch;

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rdma_verbs::{
    CacheStats, Context, Device, DeviceList, Error, GidEntry, GidSnapshot, PortNum, PortState,
    Wanted,
};

use rows::Row;

/// Lists the GIDs of this machine's RDMA devices: which device, port and table index carries which
/// GID, of which type, on which network interface.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Only this RDMA device, such as rxe0 or mlx5_0
    #[arg(short, long, value_name = "DEVICE")]
    device: Option<String>,
    /// Only this port, counted from 1
    #[arg(short, long, value_parser = parse_port)]
    port: Option<PortNum>,
    /// Only rows that carry this GID or IP address, or belong to this network interface; exit 1
    /// when there is none
    #[arg(short, long, value_name = "GID|IP|NETDEV")]
    find: Option<Wanted>,
    /// One JSON array of objects instead of a table; with --watch, one object for each change, a
    /// line each
    #[arg(long)]
    json: bool,
    /// Then go on, and print each row that comes (+) or goes (-), with the time from its event to
    /// its being visible to every lookup
    #[arg(short, long)]
    watch: bool,
    /// End --watch after so many seconds
    #[arg(long, value_name = "N", requires = "watch")]
    seconds: Option<u64>,
    /// Tell at the end what the cache of each device did
    #[arg(short, long)]
    stats: bool,
}

/// A device with its tables, and what each of its ports is like.
pub(crate) struct Tables {
    device: Device,
    /// `None` where the device may not be opened.
    context: Option<Context>,
    gids: Arc<GidSnapshot>,
    states: Vec<(PortNum, PortState)>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    common::exit("gids", run(&options))
}

fn run(options: &Options) -> Result<(), String> {
    let mut tables = read_all(options)?;
    if !options.watch || !options.json {
        common::print(&listing(options, &tables)?)?;
    }
    if options.watch {
        watch::watch(options, &mut tables)?;
    }
    if options.stats {
        for table in &tables {
            let stats = table.context.as_ref().map(|context| context.gids().stats());
            common::note("gids", stats_line(table.device.name(), stats));
        }
    }
    Ok(())
}

/// The tables of the devices asked for, as far as they can be read.
pub(crate) fn read_all(options: &Options) -> Result<Vec<Tables>, String> {
    let list = DeviceList::new().map_err(|error| error.to_string())?;
    if let Some(absence) = list.absence() {
        return Err(absence.to_string());
    }
    let devices: Vec<&Device> = match &options.device {
        Some(name) => vec![list.find(name).map_err(|error| error.to_string())?],
        None => list.iter().collect(),
    };
    let mut tables = Vec::new();
    for device in devices {
        // One device that fails is told, and the others are shown.
        match read(device) {
            Ok(read) => tables.push(read),
            Err(error) => common::note("gids", error),
        }
    }
    if tables.is_empty() {
        return Err("no device's GID table could be read".into());
    }
    Ok(tables)
}

/// The device's tables: from the device, or from sysfs when it may not be opened.
fn read(device: &Device) -> Result<Tables, Error> {
    match device.open() {
        Ok(context) => {
            let states: Result<Vec<_>, Error> =
                context.ports().map(|port| Ok((port, context.port(port)?.state))).collect();
            let gids = context.gids().checked()?.to_arc();
            Ok(Tables { device: device.clone(), states: states?, context: Some(context), gids })
        }
        Err(error @ (Error::PermissionDenied { .. } | Error::NoNode { .. })) => {
            let gids = device.gids_from_sysfs()?.cached().to_arc();
            common::note("gids", format!("{error}; its rows are from sysfs, without port state"));
            Ok(Tables { device: device.clone(), states: Vec::new(), context: None, gids })
        }
        Err(error) => Err(error),
    }
}

/// The table, or the JSON array, of the rows asked for.
pub(crate) fn listing(options: &Options, tables: &[Tables]) -> Result<String, String> {
    let rows = chosen(options, tables)?;
    if !options.json {
        return Ok(rows::table(&rows));
    }
    let json = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
    Ok(json + "\n")
}

impl Options {
    /// Whether a row is among those asked for.
    fn concerns(&self, row: &GidEntry) -> bool {
        let found = match &self.find {
            Some(Wanted::Gid(gid)) => row.gid() == *gid,
            Some(Wanted::Ip(ip)) => row.ip() == Some(*ip),
            Some(Wanted::Netdev(name)) => row.netdev() == Some(name.as_str()),
            _ => true,
        };
        found && self.port.is_none_or(|port| port == row.port())
    }
}

/// The rows asked for, in the order of device, port and index.
fn chosen(options: &Options, tables: &[Tables]) -> Result<Vec<Row>, String> {
    let of_port = |port| options.port.is_none_or(|wanted| wanted == port);
    let ports = || tables.iter().flat_map(|table| table.gids.ports());
    if ports().all(|table| !of_port(table.port())) {
        let most = ports().map(|table| table.port().get()).max().unwrap_or(0);
        return Err(format!("no such port: the highest here is {most}"));
    }
    let mut rows = Vec::new();
    for table in tables {
        let found: Vec<&GidEntry> = match &options.find {
            Some(wanted) => table.gids.find(wanted).map(Iterator::collect).unwrap_or_default(),
            None => table.gids.rows().iter().collect(),
        };
        let found = found.into_iter().filter(|row| of_port(row.port()));
        rows.extend(found.map(|row| Row::new(&table.gids, row, table.state(row.port()))));
    }
    match &options.find {
        Some(wanted) if rows.is_empty() && !options.watch => Err(not_found(wanted, tables)),
        _ => Ok(rows),
    }
}

impl Tables {
    fn state(&self, port: PortNum) -> Option<PortState> {
        self.states.iter().find(|(known, _)| *known == port).map(|(_, state)| *state)
    }
}

/// Why nothing was found: what was looked for, and how much there is.
fn not_found(wanted: &Wanted, tables: &[Tables]) -> String {
    let mut text = format!("no row carries {wanted}; without --find you see those there are:");
    for (n, table) in tables.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(text, "{comma} {} of {}", table.gids.rows().len(), table.device.name());
    }
    text
}

fn stats_line(device: &str, stats: Option<CacheStats>) -> String {
    match stats {
        Some(stats) => format!(
            "{device}: {} hits, {} misses, {} refreshes, {} events, slowest change {:.1} us",
            stats.hits,
            stats.misses,
            stats.refreshes,
            stats.events,
            stats.slowest_visible.as_secs_f64() * 1e6
        ),
        None => format!("{device}: not open, nothing is cached"),
    }
}

fn parse_port(text: &str) -> Result<PortNum, String> {
    let number = text.parse().map_err(|_| "a port is a number from 1 to 255")?;
    PortNum::new(number).ok_or_else(|| "ports are counted from 1".into())
}
