//! Pages from the kernel.

#![allow(unsafe_code)]

use std::fmt;
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

const HUGE: usize = 2 << 20;

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
            if let Ok(mapping) = Mapping::with(bytes, HUGE, MapFlags::HUGETLB, PageSize::Huge) {
                return Ok(mapping);
            }
        }
        // Not rustix's, which reads the vDSO: valgrind takes that away.
        // SAFETY: it takes a number and gives one.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(4096).max(1);
        let mut mapping = Mapping::with(bytes, page, MapFlags::empty(), PageSize::Base)?;
        if huge && mapping.len >= HUGE {
            // SAFETY: the whole of our own mapping; the advice changes no content.
            let advised = unsafe {
                madvise(mapping.start.as_ptr().cast(), mapping.len, Advice::LinuxHugepage)
            };
            if advised.is_ok() {
                mapping.pages = PageSize::Transparent;
            }
        }
        Ok(mapping)
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
