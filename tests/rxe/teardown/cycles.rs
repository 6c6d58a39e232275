//! Everything made and dropped many times, in random order: nothing is left.

use std::fs;
use std::process::Command;

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{CompletionChannel, CompletionQueue, Exposed, Pool, ProtectionDomain};

use crate::rc::{Ground, everything, join};
use crate::rig::{Rig, alone};
use crate::seed::Random;

const CYCLES: u32 = 1000;

/// Numbers of this process from `/proc/self`: open descriptors, locked memory, pinned memory.
fn held() -> (usize, String, String) {
    let status = fs::read_to_string("/proc/self/status").expect("it can be read");
    let line = |name| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.expect("the kernel tells it").to_string()
    };
    // One of them is that of the directory itself.
    let descriptors = fs::read_dir("/proc/self/fd").expect("it can be read").count();
    (descriptors, line("VmLck:"), line("VmPin:"))
}

/// What there is of a device, as `rdma resource` counts it.
pub(crate) fn resources(device: &str) -> String {
    let output = Command::new("/bin/rdma").args(["resource", "show", device]).output();
    let output = output.expect("/bin/rdma");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("it is text")
}

#[test]
fn a_thousand_in_random_order() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let first = Ground::new(&rig);
    let (context, row) = (first.context.clone(), first.row);
    drop(first);
    let idle = resources(&rig.device);
    let before = held();
    let mut random = Random::new("teardown::cycles");
    for cycle in 0..CYCLES {
        // Every eighth with a context of its own, which costs more than all the rest.
        let context = if cycle % 8 == 0 { rig.open() } else { context.clone() };
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let ground = Ground { context, row, pd };
        let channel = CompletionChannel::new(&ground.context).expect("a channel");
        let builder = CompletionQueue::builder(&ground.context, 32);
        let cq = builder.channel(&channel).build().expect("a CQ");
        let pool = Pool::new(&ground.pd, 4096, 8).expect("a pool");
        let exposed = Exposed::new(&ground.pd, 4096, everything()).expect("memory");
        let (mut a, mut b) = (ground.queue_pair(&cq, 4), ground.queue_pair(&cq, 4));
        for _ in 0..random.below(4) {
            let memory = pool.take().expect("a buffer");
            b.recv_queue().post(Receive::new(memory)).expect("room");
        }
        let range = exposed.range(0, 64).expect("inside");
        a.recv_queue().post(Receive::new(range)).expect("room");
        let mut pieces: Vec<Box<dyn std::any::Any>> = Vec::new();
        if cycle % 4 == 0 {
            // An early `?`: never connected.
            pieces.extend([Box::new(a) as Box<dyn std::any::Any>, Box::new(b)]);
        } else {
            let (mut a, b) = join(a, b, &ground.options());
            let memory = pool.take().expect("a buffer").freeze();
            a.send_queue().post(Send::new(memory.clone())).expect("room");
            let (send, recv) = b.split();
            pieces.extend([Box::new(a) as Box<dyn std::any::Any>, Box::new(send), Box::new(recv)]);
            pieces.push(Box::new(memory));
        }
        let Ground { context, pd, row: _ } = ground;
        pieces.extend([Box::new(context) as Box<dyn std::any::Any>, Box::new(pd)]);
        pieces.extend([Box::new(channel) as Box<dyn std::any::Any>, Box::new(cq)]);
        pieces.extend([Box::new(pool) as Box<dyn std::any::Any>, Box::new(exposed)]);
        while !pieces.is_empty() {
            drop(pieces.swap_remove(random.below(pieces.len() as u32) as usize));
        }
    }
    assert_eq!(held(), before);
    assert_eq!(resources(&rig.device), idle);
    assert_eq!(context.leaks(), 0);
}
