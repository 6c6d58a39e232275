//! Ten thousand changes at random against two readers.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rdma_verbs::{Context, GidSnapshot};

use super::rig::{Rig, wait_until};

const CHANGES: usize = 10_000;

/// A small generator, so that a run can be had again by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Commands for `ip -force -batch`: mostly addresses that come and go, now and then the link or the
/// MAC address. An addition of what is there, or a removal of what is not, fails and changes nothing.
fn commands(rig: &Rig, random: &mut Random, count: usize) -> String {
    let mut text = String::new();
    let netdev = &rig.netdev;
    for _ in 0..count {
        let host = random.below(60) + 1;
        let verb = if random.below(2) == 0 { "add" } else { "del" };
        let _ = match random.below(200) {
            0 => writeln!(text, "link set {netdev} down"),
            1..=3 => writeln!(text, "link set {netdev} up"),
            4 => {
                writeln!(text, "link set {netdev} address 02:00:00:aa:00:{:02x}", random.below(256))
            }
            5..=49 => writeln!(text, "addr {verb} 2001:db8:5::{host:x}/128 dev {netdev} nodad"),
            _ => writeln!(text, "addr {verb} 198.18.{}.{host}/32 dev {netdev}", rig.number()),
        };
    }
    text
}

/// The rows of a generation are always the same: a snapshot made of two reads would carry other rows
/// under a generation that somebody has seen already.
fn check_whole(snapshot: &GidSnapshot, seen: &Mutex<HashMap<u64, u64>>, last: &mut u64) {
    let [port] = snapshot.ports() else { panic!("rxe has one port") };
    let generation = port.generation();
    assert!(generation >= *last, "generations only grow: {generation} after {last}");
    *last = generation;
    assert_eq!(port.live() as usize, snapshot.rows().len());
    let mut hasher = DefaultHasher::new();
    for row in snapshot.rows() {
        assert_eq!(row.generation(), generation);
        assert!(snapshot.by_gid(&row.gid()).any(|found| found == row));
        assert_eq!(snapshot.row(row.port(), row.index()), Some(row));
        row.hash(&mut hasher);
    }
    let rows = hasher.finish();
    let first = *seen.lock().expect("no reader panics").entry(generation).or_insert(rows);
    assert_eq!(first, rows, "two tables under generation {generation}");
}

fn reader(
    context: &Context,
    checked: bool,
    done: &AtomicBool,
    seen: &Mutex<HashMap<u64, u64>>,
    looks: &AtomicU64,
) {
    let mut last = 0;
    while !done.load(Ordering::Relaxed) {
        let gids = context.gids();
        let snapshot =
            if checked { gids.checked().expect("a checked lookup") } else { gids.cached() };
        check_whole(&snapshot, seen, &mut last);
        looks.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn ten_thousand_changes_against_two_readers() {
    let rig = Rig::new();
    let context = rig.open();
    let (done, seen) = (AtomicBool::new(false), Mutex::default());
    let (checked, cached) = (AtomicU64::new(0), AtomicU64::new(0));
    let seed = 20_261_130;
    let mut random = Random(seed);
    std::thread::scope(|scope| {
        scope.spawn(|| reader(&context, true, &done, &seen, &checked));
        scope.spawn(|| reader(&context, false, &done, &seen, &cached));
        let text = commands(&rig, &mut random, CHANGES);
        let mut ip = Command::new("/bin/ip")
            .args(["-force", "-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("/bin/ip");
        let written = ip.stdin.take().expect("it is piped").write_all(text.as_bytes());
        let status = ip.wait();
        done.store(true, Ordering::Relaxed);
        written.expect("ip reads its input");
        status.expect("ip ends");
    });
    // The last events come in behind `ip`.
    wait_until("all is quiet, and cached equals fresh", || {
        while context.process_events().expect("events") > 0 {}
        let cached = context.gids().cached().to_arc();
        let fresh = context.gids().fresh().expect("a read");
        cached.rows() == fresh.rows() && context.process_events().expect("events") == 0
    });
    let stats = context.gids().stats();
    // Past the test harness, which keeps what `println!` prints.
    let _ = writeln!(
        std::io::stderr(),
        "seed {seed}: {CHANGES} commands, {} events, {} reads; {} checked and {} cached looks; {} \
         generations; from event to visible {:?} last, {:?} slowest",
        stats.events,
        stats.refreshes,
        checked.into_inner(),
        cached.into_inner(),
        seen.into_inner().expect("no reader panics").len(),
        stats.last_visible,
        stats.slowest_visible
    );
    assert!(stats.events > 1000, "the storm was none: {stats:?}");
}

/// A thread that looks while five hundred addresses come: none is missed afterwards.
#[test]
fn nothing_is_lost_between_a_look_and_a_change() {
    let rig = Rig::new();
    let context = rig.open();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                context.gids().checked().expect("a checked lookup");
            }
        });
        let commands: String = (0..500)
            .map(|n| format!("addr add 198.19.{}.{}/32 dev {}\n", n / 250, n % 250 + 1, rig.netdev))
            .collect();
        super::rig::ip_batch(&commands);
        // Only what `checked` sees counts: a lost event would leave it behind for ever.
        wait_until("all five hundred are seen", || {
            context.gids().checked().expect("a checked lookup").rows().len() == 501
        });
        done.store(true, Ordering::Relaxed);
    });
    let cached = context.gids().cached().to_arc();
    assert_eq!(cached.rows(), context.gids().fresh().expect("a read").rows());
}
