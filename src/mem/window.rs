//! Memory windows: grants of parts of exposed memory, bound and ended by work requests.

#![allow(private_interfaces, private_bounds)] // methods of `sealed`, called by nobody else
#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::exposed::ExposedRange;
use super::held::Held;
use super::piece::Pieces;
use super::remote::RemoteSlice;
use crate::error::{Errno, Error, Object, Result, WindowFault};
use crate::pd::ProtectionDomain;
use crate::sys::abi::{ibv_mw_bind, ibv_mw_bind_info, ibv_sge};
use crate::sys::{MwHandle, QpHandle};
use crate::types::{Capability, RKey, RemoteAccess, WindowType};

/// A memory window (`struct ibv_mw`): a grant of a part of [`Exposed`](super::Exposed) memory, with a key and
/// rights of its own, that is given and ended by work requests instead of a registration.
///
/// It is bound by [`wr::Bind`](crate::wr::Bind), which moves it into the queue until its completion gives it
/// back as [`Memory::Window`](super::Memory::Window); then [`remote`](MemoryWindow::remote) is what to tell the
/// peer. [`wr::LocalInvalidate`](crate::wr::LocalInvalidate) ends the grant; so does a peer's message that
/// invalidates its key ([`wr::Send::invalidate`](crate::wr::Send::invalidate)), which
/// [`note_invalidated`](MemoryWindow::note_invalidated) is to be told of. Dropping it deallocates it
/// (`ibv_dealloc_mw`), and so ends the grant too.
///
/// While it is bound, or being bound, the exposed memory cannot be revoked. A window that was invalidated keeps
/// new requests out, but one that the device had begun may still be under way: that nobody writes any more is
/// only proved by [`Exposed::revoke`](super::Exposed::revoke).
///
/// One of [type 1](MemoryWindow::type_1) is of a protection domain. One of type 2 is of one queue pair
/// ([`QueuePair::memory_window`](crate::QueuePair::memory_window)): only its peer can use it, and it is
/// deallocated before that queue pair is destroyed, wherever it is then; what is left of it is good for nothing.
pub struct MemoryWindow {
    inner: Box<Inner>,
}

/// What a work request in flight holds.
#[repr(align(8))]
pub(crate) struct Inner {
    shared: Arc<Shared>,
    kind: WindowType,
    /// Of type 2: the windows of the queue pair that it is of.
    home: Option<Arc<Windows>>,
    /// The key that it has, or had before it was invalidated.
    rkey: RKey,
    /// What peers can reach by it.
    grant: Option<Grant>,
    /// What it was posted for.
    next: Next,
    /// Whether a work request on it failed: what it grants is not known.
    unsure: bool,
}

struct Grant {
    range: ExposedRange,
    access: RemoteAccess,
}

enum Next {
    Nothing,
    Bind(Grant, RKey),
    Invalidate,
}

/// The window as the device has it. Shared with the queue pair that must not be destroyed before it, and with
/// a post of it that has not returned.
pub(crate) struct Shared {
    state: Mutex<State>,
    pd: ProtectionDomain,
}

enum State {
    Live(MwHandle),
    /// Deallocated, or gone with its device.
    Gone,
    /// It could not be deallocated: what it grants stays granted.
    Stuck,
}

/// A window that is not deallocated, and used by nobody else, as long as this is held.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, State>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves nothing half done behind this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the post of it.
    pub(crate) fn for_post(&self) -> Locked<'_> {
        Locked { state: self.lock() }
    }

    /// Deallocates it, unless that was tried; tells whether nobody reaches anything by it any more.
    fn end(&self) -> bool {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Gone => true,
            State::Stuck => {
                *state = State::Stuck;
                false
            }
            State::Live(handle) => match handle.dealloc() {
                Ok(()) => true,
                // The kernel destroyed it with the device.
                Err((handle, errno)) if self.pd.context().went_with(errno) => {
                    handle.gone();
                    true
                }
                // It stays for ever, and so does its protection domain.
                Err((_, errno)) => {
                    *state = State::Stuck;
                    self.pd.context().leaked("memory window", errno);
                    false
                }
            },
        }
    }
}

impl Locked<'_> {
    /// `ibv_bind_mw`.
    ///
    /// # Safety
    ///
    /// As for [`MwHandle::bind`].
    pub(crate) unsafe fn bind(
        &mut self,
        qp: &QpHandle,
        bind: &mut ibv_mw_bind,
    ) -> Result<(), Errno> {
        match &mut *self.state {
            // SAFETY: by this function's own contract.
            State::Live(handle) => unsafe { handle.bind(qp, bind) },
            State::Gone | State::Stuck => Err(Errno::EINVAL),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Before the memory is let go of, which may end with a deregistration.
        if !self.shared.end() {
            // A peer may still reach it: it stays exposed for ever.
            std::mem::forget((self.grant.take(), std::mem::replace(&mut self.next, Next::Nothing)));
        }
    }
}

/// The windows of type 2 of one queue pair, wherever they are.
#[derive(Default)]
pub(crate) struct Windows {
    list: Mutex<Vec<Weak<Shared>>>,
}

impl Windows {
    /// A window of type 2 (`ibv_alloc_mw`).
    pub(crate) fn make(self: &Arc<Windows>, pd: &ProtectionDomain) -> Result<MemoryWindow> {
        if !pd.context().supports(Capability::MemoryWindow2A) {
            pd.context().require(Capability::MemoryWindow2B)?;
        }
        let window = MemoryWindow::make(pd, WindowType::TYPE_2, Some(Arc::clone(self)))?;
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() == list.capacity() {
            list.retain(|window| window.strong_count() != 0);
        }
        list.push(Arc::downgrade(&window.inner.shared));
        Ok(window)
    }

    /// Deallocates all of them, because the queue pair is about to be destroyed: a device counts on the queue
    /// pair of a window that is bound.
    pub(crate) fn end(&self) {
        let list = std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner));
        for window in list.iter().filter_map(Weak::upgrade) {
            window.end();
        }
    }
}

impl MemoryWindow {
    /// A window of type 1 (`ibv_alloc_mw`): bound through any queue pair of its protection domain, with a key that
    /// the library picks at each bind.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before any call, on a device without
    /// ([`Capability::MemoryWindow1`]); [`Error::Verb`]: `ENOMEM` when the device has no more.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn type_1(pd: &ProtectionDomain) -> Result<MemoryWindow> {
        pd.context().require(Capability::MemoryWindow1)?;
        MemoryWindow::make(pd, WindowType::TYPE_1, None)
    }

    fn make(
        pd: &ProtectionDomain,
        kind: WindowType,
        home: Option<Arc<Windows>>,
    ) -> Result<MemoryWindow> {
        let handle = MwHandle::alloc(Arc::clone(pd.handle()), kind.raw()).map_err(|errno| {
            let object = Object::device(pd.context().device().name());
            Error::Verb { verb: "ibv_alloc_mw", object, errno }
        });
        let mut handle = handle?;
        let rkey = RKey::new(handle.rkey());
        let state = Mutex::new(State::Live(handle));
        let shared = Arc::new(Shared { state, pd: pd.clone() });
        let (grant, next, unsure) = (None, Next::Nothing, false);
        let inner = Inner { shared, kind, home, rkey, grant, next, unsure };
        Ok(MemoryWindow { inner: Box::new(inner) })
    }

    /// Its type.
    pub fn window_type(&self) -> WindowType {
        self.inner.kind
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.inner.shared.pd
    }

    /// What it grants, as a peer names it. `None` while it is not bound, when it is not known whether it is
    /// (a work request on it failed or was flushed), and when the queue pair that it was of is gone.
    pub fn remote(&self) -> Option<RemoteSlice> {
        let inner = &*self.inner;
        let grant = inner.grant.as_ref().filter(|_| !inner.unsure && self.is_live())?;
        Some(RemoteSlice::new(grant.range.address(), grant.range.len() as u64, inner.rkey))
    }

    /// What peers may do by it; `None` as for [`remote`](MemoryWindow::remote).
    pub fn access(&self) -> Option<RemoteAccess> {
        self.remote().and(self.inner.grant.as_ref().map(|grant| grant.access))
    }

    /// Whether it can be bound again, or invalidated if it is bound. If not, it can only be dropped.
    pub fn is_usable(&self) -> bool {
        !self.inner.unsure && self.is_live()
    }

    /// Notes that the peer invalidated this key of this side, as
    /// [`Completion::invalidated`](crate::Completion::invalidated) tells: if it is this window's, it is not bound
    /// any more, can be bound again, and does not hold its memory. Tells whether it was.
    ///
    /// Each window whose key a peer may invalidate is to be told; one that is not is taken for bound.
    pub fn note_invalidated(&mut self, key: RKey) -> bool {
        let inner = &mut *self.inner;
        let is_it = inner.kind == WindowType::TYPE_2 && inner.rkey == key && inner.grant.is_some();
        if is_it {
            inner.grant = None;
        }
        is_it
    }

    fn is_live(&self) -> bool {
        matches!(*self.inner.shared.lock(), State::Live(_))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Prepares it to be bound: what the device is told of that.
    pub(crate) fn prepare_bind(&mut self, range: ExposedRange, access: RemoteAccess) -> Told {
        let rkey = self.inner.rkey.next_tag();
        let told = self.tell(rkey, Some(&range), access);
        self.inner.next = Next::Bind(Grant { range, access }, rkey);
        told
    }

    /// Prepares it to be invalidated. One of type 1 is bound to nothing.
    pub(crate) fn prepare_invalidate(&mut self) -> Told {
        let rkey = match self.inner.kind {
            WindowType::TYPE_1 => self.inner.rkey.next_tag(),
            _ => self.inner.rkey,
        };
        let told = self.tell(rkey, None, RemoteAccess::default());
        self.inner.next = Next::Invalidate;
        told
    }

    fn tell(&self, rkey: RKey, range: Option<&ExposedRange>, access: RemoteAccess) -> Told {
        let inner = &*self.inner;
        let mut window = 0;
        if let State::Live(handle) = &mut *inner.shared.lock() {
            if inner.kind != WindowType::TYPE_1 {
                handle.set_rkey(inner.rkey.get());
            }
            window = handle.address();
        }
        // A library reads the region of a bind to nothing too.
        let region = range.or(inner.grant.as_ref().map(|grant| &grant.range));
        let region = region.map_or(0, |range| range.inner().region_address());
        let (address, len) = range.map_or((0, 0), |range| (range.address(), range.len() as u64));
        let access = access.bits();
        Told { window, region, remote: RemoteSlice::new(address, len, rkey), access }
    }

    /// What is wrong with what it was prepared for, on a queue pair with these windows.
    pub(crate) fn fault(&self, here: Option<&Arc<Windows>>) -> Option<WindowFault> {
        let inner = &*self.inner;
        if let Some(home) = &inner.home {
            if !here.is_some_and(|here| Arc::ptr_eq(here, home)) {
                return Some(WindowFault::OtherQueuePair);
            }
        }
        // Not deallocated: by whom? Its queue pair is there, and so is it itself.
        if inner.unsure {
            return Some(WindowFault::Unsure);
        }
        match &inner.next {
            Next::Bind(grant, _) => {
                if grant.range.is_empty() {
                    return Some(WindowFault::Empty);
                }
                if *grant.range.inner().memory().pd() != inner.shared.pd {
                    return Some(WindowFault::OtherDomain);
                }
                if !grant.range.inner().windows {
                    return Some(WindowFault::NoBindRight);
                }
                // One of type 1 may be bound anew.
                let is_bound = inner.grant.is_some() && inner.kind != WindowType::TYPE_1;
                is_bound.then_some(WindowFault::Bound)
            }
            Next::Invalidate => inner.grant.is_none().then_some(WindowFault::NotBound),
            Next::Nothing => Some(WindowFault::NotBound),
        }
    }

    /// The work request was not posted.
    pub(crate) fn not_posted(&mut self) {
        self.inner.next = Next::Nothing;
    }

    /// The work request is complete.
    pub(crate) fn settle(&mut self, carried_out: bool) {
        let inner = &mut *self.inner;
        if !carried_out {
            // What was granted before and what was to be are both held until it is deallocated.
            inner.unsure = true;
            return;
        }
        match std::mem::replace(&mut inner.next, Next::Nothing) {
            Next::Bind(grant, rkey) => {
                inner.grant = Some(grant);
                inner.rkey = rkey;
            }
            Next::Invalidate => inner.grant = None,
            Next::Nothing => {}
        }
        if inner.kind == WindowType::TYPE_1 {
            // The library's own choice. Waits for the post to return, if it did not yet.
            if let State::Live(handle) = &mut *inner.shared.lock() {
                inner.rkey = RKey::new(handle.rkey());
            }
        }
    }

    #[inline]
    pub(super) fn into_inner(self) -> Box<Inner> {
        self.inner
    }

    #[inline]
    pub(super) fn of(inner: Box<Inner>) -> MemoryWindow {
        MemoryWindow { inner }
    }
}

/// What the device is told of a bind or an invalidation: the addresses of C's structs, and the rest.
pub(crate) struct Told {
    pub(crate) window: u64,
    pub(crate) region: u64,
    pub(crate) remote: RemoteSlice,
    pub(crate) access: u32,
}

impl Told {
    pub(crate) fn info(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: std::ptr::with_exposed_provenance_mut(self.region as usize),
            addr: self.remote.address(),
            length: self.remote.len(),
            mw_access_flags: self.access,
        }
    }
}

/// A window in a work request: no entry, and held.
#[derive(Debug)]
#[allow(unreachable_pub)] // named by a public trait, and by nobody else
pub struct Posted(pub(crate) MemoryWindow);

impl Pieces for Posted {
    const COUNT: usize = 0;

    #[inline]
    fn for_each(&self, _: bool, _: &mut impl FnMut(ibv_sge, usize)) {}

    #[inline]
    fn address_domain(&self) -> Option<usize> {
        Some(self.0.inner.shared.pd.id())
    }

    #[inline]
    fn hold(self, each: &mut impl FnMut(Held)) {
        each(Held::window(self.0));
    }

    fn restore(next: &mut impl FnMut() -> Option<(Held, ibv_sge)>) -> Option<Posted> {
        let (held, _) = next()?;
        held.into_window().ok().map(Posted)
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("type", &self.inner.kind)
            .field("remote", &self.remote())
            .field("usable", &self.is_usable())
            .finish_non_exhaustive()
    }
}
