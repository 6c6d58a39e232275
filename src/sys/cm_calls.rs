//! Every function of librdmacm in use, looked up at run time.
//!
//! Not linked, in either backend: a program that is linked to librdmacm does not start on a machine
//! without it, and most programs never connect through it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::abi::{ibv_qp_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};

/// A table of function pointers, one of each name, and how it is filled. With rdma-sys the tests also
/// have a function for each that calls through it, so that the compiler checks our list against the C
/// headers.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of the library that was found.
        pub(super) struct Calls {
            $($(#[$doc])* pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $ret)?,)*
        }

        impl Calls {
            /// Looks all of them up; the name of one that is not there.
            fn find(library: &Library) -> Result<Calls, &'static str> {
                const fn name(text: &'static str) -> &'static CStr {
                    match CStr::from_bytes_with_nul(text.as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }
                }
                Ok(Calls {
                    $($name: {
                        let found = library.find(name(concat!(stringify!($name), "\0")));
                        if found.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: the name has this signature in every librdmacm that has it, and
                        // the pointer is not NULL.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) $(-> $ret)?,
                            >(found)
                        }
                    },)*
                })
            }
        }

        #[cfg(all(test, feature = "rdma-sys"))]
        mod headers {
            use super::*;
            use super::super::calls::same;
            $(
                #[allow(dead_code)] // compiled, not run
                unsafe fn $name($($arg: $type),*) $(-> $ret)? {
                    // SAFETY: the caller keeps the C function's contract.
                    unsafe { same(rdma_sys::$name($(same($arg)),*)) }
                }
            )*
        }
    };
}

calls! {
    /// NULL and errno. Opens `/dev/infiniband/rdma_cm`.
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    /// Its ids are destroyed, its events acknowledged.
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> ();
    /// 0, or -1 and errno.
    fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: c_uint) -> c_int;
    /// 0, or -1 and errno. Waits until every event of it that was taken is acknowledged.
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    /// 0, or -1 and errno.
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;
    /// 0, or -1 and errno; the outcome is an event.
    fn rdma_resolve_addr(id: *mut rdma_cm_id, from: *mut libc::sockaddr, to: *mut libc::sockaddr, timeout_ms: c_int) -> c_int;
    /// 0, or -1 and errno; the outcome is an event.
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    /// 0, or -1 and errno; the outcome is an event.
    fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    /// 0, or -1 and errno. Of an id without a queue pair of the library's: the answer to the peer's.
    /// rdma-core 25.
    fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    /// 0, or -1 and errno.
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    /// 0, or -1 and errno; the outcome is an event.
    fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    /// 0, or -1 and errno.
    fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int;
    /// 0, or -1 and errno; the outcome is an event.
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    /// 0 and an event, or -1 and errno.
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    /// 0. The event is freed.
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    /// 0, or -1 and errno. Reads the state from the attributes. rdma-core 25.
    fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
    /// 0, or -1 and errno; the outcome is an event.
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr, context: *mut c_void) -> c_int;
    /// 0, or -1 and errno. Waits until every event of the group that was taken is acknowledged.
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;
    /// 0, or -1 and errno.
    fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, option: c_int, value: *mut c_void, len: usize) -> c_int;
}

/// What the linker calls it.
pub(crate) const LIBRARY: &str = "librdmacm.so.1";

/// The library, opened, and never closed: its functions are kept for ever.
struct Library(*mut c_void);

impl Library {
    /// `dlopen`, or what it says is wrong.
    fn open() -> Result<Library, String> {
        // SAFETY: the name is NUL-terminated. All of the library's own symbols are bound now, so that
        // what is missing is told here.
        let handle =
            unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Library(handle));
        }
        // SAFETY: NULL, or a text that stands until this thread's next call of its kind.
        let text: *const c_char = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err("it cannot be loaded".into());
        }
        // SAFETY: as above.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// The address of a function, or NULL. First whatever the program sees, so that a preloaded library
    /// comes before librdmacm.
    fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the name is NUL-terminated, and the handle is one of dlopen's.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            if found.is_null() { libc::dlsym(self.0, name.as_ptr()) } else { found }
        }
    }
}

impl Calls {
    /// This machine's librdmacm, loaded when it is first asked for, or why it cannot be used.
    pub(super) fn get() -> Result<&'static Calls, &'static str> {
        static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();
        let loaded = CALLS.get_or_init(|| {
            let library = Library::open()?;
            Calls::find(&library)
                .map_err(|name| format!("{name} is not in it: rdma-core 25 or later is needed"))
        });
        loaded.as_ref().map_err(String::as_str)
    }
}
