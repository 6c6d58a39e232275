//! A pool of buffers: one mapping, one registration.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use super::LOCAL_WRITE;
use super::buffer::{Buffer, Slot};
use super::free::{FreeList, MOST};
use super::map::{Mapping, PageSize};
use super::region::Region;
use super::registered::Registered;
use crate::error::{Errno, Error, Result};
use crate::pd::ProtectionDomain;

/// Where each buffer begins: on a cache line of its own.
const ALIGN: usize = 64;

/// A pool of buffers of one size: one mapping and one registration (`ibv_reg_mr`), which no peer can
/// reach (`IBV_ACCESS_LOCAL_WRITE` only).
///
/// [`take`](Pool::take) gives a [`Buffer`]; dropping it gives it back. Any thread may take and drop,
/// without a lock. The pool's memory goes when the pool and the last of its buffers are gone, in any
/// order, those included that are posted.
pub struct Pool {
    inner: NonNull<Inner>,
}

/// What the buffers share. Freed by whoever is told by the free list to be the last.
pub(super) struct Inner {
    pub(super) free: FreeList,
    /// One for each buffer, by its number; freed with the rest.
    slots: NonNull<[Slot]>,
    pub(super) memory: Registered,
    size: u32,
}

// SAFETY: what the pool points to is `Sync` (below), and whichever thread is last may free it.
unsafe impl Send for Pool {}
// SAFETY: the free list is made of atomics, and all else is not changed while the pool lives.
unsafe impl Sync for Pool {}

/// How a [`Pool`] is to be. Made by [`Pool::builder`].
#[derive(Clone, Debug)]
pub struct PoolBuilder<'a> {
    pd: &'a ProtectionDomain,
    size: usize,
    count: usize,
    huge: bool,
}

impl PoolBuilder<'_> {
    /// Whether to use huge pages, of 2 MiB, where there are any; off unless asked. A device then needs
    /// 512 times fewer entries for the memory. Which pages it got is told by [`Pool::pages`].
    pub fn huge_pages(mut self, huge: bool) -> Self {
        self.huge = huge;
        self
    }

    /// Maps and registers the memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a size or count of zero or beyond what a work request or a pool can
    /// name; [`Error::NoMemory`] when the memory cannot be locked, with the limit;
    /// [`Error::Host`] when it cannot be mapped, [`Error::Verb`] for what else the device answers.
    #[doc(alias = "ibv_reg_mr")]
    pub fn build(self) -> Result<Pool> {
        let PoolBuilder { pd, size, count, huge } = self;
        let out_of_range = |what, asked: usize, most| {
            Err(Error::OutOfRange { what, asked: asked as u64, least: 1, most })
        };
        if size == 0 || size > MAX_SIZE {
            return out_of_range("the size of a buffer, in bytes,", size, MAX_SIZE as u64);
        }
        if count == 0 || count > MOST as usize {
            return out_of_range("the number of buffers in a pool", count, MOST.into());
        }
        let stride = size.next_multiple_of(ALIGN);
        let bytes = stride.checked_mul(count).filter(|bytes| *bytes <= isize::MAX as usize);
        let Some(bytes) = bytes else {
            return Err(Error::Host { call: "mmap", errno: Errno::ENOMEM });
        };
        let limit = pd.context().limits().max_mr_size;
        if bytes as u64 > limit && limit != 0 {
            return out_of_range("a pool's memory, in bytes,", bytes, limit);
        }
        let mapping = Mapping::new(bytes, huge)?;
        Pool::carve(pd, mapping.into(), size, count).map_err(|failed| failed.0)
    }
}

/// The longest message that a device can be asked for, and so the largest buffer.
pub(super) const MAX_SIZE: usize = 1 << 31;

impl Pool {
    /// A pool of `count` buffers of `size` bytes each: at most 2^31 bytes, and 2^24 - 2 buffers.
    ///
    /// # Errors
    ///
    /// As [`PoolBuilder::build`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(pd: &ProtectionDomain, size: usize, count: usize) -> Result<Pool> {
        Pool::builder(pd, size, count).build()
    }

    /// The same with choices.
    pub fn builder(pd: &ProtectionDomain, size: usize, count: usize) -> PoolBuilder<'_> {
        PoolBuilder { pd, size, count, huge: false }
    }

    /// A pool of the user's own memory, which is registered (`ibv_reg_mr`): as many buffers of `size` bytes as
    /// there is room for, each of them beginning a multiple of 64 bytes from the first. It comes back by
    /// [`into_memory`](Pool::into_memory), or is freed as the pool's own would be.
    ///
    /// # Errors
    ///
    /// [`FromMemoryError`], with the memory: [`Error::OutOfRange`] for a size of zero, or memory that is too
    /// small for one buffer or has more than a pool can name; else as [`PoolBuilder::build`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn from_memory(
        pd: &ProtectionDomain,
        memory: impl Into<Region>,
        size: usize,
    ) -> Result<Pool, FromMemoryError> {
        let memory = memory.into();
        let out_of_range = |what, asked: usize, most: usize| Error::OutOfRange {
            what,
            asked: asked as u64,
            least: 1,
            most: most as u64,
        };
        let room = memory.len().min(MAX_SIZE);
        if size == 0 || size > room {
            let error = out_of_range("the size of a buffer, in bytes,", size, room);
            return Err(FromMemoryError { error, memory });
        }
        // The last needs no room behind it.
        let stride = size.next_multiple_of(ALIGN);
        let count = (memory.len() - size) / stride + 1;
        let limit = pd.context().limits().max_mr_size;
        let error = if count > MOST as usize {
            out_of_range("the number of buffers in a pool", count, MOST as usize)
        } else if memory.len() as u64 > limit && limit != 0 {
            let (asked, most) = (memory.len() as u64, limit);
            Error::OutOfRange { what: "a pool's memory, in bytes,", asked, least: 1, most }
        } else {
            return Pool::carve(pd, memory, size, count).map_err(|failed| {
                let (error, memory) = *failed;
                FromMemoryError { error, memory }
            });
        };
        Err(FromMemoryError { error, memory })
    }

    /// Registers the memory and makes buffers of it: it has room for so many, at least one, each a multiple of
    /// [`ALIGN`] from the first.
    fn carve(
        pd: &ProtectionDomain,
        memory: Region,
        size: usize,
        count: usize,
    ) -> Result<Pool, Box<(Error, Region)>> {
        let len = memory.len();
        let stride = size.next_multiple_of(ALIGN);
        debug_assert!((count - 1) * stride + size <= len);
        // SAFETY: only the owners of its buffers read or write it, while the device does not.
        let memory = unsafe { Registered::new(pd, memory, len, LOCAL_WRITE) }?;
        let start = memory.start();
        let inner = Inner {
            free: FreeList::new(count as u32),
            slots: NonNull::from(&mut [] as &mut [Slot]),
            memory,
            size: size as u32,
        };
        let inner = NonNull::from(Box::leak(Box::new(inner)));
        let slot = |number: usize| {
            // SAFETY: inside the memory, by this function's own contract.
            let start = unsafe { start.add(number * stride) };
            Slot::new(start, inner, size as u32, number as u32)
        };
        let slots: Box<[Slot]> = (0..count).map(slot).collect();
        // SAFETY: made above, and nobody else has it yet.
        unsafe { (*inner.as_ptr()).slots = NonNull::from(Box::leak(slots)) };
        Ok(Pool { inner })
    }

    /// Deregisters (`ibv_dereg_mr`), and gives the memory, that which [`from_memory`](Pool::from_memory) was given
    /// or pages, when all buffers are back.
    ///
    /// # Errors
    ///
    /// [`IntoMemoryError`], with the pool as it was: [`Error::InUse`] while a buffer is out, [`Error::Verb`] when
    /// the device does not deregister it.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_memory(self) -> Result<Region, IntoMemoryError> {
        // Nobody takes any more, since this owns the pool.
        if self.available() < self.count() {
            let error = Error::InUse { what: "a pool", by: "buffers of it" };
            return Err(IntoMemoryError { error, pool: self });
        }
        // SAFETY: the pool is ours, and all buffers are in its list: nobody else refers to what they share.
        let inner = unsafe { &mut *self.inner.as_ptr() };
        match inner.memory.deregister() {
            // The rest goes with the pool.
            Ok(memory) => Ok(memory),
            Err(error) => Err(IntoMemoryError { error, pool: self }),
        }
    }

    /// Takes a buffer, of its whole capacity and with whatever its last owner left in it (zeros at
    /// first); `None` when all are out. No lock, no system call, no allocation.
    #[inline]
    pub fn take(&self) -> Option<Buffer> {
        let number = self.inner().free.take()?;
        // SAFETY: numbers are below the number of slots, which live as long as a buffer is out.
        let slot = unsafe { self.inner().slots.cast::<Slot>().add(number as usize) };
        // SAFETY: the free list gave the number to us alone.
        Some(unsafe { Buffer::taken(slot) })
    }

    /// How many buffers there are to take now; another thread may take them.
    pub fn available(&self) -> usize {
        self.inner().free.free() as usize
    }

    /// How many buffers there are in all.
    pub fn count(&self) -> usize {
        self.inner().slots.len()
    }

    /// The size of each, in bytes.
    pub fn buffer_size(&self) -> usize {
        self.inner().size as usize
    }

    /// The local key of its memory (`lkey`), for work requests that are posted by others' calls: with the address
    /// of a buffer of it, which that work request must not outlive.
    pub fn lkey(&self) -> u32 {
        self.inner().memory.lkey()
    }

    /// The pages its memory is made of.
    pub fn pages(&self) -> PageSize {
        self.inner().memory.pages()
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.inner().memory.pd()
    }

    fn inner(&self) -> &Inner {
        // SAFETY: freed only after the free list was closed, which dropping the pool does.
        unsafe { self.inner.as_ref() }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.inner().free.close() {
            // SAFETY: closed, and no buffer is out.
            unsafe { Inner::free(self.inner) }
        }
    }
}

impl Inner {
    /// Frees everything.
    ///
    /// # Safety
    ///
    /// The pool is dropped and no buffer is out: the free list told this caller, and so nobody else.
    pub(super) unsafe fn free(this: NonNull<Inner>) {
        // SAFETY: made by Box::leak; nobody else has it, by this function's own contract.
        let inner = unsafe { Box::from_raw(this.as_ptr()) };
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(inner.slots.as_ptr()) });
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("buffer_size", &self.buffer_size())
            .field("count", &self.count())
            .field("available", &self.available())
            .field("pages", &self.pages())
            .finish_non_exhaustive()
    }
}

/// Memory that no pool could be made of.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct FromMemoryError {
    /// Why not.
    pub error: Error,
    /// The memory.
    pub memory: Region,
}

/// A pool whose memory could not be had back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct IntoMemoryError {
    /// Why not.
    pub error: Error,
    /// The pool.
    pub pool: Pool,
}

impl From<FromMemoryError> for Error {
    fn from(failed: FromMemoryError) -> Error {
        failed.error
    }
}

impl From<IntoMemoryError> for Error {
    fn from(failed: IntoMemoryError) -> Error {
        failed.error
    }
}
