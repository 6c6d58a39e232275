//! What a page pool costs, natively, on the interposer's empty provider.
//!
//! ```text
//! cargo bench --bench page_pool             a table, and the bar
//! cargo bench --bench page_pool -- --json   one object
//! cargo bench --bench page_pool -- --only alone,1000000
//!                                           just so many of one kind: for callgrind and the like
//! ```
//!
//! * `alone`: a fragment is taken and dropped.
//! * `slabs`: two slabs of 512 fragments are taken, and then dropped in order, as a queue has them.
//! * `elsewhere`: the same, dropped by another thread. Time of both, one after the other.
//! * `buffers`: as `slabs`, with the buffers of a `Pool`, to compare.
//! * `refill`: 32 messages at a time: refilled, sent, polled, their fragments dropped.

mod cost;
#[path = "../tests/interposed/mod.rs"]
mod interposed;

use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Instant;

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs::{
    Buffer, CompletionQueue, ConnectOptions, DeviceList, Fragment, InitOptions, PagePool, Pool,
    ProtectionDomain, QueuePair, RefillStop, Rts,
};
use serde_json::json;

const WHAT: [&str; 5] = ["alone", "slabs", "elsewhere", "buffers", "refill"];
/// Fragments of two slabs.
const TWO: usize = 1024;
const DEPTH: u32 = 32;
const COUNT: u64 = 100 * TWO as u64;
const ROUNDS: usize = 41;
const BAR: f64 = 15.0;

struct Bench {
    pages: PagePool,
    pool: Pool,
    qp: QueuePair<Rts>,
    cq: CompletionQueue,
    fragments: Vec<Fragment>,
    buffers: Vec<Buffer>,
}

impl Bench {
    fn open() -> Bench {
        let devices = DeviceList::new().expect("devices can be listed");
        let context = devices.find("empty0").expect("it is preloaded").open().expect("it opens");
        let row = context.gids().cached().rows()[1];
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let pages = PagePool::builder(&pd, 4096).floor(2).ceiling(2).build().expect("a page pool");
        let pool = Pool::new(&pd, 4096, TWO).expect("a pool");
        let cq = CompletionQueue::new(&context, 2 * DEPTH).expect("a CQ");
        let builder = QueuePair::rc(&pd, &cq, &cq).send_depth(DEPTH).recv_depth(DEPTH);
        let made = builder.max_inline(8).build().expect("a queue pair");
        let qp = made.init(&InitOptions::new(row.port())).expect("to INIT");
        let options = ConnectOptions::new(&row);
        let itself = qp.endpoint(&options).expect("an address");
        let qp = qp.connect(&itself, &options).expect("connected");
        let (fragments, buffers) = (Vec::with_capacity(TWO), Vec::with_capacity(TWO));
        Bench { pages, pool, qp, cq, fragments, buffers }
    }

    /// So many of a kind.
    fn run(&mut self, what: &str, count: u64) {
        let Bench { pages, pool, fragments, buffers, .. } = self;
        match what {
            "alone" => {
                for _ in 0..count {
                    drop(black_box(pages.take().expect("all came back")));
                }
            }
            "slabs" => {
                for _ in 0..count / TWO as u64 {
                    fragments.extend((0..TWO).filter_map(|_| pages.take()));
                    assert_eq!(black_box(&mut *fragments).len(), TWO);
                    fragments.clear();
                }
            }
            "elsewhere" => {
                for _ in 0..count / TWO as u64 {
                    fragments.extend((0..TWO).filter_map(|_| pages.take()));
                    assert_eq!(fragments.len(), TWO);
                    thread::scope(|scope| scope.spawn(|| fragments.clear()).join())
                        .expect("it ends");
                }
            }
            "buffers" => {
                for _ in 0..count / TWO as u64 {
                    buffers.extend((0..TWO).filter_map(|_| pool.take()));
                    assert_eq!(black_box(&mut *buffers).len(), TWO);
                    buffers.clear();
                }
            }
            "refill" => self.refill(count),
            other => panic!("{other}: one of {WHAT:?}"),
        }
    }

    fn refill(&mut self, count: u64) {
        let (sends, recvs) = self.qp.queues();
        for _ in 0..count / u64::from(DEPTH) {
            let refill = recvs.refill(&mut self.pages, 1, 1);
            assert_eq!((refill.posted, refill.stopped), (DEPTH, RefillStop::Full));
            let mut batch = sends.batch::<{ DEPTH as usize }>();
            for _ in 0..DEPTH {
                batch.push(Send::new(Inline(b"")).signaled()).expect("room");
            }
            batch.post().expect("room");
            let mut came = 0;
            while came < 2 * DEPTH {
                let mut drain = self.cq.poll().expect("it can be polled");
                while let Some(mut completion) = drain.next() {
                    assert!(completion.is_success());
                    assert_eq!(completion.take_fragment().is_some(), completion.wr_id() == 1);
                    came += 1;
                }
            }
        }
    }

    /// The median, in ns each, and what all rounds allocated.
    fn measure(&mut self, what: &str) -> (f64, u64) {
        self.run(what, COUNT);
        let mut times = Vec::with_capacity(ROUNDS);
        let before = cost::allocations();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            self.run(what, COUNT);
            times.push(begun.elapsed());
        }
        let allocations = cost::allocations() - before;
        times.sort();
        (times[ROUNDS / 2].as_nanos() as f64 / COUNT as f64, allocations)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os("LD_PRELOAD").is_none() {
        let me = std::env::current_exe().expect("own path");
        let failed =
            Command::new(me).args(&arguments).env("LD_PRELOAD", interposed::interposer()).exec();
        panic!("this program starts again: {failed}");
    }
    let mut bench = Bench::open();
    if let Some(at) = arguments.iter().position(|argument| argument == "--only") {
        let task = arguments.get(at + 1).and_then(|task| task.split_once(','));
        let (what, count) = task.expect("--only what,count");
        return bench.run(what, count.parse().expect("a count"));
    }
    let measured = WHAT.map(|what| {
        let (ns, allocations) = bench.measure(what);
        // Those of a thread's own are not the pool's.
        let allocations = (what != "elsewhere").then_some(allocations);
        // In whole slabs.
        let task = |count: u64| format!("{what},{}", count / 10_000 * 10 * TWO as u64);
        let instructions =
            cost::instructions(task).map(|instructions| instructions * 1e5 / (100.0 * TWO as f64));
        (what, ns, instructions, allocations)
    });
    let stats = bench.pages.stats();
    if arguments.iter().any(|argument| argument == "--json") {
        let objects = measured.iter().map(|(what, ns, instructions, allocations)| {
            json!({ "what": what, "ns": ns, "instructions": instructions, "allocations": allocations })
        });
        let all = json!({
            "pages": bench.pages.pages().to_string(), "registrations": stats.registrations,
            "each": objects.collect::<Vec<_>>(),
        });
        return println!("{all:#}");
    }
    println!("each: taken and given back; median of {ROUNDS} rounds of {COUNT}; bar {BAR} ns");
    println!("what            ns  instructions  allocations");
    for (what, ns, instructions, allocations) in measured {
        let instructions = instructions.map_or("-".into(), |count| format!("{count:.0}"));
        let allocations = allocations.map_or("-".into(), |count| count.to_string());
        println!("{what:10} {ns:7.1} {instructions:>13} {allocations:>12}");
    }
    println!("of {}; {} registrations in all", bench.pages.pages(), stats.registrations);
}
