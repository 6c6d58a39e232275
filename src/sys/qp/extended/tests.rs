//! Posting on a queue pair made by hand: what a provider is called by, and what its failures come to. That real
//! ones do what is asked is seen on rxe.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use super::*;
use crate::sys::abi::{ibv_ah, rdma, ud, wr};

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(call: impl Into<String>) {
    CALLS.with_borrow_mut(|calls| calls.push(call.into()));
}

fn calls() -> Vec<String> {
    CALLS.take()
}

unsafe extern "C" fn start(_: *mut ibv_qp_ex) {
    note("start");
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    note("complete");
    // SAFETY: the test's own; a context is nowhere looked at, so this is where it says what to answer.
    unsafe { (*qp).qp.handle as c_int }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the test's own.
    unsafe { note(format!("send {} flags {}", (*qp).wr_id, (*qp).wr_flags)) }
}

unsafe extern "C" fn write(_: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    note(format!("write {rkey} {addr}"));
}

unsafe extern "C" fn address(_: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    note(format!("to {} {qpn} {qkey}", ah.addr()));
}

unsafe extern "C" fn sge(_: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    note(format!("sge {lkey} {addr} {length}"));
}

unsafe extern "C" fn sges(_: *mut ibv_qp_ex, count: usize, _: *const ibv_sge) {
    note(format!("{count} sges"));
}

unsafe extern "C" fn inline(_: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    note(format!("inline {} {length}", addr.addr()));
}

unsafe extern "C" fn inlines(_: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: there are so many.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    let list: Vec<_> = list.iter().map(|buf| (buf.addr.addr(), buf.length)).collect();
    note(format!("inline {list:?}"));
}

unsafe extern "C" fn plain(
    _: *mut ibv_qp,
    chain: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    note("plain");
    // SAFETY: as C's.
    unsafe { bad.write((*chain).next) };
    libc::ENOMEM
}

/// With sends, writes and all setters; `wr_complete` answers this.
fn fake(answer: c_int) -> Box<ibv_qp_ex> {
    // SAFETY: zero is a value of every field: integers, pointers, absent functions, a mutex that nobody locks.
    let mut fake: Box<ibv_qp_ex> = Box::new(unsafe { std::mem::zeroed() });
    fake.qp.handle = answer as u32;
    fake.wr_start = Some(start);
    fake.wr_complete = Some(complete);
    fake.wr_send = Some(send);
    fake.wr_rdma_write = Some(write);
    fake.wr_set_ud_addr = Some(address);
    fake.wr_set_sge = Some(sge);
    fake.wr_set_sge_list = Some(sges);
    fake.wr_set_inline_data = Some(inline);
    fake.wr_set_inline_data_list = Some(inlines);
    fake
}

fn request(opcode: u32, flags: u32, list: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: zero is a value of every field.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = 7;
    request.opcode = opcode;
    request.send_flags = flags;
    request.sg_list = list.as_mut_ptr();
    request.num_sge = list.len() as c_int;
    request.wr = wr { rdma: rdma { remote_addr: 0x1000, rkey: 5 } };
    request
}

fn post(
    fake: &mut ibv_qp_ex,
    all_or_nothing: bool,
    chain: *mut ibv_send_wr,
) -> (Result<(), Errno>, *mut ibv_send_wr) {
    let extended = Extended { qp: NonNull::from(fake), plain: Some(plain), all_or_nothing };
    let mut bad = null_mut();
    // SAFETY: the queue pair is the test's own, and so is the chain.
    (unsafe { extended.post(chain, &mut bad) }, bad)
}

const ENTRY: ibv_sge = ibv_sge { addr: 64, length: 3, lkey: 9 };

#[test]
fn a_chain_is_told_call_by_call() {
    let mut fake = fake(0);
    let (mut one, mut two) = ([ENTRY], [ENTRY, ENTRY]);
    let mut fourth = request(opcode::SEND, INLINE, &mut two);
    let mut third = request(opcode::SEND, INLINE | 2, &mut one);
    third.next = &mut fourth;
    let mut none = [];
    let mut second = request(opcode::RDMA_WRITE, 0, &mut none);
    second.next = &mut third;
    let mut first_list = [ENTRY];
    let mut first = request(opcode::SEND, 2, &mut first_list);
    first.next = &mut second;
    assert_eq!(post(&mut fake, false, &mut first), (Ok(()), null_mut()));
    assert_eq!(
        calls(),
        [
            "start",
            "send 7 flags 2",
            "sge 9 64 3",
            "write 5 4096",
            "0 sges",
            "send 7 flags 10",
            "inline 64 3",
            "send 7 flags 8",
            "inline [(64, 3), (64, 3)]",
            "complete",
        ]
    );
}

#[test]
fn a_datagram_is_told_where_to() {
    let mut fake = fake(0);
    fake.qp.qp_type = UD;
    let mut list = [ENTRY];
    let mut request = request(opcode::SEND, 0, &mut list);
    let ah = std::ptr::without_provenance_mut(77);
    request.wr = wr { ud: ud { ah, remote_qpn: 3, remote_qkey: 4 } };
    assert_eq!(post(&mut fake, false, &mut request).0, Ok(()));
    assert_eq!(calls(), ["start", "send 7 flags 0", "to 77 3 4", "sge 9 64 3", "complete"]);
}

#[test]
fn what_a_failure_comes_to() {
    let mut list = [ENTRY];
    let mut request = request(opcode::SEND, 0, &mut list);
    let chain: *mut ibv_send_wr = &mut request;
    let mut fake = fake(libc::EINVAL);
    assert_eq!(post(&mut fake, true, chain), (Err(Errno::EINVAL), chain), "nothing was taken");
    assert_eq!(post(&mut fake, false, chain), (Err(Errno::EINVAL), null_mut()), "who knows");
}

/// One that the queue pair was not made for is posted plainly, and what is chained to it.
#[test]
fn what_is_not_known_is_posted_plainly() {
    let (mut one, mut none) = ([ENTRY], []);
    let mut second = request(opcode::LOCAL_INV, 0, &mut none);
    let mut first = request(opcode::SEND, 0, &mut one);
    first.next = &mut second;
    let second: *mut ibv_send_wr = &mut second;
    calls();
    let answer = post(&mut fake(0), true, &mut first);
    assert_eq!(answer, (Err(Errno::ENOMEM), second), "as the plain call has it");
    assert_eq!(calls(), ["plain"]);
}

#[test]
fn what_every_post_calls_must_be_there() {
    // SAFETY: the test's own.
    let complete = |fake: &mut ibv_qp_ex| unsafe { is_complete(fake) };
    assert!(complete(&mut fake(0)));
    let without: [fn(&mut ibv_qp_ex); 6] = [
        |qp| qp.wr_start = None,
        |qp| qp.wr_complete = None,
        |qp| qp.wr_set_sge = None,
        |qp| qp.wr_set_sge_list = None,
        |qp| qp.wr_set_inline_data = None,
        |qp| qp.wr_set_inline_data_list = None,
    ];
    for without in without {
        let mut fake = fake(0);
        without(&mut fake);
        assert!(!complete(&mut fake));
    }
    let mut fake = fake(0);
    fake.wr_set_ud_addr = None;
    assert!(complete(&mut fake), "only datagrams have it");
    fake.qp.qp_type = UD;
    assert!(!complete(&mut fake));
}
