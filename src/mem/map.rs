//! Pages from the kernel.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Errno, Error, Result};

/// The pages that memory is made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum PageSize {
    /// The kernel's own, 4 KiB on most machines.
    Base,
    /// Those, and the kernel was asked to put huge ones there by itself (`MADV_HUGEPAGE`).
    Transparent,
    /// Huge pages of 2 MiB, taken from those that the administrator set aside (`MAP_HUGETLB`).
    Huge,
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageSize::Base => "base pages",
            PageSize::Transparent => "transparent huge pages",
            PageSize::Huge => "huge pages",
        })
    }
}

/// The size of a huge page, in bytes.
pub(super) const HUGE: usize = 2 << 20;

/// The size of the kernel's own pages, in bytes.
pub(super) fn page_size() -> usize {
    // Not rustix's, which reads the vDSO: valgrind takes that away.
    // SAFETY: it takes a number and gives one.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(4096).max(1)
}

/// Anonymous memory, private to this process, zero at first; unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    pages: PageSize,
}

// SAFETY: the mapping is owned memory, which may be unmapped from any thread.
unsafe impl Send for Mapping {}
// SAFETY: shared access gives the address only; who reads or writes there says why he may.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, unmapped once, here; whoever gave out parts of it has
        // them back.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    /// Maps at least `bytes`, in whole pages; huge ones if they are wanted and there are any.
    pub(crate) fn new(bytes: usize, huge: bool) -> Result<Mapping> {
        if huge {
            // Of this size, whatever the machine's default is: a length that is no multiple of it could not
            // be unmapped.
            let flags = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            if let Ok(mapping) = Mapping::with(bytes, HUGE, flags, PageSize::Huge) {
                return Ok(mapping);
            }
        }
        if huge && bytes >= HUGE {
            return Mapping::transparent(bytes);
        }
        Mapping::with(bytes, page_size(), MapFlags::empty(), PageSize::Base)
    }

    /// Begins where a huge page can, and the kernel is asked to put them there.
    fn transparent(bytes: usize) -> Result<Mapping> {
        let failed = || Error::Host { call: "mmap", errno: Errno::ENOMEM };
        let wider = bytes.checked_add(HUGE).ok_or_else(failed)?;
        let wide = Mapping::with(wider, page_size(), MapFlags::empty(), PageSize::Base)?;
        let before = wide.start.as_ptr().addr().wrapping_neg() % HUGE;
        let mut mapping = wide.cut(before, bytes.next_multiple_of(page_size()));
        // SAFETY: the whole of our own mapping; the advice changes no content.
        let advised =
            unsafe { madvise(mapping.start.as_ptr().cast(), mapping.len, Advice::LinuxHugepage) };
        if advised.is_ok() {
            mapping.pages = PageSize::Transparent;
        }
        Ok(mapping)
    }

    /// `len` bytes of it, from `before` on; the rest is unmapped. Both are whole pages and inside.
    fn cut(self, before: usize, len: usize) -> Mapping {
        let whole = ManuallyDrop::new(self);
        debug_assert!(before + len <= whole.len);
        // SAFETY: inside the mapping, or its end.
        let (start, end) = unsafe { (whole.start.add(before), whole.start.add(before + len)) };
        let after = whole.len - before - len;
        for (start, len) in [(whole.start, before), (end, after)] {
            if len > 0 {
                // SAFETY: whole pages of a mapping of our own, which nobody has seen. If the kernel does not
                // unmap them, they stay.
                let _ = unsafe { munmap(start.as_ptr().cast(), len) };
            }
        }
        Mapping { start, len, pages: whole.pages }
    }

    fn with(bytes: usize, page: usize, flags: MapFlags, pages: PageSize) -> Result<Mapping> {
        let failed = |errno| Error::Host { call: "mmap", errno };
        let len = bytes.checked_next_multiple_of(page).ok_or_else(|| failed(Errno::ENOMEM))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel finds room: no memory of anybody changes.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE | flags)
        };
        let start = start.map_err(|errno| failed(Errno::from_raw(errno.raw_os_error())))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| failed(Errno::ENOMEM))?;
        Ok(Mapping { start, len, pages })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// In bytes, whole pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn pages(&self) -> PageSize {
        self.pages
    }
}

/// Memory that no device may touch any more: what [`Exposed`](super::Exposed) becomes when its grant
/// has ended.
pub struct PlainMemory {
    mapping: Mapping,
    len: usize,
}

impl PlainMemory {
    /// No device touches the mapping; `len` is not beyond it.
    pub(super) fn new(mapping: Mapping, len: usize) -> PlainMemory {
        debug_assert!(len <= mapping.len());
        PlainMemory { mapping, len }
    }

    pub(super) fn into_mapping(self) -> Mapping {
        self.mapping
    }
}

impl Deref for PlainMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is ours alone, was zero at first and so is initialised, and is at least
        // so long.
        unsafe { std::slice::from_raw_parts(self.mapping.start().as_ptr(), self.len) }
    }
}

impl DerefMut for PlainMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start().as_ptr(), self.len) }
    }
}

impl fmt::Debug for PlainMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainMemory").field("len", &self.len).finish_non_exhaustive()
    }
}
