//! Every C function in use, declared once for both backends.

use std::ffi::{c_int, c_uint, c_void};

use super::abi::{ibv_ah, ibv_ah_attr, ibv_async_event};
use super::abi::{ibv_comp_channel, ibv_cq, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use super::abi::{
    ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_mr, ibv_pd, ibv_port_attr,
};
use super::abi::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr_ex};

/// With rdma-sys: a function of the same name and arguments that calls through it. `same` admits
/// only a pointer for a pointer and the same integer for an integer, so that the compiler checks
/// our list against the C headers.
#[cfg(feature = "rdma-sys")]
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        pub(crate) unsafe fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: the caller keeps the C function's contract; pointers only change the name
            // of the struct they point to, which `layout` shows to be the same struct.
            unsafe { same(rdma_sys::$name($(same($arg)),*)) }
        }
    )*};
}

/// Without it: linked by the library's full name, which needs no -dev package.
#[cfg(not(feature = "rdma-sys"))]
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        #[link(name = "libibverbs.so.1", kind = "dylib", modifiers = "+verbatim")]
        unsafe extern "C" {
            $($(#[$doc])* pub(crate) fn $name($($arg: $type),*) $(-> $ret)?;)*
        }
    };
}

calls! {
    /// NULL and errno, or a NULL-terminated array.
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    /// Drops one reference of every device in it.
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    /// Network order; 0 when not known.
    fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    /// NULL and errno.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    /// 0, or -1 and errno.
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    /// 0 or the errno.
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    /// 0, or -1 and errno; an empty row is 0 and a zero GID.
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    /// 0, or -1 and errno; network order. A file read in sysfs each.
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    /// 0 or the errno. Fills only the part that old programs know: zero the struct first.
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    /// NULL and errno. Reads the first fields, which the extended struct shares.
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
    /// 0 or the errno.
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    /// 0 or the errno.
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    /// 0 or the errno; `EBUSY` while a queue pair is on it. After 0 the device touches none of the memory that
    /// was posted on it.
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    /// NULL and errno. Refuses the optional access flags.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    /// 0 or the errno; nothing touches the memory on the region's behalf after 0.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    /// NULL and errno.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    /// 0 or the errno; `EBUSY` while something was made on it.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    /// NULL and errno.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    /// 0 or the errno; `EBUSY` while a CQ is on it.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    /// NULL and errno. `channel` may be NULL.
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
    /// 0 or the errno; `EBUSY` while a queue pair is on it. Waits until every event taken from the
    /// channel for it was acknowledged.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    /// 0, or -1 and errno. Reads the channel's descriptor, and finds the CQ by a pointer read from it.
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
    /// Takes a mutex.
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) -> ();
    /// NULL and errno. Writes what was granted into the attributes.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// 0 or the errno.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    /// 0 or the errno.
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    /// NULL and errno. The kernel looks for the next hop meanwhile.
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    /// 0 or the errno.
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    /// 0 or the errno. A group that the queue pair is in already is left as it is.
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// 0 or the errno; `EINVAL` for a group that it is not in.
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// 0 or the errno; `EBUSY` while it is in a multicast group. After 0 the device touches none of the memory that was posted on it.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
}

unsafe extern "C" {
    /// -1 and errno, or 0 and the event. Declared here for both backends: rdma-sys has a Rust enum
    /// in the struct.
    pub(crate) fn ibv_get_async_event(
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> c_int;
    /// Tells the library that the event's object may be destroyed.
    pub(crate) fn ibv_ack_async_event(event: *mut ibv_async_event);
}

/// A pointer to C's struct under either backend's name, or the same integer.
#[cfg(feature = "rdma-sys")]
pub(super) fn same<A: Same<B>, B>(a: A) -> B {
    a.same()
}

#[cfg(feature = "rdma-sys")]
pub(super) trait Same<B> {
    fn same(self) -> B;
}

#[cfg(feature = "rdma-sys")]
mod same_impls {
    use super::Same;

    impl<A, B> Same<*mut B> for *mut A {
        fn same(self) -> *mut B {
            self.cast()
        }
    }

    impl<A, B> Same<*const B> for *const A {
        fn same(self) -> *const B {
            self.cast()
        }
    }

    macro_rules! integers {
        ($($type:ty),*) => {$(impl Same<$type> for $type { fn same(self) -> $type { self } })*};
    }
    integers!((), u8, u16, u32, u64, i32, i64, usize, isize);
}
