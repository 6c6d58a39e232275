//! Queue pairs.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::zeroed;

use crate::abi::{Opaque, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr};
use crate::cq::granted;
use crate::empty::Ring;
use crate::event::Acks;
use crate::given::{Given, OnContext, misuse};
use crate::numbers::{limit, state, transport};
use crate::post::extended::Posting;
use crate::states;
use crate::verbs::{self, Verb};
use crate::work::{Recv, Send};
use crate::world::{World, there, wait_until, world};

pub(crate) mod extended;

/// What C has of a queue pair.
#[repr(C)]
pub(crate) struct QpFront {
    /// Only those that are posted on call by call are such to C; the others are its front.
    pub(crate) ex: ibv_qp_ex,
    /// The operation that newer headers have at the end of C's struct.
    _wr_atomic_write: Opaque,
    /// Where `empty0` puts its completions.
    pub(crate) send_ring: *mut Ring,
    pub(crate) recv_ring: *mut Ring,
    pub(crate) all_signaled: u32,
    /// Where the next completion of a post call by call goes on `empty0`.
    pub(crate) next: u32,
}

// SAFETY: C's struct begins with the context.
unsafe impl OnContext for QpFront {
    unsafe fn bury_operations(front: *mut QpFront) {
        // SAFETY: the caller has one there; only the address of a field is taken.
        unsafe { extended::bury(&raw mut (*front).ex) }
    }
}

/// A queue pair.
pub(crate) struct Qp {
    given: Given<QpFront>,
    pub(crate) context: usize,
    pub(crate) serial: u32,
    pub(crate) pd: usize,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) all_signaled: bool,
    pub(crate) number: u32,
    /// `enum ibv_qp_type`.
    pub(crate) transport: u32,
    /// The multicast groups that it is in.
    pub(crate) groups: Vec<[u8; 16]>,
    pub(crate) state: u32,
    pub(crate) attr: ibv_qp_attr,
    /// Sends that were not carried out yet.
    pub(crate) pending: VecDeque<Send>,
    /// How many sends were ever posted, and how many of them have been told the end of.
    pub(crate) posted: u64,
    pub(crate) freed: u64,
    pub(crate) recvs: VecDeque<Recv>,
    /// Receives that were posted and not told the end of.
    pub(crate) recvs_taken: u32,
    /// Counts resets.
    pub(crate) epoch: u32,
    /// Of one that is posted on call by call.
    pub(crate) posting: Option<Posting>,
    pub(crate) async_acks: Acks,
}

impl Qp {
    pub(crate) fn pointer(&self) -> *mut ibv_qp {
        self.given.as_ptr().cast()
    }

    /// What it was made with, as C asks for it.
    fn init_attr(&self) -> ibv_qp_init_attr {
        // SAFETY: the struct is never freed; the fields read do not change.
        let front = unsafe { &(*self.given.as_ptr()).ex.qp };
        ibv_qp_init_attr {
            qp_context: front.qp_context,
            send_cq: front.send_cq,
            recv_cq: front.recv_cq,
            srq: front.srq,
            cap: self.cap,
            qp_type: self.transport,
            sq_sig_all: self.all_signaled.into(),
        }
    }

    /// The library's own note of the state: it learns only from calls.
    fn note_state(&self) {
        // SAFETY: the struct is never freed; writing an integer in it is what the library does too.
        unsafe { (&raw mut (*self.pointer()).state).write(self.state) }
    }

    /// Nobody posts on it call by call at this time; or the end of the program.
    pub(crate) fn outside(&self, call: &str) {
        if self.posting.as_ref().is_some_and(Posting::is_begun) {
            misuse(&format!("{call} between ibv_wr_start and ibv_wr_complete"));
        }
    }

    /// Back to the beginning: all its work is forgotten.
    fn reset(&mut self) {
        self.pending.clear();
        self.recvs.clear();
        (self.posted, self.freed, self.recvs_taken) = (0, 0, 0);
        self.epoch += 1;
    }
}

impl World {
    fn create_qp(
        &mut self,
        pd: *mut ibv_pd,
        asked: &mut ibv_qp_init_attr,
        ops: Option<u64>,
    ) -> Result<*mut ibv_qp, c_int> {
        let context = there(&mut self.pds, pd, "protection domain").context;
        if !(transport::RC..=transport::UD).contains(&asked.qp_type) {
            return Err(libc::EOPNOTSUPP);
        }
        // What has no queue of its own, or another device's, is told by the kernel so.
        let here = |cq: &usize| self.cqs.get(cq).is_some_and(|cq| cq.context == context);
        if !here(&asked.send_cq.addr()) || !here(&asked.recv_cq.addr()) {
            return Err(libc::EINVAL);
        }
        let srq = (!asked.srq.is_null()).then(|| asked.srq.addr());
        if srq.is_some_and(|srq| self.srqs.get(&srq).is_none_or(|srq| srq.context != context)) {
            return Err(libc::EINVAL);
        }
        let cap = &asked.cap;
        if cap.max_send_wr > limit::QP_WR
            || cap.max_recv_wr > limit::QP_WR
            || cap.max_send_sge > limit::SGE
            || cap.max_recv_sge > limit::SGE
            || cap.max_inline_data > limit::INLINE
        {
            return Err(libc::EINVAL);
        }
        let own_recvs = u32::from(srq.is_none());
        let cap = ibv_qp_cap {
            max_send_wr: granted(cap.max_send_wr),
            max_recv_wr: granted(cap.max_recv_wr) * own_recvs,
            max_send_sge: cap.max_send_sge.max(1),
            max_recv_sge: cap.max_recv_sge.max(1) * own_recvs,
            // There is as much room as for the entries.
            max_inline_data: cap
                .max_inline_data
                .max(cap.max_send_sge.max(1) * 16)
                .min(limit::INLINE),
        };
        asked.cap = cap;
        let serial = self.serial();
        let number = 0x100 + serial;
        let on = self.contexts.get(&context).ok_or(libc::ENODEV)?;
        let kind = on.kind;
        let ibv = ibv_qp {
            context: on.pointer(),
            qp_context: asked.qp_context,
            pd,
            send_cq: asked.send_cq,
            recv_cq: asked.recv_cq,
            srq: asked.srq,
            handle: serial,
            qp_num: number,
            state: state::RESET,
            qp_type: asked.qp_type,
        };
        let ring = |cq: usize| self.cqs.get(&cq).map_or(std::ptr::null_mut(), |cq| cq.ring());
        let front = QpFront {
            ex: extended::front(ibv, kind, ops),
            _wr_atomic_write: None,
            send_ring: ring(asked.send_cq.addr()),
            recv_ring: ring(asked.recv_cq.addr()),
            all_signaled: u32::from(asked.sq_sig_all != 0),
            next: 0,
        };
        let qp = Qp {
            given: Given::new(front),
            context,
            serial,
            pd: pd.addr(),
            send_cq: asked.send_cq.addr(),
            recv_cq: asked.recv_cq.addr(),
            srq,
            cap,
            all_signaled: asked.sq_sig_all != 0,
            number,
            transport: asked.qp_type,
            groups: Vec::new(),
            state: state::RESET,
            // SAFETY: all zero is a value of this struct of integers.
            attr: unsafe { zeroed() },
            pending: VecDeque::new(),
            posted: 0,
            freed: 0,
            recvs: VecDeque::new(),
            recvs_taken: 0,
            epoch: 0,
            posting: ops.map(|_| Posting::default()),
            async_acks: Acks::default(),
        };
        let pointer = qp.pointer();
        self.numbers.insert(number, qp.given.id());
        self.qps.insert(qp.given.id(), qp);
        Ok(pointer)
    }

    /// After it the device touches none of its memory; its completions stay where they are.
    pub(crate) fn remove_qp(&mut self, id: usize) {
        let Some(qp) = self.qps.remove(&id) else { return };
        self.numbers.remove(&qp.number);
        self.busy.remove(&id);
        for held in &mut self.held {
            let memory = &mut held.cqe.memory;
            // A receive of a shared queue that this one took is over as well.
            if held.qp == id {
                *memory = None;
            }
        }
        // Who sent to it waits no longer.
        self.pump();
    }
}

/// # Safety
///
/// As C's: `attr` can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller has one there, for this call only.
    let attr = unsafe { &mut *attr };
    let mut world = world();
    let called = world.call(Verb::CreateQp);
    verbs::pointer(called.and_then(|()| world.create_qp(pd, attr, None)))
}

/// # Safety
///
/// As C's: `attr` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::ModifyQp);
    let id = qp.addr();
    there(&mut world.qps, qp, "queue pair");
    // SAFETY: the caller has one there. Fields that the mask does not name are integers too, though
    // the caller may have left them unset: C copies them all the same.
    let asked = unsafe { attr.read() };
    verbs::errno(called.and_then(|()| world.modify_qp(id, &asked, mask)))
}

impl World {
    fn modify_qp(&mut self, id: usize, asked: &ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
        let Some(qp) = self.qps.get(&id) else { return Err(libc::EINVAL) };
        let before = qp.state;
        let kind = self.contexts.get(&qp.context).map(|context| context.kind);
        let next = states::check(qp.transport, before, asked, mask)?;
        states::check_values(kind, &self.gids, asked, mask)?;
        let Some(qp) = self.qps.get_mut(&id) else { return Err(libc::EINVAL) };
        states::apply(&mut qp.attr, asked, mask);
        if next == state::ERR && before != state::ERR {
            self.fail_qp(id);
        } else {
            qp.state = next;
        }
        let Some(qp) = self.qps.get_mut(&id) else { return Err(libc::EINVAL) };
        if next == state::RESET {
            qp.reset();
            self.busy.remove(&id);
            for held in self.held.iter_mut().filter(|held| held.qp == id) {
                held.cqe.memory = None;
            }
        }
        if mask & states::STATE != 0 {
            if let Some(qp) = self.qps.get(&id) {
                qp.note_state();
            }
        }
        self.pump();
        Ok(())
    }
}

/// # Safety
///
/// As C's: `attr` and `init` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::QueryQp);
    let there = there(&mut world.qps, qp, "queue pair");
    verbs::errno(called.map(|()| {
        let found = ibv_qp_attr {
            qp_state: there.state,
            cur_qp_state: there.state,
            cap: there.cap,
            ..there.attr
        };
        there.note_state();
        // SAFETY: the caller has room for both.
        unsafe {
            attr.write(found);
            init.write(there.init_attr());
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DestroyQp);
    let id = qp.addr();
    let found = there(&mut world.qps, qp, "queue pair");
    found.outside("ibv_destroy_qp");
    let in_group = !found.groups.is_empty();
    if let Err(errno) = called {
        return errno;
    }
    if in_group || world.binds_windows(id) {
        return libc::EBUSY;
    }
    world.forget_events(id);
    world = wait_until(world, "ibv_destroy_qp", |world| world.is_settled(id));
    world.remove_qp(id);
    0
}
