//! Shared receive queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};

use crate::abi::{ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr_ex};
use crate::cq::granted;
use crate::event::{Acks, Element};
use crate::given::{Given, OnContext};
use crate::numbers::{event, limit};
use crate::verbs::{self, Verb};
use crate::work::Recv;
use crate::world::{World, there, wait_until, world};

/// What C has of a shared receive queue.
#[repr(C)]
struct SrqFront {
    context: *mut ibv_context,
    srq_context: *mut c_void,
    pd: *mut ibv_pd,
    handle: u32,
    /// A mutex, a condition and a count, in C.
    _rest: [u64; 16],
}

// SAFETY: it begins with the context.
unsafe impl OnContext for SrqFront {}

/// A shared receive queue.
pub(crate) struct Srq {
    given: Given<SrqFront>,
    pub(crate) context: usize,
    pub(crate) serial: u32,
    pub(crate) pd: usize,
    pub(crate) attr: ibv_srq_attr,
    pub(crate) recvs: VecDeque<Recv>,
    /// Receives that were posted and not told the end of.
    pub(crate) taken: u32,
    pub(crate) async_acks: Acks,
}

impl Srq {
    pub(crate) fn pointer(&self) -> *mut ibv_srq {
        self.given.as_ptr().cast()
    }
}

impl World {
    /// A receive was taken: a queue that fell below its limit tells it once.
    pub(crate) fn check_srq_limit(&mut self, id: usize) {
        let Some(srq) = self.srqs.get_mut(&id) else { return };
        if srq.recvs.len() < srq.attr.srq_limit as usize {
            srq.attr.srq_limit = 0;
            let context = srq.context;
            self.raise(context, event::SRQ_LIMIT_REACHED, Element::Pointer(id));
        }
    }

    fn create_srq(
        &mut self,
        pd: *mut ibv_pd,
        srq_context: *mut c_void,
        asked: &mut ibv_srq_attr,
    ) -> Result<*mut ibv_srq, c_int> {
        self.call(Verb::CreateSrq)?;
        let context = there(&mut self.pds, pd, "protection domain").context;
        if asked.max_wr == 0 || asked.max_wr > limit::QP_WR || asked.max_sge > limit::SGE {
            return Err(libc::EINVAL);
        }
        // The limit is not set here.
        asked.max_wr = granted(asked.max_wr);
        asked.max_sge = asked.max_sge.max(1);
        let attr = ibv_srq_attr { srq_limit: 0, ..*asked };
        let serial = self.serial();
        let pointer = self.contexts.get(&context).map_or(std::ptr::null_mut(), |c| c.pointer());
        let front = SrqFront { context: pointer, srq_context, pd, handle: serial, _rest: [0; 16] };
        let srq = Srq {
            given: Given::new(front),
            context,
            serial,
            pd: pd.addr(),
            attr,
            recvs: VecDeque::new(),
            taken: 0,
            async_acks: Acks::default(),
        };
        let pointer = srq.pointer();
        self.srqs.insert(pointer.addr(), srq);
        Ok(pointer)
    }
}

/// # Safety
///
/// As C's: the front of `attr`, which the basic struct shares, can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: both fields are in the front. No reference to the whole struct is made.
    let (srq_context, asked) = unsafe { ((*attr).srq_context, &mut (*attr).attr) };
    verbs::pointer(world().create_srq(pd, srq_context, asked))
}

/// # Safety
///
/// As C's: `attr` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    const LIMIT: c_int = 1 << 1;
    let mut world = world();
    let called = world.call(Verb::ModifySrq);
    let there = there(&mut world.srqs, srq, "shared receive queue");
    verbs::errno(called.and_then(|()| {
        // SAFETY: the caller has one there.
        let limit = unsafe { (*attr).srq_limit };
        if mask != LIMIT || limit > there.attr.max_wr {
            return Err(libc::EINVAL);
        }
        there.attr.srq_limit = limit;
        Ok(())
    }))
}

/// # Safety
///
/// As C's: `attr` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let mut world = world();
    let called = world.call(Verb::QuerySrq);
    let there = there(&mut world.srqs, srq, "shared receive queue");
    // SAFETY: the caller has room for one.
    verbs::errno(called.map(|()| unsafe { attr.write(there.attr) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DestroySrq);
    let id = srq.addr();
    there(&mut world.srqs, srq, "shared receive queue");
    if let Err(errno) = called {
        return errno;
    }
    if world.qps.values().any(|qp| qp.srq == Some(id)) {
        return libc::EBUSY;
    }
    world.forget_events(id);
    world = wait_until(world, "ibv_destroy_srq", |world| world.is_settled(id));
    world.srqs.remove(&id);
    for held in &mut world.held {
        if held.cqe.memory.as_ref().is_some_and(|memory| memory.owner == id) {
            held.cqe.memory = None;
        }
    }
    0
}
