//! What rxe counts, and that it moves with traffic.

use std::time::Duration;

use clap::Parser;
use rdma_verbs::wr::{Inline, Receive, Send};
use rdma_verbs::{Counters, Device, Error, Pool, PortNum};

use super::devinfo_example::{Options, output};
use super::rc::{Ground, join};
use super::rig::{Rig, wait_until};

fn counted(device: &Device) -> Counters {
    let counters = device.port_hw_counters(PortNum::FIRST).expect("they can be read");
    counters.expect("rxe has some")
}

#[test]
fn packets_are_counted() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let device = ground.context.device();
    let before = counted(device);
    assert!(before.skipped().next().is_none(), "{before:?}");
    let lifespan = before.lifespan().expect("the kernel remembers for a while");
    assert!(lifespan <= Duration::from_secs(10), "{lifespan:?}");
    let of = |counters: &Counters, name: &str| {
        counters.get(name).unwrap_or_else(|| panic!("{name} in {counters:?}"))
    };
    let sent = |counters: &Counters| of(counters, "sent_pkts");
    let mut cq = ground.cq(64);
    let pool = Pool::new(&ground.pd, 64, 16).expect("a pool");
    let (a, b) = (ground.queue_pair(&cq, 16), ground.queue_pair(&cq, 16));
    let (mut a, mut b) = join(a, b, &ground.options());
    for _ in 0..8 {
        let buffer = pool.take().expect("a buffer");
        b.recv_queue().post(Receive::new(buffer)).expect("there is room");
        a.send_queue().post(Send::new(Inline(b"counted"))).expect("there is room");
    }
    let mut received = 0;
    wait_until("eight messages are there", || {
        let mut completions = cq.poll().expect("it can be polled");
        while let Some(completion) = completions.next() {
            completion.result().expect("nothing fails");
            received += usize::from(completion.opcode() == rdma_verbs::WcOpcode::RECV);
        }
        received == 8
    });
    // What is read may be as old as the lifespan.
    wait_until("the packets are counted", || {
        let now = counted(device);
        sent(&now) >= sent(&before) + 8 && of(&now, "rcvd_pkts") >= of(&before, "rcvd_pkts") + 8
    });
    // rxe has no counters of InfiniBand's own.
    if let Some(standard) = device.port_counters(PortNum::FIRST).expect("it can be looked for") {
        assert_eq!(standard.xmit_bytes(), standard.get("port_xmit_data").map(|words| 4 * words));
    }
    let printed = ["devinfo", "--counters", "-d", &*rig.device];
    let printed = output(&Options::parse_from(printed)).expect("it prints");
    assert!(
        printed.lines().any(|line| line.contains("hw_counter:") && line.contains("sent_pkts ")),
        "{printed}"
    );
}

#[test]
fn a_port_or_a_device_that_is_not_there() {
    let mut rig = Rig::new();
    let device = rig.listed();
    let error = device.port_counters(PortNum::new(2).expect("not 0")).expect_err("one port");
    assert!(matches!(error, Error::NoSuchPort { ports: 1, .. }), "{error}");
    assert!(device.hw_counters().is_ok());
    rig.remove();
    let error = device.port_hw_counters(PortNum::FIRST).expect_err("it has gone");
    assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
}
