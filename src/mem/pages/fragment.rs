//! A fragment of a slab.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::super::registered::Registered;
use super::slab::{Part, Place};
use crate::error::Result;

/// A fragment of a [`PagePool`](super::PagePool)'s pages, nobody else's: reads and writes as `[u8]`, of its
/// [`len`](slice::len).
///
/// As big as a pointer. Posting moves it into the queue, and its completion gives it back; dropping it, on any
/// thread, gives it back to its slab, which is handed out again when all of its fragments came back.
#[repr(transparent)]
pub struct Fragment {
    part: Part<Registered>,
}

impl Fragment {
    #[inline]
    pub(super) fn new(part: Part<Registered>) -> Fragment {
        Fragment { part }
    }

    #[inline]
    pub(super) fn into_part(self) -> Part<Registered> {
        self.part
    }

    /// Gives up ownership; [`from_place`](Fragment::from_place) takes it again.
    #[inline]
    pub(in crate::mem) fn into_place(self) -> NonNull<Place<Registered>> {
        self.part.into_place()
    }

    /// # Safety
    ///
    /// The place came from [`into_place`](Fragment::into_place), and is taken again once.
    #[inline]
    pub(in crate::mem) unsafe fn from_place(place: NonNull<Place<Registered>>) -> Fragment {
        // SAFETY: by this function's own contract.
        Fragment { part: unsafe { Part::from_place(place) } }
    }

    /// How many bytes there is room for: the pool's fragment size.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.part.extent().capacity() as usize
    }

    /// Sets how many of its bytes are in use, up to its capacity. Bytes that come into use have
    /// whatever was in the memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) beyond the capacity; the length is then as before.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        self.part.extent().set_len(len)
    }

    /// Copies the bytes to its front, and makes them all that is in use.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) when there are more than its capacity; nothing is
    /// copied then.
    pub fn fill_from(&mut self, bytes: &[u8]) -> Result<()> {
        self.set_len(bytes.len())?;
        self.copy_from_slice(bytes);
        Ok(())
    }

    #[inline]
    pub(crate) fn put_len(&mut self, len: u32) {
        self.part.extent().put_len(len);
    }

    #[inline]
    pub(in crate::mem) fn address(&self) -> u64 {
        self.part.extent().address()
    }

    #[inline]
    pub(in crate::mem) fn memory(&self) -> &Registered {
        self.part.region()
    }
}

impl Deref for Fragment {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is this fragment's alone, the length is at most its capacity, it was zero at
        // first and so is initialised, and no device touches it: a posted fragment is no `Fragment`.
        unsafe { self.part.extent().bytes().as_ref() }
    }
}

impl DerefMut for Fragment {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { self.part.extent().bytes().as_mut() }
    }
}

impl fmt::Debug for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fragment")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
