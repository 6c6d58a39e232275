//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::device::Kind;
use crate::empty::{Entry, Ring};
use crate::event::{Acks, Element};
use crate::given::{Given, OnContext, misuse};
use crate::numbers::{event, limit, status};
use crate::verbs::{self, Verb};
use crate::work::{Memory, Place};
use crate::world::{World, there, wait_until, world};
use extended::Walk;

pub(crate) mod extended;

/// What C has of a completion queue.
#[repr(C)]
pub(crate) struct CqFront {
    /// Only those that are polled entry by entry are such to C; the others are its front.
    pub(crate) ex: ibv_cq_ex,
    /// Where `empty0` puts its completions.
    pub(crate) ring: *mut Ring,
    /// The one that `empty0` is at.
    pub(crate) present: Entry,
}

// SAFETY: C's struct begins with the context.
unsafe impl OnContext for CqFront {
    unsafe fn bury_operations(front: *mut CqFront) {
        // SAFETY: the caller has one there; only the address of a field is taken.
        unsafe { extended::bury(&raw mut (*front).ex) }
    }
}

/// When a completion queue tells its channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    Never,
    Solicited,
    Any,
}

/// A completion, and what becomes of its work request when it is polled.
#[derive(Clone)]
pub(crate) struct Cqe {
    pub(crate) wc: ibv_wc,
    /// Whose place it frees.
    pub(crate) place: Option<Place>,
    /// What the device may touch until this is in the queue.
    pub(crate) memory: Option<Memory>,
    pub(crate) solicited: bool,
}

/// A completion in its queue.
struct Arrived {
    wc: ibv_wc,
    place: Option<Place>,
    /// What the clock showed.
    time: u64,
}

/// A completion queue.
pub(crate) struct Cq {
    given: Given<CqFront>,
    pub(crate) context: usize,
    pub(crate) serial: u32,
    pub(crate) channel: Option<usize>,
    capacity: usize,
    entries: VecDeque<Arrived>,
    /// Of one that is polled entry by entry.
    walk: Option<Walk>,
    armed: Armed,
    pub(crate) acks: Acks,
    pub(crate) async_acks: Acks,
}

impl Cq {
    pub(crate) fn pointer(&self) -> *mut ibv_cq {
        self.given.as_ptr().cast()
    }

    pub(crate) fn ring(&self) -> *mut Ring {
        // SAFETY: the struct is never freed, and the field never changes.
        unsafe { (*self.given.as_ptr()).ring }
    }

    /// How much room is in use: what was polled entry by entry, until the end of that.
    fn used(&self) -> usize {
        self.entries.len() + self.walk.as_ref().map_or(0, Walk::used)
    }
}

impl World {
    /// A completion enters its queue. One that is full loses it, and says so.
    pub(crate) fn deliver(&mut self, cq: usize, cqe: Cqe) {
        let Some(queue) = self.cqs.get_mut(&cq) else { return };
        if queue.used() >= queue.capacity {
            let context = queue.context;
            self.raise(context, event::CQ_ERR, Element::Pointer(cq));
            return;
        }
        let solicited = cqe.solicited || cqe.wc.status != status::SUCCESS;
        let time = self.clock.tick();
        queue.entries.push_back(Arrived { wc: cqe.wc, place: cqe.place, time });
        if queue.armed == Armed::Any || queue.armed == Armed::Solicited && solicited {
            queue.armed = Armed::Never;
            self.tell(cq);
        }
    }

    /// Up to `most` completions, taken out.
    fn take_completions(&mut self, cq: *mut ibv_cq, most: usize) -> Vec<ibv_wc> {
        let queue = there(&mut self.cqs, cq, "completion queue");
        if queue.walk.is_some() {
            misuse("ibv_poll_cq on a completion queue that was made by ibv_create_cq_ex");
        }
        let count = most.min(queue.entries.len());
        let taken: Vec<Arrived> = queue.entries.drain(..count).collect();
        taken
            .into_iter()
            .map(|arrived| {
                if let Some(place) = arrived.place {
                    self.free_place(place);
                }
                arrived.wc
            })
            .collect()
    }
}

/// # Safety
///
/// As C's: there is room for `room` completions.
pub(crate) unsafe extern "C" fn poll(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let mut world = world();
    if let Err(errno) = world.call(Verb::PollCq) {
        return -errno;
    }
    let taken = world.take_completions(cq, usize::try_from(room).unwrap_or(0));
    // SAFETY: no more than there is room for.
    unsafe { wc.copy_from_nonoverlapping(taken.as_ptr(), taken.len()) };
    taken.len() as c_int
}

pub(crate) unsafe extern "C" fn req_notify(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let mut world = world();
    let called = world.call(Verb::ReqNotifyCq);
    let queue = there(&mut world.cqs, cq, "completion queue");
    verbs::errno(called.map(|()| {
        // Asking for less does not take back what was asked.
        if queue.armed != Armed::Any {
            queue.armed = if solicited_only == 0 { Armed::Any } else { Armed::Solicited };
        }
    }))
}

/// What is asked of a completion queue that is to be made.
struct Asked {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
    /// Of one that is polled entry by entry: what its completions tell (`enum ibv_create_cq_wc_flags`).
    tells: Option<u64>,
}

impl World {
    fn create_cq(
        &mut self,
        context: *mut ibv_context,
        kind: Kind,
        asked: &Asked,
    ) -> Result<*mut CqFront, c_int> {
        let &Asked { cqe, cq_context, channel, vector, tells } = asked;
        if !(1..=limit::CQE).contains(&cqe) || !(0..limit::VECTORS).contains(&vector) {
            return Err(libc::EINVAL);
        }
        let granted = granted(cqe);
        let serial = self.serial();
        let ibv = ibv_cq { context, channel, cq_context, handle: serial, cqe: granted as c_int };
        let ring = match kind {
            Kind::Loop => std::ptr::null_mut(),
            Kind::Empty => Ring::leak(granted),
        };
        let ex = extended::front(ibv, kind, tells);
        let given = Given::new(CqFront { ex, ring, present: Entry::NONE });
        let pointer = given.as_ptr();
        let cq = Cq {
            given,
            context: context.addr(),
            serial,
            channel: (!channel.is_null()).then(|| channel.addr()),
            capacity: granted as usize,
            entries: VecDeque::new(),
            walk: tells.map(|_| Walk::default()),
            armed: Armed::Never,
            acks: Acks::default(),
            async_acks: Acks::default(),
        };
        self.cqs.insert(pointer.addr(), cq);
        Ok(pointer)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let mut world = world();
    let called = world.call(Verb::CreateCq);
    let kind = there(&mut world.contexts, context, "context").kind;
    if !channel.is_null() {
        there(&mut world.channels, channel, "completion channel");
    }
    verbs::pointer(called.and_then(|()| {
        let cqe = u32::try_from(cqe).unwrap_or(0);
        let asked = Asked { cqe, cq_context, channel, vector, tells: None };
        world.create_cq(context, kind, &asked)
    }))
    .cast()
}

/// What a queue really gets: one less than a power of two, as on rxe.
pub(crate) fn granted(asked: c_uint) -> c_uint {
    (asked + 1).next_power_of_two() - 1
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DestroyCq);
    let id = cq.addr();
    let queue = there(&mut world.cqs, cq, "completion queue");
    if queue.walk.as_ref().is_some_and(Walk::is_begun) {
        misuse("ibv_destroy_cq between ibv_start_poll and ibv_end_poll");
    }
    if let Err(errno) = called {
        return errno;
    }
    if world.qps.values().any(|qp| qp.send_cq == id || qp.recv_cq == id) {
        return libc::EBUSY;
    }
    world.forget_told(id);
    world.forget_events(id);
    world.held.retain(|held| held.cq != id);
    world = wait_until(world, "ibv_destroy_cq", |world| {
        world.cqs.get(&id).is_none_or(|cq| cq.acks.settled()) && world.is_settled(id)
    });
    world.cqs.remove(&id);
    0
}
