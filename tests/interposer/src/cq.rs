//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};
use crate::device::Kind;
use crate::empty::Ring;
use crate::event::{Acks, Element};
use crate::given::{Given, OnContext};
use crate::numbers::{event, limit, status};
use crate::verbs::{self, Verb};
use crate::work::{Memory, Place};
use crate::world::{World, there, wait_until, world};

/// What C has of a completion queue.
#[repr(C)]
pub(crate) struct CqFront {
    pub(crate) ibv: ibv_cq,
    /// A mutex, a condition and counts, in C.
    _rest: [u64; 16],
    /// Where `empty0` puts its completions.
    pub(crate) ring: *mut Ring,
}

// SAFETY: C's struct begins with the context.
unsafe impl OnContext for CqFront {}

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

/// A completion queue.
pub(crate) struct Cq {
    given: Given<CqFront>,
    pub(crate) context: usize,
    pub(crate) serial: u32,
    pub(crate) channel: Option<usize>,
    capacity: usize,
    entries: VecDeque<Cqe>,
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
}

impl World {
    /// A completion enters its queue. One that is full loses it, and says so.
    pub(crate) fn deliver(&mut self, cq: usize, cqe: Cqe) {
        let Some(queue) = self.cqs.get_mut(&cq) else { return };
        if queue.entries.len() >= queue.capacity {
            let context = queue.context;
            self.raise(context, event::CQ_ERR, Element::Pointer(cq));
            return;
        }
        let solicited = cqe.solicited || cqe.wc.status != status::SUCCESS;
        queue.entries.push_back(Cqe { memory: None, ..cqe });
        if queue.armed == Armed::Any || queue.armed == Armed::Solicited && solicited {
            queue.armed = Armed::Never;
            self.tell(cq);
        }
    }

    /// Up to `most` completions, taken out.
    fn take_completions(&mut self, cq: *mut ibv_cq, most: usize) -> Vec<ibv_wc> {
        let queue = there(&mut self.cqs, cq, "completion queue");
        let count = most.min(queue.entries.len());
        let taken: Vec<Cqe> = queue.entries.drain(..count).collect();
        taken
            .into_iter()
            .map(|cqe| {
                if let Some(place) = cqe.place {
                    self.free_place(place);
                }
                cqe.wc
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
        let asked = u32::try_from(cqe).ok().filter(|asked| (1..=limit::CQE).contains(asked));
        let asked = asked.ok_or(libc::EINVAL)?;
        if !(0..limit::VECTORS).contains(&vector) {
            return Err(libc::EINVAL);
        }
        let granted = granted(asked);
        let serial = world.serial();
        let ibv = ibv_cq { context, channel, cq_context, handle: serial, cqe: granted as c_int };
        let ring = match kind {
            Kind::Loop => std::ptr::null_mut(),
            Kind::Empty => Ring::leak(granted),
        };
        let given = Given::new(CqFront { ibv, _rest: [0; 16], ring });
        let cq = Cq {
            given,
            context: context.addr(),
            serial,
            channel: (!channel.is_null()).then(|| channel.addr()),
            capacity: granted as usize,
            entries: VecDeque::new(),
            armed: Armed::Never,
            acks: Acks::default(),
            async_acks: Acks::default(),
        };
        let pointer = cq.pointer();
        world.cqs.insert(cq.given.id(), cq);
        Ok(pointer)
    }))
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
    there(&mut world.cqs, cq, "completion queue");
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
