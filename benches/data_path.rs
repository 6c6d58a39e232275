//! What the data path costs above the raw calls, natively, on the interposer's empty provider: per message
//! one receive and one signaled send are posted, and the completion queue is polled until both came.
//!
//! ```text
//! cargo bench --bench data_path             a table, and the bar
//! cargo bench --bench data_path -- --json   one object, with what batches cost in it
//! cargo bench --bench data_path -- --extended
//!                                           ours by libibverbs' extended calls, which raw are not
//! cargo bench --bench data_path -- --only ours,1,1000000
//!                                           just so many messages: for callgrind and the like
//! ```
//!
//! The same loop over the raw calls is in C (`raw_loop.c`, which needs `cc` and libibverbs-dev), both on a
//! queue pair of their own, alternating in one process, many rounds, medians. Four operations a message:
//! two posts, two polls' worth of completions.

mod c_loop;
mod cost;
#[path = "../tests/interposed/mod.rs"]
mod interposed;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use c_loop::{CLoop, CPair};
use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    Buffer, Calls, CompletionQueue, ConnectOptions, DeviceList, InitOptions, Pool,
    ProtectionDomain, QueuePair, Rts,
};
use serde_json::json;

const DEVICE: &str = "empty0";
const DEPTH: u32 = 64;
/// The most work requests of one call here.
const MOST: usize = 16;
const BATCHES: [u32; 2] = [1, MOST as u32];
const MESSAGES: u64 = 100_000;
const ROUNDS: usize = 41;
/// Posts and polls of one message.
const OPERATIONS: f64 = 4.0;
const BAR: f64 = 6.0;

/// A queue pair connected to itself, and the buffers that go around.
struct Ours {
    qp: QueuePair<Rts>,
    cq: CompletionQueue,
    sends: Vec<Buffer>,
    receives: Vec<Buffer>,
}

impl Ours {
    fn open(calls: Calls) -> Ours {
        let devices = DeviceList::new().expect("devices can be listed");
        let context = devices.find(DEVICE).expect("it is preloaded").open().expect("it opens");
        let row = context.gids().cached().rows()[1];
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let cq = CompletionQueue::builder(&context, 2 * DEPTH).calls(calls).build();
        let cq = cq.expect("a CQ");
        let pool = Pool::new(&pd, 64, 2 * MOST).expect("a pool");
        let builder = QueuePair::rc(&pd, &cq, &cq).send_depth(DEPTH).recv_depth(DEPTH);
        let made = builder.calls(calls).build().expect("a queue pair");
        let qp = made.init(&InitOptions::new(row.port())).expect("to INIT");
        let options = ConnectOptions::new(&row);
        let itself = qp.endpoint(&options).expect("an address");
        let qp = qp.connect(&itself, &options).expect("connected");
        let take = || (0..MOST).map(|_| pool.take().expect("a buffer")).collect();
        Ours { qp, cq, sends: take(), receives: take() }
    }

    fn run(&mut self, messages: u64, batch: u32) -> Duration {
        let begun = Instant::now();
        if batch == 1 {
            self.one_by_one(messages)
        } else {
            self.in_batches(messages, batch)
        }
        begun.elapsed()
    }

    fn one_by_one(&mut self, messages: u64) {
        let (send_queue, recv_queue) = self.qp.queues();
        let (mut send, mut receive) = (self.sends.pop(), self.receives.pop());
        for number in 0..messages {
            let (Some(to_send), Some(to_receive)) = (send, receive) else { panic!("one was lost") };
            recv_queue.post(Receive::new(to_receive).wr_id(number << 1 | 1)).expect("room");
            send_queue.post(Send::new(to_send).wr_id(number << 1).signaled()).expect("room");
            (send, receive) = (None, None);
            while send.is_none() || receive.is_none() {
                let mut drain = self.cq.poll().expect("it can be polled");
                while let Some(mut completion) = drain.next() {
                    assert!(completion.is_success());
                    if completion.wr_id() & 1 != 0 {
                        receive = completion.take_buffer();
                    } else {
                        send = completion.take_buffer();
                    }
                }
            }
        }
        self.sends.extend(send);
        self.receives.extend(receive);
    }

    fn in_batches(&mut self, messages: u64, batch: u32) {
        let (send_queue, recv_queue) = self.qp.queues();
        let batch = batch as usize;
        for number in (0..messages).step_by(batch) {
            let mut receives = recv_queue.batch::<MOST>();
            for at in 0..batch as u64 {
                let buffer = self.receives.pop().expect("all came back");
                receives.push(Receive::new(buffer).wr_id((number + at) << 1 | 1)).expect("room");
            }
            receives.post().expect("room");
            let mut sends = send_queue.batch::<MOST>();
            for at in 0..batch as u64 {
                let buffer = self.sends.pop().expect("all came back");
                sends.push(Send::new(buffer).wr_id((number + at) << 1).signaled()).expect("room");
            }
            sends.post().expect("room");
            while self.sends.len() < MOST || self.receives.len() < MOST {
                let mut drain = self.cq.poll().expect("it can be polled");
                while let Some(mut completion) = drain.next() {
                    assert!(completion.is_success());
                    if completion.wr_id() & 1 != 0 {
                        self.receives.extend(completion.take_buffer());
                    } else {
                        self.sends.extend(completion.take_buffer());
                    }
                }
            }
        }
    }
}

fn raw() -> CPair {
    let built = CLoop::build().unwrap_or_else(|why| panic!("{why}"));
    built.open(DEVICE, 1, DEPTH).expect("a queue pair of C's")
}

/// Medians of raw and ours, in ns a message, and what ours allocated.
fn measure(raw: &mut CPair, ours: &mut Ours, batch: u32) -> (f64, f64, u64) {
    let mut of_raw = || raw.run(MESSAGES, batch).expect("every message arrives");
    of_raw();
    ours.run(MESSAGES, batch);
    let (mut raws, mut ourss) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    let mut allocations = 0;
    for _ in 0..ROUNDS {
        raws.push(of_raw());
        let before = cost::allocations();
        ourss.push(ours.run(MESSAGES, batch));
        allocations += cost::allocations() - before;
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_nanos() as f64 / MESSAGES as f64
    };
    (median(raws), median(ourss), allocations)
}

/// Instructions a message.
fn instructions(who: &str, batch: u32) -> Option<f64> {
    cost::instructions(|messages| format!("{who},{batch},{messages}"))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os("LD_PRELOAD").is_none() {
        let me = std::env::current_exe().expect("own path");
        let failed =
            Command::new(me).args(&arguments).env("LD_PRELOAD", interposed::interposer()).exec();
        panic!("this program starts again: {failed}");
    }
    if let Some(at) = arguments.iter().position(|argument| argument == "--only") {
        return only(arguments.get(at + 1).map_or("", String::as_str));
    }
    let (calls, name) = match arguments.iter().any(|argument| argument == "--extended") {
        true => (Calls::Extended, "extended"),
        false => (Calls::Classic, "ours"),
    };
    let (mut raw, mut ours) = (raw(), Ours::open(calls));
    let measured: Vec<_> = BATCHES
        .iter()
        .map(|batch| {
            let (raw, ours, allocations) = measure(&mut raw, &mut ours, *batch);
            let overhead = (ours - raw) / OPERATIONS;
            let instructions = [instructions("raw", *batch), instructions(name, *batch)];
            (*batch, raw, ours, overhead, allocations, instructions)
        })
        .collect();
    if arguments.iter().any(|argument| argument == "--json") {
        let mut objects =
            measured.iter().map(|(batch, raw, ours, overhead, allocations, instructions)| {
                json!({
                    "batch": batch, "raw_ns": raw, "ours_ns": ours,
                    "overhead_ns_per_op": overhead, "allocations": allocations,
                    "raw_instructions": instructions[0], "ours_instructions": instructions[1],
                })
            });
        let mut one_by_one = objects.next().expect("the first is without batches");
        one_by_one["batches"] = objects.collect();
        return println!("{one_by_one:#}");
    }
    println!(
        "a message: post receive, post send, their completions; median of {ROUNDS} rounds of {MESSAGES}"
    );
    println!(
        "batch  raw ns  ours ns  above, ns per operation (bar {BAR})  allocations  instructions raw  ours"
    );
    for (batch, raw, ours, overhead, allocations, [of_raw, of_ours]) in measured {
        let count = |count: Option<f64>| count.map_or("-".into(), |count| format!("{count:.0}"));
        println!(
            "{batch:5} {raw:7.1} {ours:8.1} {overhead:34.2} {allocations:12} {:>17} {:>5}",
            count(of_raw),
            count(of_ours)
        );
    }
}

/// `who,batch,messages`: those messages and nothing else.
fn only(task: &str) {
    let fields: Vec<&str> = task.split(',').collect();
    let [who, batch, messages] = fields[..] else {
        panic!("--only raw|ours|extended,batch,messages")
    };
    let (batch, messages) = (batch.parse().expect("a batch"), messages.parse().expect("messages"));
    match who {
        "raw" => drop(raw().run(messages, batch).expect("every message arrives")),
        "ours" => drop(Ours::open(Calls::Classic).run(messages, batch)),
        "extended" => drop(Ours::open(Calls::Extended).run(messages, batch)),
        other => panic!("{other}: raw, ours or extended"),
    }
}
