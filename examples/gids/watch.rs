//! `--watch`: each row that comes or goes, as it happens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::{Context, GidEntry, GidSnapshot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::rows::Row;
use super::{Options, Tables, common};

/// One line with `--json`.
#[derive(Serialize)]
struct Change {
    change: &'static str,
    visible_us: f64,
    #[serde(flatten)]
    row: Row,
}

/// Waits for events of the devices and prints what they changed, until the time is over.
pub(super) fn watch(options: &Options, tables: &mut [Tables]) -> Result<(), String> {
    // A time beyond what the clock can tell is none.
    let deadline = options
        .seconds
        .and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    loop {
        let contexts: Vec<Context> =
            tables.iter().filter_map(|table| table.context.clone()).collect();
        if contexts.is_empty() {
            return Err("nothing to watch: no device is open, and sysfs tells of no change".into());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(());
        }
        let mut fds: Vec<_> =
            contexts.iter().map(|context| PollFd::new(context, PollFlags::IN)).collect();
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("poll: {error}")),
        }
        for table in &mut *tables {
            let Some(context) = &table.context else { continue };
            // One device that fails is told, and the others are watched.
            let now = match context.gids().checked() {
                Ok(now) => now.to_arc(),
                Err(error) => {
                    common::note("gids", error);
                    table.context = None;
                    continue;
                }
            };
            let before = std::mem::replace(&mut table.gids, Arc::clone(&now));
            if !Arc::ptr_eq(&before, &now) {
                let visible = context.gids().stats().last_visible;
                common::print(&changes(options, &before, &now, visible)?)?;
            }
        }
    }
}

/// The lines for what one snapshot has and the other has not.
fn changes(
    options: &Options,
    before: &GidSnapshot,
    now: &GidSnapshot,
    visible: Duration,
) -> Result<String, String> {
    let gone = before.rows().iter().filter(|row| !stands_in(now, row)).map(|row| ("removed", row));
    let come = now.rows().iter().filter(|row| !stands_in(before, row)).map(|row| ("added", row));
    let mut text = String::new();
    for (change, row) in gone.chain(come).filter(|(_, row)| options.concerns(row)) {
        let visible_us = visible.as_secs_f64() * 1e6;
        if options.json {
            let row = Row::new(now, row, None);
            let line = serde_json::to_string(&Change { change, visible_us, row });
            text += &(line.map_err(|error| error.to_string())? + "\n");
        } else {
            let sign = if change == "added" { '+' } else { '-' };
            text += &format!("{sign} {} {row} (visible after {visible_us:.1} us)\n", now.device());
        }
    }
    Ok(text)
}

/// Whether a snapshot has this row at its place.
fn stands_in(snapshot: &GidSnapshot, row: &GidEntry) -> bool {
    snapshot.row(row.port(), row.index()).is_some_and(|there| there.same_address(row))
}
