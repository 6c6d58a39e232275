//! The owner of an `rdma_event_channel`, and what its events tell.
//!
//! # Events and destruction
//!
//! The library finds an event's id by a pointer that the kernel keeps for it, and destroying an id waits
//! until every event of it that was taken was acknowledged, so that the pointer is good until then. Here an
//! event is copied, and shown while it is not acknowledged yet, so that whoever looks its id up by its
//! address finds that id, and no other that has its address later; then it is acknowledged, in the same
//! call. So destroying waits for that copy at most.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi::{rdma_cm_event, rdma_conn_param, rdma_event_channel, rdma_ud_param};
use super::cm_calls::Calls;
pub(crate) use super::cm_calls::LIBRARY;
use super::cm_id::{CmId, read_bound};
pub(crate) use super::cm_id::{IdOption, PortSpace};
use super::conv;
use crate::error::Errno;
use crate::types::{Gid, Guid};

/// `enum rdma_cm_event_type`, as far as the seam itself must know it.
pub(crate) mod kind {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const CONNECT_ERROR: u32 = 6;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
    pub(crate) const MULTICAST_JOIN: u32 = 12;
}

/// Why there is no channel: no usable librdmacm, and why; or what the call answered.
pub(crate) enum NoChannel {
    Library(&'static str),
    Failed(Errno),
}

/// An event channel; destroyed when dropped, after its ids, which hold it.
pub(crate) struct CmChannel {
    pub(super) channel: NonNull<rdma_event_channel>,
    pub(super) calls: &'static Calls,
}

// SAFETY: librdmacm may be called from any thread, and destroying does not depend on the thread.
unsafe impl Send for CmChannel {}
// SAFETY: as above; the methods that take `&self` only make such calls.
unsafe impl Sync for CmChannel {}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: made by us, destroyed once, here; the ids of it hold it, and every event was
        // acknowledged in the call that took it.
        unsafe { (self.calls.rdma_destroy_event_channel)(self.channel.as_ptr()) }
    }
}

/// What an event told, copied out of it.
pub(crate) struct CmEvent {
    /// What its id is known by ([`CmId::key`]); of a request for a connection, the listener's.
    pub(crate) key: usize,
    /// `enum rdma_cm_event_type`, as a number.
    pub(crate) kind: u32,
    pub(crate) status: i32,
    /// Of what kinds it is there.
    pub(crate) connection: Option<Offer>,
    /// The group that was joined.
    pub(crate) group: Option<Group>,
    /// The id of a request for a connection.
    pub(crate) child: Option<CmId>,
    /// What the id is bound to, of the kinds after which that is known.
    pub(crate) bound: Option<Bound>,
}

/// What the peer said of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// As it was received: padded to the length that the message has room for.
    pub(crate) private_data: Box<[u8]>,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: bool,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) qp_num: u32,
}

/// A multicast group, as it was joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) gid: Gid,
    pub(crate) lid: u16,
    /// The row of the port's GID table to send from.
    pub(crate) row: u8,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) qkey: u32,
}

/// What an id is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// None of an address that is every device's.
    pub(crate) device: Option<BoundTo>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}

/// The device and port that an id is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundTo {
    pub(crate) name: String,
    pub(crate) guid: Guid,
    /// The kernel's number of the device, where kernel and library tell it.
    pub(crate) index: Option<u32>,
    pub(crate) port: u8,
    /// The GID it is bound to; zero when it is not told.
    pub(crate) gid: Gid,
}

impl CmChannel {
    /// `rdma_create_event_channel`, with a descriptor that does not block.
    pub(crate) fn create() -> Result<CmChannel, NoChannel> {
        let calls = Calls::get().map_err(NoChannel::Library)?;
        conv::preset_errno();
        // SAFETY: takes nothing.
        let channel = conv::pointer(unsafe { (calls.rdma_create_event_channel)() });
        let channel = channel.map_err(NoChannel::Failed)?;
        let channel = CmChannel { channel, calls };
        super::set_nonblocking(channel.fd().as_raw_fd()).map_err(NoChannel::Failed)?;
        Ok(channel)
    }

    /// Readable when there are events. Only to wait on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, is open while `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Takes one event, if there is one (`rdma_get_cm_event`), shows it, and acknowledges it
    /// (`rdma_ack_cm_event`): the address that it names its id by is that id's until `show` returns. False
    /// when there is none.
    pub(crate) fn next_event(
        self: &Arc<Self>,
        show: &mut dyn FnMut(CmEvent),
    ) -> Result<bool, Errno> {
        /// Acknowledges even if `show` panics: an event that is not would make its id's destruction wait
        /// for ever.
        struct Taken<'a>(NonNull<rdma_cm_event>, &'a Calls);
        impl Drop for Taken<'_> {
            fn drop(&mut self) {
                // SAFETY: given by rdma_get_cm_event, and acknowledged once.
                unsafe { (self.1.rdma_ack_cm_event)(self.0.as_ptr()) };
            }
        }
        let mut event = null_mut();
        conv::preset_errno();
        // SAFETY: the channel lives; the pointer is written during the call only. No id of the channel
        // that has an event taken is destroyed before that is acknowledged.
        let returned = unsafe { (self.calls.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) };
        match conv::zero_or_minus_one(returned) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        let Some(event) = NonNull::new(event) else { return Ok(false) };
        let taken = Taken(event, self.calls);
        // SAFETY: the event is good until it is acknowledged.
        let told = unsafe { self.copy(event) };
        show(told);
        drop(taken);
        Ok(true)
    }

    /// What an event tells.
    ///
    /// # Safety
    ///
    /// The event was taken from this channel and not acknowledged.
    unsafe fn copy(self: &Arc<Self>, event: NonNull<rdma_cm_event>) -> CmEvent {
        // SAFETY: by this function's own contract; nobody else has the event.
        let event = unsafe { event.as_ref() };
        let mut told = CmEvent {
            key: event.id.addr(),
            kind: event.event,
            status: event.status,
            connection: None,
            group: None,
            child: None,
            bound: None,
        };
        match event.event {
            kind::CONNECT_REQUEST => {
                told.key = event.listen_id.addr();
                // SAFETY: the library made this id for the request, and it is ours to destroy.
                let child = NonNull::new(event.id).map(|id| unsafe { CmId::own(id, self) });
                // SAFETY: nobody else has the id yet.
                told.bound = child.as_ref().map(|child| unsafe { child.bound() });
                told.child = child;
                // SAFETY: as above.
                told.connection = Some(unsafe { offer(&event.param.conn) });
            }
            kind::ADDR_RESOLVED => {
                // SAFETY: the id lives until the event is acknowledged. The fields read were written by
                // the call that took the event, on this thread; the call that asked for it has only its
                // peer's address left to write, which is not read.
                told.bound = NonNull::new(event.id).map(|id| unsafe { read_bound(id, false) });
            }
            kind::MULTICAST_JOIN => {
                // SAFETY: events of this kind have it.
                told.group = Some(group(unsafe { &event.param.ud }));
            }
            kind::CONNECT_RESPONSE
            | kind::CONNECT_ERROR
            | kind::UNREACHABLE
            | kind::REJECTED
            | kind::ESTABLISHED
            | kind::DISCONNECTED => {
                // SAFETY: events of these kinds have it.
                told.connection = Some(unsafe { offer(&event.param.conn) });
            }
            _ => {}
        }
        told
    }
}

/// The group that was joined.
fn group(param: &rdma_ud_param) -> Group {
    let ah = &param.ah_attr;
    Group {
        gid: Gid::from_bytes(ah.grh.dgid.raw),
        lid: ah.dlid,
        row: ah.grh.sgid_index,
        service_level: ah.sl,
        traffic_class: ah.grh.traffic_class,
        flow_label: ah.grh.flow_label,
        hop_limit: ah.grh.hop_limit,
        qkey: param.qkey,
    }
}

/// What the peer said, copied.
///
/// # Safety
///
/// `param` is that of an event that has it and is not acknowledged.
unsafe fn offer(param: &rdma_conn_param) -> Offer {
    let len = usize::from(param.private_data_len);
    let data = param.private_data.cast::<u8>();
    let private_data = if data.is_null() || len == 0 {
        Box::default()
    } else {
        // SAFETY: the event has so many bytes there.
        unsafe { std::slice::from_raw_parts(data, len) }.into()
    };
    Offer {
        private_data,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        qp_num: param.qp_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_of_an_event_is_copied() {
        let bytes = [7_u8; 56];
        let mut param = rdma_conn_param {
            private_data: bytes.as_ptr().cast(),
            private_data_len: 56,
            responder_resources: 1,
            initiator_depth: 2,
            flow_control: 1,
            retry_count: 3,
            rnr_retry_count: 4,
            srq: 0,
            qp_num: 5,
        };
        // SAFETY: the pointer and the length are those of the array.
        let told = unsafe { offer(&param) };
        assert_eq!((&*told.private_data, told.qp_num), (&bytes[..], 5));
        (param.private_data, param.private_data_len) = (std::ptr::null(), 8);
        // SAFETY: NULL is not read.
        assert!(unsafe { offer(&param) }.private_data.is_empty());
    }
}
