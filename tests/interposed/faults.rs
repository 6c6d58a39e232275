//! What the interposer can be told to do: its `rdma_fault_*` functions, found at run time.
//!
//! Verbs are named as in C (`ibv_post_send`). Unknown names panic. Pointers to C objects are looked up
//! and not followed, so that any is safe to give.

#![allow(unsafe_code)] // Calls functions that are known by name only.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Functions of the interposer, by their names.
macro_rules! control {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        fn $name($($arg: $type),*) -> $ret {
            let name = concat!(stringify!($name), "\0");
            let found = find(CStr::from_bytes_with_nul(name.as_bytes()).expect("one NUL"));
            type Function = extern "C" fn($($type),*) -> $ret;
            // SAFETY: the interposer's `control` has a function of this name and type.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            function($($arg),*)
        }
    )*};
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!found.is_null(), "the interposer is not preloaded: run the test of this name outside");
    found
}

control! {
    fn rdma_fault_fail(verb: *const c_char, errno: c_int, every: c_int, times: c_int) -> c_int;
    fn rdma_fault_post(verb: *const c_char, mode: c_int, at: c_int, errno: c_int, times: c_int) -> c_int;
    fn rdma_fault_reset() -> ();
    fn rdma_fault_push(cq: *mut c_void, wc: *const Wc) -> c_int;
    fn rdma_fault_spoil(what: *const c_char, value: u64, count: c_int) -> c_int;
    fn rdma_fault_hold(hold: c_int) -> ();
    fn rdma_fault_release(count: c_int) -> c_int;
    fn rdma_fault_stall(stall: c_int) -> ();
    fn rdma_fault_step(count: c_int) -> c_int;
    fn rdma_fault_raise(device: *const c_char, kind: c_int, element: u64) -> c_int;
    fn rdma_fault_wake(cq: *mut c_void) -> c_int;
    fn rdma_fault_break(qp: *mut c_void) -> c_int;
    fn rdma_fault_recv_in_err_vanishes(vanishes: c_int) -> ();
    fn rdma_fault_no_atomics(none: c_int) -> ();
    fn rdma_fault_clock(ticks: u64) -> u64;
    fn rdma_fault_no_clock(none: c_int) -> ();
    fn rdma_fault_memory_limit(bytes: u64) -> ();
    fn rdma_fault_gid_move(from: c_int, to: c_int) -> c_int;
    fn rdma_fault_count(verb: *const c_char) -> i64;
    fn rdma_fault_live(kind: *const c_char) -> i64;
    fn rdma_fault_nth(kind: *const c_char, number: c_int) -> *mut c_void;
    fn rdma_fault_touch_all(byte: u8, read: *mut u64) -> u64;
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL in a name")
}

fn known(gave: c_int, name: &str) {
    assert_eq!(gave, 0, "the interposer knows no {name}");
}

/// Takes back every fault, lets go of what is held or stands still, counts calls from 0.
pub(crate) fn reset() {
    rdma_fault_reset();
}

/// The next call of a verb fails with this errno.
pub(crate) fn fail(verb: &str, errno: c_int) {
    fail_every(verb, errno, 1, Some(1));
}

/// Every `every`th call of a verb from now on fails, `times` times in all, or always. `ibv_poll_cq`
/// gives the errno negated.
pub(crate) fn fail_every(verb: &str, errno: c_int, every: u32, times: Option<u32>) {
    let times = times.map_or(-1, |times| times as c_int);
    known(rdma_fault_fail(c(verb).as_ptr(), errno, every as c_int, times), verb);
}

/// How a post fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Post {
    /// This work request of the chain, from 0, is refused and named; those before it are taken.
    RefuseAt(u32),
    /// All are taken, and none is named.
    TakenUnnamed,
    /// None is taken, and none is named.
    LostUnnamed,
    /// All are taken, and one is named that is not in the chain.
    TakenForeign,
    /// None is taken, and one is named that is not in the chain.
    LostForeign,
    /// Those before this one are taken, and none is named.
    TakenBefore(u32),
}

/// The next `times` calls of `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv` or `wr_complete` fail like this;
/// only of chains that have the work request to refuse. The last names none.
pub(crate) fn fail_post(verb: &str, how: Post, errno: c_int, times: u32) {
    let (mode, at) = match how {
        Post::RefuseAt(at) => (0, at as c_int),
        Post::TakenUnnamed => (1, 0),
        Post::LostUnnamed => (2, 0),
        Post::TakenForeign => (3, 0),
        Post::LostForeign => (4, 0),
        Post::TakenBefore(at) => (5, at as c_int),
    };
    known(rdma_fault_post(c(verb).as_ptr(), mode, at, errno, times as c_int), verb);
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// Puts a completion into a completion queue of `loop0`, whatever it says.
pub(crate) fn push(cq: *mut c_void, wc: &Wc) {
    known(rdma_fault_push(cq, wc), "such completion queue");
}

/// The next `count` completions say `value` in this field of C's: `wr_id`, `status`, `opcode`, `byte_len`,
/// `imm_data`, `qp_num`, `wc_flags`.
pub(crate) fn spoil(field: &str, value: u64, count: u32) {
    known(rdma_fault_spoil(c(field).as_ptr(), value, count as c_int), field);
}

/// The next completion comes so many times; 0: it never comes.
pub(crate) fn copies(copies: u64) {
    spoil("copies", copies, 1);
}

/// Holds completions back from now on, their work being done; or lets all go.
pub(crate) fn hold(hold: bool) {
    rdma_fault_hold(hold.into());
}

/// Lets the oldest completions go that are held back. Gives their number.
pub(crate) fn release(count: u32) -> u32 {
    rdma_fault_release(count as c_int) as u32
}

/// Carries out no work from now on; or goes on.
pub(crate) fn stall(stall: bool) {
    rdma_fault_stall(stall.into());
}

/// Carries out so many sends while all stands still. Gives their number.
pub(crate) fn step(count: u32) -> u32 {
    rdma_fault_step(count as c_int) as u32
}

/// Raises an asynchronous event on the open contexts of a device, or of all. `element` is a port or the
/// address of C's object, as the event's number says. Gives the number of contexts.
pub(crate) fn raise(device: Option<&str>, kind: c_int, element: u64) -> u32 {
    let device = device.map(c);
    let name = device.as_ref().map_or(null(), |device| device.as_ptr());
    let raised = rdma_fault_raise(name, kind, element);
    u32::try_from(raised).expect("a device of the interposer")
}

/// A completion queue tells its channel, though nothing completed.
pub(crate) fn wake(cq: *mut c_void) {
    known(rdma_fault_wake(cq), "such completion queue");
}

/// A queue pair fails by itself, and flushes its work; the library is not told.
pub(crate) fn break_qp(qp: *mut c_void) {
    known(rdma_fault_break(qp), "such queue pair");
}

/// As on rxe, a receive that is posted in ERR never comes back.
pub(crate) fn recv_in_err_vanishes(vanishes: bool) {
    rdma_fault_recv_in_err_vanishes(vanishes.into());
}

/// Devices that are opened from now on say that they have no atomics.
pub(crate) fn no_atomics(none: bool) {
    rdma_fault_no_atomics(none.into());
}

/// Sets the devices' clocks, which count up to 48 bits and go on by 100 with each completion.
pub(crate) fn clock(ticks: u64) {
    rdma_fault_clock(ticks);
}

/// Devices say from now on that they have no clock.
pub(crate) fn no_clock(none: bool) {
    rdma_fault_no_clock(none.into());
}

/// How many bytes can be registered in all; more is `ENOMEM`.
pub(crate) fn memory_limit(bytes: u64) {
    rdma_fault_memory_limit(bytes);
}

/// Moves a row of the GID table of `loop0`, with an event for each of the two; beyond the table (16 rows) it
/// is gone.
pub(crate) fn gid_move(from: u32, to: u32) {
    known(rdma_fault_gid_move(from as c_int, to as c_int), "such row");
}

/// How often a verb was called since the last reset. The data path of `empty0` is not counted.
pub(crate) fn count(verb: &str) -> u64 {
    u64::try_from(rdma_fault_count(c(verb).as_ptr())).expect("a verb's name")
}

/// How many there are of one kind: `device_list`, `context`, `pd`, `mr`, `channel`, `cq`, `qp`, `srq`, `ah`,
/// `mw`, `held`, `mr_bytes`, and `orphan`: what was there when its context was closed.
pub(crate) fn live(kind: &str) -> u64 {
    u64::try_from(rdma_fault_live(c(kind).as_ptr())).expect("a kind of object")
}

/// How many there are of everything that is there, by kind; empty when nothing leaked.
pub(crate) fn all_live() -> Vec<(&'static str, u64)> {
    let kinds = [
        "context",
        "pd",
        "mr",
        "mr_bytes",
        "channel",
        "cq",
        "qp",
        "srq",
        "ah",
        "mw",
        "device_list",
    ];
    kinds.map(|kind| (kind, live(kind))).into_iter().filter(|(_, count)| *count > 0).collect()
}

/// C's pointer to an object (`context`, `pd`, `mr`, `channel`, `cq`, `qp`, `srq`, `ah`, `mw`): the one of this
/// number, in the order in which those that are there were made.
pub(crate) fn nth(kind: &str, number: u32) -> *mut c_void {
    let found = rdma_fault_nth(c(kind).as_ptr(), number as c_int);
    assert!(!found.is_null(), "there is no {kind} number {number}");
    found
}

/// What the device did to memory that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touched {
    pub(crate) written: u64,
    pub(crate) read: u64,
}

/// The device writes `byte` all over the memory of every receive, read and atomic that it has not told
/// the end of, and reads that of every other send: what was let go of too early shows.
pub(crate) fn touch_all(byte: u8) -> Touched {
    let mut read = 0;
    let written = rdma_fault_touch_all(byte, &mut read);
    Touched { written, read }
}

/// Nothing to point at.
pub(crate) const NOWHERE: *mut c_void = null_mut();
