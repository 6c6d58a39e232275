//! The numbers of `verbs.h` in use here.

use std::ffi::c_uint;

/// `enum ibv_qp_state`.
pub(crate) mod state {
    use super::c_uint;
    pub(crate) const RESET: c_uint = 0;
    pub(crate) const INIT: c_uint = 1;
    pub(crate) const RTR: c_uint = 2;
    pub(crate) const RTS: c_uint = 3;
    pub(crate) const SQD: c_uint = 4;
    pub(crate) const SQE: c_uint = 5;
    pub(crate) const ERR: c_uint = 6;
}

/// `enum ibv_qp_type`.
pub(crate) mod transport {
    use super::c_uint;
    pub(crate) const RC: c_uint = 2;
    pub(crate) const UC: c_uint = 3;
    pub(crate) const UD: c_uint = 4;
}

/// `enum ibv_wr_opcode`.
pub(crate) mod wr {
    use super::c_uint;
    pub(crate) const RDMA_WRITE: c_uint = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: c_uint = 1;
    pub(crate) const SEND: c_uint = 2;
    pub(crate) const SEND_WITH_IMM: c_uint = 3;
    pub(crate) const RDMA_READ: c_uint = 4;
    pub(crate) const CMP_AND_SWP: c_uint = 5;
    pub(crate) const FETCH_AND_ADD: c_uint = 6;
    pub(crate) const LOCAL_INV: c_uint = 7;
    pub(crate) const BIND_MW: c_uint = 8;
    pub(crate) const SEND_WITH_INV: c_uint = 9;
}

/// `enum ibv_wc_opcode`.
pub(crate) mod wc {
    use super::c_uint;
    pub(crate) const SEND: c_uint = 0;
    pub(crate) const RDMA_WRITE: c_uint = 1;
    pub(crate) const RDMA_READ: c_uint = 2;
    pub(crate) const COMP_SWAP: c_uint = 3;
    pub(crate) const FETCH_ADD: c_uint = 4;
    pub(crate) const BIND_MW: c_uint = 5;
    pub(crate) const LOCAL_INV: c_uint = 6;
    pub(crate) const RECV: c_uint = 128;
    pub(crate) const RECV_RDMA_WITH_IMM: c_uint = 129;
    /// `enum ibv_wc_flags`.
    pub(crate) const GRH: c_uint = 1 << 0;
    pub(crate) const WITH_IMM: c_uint = 1 << 1;
    pub(crate) const WITH_INV: c_uint = 1 << 3;
}

/// `enum ibv_create_cq_wc_flags`.
pub(crate) mod tells {
    pub(crate) const BYTE_LEN: u64 = 1 << 0;
    pub(crate) const IMM: u64 = 1 << 1;
    pub(crate) const QP_NUM: u64 = 1 << 2;
    pub(crate) const SRC_QP: u64 = 1 << 3;
    pub(crate) const SLID: u64 = 1 << 4;
    pub(crate) const SL: u64 = 1 << 5;
    pub(crate) const DLID_PATH_BITS: u64 = 1 << 6;
    pub(crate) const COMPLETION_TIMESTAMP: u64 = 1 << 7;
    /// `IBV_WC_STANDARD_FLAGS`.
    pub(crate) const STANDARD: u64 = COMPLETION_TIMESTAMP - 1;
    /// What is known here.
    pub(crate) const ALL: u64 = STANDARD | COMPLETION_TIMESTAMP;
}

/// `enum ibv_wc_status`.
pub(crate) mod status {
    use super::c_uint;
    pub(crate) const SUCCESS: c_uint = 0;
    pub(crate) const LOC_LEN_ERR: c_uint = 1;
    pub(crate) const LOC_QP_OP_ERR: c_uint = 2;
    pub(crate) const LOC_PROT_ERR: c_uint = 4;
    pub(crate) const WR_FLUSH_ERR: c_uint = 5;
    pub(crate) const MW_BIND_ERR: c_uint = 6;
    pub(crate) const REM_INV_REQ_ERR: c_uint = 9;
    pub(crate) const REM_ACCESS_ERR: c_uint = 10;
    pub(crate) const REM_OP_ERR: c_uint = 11;
    pub(crate) const RETRY_EXC_ERR: c_uint = 12;
    pub(crate) const RNR_RETRY_EXC_ERR: c_uint = 13;
}

/// `enum ibv_send_flags`.
pub(crate) mod flag {
    use super::c_uint;
    pub(crate) const SIGNALED: c_uint = 1 << 1;
    pub(crate) const SOLICITED: c_uint = 1 << 2;
    pub(crate) const INLINE: c_uint = 1 << 3;
}

/// `enum ibv_access_flags`.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    pub(crate) const MW_BIND: u32 = 1 << 4;
    /// Zero-based, on demand and huge pages: said to be known, and ignored.
    pub(crate) const OTHERS: u32 = 0xe0;
    /// `IBV_ACCESS_OPTIONAL_RANGE`.
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}

/// `enum ibv_mw_type`.
pub(crate) mod window {
    use super::c_uint;
    pub(crate) const TYPE_1: c_uint = 1;
    pub(crate) const TYPE_2: c_uint = 2;
}

/// `enum ibv_event_type`.
pub(crate) mod event {
    use std::ffi::c_int;
    pub(crate) const CQ_ERR: c_int = 0;
    pub(crate) const QP_REQ_ERR: c_int = 2;
    pub(crate) const QP_ACCESS_ERR: c_int = 3;
    pub(crate) const SRQ_LIMIT_REACHED: c_int = 15;
    pub(crate) const QP_LAST_WQE_REACHED: c_int = 16;
    pub(crate) const GID_CHANGE: c_int = 18;
}

/// What the devices allow.
pub(crate) mod limit {
    // One less than a power of two, so that no more is granted.
    pub(crate) const QP_WR: u32 = 16_383;
    pub(crate) const SGE: u32 = 32;
    pub(crate) const INLINE: u32 = 512;
    pub(crate) const CQE: u32 = 65_535;
    pub(crate) const READS: u8 = 128;
    pub(crate) const MESSAGE: u64 = 1 << 31;
    pub(crate) const VECTORS: i32 = 4;
    pub(crate) const GIDS: usize = 16;
}
