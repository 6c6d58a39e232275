//! The raw side: what C's inline functions do, written once more, and the processor's counter. All that is
//! `unsafe` of this example.

#![allow(unsafe_code)] // Calls C through C's structs, which is what ours is compared with.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use rdma_verbs::CompletionQueue;

use super::subject::in_eights;

/// The front of `struct ibv_cq`.
#[repr(C)]
struct Cq {
    context: *const Context,
}

/// The front of `struct ibv_context`, with its `ops`.
#[repr(C)]
struct Context {
    _device: *const c_void,
    _before: [*const c_void; 11],
    poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
}

/// `struct ibv_wc`, of which only the size counts.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Wc([u8; 48]);

/// How many completions one poll has room for, as ours.
const AT_ONCE: usize = 16;

/// Calls something so often on a completion queue, and gives 0, or what failed.
type Loop = unsafe extern "C" fn(cq: *mut c_void, solicited_only: c_int, calls: u64) -> c_int;

/// The loops over the raw calls: of this file, or of a C compiler.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    request: Loop,
    request_and_poll: Loop,
    /// What made them.
    pub(crate) made_by: &'static str,
}

impl Loops {
    /// Those of this file.
    pub(crate) const OURS: Loops =
        Loops { request: requests, request_and_poll: requests_and_polls, made_by: "rustc" };

    /// Those of C.
    ///
    /// # Safety
    ///
    /// Each does what its name says, with a completion queue (`struct ibv_cq *`) of the process's libibverbs, and
    /// polls it only after asking.
    #[allow(dead_code)] // For a bench, where there is a C compiler.
    pub(crate) const unsafe fn of_c(request: Loop, request_and_poll: Loop) -> Loops {
        Loops { request, request_and_poll, made_by: "cc" }
    }

    /// `ibv_req_notify_cq`, so often.
    pub(crate) fn request(self, cq: &mut CompletionQueue, solicited: bool, calls: u64) -> c_int {
        // SAFETY: the completion queue is live, and nobody else uses it meanwhile.
        unsafe { (self.request)(cq.as_raw().as_ptr(), solicited.into(), calls) }
    }

    /// `ibv_req_notify_cq` and `ibv_poll_cq`, so often. What is polled is lost: for an empty queue.
    pub(crate) fn request_and_poll(
        self,
        cq: &mut CompletionQueue,
        solicited: bool,
        calls: u64,
    ) -> c_int {
        // SAFETY: as above.
        unsafe { (self.request_and_poll)(cq.as_raw().as_ptr(), solicited.into(), calls) }
    }
}

/// `ibv_req_notify_cq`, once, as C's compiler puts it into its caller.
#[inline(always)]
pub(crate) fn request(cq: &mut CompletionQueue, solicited: bool) -> c_int {
    // SAFETY: the completion queue is live, and nobody else uses it meanwhile.
    unsafe { req_notify_cq(cq.as_raw().as_ptr().cast(), solicited.into()) }
}

/// `ibv_req_notify_cq` and `ibv_poll_cq`, once. What is polled is lost: for an empty queue.
#[inline(always)]
pub(crate) fn request_and_poll(cq: &mut CompletionQueue, solicited: bool) -> c_int {
    // SAFETY: the completion queue is live, and nobody else uses it meanwhile.
    unsafe { ask_and_poll(cq.as_raw().as_ptr().cast(), solicited.into()) }
}

/// # Safety
///
/// `cq` is a live completion queue.
#[inline(always)]
unsafe fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    // SAFETY: its context is open while it lives, and has every operation.
    unsafe { ((*(*cq).context).req_notify_cq)(cq, solicited_only) }
}

/// # Safety
///
/// `cq` is a live completion queue, which nobody else polls meanwhile.
#[inline(always)]
unsafe fn ask_and_poll(cq: *mut Cq, solicited_only: c_int) -> c_int {
    let mut entries = [const { MaybeUninit::<Wc>::uninit() }; AT_ONCE];
    // SAFETY: as in `req_notify_cq`; the poll writes so many entries at most.
    unsafe {
        match req_notify_cq(cq, solicited_only) {
            0 => ((*(*cq).context).poll_cq)(cq, AT_ONCE as c_int, entries.as_mut_ptr().cast()),
            failed => failed,
        }
    }
}

unsafe extern "C" fn requests(cq: *mut c_void, solicited_only: c_int, calls: u64) -> c_int {
    // SAFETY: as the caller says.
    in_eights(calls, || code(unsafe { req_notify_cq(cq.cast(), solicited_only) }))
        .err()
        .unwrap_or(0)
}

unsafe extern "C" fn requests_and_polls(
    cq: *mut c_void,
    solicited_only: c_int,
    calls: u64,
) -> c_int {
    // SAFETY: as the caller says.
    in_eights(calls, || code(unsafe { ask_and_poll(cq.cast(), solicited_only) })).err().unwrap_or(0)
}

#[inline(always)]
fn code(returned: c_int) -> Result<(), c_int> {
    if returned == 0 { Ok(()) } else { Err(returned) }
}

/// The processor's cycle counter, read when everything before it is done and before anything after it
/// begins; 0 on a processor that has none.
#[inline(always)]
pub(crate) fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has both instructions, and they touch no memory.
    unsafe {
        use std::arch::x86_64::{_mm_lfence, _rdtsc};
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}
