//! A queue pair and an address handle made by hand, with declarations of the test's own: holders
//! of a GID table row that the crate knows nothing of.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use rdma_verbs::{Errno, Gid, GidIndex};

use crate::sys::ContextHandle;
use crate::sys::abi::{ibv_context, ibv_gid, ibv_pd, ibv_wc};

#[repr(C)]
#[derive(Clone, Copy)]
struct AhAttr {
    dgid: ibv_gid,
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

#[repr(C)]
struct QpInitAttr {
    qp_context: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    cap: [u32; 5],
    qp_type: c_uint,
    sq_sig_all: c_int,
}

#[repr(C)]
struct QpAttr {
    qp_state: c_uint,
    cur_qp_state: c_uint,
    path_mtu: c_uint,
    path_mig_state: c_uint,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: c_uint,
    cap: [u32; 5],
    ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

#[allow(clashing_extern_declarations)] // the crate has its own
unsafe extern "C" {
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut AhAttr) -> *mut c_void;
    fn ibv_destroy_ah(ah: *mut c_void) -> c_int;
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut [u8; 40],
        attr: *mut AhAttr,
    ) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut c_void,
        comp_vector: c_int,
    ) -> *mut c_void;
    fn ibv_destroy_cq(cq: *mut c_void) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut QpInitAttr) -> *mut c_void;
    fn ibv_modify_qp(qp: *mut c_void, attr: *mut QpAttr, mask: c_int) -> c_int;
    fn ibv_destroy_qp(qp: *mut c_void) -> c_int;
}

/// A device opened beside the crate, with a protection domain.
pub(crate) struct Raw {
    pd: NonNull<ibv_pd>,
    context: ContextHandle,
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: what was made on it borrows it, and so has gone.
        unsafe { ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

/// An address handle, which holds its row.
pub(crate) struct Ah<'a> {
    ah: NonNull<c_void>,
    _raw: &'a Raw,
}

impl Drop for Ah<'_> {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_ah, destroyed once.
        unsafe { ibv_destroy_ah(self.ah.as_ptr()) };
    }
}

/// A queue pair, which holds its row once it is in RTR.
pub(crate) struct Qp<'a> {
    qp: NonNull<c_void>,
    cq: NonNull<c_void>,
    _raw: &'a Raw,
}

impl Drop for Qp<'_> {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_qp and ibv_create_cq, destroyed once, in this order.
        unsafe {
            ibv_destroy_qp(self.qp.as_ptr());
            ibv_destroy_cq(self.cq.as_ptr());
        }
    }
}

/// Port 1, from this row, to that GID.
fn address(index: GidIndex, to: Gid) -> AhAttr {
    AhAttr {
        dgid: ibv_gid { raw: to.bytes() },
        flow_label: 0,
        sgid_index: index.get(),
        hop_limit: 64,
        traffic_class: 0,
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: 1,
    }
}

impl Raw {
    pub(crate) fn open(device: &str) -> Raw {
        let context = crate::seam::open(device);
        // SAFETY: the context is open.
        let pd = NonNull::new(unsafe { ibv_alloc_pd(context.raw()) }).expect("a PD");
        Raw { pd, context }
    }

    /// Makes an address handle from this row to that GID.
    pub(crate) fn ah(&self, index: GidIndex, to: Gid) -> Result<Ah<'_>, Errno> {
        let mut attr = address(index, to);
        // SAFETY: the PD is live; the attributes are read during the call.
        let ah = unsafe { ibv_create_ah(self.pd.as_ptr(), &mut attr) };
        NonNull::new(ah).map(|ah| Ah { ah, _raw: self }).ok_or_else(Errno::last)
    }

    /// The address back to where a datagram came from, as C finds it, and the row it is sent from.
    fn reply_address(&self, grh: &[u8; 40]) -> Option<AhAttr> {
        const WITH_GRH: u32 = 1;
        let mut grh = *grh;
        // SAFETY: zero is a value of both; the context is open; what is passed is read, and the attributes
        // written, during the call.
        unsafe {
            let mut wc: ibv_wc = std::mem::zeroed();
            wc.wc_flags = WITH_GRH;
            let mut attr: AhAttr = std::mem::zeroed();
            let done = ibv_init_ah_from_wc(self.context.raw(), 1, &mut wc, &mut grh, &mut attr);
            (done == 0).then_some(attr)
        }
    }

    /// The row and the destination that C finds for the answer to a datagram.
    pub(crate) fn reply_row(&self, grh: &[u8; 40]) -> Option<(u8, Gid)> {
        let attr = self.reply_address(grh)?;
        Some((attr.sgid_index, Gid::from_bytes(attr.dgid.raw)))
    }

    /// Makes an address handle for the answer to a datagram, as C does.
    pub(crate) fn reply(&self, grh: &[u8; 40]) -> Option<Ah<'_>> {
        let mut attr = self.reply_address(grh)?;
        // SAFETY: as in `ah`.
        let ah = unsafe { ibv_create_ah(self.pd.as_ptr(), &mut attr) };
        NonNull::new(ah).map(|ah| Ah { ah, _raw: self })
    }

    /// Makes an RC queue pair and brings it to RTR, from this row to that GID.
    pub(crate) fn qp_in_rtr(&self, index: GidIndex, to: Gid) -> Result<Qp<'_>, Errno> {
        const INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5; // state, access, P_Key index, port
        const RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
        // SAFETY: the context is open and the PD live; zero is a value of both structs, which are
        // read during the calls; the CQ outlives the queue pair.
        unsafe {
            let cq = ibv_create_cq(self.context.raw(), 4, null_mut(), null_mut(), 0);
            let cq = NonNull::new(cq).ok_or_else(Errno::last)?;
            let mut init: QpInitAttr = std::mem::zeroed();
            (init.send_cq, init.recv_cq) = (cq.as_ptr(), cq.as_ptr());
            init.cap = [1, 1, 1, 1, 0];
            init.qp_type = 2; // RC
            let qp = ibv_create_qp(self.pd.as_ptr(), &mut init);
            let qp = Qp { qp: NonNull::new(qp).ok_or_else(Errno::last)?, cq, _raw: self };
            let mut attr: QpAttr = std::mem::zeroed();
            attr.qp_state = 1; // INIT
            attr.port_num = 1;
            assert_eq!(ibv_modify_qp(qp.qp.as_ptr(), &mut attr, INIT), 0, "to INIT");
            attr.qp_state = 2; // RTR
            attr.path_mtu = 3; // 1024
            attr.dest_qp_num = 17;
            attr.max_dest_rd_atomic = 1;
            attr.min_rnr_timer = 12;
            attr.ah_attr = address(index, to);
            match ibv_modify_qp(qp.qp.as_ptr(), &mut attr, RTR) {
                0 => Ok(qp),
                errno => Err(Errno::from_raw(errno)),
            }
        }
    }
}

/// The declarations above against the headers'.
#[cfg(feature = "rdma-sys")]
#[test]
fn structs_are_laid_out_as_the_headers_say() {
    assert_eq!(size_of::<AhAttr>(), size_of::<rdma_sys::ibv_ah_attr>());
    assert_eq!(size_of::<QpInitAttr>(), size_of::<rdma_sys::ibv_qp_init_attr>());
    assert_eq!(size_of::<QpAttr>(), size_of::<rdma_sys::ibv_qp_attr>());
    use std::mem::offset_of;
    assert_eq!(offset_of!(AhAttr, port_num), offset_of!(rdma_sys::ibv_ah_attr, port_num));
    assert_eq!(offset_of!(QpAttr, ah_attr), offset_of!(rdma_sys::ibv_qp_attr, ah_attr));
    assert_eq!(offset_of!(QpAttr, rate_limit), offset_of!(rdma_sys::ibv_qp_attr, rate_limit));
}
