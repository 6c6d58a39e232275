//! The extended lookup on contexts made by hand: what a library of another age looks like cannot
//! be shown on a real one. That the same lookup finds a real provider's operations is seen on
//! rxe by the limits test in `tests/rxe`.

use super::*;

/// An extended context in memory, as a provider would allocate it.
fn fake() -> Box<verbs_context> {
    // SAFETY: zero is a value of every field: integers, pointers, absent functions, a mutex that
    // nobody locks.
    let mut fake: Box<verbs_context> = Box::new(unsafe { std::mem::zeroed() });
    fake.sz = size_of::<verbs_context>();
    fake.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    fake
}

/// A pointer to the context inside, good for the whole of the struct around it.
fn inside(fake: &mut verbs_context) -> *mut ibv_context {
    (&raw mut *fake).cast::<u8>().wrapping_add(offset_of!(verbs_context, context)).cast()
}

unsafe extern "C" fn device_ex(
    _: *mut ibv_context,
    _: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<ibv_device_attr_ex>());
    // SAFETY: the caller hands a struct of that size.
    unsafe { (*attr).phys_port_cnt_ex = 300 };
    0
}

/// Fills only what it knows, like a provider of an older header.
unsafe extern "C" fn port(_: *mut ibv_context, n: u8, attr: *mut ibv_port_attr, _: usize) -> c_int {
    // SAFETY: the caller hands a whole struct.
    unsafe { (*attr).gid_tbl_len = n.into() };
    if n == 9 { libc::EINVAL } else { 0 }
}

#[test]
fn an_extended_operation_is_found() {
    let mut fake = fake();
    fake.query_device_ex = Some(device_ex);
    // SAFETY: the fake is a context for all that the lookup reads.
    let attr = unsafe { query_device_ex(inside(&mut fake)) }.expect("the fake answers");
    assert_eq!(attr.phys_port_cnt_ex, 300);
}

/// rdma-sys's own lookup misses the very same operation on 64-bit: why none of its inline
/// functions is used.
#[cfg(feature = "rdma-sys")]
#[test]
fn rdma_sys_does_not_find_it() {
    unsafe extern "C" fn answers(
        _: *mut rdma_sys::ibv_context,
        _: *mut rdma_sys::ibv_values_ex,
    ) -> c_int {
        0
    }
    // SAFETY: as for our own fake.
    let mut fake: Box<rdma_sys::verbs_context> = Box::new(unsafe { std::mem::zeroed() });
    fake.sz = size_of::<rdma_sys::verbs_context>();
    fake.query_rt_values = Some(answers);
    fake.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let context = (&raw mut *fake)
        .cast::<u8>()
        .wrapping_add(offset_of!(rdma_sys::verbs_context, context))
        .cast();
    // SAFETY: it reads the context's marker and, if it ever agrees, the fake around it.
    let returned = unsafe { rdma_sys::ibv_query_rt_values_ex(context, std::ptr::null_mut()) };
    assert_eq!(returned, libc::EOPNOTSUPP, "rdma-sys finds extended verbs now: use them");
}

/// Whether the lookup finds the operation that a test may have put there.
fn found(fake: &mut verbs_context) -> bool {
    // SAFETY: the fake is a context for all that the lookup reads.
    unsafe { extended_op!(inside(fake), query_device_ex).is_some() }
}

#[test]
fn it_is_not_found_where_it_is_not() {
    let mut absent = fake();
    assert!(!found(&mut absent));
    let mut plain = fake();
    plain.query_device_ex = Some(device_ex);
    assert!(found(&mut plain));
    plain.context.abi_compat = std::ptr::null_mut();
    assert!(!found(&mut plain), "no marker: not an extended context");
    // rdma-sys's idea of the marker
    plain.context.abi_compat = std::ptr::without_provenance_mut(u32::MAX as usize);
    assert!(!found(&mut plain));

    let mut old = fake();
    old.query_device_ex = Some(device_ex);
    let needed = size_of::<verbs_context>() - offset_of!(verbs_context, query_device_ex);
    old.sz = needed;
    assert!(found(&mut old), "a library that knows just this far");
    old.sz = needed - 8;
    assert!(!found(&mut old), "an older one, where the field is other memory");
}

#[test]
fn port_attributes_are_zeroed_first() {
    let mut fake = fake();
    fake.query_port = Some(port);
    // SAFETY: the fake is a context for all that the lookup reads.
    let attr = unsafe { query_port(inside(&mut fake), 3) }.expect("the fake answers");
    assert_eq!((attr.gid_tbl_len, attr.flags, attr.port_cap_flags2), (3, 0, 0));
    // SAFETY: as above.
    let failed = unsafe { query_port(inside(&mut fake), 9) }.map(|attr| attr.gid_tbl_len);
    assert_eq!(failed, Err(Errno::EINVAL));
}

#[test]
fn an_xrc_queue_is_refused_where_there_is_none() {
    let mut fake = fake();
    // SAFETY: zero is a value of it.
    let mut attr: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
    attr.comp_mask = 0b11; // type and PD
    attr.srq_type = 1; // XRC
    // SAFETY: neither the fake's absent operation nor the NULL PD is used.
    let made = unsafe { create_srq_ex(inside(&mut fake), &mut attr) };
    assert_eq!(made, Err(Errno::EOPNOTSUPP));
}

#[test]
fn an_absent_symbol_is_null() {
    assert!(find(c"ibv_no_such_function").is_null());
    assert!(!find(c"ibv_get_device_list").is_null());
}
