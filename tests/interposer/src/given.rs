//! C structs that were given to the program.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp,
};
use crate::abi::{ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, verbs_context};

/// A C struct that the program has a pointer to. Its memory is never freed.
pub(crate) struct Given<T> {
    memory: NonNull<T>,
    /// What is done when this goes.
    bury: Option<unsafe fn(*mut T)>,
}

// SAFETY: the struct behind it is reached under the world's lock, or by the program itself.
unsafe impl<T> Send for Given<T> {}
// SAFETY: shared access only reads a pointer that does not change.
unsafe impl<T> Sync for Given<T> {}

/// A C struct that begins with a pointer to its context.
///
/// # Safety
///
/// It does.
pub(crate) unsafe trait OnContext: Sized {
    /// The context becomes one whose operations end the program.
    ///
    /// # Safety
    ///
    /// `object` is one.
    unsafe fn bury(object: *mut Self) {
        // SAFETY: such a pointer stands at its front; the rest is the caller's word.
        unsafe {
            object.cast::<*mut ibv_context>().write(grave());
            Self::bury_operations(object);
        }
    }

    /// The operations of its own, if it has some, become such.
    ///
    /// # Safety
    ///
    /// `object` is one.
    unsafe fn bury_operations(_object: *mut Self) {}
}

macro_rules! on_context {
    ($($object:ty),*) => {$(
        // SAFETY: `context` is the first field.
        unsafe impl OnContext for $object {}
    )*};
}
on_context!(ibv_pd, ibv_mr, ibv_mw, ibv_comp_channel);

impl<T: OnContext> Given<T> {
    pub(crate) fn new(value: T) -> Given<T> {
        let mut given = Given::lasting(value);
        given.bury = Some(T::bury);
        given
    }
}

impl<T> Given<T> {
    /// One that is left as it is when it goes.
    pub(crate) fn lasting(value: T) -> Given<T> {
        let memory = NonNull::from(Box::leak(Box::new(value)));
        // Tests ask for objects by their addresses.
        memory.as_ptr().expose_provenance();
        Given { memory, bury: None }
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.memory.as_ptr()
    }

    /// Its address, by which the world knows it.
    pub(crate) fn id(&self) -> usize {
        self.memory.as_ptr().addr()
    }
}

impl<T> Drop for Given<T> {
    fn drop(&mut self) {
        if let Some(bury) = self.bury {
            // SAFETY: the memory is never freed, and holds such an object.
            unsafe { bury(self.as_ptr()) }
        }
        // Where a leak checker sees that it is not lost.
        static GONE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        GONE.lock().unwrap_or_else(PoisonError::into_inner).push(self.id());
    }
}

/// Exchanges operations of C's struct at `$object`, in these fields and with these arguments and results, for
/// some that end the program. Unsafe to expand: it is one.
macro_rules! bury {
    ($object:ident: $type:ty, $what:literal; $($field:ident($($arg:ty),*) $(-> $ret:ty)?,)*) => {$({
        unsafe extern "C" fn gone(_: *mut $type $(, _: $arg)*) $(-> $ret)? {
            $crate::given::misuse(concat!(stringify!($field), " on a ", $what, " that was destroyed"))
        }
        (&raw mut (*$object).$field).write(Some(gone));
    })*};
}
pub(crate) use bury;

/// The context of everything that was destroyed.
fn grave() -> *mut ibv_context {
    static GRAVE: OnceLock<Given<verbs_context>> = OnceLock::new();
    let grave = GRAVE.get_or_init(|| {
        // SAFETY: all zero is a value of this struct of integers, pointers and optional functions.
        let mut grave: verbs_context = unsafe { std::mem::zeroed() };
        grave.context.ops.poll_cq = Some(poll);
        grave.context.ops.req_notify_cq = Some(notify);
        grave.context.ops.post_send = Some(send);
        grave.context.ops.post_recv = Some(recv);
        grave.context.ops.post_srq_recv = Some(srq_recv);
        grave.context.ops.bind_mw = Some(bind);
        grave.context.ops.dealloc_mw = Some(dealloc);
        Given::lasting(grave)
    });
    // SAFETY: the struct is never freed; only the address of a field is taken.
    unsafe { &raw mut (*grave.as_ptr()).context }
}

/// Ends the program: what it does would be undefined with a real device.
pub(crate) fn misuse(what: &str) -> ! {
    eprintln!("interposer: {what}");
    std::process::abort()
}

unsafe extern "C" fn poll(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    misuse("ibv_poll_cq on a completion queue that was destroyed")
}

unsafe extern "C" fn notify(_: *mut ibv_cq, _: c_int) -> c_int {
    misuse("ibv_req_notify_cq on a completion queue that was destroyed")
}

unsafe extern "C" fn send(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    misuse("ibv_post_send on a queue pair that was destroyed")
}

unsafe extern "C" fn recv(_: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    misuse("ibv_post_recv on a queue pair that was destroyed")
}

unsafe extern "C" fn bind(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    misuse("ibv_bind_mw of a memory window that was deallocated")
}

unsafe extern "C" fn dealloc(_: *mut ibv_mw) -> c_int {
    misuse("ibv_dealloc_mw of a memory window that was deallocated")
}

unsafe extern "C" fn srq_recv(
    _: *mut ibv_srq,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    misuse("ibv_post_srq_recv on a shared receive queue that was destroyed")
}
