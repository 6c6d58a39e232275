//! Verbs that C has as inline functions, and functions that an older libibverbs lacks.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::OnceLock;

use super::abi::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_device_attr_ex, ibv_gid_entry,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_srq,
    ibv_srq_init_attr_ex, ibv_values_ex, verbs_context,
};
use super::{calls, conv};
use crate::error::Errno;

/// The extended operation `$op` of a context, when its library and provider have it. Unsafe to
/// expand: `$context` points to a context that libibverbs opened and that is still open.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {
        extended_field($context, offset_of!(verbs_context, $op), |s: &verbs_context| s.$op)
    };
}

/// The operation at `offset` of the extended context, when the context is extended, its library knows
/// that field, and its provider has the operation. `_type` only tells what the field holds.
///
/// # Safety
///
/// `context` points to an open context of libibverbs.
unsafe fn extended_field<Op: Copy>(
    context: *mut ibv_context,
    offset: usize,
    _type: fn(&verbs_context) -> Option<Op>,
) -> Option<Op> {
    // SAFETY: the context is open, so its fields can be read.
    let marker = unsafe { (&raw const (*context).abi_compat).read() };
    if marker.addr() != usize::MAX {
        return None;
    }
    // The library's struct may begin behind ours: addresses are counted from the context, which is at
    // the end of both.
    let at = |offset: usize| {
        context.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context)).wrapping_add(offset)
    };
    // SAFETY: the marker says that a verbs_context stands around this context, and `sz` is the
    // field directly before it.
    let size = unsafe { at(offset_of!(verbs_context, sz)).cast::<usize>().read() };
    // The struct grows at its front: what the library knows are the last `size` bytes.
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: the field is in the part that the library knows, and has this type in every version
    // that has it.
    unsafe { at(offset).cast::<Option<Op>>().read() }
}

/// `ibv_query_port`, with the fields that came later where the provider fills them.
///
/// # Safety
///
/// `context` points to an open context.
#[doc(alias = "ibv_query_port")]
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
) -> Result<ibv_port_attr, Errno> {
    // SAFETY: all zero is a value of this struct of integers. The old call leaves the new fields
    // as they were, so they must be zero before it.
    let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open by this function's own contract.
    let returned = match unsafe { extended_op!(context, query_port) } {
        // SAFETY: the operation is this context's own; it writes at most the size it is told.
        Some(op) => unsafe { op(context, port, &mut attr, size_of::<ibv_port_attr>()) },
        // SAFETY: the old function writes the front part of the struct only.
        None => unsafe { calls::ibv_query_port(context, port, &mut attr) },
    };
    conv::zero_or_errno(returned).map(|()| attr)
}

/// All zero: what a field is that nobody fills.
pub(crate) fn zeroed_device_attr() -> ibv_device_attr_ex {
    // SAFETY: all zero is a value of this struct of integers and arrays of them.
    unsafe { std::mem::zeroed() }
}

/// `ibv_query_device_ex`; where the provider lacks it the extended fields are zero.
///
/// # Safety
///
/// `context` points to an open context.
#[doc(alias = "ibv_query_device_ex")]
pub(crate) unsafe fn query_device_ex(
    context: *mut ibv_context,
) -> Result<ibv_device_attr_ex, Errno> {
    let mut attr = zeroed_device_attr();
    // SAFETY: the context is open by this function's own contract.
    if let Some(op) = unsafe { extended_op!(context, query_device_ex) } {
        // SAFETY: the operation is this context's own; NULL input is allowed; it writes at most
        // the size it is told.
        let returned =
            unsafe { op(context, std::ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>()) };
        match conv::zero_or_errno(returned) {
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => attr = zeroed_device_attr(),
            done => return done.map(|()| attr),
        }
    }
    // SAFETY: the context is open; the old call writes the front part.
    let returned = unsafe { calls::ibv_query_device(context, &mut attr.orig_attr) };
    conv::zero_or_errno(returned).map(|()| attr)
}

/// `ibv_create_srq_ex`: a basic SRQ through the old call, anything else only where the provider
/// really has the extended one.
///
/// # Safety
///
/// `context` points to an open context, and the handles in `attr` are live and its own.
#[doc(alias = "ibv_create_srq_ex")]
pub(crate) unsafe fn create_srq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<NonNull<ibv_srq>, Errno> {
    const ATTR_TYPE: u32 = 1 << 0;
    const ATTR_PD: u32 = 1 << 1;
    const TYPE_BASIC: c_uint = 0;
    let only_basic_fields = attr.comp_mask & !(ATTR_TYPE | ATTR_PD) == 0;
    let basic_type = attr.comp_mask & ATTR_TYPE == 0 || attr.srq_type == TYPE_BASIC;
    if only_basic_fields && basic_type && attr.comp_mask & ATTR_PD != 0 {
        // SAFETY: the PD is live; the old call reads and writes only the shared front fields.
        return conv::pointer(unsafe { calls::ibv_create_srq(attr.pd, attr) });
    }
    // SAFETY: the context is open by this function's own contract.
    match unsafe { extended_op!(context, create_srq_ex) } {
        // SAFETY: the operation is this context's own and the handles are live.
        Some(op) => conv::pointer(unsafe { op(context, attr) }),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// `ibv_create_cq_ex`; `EOPNOTSUPP` where the library or the provider lacks it.
///
/// # Safety
///
/// `context` points to an open context, and the channel in `attr` is live and its own.
#[doc(alias = "ibv_create_cq_ex")]
pub(crate) unsafe fn create_cq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_cq_init_attr_ex,
) -> Result<NonNull<ibv_cq_ex>, Errno> {
    // SAFETY: the context is open by this function's own contract.
    match unsafe { extended_op!(context, create_cq_ex) } {
        // SAFETY: the operation is this context's own and the channel is live.
        Some(op) => conv::pointer(unsafe { op(context, attr) }),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// `ibv_create_qp_ex`; `EOPNOTSUPP` where the library or the provider lacks it.
///
/// # Safety
///
/// `context` points to an open context, and the handles in `attr` are live and its own.
#[doc(alias = "ibv_create_qp_ex")]
pub(crate) unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<NonNull<ibv_qp>, Errno> {
    // SAFETY: the context is open by this function's own contract.
    match unsafe { extended_op!(context, create_qp_ex) } {
        // SAFETY: the operation is this context's own and the handles are live.
        Some(op) => conv::pointer(unsafe { op(context, attr) }),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// `ibv_query_rt_values_ex`: what the device's clock shows; `EOPNOTSUPP` where the library, the provider or the
/// device lacks it.
///
/// # Safety
///
/// `context` points to an open context.
#[doc(alias = "ibv_query_rt_values_ex")]
pub(crate) unsafe fn raw_clock(context: *mut ibv_context) -> Result<u64, Errno> {
    const RAW_CLOCK: u32 = 1 << 0;
    // SAFETY: the context is open by this function's own contract.
    let op = unsafe { extended_op!(context, query_rt_values) }.ok_or(Errno::EOPNOTSUPP)?;
    let raw_clock = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut values = ibv_values_ex { comp_mask: RAW_CLOCK, raw_clock };
    // SAFETY: the operation is this context's own; the struct is written during the call only.
    conv::zero_or_errno(unsafe { op(context, &mut values) })?;
    if values.comp_mask & RAW_CLOCK == 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // Ticks, and no time of day: providers put them into the nanoseconds, and nothing into the seconds.
    Ok(values.raw_clock.tv_nsec as u64)
}

/// `ibv_reg_mr` as C's macro does it: optional access flags go to the call that knows to drop
/// those a device lacks, and are dropped where the library is too old to have it.
///
/// # Safety
///
/// `pd` is live, and the memory is mapped and stays so until the region is deregistered.
#[doc(alias = "ibv_reg_mr")]
pub(crate) unsafe fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<NonNull<ibv_mr>, Errno> {
    const OPTIONAL_RANGE: c_uint = 0x3ff0_0000;
    if access & OPTIONAL_RANGE != 0 {
        if let Some(reg_mr_iova2) = Newer::get().reg_mr_iova2 {
            // SAFETY: the caller vouches for PD and memory; the I/O address is the memory's own.
            return conv::pointer(unsafe {
                reg_mr_iova2(pd, addr, length, addr.addr() as u64, access)
            });
        }
    }
    // Without the optional bits every flag is in the positive half.
    let access = (access & !OPTIONAL_RANGE) as c_int;
    // SAFETY: the caller vouches for PD and memory.
    conv::pointer(unsafe { calls::ibv_reg_mr(pd, addr, length, access) })
}

/// `ibv_reg_dmabuf_mr`; `EOPNOTSUPP` also where libibverbs has it not.
///
/// # Safety
///
/// `pd` is live, and what is behind the descriptor may be touched as the access says until the region is
/// deregistered.
#[doc(alias = "ibv_reg_dmabuf_mr")]
pub(crate) unsafe fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    (offset, length): (u64, usize),
    iova: u64,
    fd: c_int,
    access: c_uint,
) -> Result<NonNull<ibv_mr>, Errno> {
    let register = Newer::get().reg_dmabuf_mr.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: by this function's own contract.
    conv::pointer(unsafe { register(pd, offset, length, iova, fd, access as c_int) })
}

type QueryGidTable =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
type QueryGidEx =
    unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
type GetDeviceIndex = unsafe extern "C" fn(*mut ibv_device) -> c_int;
type RegDmabufMr = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
type QpToQpEx = unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;
type RegMrIova2 = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;

/// Functions that an older libibverbs lacks, looked up once at run time: a program that was
/// linked to them would not start there.
pub(crate) struct Newer {
    /// rdma-core 32, IBVERBS_1.11.
    pub(crate) query_gid_table: Option<QueryGidTable>,
    /// rdma-core 32, IBVERBS_1.11.
    pub(crate) query_gid_ex: Option<QueryGidEx>,
    /// rdma-core 31, IBVERBS_1.9.
    pub(crate) get_device_index: Option<GetDeviceIndex>,
    /// rdma-core 34, IBVERBS_1.12.
    pub(crate) reg_dmabuf_mr: Option<RegDmabufMr>,
    /// rdma-core 28, IBVERBS_1.8.
    pub(crate) reg_mr_iova2: Option<RegMrIova2>,
    /// rdma-core 24, IBVERBS_1.6.
    pub(crate) qp_to_qp_ex: Option<QpToQpEx>,
}

impl Newer {
    /// What this process's libibverbs has.
    pub(crate) fn get() -> &'static Newer {
        static NEWER: OnceLock<Newer> = OnceLock::new();
        // SAFETY: each name has this signature in every libibverbs that has it, and a pointer to
        // a function, or NULL, is what an Option of a function pointer is made of.
        NEWER.get_or_init(|| unsafe {
            use std::mem::transmute;
            type P = *mut c_void;
            Newer {
                query_gid_table: transmute::<P, Option<QueryGidTable>>(find(
                    c"_ibv_query_gid_table",
                )),
                query_gid_ex: transmute::<P, Option<QueryGidEx>>(find(c"_ibv_query_gid_ex")),
                get_device_index: transmute::<P, Option<GetDeviceIndex>>(find(
                    c"ibv_get_device_index",
                )),
                reg_dmabuf_mr: transmute::<P, Option<RegDmabufMr>>(find(c"ibv_reg_dmabuf_mr")),
                reg_mr_iova2: transmute::<P, Option<RegMrIova2>>(find(c"ibv_reg_mr_iova2")),
                qp_to_qp_ex: transmute::<P, Option<QpToQpEx>>(find(c"ibv_qp_to_qp_ex")),
            }
        })
    }
}

impl Newer {
    /// The address of a function of the libibverbs in use, or NULL.
    pub(super) fn find(name: &CStr) -> *mut c_void {
        find(name)
    }
}

/// The address of a function of libibverbs, or NULL.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated. First whatever the program sees, so that a preloaded
    // library comes before libibverbs.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    // A plugin that was loaded without RTLD_GLOBAL is linked to a libibverbs which the default
    // search does not see. RTLD_NOLOAD: only one that is there already. The handle is kept for
    // ever, as the function pointer is.
    // SAFETY: both names are NUL-terminated, and the handle is checked before use.
    unsafe {
        let library =
            libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
    }
}

#[cfg(test)]
mod tests;
