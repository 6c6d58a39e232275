//! `--watch`: each row that comes or goes, as it happens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::{DirectoryRow, DirectorySnapshot, GidDirectory, TableSource};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::rows::Row;
use super::{Options, common};

/// One line with `--json`.
#[derive(Serialize)]
struct Change {
    change: &'static str,
    visible_us: f64,
    #[serde(flatten)]
    row: Row,
}

/// Waits until something changes and prints what came and went, until the time is over.
pub(super) fn watch(options: &Options, directory: &GidDirectory) -> Result<(), String> {
    // A time beyond what the clock can tell is none.
    let deadline = options
        .seconds
        .and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let mut before = directory.cached().to_arc();
    let is_open = |source: &TableSource| matches!(source, TableSource::Device);
    if !before.devices().iter().any(|device| is_open(device.source())) {
        common::note("gids", "no device is open: changes are seen when an address changes");
    }
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(());
        }
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut [PollFd::new(directory, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("poll: {error}")),
        }
        let woken = Instant::now();
        let now = match directory.checked() {
            Ok(now) => now.to_arc(),
            // It is tried again: the directory wakes us for it.
            Err(error) => {
                common::note("gids", error);
                continue;
            }
        };
        let visible = woken.elapsed();
        let then = std::mem::replace(&mut before, Arc::clone(&now));
        if !Arc::ptr_eq(&then, &now) {
            common::print(&changes(options, &then, &now, visible)?)?;
        }
    }
}

/// The lines for what one snapshot has and the other has not.
fn changes(
    options: &Options,
    before: &DirectorySnapshot,
    now: &DirectorySnapshot,
    visible: Duration,
) -> Result<String, String> {
    let gone = before.rows().iter().map(|row| ("removed", before, row, now));
    let come = now.rows().iter().map(|row| ("added", now, row, before));
    let visible_us = visible.as_secs_f64() * 1e6;
    let mut text = String::new();
    for (change, of, row, other) in gone.chain(come) {
        if stands_in(other, of, row) || !options.concerns(of, row) {
            continue;
        }
        if options.json {
            let row = Row::new(of, row);
            let line = serde_json::to_string(&Change { change, visible_us, row });
            text += &(line.map_err(|error| error.to_string())? + "\n");
        } else {
            let sign = if change == "added" { '+' } else { '-' };
            let device = of.device_of(row).map_or("", |device| device.name());
            let row = row.entry();
            text += &format!("{sign} {device} {row} (visible after {visible_us:.1} us)\n");
        }
    }
    Ok(text)
}

/// Whether another snapshot has this row at its place.
fn stands_in(other: &DirectorySnapshot, of: &DirectorySnapshot, row: &DirectoryRow) -> bool {
    let entry = row.entry();
    let there =
        of.device_of(row).and_then(|device| other.row(device.name(), entry.port(), entry.index()));
    there.is_some_and(|there| there.entry().same_address(entry))
}
