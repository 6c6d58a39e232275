//! Structs of the extended calls: queues whose provider brings operations of each one's own.

use std::ffi::{c_int, c_uint, c_void};

use super::{Opaque, ibv_qp_cap, ibv_sge, ibv_srq};
use super::{ibv_ah, ibv_comp_channel, ibv_cq, ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_qp};

#[repr(C)]
pub(crate) struct ibv_cq_init_attr_ex {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut ibv_pd,
}

#[repr(C)]
pub(crate) struct ibv_poll_cq_attr {
    pub(crate) comp_mask: u32,
}

/// A function that tells something of the present completion.
pub(crate) type Read<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

/// A completion queue that is polled entry by entry. Only what was asked for when it was made has a function.
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    /// The fields that `ibv_cq` begins with.
    pub(crate) cq: ibv_cq,
    pub(crate) _mutex: libc::pthread_mutex_t,
    pub(crate) _cond: libc::pthread_cond_t,
    pub(crate) _comp_events_completed: u32,
    pub(crate) _async_events_completed: u32,
    pub(crate) comp_mask: u32,
    /// Of the present completion, as is `wr_id`.
    pub(crate) status: c_uint,
    pub(crate) wr_id: u64,
    pub(crate) start_poll:
        Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub(crate) read_opcode: Read<c_uint>,
    pub(crate) read_vendor_err: Read<u32>,
    pub(crate) read_byte_len: Read<u32>,
    /// Immediate data in network order, or the key that was invalidated.
    pub(crate) read_imm_data: Read<u32>,
    pub(crate) read_qp_num: Read<u32>,
    pub(crate) read_src_qp: Read<u32>,
    pub(crate) read_wc_flags: Read<c_uint>,
    pub(crate) read_slid: Read<u32>,
    pub(crate) read_sl: Read<u8>,
    pub(crate) read_dlid_path_bits: Read<u8>,
    pub(crate) read_completion_ts: Read<u64>,
    pub(crate) _read_cvlan_to_wallclock: [Opaque; 4],
}

#[repr(C)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    /// `struct ibv_rx_hash_conf`: a byte, another, a pointer, a mask.
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// A piece of inline data.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

/// An operation of a queue pair that is posted on call by call, with these arguments.
macro_rules! op {
    ($($arg:ty),*) => { Option<unsafe extern "C" fn(*mut ibv_qp_ex $(, $arg)*)> };
}

/// A queue pair that is posted on call by call. Only what was asked for when it was made has a function.
#[repr(C)]
pub(crate) struct ibv_qp_ex {
    /// The fields that `ibv_qp` begins with.
    pub(crate) qp: ibv_qp,
    pub(crate) _mutex: libc::pthread_mutex_t,
    pub(crate) _cond: libc::pthread_cond_t,
    pub(crate) _events_completed: u32,
    pub(crate) comp_mask: u64,
    /// Of the work request that is begun next, as is `wr_flags`.
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    /// Key, address, what is compared, what is put there.
    pub(crate) wr_atomic_cmp_swp: op!(u32, u64, u64, u64),
    /// Key, address, what is added.
    pub(crate) wr_atomic_fetch_add: op!(u32, u64, u64),
    pub(crate) wr_bind_mw: op!(*mut ibv_mw, u32, *const ibv_mw_bind_info),
    pub(crate) wr_local_inv: op!(u32),
    pub(crate) wr_rdma_read: op!(u32, u64),
    pub(crate) wr_rdma_write: op!(u32, u64),
    /// Immediate data in network order, here and in `wr_send_imm`.
    pub(crate) wr_rdma_write_imm: op!(u32, u64, u32),
    pub(crate) wr_send: op!(),
    pub(crate) wr_send_imm: op!(u32),
    pub(crate) wr_send_inv: op!(u32),
    pub(crate) _wr_send_tso: Opaque,
    /// Address handle, queue pair, Q_Key.
    pub(crate) wr_set_ud_addr: op!(*mut ibv_ah, u32, u32),
    pub(crate) _wr_set_xrc_srqn: Opaque,
    pub(crate) wr_set_inline_data: op!(*mut c_void, usize),
    pub(crate) wr_set_inline_data_list: op!(usize, *const ibv_data_buf),
    /// Key, address, length.
    pub(crate) wr_set_sge: op!(u32, u64, u32),
    pub(crate) wr_set_sge_list: op!(usize, *const ibv_sge),
    pub(crate) wr_start: op!(),
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub(crate) wr_abort: op!(),
}

#[repr(C)]
pub(crate) struct ibv_values_ex {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}

/// What stands before these differs by machine; where it is wrong, nothing else would tell.
#[cfg(target_arch = "x86_64")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(ibv_cq_ex, start_poll) == 144 && offset_of!(ibv_qp_ex, comp_mask) == 160);
};
