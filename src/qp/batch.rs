//! Several work requests for one doorbell.

#![allow(unsafe_code)]
#![allow(private_bounds)] // `Receives` is what two queues have in common, and nobody else's

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::null_mut;

use super::receives::Receives;
use super::recv::{Receive, RecvQueue};
use super::request::{SendRequest, flag};
use super::send::{EntryList, PostError, SendQueue, posted_alone, write_wr};
use super::transport::{Rc, Transport};
use crate::error::{Error, Refusal, WindowFault};
use crate::mem::{Buffer, Memory, Pieces, Scatter};
use crate::sys::abi::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::wq::{Claimed, Posting};

/// A list of at most `N`, on the stack. Dropping it drops none of them.
pub(super) struct List<T, const N: usize> {
    items: [MaybeUninit<T>; N],
    count: usize,
}

impl<T, const N: usize> List<T, N> {
    #[inline]
    pub(super) fn new() -> List<T, N> {
        List { items: [const { MaybeUninit::uninit() }; N], count: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn has_room(&self, more: usize) -> bool {
        N - self.count >= more
    }

    /// The address of the first item, and by counting from it of the others: asked for once, since asking
    /// again ends what was made of the first answer.
    #[inline]
    pub(super) fn start(&mut self) -> *mut T {
        self.items.as_mut_ptr().cast()
    }

    /// Whether there is room was asked before.
    #[inline]
    pub(super) fn push(&mut self, item: T) {
        if let Some(place) = self.items.get_mut(self.count) {
            place.write(item);
            self.count += 1;
        }
    }
}

impl<const N: usize> EntryList for List<ibv_sge, N> {
    #[inline]
    fn push(&mut self, entry: ibv_sge) {
        List::push(self, entry);
    }
}

/// Work requests of a send queue that are posted together, with one doorbell: at most `N`, of at most `E`
/// scatter/gather entries in all. Made by [`SendQueue::batch`]; lives on the stack.
///
/// Dropping it without posting drops the requests.
#[must_use = "its requests do nothing until it is posted"]
pub struct SendBatch<'a, const N: usize, const E: usize, T = Rc> {
    queue: &'a mut SendQueue<T>,
    /// How many were not to be signaled before; that of the queue is of what was posted.
    silent: u32,
    requests: List<ibv_send_wr, N>,
    entries: List<ibv_sge, E>,
}

impl<T: Transport> SendQueue<T> {
    /// A batch of at most `N` work requests of one scatter/gather entry.
    #[inline]
    pub fn batch<const N: usize>(&mut self) -> SendBatch<'_, N, N, T> {
        self.batch_of()
    }

    /// A batch of at most `N` work requests, of at most `E` scatter/gather entries in all.
    #[inline]
    pub fn batch_of<const N: usize, const E: usize>(&mut self) -> SendBatch<'_, N, E, T> {
        let silent = self.silent;
        SendBatch { queue: self, silent, requests: List::new(), entries: List::new() }
    }
}

impl<'a, const N: usize, const E: usize, T: Transport> SendBatch<'a, N, E, T> {
    /// Adds a work request. Inline bytes must live until the batch is posted.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the request: [`Refusal::BatchFull`] when the batch has no room, and as
    /// [`SendQueue::post`]. The batch is as it was.
    #[inline]
    pub fn push<R: SendRequest<T> + fmt::Debug + 'a>(
        &mut self,
        request: R,
    ) -> Result<(), PostError<R>> {
        if R::WINDOW && posted_alone(&request).is_some() {
            let (qpn, fault) = (self.queue.qpn(), WindowFault::InBatch);
            let refusal = Refusal::Window { qpn, fault };
            return Err(PostError { refusal, request: Some(request) });
        }
        let count = self.requests.count;
        let first_entry = self.entries.count;
        let room = room(&self.requests, &self.entries, R::Memory::COUNT);
        let checked =
            room.and_then(|()| self.queue.check(&request, count as u32, &mut self.entries));
        if let Err(refusal) = checked {
            self.entries.count = first_entry;
            return Err(PostError { refusal, request: Some(request) });
        }
        let (what, memory) = request.split();
        std::mem::swap(&mut self.queue.silent, &mut self.silent);
        let flags = self.queue.flags_of(&what);
        self.queue.count_signal(flags);
        std::mem::swap(&mut self.queue.silent, &mut self.silent);
        let wr_id = self.queue.poster.put(count as u32, what.entry(false), memory);
        // The list's address and the next request are told when it is posted: it may move until then.
        let entries = (null_mut(), R::Memory::COUNT as i32);
        // SAFETY: only this batch reads it, and the provider, as far as its opcode says.
        unsafe {
            write_wr::<R>(&mut self.requests.items[count], wr_id, &what, flags, entries, null_mut())
        };
        self.requests.count += 1;
        Ok(())
    }

    /// How many work requests it has.
    pub fn len(&self) -> usize {
        self.requests.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.requests.count == 0
    }

    /// Posts them all (`ibv_post_send`), with one doorbell; nothing when there are none.
    ///
    /// # Errors
    ///
    /// [`BatchError`]: how many the device took, and those that it did not, with their memory.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(self) -> Result<(), BatchError<'a>> {
        let mut this = ManuallyDrop::new(self);
        // Once: each time it is asked for anew, all of it is borrowed, and what points into it ends.
        let this = &mut *this;
        let count = this.requests.count;
        if count == 0 {
            return Ok(());
        }
        let chain = this.requests.start();
        // SAFETY: the first `count` requests were written by `push`, with as many entries in all.
        unsafe { link(chain, count, this.entries.start()) };
        this.queue.poster.reserve(count as u32);
        let mut bad = null_mut();
        // SAFETY: the chain is in `this`, which does not move, and well formed, as linked above. Its memory
        // is owned by the ring from now on, until it is complete or the queue pair is destroyed; inline
        // bytes outlive the batch.
        match unsafe { this.queue.core.qp().post_send(chain, &mut bad) } {
            Ok(()) => {
                this.queue.poster.posted(count as u32);
                this.queue.silent = this.silent;
                Ok(())
            }
            Err(errno) => {
                let place = place_in_chain(chain, count, bad);
                let refusal = this.queue.core.refused(
                    this.queue.core.qp().send_verb(),
                    errno,
                    place.is_none(),
                );
                let taken = place.unwrap_or(count);
                for at in 0..taken {
                    // SAFETY: one of the first `count` requests.
                    let flags = unsafe { (*chain.wrapping_add(at)).send_flags };
                    let silent = this.queue.silent + 1;
                    this.queue.silent = if flags & flag::SIGNALED != 0 { 0 } else { silent };
                }
                // SAFETY: `this` is not used, nor dropped, any more: the reference is moved out of it.
                let queue: &'a mut SendQueue<T> = unsafe { std::ptr::read(&this.queue) };
                Err(BatchError::new(refusal, &mut queue.poster, count, taken))
            }
        }
    }
}

impl<const N: usize, const E: usize, T> Drop for SendBatch<'_, N, E, T> {
    #[inline]
    fn drop(&mut self) {
        self.queue.poster.withdraw(self.requests.count as u32);
    }
}

/// Receives that are posted together: at most `N`, of at most `E` scatter entries in all. Made by
/// [`RecvQueue::batch`], and by [`SharedReceiveQueue::batch`](crate::SharedReceiveQueue::batch); lives on the
/// stack.
///
/// Dropping it without posting drops the receives.
#[must_use = "its receives do nothing until it is posted"]
pub struct RecvBatch<'a, const N: usize, const E: usize, Q: Receives = RecvQueue> {
    queue: &'a mut Q,
    requests: List<ibv_recv_wr, N>,
    entries: List<ibv_sge, E>,
}

impl RecvQueue {
    /// A batch of at most `N` receives of one scatter entry.
    #[inline]
    pub fn batch<const N: usize>(&mut self) -> RecvBatch<'_, N, N> {
        self.batch_of()
    }

    /// A batch of at most `N` receives, of at most `E` scatter entries in all.
    #[inline]
    pub fn batch_of<const N: usize, const E: usize>(&mut self) -> RecvBatch<'_, N, E> {
        RecvBatch::new(self)
    }
}

impl<'a, const N: usize, const E: usize, Q: Receives> RecvBatch<'a, N, E, Q> {
    #[inline]
    pub(crate) fn new(queue: &'a mut Q) -> RecvBatch<'a, N, E, Q> {
        RecvBatch { queue, requests: List::new(), entries: List::new() }
    }

    /// Adds a receive.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the receive: [`Refusal::BatchFull`] when the batch has no room, and as
    /// [`RecvQueue::post`]. The batch is as it was.
    #[inline]
    pub fn push<M: Scatter + fmt::Debug>(
        &mut self,
        receive: Receive<M>,
    ) -> Result<(), PostError<Receive<M>>> {
        let count = self.requests.count;
        let first_entry = self.entries.count;
        let room = room(&self.requests, &self.entries, M::COUNT);
        let checked =
            room.and_then(|()| self.queue.check(&receive, count as u32, &mut self.entries));
        if let Err(refusal) = checked {
            self.entries.count = first_entry;
            return Err(PostError { refusal, request: Some(receive) });
        }
        let entry = receive.entry();
        let wr_id = self.queue.poster().put(count as u32, entry, receive.memory);
        // The list's address and the next receive are told when it is posted: it may move until then.
        let (next, sg_list, num_sge) = (null_mut(), null_mut(), M::COUNT as i32);
        self.requests.items[count].write(ibv_recv_wr { wr_id, next, sg_list, num_sge });
        self.requests.count += 1;
        Ok(())
    }

    /// How many receives it has.
    pub fn len(&self) -> usize {
        self.requests.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.requests.count == 0
    }

    /// Posts them all (`ibv_post_recv`, `ibv_post_srq_recv`) with one call; nothing when there are none.
    ///
    /// # Errors
    ///
    /// [`BatchError`]: how many the device took, and those that it did not, with their memory.
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post(self) -> Result<(), BatchError<'a>> {
        let mut this = ManuallyDrop::new(self);
        // Once: each time it is asked for anew, all of it is borrowed, and what points into it ends.
        let this = &mut *this;
        let count = this.requests.count;
        if count == 0 {
            return Ok(());
        }
        let chain = this.requests.start();
        // SAFETY: the first `count` receives were written by `push`, with as many entries in all.
        unsafe { link(chain, count, this.entries.start()) };
        // SAFETY: put by `push` in this order, and linked above; the chain is in `this`, which does not move.
        unsafe { this.queue.post_chain(chain, count) }.map_err(|(refusal, taken)| {
            // SAFETY: `this` is not used, nor dropped, any more: the reference is moved out of it.
            let queue: &'a mut Q = unsafe { std::ptr::read(&this.queue) };
            BatchError::new(refusal, queue.poster(), count, taken)
        })
    }
}

impl<const N: usize, const E: usize, Q: Receives> Drop for RecvBatch<'_, N, E, Q> {
    #[inline]
    fn drop(&mut self) {
        self.queue.poster().withdraw(self.requests.count as u32);
    }
}

/// A work request of either queue, as a link of a chain.
pub(super) trait Link {
    /// Points to the one after it, and to its scatter/gather entries; gives their number.
    ///
    /// # Safety
    ///
    /// `this` is the caller's, and its number of entries was written; the rest need not have been.
    unsafe fn link(this: *mut Self, next: *mut Self, entries: *mut ibv_sge) -> usize;
}

macro_rules! links {
    ($($request:ty),*) => {$(
        impl Link for $request {
            #[inline]
            unsafe fn link(this: *mut Self, next: *mut Self, entries: *mut ibv_sge) -> usize {
                // SAFETY: by this function's own contract. No reference: not all of it is written.
                unsafe {
                    (&raw mut (*this).next).write(next);
                    (&raw mut (*this).sg_list).write(entries);
                    (*this).num_sge as usize
                }
            }
        }
    )*};
}
links!(ibv_send_wr, ibv_recv_wr);

/// Makes a chain of work requests that lie one after the other, and so do their entries.
///
/// # Safety
///
/// There are `count` of them, the caller's, and their numbers of entries were written.
#[inline]
pub(super) unsafe fn link<W: Link>(chain: *mut W, count: usize, mut entries: *mut ibv_sge) {
    for at in 0..count {
        let request = chain.wrapping_add(at);
        let next = if at + 1 < count { request.wrapping_add(1) } else { null_mut() };
        // SAFETY: by this function's own contract.
        entries = entries.wrapping_add(unsafe { W::link(request, next, entries) });
    }
}

/// Which of a chain was the first that was not taken; `None` for one that is not of it.
#[cold]
pub(super) fn place_in_chain<W>(chain: *mut W, count: usize, bad: *mut W) -> Option<usize> {
    (0..count).find(|at| std::ptr::eq(chain.wrapping_add(*at), bad))
}

/// Whether a batch has room for one more request of so many entries.
#[inline]
fn room<T, const N: usize, const E: usize>(
    requests: &List<T, N>,
    entries: &List<ibv_sge, E>,
    more: usize,
) -> Result<(), Refusal> {
    if !requests.has_room(1) {
        return Err(Refusal::BatchFull { what: "work requests", room: N as u32 });
    }
    if !entries.has_room(more) {
        return Err(Refusal::BatchFull { what: "scatter/gather entries", room: E as u32 });
    }
    Ok(())
}

/// A batch that was not posted, or not all of it.
///
/// Take what was not taken back by [`next_refused`](BatchError::next_refused); dropping it drops that.
#[derive(thiserror::Error)]
#[error("{refusal}; {taken} of {count} were taken")]
#[non_exhaustive]
pub struct BatchError<'a> {
    /// Why.
    pub refusal: Refusal,
    /// How many the device took, from the first on; all, when it does not say
    /// ([`Refusal::Unsure`]).
    pub taken: usize,
    count: usize,
    poster: &'a mut (dyn Posting + Send + Sync),
}

/// A work request that was not taken, with its memory. Of a datagram, its address handle is let go of with it.
pub struct Refused<'a> {
    claimed: Claimed<'a>,
}

impl<'a> BatchError<'a> {
    #[cold]
    fn new(
        refusal: Refusal,
        poster: &'a mut (dyn Posting + Send + Sync),
        count: usize,
        taken: usize,
    ) -> Self {
        poster.not_all(count as u32, taken as u32);
        BatchError { refusal, taken, count, poster }
    }

    /// The next work request that was not taken, in the order they were added.
    pub fn next_refused(&mut self) -> Option<Refused<'_>> {
        self.poster.next_refused().map(|claimed| Refused { claimed })
    }
}

impl Drop for BatchError<'_> {
    fn drop(&mut self) {
        self.poster.end_refused();
    }
}

impl fmt::Debug for BatchError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchError")
            .field("refusal", &self.refusal)
            .field("taken", &self.taken)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl From<BatchError<'_>> for Error {
    fn from(failed: BatchError<'_>) -> Error {
        failed.refusal.into()
    }
}

impl Refused<'_> {
    /// The caller's own number.
    pub fn wr_id(&self) -> u64 {
        self.claimed.wr_id()
    }

    /// The next piece of its memory.
    pub fn take(&mut self) -> Option<Memory> {
        let mut memory =
            std::iter::from_fn(|| self.claimed.take()).find_map(|held| held.into_memory());
        if let Some(Memory::Window(window)) = &mut memory {
            window.not_posted();
        }
        memory
    }

    /// Its exclusive buffer, the first if there are several.
    pub fn into_buffer(mut self) -> Option<Buffer> {
        std::iter::from_fn(|| self.claimed.take()).find_map(|held| held.into_buffer().ok())
    }
}

impl fmt::Debug for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("wr_id", &self.wr_id()).finish_non_exhaustive()
    }
}
