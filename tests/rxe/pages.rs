//! Page pools on rxe: what may be locked, which pages there are, and receive queues refilled from them.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs::{
    CompletionQueue, Error, Fragment, PagePool, PageSize, QueuePair, RefillStop, Rts,
};

use super::limits::memory::{as_another_user, meminfo, open_as_another, regions, reserve};
use super::rc::{Ground, join};
use super::rig::{Rig, alone};

const SLAB: usize = 2 << 20;

fn all(pages: &mut PagePool) -> Vec<Fragment> {
    std::iter::from_fn(|| pages.take()).collect()
}

/// What is told of a slab that could not be had by a user who may lock so much.
fn assert_limited(error: &Error, bytes: u64, may: u64) {
    let Error::NoMemory { asked, limit, .. } = error else { panic!("{error}") };
    assert_eq!((*asked, *limit), (bytes, Some(may)));
    assert!(error.to_string().contains(&may.to_string()), "{error}");
}

#[test]
fn another_user_with_64_kib_to_lock() {
    as_another_user(&Rig::new(), "pages::with_64_kib_to_lock");
}

#[test]
#[ignore = "the test before runs it as another user"]
fn with_64_kib_to_lock() {
    const MAY: u64 = 64 << 10;
    let pd = open_as_another(MAY);
    let error = PagePool::builder(&pd, 4096).build().expect_err("a slab is more");
    assert!(error.to_string().contains("65536"), "{error}");
    let Error::FewerSlabs { made: 0, asked: 1, why, .. } = error else { panic!("{error}") };
    assert_limited(&why, SLAB as u64, MAY);
    for _ in 0..3 {
        let small = PagePool::builder(&pd, 4096).slab_bytes(24 << 10);
        let error = small.clone().floor(5).build().expect_err("five are more");
        let Error::FewerSlabs { made: 2, asked: 5, why, .. } = error else { panic!("{error}") };
        assert_limited(&why, 24 << 10, MAY);
        // What was made of it is gone: the same two are there for another.
        let mut pages = small.build().expect("one");
        assert_eq!((all(&mut pages).len(), pages.stats().slabs), (12, 2));
        assert_limited(pages.growth_failure().expect("it could not grow"), 24 << 10, MAY);
    }
    assert_eq!(pd.context().leaks(), 0);
}

#[test]
fn another_user_with_8_mib_to_lock() {
    as_another_user(&Rig::new(), "pages::with_8_mib_to_lock");
}

#[test]
#[ignore = "the test before runs it as another user"]
fn with_8_mib_to_lock() {
    const MAY: u64 = 8 << 20;
    let pd = open_as_another(MAY);
    let mut pages = PagePool::builder(&pd, 4096).build().expect("a slab of four");
    let fragments = all(&mut pages);
    assert_eq!((fragments.len(), pages.stats().slabs), (4 * 512, 4));
    assert_limited(pages.growth_failure().expect("it could not grow"), SLAB as u64, MAY);
    assert_limited(&pages.grow().expect_err("nor now"), SLAB as u64, MAY);
    drop(fragments);
    assert_eq!(all(&mut pages).len(), 4 * 512, "it works with fewer");
    assert_eq!((pages.shrink(), pages.stats().slabs), (3, 1));
    pages.grow().expect("there is room again");
}

#[test]
fn of_the_pages_there_are() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let ground = Ground::new(&rig);
    let build = || PagePool::builder(&ground.pd, 4096).build().expect("a pool");
    reserve(0);
    let none = build();
    assert_ne!(none.pages(), PageSize::Huge, "there are none");
    assert_eq!(none.stats().huge_slabs, 0);
    drop(none);
    reserve(2);
    let mut pages = build();
    assert_eq!((pages.pages(), meminfo("HugePages_Free:")), (PageSize::Huge, 1));
    pages.grow().expect("of the second");
    pages.grow().expect("of others");
    let stats = pages.stats();
    assert_eq!((stats.slabs, stats.huge_slabs, meminfo("HugePages_Free:")), (3, 2, 0));
    assert_ne!(pages.pages(), PageSize::Huge, "not all of it is");
    // Handed out of, over all of them.
    let mut fragments = all_of(&mut pages, 3 * 512);
    fragments.iter_mut().for_each(|fragment| fragment.fill(1));
    drop((pages, fragments));
    assert_eq!(meminfo("HugePages_Free:"), 2, "all of them are back");
    let plain = PagePool::builder(&ground.pd, 4096).huge_pages(false).build().expect("a pool");
    assert_eq!((plain.pages(), meminfo("HugePages_Free:")), (PageSize::Base, 2));
    drop(plain);
    reserve(0);
}

fn all_of(pages: &mut PagePool, count: usize) -> Vec<Fragment> {
    (0..count).map(|_| pages.take().expect("it is there")).collect()
}

/// Two queue pairs, the second of which receives, and what they complete on.
fn pair(ground: &Ground) -> (QueuePair<Rts>, QueuePair<Rts>, CompletionQueue) {
    let cq = ground.cq(256);
    let (a, b) = (ground.queue_pair(&cq, 16), ground.queue_pair(&cq, 16));
    let (a, b) = join(a, b, &ground.options());
    (a, b, cq)
}

/// The fragments of completions, until so many receives and sends are complete.
fn received(
    cq: &mut CompletionQueue,
    receives: usize,
    mut sends: usize,
) -> Vec<(bool, Vec<Fragment>)> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut seen = Vec::new();
    while seen.len() < receives || sends > 0 {
        let lack = (receives - seen.len(), sends);
        assert!(Instant::now() < deadline, "receives and sends still to complete: {lack:?}");
        let mut drain = cq.poll().expect("it can be polled");
        while let Some(mut completion) = drain.next() {
            if completion.wr_id() == 7 {
                let fragments = std::iter::from_fn(|| completion.take_fragment()).collect();
                seen.push((completion.is_success(), fragments));
            } else {
                sends -= 1;
            }
        }
    }
    seen
}

/// No registration while messages come and go, however many.
#[test]
fn messages_into_pages_that_are_registered_once() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let (mut a, mut b, mut cq) = pair(&ground);
    let mut pages =
        PagePool::builder(&ground.pd, 1024).slab_bytes(64 << 10).floor(2).build().expect("a pool");
    let before = (pages.stats().registrations, regions(&rig));
    assert_eq!(before, (2, 2));
    let mut number = 0_u64;
    for round in 0..500 {
        let refill = b.recv_queue().refill(&mut pages, 2, 7);
        assert_eq!((refill.posted, refill.stopped), (16, RefillStop::Full), "round {round}");
        for _ in 0..16 {
            let bytes = number.to_ne_bytes();
            let send = Send::new(Inline(&bytes));
            a.send_queue()
                .post(if number % 8 == 7 { send.signaled() } else { send })
                .expect("room");
            number += 1;
        }
        for (at, (success, fragments)) in received(&mut cq, 16, 16).into_iter().enumerate() {
            let lens = [fragments[0].len(), fragments[1].len()];
            assert_eq!((success, lens), (true, [8, 0]));
            assert_eq!(fragments[0][..], (number - 16 + at as u64).to_ne_bytes());
        }
    }
    let stats = pages.stats();
    assert_eq!((stats.registrations, regions(&rig)), before, "0 in {number} messages");
    assert_eq!(stats.fragments_out, 0);
    drop((a, b));
    assert_eq!(ground.context.leaks(), 0);
}

/// To ERR with receives posted: all come back, the pool being there or not.
#[test]
fn what_is_posted_comes_back_from_err() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    for pool_first in [false, true] {
        let (a, mut b, mut cq) = pair(&ground);
        let mut pages = PagePool::builder(&ground.pd, 1024)
            .slab_bytes(4096)
            .ceiling(9)
            .build()
            .expect("a pool");
        let refill = b.recv_queue().refill(&mut pages, 3, 7);
        assert_eq!((refill.posted, refill.stopped), (12, RefillStop::NoFragments));
        assert_eq!((pages.stats().fragments_out, regions(&rig)), (36, 9));
        let mut pages = Some(pages).filter(|_| !pool_first);
        assert_eq!(regions(&rig), 9, "all are posted");
        b.close().expect("to ERR");
        let flushed = received(&mut cq, 12, 0);
        assert!(flushed.iter().all(|(success, fragments)| !success && fragments.len() == 3));
        drop(flushed);
        if let Some(pages) = &mut pages {
            assert_eq!((pages.stats().fragments_out, pages.shrink()), (0, 8));
        }
        assert_eq!(regions(&rig), u32::from(!pool_first));
        drop((pages, a, b));
        assert_eq!(regions(&rig), 0);
    }
    // Nothing is flushed by hand: destroying the queue pair gives it to who polls.
    let (a, mut b, mut cq) = pair(&ground);
    let mut pages = PagePool::builder(&ground.pd, 1024).slab_bytes(4096).build().expect("a pool");
    assert_eq!(b.recv_queue().refill(&mut pages, 1, 7).posted, 16);
    drop((pages, a, b));
    assert_eq!(received(&mut cq, 16, 0).len(), 16);
    assert_eq!((regions(&rig), ground.context.leaks()), (0, 0));
}
