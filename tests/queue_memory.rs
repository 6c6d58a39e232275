//! What a queue pair costs in memory, and that nothing allocates once it is made: counted by the allocator.

#![allow(unsafe_code)] // An allocator.

mod interposed;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use interposed::rig::{Rig, everything};
use interposed::{faults, interposed};
use rdma_verbs::wr::{FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{Calls, CompletionQueue, Exposed, QueuePair, Reset, SharedReceiveQueue};

thread_local! {
    /// Of this thread, since the harness's own allocates beside it: how many bytes there are now, and how
    /// often memory was asked for.
    static COUNTED: Cell<(i64, u64)> = const { Cell::new((0, 0)) };
}

fn count(bytes: i64, calls: u64) {
    // Of a thread that ends nothing is counted.
    let _ = COUNTED.try_with(|counted| {
        let (there, asked) = counted.get();
        counted.set((there + bytes, asked + calls));
    });
}

struct Counting;

// SAFETY: the system's allocator does it all; counting changes nothing, and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64, 1);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64), 0);
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that came and stayed while this was done.
fn bytes<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = COUNTED.get().0;
    let done = work();
    (done, COUNTED.get().0 - before)
}

/// How often memory was asked for meanwhile.
fn allocations<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = COUNTED.get().1;
    let done = work();
    (done, COUNTED.get().1 - before)
}

/// A queue pair with this many entries a work request, at depth 512, its completion queue told of it; and
/// its bytes.
fn made(rig: &mut Rig, depth: u32, entries: u32) -> (QueuePair<Reset>, i64) {
    bytes(|| {
        let made = QueuePair::rc(&rig.pd, &rig.cq, &rig.cq).send_depth(depth).recv_depth(depth);
        let made = made.max_send_sge(entries).max_recv_sge(entries).build();
        let made = made.expect("a queue pair");
        assert!(rig.cq.poll().expect("it can be polled").next().is_none());
        made
    })
}

interposed! {
    /// At most 32 bytes a work request with one entry, and 8 for each further one.
    fn a_queue_pair_of_512() {
        let mut rig = Rig::new();
        rig.cq = CompletionQueue::new(&rig.context, 65_535).expect("a CQ");
        const REQUESTS: i64 = 2 * 512;
        // The lists of the completion queue and of events have grown.
        let grown: Vec<_> = (0..20).map(|_| made(&mut rig, 16, 1).0).collect();
        drop(grown);
        assert!(rig.cq.poll().expect("it can be polled").next().is_none());
        let (one, base) = made(&mut rig, 512, 1);
        let each = base as f64 / REQUESTS as f64;
        println!("512 deep, 1 entry: {base} bytes, {each:.2} a work request");
        assert!(each <= 32.0, "{each}");
        for entries in [2, 3, 4, 8, 30, 32] {
            let (more, total) = made(&mut rig, 512, entries);
            let further = (total - base) as f64 / (REQUESTS * (i64::from(entries) - 1)) as f64;
            println!("512 deep, {entries} entries: {total} bytes, {further:.2} for each further one");
            // Lists of all queue pairs may have grown by the way.
            let most = base + 8 * REQUESTS * (i64::from(entries) - 1) + 1024;
            assert!(total <= most, "{total} of {most}");
            drop(more);
            assert!(rig.cq.poll().expect("it can be polled").next().is_none());
        }
        // All of it goes with the queue pair, once the completion queue was seen empty.
        let ((), left) = bytes(|| {
            drop(one);
            assert!(rig.cq.poll().expect("it can be polled").next().is_none());
        });
        assert_eq!(left, -base);
        // And nothing is left of any that ever was.
        let ((), left) = bytes(|| (0..2000).for_each(|_| drop(made(&mut rig, 16, 2))));
        println!("after 2000 that came and went: {left} bytes");
        assert!(left < 2000, "{left}");
    }

    /// A buffer of a pool costs little beside its own memory.
    fn a_pool() {
        let rig = Rig::new();
        let (pool, bytes) = bytes(|| rdma_verbs::Pool::new(&rig.pd, 4096, 10_000).expect("a pool"));
        let each = bytes as f64 / 10_000.0;
        println!("a buffer: {each:.1} bytes beside its memory");
        assert!(each <= 48.0, "{each}");
        assert_eq!(size_of::<rdma_verbs::Buffer>(), 8);
        drop(pool);
    }

    fn nothing_allocates_on_a_shared_receive_queue() {
        let mut rig = Rig::new();
        let mut srq =
            SharedReceiveQueue::builder(&rig.pd, 16).max_sge(2).build().expect("a shared queue");
        let b = QueuePair::rc(&rig.pd, &rig.cq, &rig.cq).shared_receive_queue(&srq).build();
        let b = b.expect("a queue pair").init(&rig.init_options()).expect("to INIT");
        let (mut a, b) = rig.connect(rig.init(), b);
        let mut completed = 0;
        let mut round = |rig: &mut Rig, wr_id: u64, refused: bool| {
            let take = || rig.pool.take().expect("a buffer");
            srq.post(Receive::new(take()).wr_id(wr_id)).expect("room");
            let mut batch = srq.batch_of::<3, 6>();
            for _ in 0..3 {
                batch.push(Receive::new([take(), take()])).expect("room");
            }
            assert_eq!(batch.post().is_err(), refused);
            for _ in 0..if refused { 2 } else { 4 } {
                a.send_queue().post(Send::new(Inline(b"x")).signaled()).expect("room");
            }
            let mut drain = rig.cq.poll().expect("polled");
            while drain.next().is_some() {
                completed += 1;
            }
            assert!(srq.overtaken() == 0 && srq.in_flight() == 0);
        };
        let mut asked = 0;
        for refused in [false, true] {
            if refused {
                let how = faults::Post::RefuseAt(1);
                faults::fail_post("ibv_post_srq_recv", how, libc::ENOMEM, 510);
            }
            (0..10).for_each(|wr_id| round(&mut rig, wr_id, refused));
            asked += allocations(|| (0..500).for_each(|wr_id| round(&mut rig, wr_id, refused))).1;
        }
        assert_eq!((asked, completed), (0, 510 * 8 + 510 * 4));
        drop(b);
    }

    fn nothing_allocates_on_the_data_path() {
        use Calls::{Classic, Extended};
        for (device, fails, calls) in [
            ("loop0", false, Classic),
            ("loop0", true, Classic),
            ("empty0", false, Classic),
            ("loop0", false, Extended),
            ("empty0", false, Extended),
        ] {
            faults::reset();
            let mut rig = Rig::on(device).polled(calls).posted(calls);
            let (mut a, mut b) = rig.pair();
            let exposed = Exposed::new(&rig.pd, 64, everything()).expect("memory");
            let remote = exposed.remote();
            let word = remote.slice(8, 8).expect("inside");
            let shared = rig.take().freeze();
            let range = exposed.range(0, 8).expect("inside");
            let mut refused = 0;
            let mut round = |rig: &mut Rig| {
                let take = |len| {
                    let mut buffer = rig.pool.take().expect("a buffer");
                    buffer.set_len(len).expect("it fits");
                    buffer
                };
                let recvs = b.recv_queue();
                let _ = recvs.post(Receive::new(take(8)).wr_id(1));
                let mut batch = recvs.batch_of::<4, 8>();
                for _ in 0..4 {
                    let _ = batch.push(Receive::new([take(8), take(8)]));
                }
                let _ = batch.post();
                let sends = a.send_queue();
                refused += u64::from(sends.post(Send::new(take(8))).is_err());
                refused += u64::from(sends.post(Send::new(Inline(b"inline"))).is_err());
                let mut batch = sends.batch_of::<8, 16>();
                batch.push(Send::new((shared.clone(), take(4), range.clone()))).expect("room");
                batch.push(Send::new(())).expect("room");
                batch.push(Write::new(take(8), remote)).expect("room");
                batch.push(Write::new(Inline(b"bytes"), remote).imm(7)).expect("room");
                batch.push(Read::new(take(8), remote)).expect("room");
                batch.push(FetchAdd::new(take(8), word, 1)).expect("room");
                if let Err(mut failed) = batch.post() {
                    refused += 1;
                    drop(failed.next_refused().expect("the first").take());
                }
                let mut count = 0_u64;
                loop {
                    let mut drain = rig.cq.poll().expect("it can be polled");
                    if drain.is_empty() {
                        return count;
                    }
                    while let Some(mut completion) = drain.next() {
                        count += 1;
                        let _ = completion.result();
                        if count % 2 == 0 {
                            drop(completion.take());
                        }
                    }
                }
            };
            round(&mut rig);
            if fails {
                faults::fail_every("ibv_post_send", libc::ENOMEM, 7, None);
                faults::fail_every("ibv_post_recv", libc::ENOMEM, 7, None);
            }
            let (count, allocations) =
                allocations(|| (0..1000).map(|_| round(&mut rig)).sum::<u64>());
            println!("{device}: {count} completions, {refused} refused, {allocations} allocations");
            assert_eq!(allocations, 0);
            assert!(count >= 5000 && fails == (refused > 0), "{count} {refused}");
        }
    }
}
