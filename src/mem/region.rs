//! Memory as it is registered: the kernel's own pages, or what the user brings.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::map::{Mapping, PageSize, PlainMemory};

/// Plain memory of the user's, to make a [`Pool`](super::Pool) of
/// ([`from_memory`](super::Pool::from_memory)) and to get back from it: a `Vec<u8>`, a `Box<[u8]>`, or
/// [`PlainMemory`]; by `into()`. No device touches it; it reads and writes as `[u8]`.
///
/// Only memory that is nobody else's: what a file or another process is behind can be cut off or be written by
/// others, and so is never a slice.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Who frees it.
enum Owner {
    /// A vector of this capacity; that of a boxed slice is its length.
    Vector(usize),
    Mapping(Mapping),
    /// Of others too, and so never a slice: let go of when this is.
    Foreign(#[allow(dead_code)] Box<dyn Send + Sync>),
}

// SAFETY: owned memory, which any thread may use and free.
unsafe impl Send for Region {}
// SAFETY: shared access only reads.
unsafe impl Sync for Region {}

impl From<Vec<u8>> for Region {
    fn from(memory: Vec<u8>) -> Region {
        // Taken apart: a vector that is moved says that nobody else points to its memory.
        let mut memory = ManuallyDrop::new(memory);
        let (len, owner) = (memory.len(), Owner::Vector(memory.capacity()));
        // Not by a slice, which is as long as what is in use: the pointer goes back into a vector, for all of
        // its capacity.
        // SAFETY: the pointer of a vector is not NULL.
        let start = unsafe { NonNull::new_unchecked(memory.as_mut_ptr()) };
        Region { start, len, owner }
    }
}

impl From<Box<[u8]>> for Region {
    fn from(memory: Box<[u8]>) -> Region {
        memory.into_vec().into()
    }
}

impl From<PlainMemory> for Region {
    fn from(memory: PlainMemory) -> Region {
        let len = memory.len();
        let mut region = Region::from(memory.into_mapping());
        region.len = len;
        region
    }
}

impl From<Mapping> for Region {
    fn from(mapping: Mapping) -> Region {
        Region { start: mapping.start(), len: mapping.len(), owner: Owner::Mapping(mapping) }
    }
}

impl Region {
    /// Memory that is not this program's alone. It is not to be read or written as a slice: nobody but
    /// [`Exposed`](super::Exposed) has such a region.
    pub(super) fn foreign(
        start: NonNull<u8>,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Region {
        Region { start, len, owner: Owner::Foreign(Box::new(owner)) }
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.owner, Owner::Foreign(_))
    }

    pub(super) fn pages(&self) -> PageSize {
        match &self.owner {
            Owner::Vector(_) | Owner::Foreign(_) => PageSize::Base,
            Owner::Mapping(mapping) => mapping.pages(),
        }
    }

    /// As a vector again, of what was one or a boxed slice; else itself.
    pub fn into_vec(self) -> Result<Vec<u8>, Region> {
        let Owner::Vector(capacity) = self.owner else { return Err(self) };
        let this = ManuallyDrop::new(self);
        // SAFETY: taken apart in `from`, and put together again once.
        Ok(unsafe { Vec::from_raw_parts(this.start.as_ptr(), this.len, capacity) })
    }

    /// As pages again, of what was that; else itself.
    pub fn into_plain(self) -> Result<PlainMemory, Region> {
        if !matches!(self.owner, Owner::Mapping(_)) {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, since it is not dropped.
        match unsafe { std::ptr::read(&this.owner) } {
            Owner::Mapping(mapping) => Ok(PlainMemory::new(mapping, this.len)),
            Owner::Vector(_) | Owner::Foreign(_) => unreachable!("it was looked at"),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Owner::Vector(capacity) = self.owner {
            // SAFETY: as in `into_vec`.
            drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, capacity) });
        }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialised, and nobody else's: whoever registers it takes it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish_non_exhaustive()
    }
}
