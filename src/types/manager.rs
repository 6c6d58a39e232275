//! What the connection manager tells.

use std::fmt;

use super::codes::c_enum;

c_enum! {
    /// What the connection manager tells (`enum rdma_cm_event_type`). A number of a newer library is
    /// carried.
    CmEventType(u32) {
        /// The address is resolved: the id is bound to a device.
        ADDR_RESOLVED = 0, "ADDR_RESOLVED";
        /// The address could not be resolved.
        ADDR_ERROR = 1, "ADDR_ERROR";
        /// The route is resolved.
        ROUTE_RESOLVED = 2, "ROUTE_RESOLVED";
        /// The route could not be resolved.
        ROUTE_ERROR = 3, "ROUTE_ERROR";
        /// A peer wants to connect to a listener.
        CONNECT_REQUEST = 4, "CONNECT_REQUEST";
        /// The peer has accepted.
        CONNECT_RESPONSE = 5, "CONNECT_RESPONSE";
        /// The connection could not be made.
        CONNECT_ERROR = 6, "CONNECT_ERROR";
        /// The peer does not answer.
        UNREACHABLE = 7, "UNREACHABLE";
        /// The peer, or its connection manager, refused.
        REJECTED = 8, "REJECTED";
        /// The connection is made.
        ESTABLISHED = 9, "ESTABLISHED";
        /// The connection has ended.
        DISCONNECTED = 10, "DISCONNECTED";
        /// The device that the id is bound to is to be removed.
        DEVICE_REMOVAL = 11, "DEVICE_REMOVAL";
        /// A multicast group was joined.
        MULTICAST_JOIN = 12, "MULTICAST_JOIN";
        /// A multicast group could not be joined, or has failed.
        MULTICAST_ERROR = 13, "MULTICAST_ERROR";
        /// The hardware address of the interface that the id is bound to has changed.
        ADDR_CHANGE = 14, "ADDR_CHANGE";
        /// The queue pair of a connection that ended may be used anew.
        TIMEWAIT_EXIT = 15, "TIMEWAIT_EXIT";
    }
}

c_enum! {
    /// Why a request for a connection was refused (the reject reasons of the InfiniBand connection
    /// manager).
    RejectReason(i32) {
        /// It has no queue pair for it.
        NO_QP = 1, "NO_QP";
        /// It has no end-to-end context for it.
        NO_EEC = 2, "NO_EEC";
        /// It has no resources for it.
        NO_RESOURCES = 3, "NO_RESOURCES";
        /// It gave up waiting for an answer to its own.
        TIMEOUT = 4, "TIMEOUT";
        /// It does not know such a request.
        UNSUPPORTED = 5, "UNSUPPORTED";
        /// The connection's number is not known.
        INVALID_COMM_ID = 6, "INVALID_COMM_ID";
        /// The connection's number is another connection's.
        INVALID_COMM_INSTANCE = 7, "INVALID_COMM_INSTANCE";
        /// Nobody listens on that port.
        INVALID_SERVICE_ID = 8, "INVALID_SERVICE_ID";
        /// It does not do this transport.
        INVALID_TRANSPORT_TYPE = 9, "INVALID_TRANSPORT_TYPE";
        /// It believes that the queue pair is connected already.
        STALE_CONN = 10, "STALE_CONN";
        /// There is no such reliable datagram context.
        RDC_NOT_EXIST = 11, "RDC_NOT_EXIST";
        /// The path's GID is not accepted.
        INVALID_GID = 12, "INVALID_GID";
        /// The path's LID is not accepted.
        INVALID_LID = 13, "INVALID_LID";
        /// The path's service level is not accepted.
        INVALID_SL = 14, "INVALID_SL";
        /// The path's traffic class is not accepted.
        INVALID_TRAFFIC_CLASS = 15, "INVALID_TRAFFIC_CLASS";
        /// The path's hop limit is not accepted.
        INVALID_HOP_LIMIT = 16, "INVALID_HOP_LIMIT";
        /// The path's packet rate is not accepted.
        INVALID_PACKET_RATE = 17, "INVALID_PACKET_RATE";
        /// The alternate path's GID is not accepted.
        INVALID_ALT_GID = 18, "INVALID_ALT_GID";
        /// The alternate path's LID is not accepted.
        INVALID_ALT_LID = 19, "INVALID_ALT_LID";
        /// The alternate path's service level is not accepted.
        INVALID_ALT_SL = 20, "INVALID_ALT_SL";
        /// The alternate path's traffic class is not accepted.
        INVALID_ALT_TRAFFIC_CLASS = 21, "INVALID_ALT_TRAFFIC_CLASS";
        /// The alternate path's hop limit is not accepted.
        INVALID_ALT_HOP_LIMIT = 22, "INVALID_ALT_HOP_LIMIT";
        /// The alternate path's packet rate is not accepted.
        INVALID_ALT_PACKET_RATE = 23, "INVALID_ALT_PACKET_RATE";
        /// Another port's connection manager is responsible.
        PORT_CM_REDIRECT = 24, "PORT_CM_REDIRECT";
        /// Another port is responsible.
        PORT_REDIRECT = 25, "PORT_REDIRECT";
        /// The path's MTU is not accepted.
        INVALID_MTU = 26, "INVALID_MTU";
        /// It cannot answer so many reads at a time.
        INSUFFICIENT_RESP_RESOURCES = 27, "INSUFFICIENT_RESP_RESOURCES";
        /// The program at the other end refused, or went away without accepting.
        CONSUMER_DEFINED = 28, "CONSUMER_DEFINED";
        /// The count of retries is not accepted.
        INVALID_RNR_RETRY = 29, "INVALID_RNR_RETRY";
        /// The connection's number is in use.
        DUPLICATE_LOCAL_COMM_ID = 30, "DUPLICATE_LOCAL_COMM_ID";
        /// It does not know this version of the protocol.
        INVALID_CLASS_VERSION = 31, "INVALID_CLASS_VERSION";
        /// The path's flow label is not accepted.
        INVALID_FLOW_LABEL = 32, "INVALID_FLOW_LABEL";
        /// The alternate path's flow label is not accepted.
        INVALID_ALT_FLOW_LABEL = 33, "INVALID_ALT_FLOW_LABEL";
        /// It does not do the vendor's option that was asked for.
        VENDOR_OPTION_NOT_SUPPORTED = 35, "VENDOR_OPTION_NOT_SUPPORTED";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_are_carried() {
        assert_eq!(CmEventType::from_raw(99).to_string(), "unknown (99)");
        assert_eq!(RejectReason::from_raw(28), RejectReason::CONSUMER_DEFINED);
        assert_eq!(RejectReason::from_raw(-7).raw(), -7);
    }
}
