//! Page pools, and receive queues that are refilled from them, on the interposer's device. Runs on any
//! machine.

mod interposed;

use std::collections::HashSet;
use std::thread;

use interposed::faults::Post;
use interposed::rig::{DEPTH, Random, Rig};
use interposed::{faults, interposed};
use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{
    Errno, Error, Fragment, Memory, PagePool, PagePoolBuilder, PageSize, ProtectionDomain,
    RefillStop, Refusal,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PAGE: usize = 4096;

/// Slabs of one page, of four fragments.
fn small(pd: &ProtectionDomain) -> PagePoolBuilder<'_> {
    PagePool::builder(pd, PAGE / 4).slab_bytes(PAGE)
}

fn build(builder: PagePoolBuilder<'_>) -> PagePool {
    builder.build().expect("a pool")
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Error {
    outcome.expect_err("it cannot be")
}

fn all(pages: &mut PagePool) -> Vec<Fragment> {
    std::iter::from_fn(|| pages.take()).collect()
}

fn starts(fragments: &[Fragment]) -> Vec<usize> {
    fragments.iter().map(|fragment| fragment.as_ptr().addr()).collect()
}

fn out(pages: &PagePool) -> u64 {
    pages.stats().fragments_out
}

/// Drops the memory of all completions, as whoever polls does; gives how many fragments came.
fn drop_completed(rig: &mut Rig) -> usize {
    let mut drain = rig.cq.poll().expect("it can be polled");
    let mut count = 0;
    while let Some(mut completion) = drain.next() {
        count += std::iter::from_fn(|| completion.take_fragment()).count();
    }
    count
}

interposed! {
    fn fragments_are_carved_in_order() {
        let pd = Rig::new().pd;
        let mut pages = build(small(&pd).floor(2).ceiling(2));
        let mut first = all(&mut pages);
        assert_eq!((first.len(), out(&pages), pages.fragment_size()), (8, 8, PAGE / 4));
        let before = starts(&first);
        for (at, pair) in before.windows(2).enumerate() {
            assert!(pair[1] == pair[0] + PAGE / 4 || at == 3, "{before:?}");
        }
        for (mark, fragment) in (1..).zip(&mut first) {
            assert!(fragment.iter().all(|byte| *byte == 0) && fragment.capacity() == PAGE / 4);
            fragment.fill(mark);
        }
        for (mark, fragment) in (1..).zip(&first) {
            assert!(fragment.iter().all(|byte| *byte == mark), "nobody else's");
        }
        let error = refused(first[0].set_len(PAGE));
        assert!(matches!(error, Error::OutOfRange { asked: 4096, most: 1024, .. }), "{error}");
        first[0].fill_from(b"few").expect("it fits");
        assert_eq!(first[0][..], *b"few");
        // The younger slab is complete, and of the older one fragment is out.
        let kept = first.swap_remove(2);
        drop(first);
        assert!(pages.take().is_none(), "the oldest is first");
        assert!(pages.growth_failure().is_none(), "it is at its ceiling");
        thread::spawn(move || drop(kept)).join().expect("it ends");
        let again = all(&mut pages);
        assert_eq!(starts(&again), before, "the same again, in the same order");
        assert!(again.iter().all(|fragment| fragment.len() == PAGE / 4));
        let stats = pages.stats();
        assert_eq!((stats.slabs, stats.high_water, stats.registrations), (2, 2, 2));
    }

    fn slabs_go_with_the_last_of_their_fragments() {
        let rig = Rig::new();
        let mrs = faults::live("mr");
        let mut pages = build(small(&rig.pd).floor(3).ceiling(3));
        let mut fragments: Vec<Fragment> = (0..6).filter_map(|_| pages.take()).collect();
        assert_eq!(faults::live("mr"), mrs + 3);
        drop(pages);
        assert_eq!(faults::live("mr"), mrs + 2, "of the third none is out");
        let of_second = fragments.split_off(4);
        thread::spawn(move || drop(fragments)).join().expect("it ends");
        assert_eq!(faults::live("mr"), mrs + 1);
        assert_eq!(of_second[1].len(), PAGE / 4);
        drop(of_second);
        assert_eq!(faults::live("mr"), mrs);
        rig.end();
    }

    fn it_grows_and_shrinks_between_floor_and_ceiling() {
        let rig = Rig::new();
        let mut pages = build(small(&rig.pd).floor(2).ceiling(5));
        let mut fragments = all(&mut pages);
        assert_eq!((fragments.len(), pages.stats().slabs), (20, 5));
        let error = refused(pages.grow());
        assert!(matches!(error, Error::OutOfRange { asked: 6, most: 5, .. }), "{error}");
        assert_eq!(pages.shrink(), 0);
        // The second and third complete: in order, none can go before the first.
        fragments.drain(4..12);
        assert_eq!(pages.shrink(), 0);
        fragments.drain(..4);
        let registered = faults::live("mr");
        assert_eq!((pages.shrink(), faults::live("mr")), (3, registered - 3));
        assert_eq!(pages.shrink(), 0, "at its floor");
        drop(fragments);
        assert_eq!((pages.shrink(), pages.stats().slabs), (0, 2));
        pages.grow().expect("below its ceiling");
        let stats = pages.stats();
        assert_eq!((stats.slabs, stats.high_water, stats.registrations), (3, 5, 6));
        drop(pages);
        rig.end();
    }

    fn what_cannot_be_is_told() {
        let rig = Rig::new();
        let builder = |fragment| PagePool::builder(&rig.pd, fragment).slab_bytes(4 * PAGE);
        let largest = rig.context.limits().max_mr_size as usize;
        for (builder, asked) in [
            (builder(0), 0),
            (builder(4 * PAGE + 1), 4 * PAGE + 1),
            (builder(PAGE).slab_bytes(0), 0),
            (builder(PAGE).floor(0), 0),
            (builder(PAGE).floor(3).ceiling(2), 3),
            (builder(PAGE).ceiling(0), 1),
            (builder(usize::MAX), usize::MAX),
            (builder(PAGE).slab_bytes(usize::MAX), usize::MAX),
            (builder(1).slab_bytes(1 << 25), 1 << 25),
        ] {
            let error = refused(builder.clone().build());
            let Error::OutOfRange { asked: told, .. } = error else { panic!("{builder:?}: {error}") };
            assert_eq!(told, asked as u64, "{error}");
        }
        if largest > 0 && largest < isize::MAX as usize {
            let error = refused(builder(PAGE).slab_bytes(largest / PAGE * PAGE + PAGE).build());
            assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
        }
        for (builder, to) in [
            (builder(3000), 3000),
            (builder(PAGE).slab_bytes(PAGE + 1), PAGE),
            (builder(PAGE).slab_bytes(100), 0),
            (builder(3 * PAGE), 3 * PAGE),
        ] {
            match refused(builder.build()) {
                Error::Unaligned { to: told, .. } => assert_eq!(told, to as u64),
                // A slab that is smaller than its fragment, in the first place.
                Error::OutOfRange { asked, .. } => assert_eq!((asked, to), (PAGE as u64, 0)),
                error => panic!("{error}"),
            }
        }
        assert_eq!(out(&build(small(&rig.pd))), 0, "it works all the same");
        rig.end();
    }

    fn a_limit_in_the_middle_is_told_and_nothing_is_lost() {
        let rig = Rig::new();
        let there = faults::live("mr_bytes");
        faults::memory_limit(there + 3 * PAGE as u64);
        let error = refused(small(&rig.pd).floor(5).ceiling(5).build());
        let Error::FewerSlabs { made, asked, why, .. } = &error else { panic!("{error}") };
        assert_eq!((made, asked), (&3, &5));
        assert!(matches!(**why, Error::NoMemory { asked: 4096, .. }), "{why}");
        assert!(error.to_string().contains("3 of 5 slabs of 4096 bytes"), "{error}");
        assert_eq!(faults::live("mr_bytes"), there, "what could be made is gone again");
        // With a lower floor it works with what there is, and says why there is no more.
        let mut pages = build(small(&rig.pd).ceiling(64));
        let mut fragments = all(&mut pages);
        assert_eq!((fragments.len(), pages.stats().slabs, pages.stats().growth_failures), (12, 3, 1));
        let failure = pages.growth_failure().expect("it could not grow");
        assert!(matches!(failure, Error::NoMemory { asked: 4096, .. }), "{failure}");
        let calls = faults::count("ibv_reg_mr");
        assert!(pages.take().is_none());
        assert_eq!(faults::count("ibv_reg_mr"), calls, "it is not tried for every fragment");
        assert!(matches!(refused(pages.grow()), Error::NoMemory { .. }));
        for _ in 0..100 {
            drop(std::mem::take(&mut fragments));
            fragments = all(&mut pages);
            assert_eq!(fragments.len(), 12);
        }
        assert!(faults::count("ibv_reg_mr") - calls < 12, "nor for every slab");
        faults::memory_limit(u64::MAX);
        pages.grow().expect("there is memory again");
        assert!(pages.growth_failure().is_none());
        assert_eq!(all(&mut pages).len(), 61 * 4);
        drop((fragments, pages));
        rig.end();
    }

    fn no_room_to_map() {
        let rig = Rig::new();
        let slab = 64 << 20;
        let builder = PagePool::builder(&rig.pd, 1 << 20).slab_bytes(slab);
        let mut pages = build(builder.huge_pages(false).ceiling(8));
        let unlimited = getrlimit(Resource::As);
        let pages_now = std::fs::read_to_string("/proc/self/statm").expect("own size");
        let now: u64 = pages_now.split(' ').next().expect("a number").parse().expect("a number");
        let limit = Rlimit { current: Some(now * PAGE as u64 + (32 << 20)), ..unlimited };
        setrlimit(Resource::As, limit).expect("less can be asked for");
        let fragments = all(&mut pages);
        let failed = matches!(
            pages.growth_failure(), Some(Error::Host { call: "mmap", errno: Errno::ENOMEM }));
        let error = refused(pages.grow());
        setrlimit(Resource::As, unlimited).expect("as it was");
        assert_eq!((failed, fragments.len()), (true, 64));
        assert!(matches!(error, Error::Host { call: "mmap", .. }), "{error}");
        pages.grow().expect("there is room again");
        drop((pages, fragments));
        rig.end();
    }

    fn of_whichever_pages_there_are() {
        let rig = Rig::new();
        let pages = build(PagePool::builder(&rig.pd, PAGE).floor(2));
        let stats = pages.stats();
        assert_eq!(stats.base_slabs + stats.transparent_slabs + stats.huge_slabs, 2);
        assert_eq!(pages.slab_fragments(), 512);
        let plain = build(PagePool::builder(&rig.pd, PAGE).huge_pages(false));
        assert_eq!((plain.pages(), plain.stats().base_slabs), (PageSize::Base, 1));
        // No huge page fits.
        assert_eq!(build(small(&rig.pd)).pages(), PageSize::Base);
        drop((pages, plain));
        rig.end();
    }

    fn a_slab_that_cannot_be_deregistered_stays() {
        interposed::leaks_on_purpose();
        let rig = Rig::new();
        let mrs = faults::live("mr");
        let mut pages = build(small(&rig.pd).ceiling(2));
        let fragments = all(&mut pages);
        faults::fail("ibv_dereg_mr", libc::EBUSY);
        drop((pages, fragments));
        assert_eq!((faults::live("mr"), rig.context.leaks()), (mrs + 1, 1));
    }

    /// Messages of every length that begins or ends around a fragment's end.
    fn what_is_received_is_in_the_fragments_in_order() {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let mut pages = build(PagePool::builder(&rig.pd, 64).slab_bytes(PAGE).floor(2));
        let pool = rdma_verbs::Pool::new(&rig.pd, PAGE, 1).expect("a pool");
        let text: Vec<u8> = (0..PAGE).map(|at| at as u8).collect();
        for length in [0, 1, 63, 64, 65, 127, 128, 129, 191, 192] {
            let refill = b.recv_queue().refill(&mut pages, 3, 77);
            assert_eq!(refill.stopped, RefillStop::Full);
            let mut buffer = pool.take().expect("one");
            buffer.fill_from(&text[..length]).expect("it fits");
            a.send_queue().post(Send::new(buffer).signaled()).expect("room");
            let mut seen = rig.completions(2);
            let received = seen.iter_mut().find(|seen| seen.wr_id == 77).expect("one of two");
            let mut there = Vec::new();
            for memory in &received.memory {
                let Memory::Fragment(fragment) = memory else { panic!("{memory:?}") };
                assert!(fragment.len() == 64 || there.len() + fragment.len() == length);
                there.extend_from_slice(fragment);
            }
            assert_eq!((received.memory.len(), there), (3, text[..length].to_vec()));
        }
        assert_eq!(b.recv_queue().in_flight(), DEPTH - 1);
        assert_eq!(pages.stats().registrations, 2, "as in the beginning");
        drop((a, b));
        drop_completed(&mut rig);
        assert_eq!(out(&pages), 0);
        drop((pages, pool));
        rig.end();
    }

    /// A receive has its whole list or is not posted, and then takes nothing.
    fn whole_receives_or_none() {
        let mut rig = Rig::new();
        let (a, mut b) = rig.pair();
        let recvs = b.recv_queue();
        // 12 fragments: four receives of three, across slabs.
        let mut whole = build(small(&rig.pd).floor(3).ceiling(3));
        let refill = recvs.refill(&mut whole, 3, 1);
        assert_eq!((refill.posted, refill.stopped), (4, RefillStop::NoFragments));
        let mut half = build(small(&rig.pd).floor(2).ceiling(2));
        let refill = recvs.refill(&mut half, 3, 2);
        assert_eq!((refill.posted, refill.stopped, out(&half)), (2, RefillStop::NoFragments, 6));
        let two = [half.take().expect("a seventh"), half.take().expect("an eighth")];
        assert_eq!(starts(&two)[0] + PAGE / 4, starts(&two)[1], "the rest is as it was");
        assert_eq!(recvs.in_flight(), 6);
        // Below the ceiling, but it cannot grow.
        let mut pages = build(small(&rig.pd).ceiling(9));
        faults::fail_every("ibv_reg_mr", libc::ENOMEM, 1, None);
        let refill = recvs.refill(&mut pages, 4, 3);
        assert_eq!((refill.posted, refill.stopped), (1, RefillStop::GrowthFailed));
        assert!(matches!(pages.growth_failure(), Some(Error::NoMemory { .. })));
        faults::reset();
        pages.grow().expect("it can");
        let refill = recvs.refill(&mut pages, 4, 3);
        assert_eq!((refill.posted, refill.stopped), (8, RefillStop::NoFragments));
        // Bad input: nothing is taken.
        for (per_receive, refusal) in [
            (0, Refusal::NoEntries { on: recvs.qpn().into() }),
            (5, Refusal::TooManyEntries { on: recvs.qpn().into(), asked: 5, limit: 4 }),
            (u32::MAX, Refusal::TooManyEntries { on: recvs.qpn().into(), asked: u32::MAX, limit: 4 }),
        ] {
            let refill = recvs.refill(&mut pages, per_receive, 4);
            assert_eq!((refill.posted, refill.stopped), (0, RefillStop::Refused(refusal)));
        }
        let other_pd = ProtectionDomain::new(&rig.context).expect("a PD");
        let mut strange = build(small(&other_pd));
        let refill = recvs.refill(&mut strange, 1, 5);
        assert!(matches!(refill.stopped, RefillStop::Refused(Refusal::OtherDomain { .. })));
        assert_eq!(out(&strange), 0);
        // And it goes on.
        recvs.post(Receive::new(two)).expect("room for one");
        let mut other = build(small(&rig.pd));
        assert_eq!(recvs.refill(&mut other, 1, 6).stopped, RefillStop::Full);
        drop((a, b));
        drop_completed(&mut rig);
        assert_eq!([&whole, &half, &pages, &other].map(out), [0; 4]);
        drop((whole, half, pages, other, strange, other_pd));
        rig.end();
    }

    /// From any place of a chain: what was not taken is the pool's again, and is taken next.
    fn a_refused_chain_is_undone() {
        let mut rig = Rig::new();
        let mrs = faults::live("mr");
        for at in 0..DEPTH {
            let (a, mut b) = rig.pair();
            let recvs = b.recv_queue();
            let mut pages = build(small(&rig.pd).ceiling(20));
            faults::fail_post("ibv_post_recv", Post::RefuseAt(at), libc::ENOMEM, 1);
            let refill = recvs.refill(&mut pages, 3, 7);
            assert_eq!(refill.posted, at);
            let RefillStop::Refused(Refusal::Device { errno, .. }) = refill.stopped else {
                panic!("{refill:?}")
            };
            assert_eq!((errno, recvs.in_flight()), (Errno::ENOMEM, at));
            let (taken, slabs) = (3 * at as usize, pages.stats().slabs);
            assert_eq!(out(&pages), taken as u64);
            // The same as if the others had not been tried: the rest of the slab, and then all others.
            let rest = all(&mut pages);
            assert_eq!(rest.len(), 4 * 20 - taken);
            assert_eq!(rest[0].as_ptr().addr() % PAGE, taken % 4 * (PAGE / 4), "{at}");
            assert_eq!(slabs, 12);
            drop(rest);
            let refill = recvs.refill(&mut pages, 1, 8);
            // The slab that is next has fragments posted, unless none was.
            let more = if taken == 0 { DEPTH } else { 0 };
            assert_eq!(refill.posted, more);
            drop((a, b));
            drop_completed(&mut rig);
            assert_eq!((out(&pages), all(&mut pages).len()), (0, 80));
            drop(pages);
            assert_eq!(faults::live("mr"), mrs);
        }
        rig.end();
    }

    /// What a device does not tell of stays with the queue pair, and comes back with its end.
    fn what_a_device_does_not_tell_of_stays() {
        let mut rig = Rig::new();
        for how in [Post::TakenUnnamed, Post::LostUnnamed, Post::TakenForeign, Post::LostForeign] {
            let (a, mut b) = rig.pair();
            let mut pages = build(small(&rig.pd).floor(8));
            faults::fail_post("ibv_post_recv", how, libc::EIO, 1);
            let refill = b.recv_queue().refill(&mut pages, 2, 7);
            assert_eq!((refill.posted, out(&pages)), (DEPTH, 2 * u64::from(DEPTH)));
            assert!(matches!(refill.stopped, RefillStop::Refused(Refusal::Unsure { .. })), "{refill:?}");
            let again = b.recv_queue().refill(&mut pages, 2, 7);
            assert!(matches!(again.stopped, RefillStop::Refused(Refusal::Poisoned { .. })), "{again:?}");
            assert_eq!((again.posted, out(&pages)), (0, 2 * u64::from(DEPTH)));
            drop((a, b));
            assert_eq!(drop_completed(&mut rig), 2 * DEPTH as usize);
            assert_eq!(out(&pages), 0);
        }
        let (a, mut b) = rig.pair();
        b.recv_queue().close().expect("to ERR");
        let mut pages = build(small(&rig.pd));
        let refill = b.recv_queue().refill(&mut pages, 2, 7);
        assert!(matches!(refill.stopped, RefillStop::Refused(Refusal::Closed { .. })), "{refill:?}");
        assert_eq!(out(&pages), 0);
        drop((a, b, pages));
        rig.end();
    }

    /// The pool goes first, then the queue pair with all that is posted, then the completion queue.
    fn the_pool_goes_before_what_is_posted() {
        let mut rig = Rig::new();
        for closed in [true, false] {
            let mrs = faults::live("mr");
            let (a, mut b) = rig.pair();
            let mut pages = build(small(&rig.pd));
            let refill = b.recv_queue().refill(&mut pages, 2, 7);
            assert_eq!((refill.posted, faults::live("mr")), (DEPTH, mrs + 8));
            drop(pages);
            assert_eq!(faults::live("mr"), mrs + 8);
            let touched = faults::touch_all(0xa5);
            assert_eq!(touched.written, u64::from(DEPTH) * 2 * PAGE as u64 / 4);
            if closed {
                b.close().expect("to ERR");
                assert_eq!(drop_completed(&mut rig), 2 * DEPTH as usize);
                assert_eq!(faults::live("mr"), mrs);
            }
            drop((a, b));
            drop_completed(&mut rig);
            assert_eq!(faults::live("mr"), mrs);
        }
        let (a, mut b) = rig.pair();
        let mut pages = build(small(&rig.pd));
        assert_eq!(b.recv_queue().refill(&mut pages, 1, 7).stopped, RefillStop::Full);
        drop((pages, a, b));
        // Nobody polls any more.
        rig.end();
    }

    /// Messages, refills and failures of registering and posting at random.
    fn refills_under_failures() {
        let steps: u32 = std::env::var("RDMA_TEST_STEPS").map_or(100_000, |steps| {
            steps.parse().expect("RDMA_TEST_STEPS is a number")
        });
        let mut rig = Rig::new();
        let mut random = Random::new(7);
        let (mut sent, mut came, mut given_up, mut failures) = (0_u64, 0_u64, 0_u64, 0_u64);
        for round in 0..(steps / 2000).max(1) {
            let mrs = faults::live("mr");
            let (mut a, mut b) = rig.pair();
            let ceiling = 1 + random.below(12);
            let mut pages = build(small(&rig.pd).ceiling(ceiling));
            let every = 2 + round % 16;
            faults::fail_every("ibv_reg_mr", libc::ENOMEM, every, None);
            let mut kept: Vec<Fragment> = Vec::new();
            let mut posted = 0;
            for _ in 0..2000 {
                match random.below(8) {
                    0..=2 => {
                        if random.once_in(3) {
                            let at = Post::RefuseAt(random.below(4) as u32);
                            faults::fail_post("ibv_post_recv", at, libc::ENOMEM, 1);
                        }
                        let before = out(&pages);
                        let per_receive = 1 + random.below(4) as u32;
                        let refill = b.recv_queue().refill(&mut pages, per_receive, per_receive.into());
                        assert_eq!(out(&pages), before + u64::from(refill.posted * per_receive));
                        posted += refill.posted;
                        let as_it_is = match refill.stopped {
                            // What was refused counts until all before it came back.
                            RefillStop::Full => b.recv_queue().in_flight() > 0,
                            RefillStop::NoFragments => pages.growth_failure().is_none(),
                            RefillStop::GrowthFailed => pages.growth_failure().is_some(),
                            RefillStop::Refused(refusal) => matches!(refusal, Refusal::Device { .. }),
                            _ => false,
                        };
                        assert!(as_it_is, "{refill:?}");
                    }
                    3 | 4 if posted > 0 => {
                        let send = Send::new(Inline(b"message")).signaled();
                        if a.send_queue().post(send).is_ok() {
                            (sent, posted) = (sent + 1, posted - 1);
                        }
                    }
                    5 | 6 => {
                        let mut drain = rig.cq.poll().expect("it can be polled");
                        while let Some(mut completion) = drain.next() {
                            let pieces = completion.wr_id();
                            let fragments: Vec<_> =
                                std::iter::from_fn(|| completion.take_fragment()).collect();
                            assert_eq!(fragments.len() as u64, pieces, "all of them");
                            if let Some(first) = fragments.first() {
                                assert_eq!((&first[..], came < sent), (&b"message"[..], true));
                                came += 1;
                            }
                            kept.extend(fragments);
                        }
                    }
                    7 if random.once_in(20) => {
                        let _ = pages.shrink();
                        let _ = pages.grow();
                    }
                    _ => {
                        random.shuffle(&mut kept);
                        kept.truncate(random.below(kept.len() + 1));
                    }
                }
            }
            let different: HashSet<usize> = starts(&kept).into_iter().collect();
            assert_eq!(different.len(), kept.len());
            let stats = pages.stats();
            assert!(stats.slabs <= ceiling && stats.high_water <= ceiling, "{stats:?}");
            failures += stats.growth_failures;
            if round % 2 == 0 {
                drop(pages);
                drop((a, b));
            } else {
                drop((a, b));
                drop(pages);
            }
            given_up += drop_completed(&mut rig) as u64;
            drop(kept);
            assert_eq!((faults::live("mr"), rig.cq.strays()), (mrs, 0));
            faults::reset();
        }
        assert!(came > 0 && came <= sent && given_up > 0, "{came} of {sent}, {given_up}");
        assert!(failures > 0);
        rig.end();
    }
}
