//! What a work request does, and how it ended.

use std::fmt;

use super::codes::c_enum;

c_enum! {
    /// How a work request ended (`enum ibv_wc_status`).
    WcStatus(u32) {
        /// It was carried out.
        SUCCESS = 0, "success";
        /// A received message was longer than the buffers posted for it, or a sent one too long.
        LOC_LEN_ERR = 1, "local length error";
        /// The queue pair could not carry it out: it is not what its state or the device allows.
        LOC_QP_OP_ERR = 2, "local QP operation error";
        /// Of the reliable datagram service, which no device has.
        LOC_EEC_OP_ERR = 3, "local EE context operation error";
        /// The memory is not in the region of the key, or the region does not allow it.
        LOC_PROT_ERR = 4, "local protection error";
        /// The queue pair was in the error state already: it was not carried out, or not to the end.
        WR_FLUSH_ERR = 5, "work request flushed";
        /// A memory window could not be bound.
        MW_BIND_ERR = 6, "memory window bind error";
        /// The peer answered with something else than what it had to.
        BAD_RESP_ERR = 7, "bad response";
        /// A protection error on local memory while a message with immediate data was taken in.
        LOC_ACCESS_ERR = 8, "local access error";
        /// The peer found the message invalid: longer than its buffers, or an operation that it does
        /// not allow.
        REM_INV_REQ_ERR = 9, "remote invalid request";
        /// The peer's memory may not be used in this way: another key, beyond the region, or a right
        /// that it does not have.
        REM_ACCESS_ERR = 10, "remote access error";
        /// The peer could not carry it out.
        REM_OP_ERR = 11, "remote operation error";
        /// The peer did not answer: it is not there, or not connected to this queue pair, or packets
        /// from this GID do not reach it, or its answers not us.
        RETRY_EXC_ERR = 12, "transport retry counter exceeded: no answer";
        /// The peer had no receive posted, for as long as was to be tried.
        RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retry counter exceeded: no receive posted";
        /// Of the reliable datagram service, which no device has.
        LOC_RDD_VIOL_ERR = 14, "local RDD violation";
        /// Of the reliable datagram service, which no device has.
        REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
        /// The peer gave it up.
        REM_ABORT_ERR = 16, "remote aborted";
        /// Of the reliable datagram service, which no device has.
        INV_EECN_ERR = 17, "invalid EE context number";
        /// Of the reliable datagram service, which no device has.
        INV_EEC_STATE_ERR = 18, "invalid EE context state";
        /// The device failed.
        FATAL_ERR = 19, "fatal error";
        /// The peer's response came too late.
        RESP_TIMEOUT_ERR = 20, "response timeout";
        /// Something else.
        GENERAL_ERR = 21, "general error";
        /// Tag matching failed.
        TM_ERR = 22, "tag matching error";
        /// A rendezvous of tag matching was not finished.
        TM_RNDV_INCOMPLETE = 23, "tag matching rendezvous incomplete";
    }
}

c_enum! {
    /// What a completion is of (`enum ibv_wc_opcode`). On a failure too: from what was posted, since the
    /// device does not say then.
    WcOpcode(u32) {
        /// A send, with or without immediate data or a key to invalidate.
        SEND = 0, "send";
        /// An RDMA write, with or without immediate data.
        RDMA_WRITE = 1, "RDMA write";
        /// An RDMA read.
        RDMA_READ = 2, "RDMA read";
        /// A compare-and-swap.
        COMP_SWAP = 3, "compare and swap";
        /// A fetch-and-add.
        FETCH_ADD = 4, "fetch and add";
        /// A bind of a memory window.
        BIND_MW = 5, "bind memory window";
        /// A key invalidated on this side.
        LOCAL_INV = 6, "local invalidate";
        /// A receive.
        RECV = 128, "receive";
        /// A receive that an RDMA write with immediate data took: the data went to the memory that the
        /// peer named.
        RECV_RDMA_WITH_IMM = 129, "receive of RDMA write with immediate";
    }
}

impl WcOpcode {
    /// Whether it is of a receive queue.
    pub const fn is_receive(self) -> bool {
        self.0 & 128 != 0
    }
}

c_enum! {
    /// The state of a queue pair (`enum ibv_qp_state`).
    QpState(u32) {
        /// Just made.
        RESET = 0, "RESET";
        /// Receives can be posted.
        INIT = 1, "INIT";
        /// Ready to receive.
        RTR = 2, "RTR";
        /// Ready to send.
        RTS = 3, "RTS";
        /// Draining its send queue.
        SQD = 4, "SQD";
        /// Its send queue has failed; of unreliable transports.
        SQE = 5, "SQE";
        /// Failed: what is posted is flushed.
        ERR = 6, "ERR";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_tomorrow_is_a_number() {
        assert_eq!(WcStatus::from_raw(77).to_string(), "unknown (77)");
        assert!(WcStatus::RETRY_EXC_ERR.to_string().ends_with("no answer"));
        assert!(WcOpcode::from_raw(133).is_receive());
        assert!(!WcOpcode::from_raw(9).is_receive());
    }
}
