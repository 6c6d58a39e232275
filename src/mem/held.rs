//! Memory as the table of work requests in flight holds it: one word each.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::buffer::{Buffer, SharedBuffer, Slot};
use super::exposed::{ExposedRange, Part};
use super::pages::{Fragment, Place};
use super::registered::Registered;
use super::window::{self, MemoryWindow};
use crate::ah::AddressHandle;

/// An owner of memory, in one word: a pointer whose low three bits say what it points to. Dropping it
/// drops what it owns.
pub(crate) struct Held(NonNull<u8>);

// SAFETY: each thing that it can own is Send and Sync.
unsafe impl Send for Held {}
// SAFETY: as above; shared access reads the word only.
unsafe impl Sync for Held {}

const TAG: usize = 7;
const BUFFER: usize = 1;
const SHARED: usize = 2;
const EXPOSED: usize = 3;
const FRAGMENT: usize = 4;
const ADDRESS: usize = 5;
const WINDOW: usize = 6;
const NOTHING: usize = 7;

// What is pointed to leaves the low three bits free.
const _: () = assert!(align_of::<Slot>() > TAG && align_of::<Part>() > TAG);
const _: () = assert!(align_of::<Place<Registered>>() > TAG);
const _: () = assert!(align_of::<crate::ah::Inner>() > TAG && align_of::<window::Inner>() > TAG);

/// What a work request held, given back.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// An exclusive buffer. After a receive its length is what was received into it.
    Buffer(Buffer),
    /// A shared buffer: the whole of it, though the request may have named a part.
    Shared(SharedBuffer),
    /// A range of exposed memory.
    Exposed(ExposedRange),
    /// A fragment of a page pool. After a receive its length is what was received into it.
    Fragment(Fragment),
    /// A memory window. After a bind that was carried out it is bound, and after an invalidation it is not.
    Window(MemoryWindow),
}

impl Held {
    #[inline]
    fn tagged<T>(pointer: NonNull<T>, tag: usize) -> Held {
        // Not zero: the tag is not.
        Held(pointer.cast().map_addr(|address| address | tag))
    }

    #[inline]
    pub(super) fn buffer(buffer: Buffer) -> Held {
        Held::tagged(buffer.into_slot(), BUFFER)
    }

    #[inline]
    pub(super) fn shared(slot: NonNull<Slot>) -> Held {
        Held::tagged(slot, SHARED)
    }

    #[inline]
    pub(super) fn exposed(range: ExposedRange) -> Held {
        let part = Arc::into_raw(range.into_part());
        // SAFETY: what Arc::into_raw gives is not NULL.
        Held::tagged(unsafe { NonNull::new_unchecked(part.cast_mut()) }, EXPOSED)
    }

    #[inline]
    pub(crate) fn fragment(fragment: Fragment) -> Held {
        Held::tagged(fragment.into_place(), FRAGMENT)
    }

    /// Where a datagram goes, which must stay as long as that is in flight.
    #[inline]
    pub(crate) fn address(to: AddressHandle) -> Held {
        let inner = Arc::into_raw(to.into_inner());
        // SAFETY: what Arc::into_raw gives is not NULL.
        Held::tagged(unsafe { NonNull::new_unchecked(inner.cast_mut()) }, ADDRESS)
    }

    /// An address handle, if it is that; else itself.
    pub(crate) fn into_address(self) -> Result<AddressHandle, Held> {
        if self.tag() != ADDRESS {
            return Err(self);
        }
        // SAFETY: as in `into_memory`.
        let inner = unsafe { Arc::from_raw(ManuallyDrop::new(self).untagged().as_ptr()) };
        Ok(AddressHandle::of(inner))
    }

    /// A window that is being bound, or invalidated.
    #[inline]
    pub(super) fn window(window: MemoryWindow) -> Held {
        let inner = Box::into_raw(window.into_inner());
        // SAFETY: what Box::into_raw gives is not NULL.
        Held::tagged(unsafe { NonNull::new_unchecked(inner) }, WINDOW)
    }

    /// A window, if it is that; else itself.
    pub(super) fn into_window(self) -> Result<MemoryWindow, Held> {
        if self.tag() != WINDOW {
            return Err(self);
        }
        // SAFETY: as in `into_memory`.
        let inner = unsafe { Box::from_raw(ManuallyDrop::new(self).untagged().as_ptr()) };
        Ok(MemoryWindow::of(inner))
    }

    /// Owns nothing: of a work request without memory of its own, which is in flight all the same.
    #[inline]
    pub(crate) fn nothing() -> Held {
        // SAFETY: not NULL.
        Held(unsafe { NonNull::new_unchecked(std::ptr::without_provenance_mut(NOTHING)) })
    }

    /// Gives up ownership; [`from_raw`](Held::from_raw) takes it again. Never NULL.
    #[inline]
    pub(crate) fn into_raw(self) -> *mut u8 {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// `None` for NULL.
    ///
    /// # Safety
    ///
    /// The pointer is NULL, or came from [`into_raw`](Held::into_raw) and is taken again once.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: *mut u8) -> Option<Held> {
        NonNull::new(raw).map(Held)
    }

    #[inline]
    fn tag(&self) -> usize {
        self.0.addr().get() & TAG
    }

    #[inline]
    fn untagged<T>(&self) -> NonNull<T> {
        // Not NULL where the tag says that it points to something: the address without the tag is
        // that of an object.
        let pointer = self.0.as_ptr().map_addr(|address| address & !TAG).cast();
        // SAFETY: as above; only called where the tag is of an object.
        unsafe { NonNull::new_unchecked(pointer) }
    }

    /// What it owns. `None` for nothing, and for an address handle, which is dropped.
    #[inline]
    pub(crate) fn into_memory(self) -> Option<Memory> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the tag says what was given up to make it, and it is taken again here, once.
        unsafe {
            match this.tag() {
                BUFFER => Some(Memory::Buffer(Buffer::from_slot(this.untagged()))),
                SHARED => {
                    Some(Memory::Shared(SharedBuffer::from_parts(this.untagged::<Slot>(), None)))
                }
                EXPOSED => {
                    let part = Arc::from_raw(this.untagged::<Part>().as_ptr());
                    Some(Memory::Exposed(ExposedRange::from_part(part)))
                }
                FRAGMENT => Some(Memory::Fragment(Fragment::from_place(this.untagged()))),
                WINDOW => {
                    let inner = Box::from_raw(this.untagged().as_ptr());
                    Some(Memory::Window(MemoryWindow::of(inner)))
                }
                ADDRESS => {
                    drop(AddressHandle::of(Arc::from_raw(this.untagged().as_ptr())));
                    None
                }
                _ => None,
            }
        }
    }

    /// An exclusive buffer, if it is one; else itself.
    #[inline]
    pub(crate) fn into_buffer(self) -> Result<Buffer, Held> {
        if self.tag() != BUFFER {
            return Err(self);
        }
        // SAFETY: as in `into_memory`.
        Ok(unsafe { Buffer::from_slot(ManuallyDrop::new(self).untagged()) })
    }

    /// A fragment, if it is one; else itself.
    #[inline]
    pub(crate) fn into_fragment(self) -> Result<Fragment, Held> {
        if self.tag() != FRAGMENT {
            return Err(self);
        }
        // SAFETY: as in `into_memory`.
        Ok(unsafe { Fragment::from_place(ManuallyDrop::new(self).untagged()) })
    }

    /// A shared buffer's slot, if it is one; else itself.
    pub(super) fn into_shared(self) -> Result<NonNull<Slot>, Held> {
        if self.tag() != SHARED {
            return Err(self);
        }
        Ok(ManuallyDrop::new(self).untagged())
    }

    /// A range of exposed memory, if it is that; else itself.
    pub(super) fn into_exposed(self) -> Result<ExposedRange, Held> {
        if self.tag() != EXPOSED {
            return Err(self);
        }
        // SAFETY: as in `into_memory`.
        let part = unsafe { Arc::from_raw(ManuallyDrop::new(self).untagged::<Part>().as_ptr()) };
        Ok(ExposedRange::from_part(part))
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // Takes the word over, and drops what it owned.
        drop(Held(self.0).into_memory());
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:?})", self.0)
    }
}
