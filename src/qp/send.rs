//! The send queue of a queue pair.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

use super::core::Core;
use super::request::{SendRequest, What, Write, flag, sealed};
use super::transport::{Connected, Rc, Transport};
use crate::error::{Error, Queue, Refusal, Result};
use crate::mem::{ANY_DOMAIN, MAX_PIECES, Pieces, Shared};
use crate::sys::abi::{ibv_mw_bind, ibv_send_wr, ibv_sge};
use crate::types::{Qpn, RemoteAccess, WindowType};
use crate::wq::{Entry, Poster, Posting};

/// The send queue of a queue pair: sends, writes, reads and atomics, posted by one thread at a time.
///
/// Posting moves the memory of a work request into the queue; its completion gives it back, where
/// completions are polled. Each gives exactly one completion.
///
/// # Signaling
///
/// Completions cost, and so the device is asked for one only now and then: for reads and atomics always,
/// since their result is waited for; for sends and writes when half the queue is posted without, and when
/// the request says so ([`signaled`](crate::wr::Send::signaled)). The others complete, silently, with the
/// next that was asked for: carried out, unless one before that failed or that one itself was flushed. After
/// the last of a series, where nothing more is to come, ask for it, or call [`flush`](SendQueue::flush). A
/// queue pair made with [`signal_all`](super::QueuePairBuilder::signal_all) asks for all.
pub struct SendQueue<T = Rc> {
    pub(super) core: Arc<Core>,
    pub(super) poster: Poster,
    /// How many were posted since the last that was signaled.
    pub(super) silent: u32,
    /// At most so many are, and one less.
    pub(super) interval: u32,
    /// What the peer lets this queue pair do; `None` when that is not known.
    pub(super) peer_access: Option<RemoteAccess>,
    /// The longest message that the port carries.
    pub(super) max_message: u64,
    transport: PhantomData<fn() -> T>,
}

/// The longest message of the transport: 2 GiB.
const LONGEST: u64 = 1 << 31;

/// A work request that was not taken, and why.
#[derive(Debug, thiserror::Error)]
#[error("{refusal}")]
#[non_exhaustive]
pub struct PostError<R: fmt::Debug> {
    /// Why.
    pub refusal: Refusal,
    /// The request, with its memory, to be posted again. `None` when the device may have taken it
    /// ([`Refusal::Unsure`]), or completed what it refused.
    pub request: Option<R>,
}

impl<R: fmt::Debug> From<PostError<R>> for Error {
    fn from(failed: PostError<R>) -> Error {
        failed.refusal.into()
    }
}

impl<T: Transport> SendQueue<T> {
    pub(super) fn new(core: Arc<Core>, poster: Poster, interval: u32) -> SendQueue<T> {
        let (peer_access, max_message, transport) = (None, LONGEST, PhantomData);
        SendQueue { core, poster, silent: 0, interval, peer_access, max_message, transport }
    }

    /// Posts a work request (`ibv_post_send`).
    ///
    /// # Errors
    ///
    /// [`PostError`], with the request: a queue that is full ([`Refusal::Full`]) among others. The queue goes
    /// on, unless the refusal says otherwise.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post<R: SendRequest<T> + fmt::Debug>(&mut self, request: R) -> Result<(), PostError<R>> {
        let mut entries = Entries::new();
        if let Err(refusal) = self.check(&request, 0, &mut entries) {
            return Err(PostError { refusal, request: Some(request) });
        }
        if R::WINDOW {
            if let Some(shared) = posted_alone(&request) {
                return self.post_alone(request, &shared);
            }
        }
        let (what, memory) = request.split();
        let flags = self.flags_of(&what);
        let wr_id = self.poster.put(0, what.entry(false), memory);
        let mut wr = MaybeUninit::uninit();
        let list = entries.list();
        // SAFETY: the work request is only read by the provider, as far as its opcode says.
        let chain = unsafe { write_wr::<R>(&mut wr, wr_id, &what, flags, list, null_mut()) };
        self.poster.reserve(1);
        let mut bad = null_mut();
        // SAFETY: the chain is one work request, whose entries live until the call returns. Its memory is
        // owned by the ring from now on, until it is complete or the queue pair is destroyed; inline bytes
        // are borrowed by the caller until after the call.
        match unsafe { self.core.qp().post_send(chain, &mut bad) } {
            Ok(()) => {
                self.poster.posted(1);
                self.count_signal(flags);
                Ok(())
            }
            Err(errno) => {
                let taken = bad != chain;
                let refusal = self.core.refused(self.core.qp().send_verb(), errno, taken);
                if taken {
                    self.poster.posted(1);
                    self.count_signal(flags);
                    return Err(PostError { refusal, request: None });
                }
                self.poster.refused(1, 0);
                let memory = self.poster.restore::<R::Memory>(entries.as_slice());
                let request = memory.map(|memory| R::join(what, memory));
                Err(PostError { refusal, request })
            }
        }
    }

    /// Binds a window of type 1, which has a call of its own.
    #[cold]
    fn post_alone<R: SendRequest<T> + fmt::Debug>(
        &mut self,
        request: R,
        shared: &Shared,
    ) -> Result<(), PostError<R>> {
        let (what, memory) = request.split();
        // Whoever gets the window by its completion waits until the call has returned, which writes the key
        // into it.
        let mut locked = shared.for_post();
        let wr_id = self.poster.put(0, what.entry(false), memory);
        let mut bind = ibv_mw_bind { wr_id, send_flags: what.flags, bind_info: what.bind_info() };
        self.poster.reserve(1);
        // SAFETY: the region is held by the window, which is owned by the ring from now on, until it is
        // complete or the queue pair is destroyed.
        let done = unsafe { locked.bind(self.core.qp(), &mut bind) };
        self.poster.posted(1);
        self.count_signal(what.flags);
        done.map_err(|errno| {
            // It does not tell whether it was taken.
            let refusal = self.core.refused("ibv_bind_mw", errno, true);
            PostError { refusal, request: None }
        })
    }

    /// In the error state: posts something after the last silent sends, so that they complete, if there is
    /// room; it is flushed, and goes nowhere.
    pub(super) fn mark_end(&mut self) {
        // A datagram would need a destination.
        if !T::DATAGRAM && self.silent != 0 && self.poster.has_room(0) {
            // If it cannot be posted, they complete when the queue pair is destroyed.
            let _ = self.post_marker();
        }
    }

    /// Posts a write of no bytes, whose completion is not shown. There is room.
    fn post_marker(&mut self) -> Result<(), Refusal> {
        let what = What::flush();
        let wr_id = self.poster.put(0, what.entry(true), ());
        let mut wr = MaybeUninit::uninit();
        // SAFETY: as in `post`.
        let chain = unsafe {
            write_wr::<Write<()>>(&mut wr, wr_id, &what, what.flags, (null_mut(), 0), null_mut())
        };
        self.poster.reserve(1);
        let mut bad = null_mut();
        // SAFETY: as in `post`, without memory.
        match unsafe { self.core.qp().post_send(chain, &mut bad) } {
            Ok(()) => {
                self.poster.posted(1);
                self.silent = 0;
                Ok(())
            }
            Err(errno) => {
                let taken = bad != chain;
                let refusal = self.core.refused(self.core.qp().send_verb(), errno, taken);
                if taken {
                    self.poster.posted(1);
                } else {
                    self.poster.refused(1, 0);
                    self.poster.end_refused();
                }
                Err(refusal)
            }
        }
    }

    /// The queue pair.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.core.qpn()
    }

    /// How many work requests can be in flight.
    pub fn depth(&self) -> u32 {
        self.poster.ring().depth()
    }

    /// How many are in flight now: posted, and their completions not let go of.
    pub fn in_flight(&mut self) -> u32 {
        self.poster.in_flight()
    }

    /// Closes the whole queue pair; see [`QueuePair::close`](super::QueuePair::close).
    ///
    /// # Errors
    ///
    /// [`Error::Transition`].
    pub fn close(&self) -> Result<()> {
        self.core.close()
    }

    /// What can be found wrong before the device sees it. Fills the entries.
    #[inline]
    pub(super) fn check<R: SendRequest<T>>(
        &mut self,
        request: &R,
        after: u32,
        entries: &mut impl EntryList,
    ) -> Result<(), Refusal> {
        self.check_state(after)?;
        let core = &*self.core;
        let (what, memory) = (request.what(), request.memory());
        if R::WINDOW {
            let fault = request.window().and_then(|window| window.fault(core.windows()));
            if let Some(fault) = fault {
                return Err(Refusal::Window { qpn: core.qpn(), fault });
            }
        }
        let pieces = R::Memory::COUNT as u32;
        let inline = R::Memory::INLINE;
        if !inline && pieces > core.caps.max_send_sge {
            let (asked, limit) = (pieces, core.caps.max_send_sge);
            return Err(Refusal::TooManyEntries { on: core.qpn().into(), asked, limit });
        }
        if memory.address_domain().is_some_and(|domain| domain != core.domain) {
            let what = if R::WINDOW { "a memory window" } else { "an address handle" };
            return Err(Refusal::OtherDomain { what, on: core.qpn().into() });
        }
        let (mut total, mut other) = (0_u64, false);
        memory.for_each(false, &mut |entry, domain| {
            total += u64::from(entry.length);
            other |= domain != ANY_DOMAIN && domain != core.domain;
            entries.push(entry);
        });
        if other {
            return Err(Refusal::OtherDomain { what: "memory", on: core.qpn().into() });
        }
        if inline && total > core.caps.max_inline_data.into() {
            let limit = core.caps.max_inline_data;
            return Err(Refusal::InlineTooLong { qpn: core.qpn(), asked: total, limit });
        }
        if total > self.max_message {
            return Err(Refusal::MessageTooLong {
                qpn: core.qpn(),
                asked: total,
                limit: self.max_message,
            });
        }
        if what.is_remote() {
            if total > what.remote.len() {
                return Err(Refusal::BeyondRemote { asked: total, there: what.remote.len() });
            }
            if what.is_atomic() {
                if !core.atomics {
                    return Err(Refusal::NoAtomics { qpn: core.qpn() });
                }
                if total != 8 || pieces != 1 {
                    return Err(Refusal::AtomicLength { asked: total });
                }
                if what.remote.address() % 8 != 0 {
                    return Err(Refusal::UnalignedAtomic { address: what.remote.address() });
                }
            }
        }
        Ok(())
    }

    /// Whether one more can be posted after `after` others.
    #[inline]
    pub(super) fn check_state(&mut self, after: u32) -> Result<(), Refusal> {
        self.core.check()?;
        if !self.poster.has_room(after) {
            let (on, depth) = (self.qpn().into(), self.depth());
            return Err(Refusal::Full { queue: Queue::Send, on, depth });
        }
        Ok(())
    }

    /// The flags of a request, with a signal where the library asks for one.
    #[inline]
    pub(super) fn flags_of(&self, what: &What) -> u32 {
        if self.silent + 1 >= self.interval || what.is_read() || what.is_atomic() {
            return what.flags | flag::SIGNALED;
        }
        what.flags
    }

    #[inline]
    pub(super) fn count_signal(&mut self, flags: u32) {
        self.silent = if flags & flag::SIGNALED != 0 { 0 } else { self.silent + 1 };
    }
}

impl<T: Connected> SendQueue<T> {
    /// Makes sure that all that was posted completes: if the last were silent, posts a write of no bytes
    /// after them, which completes when they have. Tells whether it had to. Its own completion is not shown.
    ///
    /// The peer's queue pair must allow writes ([`RemoteAccess::WRITE`] of the queue pair, not of memory),
    /// and be known to: by its [`Endpoint`](crate::Endpoint), or by
    /// [`set_peer_access`](SendQueue::set_peer_access). One that does not would end the connection. Where it
    /// is not, let the last request of a series be [`signaled`](crate::wr::Send::signaled). A queue pair of the
    /// unreliable transport needs none of that: a peer that does not allow the write drops it, and nobody is told.
    ///
    /// # Errors
    ///
    /// [`Refusal::FlushNotAllowed`] when the peer is not known to allow it, on the reliable transport; [`Refusal::Full`] and others, as
    /// [`post`](SendQueue::post).
    pub fn flush(&mut self) -> Result<bool> {
        if self.silent == 0 {
            return Ok(false);
        }
        let allowed = self.peer_access.is_some_and(|access| access.contains(RemoteAccess::WRITE));
        if T::RELIABLE && !allowed {
            return Err(Refusal::FlushNotAllowed { qpn: self.qpn() }.into());
        }
        self.check_state(0)?;
        self.post_marker()?;
        Ok(true)
    }

    /// What the peer's queue pair lets this one do, where its [`Endpoint`](crate::Endpoint) does not tell;
    /// for [`flush`](SendQueue::flush).
    pub fn set_peer_access(&mut self, access: RemoteAccess) {
        self.peer_access = Some(access);
    }
}

impl What {
    #[inline]
    pub(super) fn entry(&self, internal: bool) -> Entry {
        Entry { wr_id: self.wr_id, opcode: self.completes_as, pieces: 1, internal }
    }
}

/// Of one that is posted by a call of its own: its window, of type 1.
pub(super) fn posted_alone<R: sealed::Request>(request: &R) -> Option<Arc<Shared>> {
    let window = request.window()?;
    (window.window_type() == WindowType::TYPE_1).then(|| Arc::clone(window.shared()))
}

/// Fills a work request as far as its opcode is about, and gives its address.
///
/// # Safety
///
/// Who reads it reads no more than that.
#[inline]
pub(super) unsafe fn write_wr<R: sealed::Request>(
    wr: &mut MaybeUninit<ibv_send_wr>,
    wr_id: u64,
    what: &What,
    flags: u32,
    (sg_list, num_sge): (*mut ibv_sge, i32),
    next: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let at = wr.as_mut_ptr();
    // SAFETY: the place is ours; each field is written, none read.
    unsafe {
        (&raw mut (*at).wr_id).write(wr_id);
        (&raw mut (*at).next).write(next);
        (&raw mut (*at).sg_list).write(sg_list);
        (&raw mut (*at).num_sge).write(num_sge);
        (&raw mut (*at).opcode).write(what.opcode);
        (&raw mut (*at).send_flags).write(flags);
        (&raw mut (*at).imm_data).write(if R::WINDOW { what.key() } else { what.imm });
        if R::WINDOW {
            // Some drivers look at this of every request.
            (&raw mut (*at).wr).write(What::flush().remote_part());
            (&raw mut (*at).bind_mw).write(what.bind_part());
        } else if R::DATAGRAM {
            (&raw mut (*at).wr).write(what.destination_part());
        } else if what.is_remote() {
            (&raw mut (*at).wr).write(what.remote_part());
        }
    }
    at
}

/// Where `check` puts the scatter/gather entries.
pub(crate) trait EntryList {
    fn push(&mut self, entry: ibv_sge);
}

/// The entries of one work request, on the stack.
pub(super) struct Entries {
    list: [MaybeUninit<ibv_sge>; MAX_PIECES],
    count: usize,
}

impl Entries {
    #[inline]
    pub(super) fn new() -> Entries {
        Entries { list: [const { MaybeUninit::uninit() }; MAX_PIECES], count: 0 }
    }

    /// As C takes them.
    #[inline]
    pub(super) fn list(&mut self) -> (*mut ibv_sge, i32) {
        (self.list.as_mut_ptr().cast(), self.count as i32)
    }

    pub(super) fn as_slice(&self) -> &[ibv_sge] {
        // SAFETY: the first `count` were pushed.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr().cast(), self.count) }
    }
}

impl EntryList for Entries {
    #[inline]
    fn push(&mut self, entry: ibv_sge) {
        // More than the limit of the queue pair, which is at most this, were refused before.
        if let Some(place) = self.list.get_mut(self.count) {
            place.write(entry);
            self.count += 1;
        }
    }
}

impl<T: Transport> fmt::Debug for SendQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &self.qpn())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
