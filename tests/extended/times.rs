//! The device's time of each completion.

use std::time::Duration;

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{Calls, Capability, CompletionQueue, DeviceTime, Error, WcStatus};

use crate::interposed::rig::{Rig, assert_nothing_is_left, forget, open};
use crate::interposed::{faults, interposed, leaks_on_purpose};

/// What the clock goes on by with each completion that the device makes.
const TICKS: u64 = 100;

/// The number, status and time of each completion that one poll gives.
fn times(cq: &mut CompletionQueue) -> Vec<(u64, WcStatus, Option<u64>)> {
    let mut drain = cq.poll().expect("it can be polled");
    let mut all = Vec::new();
    while let Some(completion) = drain.next() {
        let time = completion.timestamp().map(DeviceTime::ticks);
        all.push((completion.wr_id(), completion.status(), time));
    }
    all
}

const OK: WcStatus = WcStatus::SUCCESS;

interposed! {
    /// Of each that the device made and carried out, in the order in which it did; of no other.
    fn each_has_its_own() {
        let mut rig = Rig::new().timed();
        assert_eq!(rig.cq.calls(), Calls::Extended);
        let (mut a, mut b) = rig.pair();
        for wr_id in 20..24 {
            b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
        }
        faults::clock(5_000);
        let sends = a.send_queue();
        sends.post(Send::new(rig.filled(b"one")).wr_id(1)).expect("room");
        sends.post(Send::new(rig.filled(b"two")).wr_id(2).signaled()).expect("room");
        let mut seen = times(&mut rig.cq);
        seen.sort_by_key(|seen| seen.0);
        let [(1, OK, None), (2, OK, Some(sent)), (20, OK, Some(first)), (21, OK, Some(second))] = seen[..] else {
            panic!("{seen:?}")
        };
        let mut all = [sent, first, second];
        all.sort();
        assert_eq!(all, [5_000 + TICKS, 5_000 + 2 * TICKS, 5_000 + 3 * TICKS], "each its own");
        assert!(first < second);
        let now = rig.context.device_time().expect("it has a clock");
        assert_eq!(now.ticks(), 5_000 + 3 * TICKS, "it stands still meanwhile");
        // What was not carried out has none, whether the device tells it or this crate.
        b.close().expect("to the error state");
        assert_eq!(times(&mut rig.cq), [(22, WcStatus::WR_FLUSH_ERR, None), (23, WcStatus::WR_FLUSH_ERR, None)]);
        drop((a, b));
        rig.end();
    }

    /// Whatever part of a batch is looked at, forgotten, or left for the next poll.
    fn of_the_right_one() {
        // The memory of what is forgotten.
        leaks_on_purpose();
        for batch in [1, 2, 3, 7, 16, 256] {
            let mut rig = Rig::new();
            let made = CompletionQueue::builder(&rig.context, 1023).timestamps(true).batch(batch);
            rig.cq = made.build().expect("a CQ");
            let (mut a, mut b) = rig.pair();
            faults::clock(0);
            for wr_id in 0..12 {
                b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
                a.send_queue().post(Send::new(()).wr_id(100)).expect("room");
            }
            let mut expected = 0;
            while expected < 12 {
                let mut drain = rig.cq.poll().expect("it can be polled");
                let mut looked = 0;
                while let Some(completion) = drain.next() {
                    let time = completion.timestamp().map(DeviceTime::ticks);
                    if completion.opcode().is_receive() {
                        assert_eq!(completion.wr_id(), expected, "batches of {batch}");
                        // Nobody else completes: sends do so silently, one in eight.
                        let time = time.expect("the device made it");
                        assert!(time > expected * TICKS && time <= (expected + 3) * TICKS, "{time}");
                        expected += 1;
                    } else {
                        assert_eq!(time.is_none(), completion.is_silent());
                    }
                    looked += 1;
                    if looked % 3 == 2 {
                        forget(completion);
                    }
                    if looked % 5 == 4 {
                        break;
                    }
                }
            }
            drop((a, b));
            while rig.cq.poll().expect("it can be polled").next().is_some() {}
            assert_eq!(rig.cq.strays(), 0);
        }
    }

    fn a_clock_that_comes_round() {
        let mut rig = Rig::new().timed();
        let (mut a, mut b) = rig.pair();
        let limits = rig.context.limits().clone();
        assert_eq!((limits.completion_timestamp_mask, limits.hca_core_clock_khz), ((1 << 48) - 1, 156_250));
        faults::clock((1 << 48) - 2 * TICKS);
        let before = rig.context.device_time().expect("it has a clock");
        for wr_id in 0..3 {
            b.recv_queue().post(Receive::new(()).wr_id(wr_id)).expect("room");
            a.send_queue().post(Send::new(())).expect("room");
        }
        let times: Vec<_> = times(&mut rig.cq).iter().filter_map(|seen| seen.2).collect();
        assert_eq!(times, [(1 << 48) - TICKS, 0, TICKS]);
        for (number, time) in (1..).zip(times) {
            let time = DeviceTime::from_ticks(time);
            assert_eq!(limits.ticks_between(before, time), Some(number * TICKS));
            let nanoseconds = number * TICKS * 1_000_000 / 156_250;
            assert_eq!(limits.time_between(before, time), Some(Duration::from_nanos(nanoseconds)));
        }
    }

    fn a_device_without_a_clock() {
        faults::no_clock(true);
        let context = open("loop0");
        let error = CompletionQueue::builder(&context, 16).timestamps(true).build().expect_err("none");
        assert!(matches!(error, Error::Unsupported { what: Capability::CompletionTimestamps, .. }), "{error}");
        assert_eq!(error.to_string(), "loop0 has no completion timestamps");
        assert_eq!(faults::count("ibv_create_cq_ex"), 0, "the device is not asked");
        let error = context.device_time().expect_err("none");
        assert_eq!(error.to_string(), "loop0 has no clock that can be read");
        // The calls themselves it has.
        let made = CompletionQueue::builder(&context, 16).calls(Calls::Extended).build();
        assert_eq!(made.expect("a CQ").calls(), Calls::Extended);
        faults::no_clock(false);
        faults::fail("query_rt_values", libc::EIO);
        let error = open("loop0").device_time().expect_err("it fails");
        assert_eq!(error.to_string(), "ibv_query_rt_values_ex on loop0: EIO (5): Input/output error");
        drop(context);
        assert_nothing_is_left();
    }
}
