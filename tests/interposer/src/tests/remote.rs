//! Writes, reads and atomics on a peer's memory, and what it does not grant.

use super::rig::*;
use crate::abi::{atomic, ibv_sge};
use crate::memory::{ibv_dereg_mr, ibv_reg_mr};
use crate::numbers::{access, state, status, wc, wr as op};

#[test]
fn a_write_and_a_read() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    rig.write(0, b"out");
    let there = rig.address(SIZE + 100);
    post_send(a, rdma_wr(1, op::RDMA_WRITE, &[rig.sge(0, 3)], there, rig.rkey()));
    assert_eq!(rig.read(SIZE + 100, 4), b"out\0");
    let sges = [rig.sge(SIZE, 1), rig.sge(SIZE + 1, 2)];
    post_send(b, rdma_wr(2, op::RDMA_READ, &sges, rig.address(0), rig.rkey()));
    assert_eq!(rig.read(SIZE, 3), b"out");
    let told = rig.poll();
    assert_eq!((told[0].opcode, told[1].opcode), (wc::RDMA_WRITE, wc::RDMA_READ));
    assert_eq!(told[1].byte_len, 3);
}

fn atomic_wr(rig: &Rig, opcode: u32, sges: &[ibv_sge], remote: u64, values: (u64, u64)) -> SendWr {
    let mut wr = send_wr(1, sges);
    wr.opcode = opcode;
    let (compare_add, swap) = values;
    wr.wr.atomic = atomic { remote_addr: remote, compare_add, swap, rkey: rig.rkey() };
    wr
}

#[test]
fn atomics_give_what_was_there() {
    let rig = Rig::new();
    let [a, _] = rig.qps;
    let value = |offset| u64::from_ne_bytes(rig.read(offset, 8).try_into().expect("8 bytes"));
    rig.write(SIZE, &5_u64.to_ne_bytes());
    let there = rig.address(SIZE);
    for (opcode, values, before, after) in [
        (op::FETCH_AND_ADD, (3, 0), 5, 8),
        (op::CMP_AND_SWP, (7, 1), 8, 8),
        (op::CMP_AND_SWP, (8, 1), 8, 1),
        (op::FETCH_AND_ADD, (u64::MAX, 0), 1, 0),
    ] {
        let sges = [rig.sge(0, 4), rig.sge(4, 4)];
        post_send(a, atomic_wr(&rig, opcode, &sges, there, values));
        assert_eq!((value(0), value(SIZE)), (before, after));
    }
    let told: Vec<_> = rig.poll().iter().map(|wc| (wc.opcode, wc.byte_len)).collect();
    assert_eq!(told[..2], [(wc::FETCH_ADD, 8), (wc::COMP_SWAP, 8)]);
}

#[test]
fn an_atomic_that_is_not_aligned_fails() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    let there = rig.address(SIZE + 4);
    post_send(a, atomic_wr(&rig, op::FETCH_AND_ADD, &[rig.sge(0, 8)], there, (1, 0)));
    assert_eq!(rig.polled(), [(1, status::REM_INV_REQ_ERR, 0)]);
    assert_eq!((state_of(a), state_of(b)), (state::ERR, state::ERR));
}

#[test]
fn what_is_not_granted_is_refused() {
    let half = SIZE as u32;
    // What is asked for: opcode, offset, length, what is added to the key.
    for (opcode, offset, length, key) in [
        (op::RDMA_WRITE, SIZE + 1, half, 0),
        (op::RDMA_READ, SIZE + 1, half, 0),
        (op::RDMA_WRITE, SIZE, 1, 1),
        (op::RDMA_READ, SIZE, 1, 256),
        (op::RDMA_WRITE, usize::MAX, 1, 0),
    ] {
        let rig = Rig::new();
        let [a, b] = rig.qps;
        let remote = rig.address(0).wrapping_add(offset as u64);
        let rkey = rig.rkey().wrapping_add(key);
        post_send(a, rdma_wr(1, opcode, &[rig.sge(0, length)], remote, rkey));
        assert_eq!(rig.polled(), [(1, status::REM_ACCESS_ERR, 0)], "{opcode} {offset} {length}");
        assert_eq!((state_of(a), state_of(b)), (state::ERR, state::ERR));
        assert_eq!(super::control::events(&rig), [(3, b.addr() as u64)]);
    }
}

#[test]
fn a_local_key_of_another_region_or_none_is_refused() {
    let rig = Rig::new();
    let [a, _] = rig.qps;
    let mut sge = rig.sge(0, 1);
    sge.lkey = rig.rkey();
    post_send(a, send_wr(1, &[sge]));
    assert_eq!(rig.polled(), [(1, status::LOC_PROT_ERR, 0)]);
}

#[test]
fn the_rights_are_those_of_the_region_and_of_the_queue_pair() {
    let rig = Rig::unconnected();
    let [a, b] = rig.qps;
    let mut attr = attributes(a);
    attr.qp_access_flags = access::REMOTE_READ;
    connect(a, b);
    assert_eq!(modify(b, &attr, state::INIT, TO_INIT), 0);
    assert_eq!(modify(b, &attr, state::RTR, TO_RTR), 0);
    post_send(a, rdma_wr(1, op::RDMA_READ, &[rig.sge(0, 1)], rig.address(SIZE), rig.rkey()));
    post_send(a, rdma_wr(2, op::RDMA_WRITE, &[rig.sge(0, 1)], rig.address(SIZE), rig.rkey()));
    assert_eq!(rig.polled(), [(1, 0, wc::RDMA_READ), (2, status::REM_ACCESS_ERR, 0)]);
}

#[test]
fn memory_is_the_devices_until_it_is_deregistered() {
    let rig = Rig::new();
    let [a, b] = rig.qps;
    assert!(ibv_reg_mr(rig.pd, rig.memory.cast(), 0, 1).is_null());
    assert!(ibv_reg_mr(rig.pd, rig.memory.cast(), 8, access::REMOTE_WRITE as i32).is_null());
    assert!(ibv_reg_mr(rig.pd, std::ptr::without_provenance_mut(4096), 8, 1).is_null(), "unmapped");
    let second = ibv_reg_mr(rig.pd, rig.memory.cast(), 8, access::LOCAL_WRITE as i32);
    // SAFETY: just made.
    let (lkey, rkey) = unsafe { ((*second).lkey, (*second).rkey) };
    assert_eq!(rkey, 0);
    assert_eq!(live("mr_bytes"), SIZE as i64 * 2 + 8);
    let mut sge = rig.sge(0, 8);
    sge.lkey = lkey;
    assert_eq!(post_recv(b, 1, &mut [sge]), 0);
    assert_eq!(ibv_dereg_mr(second), 0, "with a receive on it");
    post_send(a, send_wr(2, &[rig.sge(100, 4)]));
    assert_eq!(rig.polled(), [(1, status::LOC_PROT_ERR, 0), (2, status::REM_OP_ERR, 0)]);
}
