//! Every GID of this machine's RDMA devices; those that carry a GID, an IP or a netdev; or the one to
//! use towards an address, and why.
//!
//! All tables are read once, and every lookup is answered from memory; with `--watch` the devices'
//! own events keep it true.

#![forbid(unsafe_code)]

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod options;
mod rows;
mod watch;

use std::fmt::Write;
use std::process::ExitCode;

use clap::Parser;
use rdma_verbs::{DeviceList, DirectoryRow, DirectorySnapshot, GidDirectory, TableSource, Wanted};

pub(crate) use options::Options;
use rows::Row;

fn main() -> ExitCode {
    let options = Options::parse();
    common::exit("gids", run(&options))
}

fn run(options: &Options) -> Result<(), String> {
    if options.bench {
        return common::print(&bench::bench(options.json)?);
    }
    let directory = open(options)?;
    let output = output(options, &directory);
    if !(options.watch && (options.json || output.is_err())) {
        common::print(&output?)?;
    }
    if options.watch {
        watch::watch(options, &directory)?;
    }
    if options.stats {
        stats(&directory);
    }
    Ok(())
}

/// The directory of all devices; what is wrong with one of them is told, and the others are shown.
pub(crate) fn open(options: &Options) -> Result<GidDirectory, String> {
    let list = DeviceList::new().map_err(|error| error.to_string())?;
    if let Some(absence) = list.absence() {
        return Err(absence.to_string());
    }
    if let Some(name) = &options.device {
        list.find(name).map_err(|error| error.to_string())?;
    }
    let directory = if options.sysfs { GidDirectory::open_sysfs() } else { GidDirectory::open() };
    let directory = directory.map_err(|error| error.to_string())?;
    let mut failed = 0;
    for device in directory.cached().devices() {
        match device.source() {
            TableSource::SysfsInstead(error) => {
                let note = format!("{error}; its rows are from sysfs, without port state");
                common::note("gids", note);
            }
            TableSource::Failed(error) => {
                failed += 1;
                common::note("gids", error);
            }
            _ => {}
        }
    }
    if failed == directory.cached().devices().len() {
        return Err("no device's GID table could be read".into());
    }
    Ok(directory)
}

/// What is printed before any watching.
pub(crate) fn output(options: &Options, directory: &GidDirectory) -> Result<String, String> {
    let snapshot = directory.checked().map_err(|error| error.to_string())?;
    if options.towards.is_some() || options.explain {
        return explain(options, &snapshot);
    }
    let rows: Vec<Row> =
        chosen(options, &snapshot)?.into_iter().map(|row| Row::new(&snapshot, row)).collect();
    if !options.json {
        return Ok(rows::table(&rows));
    }
    let json = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
    Ok(json + "\n")
}

/// The rows asked for, in the order of device, port and index.
fn chosen<'a>(
    options: &Options,
    snapshot: &'a DirectorySnapshot,
) -> Result<Vec<&'a DirectoryRow>, String> {
    let ports = || snapshot.devices().iter().flat_map(|device| device.gids().ports());
    if let Some(port) = options.port.filter(|port| ports().all(|table| table.port() != *port)) {
        let most = ports().map(|table| table.port().get()).max().unwrap_or(0);
        return Err(format!("no device here has a port {port}; the highest is {most}"));
    }
    let rows: Vec<_> = match &options.find {
        // From the index: this is what the directory is for.
        Some(Wanted::Gid(gid)) => snapshot.by_gid(gid).collect(),
        Some(Wanted::Ip(ip)) => snapshot.by_ip(*ip).collect(),
        Some(Wanted::Netdev(name)) => snapshot.by_netdev(name.as_str()).collect(),
        _ => snapshot.rows().iter().collect(),
    };
    let rows: Vec<_> = rows.into_iter().filter(|row| options.concerns(snapshot, row)).collect();
    if rows.is_empty() && options.filters() && !options.watch {
        return Err(not_found(options, snapshot));
    }
    Ok(rows)
}

/// Which row is the best, and why not the others.
fn explain(options: &Options, snapshot: &DirectorySnapshot) -> Result<String, String> {
    let query = options.query();
    let explanation = query.explain(snapshot);
    let reasons = if options.json {
        rows::explained_json(&explanation)?
    } else {
        rows::explained(&explanation)
    };
    match query.best(snapshot) {
        Ok(_) if options.json => Ok(reasons),
        Ok(best) => Ok(format!("{best}\n\n{reasons}")),
        // The reasons are what was asked for.
        Err(_) => {
            common::print(&reasons)?;
            Err(format!("no GID fits {query}"))
        }
    }
}

/// Why nothing was found: what was looked for, and how much there is.
fn not_found(options: &Options, snapshot: &DirectorySnapshot) -> String {
    let mut text =
        format!("no row carries {}; without it you see those there are:", options.query());
    for (n, device) in snapshot.devices().iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(text, "{comma} {} of {}", device.gids().rows().len(), device.name());
    }
    text
}

/// What the caches did, on stderr.
fn stats(directory: &GidDirectory) {
    let all = directory.stats();
    let line = format!("{} hits, {} misses, {} rescans", all.hits, all.misses, all.rescans);
    common::note("gids", format!("directory: {line}"));
    for (device, stats) in directory.device_stats() {
        let line = match stats {
            Some(stats) => format!(
                "{} refreshes, {} events, slowest change {:.1} us",
                stats.refreshes,
                stats.events,
                stats.slowest_visible.as_secs_f64() * 1e6
            ),
            None => "its table could not be read".into(),
        };
        common::note("gids", format!("{device}: {line}"));
    }
}
