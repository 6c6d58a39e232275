//! Memory and descriptors: what the device does to them.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::verbs::set_errno;

/// A run of bytes in this process: address and length.
pub(crate) type Segment = (u64, u64);

/// How many bytes there are in all.
pub(crate) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|(_, length)| length).sum()
}

fn at(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies from one scattered memory to another, as far as both go.
///
/// # Safety
///
/// All of it is mapped; what is copied to can be written.
pub(crate) unsafe fn copy(from: &[Segment], to: &[Segment]) {
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut target) = ((0, 0), (0, 0));
    loop {
        while source.1 == 0 {
            let Some(next) = from.next() else { return };
            source = next;
        }
        while target.1 == 0 {
            let Some(next) = to.next() else { return };
            target = next;
        }
        let run = source.1.min(target.1);
        // SAFETY: both runs are inside of segments, which are mapped; they may overlap.
        unsafe { std::ptr::copy(at(source.0), at(target.0), run as usize) };
        source = (source.0 + run, source.1 - run);
        target = (target.0 + run, target.1 - run);
    }
}

/// Writes `byte` all over.
///
/// # Safety
///
/// As [`copy`].
pub(crate) unsafe fn fill(segments: &[Segment], byte: u8) {
    for (address, length) in segments {
        // SAFETY: the segment is mapped and can be written.
        unsafe { at(*address).write_bytes(byte, *length as usize) };
    }
}

/// A copy of what is there.
///
/// # Safety
///
/// All of it is mapped.
pub(crate) unsafe fn gather(segments: &[Segment]) -> Box<[u8]> {
    let mut bytes = vec![0; total(segments) as usize].into_boxed_slice();
    let target = bytes.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the target is ours, and as long as the source.
    unsafe { copy(segments, &[(target, bytes.len() as u64)]) };
    bytes
}

/// Where a copy of ours lies.
pub(crate) fn segment_of(bytes: &[u8]) -> Segment {
    (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64)
}

/// Exchanges 8 bytes for others if they are `compare`, or whatever they are if that is `None`: what
/// becomes of them is `new`'s to say. Gives what was there.
///
/// # Safety
///
/// The 8 bytes are mapped, can be written, and are aligned.
pub(crate) unsafe fn atomic(address: u64, new: impl Fn(u64) -> Option<u64>) -> u64 {
    // SAFETY: mapped and aligned by the caller's word; others reach it by atomics only, or are
    // wrong.
    let there = unsafe { AtomicU64::from_ptr(at(address).cast()) };
    match there.fetch_update(Ordering::SeqCst, Ordering::SeqCst, new) {
        Ok(before) | Err(before) => before,
    }
}

/// Writes the first `size` bytes of a struct of C's, or all if that is less.
///
/// # Safety
///
/// So many bytes can be written.
pub(crate) unsafe fn write_front<T: Copy>(to: *mut T, from: &T, size: usize) {
    let size = size.min(size_of::<T>());
    // SAFETY: `from` has that many bytes, and so has `to` by the caller's word.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast(), size) };
}

/// Whether memory is mapped, all of it.
pub(crate) fn is_mapped(address: u64, length: u64) -> bool {
    let page = 4096;
    let start = address & !(page - 1);
    let Some(end) = address.checked_add(length) else { return false };
    // SAFETY: does nothing but look whether the pages are mapped: MS_ASYNC has no other effect.
    unsafe { libc::msync(at(start).cast(), (end - start) as usize, libc::MS_ASYNC) == 0 }
}

/// A descriptor that is readable while something waits behind it. All but `wait` is called under the
/// world's lock.
pub(crate) struct Readable(OwnedFd);

impl Readable {
    pub(crate) fn new() -> Result<Readable, c_int> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        // SAFETY: just made, and nobody else's.
        Ok(Readable(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    /// Makes it readable or not. Does nothing when it is that already.
    pub(crate) fn set(&self, readable: bool) {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as told.
        let is = unsafe { libc::poll(&mut poll, 1, 0) } == 1;
        let mut count = 1_u64;
        let pointer = (&raw mut count).cast();
        if readable && !is {
            // SAFETY: 8 bytes, as told.
            unsafe { libc::write(self.fd(), pointer, 8) };
        } else if !readable && is {
            // SAFETY: as above. There is something to read, so that it does not wait.
            unsafe { libc::read(self.fd(), pointer, 8) };
        }
    }
}

/// Waits until a descriptor is readable; `EAGAIN` if its flags say not to, `EINTR` for a signal.
pub(crate) fn wait_readable(fd: c_int) -> Result<(), c_int> {
    let last = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // SAFETY: asks for flags.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(last());
    }
    if flags & libc::O_NONBLOCK != 0 {
        return Err(libc::EAGAIN);
    }
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as told.
    if unsafe { libc::poll(&mut poll, 1, -1) } < 0 {
        return Err(last());
    }
    set_errno(0);
    Ok(())
}
