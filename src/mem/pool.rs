//! A pool of buffers: one mapping, one registration.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use super::buffer::{Buffer, Slot};
use super::free::{FreeList, MOST};
use super::map::{Mapping, PageSize};
use super::{LOCAL_WRITE, not_registered};
use crate::error::{Errno, Error, Result};
use crate::pd::ProtectionDomain;
use crate::sys::MrHandle;

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
    pub(super) lkey: u32,
    pub(super) pd: ProtectionDomain,
    /// Taken out when all goes.
    region: Option<(MrHandle, Mapping)>,
    size: u32,
    pages: PageSize,
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
        // SAFETY: the mapping is kept until the region was deregistered, and only the owners of its
        // buffers read or write it while the device does not.
        let region = unsafe {
            let handle = pd.handle().clone();
            MrHandle::register(handle, mapping.start(), mapping.len(), LOCAL_WRITE)
        };
        let region = region.map_err(|errno| not_registered(pd, mapping.len(), errno))?;
        let inner = Inner {
            free: FreeList::new(count as u32),
            slots: NonNull::from(&mut [] as &mut [Slot]),
            lkey: region.lkey(),
            pd: pd.clone(),
            size: size as u32,
            pages: mapping.pages(),
            region: None,
        };
        let inner = NonNull::from(Box::leak(Box::new(inner)));
        let slot = |number: usize| {
            // SAFETY: the mapping has `count` times `stride` bytes.
            let start = unsafe { mapping.start().add(number * stride) };
            Slot::new(start, inner, size as u32, number as u32)
        };
        let slots: Box<[Slot]> = (0..count).map(slot).collect();
        // SAFETY: made above, and nobody else has it yet.
        let to_fill = unsafe { &mut *inner.as_ptr() };
        to_fill.slots = NonNull::from(Box::leak(slots));
        to_fill.region = Some((region, mapping));
        Ok(Pool { inner })
    }
}

/// The longest message that a device can be asked for, and so the largest buffer.
const MAX_SIZE: usize = 1 << 31;

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
        self.inner().lkey
    }

    /// The pages its memory is made of.
    pub fn pages(&self) -> PageSize {
        self.inner().pages
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.inner().pd
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
        let Inner { region, pd, .. } = *inner;
        let Some((region, mapping)) = region else { return };
        if let Err((region, errno)) = region.deregister() {
            if pd.context().went_with(errno) {
                return;
            }
            // The device may still touch it: it stays for ever.
            std::mem::forget((region, mapping));
            pd.context().leaked("memory region", errno);
        }
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
