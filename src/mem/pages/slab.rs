//! A slab: one registered piece of memory, whose fragments are handed out in order, each once, and again
//! only after all of them came back.
//!
//! Who owns a part of it is one number. Each fragment counts, those included that are yet to be handed
//! out, and the pool does. So handing out counts nothing; giving back takes one away, on any thread; the pool
//! sees that all came back when it alone is left, and while it is there nobody else can be the last. The pool,
//! when it goes, takes away its own and those it has not handed out, in one step. Whoever comes to zero frees
//! the slab.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::super::extent::Extent;
use crate::sync::{AtomicU32, Ordering};

/// What slabs are made of: dropping it deregisters and unmaps.
///
/// # Safety
///
/// The memory stays where it is and is initialised, and nobody else reads or writes it, as long as the region
/// lives.
pub(in crate::mem) unsafe trait Region {
    fn memory(&self) -> NonNull<[u8]>;
}

/// See the module.
pub(in crate::mem) struct Slab<R> {
    owners: AtomicU32,
    /// One for each fragment; freed with the rest.
    places: NonNull<[Place<R>]>,
    region: R,
}

/// What is known of one fragment. Not in the memory that the device sees.
#[repr(align(8))]
pub(in crate::mem) struct Place<R> {
    extent: Extent,
    slab: NonNull<Slab<R>>,
}

/// The pool's share of a slab.
pub(super) struct Share<R> {
    slab: NonNull<Slab<R>>,
    /// The first place.
    places: NonNull<Place<R>>,
    /// How many fragments there are.
    each: u32,
    /// How many of them were handed out.
    handed: u32,
}

// SAFETY: the region may be read and freed on any thread; the rest is numbers, of which the shared one is an
// atomic.
unsafe impl<R: Send + Sync> Send for Share<R> {}
// SAFETY: shared access only reads.
unsafe impl<R: Send + Sync> Sync for Share<R> {}

impl<R: Region> Share<R> {
    /// A slab of `each` fragments of `size` bytes, at least 1 of both, or of as many as there is memory for; as
    /// if all had been handed out and had come back.
    pub(super) fn new(region: R, each: u32, size: u32) -> Share<R> {
        let memory = region.memory();
        let start: NonNull<u8> = memory.cast();
        let room = u32::try_from(memory.len() / size as usize).unwrap_or(u32::MAX);
        let each = each.min(room).min(u32::MAX - 1);
        let places = NonNull::from(&mut [] as &mut [_]);
        let slab = Slab { owners: AtomicU32::new(1), places, region };
        let slab = NonNull::from(Box::leak(Box::new(slab)));
        let place = |number: u32| {
            // SAFETY: inside the memory, which has room for so many.
            let start = unsafe { start.add(number as usize * size as usize) };
            Place { extent: Extent::new(start, size), slab }
        };
        let places: Box<[Place<R>]> = (0..each).map(place).collect();
        let places = NonNull::from(Box::leak(places));
        // SAFETY: made above, and nobody else has it yet.
        unsafe { (*slab.as_ptr()).places = places };
        Share { slab, places: places.cast(), each, handed: each }
    }
}

impl<R> Share<R> {
    fn slab(&self) -> &Slab<R> {
        // SAFETY: the share is one of its owners.
        unsafe { self.slab.as_ref() }
    }

    pub(super) fn region(&self) -> &R {
        &self.slab().region
    }

    /// How many are still to be handed out.
    #[inline]
    pub(super) fn left(&self) -> u32 {
        self.each - self.handed
    }

    /// How many are out now.
    pub(super) fn out(&self) -> u32 {
        self.slab().owners.load(Ordering::Relaxed) - 1 - self.left()
    }

    /// Whether all were handed out and came back. What their owners did to them happened before.
    pub(super) fn is_complete(&self) -> bool {
        // Acquire: pairs with every step of those who gave back.
        self.left() == 0 && self.slab().owners.load(Ordering::Acquire) == 1
    }

    /// Begins handing out again; false when not all came back.
    pub(super) fn begin(&mut self) -> bool {
        let complete = self.is_complete();
        if complete {
            // Nobody else has a part of it. Who gets one got it from here, and so sees this.
            self.slab().owners.store(self.each + 1, Ordering::Relaxed);
            self.handed = 0;
        }
        complete
    }

    /// The opposite of [`begin`](Share::begin), when none is handed out; false when one is.
    pub(super) fn end(&mut self) -> bool {
        let unused = self.handed == 0;
        if unused {
            // As above.
            self.slab().owners.store(1, Ordering::Relaxed);
            self.handed = self.each;
        }
        unused
    }

    /// The next fragment, of its whole length.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Part<R>> {
        if self.handed == self.each {
            return None;
        }
        // SAFETY: below the number of places.
        let place = unsafe { self.places.add(self.handed as usize) };
        self.handed += 1;
        // Counted since `begin`, and handed out now, once.
        let part = Part { place };
        part.extent().put_len(part.extent().capacity());
        Some(part)
    }

    /// Takes one back as if it had not been handed out: the last that was, or it comes back to the caller.
    pub(super) fn put_back(&mut self, part: Part<R>) -> Result<(), Part<R>> {
        let Some(last) = self.handed.checked_sub(1) else { return Err(part) };
        if part.place.as_ptr() != self.places.as_ptr().wrapping_add(last as usize) {
            return Err(part);
        }
        // It stays counted, as those that are yet to be handed out.
        let _ = ManuallyDrop::new(part);
        self.handed = last;
        Ok(())
    }
}

impl<R> Drop for Share<R> {
    fn drop(&mut self) {
        // SAFETY: the pool's own, and those that nobody else has; none is used any more.
        unsafe { Slab::let_go(self.slab, 1 + self.left()) }
    }
}

impl<R> Slab<R> {
    /// Gives up so many of the owners; the last frees the slab.
    ///
    /// # Safety
    ///
    /// They are the caller's, which uses neither them nor the slab any more.
    #[inline]
    unsafe fn let_go(this: NonNull<Slab<R>>, count: u32) {
        // No reference to the whole: another may free it as soon as this has counted.
        // SAFETY: it is there until then, by this function's own contract.
        let owners = unsafe { &(*this.as_ptr()).owners };
        // Release: what was done to the fragment happened before it is another's, or is freed. Acquire: so
        // did what the others did, when this is the last.
        if owners.fetch_sub(count, Ordering::AcqRel) == count {
            // SAFETY: the last.
            unsafe { Slab::free(this) }
        }
    }

    /// # Safety
    ///
    /// Nobody owns a part of it any more.
    #[cold]
    unsafe fn free(this: NonNull<Slab<R>>) {
        // SAFETY: made by Box::leak, and nobody else's, by this function's own contract.
        let slab = unsafe { Box::from_raw(this.as_ptr()) };
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(slab.places.as_ptr()) });
    }
}

/// A fragment, nobody else's. As big as a pointer; dropping it gives it back.
#[repr(transparent)]
pub(in crate::mem) struct Part<R> {
    place: NonNull<Place<R>>,
}

// SAFETY: an exclusive owner of memory that any thread may use, and of a part of the slab, which any may free.
unsafe impl<R: Send + Sync> Send for Part<R> {}
// SAFETY: shared access only reads.
unsafe impl<R: Send + Sync> Sync for Part<R> {}

impl<R> Part<R> {
    #[inline]
    pub(in crate::mem) fn extent(&self) -> &Extent {
        // SAFETY: places live as long as one of their slab's owners does, and this is one.
        unsafe { &self.place.as_ref().extent }
    }

    #[inline]
    pub(in crate::mem) fn region(&self) -> &R {
        // SAFETY: as above, and so does the slab.
        unsafe { &self.place.as_ref().slab.as_ref().region }
    }

    /// Gives up ownership; [`from_place`](Part::from_place) takes it again.
    #[inline]
    pub(in crate::mem) fn into_place(self) -> NonNull<Place<R>> {
        ManuallyDrop::new(self).place
    }

    /// # Safety
    ///
    /// The place came from [`into_place`](Part::into_place), and is taken again once.
    #[inline]
    pub(in crate::mem) unsafe fn from_place(place: NonNull<Place<R>>) -> Part<R> {
        Part { place }
    }
}

impl<R> Drop for Part<R> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `extent`.
        let slab = unsafe { (*self.place.as_ptr()).slab };
        // SAFETY: a fragment has one owner, and it ends here.
        unsafe { Slab::let_go(slab, 1) }
    }
}

#[cfg(all(test, loom))]
mod models;
