//! The data path at its worst, on the interposer's device: what a program can forget or drop, what a
//! device can answer, and what comes between two threads. Runs on any machine.

#![allow(unsafe_code)] // An allocator that counts, and a descriptor put in another's place.

mod interposed;

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use interposed::{faults, interposed};
use rdma_verbs::wr::{FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{
    Buffer, CompletionChannel, CompletionQueue, ConnectOptions, Context, DeviceList, Errno, Error,
    Exposed, GidEntry, InitOptions, Memory, Notify, Pool, ProtectionDomain, QueuePair, Refusal,
    RemoteAccess, Rts, WcStatus,
};

/// Two queue pairs of `loop0`, connected to each other, and all they need.
struct Pair {
    a: QueuePair<Rts>,
    b: QueuePair<Rts>,
    cq: CompletionQueue,
    pool: Pool,
    pd: ProtectionDomain,
    context: Context,
}

const DEPTH: u32 = 8;

fn open() -> Context {
    let list = DeviceList::new().expect("a list");
    list.find("loop0").expect("it is listed").open().expect("it can be opened")
}

fn row(context: &Context) -> GidEntry {
    let gids = context.gids().cached();
    *gids.rows().iter().find(|row| row.ipv4().is_some()).expect("it has an address")
}

fn everything() -> RemoteAccess {
    RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC
}

/// Two queue pairs that complete on one queue.
fn connected(pd: &ProtectionDomain, cq: &CompletionQueue) -> (QueuePair<Rts>, QueuePair<Rts>) {
    let row = row(pd.context());
    let options = ConnectOptions::new(&row).reads(4).answers(4);
    let make = || {
        let builder = QueuePair::rc(pd, cq, cq).send_depth(DEPTH).recv_depth(DEPTH);
        let made = builder.max_send_sge(4).max_recv_sge(4).max_inline(64).build();
        let init = InitOptions::new(row.port()).access(everything());
        made.expect("a queue pair").init(&init).expect("to INIT")
    };
    let (a, b) = (make(), make());
    let at = |qp: &QueuePair<_>| qp.endpoint(&options).expect("an address");
    let (at_a, at_b) = (at(&a), at(&b));
    (a.connect(&at_b, &options).expect("connected"), b.connect(&at_a, &options).expect("connected"))
}

impl Pair {
    fn new() -> Pair {
        let context = open();
        let cq = CompletionQueue::new(&context, 255).expect("a completion queue");
        Pair::on(context, cq)
    }

    fn on(context: Context, cq: CompletionQueue) -> Pair {
        let pd = ProtectionDomain::new(&context).expect("a protection domain");
        let pool = Pool::new(&pd, 64, 64).expect("a pool");
        let (a, b) = connected(&pd, &cq);
        Pair { a, b, cq, pool, pd, context }
    }

    fn filled(&self, text: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().expect("a buffer");
        buffer.fill_from(text).expect("it fits");
        buffer
    }

    fn receive(&mut self, wr_id: u64) {
        let receive = Receive::new(self.pool.take().expect("a buffer")).wr_id(wr_id);
        self.b.recv_queue().post(receive).expect("room");
    }
}

/// Number, status, whether the device told it: of each completion there is.
fn seen(cq: &mut CompletionQueue) -> Vec<(u64, WcStatus, bool)> {
    let mut seen = Vec::new();
    loop {
        let mut drain = cq.poll().expect("it can be polled");
        if drain.is_empty() {
            return seen;
        }
        while let Some(completion) = drain.next() {
            seen.push((completion.wr_id(), completion.status(), !completion.is_silent()));
        }
    }
}

/// On a channel.
fn on_channel(context: &Context) -> (CompletionChannel, CompletionQueue) {
    let channel = CompletionChannel::new(context).expect("a channel");
    let cq = CompletionQueue::builder(context, 255).channel(&channel).build();
    (channel, cq.expect("a completion queue"))
}

/// Lets `cq` wait for ever on a thread of its own, does something meanwhile, and gives what the wait gave: how
/// many completions, or the error; and how much processor time it took.
fn while_waiting(
    mut cq: CompletionQueue,
    meanwhile: impl FnOnce(),
) -> (Result<usize, Error>, Duration) {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let begin = processor_time();
        // It may end with none: both queues of a queue pair that goes wake it.
        let outcome = loop {
            match cq.wait(Notify::Any, None) {
                Ok(mut drain) => match std::iter::from_fn(|| drain.next().map(drop)).count() {
                    0 => {}
                    count => break Ok(count),
                },
                Err(error) => break Err(error),
            }
        };
        let _ = tell.send((outcome, processor_time() - begin));
    });
    thread::sleep(Duration::from_millis(50));
    meanwhile();
    told.recv_timeout(Duration::from_secs(5)).expect("the wait ends")
}

fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's own word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's own word.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// The process ends without LeakSanitizer's last look, where there is one: what leaks here is meant to. The test
/// that runs this one sees by what is printed whether it passed.
fn leaks_on_purpose() {
    extern "C" fn end() {
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
    // SAFETY: called at the end, before what was registered earlier.
    assert_eq!(unsafe { libc::atexit(end) }, 0);
}

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

interposed! {
    /// The row moves between the lookup and RTR, twice: what the queue pair is, its type says.
    fn a_row_that_moves_under_a_queue_pair_with_receives() {
        let context = open();
        let mut cq = CompletionQueue::new(&context, 64).expect("a completion queue");
        let pd = ProtectionDomain::new(&context).expect("a protection domain");
        let pool = Pool::new(&pd, 64, 4).expect("a pool");
        // The last of IPv6, so that the first may stand in its place.
        let rows: Vec<GidEntry> = {
            let gids = context.gids().cached();
            gids.rows().iter().filter(|row| row.ipv4().is_none()).copied().collect()
        };
        let (first, row) = (rows[0], rows[rows.len() - 1]);
        let options = ConnectOptions::new(&row);
        let init = InitOptions::new(row.port());
        let made = |cq: &CompletionQueue| {
            let made = QueuePair::rc(&pd, cq, cq).send_depth(4).recv_depth(4).build();
            made.expect("a queue pair").init(&init).expect("to INIT")
        };
        let peer = made(&cq).endpoint(&options).expect("an address");
        // Another address is where it was: RTR goes, and what is read then is not what was asked.
        let stale = row;
        faults::gid_move(row.index(), 9);
        faults::gid_move(first.index(), row.index());
        let moved = made(&cq).ready_to_receive(&peer, &ConnectOptions::new(&stale));
        assert_eq!(moved.expect("tried with the row where it is now").state().expect("a state"),
            rdma_verbs::QpState::RTR);
        let mut with_receives = made(&cq);
        let receive = Receive::new(pool.take().expect("a buffer")).wr_id(7);
        with_receives.recv_queue().post(receive).expect("room");
        let failed = with_receives.ready_to_receive(&peer, &ConnectOptions::new(&stale));
        let failed = failed.expect_err("receives would be lost");
        assert!(matches!(failed.error, Error::GidMoved(_)), "{:?}", failed.error);
        let mut closed = failed.queue_pair;
        assert_eq!(closed.state().expect("a state"), rdma_verbs::QpState::ERR);
        let receive = Receive::new(pool.take().expect("a buffer"));
        let refused = closed.recv_queue().post(receive).expect_err("it is closed");
        assert!(matches!(refused.refusal, Refusal::Closed { .. }), "{:?}", refused.refusal);
        drop(refused);
        assert_eq!(seen(&mut cq), [(7, FLUSHED, true)]);
        assert_eq!(pool.available(), 4);
        // The row cannot be read after RTR: back to INIT, as the type says.
        faults::fail("ibv_query_gid_ex", libc::EIO);
        let gids = context.gids().fresh().expect("a table");
        let row = *gids.by_gid(&row.gid()).next().expect("the row where it is now");
        let failed = made(&cq).ready_to_receive(&peer, &ConnectOptions::new(&row));
        let failed = failed.expect_err("the row cannot be read");
        assert_eq!(failed.queue_pair.state().expect("a state"), rdma_verbs::QpState::INIT);
        failed.queue_pair.ready_to_receive(&peer, &ConnectOptions::new(&row)).expect("RTR");
    }

    /// What is left of a queue pair that another thread drops is not told by the device.
    fn a_wait_ends_when_a_queue_pair_is_dropped() {
        let context = open();
        let (_channel, cq) = on_channel(&context);
        let mut pair = Pair::on(context.clone(), CompletionQueue::new(&context, 64).expect("one"));
        let (mut a, b) = connected(&pair.pd, &cq);
        let receive = Receive::new(pair.pool.take().expect("a buffer"));
        a.recv_queue().post(receive).expect("room");
        let (outcome, _) = while_waiting(cq, || drop(a));
        assert_eq!(outcome.expect("no error"), 1);
        drop(b);
        assert_eq!(pair.pool.available(), 64);
        assert_eq!(seen(&mut pair.cq), []);
    }

    /// Another thread takes in that the completion queue, or the device, has failed.
    fn a_wait_ends_when_another_thread_hears_of_a_failure() {
        for kind in [0, 8] {
            let context = open();
            let (_channel, cq) = on_channel(&context);
            let address = faults::nth("cq", 0);
            // Many who take in events, so that it is seldom the waiter.
            let stop = AtomicBool::new(false);
            let (outcome, spent) = thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| while !stop.load(Ordering::Relaxed) {
                        let _ = context.process_events();
                    });
                }
                let outcome = while_waiting(cq, || {
                    faults::raise(Some("loop0"), kind, address.addr() as u64);
                });
                stop.store(true, Ordering::Relaxed);
                outcome
            });
            match outcome.expect_err("it has failed") {
                Error::CompletionQueueFailed { errno: Errno::EIO, .. } => assert_eq!(kind, 0),
                Error::DeviceFatal { .. } => assert_eq!(kind, 8),
                error => panic!("{error:?}"),
            }
            assert!(spent < Duration::from_millis(40), "{spent:?}");
        }
    }

    /// Who only polls learns that it has failed, and gets back what was in flight.
    fn a_poller_learns_that_the_queue_has_failed() {
        let mut pair = Pair::new();
        pair.receive(1);
        faults::raise(Some("loop0"), 0, faults::nth("cq", 0).addr() as u64);
        pair.context.process_events().expect("an event");
        let error = pair.cq.poll().map(drop).expect_err("it has failed");
        assert!(matches!(error, Error::CompletionQueueFailed { .. }), "{error:?}");
        drop((pair.a, pair.b));
        let mut drain = pair.cq.poll().expect("what is left");
        assert_eq!(drain.next().expect("the receive").wr_id(), 1);
        assert!(drain.next().is_none());
        let error = pair.cq.poll().map(drop).expect_err("it has failed");
        assert!(matches!(error, Error::CompletionQueueFailed { .. }), "{error:?}");
        assert_eq!(pair.pool.available(), 64);
    }

    /// The kernel closes the channel with the device: ready for ever, and nothing to take.
    fn a_channel_that_is_closed_is_no_busy_loop() {
        let context = open();
        let (channel, cq) = on_channel(&context);
        let (closed, other) = UnixStream::pair().expect("a pair of sockets");
        closed.set_nonblocking(true).expect("not to block");
        drop(other);
        // SAFETY: both are open; the channel's now leads elsewhere.
        let put = unsafe { libc::dup2(closed.as_raw_fd(), channel.as_fd().as_raw_fd()) };
        assert!(put >= 0);
        let (outcome, spent) = while_waiting(cq, || ());
        let error = outcome.expect_err("it is closed");
        assert!(matches!(error, Error::DeviceFatal { .. }), "{error:?}");
        assert!(spent < Duration::from_millis(20), "{spent:?}");
    }

    fn waiting_allocates_nothing() {
        let context = open();
        let (_channel, cq) = on_channel(&context);
        let mut pair = Pair::on(context, cq);
        let (address, mut before) = (faults::nth("cq", 0), 0);
        for round in 0..20 {
            if round == 10 {
                before = allocations();
            }
            pair.receive(1);
            pair.a.send_queue().post(Send::new(Inline(b"x")).signaled()).expect("room");
            let mut count = 0;
            while count < 2 {
                let mut drain = pair.cq.wait(Notify::Any, Duration::from_secs(5)).expect("some");
                while drain.next().is_some() {
                    count += 1;
                }
            }
            // And one that sleeps, and is woken by what is no completion.
            faults::wake(address);
            let slept = pair.cq.wait(Notify::Any, Duration::from_millis(1)).expect("none");
            assert!(slept.is_empty());
        }
        // The interposer's own are of another allocator.
        assert_eq!(allocations() - before, 0);
    }

    /// A completion queue that always has something gives the room of what is gone back all the same.
    fn room_comes_back_though_the_queue_is_never_empty() {
        let context = open();
        let cq = CompletionQueue::builder(&context, 127).batch(1).build().expect("one");
        let mut pair = Pair::on(context, cq);
        let send = |pair: &mut Pair| {
            pair.receive(0);
            pair.a.send_queue().post(Send::new(Inline(b"x")).signaled()).expect("room");
        };
        send(&mut pair);
        let (mut dying, other) = connected(&pair.pd, &pair.cq);
        let receive = Receive::new(pair.pool.take().expect("a buffer")).wr_id(77);
        dying.recv_queue().post(receive).expect("room");
        drop((dying, other));
        let mut left = 0;
        for _ in 0..160 {
            // Two come before two are taken.
            send(&mut pair);
            for _ in 0..2 {
                let mut drain = pair.cq.poll().expect("it can be polled");
                while let Some(completion) = drain.next() {
                    left += u32::from(completion.wr_id() == 77);
                }
            }
        }
        assert_eq!((left, pair.cq.room()), (1, 127 - 4 * DEPTH));
    }

    fn ends_of_time() {
        let pair = Pair::new();
        assert_eq!(pair.a.finish(Duration::MAX), 0);
        let (mut cq, b) = (pair.cq, pair.b);
        b.finish_polling(&mut [&mut cq], Duration::MAX, |_| ()).expect("nothing to wait for");
        let (_channel, mut cq) = on_channel(&pair.context);
        assert!(cq.wait(Notify::Any, Duration::ZERO).expect("none").is_empty());
    }

    /// What was not to be signaled: carried out before a failure, and not known to be behind one.
    fn silence_before_and_behind_a_failure() {
        let mut pair = Pair::new();
        let exposed = Exposed::new(&pair.pd, 64, RemoteAccess::READ).expect("memory");
        pair.receive(100);
        let first = pair.filled(b"first");
        let refused = pair.filled(b"no");
        let sends = pair.a.send_queue();
        sends.post(Send::new(first).wr_id(1)).expect("room");
        sends.post(Write::new(refused, exposed.remote()).wr_id(2)).expect("room");
        // Flushed, and the device does not say so.
        faults::copies(0);
        sends.post(Send::new(()).wr_id(3)).expect("room");
        sends.post(Send::new(()).wr_id(4)).expect("room");
        let sends: Vec<_> = seen(&mut pair.cq).into_iter().filter(|seen| seen.0 < 100).collect();
        let denied = WcStatus::REM_ACCESS_ERR;
        assert_eq!(sends, [(1, OK, false), (2, denied, true), (3, FLUSHED, false), (4, FLUSHED, true)]);

        let (mut a, b) = connected(&pair.pd, &pair.cq);
        faults::stall(true);
        a.send_queue().post(Send::new(()).wr_id(5)).expect("room");
        a.send_queue().post(Send::new(()).wr_id(6).signaled()).expect("room");
        faults::copies(0);
        a.close().expect("to ERR");
        assert_eq!(seen(&mut pair.cq), [(5, FLUSHED, false), (6, FLUSHED, true)]);
        assert_eq!(pair.cq.strays(), 0);
        drop((a, b));
        faults::stall(false);
    }

    /// A receive into exposed memory and a buffer behind it: each has its part of the message.
    fn a_message_over_exposed_memory_and_a_buffer() {
        let mut pair = Pair::new();
        let exposed = Exposed::new(&pair.pd, 64, everything()).expect("memory");
        let range = exposed.range(16, 8).expect("inside");
        let buffer = pair.pool.take().expect("a buffer");
        pair.b.recv_queue().post(Receive::new((range, buffer)).wr_id(1)).expect("room");
        let revoked = exposed.revoke().expect_err("it is in flight");
        assert!(matches!(revoked.error, Error::InUse { .. }), "{:?}", revoked.error);
        let exposed = revoked.exposed;
        pair.a.send_queue().post(Send::new(Inline(b"0123456789")).signaled()).expect("room");
        let mut memory = Vec::new();
        let mut drain = pair.cq.poll().expect("it can be polled");
        while let Some(mut completion) = drain.next() {
            completion.result().expect("carried out");
            memory.extend(std::iter::from_fn(|| completion.take()));
        }
        let [Memory::Exposed(range), Memory::Buffer(buffer)] = &memory[..] else {
            panic!("{memory:?}")
        };
        assert_eq!((range.offset(), range.len(), &buffer[..]), (16, 8, &b"89"[..]));
        let mut there = [0; 8];
        exposed.read(16, &mut there).expect("inside");
        assert_eq!(&there, b"01234567");
        // A shorter one, into the same: nothing is in the buffer. The buffer alone is asked for.
        let [Memory::Exposed(range), Memory::Buffer(buffer)] =
            <[Memory; 2]>::try_from(memory).expect("two") else { panic!() };
        pair.b.recv_queue().post(Receive::new((range, buffer)).wr_id(2)).expect("room");
        pair.a.send_queue().post(Send::new(Inline(b"abc")).signaled()).expect("room");
        let mut buffers = Vec::new();
        let mut drain = pair.cq.poll().expect("it can be polled");
        while let Some(completion) = drain.next() {
            buffers.extend(completion.into_buffer());
        }
        assert!(buffers.len() == 1 && buffers[0].is_empty(), "{buffers:?}");
        let plain = exposed.revoke().expect("nothing is in flight");
        assert_eq!(&plain[16..24], b"abc34567");
    }

    /// Everything that lends or owns is forgotten: nothing is freed, what was not forgotten goes on.
    fn all_is_forgotten() {
        leaks_on_purpose();
        let mut pair = Pair::new();
        for round in 0..40_u64 {
            // A batch, not posted.
            let mut batch = pair.a.send_queue().batch::<4>();
            batch.push(Send::new(Inline(b"never")).wr_id(1)).expect("room");
            batch.push(Send::new(()).wr_id(2)).expect("room");
            std::mem::forget(batch);
            // One whose second is refused: the error, or what it gives back.
            faults::fail_post("ibv_post_send", faults::Post::RefuseAt(1), libc::ENOMEM, 1);
            pair.receive(100);
            let mut batch = pair.a.send_queue().batch::<4>();
            for wr_id in 3..6 {
                batch.push(Send::new(Inline(b"x")).wr_id(wr_id).signaled()).expect("room");
            }
            let mut failed = batch.post().expect_err("the second is refused");
            assert_eq!(failed.taken, 1);
            match round % 3 {
                0 => std::mem::forget(failed),
                1 => {
                    std::mem::forget(failed.next_refused().expect("the second"));
                    drop(failed);
                }
                _ => {
                    let numbers: Vec<_> = std::iter::from_fn(|| {
                        failed.next_refused().map(|refused| refused.wr_id())
                    })
                    .collect();
                    assert_eq!(numbers, [4, 5]);
                    drop(failed);
                }
            }
            // Completions, and then what gives them.
            let mut drain = pair.cq.poll().expect("it can be polled");
            let completion = drain.next().expect("one of two");
            if round % 2 == 0 { std::mem::forget(completion) } else { drop(completion) }
            assert_eq!(seen(&mut pair.cq).len(), 1);
            assert_eq!(pair.a.send_queue().in_flight(), 0, "round {round}");
            assert_eq!(pair.b.recv_queue().in_flight(), 0);
        }
        assert_eq!(pair.cq.strays(), 0);
        // A receive's buffer went with its completion, where that was forgotten first.
        let Pair { a, b, cq, pool, .. } = pair;
        std::mem::forget(a);
        drop((b, cq));
        assert!(pool.available() >= 64 - 20, "{}", pool.available());
    }

    /// What is refused comes back as it was.
    fn a_refused_request_is_as_it_was() {
        let mut pair = Pair::new();
        let shared = pair.filled(b"0123456789").freeze();
        let exposed = Exposed::new(&pair.pd, 64, everything()).expect("memory");
        let memory = (shared.slice(3..7).expect("inside"), exposed.range(8, 4).expect("inside"));
        // As many as make the library ask for a signal by itself.
        for _ in 0..DEPTH / 2 - 1 {
            pair.receive(100);
        }
        for wr_id in 0..u64::from(DEPTH / 2 - 1) {
            pair.a.send_queue().post(Send::new(()).wr_id(wr_id)).expect("room");
        }
        faults::fail_post("ibv_post_send", faults::Post::RefuseAt(0), libc::ENOMEM, 1);
        let failed = pair.a.send_queue().post(Send::new(memory).wr_id(9)).expect_err("refused");
        let Refusal::Device { errno: Errno::ENOMEM, .. } = failed.refusal else { panic!() };
        let request = failed.request.expect("it comes back");
        let (part, range) = request.into_memory();
        assert_eq!((&part[..], range.offset(), range.len()), (&b"3456"[..], 8, 4));
        let part = part.try_unfreeze().expect_err("two owners");
        drop(shared);
        assert_eq!(&part.try_unfreeze().expect("the only owner")[..], b"0123456789");
    }

    /// Everything in flight, and all objects dropped in every order: the device touches what it has after each,
    /// and nothing is left.
    fn every_order_of_dropping() {
        let mut orders = vec![vec![]];
        for next in 0..6_usize {
            orders = orders.iter().flat_map(|order: &Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, next);
                    order
                })
            }).collect();
        }
        assert_eq!(orders.len(), 720);
        for order in orders {
            let mut pair = Pair::new();
            faults::stall(true);
            let exposed = Exposed::new(&pair.pd, 64, everything()).expect("memory");
            pair.receive(1);
            let word = exposed.range(8, 8).expect("inside");
            let all = exposed.remote();
            let whole = pair.pool.take().expect("a buffer");
            let part = pair.filled(b"shared").freeze().slice(1..3).expect("inside");
            pair.b.recv_queue().post(Receive::new(word.clone())).expect("room");
            let sends = pair.a.send_queue();
            sends.post(Send::new((part, word.clone()))).expect("room");
            sends.post(Read::new(whole, all)).expect("room");
            sends.post(FetchAdd::new(word, all, 1)).expect("room");
            let Pair { a, b, cq, pool, pd, context } = pair;
            let mut things: [Option<Box<dyn Any>>; 6] = [
                Some(Box::new(context)),
                Some(Box::new(pd)),
                Some(Box::new(pool)),
                Some(Box::new(exposed)),
                Some(Box::new(cq)),
                Some(Box::new((a, b))),
            ];
            for at in &order {
                drop(things[*at].take().expect("each once"));
                faults::touch_all(0xa5);
            }
            assert_eq!(faults::all_live(), [], "{order:?}");
            faults::stall(false);
        }
    }

    /// A queue pair that cannot be destroyed keeps what the device may touch, and all it was made on.
    fn what_cannot_be_destroyed_keeps_its_memory() {
        leaks_on_purpose();
        let mut pair = Pair::new();
        pair.receive(1);
        faults::fail("ibv_destroy_qp", libc::EBUSY);
        let Pair { a, b, cq, pool, pd, context } = pair;
        drop(b);
        assert_eq!(context.leaks(), 1);
        assert_eq!(faults::touch_all(0xa5).written, 64);
        assert_eq!(pool.available(), 63);
        drop((a, cq, pool, pd));
        assert_eq!(faults::touch_all(0x5a).written, 64);
        faults::fail("ibv_dereg_mr", libc::EBUSY);
        let pd = ProtectionDomain::new(&context).expect("another");
        let exposed = Exposed::new(&pd, 64, everything()).expect("memory");
        let kept = exposed.revoke().expect_err("it cannot be deregistered").exposed;
        kept.write(0, b"still there").expect("inside");
        faults::fail("ibv_dereg_mr", libc::EBUSY);
        drop(kept);
        assert_eq!(context.leaks(), 2);
    }

    /// Completions of every number, pushed by hand: none makes memory have two owners.
    fn forged_completions() {
        let mut pair = Pair::new();
        pair.receive(1);
        let address = faults::nth("cq", 0);
        let mut wc = faults::Wc { status: 0, opcode: 128, byte_len: u32::MAX, ..Default::default() };
        for owner in 0..6_u64 {
            for generation in 0..3_u64 {
                for sequence in [0, 1, 7, 8, u64::from(u32::MAX), 1 << 31] {
                    wc.wr_id = owner << 48 | generation << 32 | sequence;
                    faults::push(address, &wc);
                }
            }
        }
        let all = seen(&mut pair.cq);
        assert_eq!(all, [(1, OK, true)], "the one that was really posted");
        assert_eq!(pair.cq.strays(), 6 * 3 * 6 - 1);
        assert_eq!((pair.pool.available(), pair.b.recv_queue().in_flight()), (64, 0));
        drop((pair.a, pair.b));
        assert_eq!(seen(&mut pair.cq), []);
    }

    /// A panic in who is handed completions: nothing is lost but that call.
    fn a_panic_in_the_callback() {
        let mut pair = Pair::new();
        for wr_id in 0..4 {
            pair.receive(wr_id);
        }
        let Pair { a, b, mut cq, pool, .. } = pair;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = b.finish_polling(&mut [&mut cq], Duration::from_secs(5), |_| panic!("on purpose"));
        }));
        assert!(panicked.is_err());
        assert_eq!(seen(&mut cq).len(), 3);
        drop(a);
        assert_eq!(pool.available(), 64);
    }

    /// No answer says what was taken: the memory stays with the queue pair, and comes back when that goes.
    fn a_post_of_which_nothing_is_known() {
        use faults::Post;
        for how in [Post::TakenUnnamed, Post::LostUnnamed, Post::TakenForeign, Post::LostForeign] {
            let mut pair = Pair::new();
            faults::stall(true);
            faults::fail_post("ibv_post_recv", how, libc::ENOMEM, 1);
            let receive = Receive::new(pair.pool.take().expect("a buffer")).wr_id(1);
            let failed = pair.b.recv_queue().post(receive).expect_err("unsure");
            assert!(matches!(failed.refusal, Refusal::Unsure { .. }) && failed.request.is_none());
            faults::fail_post("ibv_post_send", how, libc::EIO, 1);
            let text = [pair.filled(b"a"), pair.filled(b"b")];
            let mut batch = pair.a.send_queue().batch::<4>();
            for (wr_id, buffer) in (2..).zip(text) {
                batch.push(Send::new(buffer).wr_id(wr_id)).expect("room");
            }
            let mut failed = batch.post().expect_err("unsure");
            assert_eq!(failed.taken, 2);
            assert!(failed.next_refused().is_none());
            drop(failed);
            assert_eq!(pair.pool.available(), 61);
            faults::touch_all(0xa5);
            let refused = pair.a.send_queue().post(Send::new(())).expect_err("poisoned");
            assert!(matches!(refused.refusal, Refusal::Poisoned { errno: Errno::EIO, .. }));
            let Pair { a, b, mut cq, pool, .. } = pair;
            drop((a, b));
            let mut back: Vec<_> = seen(&mut cq).into_iter().map(|seen| (seen.0, seen.1)).collect();
            back.sort_by_key(|seen| seen.0);
            assert_eq!(back, [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)], "{how:?}");
            assert_eq!(pool.available(), 64);
            faults::stall(false);
        }
    }
}
