//! The seam itself on a real provider.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use super::rig::Rig;
use crate::error::Errno;
use crate::sys::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::sys::{self, ContextHandle};

/// A device opened through the seam, beside the crate.
pub(crate) fn open(name: &str) -> ContextHandle {
    let devices = sys::list_devices().expect("devices can be listed");
    let device = devices.into_iter().find(|device| device.name() == name);
    device.expect("the device is listed").open().expect("the device opens")
}

unsafe extern "C" {
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
}

/// Optional access flags: the plain symbol, which is what rdma-sys calls, refuses them; ours goes
/// to the call that drops those a device lacks.
#[test]
fn optional_access_flags_register() {
    const LOCAL_WRITE: u32 = 1;
    const RELAXED_ORDERING: u32 = 1 << 20;
    let rig = Rig::new();
    let context = open(&rig.device);
    let mut memory = vec![0_u8; 4096];
    let start: *mut c_void = memory.as_mut_ptr().cast();
    let access = LOCAL_WRITE | RELAXED_ORDERING;
    // SAFETY: the context is open to the end of the test; the memory outlives its regions, which
    // are deregistered before the PD goes.
    unsafe {
        let pd = ibv_alloc_pd(context.raw());
        assert!(!pd.is_null(), "{}", Errno::last());
        let mr = sys::ops::reg_mr(pd, start, 4096, access).expect("optional flags are optional");
        assert_eq!(mr.as_ref().length, 4096);
        assert_eq!(ibv_dereg_mr(mr.as_ptr()), 0);
        let plain = ibv_reg_mr(pd, start, 4096, access as c_int);
        if !plain.is_null() {
            // A newer kernel's rxe knows the flag.
            assert_eq!(ibv_dereg_mr(plain), 0);
        }
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}
