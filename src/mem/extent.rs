//! Where a buffer or a fragment is, and how much of it is in use.

#![deny(unsafe_code)]

use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::{AtomicU32, Ordering};

/// See the module. Who owns the memory is its owner's to know, and so is who may change the length: the
/// exclusive owner only.
pub(super) struct Extent {
    start: NonNull<u8>,
    capacity: u32,
    len: AtomicU32,
}

impl Extent {
    /// All of it in use.
    pub(super) fn new(start: NonNull<u8>, capacity: u32) -> Extent {
        Extent { start, capacity, len: AtomicU32::new(capacity) }
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    #[inline]
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    #[inline]
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// What is in use.
    #[inline]
    pub(super) fn bytes(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.len() as usize)
    }

    #[inline]
    pub(super) fn put_len(&self, len: u32) {
        debug_assert!(len <= self.capacity);
        self.len.store(len, Ordering::Relaxed);
    }

    /// The same, checked.
    #[inline]
    pub(super) fn set_len(&self, len: usize) -> Result<()> {
        if len > self.capacity as usize {
            let most = self.capacity.into();
            let what = "the length of a buffer, in bytes,";
            return Err(Error::OutOfRange { what, asked: len as u64, least: 0, most });
        }
        self.put_len(len as u32);
        Ok(())
    }
}
