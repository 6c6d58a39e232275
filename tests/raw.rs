//! C's own objects, out of this crate's and into them, on the interposer's device: the call in C on the handle
//! answers what ours does.

mod interposed;

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use interposed::rig::{Rig, assert_nothing_is_left, open};
use interposed::{faults, interposed};
use rdma_verbs::{Context, Error, Exposed, Pool, ProtectionDomain, QpState, RemoteAccess};

/// C's functions, found by name as another library of the same program has them.
macro_rules! c_calls {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        /// Called as C would.
        #[allow(unsafe_code)]
        unsafe fn $name($($arg: $type),*) -> $ret {
            let name = concat!(stringify!($name), "\0");
            let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("one NUL");
            // SAFETY: the name ends with NUL.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            type Function = unsafe extern "C" fn($($type),*) -> $ret;
            // SAFETY: libibverbs has a function of this name and type.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: the caller keeps the function's own contract.
            unsafe { function($($arg),*) }
        }
    )*};
}

c_calls! {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void;
    fn ibv_free_device_list(list: *mut *mut c_void) -> ();
    fn ibv_open_device(device: *mut c_void) -> *mut c_void;
    fn ibv_close_device(context: *mut c_void) -> c_int;
    fn ibv_query_gid(context: *mut c_void, port: u8, index: c_int, gid: *mut [u8; 16]) -> c_int;
    fn ibv_reg_mr(pd: *mut c_void, address: *mut c_void, len: usize, access: c_int) -> *mut c_void;
    fn ibv_dereg_mr(mr: *mut c_void) -> c_int;
    fn ibv_query_qp(qp: *mut c_void, attr: *mut [u32; 64], mask: c_int, init: *mut [u64; 32]) -> c_int;
}

/// The first device of the interposer, opened in C.
#[allow(unsafe_code)]
fn opened_in_c() -> NonNull<c_void> {
    let mut count = 0;
    // SAFETY: `count` is written during the call; the list has an entry, whose device is opened while the list is
    // there, and an open context holds its device.
    let context = unsafe {
        let list = ibv_get_device_list(&mut count);
        assert!(count > 0 && !list.is_null());
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        context
    };
    NonNull::new(context).expect("it can be opened")
}

/// What the C call answers for a row.
#[allow(unsafe_code)]
fn gid_in_c(context: NonNull<c_void>, port: u8, index: u32) -> [u8; 16] {
    let mut gid = [0; 16];
    // SAFETY: the context is open, and 16 bytes are written.
    let returned = unsafe { ibv_query_gid(context.as_ptr(), port, index as c_int, &mut gid) };
    assert_eq!(returned, 0);
    gid
}

/// Every row by the C call on the handle, and by this crate.
fn assert_same_rows(context: &Context) {
    let rows = context.gids().cached();
    assert!(!rows.rows().is_empty());
    for row in rows.rows() {
        let in_c = gid_in_c(context.as_raw(), row.port().get(), row.index());
        assert_eq!(in_c, row.gid().bytes());
        let ours = context.query_gid(row.port(), row.index()).expect("a GID");
        assert_eq!(in_c, ours.bytes());
    }
}

interposed! {
    fn c_calls_on_our_handles_answer_what_ours_do() {
        let rig = Rig::new();
        assert_same_rows(&rig.context);
        let (a, b) = rig.pair();
        for queue_pair in [&a, &b] {
            let (mut attr, mut init) = ([0; 64], [0; 32]);
            // SAFETY: the queue pair lives, and the arrays are larger than C's structs.
            #[allow(unsafe_code)]
            let returned =
                unsafe { ibv_query_qp(queue_pair.as_raw().as_ptr(), &mut attr, 1, &mut init) };
            assert_eq!((returned, attr[0]), (0, QpState::RTS.raw()));
            assert_eq!(queue_pair.state().expect("it can be asked"), QpState::RTS);
        }
        assert_ne!(a.as_raw(), b.as_raw());
        // Memory that C registers on our protection domain, and that stays its own.
        let before = faults::live("mr");
        let mut memory = vec![0_u8; 4096];
        // SAFETY: the memory is there until the region is deregistered, below.
        #[allow(unsafe_code)]
        let region =
            unsafe { ibv_reg_mr(rig.pd.as_raw().as_ptr(), memory.as_mut_ptr().cast(), 4096, 1) };
        assert!(!region.is_null());
        assert_eq!((faults::live("mr"), rig.pd.clone().as_raw()), (before + 1, rig.pd.as_raw()));
        // SAFETY: registered above, once.
        #[allow(unsafe_code)]
        let returned = unsafe { ibv_dereg_mr(region) };
        assert_eq!(returned, 0);
        drop((a, b));
        rig.end();
    }

    fn memory_tells_its_keys() {
        let rig = Rig::new();
        let pool = Pool::new(&rig.pd, 64, 2).expect("a pool");
        let exposed = Exposed::new(&rig.pd, 64, RemoteAccess::WRITE).expect("memory");
        assert_ne!(pool.lkey(), rig.pool.lkey());
        assert_ne!(exposed.lkey(), pool.lkey());
        assert_ne!(exposed.remote().rkey().get(), 0);
        drop((pool, exposed));
        rig.end();
    }

    fn a_context_that_is_taken_over_is_closed_by_the_last_of_its_objects() {
        let raw = opened_in_c();
        // SAFETY: just opened, and nobody else has it.
        #[allow(unsafe_code)]
        let context = unsafe { Context::from_raw(raw) }.expect("a context");
        assert_eq!((context.as_raw(), context.device().name()), (raw, open("loop0").device().name()));
        assert_same_rows(&context);
        let pd = ProtectionDomain::new(&context).expect("a PD");
        drop(context);
        assert_eq!((faults::live("context"), faults::count("ibv_close_device")), (1, 1), "loop0's");
        drop(pd);
        assert_eq!(faults::count("ibv_close_device"), 2);
        assert_nothing_is_left();
    }

    fn a_context_that_is_borrowed_stays_open() {
        let raw = opened_in_c();
        // SAFETY: it is closed at the end of this test, after all that was made on it.
        #[allow(unsafe_code)]
        let context = unsafe { Context::borrow_raw(raw) }.expect("a context");
        assert_same_rows(&context);
        let queue = context.subscribe().expect("a queue");
        assert_eq!(faults::raise(Some("loop0"), 18, 1), 1);
        assert_eq!(context.process_events().expect("an event"), 1);
        assert!(queue.next_event().is_some());
        drop((ProtectionDomain::new(&context).expect("a PD"), context, queue));
        assert_eq!((faults::live("context"), faults::count("ibv_close_device")), (1, 0));
        // SAFETY: opened in this test, and nothing of it is left.
        #[allow(unsafe_code)]
        let returned = unsafe { ibv_close_device(raw.as_ptr()) };
        assert_eq!(returned, 0);
        assert_nothing_is_left();
    }

    /// It is still the caller's.
    fn a_context_that_cannot_be_taken_over_is_not_closed() {
        let raw = opened_in_c();
        // The last fails: the device is asked for its limits first.
        for verb in ["ibv_query_device_ex", "ibv_query_port", "ibv_get_device_list"] {
            faults::fail(verb, libc::EIO);
            // SAFETY: opened in this test, and closed below.
            #[allow(unsafe_code)]
            let error = unsafe { Context::from_raw(raw) }.expect_err(verb);
            assert!(matches!(error, Error::Verb { .. } | Error::DeviceList { .. }), "{verb}: {error}");
        }
        assert_eq!((faults::live("context"), faults::count("ibv_close_device")), (1, 0));
        // SAFETY: as above.
        #[allow(unsafe_code)]
        let returned = unsafe { ibv_close_device(raw.as_ptr()) };
        assert_eq!(returned, 0);
        assert_nothing_is_left();
    }
}
