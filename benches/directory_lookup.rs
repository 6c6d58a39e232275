//! What a lookup among all devices costs, natively: 16 devices of 2 ports of 256 rows, made by hand.
//!
//! ```text
//! cargo bench --bench directory_lookup             figures, and the bars they are held against
//! cargo bench --bench directory_lookup -- --json   one object
//! ```
//!
//! Beside ours stand what it is made of: a bare hashbrown lookup that copies the same row, and an
//! arc-swap load. Then four threads look up while a fifth replaces the directory without a pause, in
//! CPU time of the reading threads, against the same four while nothing changes.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use rdma_verbs::{
    Cache, DirectoryRow, DirectorySnapshot, Gid, GidEntry, GidSnapshot, GidType, IfName, Interface,
    LocalAddress, NetSnapshot, PortNum,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

const DEVICES: u32 = 16;
const ROWS: u32 = 256;
const LOOKUPS: usize = 100_000;
const ROUNDS: usize = 41;

/// The row's address: device, port and index in it.
fn address(device: u32, port: u8, index: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 | device << 16 | u32::from(port) << 12 | index)
}

/// All devices. Every row of the directory has the same interface number, `version`, so that a mix of
/// two would show.
fn directory(version: u32) -> DirectorySnapshot {
    let devices = (0..DEVICES).map(|device| {
        let row = |place: u32| {
            let (port, index) = (1 + (place / ROWS) as u8, place % ROWS);
            let number = PortNum::new(port).expect("1 or 2");
            GidEntry::new(number, index, address(device, port, index).into())
                .with_type(GidType::ROCE_V2)
                .with_netdev(version, None)
        };
        let rows: Vec<GidEntry> = (0..2 * ROWS).map(row).collect();
        GidSnapshot::from_rows(&format!("bench{device}"), &rows)
    });
    let interface = Interface::new(version, IfName::new("b0").expect("a name"));
    let places = (0..DEVICES * 2 * ROWS).map(|n| (n / (2 * ROWS), n / ROWS % 2, n % ROWS));
    let local = places.map(|(device, port, index)| {
        LocalAddress::new(version, address(device, 1 + port as u8, index).into(), 24)
    });
    let net = NetSnapshot::from_parts(vec![interface], local.collect());
    DirectorySnapshot::from_parts(devices.collect(), net)
}

/// The GIDs of all rows, shuffled.
fn keys() -> Vec<Gid> {
    let mut keys: Vec<Gid> = directory(1).rows().iter().map(|row| row.entry().gid()).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..keys.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        keys.swap(at, (state >> 33) as usize % (at + 1));
    }
    keys
}

fn ours(cache: &Cache<DirectorySnapshot>, keys: &[Gid], lookups: usize) {
    for gid in keys.iter().cycle().take(lookups) {
        let row = cache.cached().by_gid(black_box(gid)).next().copied();
        black_box(row);
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Medians in nanoseconds: ours, the bare map, the load.
fn single(keys: &[Gid]) -> [f64; 3] {
    let cache = Cache::from_fn(directory(1), |_| None);
    let loaded = ArcSwap::from_pointee(directory(1));
    let bare: hashbrown::HashMap<Gid, DirectoryRow, foldhash::fast::FixedState> =
        directory(1).rows().iter().map(|row| (row.entry().gid(), *row)).collect();
    let run = |what: usize| match what {
        0 => ours(&cache, keys, LOOKUPS),
        1 => keys.iter().cycle().take(LOOKUPS).for_each(|gid| {
            black_box(bare.get(black_box(gid)).copied());
        }),
        _ => keys.iter().cycle().take(LOOKUPS).for_each(|gid| {
            black_box(gid);
            black_box(&**loaded.load());
        }),
    };
    (0..3).for_each(run);
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (what, times) in times.iter_mut().enumerate() {
            let begun = Instant::now();
            run(what);
            times.push(begun.elapsed().as_nanos() as f64 / LOOKUPS as f64);
        }
    }
    times.map(|mut times| median(&mut times))
}

/// Nanoseconds for the best row towards a peer, with a directory load for each.
fn towards(keys: &[Gid]) -> f64 {
    let cache = Cache::from_fn(directory(1), |_| None);
    let peers: Vec<_> = keys.iter().map(|gid| gid.ip()).collect();
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            for peer in peers.iter().cycle().take(LOOKUPS) {
                black_box(cache.cached().towards(black_box(*peer)).copied());
            }
            begun.elapsed().as_nanos() as f64 / LOOKUPS as f64
        })
        .collect();
    median(&mut times)
}

/// CPU nanoseconds of this thread.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// CPU nanoseconds a lookup in four threads, and how many replacements there were meanwhile.
fn four_readers(keys: &[Gid], replacing: bool) -> (f64, u64) {
    let version = AtomicU64::new(1);
    let next = move |_: &DirectorySnapshot| {
        let number = version.fetch_add(1, Ordering::Relaxed) % 1_000_000 + 1;
        Some(directory(number as u32))
    };
    let cache = Arc::new(Cache::from_fn(directory(1), next));
    let done = AtomicBool::new(false);
    let (mut times, replaced) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut times = Vec::new();
                    for _ in 0..ROUNDS {
                        let begun = cpu_ns();
                        ours(&cache, keys, LOOKUPS);
                        times.push((cpu_ns() - begun) / LOOKUPS as f64);
                        // Nobody ever sees a mix of two.
                        let snapshot = cache.cached();
                        let versions = || snapshot.rows().iter().map(|row| row.entry().ifindex());
                        assert!(versions().all(|version| Some(version) == versions().next()));
                    }
                    times
                })
            })
            .collect();
        let writer = scope.spawn(|| {
            while replacing && !done.load(Ordering::Relaxed) {
                cache.fresh().expect("nothing is read");
            }
            cache.stats().refreshes
        });
        let times = readers.into_iter().flat_map(|reader| reader.join().expect("no mix"));
        let times: Vec<f64> = times.collect();
        done.store(true, Ordering::Relaxed);
        (times, writer.join().expect("the writer ends"))
    });
    (median(&mut times), replaced)
}

fn main() {
    let keys = keys();
    let [ours, bare, load] = single(&keys);
    let towards = towards(&keys);
    let (idle, _) = four_readers(&keys, false);
    let (busy, replaced) = four_readers(&keys, true);
    if std::env::args().any(|argument| argument == "--json") {
        let object = json!({
            "by_gid_ns": ours, "bare_ns": bare, "load_ns": load, "towards_ns": towards,
            "four_readers_idle_cpu_ns": idle, "four_readers_replacing_cpu_ns": busy,
            "replacements": replaced,
        });
        return println!("{object:#}");
    }
    let rows = DEVICES * 2 * ROWS;
    println!(
        "{rows} rows of {DEVICES} devices, ns per lookup, median of {ROUNDS} rounds of {LOOKUPS}"
    );
    println!(
        "  ours {ours:.2}, bare {bare:.2}, load {load:.2}: {:.2} of the sum, bar 1.3",
        ours / (bare + load)
    );
    println!("  the best row towards a peer: {towards:.2}");
    println!(
        "  four readers, CPU: {idle:.2} while nothing changes, {busy:.2} during {replaced} replacements: \
         {:.2}, bar 1.5; no mix seen",
        busy / idle
    );
}
