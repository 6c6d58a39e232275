//! Buffers of a pool: exclusive, and shared.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;

use super::extent::Extent;
use super::pool::Inner;
use crate::error::{Error, Result};
use crate::sync::{AtomicU32, Ordering};

/// What a pool knows of one of its buffers. Not in the memory that the device sees.
#[repr(align(8))]
pub(crate) struct Slot {
    extent: Extent,
    pool: NonNull<Inner>,
    number: u32,
    /// How many shared owners there are.
    shared: AtomicU32,
}

impl Slot {
    pub(super) fn new(
        start: NonNull<u8>,
        pool: NonNull<Inner>,
        capacity: u32,
        number: u32,
    ) -> Slot {
        let (extent, shared) = (Extent::new(start, capacity), AtomicU32::new(0));
        Slot { extent, pool, number, shared }
    }

    fn pool(&self) -> &Inner {
        // SAFETY: the pool's memory lives as long as one of its buffers is out, and who has a slot
        // has its buffer.
        unsafe { self.pool.as_ref() }
    }

    /// Gives the buffer back to its pool.
    ///
    /// # Safety
    ///
    /// The caller is the last owner of the buffer and does not use it, or the slot, any more.
    #[inline]
    unsafe fn give_back(this: NonNull<Slot>) {
        // SAFETY: the slot is live while its buffer is out.
        let (pool, number) = unsafe { (this.as_ref().pool, this.as_ref().number) };
        // SAFETY: the pool's memory is live while the buffer is out.
        let last = unsafe { pool.as_ref() }.free.give(number);
        if last {
            // SAFETY: the free list told us that nothing is out any more.
            unsafe { Inner::free(pool) }
        }
    }
}

/// A buffer of a [`Pool`](super::Pool), nobody else's: reads and writes as `[u8]`, of its
/// [`len`](slice::len), which is what a work request sends of it.
///
/// As big as a pointer. Posting moves it into the queue, and its completion gives it back; dropping it
/// gives it back to its pool.
#[repr(transparent)]
pub struct Buffer {
    slot: NonNull<Slot>,
}

// SAFETY: an exclusive owner of memory that any thread may use; what it shares with others of its pool
// is made of atomics.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    ///
    /// The free list gave its number to the caller alone.
    #[inline]
    pub(super) unsafe fn taken(slot: NonNull<Slot>) -> Buffer {
        let buffer = Buffer { slot };
        buffer.slot().extent.put_len(buffer.slot().extent.capacity());
        buffer
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: slots live as long as a buffer of the pool is out, and this is one.
        unsafe { self.slot.as_ref() }
    }

    /// Gives up ownership; [`from_slot`](Buffer::from_slot) takes it again.
    #[inline]
    pub(super) fn into_slot(self) -> NonNull<Slot> {
        ManuallyDrop::new(self).slot
    }

    /// # Safety
    ///
    /// The slot came from [`into_slot`](Buffer::into_slot), and is taken again once.
    #[inline]
    pub(super) unsafe fn from_slot(slot: NonNull<Slot>) -> Buffer {
        Buffer { slot }
    }

    /// How many bytes there is room for.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.slot().extent.capacity() as usize
    }

    /// Sets how many of its bytes are in use, up to its capacity. Bytes that come into use have
    /// whatever was in the memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] beyond the capacity; the length is then as before.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        self.slot().extent.set_len(len)
    }

    /// Copies the bytes to its front, and makes them all that is in use.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when there are more than its capacity; nothing is copied then.
    pub fn fill_from(&mut self, bytes: &[u8]) -> Result<()> {
        self.set_len(bytes.len())?;
        self.copy_from_slice(bytes);
        Ok(())
    }

    /// Makes it one that many may read, and many sends may share.
    pub fn freeze(self) -> SharedBuffer {
        let len = self.len() as u32;
        let slot = self.into_slot();
        // SAFETY: as in `slot`; ownership goes to the shared buffer, the first.
        unsafe { slot.as_ref() }.shared.store(1, Ordering::Relaxed);
        SharedBuffer { slot, start: 0, len }
    }

    #[inline]
    pub(crate) fn put_len(&mut self, len: u32) {
        self.slot().extent.put_len(len);
    }

    #[inline]
    pub(super) fn address(&self) -> u64 {
        self.slot().extent.address()
    }

    #[inline]
    pub(super) fn pool(&self) -> &Inner {
        self.slot().pool()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is this buffer's alone, the length is at most its capacity, it was zero at
        // first and so is initialised, and no device touches it: a posted buffer is no `Buffer`.
        unsafe { self.slot().extent.bytes().as_ref() }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { self.slot().extent.bytes().as_mut() }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: an exclusive buffer has one owner, and it ends here.
        unsafe { Slot::give_back(self.slot) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// A buffer, or a part of one, that nobody writes any more: many may read it, and many sends may share
/// it. Made by [`Buffer::freeze`]; cheap to clone, which counts.
pub struct SharedBuffer {
    slot: NonNull<Slot>,
    start: u32,
    len: u32,
}

// SAFETY: nobody writes the memory while there is a shared owner, and owners are counted atomically.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above.
unsafe impl Sync for SharedBuffer {}

impl SharedBuffer {
    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: slots live as long as a buffer of the pool is out, and this is one.
        unsafe { self.slot.as_ref() }
    }

    /// A part of it, which shares its memory; the range counts from this one's start.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when it is not inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<SharedBuffer> {
        let len = self.len as usize;
        let bound = |bound: Bound<&usize>, end: bool| match bound {
            Bound::Unbounded if end => len,
            Bound::Unbounded => 0,
            Bound::Included(at) if end => at.saturating_add(1),
            Bound::Excluded(at) if !end => at.saturating_add(1),
            Bound::Included(at) | Bound::Excluded(at) => *at,
        };
        let (from, to) = (bound(range.start_bound(), false), bound(range.end_bound(), true));
        if to > len || from > to {
            let asked = if to > len { to } else { from } as u64;
            let most = if to > len { len } else { to } as u64;
            return Err(Error::OutOfRange { what: "a part of a buffer", asked, least: 0, most });
        }
        let mut part = self.clone();
        (part.start, part.len) = (self.start + from as u32, (to - from) as u32);
        Ok(part)
    }

    /// The buffer as an exclusive one again, if this is the only owner; of the length it had before
    /// it was frozen.
    ///
    /// # Errors
    ///
    /// Itself, when there are other owners: work requests in flight among them.
    pub fn try_unfreeze(self) -> Result<Buffer, SharedBuffer> {
        // Acquire: what others read happened before what we write.
        let count = &self.slot().shared;
        if count.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(self);
        }
        let slot = ManuallyDrop::new(self).slot;
        // SAFETY: the only owner, which gave itself up: it came from `freeze`, by `into_slot`.
        Ok(unsafe { Buffer::from_slot(slot) })
    }

    /// Gives up ownership; [`from_parts`](SharedBuffer::from_parts) takes it again.
    #[inline]
    pub(super) fn into_parts(self) -> (NonNull<Slot>, u32, u32) {
        let this = ManuallyDrop::new(self);
        (this.slot, this.start, this.len)
    }

    /// The whole of what a slot has, or the part that is told.
    ///
    /// # Safety
    ///
    /// The slot came from [`into_parts`](SharedBuffer::into_parts), and is taken again once; the part is
    /// inside the buffer.
    #[inline]
    pub(super) unsafe fn from_parts(slot: NonNull<Slot>, part: Option<(u32, u32)>) -> SharedBuffer {
        // SAFETY: as in `slot`.
        let whole = || (0, unsafe { slot.as_ref() }.extent.len());
        let (start, len) = part.unwrap_or_else(whole);
        SharedBuffer { slot, start, len }
    }

    #[inline]
    pub(super) fn address(&self) -> u64 {
        self.slot().extent.address() + u64::from(self.start)
    }

    /// The start of the part at this address.
    pub(super) fn offset_of(slot: NonNull<Slot>, address: u64) -> u32 {
        // SAFETY: as in `slot`, called by who has the buffer.
        let start = unsafe { slot.as_ref() }.extent.address();
        address.saturating_sub(start) as u32
    }

    #[inline]
    pub(super) fn pool(&self) -> &Inner {
        self.slot().pool()
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the part is inside the buffer, whose memory is initialised, and nobody writes it
        // while it is shared: a device only reads it.
        unsafe {
            let start = self.slot().extent.start().add(self.start as usize);
            std::slice::from_raw_parts(start.as_ptr(), self.len as usize)
        }
    }
}

impl Clone for SharedBuffer {
    fn clone(&self) -> SharedBuffer {
        // Relaxed, as Arc does: this owner keeps it alive.
        let before = self.slot().shared.fetch_add(1, Ordering::Relaxed);
        if before > u32::MAX / 2 {
            // So many can only have been forgotten; wrapping around would free what is in use.
            std::process::abort();
        }
        SharedBuffer { slot: self.slot, start: self.start, len: self.len }
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        // AcqRel: what every owner read happened before the memory is another's.
        if self.slot().shared.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the last owner ends here.
            unsafe { Slot::give_back(self.slot) }
        }
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}
