//! What a cached GID lookup costs, natively, on tables made by hand of 16, 1024 and 8192 rows.
//!
//! ```text
//! cargo bench --bench gid_lookup             a table, and the bars it is held against
//! cargo bench --bench gid_lookup -- --json   one object
//! cargo bench --bench gid_lookup -- --instructions
//!                                            instructions per lookup, by valgrind's callgrind
//! cargo bench --bench gid_lookup -- --only by_gid,8192,1000000
//!                                            just so many lookups: for `strace -c` and the like
//! ```
//!
//! Beside ours stand what it is made of: a bare hashbrown lookup with the same hasher that copies
//! the same row, and an arc-swap load. All are timed in turn, many rounds, medians.

mod cost;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use rdma_verbs::{Cache, Gid, GidEntry, GidSnapshot, GidType, PortNum};
use serde_json::json;

/// Rows of a port's table, every one with another IPv4 address.
fn rows(count: u32) -> Vec<GidEntry> {
    let row = |index: u32| {
        let [_, a, b, c] = index.to_be_bytes();
        GidEntry::new(PortNum::FIRST, index, Ipv4Addr::new(10, a, b, c).into())
            .with_type(GidType::ROCE_V2)
            .with_netdev(2 + index % 8, None)
    };
    (0..count).map(row).collect()
}

/// Numbers below `count`, shuffled: the table's rows in an order that no cache of the CPU foresees.
fn shuffled(count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        numbers.swap(at, (state >> 33) as usize % (at + 1));
    }
    numbers
}

/// One table, and the same rows in a bare map.
struct Tables {
    cache: Cache<GidSnapshot>,
    bare: hashbrown::HashMap<Gid, GidEntry, foldhash::fast::FixedState>,
    loaded: ArcSwap<GidSnapshot>,
    gids: Vec<Gid>,
    ips: Vec<IpAddr>,
}

impl Tables {
    fn new(count: u32) -> Tables {
        let rows = rows(count);
        let gids: Vec<Gid> =
            shuffled(count).into_iter().map(|number| rows[number as usize].gid()).collect();
        Tables {
            cache: Cache::from_fn(GidSnapshot::from_rows("bench0", &rows), |_| None),
            bare: rows.iter().map(|row| (row.gid(), *row)).collect(),
            loaded: ArcSwap::new(Arc::new(GidSnapshot::from_rows("bench0", &rows))),
            ips: gids.iter().map(|gid| gid.ip()).collect(),
            gids,
        }
    }

    fn by_gid(&self, lookups: usize) {
        for gid in self.gids.iter().cycle().take(lookups) {
            let row = self.cache.cached().by_gid(black_box(gid)).next().copied();
            black_box(row);
        }
    }

    fn by_ip(&self, lookups: usize) {
        for ip in self.ips.iter().cycle().take(lookups) {
            let row = self.cache.cached().by_ip(black_box(*ip)).next().copied();
            black_box(row);
        }
    }

    fn bare(&self, lookups: usize) {
        for gid in self.gids.iter().cycle().take(lookups) {
            let row = self.bare.get(black_box(gid)).copied();
            black_box(row);
        }
    }

    fn load(&self, lookups: usize) {
        for gid in self.gids.iter().cycle().take(lookups) {
            black_box(gid);
            black_box(&**self.loaded.load());
        }
    }
}

const LOOKUPS: usize = 100_000;
const ROUNDS: usize = 61;
const WHAT: [&str; 4] = ["by_gid", "by_ip", "bare", "load"];

/// The medians, in nanoseconds, of what [`WHAT`] names, and the allocations of all rounds.
fn measure(tables: &Tables) -> ([f64; 4], u64) {
    let run = |what: usize, lookups| match what {
        0 => tables.by_gid(lookups),
        1 => tables.by_ip(lookups),
        2 => tables.bare(lookups),
        _ => tables.load(lookups),
    };
    (0..4).for_each(|what| run(what, LOOKUPS));
    let mut times: [Vec<f64>; 4] = std::array::from_fn(|_| Vec::with_capacity(ROUNDS));
    let before = cost::allocations();
    for _ in 0..ROUNDS {
        for (what, times) in times.iter_mut().enumerate() {
            let begun = Instant::now();
            run(what, LOOKUPS);
            times.push(begun.elapsed().as_nanos() as f64 / LOOKUPS as f64);
        }
    }
    let allocations = cost::allocations() - before;
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    (medians, allocations)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--only") {
        return only(arguments.get(at + 1).map_or("", String::as_str));
    }
    if arguments.iter().any(|argument| argument == "--instructions") {
        return WHAT.iter().for_each(|what| println!("{what:7} {:6.1}", instructions(what)));
    }
    let measured: Vec<_> =
        [16, 1024, 8192].map(|rows| (rows, measure(&Tables::new(rows)))).into_iter().collect();
    if arguments.iter().any(|argument| argument == "--json") {
        let of = |what: usize| -> BTreeMap<String, f64> {
            measured.iter().map(|(rows, (times, _))| (rows.to_string(), times[what])).collect()
        };
        let allocations: u64 = measured.iter().map(|(_, (_, allocations))| allocations).sum();
        let object = json!({
            "by_gid_ns": of(0), "by_ip_ns": of(1), "bare_ns": of(2), "load_ns": of(3),
            "allocations": allocations,
        });
        return println!("{object:#}");
    }
    println!(
        "ns per lookup, median of {ROUNDS} rounds of {LOOKUPS}; ratio to bare + load, bar 1.3"
    );
    println!("  rows  by GID   by IP    bare    load  GID ratio  IP ratio  allocations");
    for (rows, ([gid, ip, bare, load], allocations)) in &measured {
        let sum = bare + load;
        println!(
            "{rows:6} {gid:7.2} {ip:7.2} {bare:7.2} {load:7.2} {:10.2} {:9.2} {allocations:12}",
            gid / sum,
            ip / sum
        );
    }
    if let [(_, (small, _)), .., (_, (large, _))] = &measured[..] {
        let (gid, ip) = (large[0] / small[0], large[1] / small[1]);
        println!("8192 rows against 16: by GID {gid:.2}, by IP {ip:.2}; bar 2");
    }
}

/// Instructions per lookup among 8192 rows.
fn instructions(what: &str) -> f64 {
    let counted = cost::instructions(|lookups| format!("{what},8192,{lookups}"));
    counted.expect("valgrind is installed")
}

/// `what,rows,lookups`: those lookups and nothing else.
fn only(task: &str) {
    let fields: Vec<&str> = task.split(',').collect();
    let [what, rows, lookups] = fields[..] else { panic!("--only what,rows,lookups") };
    let tables = Tables::new(rows.parse().expect("rows"));
    let lookups = lookups.parse().expect("lookups");
    match WHAT.iter().position(|known| *known == what) {
        Some(0) => tables.by_gid(lookups),
        Some(1) => tables.by_ip(lookups),
        Some(2) => tables.bare(lookups),
        Some(_) => tables.load(lookups),
        None => panic!("one of {WHAT:?}"),
    }
}
