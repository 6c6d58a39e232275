//! The owner of an `ibv_context`.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::abi::{
    ibv_async_event, ibv_context, ibv_device, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_port_attr,
};
use super::ops::{self, Newer};
use super::{calls, conv};
use crate::error::Errno;
use crate::types::{Gid, PortNum};

/// An asynchronous event as C gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawEvent {
    /// `enum ibv_event_type`, as a number.
    pub(crate) kind: i32,
    /// What it happened to, as the kind says: a pointer, or in the first 4 bytes a port number as an
    /// `int`, and in the rest whatever was in memory.
    pub(crate) element: [u8; 8],
}

/// An open device; closed when dropped. Everything made on it must be gone by then.
pub(crate) struct ContextHandle {
    context: NonNull<ibv_context>,
    /// Whether it is ours to close.
    closes: AtomicBool,
    /// Objects made on it that could not be destroyed.
    leaks: AtomicU64,
    /// Once it was looked for.
    provider_file: OnceLock<Option<PathBuf>>,
}

// SAFETY: verbs may be called from any thread (the library's man pages promise thread safety for
// all of them), and closing does not depend on the thread that opened.
unsafe impl Send for ContextHandle {}
// SAFETY: as above; the methods that take `&self` only call such verbs.
unsafe impl Sync for ContextHandle {}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        if !*self.closes.get_mut() {
            return;
        }
        // SAFETY: opened by us, or for us, closed once, here. A failure is left alone: the descriptors are
        // closed all the same and there is nobody to tell.
        unsafe { calls::ibv_close_device(self.context.as_ptr()) };
    }
}

impl ContextHandle {
    /// Takes the context over. Its descriptor of events is made non-blocking: reading it must
    /// never wait in a lookup.
    ///
    /// # Safety
    ///
    /// The context is open and nobody else closes it.
    pub(crate) unsafe fn new(context: NonNull<ibv_context>) -> Result<ContextHandle, Errno> {
        ContextHandle::make(context, true)
    }

    fn make(context: NonNull<ibv_context>, closes: bool) -> Result<ContextHandle, Errno> {
        let (closes, leaks) = (AtomicBool::new(closes), AtomicU64::new(0));
        let provider_file = OnceLock::new();
        let handle = ContextHandle { context, closes, leaks, provider_file };
        super::set_nonblocking(handle.async_fd().as_raw_fd())?;
        Ok(handle)
    }

    /// Counts an object made on it that could not be destroyed, unless the kernel did so with the device.
    pub(super) fn note_end(&self, returned: c_int) {
        if !matches!(conv::zero_or_errno(returned), Ok(()) | Err(Errno::EIO | Errno::ENODEV)) {
            self.leaks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many objects made on it could not be destroyed: those whose owners are in this folder.
    pub(crate) fn leaks(&self) -> u64 {
        self.leaks.load(Ordering::Relaxed)
    }

    /// C's object, for callers who know what it is; good while `self` lives.
    pub(crate) fn as_raw(&self) -> NonNull<c_void> {
        self.context.cast()
    }

    /// The device it is of, which is there while `self` lives.
    pub(super) fn device(&self) -> *mut ibv_device {
        // SAFETY: the context is open while `self` lives.
        unsafe { (*self.raw()).device }
    }

    /// The name of that.
    pub(crate) fn device_name(&self) -> String {
        // SAFETY: an open context holds its device; the field is an array in it.
        super::device::text(unsafe { &(*self.device()).name }).to_string_lossy().into_owned()
    }

    /// The same of a context that is open already, and that is not closed until [`own`](ContextHandle::own)
    /// was called.
    ///
    /// # Safety
    ///
    /// It is a `struct ibv_context *`, which stays open while the handle lives, and which, if it is owned, nobody
    /// else closes.
    pub(crate) unsafe fn of_others(context: NonNull<c_void>) -> Result<ContextHandle, Errno> {
        ContextHandle::make(context.cast(), false)
    }

    /// From now on it is closed when dropped.
    pub(crate) fn own(&self) {
        self.closes.store(true, Ordering::Relaxed);
    }

    /// For the calls of this folder; good while `self` lives.
    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// How many completion vectors the device has: 0 to n-1 are valid.
    pub(crate) fn num_comp_vectors(&self) -> i32 {
        // SAFETY: the context is open while `self` lives.
        unsafe { (*self.raw()).num_comp_vectors }
    }

    /// The library whose functions post on this context: the provider's, as a rule.
    pub(crate) fn provider_library(&self) -> Option<PathBuf> {
        // SAFETY: the context is open while `self` lives.
        let post = unsafe { (*self.raw()).ops.post_send }?;
        library_of(post as *const c_void)
    }

    /// The file of that which is mapped, with its links followed. Looked for once.
    pub(crate) fn provider_file(&self) -> Option<&Path> {
        let look = || {
            // SAFETY: the context is open while `self` lives.
            let post = unsafe { (*self.raw()).ops.post_send }?;
            super::version::file_of(post as *const c_void)
        };
        self.provider_file.get_or_init(look).as_deref()
    }

    /// Readable when there are events. Only to wait on: events are read by `next_event`.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context, and so its descriptor, is open while `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// Takes one event if there is one (`ibv_get_async_event`), shows it, and acknowledges it
    /// (`ibv_ack_async_event`). Its object, if it has one, is there until `show` returns: the
    /// library lets nobody destroy it before the acknowledgement. False when there is none.
    pub(crate) fn next_event(&self, show: &mut dyn FnMut(RawEvent)) -> Result<bool, Errno> {
        /// Acknowledges even if `show` panics: an event that is not would make its object's
        /// destruction wait for ever.
        struct Taken(ibv_async_event);
        impl Drop for Taken {
            fn drop(&mut self) {
                // SAFETY: the event was given by ibv_get_async_event and is acknowledged once.
                unsafe { calls::ibv_ack_async_event(&mut self.0) }
            }
        }
        loop {
            // For a port the library writes 4 of the element's 8 bytes.
            let mut event = ibv_async_event { element: [0; 8], event_type: -1 };
            // A short read fails without setting errno.
            conv::preset_errno();
            // SAFETY: the context is open; the event is written during the call only.
            let returned = unsafe { calls::ibv_get_async_event(self.raw(), &mut event) };
            match conv::zero_or_minus_one(returned) {
                Ok(()) => {
                    let taken = Taken(event);
                    show(RawEvent { kind: taken.0.event_type, element: taken.0.element });
                    return Ok(true);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// `ibv_query_pkey`, in host order.
    pub(crate) fn query_pkey(&self, port: PortNum, index: u16) -> Result<u16, Errno> {
        let mut pkey = 0;
        // A file that is no number fails without setting errno.
        conv::preset_errno();
        // SAFETY: the context is open, and the P_Key is written during the call only.
        let returned =
            unsafe { calls::ibv_query_pkey(self.raw(), port.get(), index.into(), &mut pkey) };
        conv::zero_or_minus_one(returned).map(|()| u16::from_be(pkey))
    }

    pub(crate) fn query_device(&self) -> Result<ibv_device_attr_ex, Errno> {
        // SAFETY: the context is open while `self` lives.
        unsafe { ops::query_device_ex(self.raw()) }
    }

    pub(crate) fn query_port(&self, port: PortNum) -> Result<ibv_port_attr, Errno> {
        // SAFETY: the context is open while `self` lives.
        unsafe { ops::query_port(self.raw(), port.get()) }
    }

    /// What the device's clock shows (`ibv_query_rt_values_ex`); `EOPNOTSUPP` where there is none.
    pub(crate) fn raw_clock(&self) -> Result<u64, Errno> {
        // SAFETY: the context is open while `self` lives.
        unsafe { ops::raw_clock(self.raw()) }
    }

    /// `ibv_query_gid`: an empty row is the zero GID.
    pub(crate) fn query_gid(&self, port: PortNum, index: u32) -> Result<Gid, Errno> {
        let index = c_int::try_from(index).map_err(|_| Errno::EINVAL)?;
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and the GID is written during the call only.
        let returned = unsafe { calls::ibv_query_gid(self.raw(), port.get(), index, &mut gid) };
        conv::zero_or_minus_one(returned).map(|()| Gid::from_bytes(gid.raw))
    }

    /// `ibv_query_gid_ex`: one row, `ENODATA` when it is empty, `EOPNOTSUPP` when the library
    /// lacks the call.
    pub(crate) fn query_gid_entry(
        &self,
        port: PortNum,
        index: u32,
    ) -> Result<ibv_gid_entry, Errno> {
        let query = Newer::get().query_gid_ex.ok_or(Errno::EOPNOTSUPP)?;
        let mut entry = ibv_gid_entry::ZERO;
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and at most `size` bytes are written during the call.
        let returned = unsafe { query(self.raw(), port.get().into(), index, &mut entry, 0, size) };
        conv::zero_or_errno(returned).map(|()| entry)
    }

    /// `ibv_query_gid_table`: all live rows of all ports into `rows`, and how many there were.
    /// `EINVAL` when there is not room for all; `EOPNOTSUPP` when the library lacks the call.
    pub(crate) fn query_gid_table(&self, rows: &mut [ibv_gid_entry]) -> Result<usize, Errno> {
        let query = Newer::get().query_gid_table.ok_or(Errno::EOPNOTSUPP)?;
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and at most `rows.len()` rows of `size` bytes are written
        // during the call.
        let returned = unsafe { query(self.raw(), rows.as_mut_ptr(), rows.len(), 0, size) };
        // More rows than there is room for would be a lie of the library.
        conv::count_or_negative_errno(returned).map(|count| count.min(rows.len()))
    }
}

/// The library that an address is in, by the name that it was loaded by.
fn library_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: all zero is a value of this struct of pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for, and the answer is written during the call only.
    let known = unsafe { libc::dladdr(address, &mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated name that stays while the library is loaded, as it is while one of its
    // contexts is open.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(OsStr::from_bytes(name.to_bytes()).into())
}
