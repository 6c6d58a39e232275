//! The functions by which a test controls all this. It finds them by `dlsym`; a program that is not
//! preloaded finds none.
//!
//! Where nothing else is said they give 0, or -1 for a name, number or pointer that is not known.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use crate::abi::{ibv_cq, ibv_wc};
use crate::clock::Clock;
use crate::cq::Cqe;
use crate::device::Kind;
use crate::empty::polling;
use crate::event::Element;
use crate::faults::{Faults, PostFault, PostMode, Spoil, What};
use crate::verbs::{Verb, Verbs};
use crate::world::world;

/// A name that a test gave; empty for NULL.
///
/// # Safety
///
/// NULL, or a text that ends with NUL.
unsafe fn text<'a>(name: *const c_char) -> &'a str {
    if name.is_null() {
        return "";
    }
    // SAFETY: not NULL, so a text.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default()
}

fn done(found: Option<()>) -> c_int {
    if found.is_some() { 0 } else { -1 }
}

/// How often something happens: less than 0 for ever.
fn times(times: c_int) -> Option<u32> {
    u32::try_from(times).ok()
}

/// Every `every`th call of a verb from now on fails with `errno`, `times` times in all (less than 0:
/// always), in the way that the verb fails. `poll_cq` gives `errno` negated, `start_poll` and `next_poll` as it is,
/// `qp_to_qp_ex` none. Calls that cannot fail are counted only: `end_poll`, `wr_start`, `wr_abort`.
///
/// # Safety
///
/// `verb` is a text. So for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_fail(
    verb: *const c_char,
    errno: c_int,
    every: c_int,
    count: c_int,
) -> c_int {
    // SAFETY: the caller gives a text.
    let verb = Verb::named(unsafe { text(verb) });
    let every = u32::try_from(every).unwrap_or(1);
    done(verb.map(|verb| world().verbs.fail(verb, errno, every, times(count))))
}

/// The next `count` posts (`post_send`, `post_recv`, `post_srq_recv`, `wr_complete`) fail with `errno`. `mode`: 0,
/// the `at`th work request (from 0) is refused and named; 1, all are taken and none is named; 2, none is taken
/// and none is named; 3, all are taken and one is named that is in no chain; 4, the same and none is taken; 5,
/// those before the `at`th are taken and none is named. `wr_complete` names none, and takes none with mode 0.
///
/// # Safety
///
/// `verb` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_post(
    verb: *const c_char,
    mode: c_int,
    at: c_int,
    errno: c_int,
    count: c_int,
) -> c_int {
    // SAFETY: the caller gives a text.
    let verb = Verb::named(unsafe { text(verb) });
    let posts = [Verb::PostSend, Verb::PostRecv, Verb::PostSrqRecv, Verb::WrComplete];
    let fault = verb.filter(|verb| posts.contains(verb)).and_then(|verb| {
        let (mode, at) = (PostMode::from_number(mode)?, u32::try_from(at).ok()?);
        Some(PostFault { verb, mode, at, errno, left: times(count).unwrap_or(u32::MAX) })
    });
    done(fault.map(|fault| world().faults.posts.push(fault)))
}

/// Takes back every fault, lets go of what is held or stands still, and counts calls from 0 again. The clocks begin
/// anew.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_reset() {
    let mut world = world();
    world.verbs = Verbs::new();
    world.faults = Faults::new();
    world.orphans = 0;
    world.clock = Clock::new();
    polling::CLOCK.store(world.clock.now(), Ordering::Relaxed);
    while let Some(held) = world.held.pop_front() {
        world.deliver(held.cq, held.cqe);
    }
    world.pump();
}

/// Puts a completion into a queue, whatever it says. It frees nobody's place.
///
/// # Safety
///
/// `wc` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_push(cq: *mut ibv_cq, wc: *const ibv_wc) -> c_int {
    let mut world = world();
    if !world.cqs.contains_key(&cq.addr()) {
        return -1;
    }
    // SAFETY: the caller has one there.
    let wc = unsafe { wc.read() };
    world.deliver(cq.addr(), Cqe { wc, place: None, memory: None, solicited: false });
    0
}

/// Makes the next `count` completions say `value` where C's field `what` is: `wr_id`, `status`, `opcode`,
/// `byte_len`, `imm_data`, `qp_num`, `wc_flags`; or, for `copies`, come so many times (0: not at all).
///
/// # Safety
///
/// `what` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_spoil(what: *const c_char, value: u64, count: c_int) -> c_int {
    // SAFETY: the caller gives a text.
    let what = What::named(unsafe { text(what) });
    let left = times(count).unwrap_or(u32::MAX);
    done(what.map(|what| world().faults.spoils.push(Spoil { what, value, left })))
}

/// Holds completions back from now on, or lets all go. Their work was carried out.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_hold(hold: c_int) {
    let mut world = world();
    world.faults.holding = hold != 0;
    while let Some(held) = if hold == 0 { world.held.pop_front() } else { None } {
        world.deliver(held.cq, held.cqe);
    }
}

/// Lets the `count` oldest completions go that are held back. Gives their number.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_release(count: c_int) -> c_int {
    let mut world = world();
    let mut gone = 0;
    while gone < count {
        let Some(held) = world.held.pop_front() else { break };
        world.deliver(held.cq, held.cqe);
        gone += 1;
    }
    gone
}

/// Carries nothing out from now on, or goes on.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_stall(stall: c_int) {
    let mut world = world();
    world.faults.stalled = stall != 0;
    world.pump();
}

/// Carries out `count` sends while the devices stand still. Gives their number.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_step(count: c_int) -> c_int {
    world().pump_some(usize::try_from(count).unwrap_or(0)) as c_int
}

/// Raises an asynchronous event of any number on the open contexts of a device (NULL: of all). For a
/// port's event `element` is the port, for every other a pointer; an event on a queue pair, completion queue or
/// shared receive queue that is there comes on its context only. Gives the number of contexts.
///
/// # Safety
///
/// `device` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_raise(
    device: *const c_char,
    kind: c_int,
    element: u64,
) -> c_int {
    let device = if device.is_null() {
        None
    } else {
        // SAFETY: not NULL, so a text.
        match Kind::named(unsafe { CStr::from_ptr(device) }) {
            None => return -1,
            device => device,
        }
    };
    let mut world = world();
    let id = element as usize;
    let owner = match kind {
        0..=7 | 14..=16 => (world.cqs.get(&id).map(|cq| cq.context))
            .or_else(|| world.qps.get(&id).map(|qp| qp.context))
            .or_else(|| world.srqs.get(&id).map(|srq| srq.context)),
        _ => None,
    };
    let element = match kind {
        9..=13 | 17 | 18 => Element::Port(element as c_int),
        _ => Element::Pointer(id),
    };
    let contexts = world.contexts.iter().filter(|(id, context)| {
        device.is_none_or(|device| device == context.kind)
            && owner.is_none_or(|owner| owner == **id)
    });
    let contexts: Vec<usize> = contexts.map(|(id, _)| *id).collect();
    for context in &contexts {
        world.raise(*context, kind, element);
    }
    contexts.len() as c_int
}

/// A completion queue tells its channel, though nothing completed.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_wake(cq: *mut ibv_cq) -> c_int {
    let mut world = world();
    done(world.cqs.contains_key(&cq.addr()).then(|| world.tell(cq.addr())))
}

/// A queue pair fails by itself: to ERR, without the library being told.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_break(qp: *mut c_void) -> c_int {
    let mut world = world();
    done(world.qps.contains_key(&qp.addr()).then(|| {
        world.fail_qp(qp.addr());
        world.pump();
    }))
}

/// As on rxe, a receive that is posted in ERR never comes back.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_recv_in_err_vanishes(vanishes: c_int) {
    world().faults.recv_in_err_vanishes = vanishes != 0;
}

/// Devices say from now on that they have no atomics.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_no_atomics(none: c_int) {
    world().faults.no_atomics = none != 0;
}

/// Sets the devices' clocks, which count up to 48 bits and go on by 100 with each completion that enters a queue
/// (of `empty0`: whose time is read). Gives what that of `loop0` showed.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_clock(ticks: u64) -> u64 {
    polling::CLOCK.store(ticks, Ordering::Relaxed);
    world().clock.set(ticks)
}

/// Devices say from now on that they have no clock, as rxe does: nothing has a time.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_no_clock(none: c_int) {
    world().faults.no_clock = none != 0;
}

/// How many bytes can be registered in all; more is `ENOMEM`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_memory_limit(bytes: u64) {
    world().faults.most_memory = bytes;
}

/// Moves a row of the GID table of `loop0`, and raises GID_CHANGE for each of the two; beyond the table it
/// is gone. Gives 0 or an errno.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_gid_move(from: c_int, to: c_int) -> c_int {
    let place = |place: c_int| usize::try_from(place).unwrap_or(usize::MAX);
    crate::verbs::errno(world().move_gid(place(from), place(to)))
}

/// How often a verb was called; -1 for an unknown name.
///
/// # Safety
///
/// `verb` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_count(verb: *const c_char) -> i64 {
    // SAFETY: the caller gives a text.
    let verb = Verb::named(unsafe { text(verb) });
    verb.map_or(-1, |verb| world().verbs.count(verb) as i64)
}

/// How many there are of a kind: `device_list`, `context`, `pd`, `mr`, `channel`, `cq`, `qp`, `srq`, `ah`, `mw`,
/// `held` (completions held back), `mr_bytes`, and `orphan` (objects that were there when their context was
/// closed, since the last reset); -1 for another name.
///
/// # Safety
///
/// `kind` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_live(kind: *const c_char) -> i64 {
    // SAFETY: the caller gives a text.
    world().live(unsafe { text(kind) }).map_or(-1, |count| count as i64)
}

/// C's pointer to the `number`th object of a kind, in the order in which those that are there were made;
/// NULL when there are fewer.
///
/// # Safety
///
/// `kind` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_fault_nth(kind: *const c_char, number: c_int) -> *mut c_void {
    // SAFETY: the caller gives a text.
    let kind = unsafe { text(kind) };
    let found = usize::try_from(number).ok().and_then(|number| world().nth(kind, number));
    found.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

/// Writes `byte` all over the memory of every receive, read and atomic that the device has not told the end
/// of, and reads that of every other send, so that memory that was let go of too early is seen. Gives the
/// number of bytes written, and in `read` (may be NULL) of those read.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_fault_touch_all(byte: u8, read: Option<&mut u64>) -> u64 {
    let (written, looked_at) = world().touch_all(byte);
    if let Some(read) = read {
        *read = looked_at;
    }
    written
}
