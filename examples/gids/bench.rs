//! `--bench`: what finding an address costs, on the first and on the last device.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use rdma_verbs::{Context, DeviceList, Error, Gid, GidDirectory, GidEntry};
use serde::Serialize;

/// Nanoseconds, medians.
#[derive(Serialize)]
struct Costs {
    scan_ns: f64,
    table_ns: f64,
    checked_ns: f64,
    cached_ns: f64,
}

/// With `--json`.
#[derive(Serialize)]
struct Both {
    first: Costs,
    last: Costs,
}

pub(super) fn bench(json: bool) -> Result<String, String> {
    let both = measure().map_err(|error| error.to_string())?.ok_or("no device has an address")?;
    if json {
        let text = serde_json::to_string_pretty(&both).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    let mut text =
        String::from("ns per lookup      first device   last device   cached is faster by\n");
    let cached = both.last.cached_ns;
    for (what, first, last) in [
        ("entry by entry", both.first.scan_ns, both.last.scan_ns),
        ("table calls", both.first.table_ns, both.last.table_ns),
        ("checked", both.first.checked_ns, both.last.checked_ns),
        ("cached", both.first.cached_ns, both.last.cached_ns),
    ] {
        text += &format!("{what:<15} {first:15.1} {last:13.1} {:12.0} x\n", last / cached);
    }
    Ok(text)
}

fn measure() -> Result<Option<Both>, Error> {
    let directory = GidDirectory::open()?;
    let list = DeviceList::new()?;
    // In the directory's order, whatever the library's is.
    let named = directory.cached().to_arc();
    let devices = named.devices().iter().filter_map(|device| list.find(device.name()).ok());
    let contexts: Vec<Context> = devices.filter_map(|device| device.open().ok()).collect();
    // The last address of a device is the one that a scan reaches last.
    let address = |context: &Context| {
        context.gids().cached().rows().iter().rev().find_map(GidEntry::ipv4).map(IpAddr::from)
    };
    let with_one: Vec<IpAddr> = contexts.iter().filter_map(address).collect();
    let (Some(first), Some(last)) = (with_one.first().copied(), with_one.last().copied()) else {
        return Ok(None);
    };
    // In turn, so that neither gets a warmer machine.
    Ok(Some(Both {
        first: costs(&directory, &contexts, first)?,
        last: costs(&directory, &contexts, last)?,
    }))
}

fn costs(directory: &GidDirectory, contexts: &[Context], ip: IpAddr) -> Result<Costs, Error> {
    let gid = Gid::from(ip);
    Ok(Costs {
        scan_ns: median(5, 1, || scan(contexts, gid).map(|_| ()))?,
        table_ns: median(21, 5, || table_calls(contexts, gid).map(|_| ()))?,
        checked_ns: median(21, 500, || {
            black_box(directory.checked()?.by_ip(black_box(ip)).next().copied());
            Ok(())
        })?,
        cached_ns: median(51, 20_000, || {
            black_box(directory.cached().by_ip(black_box(ip)).next().copied());
            Ok(())
        })?,
    })
}

/// What programs do today: `ibv_query_gid` for every entry of every device, until one is it.
fn scan(contexts: &[Context], gid: Gid) -> Result<Option<(usize, u32)>, Error> {
    for (number, context) in contexts.iter().enumerate() {
        for table in context.gids().cached().ports() {
            for index in 0..table.capacity() {
                match context.query_gid(table.port(), index) {
                    Ok(found) if found == gid => return Ok(Some((number, index))),
                    Ok(_) | Err(Error::GidRowEmpty { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(None)
}

/// What better ones do: `ibv_query_gid_table` for every device, until one has it.
fn table_calls(contexts: &[Context], gid: Gid) -> Result<Option<(usize, u32)>, Error> {
    for (number, context) in contexts.iter().enumerate() {
        let rows = context.query_gid_table()?;
        if let Some(row) = rows.iter().find(|row| row.gid() == gid) {
            return Ok(Some((number, row.index())));
        }
    }
    Ok(None)
}

/// The median of some rounds, in nanoseconds a call.
fn median(
    rounds: usize,
    calls: u32,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let mut times = Vec::with_capacity(rounds);
    call()?;
    for _ in 0..rounds {
        let begun = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        times.push(begun.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
