//! Posting on `loop0`: what is taken, what is refused, and what a failure says of it.

use std::ffi::{c_int, c_uint};
use std::mem::zeroed;
use std::sync::OnceLock;

use crate::abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};
use crate::faults::{PostFault, PostMode};
use crate::given::Given;
use crate::numbers::{flag, state, transport, window, wr};
use crate::verbs::Verb;
use crate::work::{Place, PlaceNumber, Recv, Send};
use crate::world::{World, there, world};

pub(crate) mod extended;

/// A work request of C's, in a chain.
trait Request: Sized {
    /// # Safety
    ///
    /// `wr` is a work request.
    unsafe fn next(wr: *mut Self) -> *mut Self;
    /// One that is in nobody's chain.
    fn foreign() -> *mut Self;
}

macro_rules! request {
    ($type:ty) => {
        impl Request for $type {
            unsafe fn next(wr: *mut Self) -> *mut Self {
                // SAFETY: the caller has a work request there.
                unsafe { (*wr).next }
            }

            fn foreign() -> *mut Self {
                static FOREIGN: OnceLock<Given<$type>> = OnceLock::new();
                // SAFETY: all zero is a value of this struct of integers and pointers.
                FOREIGN.get_or_init(|| Given::lasting(unsafe { zeroed() })).as_ptr()
            }
        }
    };
}
request!(ibv_send_wr);
request!(ibv_recv_wr);

/// What a failure says of a chain.
struct Failed<W> {
    errno: c_int,
    /// The work request that it names.
    named: *mut W,
    /// A fault wants what was taken to stay, even where all else is all or nothing.
    stays: bool,
}

/// Takes a chain, as far as `take` and the faults let it, and carries nothing out yet.
///
/// # Safety
///
/// The chain is one of work requests that ends with NULL.
unsafe fn take_chain<W: Request>(
    world: &mut World,
    verb: Verb,
    first: *mut W,
    mut take: impl FnMut(&mut World, *mut W) -> Result<(), c_int>,
) -> Result<(), Failed<W>> {
    let failed = |errno, named, stays| Err(Failed { errno, named, stays });
    if let Err(errno) = world.call(verb) {
        return failed(errno, first, false);
    }
    let mut chain = Vec::new();
    let mut wr = first;
    while !wr.is_null() {
        chain.push(wr);
        // SAFETY: not NULL, so it is one of the chain.
        wr = unsafe { W::next(wr) };
    }
    let fault = world.faults.post_fault(verb, chain.len());
    let lost = fault.is_some_and(|fault| fault.mode.loses());
    for (number, wr) in chain.iter().enumerate().filter(|_| !lost) {
        match fault.filter(|fault| fault.mode.is_at() && fault.at as usize == number) {
            Some(PostFault { mode: PostMode::TakenBefore, errno, .. }) => {
                return failed(errno, std::ptr::null_mut(), true);
            }
            Some(fault) => return failed(fault.errno, *wr, false),
            None => {}
        }
        if let Err(errno) = take(world, *wr) {
            return failed(errno, *wr, false);
        }
    }
    let Some(fault) = fault else { return Ok(()) };
    let named = if fault.mode.is_foreign() { W::foreign() } else { std::ptr::null_mut() };
    failed(fault.errno, named, true)
}

/// Says what became of a chain, as the plain calls do.
///
/// # Safety
///
/// `bad` can be written.
unsafe fn tell<W>(taken: Result<(), Failed<W>>, bad: *mut *mut W) -> c_int {
    let Err(failed) = taken else { return 0 };
    // SAFETY: the caller has room for a pointer.
    unsafe { bad.write(failed.named) };
    failed.errno
}

/// # Safety
///
/// As C's: a chain of work requests, and `bad` can be written.
pub(crate) unsafe extern "C" fn send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut world = world();
    let id = qp.addr();
    there(&mut world.qps, qp, "queue pair").outside("ibv_post_send");
    // SAFETY: as the caller says; what `take` is given is one of the chain.
    let taken =
        unsafe { take_chain(&mut world, Verb::PostSend, wr, |world, wr| world.take_send(id, wr)) };
    world.start_sends(id);
    world.pump();
    // SAFETY: as the caller says.
    unsafe { tell(taken, bad) }
}

/// Takes a chain that was told call by call: all of it, or nothing, unless a fault wants it otherwise.
///
/// # Safety
///
/// It is one of work requests that ends with NULL.
pub(crate) unsafe fn send_whole(world: &mut World, id: usize, first: *mut ibv_send_wr) -> c_int {
    let before = world.qps.get(&id).map_or(0, |qp| qp.posted);
    // SAFETY: as the caller says; what `take` is given is one of the chain.
    let taken =
        unsafe { take_chain(world, Verb::WrComplete, first, |world, wr| world.take_send(id, wr)) };
    let stays = taken.as_ref().err().is_none_or(|failed| failed.stays);
    if let Some(qp) = world.qps.get_mut(&id).filter(|_| !stays) {
        // Nothing was carried out meanwhile: they are the last.
        let count = (qp.posted - before) as usize;
        qp.pending.truncate(qp.pending.len() - count);
        qp.posted = before;
    }
    world.start_sends(id);
    world.pump();
    taken.err().map_or(0, |failed| failed.errno)
}

/// # Safety
///
/// As [`send`].
pub(crate) unsafe extern "C" fn recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world();
    there(&mut world.qps, qp, "queue pair");
    // SAFETY: as the caller says; what `take` is given is one of the chain.
    let taken = unsafe {
        take_chain(&mut world, Verb::PostRecv, wr, |world, wr| world.take_recv(qp.addr(), wr))
    };
    world.pump();
    // SAFETY: as the caller says.
    unsafe { tell(taken, bad) }
}

/// # Safety
///
/// As [`send`].
pub(crate) unsafe extern "C" fn srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world();
    there(&mut world.srqs, srq, "shared receive queue");
    // SAFETY: as the caller says; what `take` is given is one of the chain.
    let taken = unsafe {
        take_chain(&mut world, Verb::PostSrqRecv, wr, |world, wr| {
            world.take_srq_recv(srq.addr(), wr)
        })
    };
    world.pump();
    // SAFETY: as the caller says.
    unsafe { tell(taken, bad) }
}

/// Whether a list of entries is one for a queue that has so many at most.
fn fits(count: c_int, most: u32) -> bool {
    u32::try_from(count).is_ok_and(|count| count <= most)
}

/// Whether the opcode is one that is carried out here, and can send inline.
fn known(opcode: c_uint) -> Option<bool> {
    match opcode {
        wr::SEND | wr::SEND_WITH_IMM | wr::SEND_WITH_INV => Some(true),
        wr::RDMA_WRITE | wr::RDMA_WRITE_WITH_IMM => Some(true),
        wr::RDMA_READ | wr::CMP_AND_SWP | wr::FETCH_AND_ADD => Some(false),
        wr::BIND_MW | wr::LOCAL_INV => Some(false),
        _ => None,
    }
}

impl World {
    /// # Safety
    ///
    /// `wr` is a work request.
    unsafe fn take_send(&mut self, id: usize, wr: *mut ibv_send_wr) -> Result<(), c_int> {
        let Some(qp) = self.qps.get_mut(&id) else { return Err(libc::EINVAL) };
        // SAFETY: the caller has a work request there.
        let raw = unsafe { &*wr };
        let inline = raw.send_flags & flag::INLINE != 0;
        let can_inline = known(raw.opcode).ok_or(libc::EINVAL)?;
        let datagram = qp.transport == transport::UD;
        let is_send = matches!(raw.opcode, wr::SEND | wr::SEND_WITH_IMM);
        if datagram && !is_send || qp.transport == transport::UC && !can_inline {
            return Err(libc::EINVAL);
        }
        if qp.state < state::RTS || !fits(raw.num_sge, qp.cap.max_send_sge) || inline && !can_inline
        {
            return Err(libc::EINVAL);
        }
        if qp.posted - qp.freed >= qp.cap.max_send_wr.into() {
            return Err(libc::ENOMEM);
        }
        let number = PlaceNumber::Send(qp.posted);
        let place = Place { owner: id, epoch: qp.epoch, number };
        let all_signaled = qp.all_signaled;
        if raw.opcode == wr::BIND_MW {
            if raw.imm_data != 0 || raw.num_sge != 0 {
                return Err(libc::EINVAL);
            }
            let asked = raw.bind_mw;
            // SAFETY: the region is the caller's.
            let bind =
                unsafe { self.read_bind(asked.mw, asked.rkey, &asked.bind_info, window::TYPE_2) }?;
            // SAFETY: a work request.
            let work = unsafe { Send::read(wr, place, all_signaled, datagram) };
            return self.take_local(id, Send { bind, ..work });
        }
        if inline {
            // SAFETY: there are `num_sge` entries, which is not negative.
            let sges = (0..raw.num_sge as usize).map(|n| unsafe { &*raw.sg_list.add(n) });
            if sges.map(|sge| u64::from(sge.length)).sum::<u64>() > qp.cap.max_inline_data.into() {
                return Err(libc::EINVAL);
            }
        }
        // SAFETY: a work request; inline memory is the caller's.
        qp.pending.push_back(unsafe { Send::read(wr, place, qp.all_signaled, datagram) });
        qp.posted += 1;
        Ok(())
    }

    /// What was taken can be carried out from now on, or is flushed.
    pub(crate) fn start_sends(&mut self, id: usize) {
        match self.qps.get(&id) {
            Some(qp) if qp.pending.is_empty() => {}
            Some(qp) if qp.state == state::ERR => self.flush_sends(id),
            Some(_) => {
                self.busy.insert(id);
            }
            None => {}
        }
    }

    /// Takes a bind.
    pub(crate) fn take_local(&mut self, id: usize, work: Send) -> Result<(), c_int> {
        let Some(qp) = self.qps.get_mut(&id) else { return Err(libc::EINVAL) };
        if qp.posted - qp.freed >= qp.cap.max_send_wr.into() {
            return Err(libc::ENOMEM);
        }
        qp.pending.push_back(work);
        qp.posted += 1;
        Ok(())
    }

    /// # Safety
    ///
    /// `wr` is a work request.
    unsafe fn take_recv(&mut self, id: usize, wr: *mut ibv_recv_wr) -> Result<(), c_int> {
        let Some(qp) = self.qps.get_mut(&id) else { return Err(libc::EINVAL) };
        // SAFETY: the caller has a work request there.
        let count = unsafe { (*wr).num_sge };
        if qp.state == state::RESET || qp.srq.is_some() || !fits(count, qp.cap.max_recv_sge) {
            return Err(libc::EINVAL);
        }
        if qp.recvs_taken >= qp.cap.max_recv_wr {
            return Err(libc::ENOMEM);
        }
        let place = Place { owner: id, epoch: qp.epoch, number: PlaceNumber::Recv };
        // SAFETY: a work request.
        qp.recvs.push_back(unsafe { Recv::read(wr, place) });
        qp.recvs_taken += 1;
        if qp.state == state::ERR && !self.faults.recv_in_err_vanishes {
            self.flush_recvs(id);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `wr` is a work request.
    unsafe fn take_srq_recv(&mut self, id: usize, wr: *mut ibv_recv_wr) -> Result<(), c_int> {
        let Some(srq) = self.srqs.get_mut(&id) else { return Err(libc::EINVAL) };
        // SAFETY: the caller has a work request there.
        if !fits(unsafe { (*wr).num_sge }, srq.attr.max_sge) {
            return Err(libc::EINVAL);
        }
        if srq.taken >= srq.attr.max_wr {
            return Err(libc::ENOMEM);
        }
        let place = Place { owner: id, epoch: 0, number: PlaceNumber::Shared };
        // SAFETY: a work request.
        srq.recvs.push_back(unsafe { Recv::read(wr, place) });
        srq.taken += 1;
        Ok(())
    }
}
