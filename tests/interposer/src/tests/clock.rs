//! The devices' clocks.

use super::polling::*;
use super::rig::*;
use crate::abi::*;
use crate::clock::MASK;
use crate::control::*;

/// What it gave, what it says was filled in, and what it filled in.
fn values(context: *mut ibv_context, comp_mask: u32) -> (i32, u32, u64) {
    let raw_clock = libc::timespec { tv_sec: 5, tv_nsec: 5 };
    let mut values = ibv_values_ex { comp_mask, raw_clock };
    let query = extended(context).query_rt_values.expect("an operation");
    // SAFETY: the context is open, and there is room for the values.
    let gave = unsafe { query(context, &mut values) };
    let raw = values.raw_clock;
    assert!(raw.tv_sec == 0 || raw.tv_nsec == 5, "ticks, and no time of day");
    (gave, values.comp_mask, raw.tv_nsec as u64)
}

/// The mask and the frequency.
fn told(context: *mut ibv_context) -> (u64, u64) {
    // SAFETY: all zero is a value of this struct of integers.
    let mut attr: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    let query = extended(context).query_device_ex.expect("an operation");
    let size = size_of::<ibv_device_attr_ex>();
    // SAFETY: the context is open, and there is room for so much.
    assert_eq!(unsafe { query(context, std::ptr::null(), &mut attr, size) }, 0);
    (attr.completion_timestamp_mask, attr.hca_core_clock)
}

/// The times of all completions there are.
fn times(cq: *mut ibv_cq_ex) -> Vec<u64> {
    let mut found = Vec::new();
    let mut gave = start(cq);
    while gave == 0 {
        found.push(call!(cq, read_completion_ts));
        gave = call!(cq, next_poll);
    }
    if !found.is_empty() {
        call!(cq, end_poll);
    }
    found
}

#[test]
fn a_completion_has_the_time_at_which_it_came() {
    let rig = Rig::new();
    assert_eq!(told(rig.context), (MASK, 156_250));
    let cq = make(rig.context, 15, tells::COMPLETION_TIMESTAMP);
    rdma_fault_clock(5000);
    push(cq, 1, 0);
    push(cq, 2, 0);
    assert_eq!(values(rig.context, 1), (0, 1, 5200));
    assert_eq!(values(rig.context, 1), (0, 1, 5200), "it stands still");
    // That of another queue takes time, too.
    push(rig.cq.cast(), 3, 0);
    assert_eq!(rig.poll().len(), 1);
    push(cq, 4, 0);
    assert_eq!(times(cq), [5100, 5200, 5400]);
    assert_eq!(rdma_fault_clock(MASK - 150), 5400);
    for n in 0..3 {
        push(cq, n, 0);
    }
    assert_eq!(times(cq), [MASK - 50, 49, 149]);
    assert_eq!(values(rig.context, 1), (0, 1, 149));
}

#[test]
fn a_clock_that_cannot_be_read() {
    let rig = Rig::new();
    assert_eq!(values(rig.context, 0), (0, 0, 5), "nothing was asked for");
    assert_eq!(values(rig.context, 3), (libc::EOPNOTSUPP, 3, 5));
    fail("query_rt_values", libc::EIO, 1, 1);
    assert_eq!(values(rig.context, 1), (libc::EIO, 1, 5));
    assert_eq!(values(rig.context, 1).0, 0);
    assert_eq!(count("ibv_query_rt_values"), 4);
    rdma_fault_no_clock(1);
    assert_eq!(told(rig.context), (0, 0));
    assert_eq!(values(rig.context, 1).0, libc::EOPNOTSUPP);
}

#[test]
fn the_empty_device_has_a_clock() {
    let rig = Rig::new();
    let context = open(1);
    assert_eq!(told(context), (MASK, 156_250));
    rdma_fault_clock(u64::MAX);
    assert_eq!(values(context, 1), (0, 1, MASK));
    let cq = make(context, 7, tells::ALL);
    let read = [(); 2].map(|()| call!(cq, read_completion_ts));
    assert_eq!(read, [99, 199]);
    assert_eq!(values(context, 1), (0, 1, 199));
    assert_eq!(crate::cq::ibv_destroy_cq(cq.cast()), 0);
    assert_eq!(crate::context::ibv_close_device(context), 0);
    drop(rig);
}
