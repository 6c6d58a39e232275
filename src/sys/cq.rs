//! The owners of an `ibv_comp_channel` and of an `ibv_cq`. `extended`: those that are polled entry by entry.

mod extended;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi::{ibv_comp_channel, ibv_cq, ibv_wc};
use super::context::ContextHandle;
use super::{calls, conv};
use crate::error::Errno;
use extended::Extended;

/// By the address of a CQ.
type ByCq<T> = hashbrown::HashMap<usize, T, foldhash::fast::FixedState>;

/// A completion channel; destroyed when dropped. The CQs on it hold it.
///
/// An event is taken from it, its CQ found and the event counted under one lock, and a CQ is destroyed
/// under the same: the library finds the CQ by a pointer that it reads from the channel, which must not
/// dangle, and destroying waits until every event taken was acknowledged.
pub(crate) struct ChannelHandle {
    channel: NonNull<ibv_comp_channel>,
    /// By the address of the CQ: events taken and not acknowledged yet.
    taken: Mutex<ByCq<u32>>,
    /// Closed after it.
    context: Arc<ContextHandle>,
}

// SAFETY: verbs may be called from any thread, and destroying does not depend on the thread.
unsafe impl Send for ChannelHandle {}
// SAFETY: as above; what must not happen side by side is under `taken`.
unsafe impl Sync for ChannelHandle {}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        // SAFETY: made by us, destroyed once, here, after the CQs on it, which hold it.
        let returned = unsafe { calls::ibv_destroy_comp_channel(self.channel.as_ptr()) };
        self.context.note_end(returned);
    }
}

/// Acknowledging takes a mutex of the library: so many events at a time.
const ACK_AT: u32 = 64;

impl ChannelHandle {
    /// `ibv_create_comp_channel`, with a descriptor that does not block.
    pub(crate) fn create(context: Arc<ContextHandle>) -> Result<ChannelHandle, Errno> {
        conv::preset_errno();
        // SAFETY: the context is open while `context` lives.
        let channel = conv::pointer(unsafe { calls::ibv_create_comp_channel(context.raw()) })?;
        let handle = ChannelHandle { channel, taken: Mutex::default(), context };
        super::set_nonblocking(handle.fd().as_raw_fd())?;
        Ok(handle)
    }

    /// Readable when there are events. Only to wait on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, is open while `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    fn raw(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    /// Takes one event, if there is one (`ibv_get_cq_event`): tells `found` the key of its CQ
    /// ([`CqHandle::key`]) while that cannot be destroyed.
    pub(crate) fn next_event(&self, found: &mut dyn FnMut(usize)) -> Result<bool, Errno> {
        let mut taken = self.taken();
        let (mut cq, mut context) = (null_mut(), null_mut());
        conv::preset_errno();
        // SAFETY: the channel lives, and no CQ on it is destroyed while `taken` is locked, so the
        // pointer that the library reads from the channel is good: the kernel drops the events of a CQ
        // that is destroyed.
        let returned =
            unsafe { calls::ibv_get_cq_event(self.channel.as_ptr(), &mut cq, &mut context) };
        match conv::zero_or_minus_one(returned) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        let key = cq.addr();
        let count = taken.entry(key).or_default();
        *count += 1;
        if *count >= ACK_AT {
            // SAFETY: the CQ is live as above, and so many of its events are not acknowledged.
            unsafe { calls::ibv_ack_cq_events(cq, *count) };
            *count = 0;
        }
        found(key);
        Ok(true)
    }

    fn taken(&self) -> MutexGuard<'_, ByCq<u32>> {
        // A panic elsewhere leaves nothing half done behind this lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `ibv_poll_cq` of a provider.
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// `ibv_req_notify_cq` of a provider.
type ReqNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// A completion queue; destroyed when dropped. The queue pairs on it hold it.
pub(crate) struct CqHandle {
    cq: NonNull<ibv_cq>,
    /// The context's operation, at hand; not of one that is polled by its own.
    poll: Option<PollCq>,
    extended: Option<Extended>,
    /// The context's operation, at hand; only of one with a channel.
    req_notify: Option<ReqNotify>,
    /// Destroyed after it.
    channel: Option<Arc<ChannelHandle>>,
    /// Closed after it.
    context: Arc<ContextHandle>,
}

// SAFETY: verbs may be called from any thread, polling included, and destroying does not depend on
// the thread.
unsafe impl Send for CqHandle {}
// SAFETY: as above; the methods that take `&self` only call such verbs.
unsafe impl Sync for CqHandle {}

impl Drop for CqHandle {
    fn drop(&mut self) {
        let mut taken = self.channel.as_ref().map(|channel| channel.taken());
        if let Some(taken) = &mut taken {
            match taken.remove(&self.key()) {
                None | Some(0) => {}
                // SAFETY: the CQ is live; so many of its events were taken and not acknowledged, and
                // none is taken meanwhile.
                Some(count) => unsafe { calls::ibv_ack_cq_events(self.cq.as_ptr(), count) },
            }
        }
        // SAFETY: made by us, destroyed once, here, after the queue pairs on it, which hold it.
        let returned = unsafe { calls::ibv_destroy_cq(self.cq.as_ptr()) };
        self.context.note_end(returned);
    }
}

impl CqHandle {
    /// `ibv_create_cq` with room for at least `cqe` completions.
    pub(crate) fn create(
        context: Arc<ContextHandle>,
        cqe: u32,
        channel: Option<Arc<ChannelHandle>>,
        vector: u32,
    ) -> Result<CqHandle, Errno> {
        let cqe = c_int::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let vector = c_int::try_from(vector).map_err(|_| Errno::EINVAL)?;
        CqHandle::check(&context, channel.as_ref())?;
        let raw_channel = channel.as_ref().map_or(null_mut(), |channel| channel.raw());
        conv::preset_errno();
        // SAFETY: the context is open, and the channel, if there is one, is live and of it.
        let cq = conv::pointer(unsafe {
            calls::ibv_create_cq(context.raw(), cqe, null_mut(), raw_channel, vector)
        })?;
        Ok(CqHandle::new(cq, None, channel, context))
    }

    /// Whether the channel is of the context.
    fn check(
        context: &Arc<ContextHandle>,
        channel: Option<&Arc<ChannelHandle>>,
    ) -> Result<(), Errno> {
        match channel {
            Some(channel) if !Arc::ptr_eq(channel.context(), context) => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// Of one that was just made on these.
    fn new(
        cq: NonNull<ibv_cq>,
        extended: Option<Extended>,
        channel: Option<Arc<ChannelHandle>>,
        context: Arc<ContextHandle>,
    ) -> CqHandle {
        // SAFETY: the context is open. What its provider put there on opening it stays.
        let ops = unsafe { &(*context.raw()).ops };
        let poll = ops.poll_cq.filter(|_| extended.is_none());
        let req_notify = ops.req_notify_cq.filter(|_| channel.is_some());
        CqHandle { cq, poll, extended, req_notify, channel, context }
    }

    /// What events on its channel name it by; its address, unique while it lives.
    pub(crate) fn key(&self) -> usize {
        self.cq.as_ptr().addr()
    }

    /// For the calls of this folder; good while `self` lives.
    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// C's object, for callers who know what it is; good while `self` lives.
    pub(crate) fn as_raw(&self) -> NonNull<c_void> {
        self.cq.cast()
    }

    /// Whether there is somewhere to tell of completions.
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// How many completions it has room for.
    pub(crate) fn granted(&self) -> u32 {
        // SAFETY: the CQ is live; nobody resizes it.
        u32::try_from(unsafe { (*self.raw()).cqe }).unwrap_or(0)
    }

    /// `ibv_poll_cq`: how many entries were written to the front of `wcs`. `None` of one that is polled by
    /// [`poll_extended`](CqHandle::poll_extended).
    #[inline(always)]
    pub(crate) fn poll(&self, wcs: &mut [MaybeUninit<ibv_wc>]) -> Option<Result<usize, Errno>> {
        let poll = self.poll?;
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: the operation is that of the CQ's own context, and the CQ is live. The provider writes at
        // most `room` entries.
        let returned = unsafe { poll(self.raw(), room, wcs.as_mut_ptr().cast()) };
        Some(match usize::try_from(returned) {
            Ok(count) => Ok(count.min(wcs.len())),
            Err(_) => Err(poll_error(returned)),
        })
    }

    /// The same by the calls that it was made with, and whether it was seen empty; where it was made to tell times,
    /// those of the entries are written to the front of `times`.
    ///
    /// # Safety
    ///
    /// Nobody else polls it meanwhile.
    pub(crate) unsafe fn poll_extended(
        &self,
        wcs: &mut [MaybeUninit<ibv_wc>],
        times: &mut [u64],
    ) -> Result<(usize, bool), Errno> {
        match &self.extended {
            // SAFETY: the CQ is live; else by this function's own contract.
            Some(extended) => unsafe { extended.poll(wcs, times) },
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Whether it is of this open device.
    pub(super) fn is_of(&self, context: &ContextHandle) -> bool {
        std::ptr::eq(&*self.context, context)
    }

    /// Whether it is polled entry by entry.
    pub(crate) fn is_extended(&self) -> bool {
        self.extended.is_some()
    }

    /// `ibv_req_notify_cq`: one event for the next completion that comes. `EOPNOTSUPP` without a channel too.
    #[inline(always)]
    pub(crate) fn req_notify(&self, solicited_only: bool) -> Result<(), Errno> {
        let Some(request) = self.req_notify else { return Err(Errno::EOPNOTSUPP) };
        // SAFETY: the operation is that of the CQ's own context, and the CQ is live.
        match unsafe { request(self.raw(), c_int::from(solicited_only)) } {
            0 => Ok(()),
            returned => Err(refused(returned)),
        }
    }
}

/// What a poll means by this negative return. A provider says -1, the errno negated, or -2, which of mlx4 and mlx5
/// is CQ_POLL_ERR and no errno; and sets errno or does not.
#[cold]
fn poll_error(returned: c_int) -> Errno {
    if returned >= -2 { Errno::EIO } else { Errno::from_raw(returned.saturating_neg()) }
}

/// What a call means by this return.
#[cold]
#[inline(never)]
fn refused(returned: c_int) -> Errno {
    conv::zero_or_errno(returned).err().unwrap_or(Errno::EIO)
}
