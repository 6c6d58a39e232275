//! The same loop in C (`benches/raw_loop.c`), compiled when a bench runs, for a native comparison.
//!
//! Needs `cc` and libibverbs' header (`apt-get install gcc libibverbs-dev`).

#![allow(unsafe_code)] // Calls C by name.
#![allow(dead_code)] // Whoever has this module uses a part of it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::time::Duration;

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

type RawLoop =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *const Sge, *const Sge, u64, c_uint) -> u64;
type RawOpen = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> *mut c_void;
type RawRun = unsafe extern "C" fn(*mut c_void, u64, c_uint) -> u64;
type RawClose = unsafe extern "C" fn(*mut c_void);
/// Asks for a notification so often on a completion queue of C's: 0, or what failed.
pub(crate) type RawAsk = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;

/// The compiled loop. Stays loaded.
#[derive(Clone, Copy)]
pub(crate) struct CLoop {
    raw_loop: RawLoop,
    raw_open: RawOpen,
    raw_run: RawRun,
    raw_close: RawClose,
    /// `ibv_req_notify_cq`.
    pub(crate) raw_request: RawAsk,
    /// `ibv_req_notify_cq`, and then `ibv_poll_cq`.
    pub(crate) raw_request_and_poll: RawAsk,
}

/// A queue pair that C made and connected to itself.
pub(crate) struct CPair {
    pair: NonNull<c_void>,
    functions: CLoop,
}

impl CLoop {
    /// Compiles and loads it.
    ///
    /// # Errors
    ///
    /// What is missing, in words.
    pub(crate) fn build() -> Result<CLoop, String> {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = checkout.join("benches/raw_loop.c");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // Several may do this at once: each has its own, and takes the name away when it has it open.
        let library = folder.join(format!("raw_loop-{}.so", std::process::id()));
        let compiled = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-o"])
            .args([&library, &source])
            .output()
            .map_err(|error| format!("cc: {error}; apt-get install gcc"))?;
        if !compiled.status.success() {
            let why = String::from_utf8_lossy(&compiled.stderr).into_owned();
            let header = why.contains("infiniband/verbs.h: No such file");
            let hint = if header { "apt-get install libibverbs-dev\n" } else { "" };
            return Err(format!("{hint}cc {}: {why}", source.display()));
        }
        let loaded = CLoop::load(&library);
        let _ = std::fs::remove_file(&library);
        loaded
    }

    fn load(library: &Path) -> Result<CLoop, String> {
        let name = CString::new(library.as_os_str().as_bytes()).expect("no NUL in a path");
        // SAFETY: a library of our own, whose loading does nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: after a failure there is a text.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        let find = |name: &CStr| {
            // SAFETY: the handle is open and the name ends with NUL.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if found.is_null() { Err(format!("raw_loop.c has no {name:?}")) } else { Ok(found) }
        };
        let names = [c"raw_loop", c"raw_open", c"raw_run", c"raw_close"].map(find);
        let [raw_loop, raw_open, raw_run, raw_close] = names;
        let [raw_request, raw_request_and_poll] =
            [c"raw_request", c"raw_request_and_poll"].map(find);
        // SAFETY: raw_loop.c has functions of these names and types; the library stays loaded.
        unsafe {
            use std::mem::transmute;
            Ok(CLoop {
                raw_loop: transmute::<*mut c_void, RawLoop>(raw_loop?),
                raw_open: transmute::<*mut c_void, RawOpen>(raw_open?),
                raw_run: transmute::<*mut c_void, RawRun>(raw_run?),
                raw_close: transmute::<*mut c_void, RawClose>(raw_close?),
                raw_request: transmute::<*mut c_void, RawAsk>(raw_request?),
                raw_request_and_poll: transmute::<*mut c_void, RawAsk>(raw_request_and_poll?),
            })
        }
    }

    /// How long so many messages take on a queue pair of ours; `None` when one failed. `batch` is 1 to
    /// 64 work requests a call.
    ///
    /// # Safety
    ///
    /// `qp` and `cq` are C's pointers to a connected queue pair and to the completion queue of both its
    /// queues, which nobody else uses meanwhile; the memory is registered for it.
    pub(crate) unsafe fn run(
        &self,
        qp: *mut c_void,
        cq: *mut c_void,
        send: Sge,
        recv: Sge,
        iterations: u64,
        batch: u32,
    ) -> Option<Duration> {
        // SAFETY: as the caller says.
        time(unsafe { (self.raw_loop)(qp, cq, &send, &recv, iterations, batch) })
    }

    /// A queue pair on the device of this name, connected to itself by this row of its GID table, with
    /// queues of `depth`. `None` when there can be none.
    pub(crate) fn open(&self, device: &str, gid_index: u8, depth: u32) -> Option<CPair> {
        let device = CString::new(device).ok()?;
        // SAFETY: the name ends with NUL.
        let pair = unsafe { (self.raw_open)(device.as_ptr(), gid_index.into(), depth) };
        NonNull::new(pair).map(|pair| CPair { pair, functions: *self })
    }
}

impl CPair {
    /// How long so many messages take; `None` when one failed. `batch` is 1 to 64, and no more than the
    /// depth.
    pub(crate) fn run(&mut self, iterations: u64, batch: u32) -> Option<Duration> {
        // SAFETY: the pair is open, and this is the only way to it.
        time(unsafe { (self.functions.raw_run)(self.pair.as_ptr(), iterations, batch) })
    }
}

impl Drop for CPair {
    fn drop(&mut self) {
        // SAFETY: opened by us, closed once, here.
        unsafe { (self.functions.raw_close)(self.pair.as_ptr()) }
    }
}

fn time(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != u64::MAX).then(|| Duration::from_nanos(nanoseconds))
}
