//! `mem::forget` on everything: what is forgotten stays, and nothing hangs or breaks.
//!
//! In a process of its own: a context that is forgotten is open until that ends.

#![allow(clippy::forget_non_drop)] // what has no Drop today may have one tomorrow

use std::mem::forget;
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Endpoint, Exposed, Notify, Pool, ProtectionDomain,
    QueuePair, Refusal, WcStatus,
};

use super::fill;
use crate::rc::{Ground, completions, everything, join, row};
use crate::rig::{Rig, wait_until};

const DEVICE: &str = "RDMA_TEST_DEVICE";

#[test]
fn everything_once() {
    let rig = Rig::new();
    row(&rig, &rig.open());
    let me = std::env::current_exe().expect("own path");
    let mut child = Command::new(me)
        .args(["--exact", "teardown::forgotten::child", "--ignored", "--nocapture"])
        .env(DEVICE, &rig.device)
        .spawn()
        .expect("the child starts");
    wait_until("the child ends", || child.try_wait().expect("it can be asked").is_some());
    assert!(child.wait().expect("it has ended").success());
}

fn ground() -> Ground {
    let device = std::env::var(DEVICE).expect("the parent names a device");
    let list = rdma_verbs::DeviceList::new().expect("devices can be listed");
    let context = list.find(&device).expect("it is listed").open().expect("it opens");
    let snapshot = context.gids().fresh().expect("the table can be read").to_arc();
    let row = *snapshot.rows().iter().find(|row| row.ipv4().is_some()).expect("an address");
    let pd = ProtectionDomain::new(&context).expect("a PD");
    Ground { context, row, pd }
}

#[test]
#[ignore = "the other test of this file runs it in a process of its own"]
fn child() {
    for step in [
        completions_and_batches,
        handles_with_work_in_flight,
        every_state,
        queues_and_channels,
        memory_and_parents,
    ] {
        let begun = Instant::now();
        step();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}

/// What is lent: forgotten, the lender goes on.
fn completions_and_batches() {
    let ground = ground();
    let mut cq = ground.cq(64);
    let pool = Pool::new(&ground.pd, 64, 32).expect("a pool");
    let (a, mut b) = (ground.queue_pair(&cq, 4), ground.queue_pair(&cq, 4));
    fill(&mut b, &pool, 4);
    let (mut a, mut b) = join(a, b, &ground.options());
    // More than the queues are deep: forgotten completions free their places all the same.
    let mut leaked = 0;
    for round in 0..12 {
        let sends = a.send_queue();
        let mut batch = sends.batch::<2>();
        batch.push(Send::new(pool.take().expect("a buffer"))).expect("room");
        forget(batch);
        leaked += 1;
        sends.post(Send::new(Inline(b"message")).wr_id(100).signaled()).expect("room");
        let mut came = 0;
        while came < 2 {
            let mut drain = cq.poll().expect("the queue can be polled");
            while let Some(completion) = drain.next() {
                came += 1;
                assert_eq!(completion.status(), WcStatus::SUCCESS);
                if round % 2 == 0 {
                    leaked += usize::from(completion.wr_id() != 100);
                    forget(completion);
                }
            }
            forget(drain);
        }
        let receive = Receive::new(pool.take().expect("a buffer"));
        b.recv_queue().post(receive).expect("room");
    }
    let mut batch = b.recv_queue().batch::<1>();
    let full = batch.push(Receive::new(pool.take().expect("a buffer"))).expect_err("it is full");
    assert!(matches!(full.refusal, Refusal::Full { .. }), "{full}");
    forget(full);
    leaked += 1;
    drop(batch);
    drop((a, b));
    completions(&mut cq, 4);
    assert_eq!(pool.available(), pool.count() - leaked);
    assert_eq!(cq.strays(), 0);
}

/// A queue pair that is forgotten keeps what is posted, and all that it stands on.
fn handles_with_work_in_flight() {
    let ground = ground();
    let pool = Pool::new(&ground.pd, 64, 32).expect("a pool");
    for way in 0..5 {
        let mut cq = ground.cq(64);
        let (a, mut b) = (ground.queue_pair(&cq, 4), ground.queue_pair(&cq, 4));
        fill(&mut b, &pool, 4);
        let (mut a, b) = join(a, b, &ground.options());
        a.send_queue().post(Send::new(pool.take().expect("a buffer")).signaled()).expect("room");
        completions(&mut cq, 2);
        let ((send_a, recv_a), (send_b, recv_b)) = (a.split(), b.split());
        match way {
            0 => forget((send_a, recv_b)),
            1 => forget((recv_a, send_b)),
            2 => forget((send_a, recv_a, send_b, recv_b)),
            3 => forget((send_b, cq)),
            _ => {
                drop((send_a, recv_a, send_b, recv_b));
                forget(cq);
            }
        }
    }
    forget(pool);
}

fn every_state() {
    let ground = ground();
    let cq = ground.cq(256);
    let (send, recv) = (&cq, &cq);
    forget(QueuePair::rc(&ground.pd, send, recv).build().expect("a queue pair"));
    forget(ground.queue_pair(&cq, 4));
    let (a, b) = (ground.queue_pair(&cq, 4), ground.queue_pair(&cq, 4));
    let peer = b.endpoint(&ground.options()).expect("an address");
    forget(a.ready_to_receive(&peer, &ground.options()).expect("to RTR"));
    forget(join(b, ground.queue_pair(&cq, 4), &ground.options()));
    let zero = Endpoint { gid: None, ..peer };
    let failed = ground.queue_pair(&cq, 4).connect(&zero, &ground.options());
    forget(failed.expect_err("a zero GID"));
    drop(cq);
}

fn queues_and_channels() {
    let ground = ground();
    let channel = CompletionChannel::new(&ground.context).expect("a channel");
    let make =
        || CompletionQueue::builder(&ground.context, 8).channel(&channel).build().expect("a CQ");
    let (mut kept, mut lost) = (make(), make());
    forget(lost.arm(Notify::Any).expect("armed"));
    forget(lost);
    let pool = Pool::new(&ground.pd, 64, 4).expect("a pool");
    let mut a = ground.queue_pair(&kept, 4);
    fill(&mut a, &pool, 1);
    forget(kept.arm(Notify::Any).expect("armed"));
    a.close().expect("to ERR");
    let woken = kept.wait(Notify::Any, Duration::from_secs(2)).expect("it can be waited for");
    assert!(!woken.is_empty());
    forget(woken);
    completions(&mut kept, 1);
    forget(channel.clone());
    drop((a, kept, channel));
}

fn memory_and_parents() {
    let ground = ground();
    let pool = Pool::new(&ground.pd, 64, 4).expect("a pool");
    let buffer = pool.take().expect("a buffer");
    let shared = pool.take().expect("a buffer").freeze();
    forget((buffer, shared.slice(1..3).expect("inside")));
    assert!(shared.try_unfreeze().map(forget).is_err(), "a part of it was forgotten");
    assert_eq!(pool.available(), 2);
    drop(pool);
    let exposed = Exposed::new(&ground.pd, 4096, everything()).expect("memory");
    forget(exposed.range(0, 8).expect("inside"));
    let refused = exposed.revoke().expect_err("a range of it was forgotten");
    forget(refused);
    let exposed = Exposed::new(&ground.pd, 4096, everything()).expect("memory");
    forget(exposed.revoke().expect("nobody has a range of it"));
    forget(Exposed::new(&ground.pd, 4096, everything()).expect("memory"));
    forget(ground.context.subscribe().expect("a queue of events"));
    let Ground { context, pd, row: _ } = ground;
    forget((pd, context));
}
