//! Every GID of this machine's RDMA devices, or those that carry a GID, an IP or a netdev.
//!
//! The tables are read once for each device and port, in one system call; every lookup is
//! answered from memory.

#![forbid(unsafe_code)]

mod common;

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rdma_verbs::{Device, DeviceList, Error, GidEntry, GidSnapshot, PortNum, PortState, Wanted};
use serde::Serialize;

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
    /// One JSON array of objects instead of a table
    #[arg(long)]
    json: bool,
}

/// One line of the table, one object of the JSON array.
#[derive(Serialize)]
struct Row {
    device: String,
    port: u8,
    index: u32,
    gid: String,
    ipv4: Option<String>,
    r#type: String,
    netdev: Option<String>,
    ifindex: Option<u32>,
    link: String,
    state: Option<String>,
}

/// A device with its tables, and what each of its ports is like.
struct Tables {
    device: Device,
    gids: Arc<GidSnapshot>,
    states: Vec<(PortNum, PortState)>,
}

fn main() -> ExitCode {
    common::exit("gids", output(&Options::parse()).and_then(|text| common::print(&text)))
}

/// What the program prints.
pub(crate) fn output(options: &Options) -> Result<String, String> {
    let list = DeviceList::new().map_err(|error| error.to_string())?;
    if let Some(absence) = list.absence() {
        return Err(absence.to_string());
    }
    let devices: Vec<&Device> = match &options.device {
        Some(name) => vec![list.find(name).map_err(|error| error.to_string())?],
        None => list.iter().collect(),
    };
    let mut tables = Vec::new();
    for device in &devices {
        // One device that fails is told, and the others are shown.
        match read(device) {
            Ok(read) => tables.push(read),
            Err(error) => common::note("gids", error),
        }
    }
    if tables.is_empty() {
        return Err("no device's GID table could be read".into());
    }
    let rows = rows(options, &tables)?;
    if !options.json {
        return Ok(table(&rows));
    }
    let json = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
    Ok(json + "\n")
}

/// The device's tables: from the device, or from sysfs when it may not be opened.
fn read(device: &Device) -> Result<Tables, Error> {
    match device.open() {
        Ok(context) => {
            let states: Result<Vec<_>, Error> =
                context.ports().map(|port| Ok((port, context.port(port)?.state))).collect();
            let gids = context.gids().cached().to_arc();
            Ok(Tables { device: device.clone(), states: states?, gids })
        }
        Err(error @ (Error::PermissionDenied { .. } | Error::NoNode { .. })) => {
            let gids = device.gids_from_sysfs()?.cached().to_arc();
            common::note("gids", format!("{error}; its rows are from sysfs, without port state"));
            Ok(Tables { device: device.clone(), states: Vec::new(), gids })
        }
        Err(error) => Err(error),
    }
}

/// The rows asked for, in the order of device, port and index.
fn rows(options: &Options, tables: &[Tables]) -> Result<Vec<Row>, String> {
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
        rows.extend(found.map(|row| Row::new(table, row)));
    }
    match &options.find {
        Some(wanted) if rows.is_empty() => Err(not_found(wanted, tables)),
        _ => Ok(rows),
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

impl Row {
    fn new(table: &Tables, row: &GidEntry) -> Row {
        let link = table.gids.port(row.port()).map(|port| port.link_layer().to_string());
        let state = table.states.iter().find(|(port, _)| *port == row.port());
        Row {
            device: table.device.name().into(),
            port: row.port().get(),
            index: row.index(),
            gid: row.gid().full().to_string(),
            ipv4: row.ipv4().map(|ip| ip.to_string()),
            r#type: row.gid_type().to_string(),
            netdev: row.netdev().map(str::to_owned),
            ifindex: row.ifindex(),
            link: link.unwrap_or_default(),
            state: state.map(|(_, state)| state.to_string()),
        }
    }
}

/// The rows as `show_gids` prints them, each column as wide as what is in it.
fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        ["DEV", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV", "LINK", "STATE"]
            .map(str::to_owned),
    ];
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    lines.extend(rows.iter().map(|row| {
        [
            row.device.clone(),
            row.port.to_string(),
            row.index.to_string(),
            row.gid.clone(),
            dash(&row.ipv4),
            row.r#type.clone(),
            dash(&row.netdev),
            row.link.clone(),
            dash(&row.state),
        ]
    }));
    let mut widths = [0; 9];
    for line in &lines {
        for (width, field) in widths.iter_mut().zip(line) {
            *width = field.len().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let fields = line.iter().zip(widths).map(|(field, width)| format!("{field:width$}"));
        let line = fields.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(text, "n_gids_found={}", rows.len());
    text
}

fn parse_port(text: &str) -> Result<PortNum, String> {
    let number = text.parse().map_err(|_| "a port is a number from 1 to 255")?;
    PortNum::new(number).ok_or_else(|| "ports are counted from 1".into())
}
