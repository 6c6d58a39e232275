//! What a path from memory costs, natively: routes and neighbours of this host, and GID tables made by
//! hand of this host's addresses and 8 devices of 250 rows besides.
//!
//! ```text
//! cargo bench --bench resolve                      min, median, 99th percentile
//! cargo bench --bench resolve -- --json            one object
//! cargo bench --bench resolve -- --peer ADDRESS    towards this one; else towards a neighbour that
//!                                                  the kernel knows, or an address of this host
//! cargo bench --bench resolve -- --only hit,10000  just so many hits: for `strace -f -c`
//! ```
//!
//! `hit` is `resolve` of what is remembered, `checked` takes notifications in first, `fresh` asks the
//! kernel for route and neighbour, with the neighbour known. `load` is a bare arc-swap load, of which
//! a hit makes three.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rdma_verbs::{
    Cache, Destination, DirectorySnapshot, GidEntry, GidSnapshot, GidType, HostNet, LocalAddress,
    NetSnapshot, Path, PortNum, Resolver,
};
use serde_json::json;

const ROUNDS: usize = 2001;
/// Lookups of one round: enough for the clock not to be seen.
const IN_A_ROUND: u32 = 100;

/// This host's addresses on a device of their own, and others' besides.
fn directory() -> DirectorySnapshot {
    let host = HostNet::open().expect("netlink");
    let net = host.interfaces().cached();
    let entry = |index: u32, address: &LocalAddress| {
        GidEntry::new(PortNum::FIRST, index, address.ip().into())
            .with_type(GidType::ROCE_V2)
            .with_netdev(address.ifindex(), None)
    };
    let mut addresses = net.addresses().to_vec();
    let own: Vec<_> = (0..).zip(&addresses).map(|(index, address)| entry(index, address)).collect();
    let mut devices: Vec<_> = (0..8_u8)
        .map(|device| {
            let more: Vec<_> = (0..250)
                .map(|n| LocalAddress::new(1, Ipv4Addr::new(198, 18, device, n).into(), 24))
                .collect();
            let rows: Vec<_> = (0..).zip(&more).map(|(index, at)| entry(index, at)).collect();
            addresses.extend(more);
            GidSnapshot::from_rows(&format!("bench{device}"), &rows)
        })
        .collect();
    devices.push(GidSnapshot::from_rows("own", &own));
    DirectorySnapshot::from_parts(
        devices,
        NetSnapshot::from_parts(net.interfaces().to_vec(), addresses),
    )
}

/// A neighbour that the kernel knows, or an address of this host.
fn some_peer() -> IpAddr {
    let table = std::fs::read_to_string("/proc/net/arp").unwrap_or_default();
    let known = table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let address = fields.next()?.parse().ok()?;
        (fields.nth(1)? == "0x2").then_some(address)
    });
    known.map(IpAddr::V4).next().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Nanoseconds for one: the least, the median and the 99th percentile of the rounds.
fn timed(in_a_round: u32, mut run: impl FnMut()) -> [f64; 3] {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            (0..in_a_round).for_each(|_| run());
            begun.elapsed().as_nanos() as f64 / f64::from(in_a_round)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    [times[0], times[ROUNDS / 2], times[ROUNDS * 99 / 100]]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let peer = value("--peer").map_or_else(some_peer, |text| text.parse().expect("an address"));
    let to = Destination::new(peer);
    let resolver = Resolver::from_cache(Cache::from_fn(directory(), |_| None)).expect("netlink");
    let patience = Duration::from_secs(5);
    let path: Path = resolver.resolve(&to, patience).unwrap_or_else(|error| panic!("{error}"));
    if let Some(only) = value("--only") {
        let count = only.strip_prefix("hit,").and_then(|n| n.parse().ok()).expect("hit,COUNT");
        return (0..count).for_each(|_: u32| {
            black_box(resolver.resolve(black_box(&to), patience)).expect("a hit");
        });
    }
    let loaded = ArcSwap::from_pointee(0_u64);
    let load = timed(IN_A_ROUND, || {
        black_box(**loaded.load());
    });
    let hit = timed(IN_A_ROUND, || {
        black_box(resolver.resolve(black_box(&to), patience)).expect("a hit");
    });
    let checked = timed(IN_A_ROUND, || {
        black_box(resolver.checked(black_box(&to), patience)).expect("a hit");
    });
    let fresh = timed(1, || {
        black_box(resolver.fresh(black_box(&to), patience)).expect("a known neighbour");
    });
    if arguments.iter().any(|argument| argument == "--json") {
        let object = json!({
            "path": path.to_string(), "load_ns": load, "hit_ns": hit, "checked_ns": checked,
            "fresh_ns": fresh, "columns": ["min", "median", "p99"],
        });
        return println!("{object:#}");
    }
    println!("{path}");
    println!("ns, over {ROUNDS} rounds        min    median       p99");
    for (name, [min, median, p99]) in
        [("load", load), ("hit", hit), ("checked", checked), ("fresh", fresh)]
    {
        println!("  {name:<20} {min:>9.1} {median:>9.1} {p99:>9.1}");
    }
}
