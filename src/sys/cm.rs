//! The owners of an `rdma_event_channel` and of an `rdma_cm_id`.
//!
//! # Events and destruction
//!
//! The library finds an event's id by a pointer that the kernel keeps for it, and destroying an id waits
//! until every event of it that was taken was acknowledged, so that the pointer is good until then. Here an
//! event is copied, and shown while it is not acknowledged yet, so that whoever looks its id up by its
//! address finds that id, and no other that has its address later; then it is acknowledged, in the same
//! call. So destroying waits for that copy at most.

use std::ffi::{CStr, c_int, c_uint};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use super::abi::{ibv_qp_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use super::cm_calls::Calls;
pub(crate) use super::cm_calls::LIBRARY;
use super::ops::Newer;
use super::{calls, conv, socket};
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
}

/// `RDMA_PS_TCP`.
const TCP: c_uint = 0x0106;

/// Options of an id (`RDMA_OPTION_ID_*`, of the level `RDMA_OPTION_ID`).
#[derive(Clone, Copy)]
pub(crate) enum IdOption {
    TypeOfService(u8),
    ReuseAddr(bool),
    AfOnly(bool),
}

/// Why there is no channel: no usable librdmacm, and why; or what the call answered.
pub(crate) enum NoChannel {
    Library(&'static str),
    Failed(Errno),
}

/// An event channel; destroyed when dropped, after its ids, which hold it.
pub(crate) struct CmChannel {
    channel: NonNull<rdma_event_channel>,
    calls: &'static Calls,
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
                told.connection = Some(unsafe { offer(&event.param) });
            }
            kind::ADDR_RESOLVED => {
                // SAFETY: the id lives until the event is acknowledged. The fields read were written by
                // the call that took the event, on this thread; the call that asked for it has only its
                // peer's address left to write, which is not read.
                told.bound = NonNull::new(event.id).map(|id| unsafe { read_bound(id, false) });
            }
            kind::CONNECT_RESPONSE
            | kind::CONNECT_ERROR
            | kind::UNREACHABLE
            | kind::REJECTED
            | kind::ESTABLISHED
            | kind::DISCONNECTED => {
                // SAFETY: events of these kinds have it.
                told.connection = Some(unsafe { offer(&event.param) });
            }
            _ => {}
        }
        told
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

/// An id; destroyed when dropped. Nothing of ours hangs on it but its channel: queue pairs are made on
/// contexts of our own.
pub(crate) struct CmId {
    id: NonNull<rdma_cm_id>,
    channel: Arc<CmChannel>,
}

// SAFETY: librdmacm may be called from any thread, and destroying does not depend on the thread.
unsafe impl Send for CmId {}
// SAFETY: as above; the methods that take `&self` only make such calls, which the kernel puts in order.
unsafe impl Sync for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: made by us, destroyed once, here. Waits at most while another thread copies an event of
        // it. If it fails it stays; there is nobody to tell.
        unsafe { (self.channel.calls.rdma_destroy_id)(self.id.as_ptr()) };
    }
}

impl CmId {
    /// `rdma_create_id`, of the port space that connects reliably.
    pub(crate) fn create(channel: &Arc<CmChannel>) -> Result<CmId, Errno> {
        let mut id = null_mut();
        conv::preset_errno();
        // SAFETY: the channel lives; the pointer is written during the call only.
        let returned = unsafe {
            (channel.calls.rdma_create_id)(channel.channel.as_ptr(), &mut id, null_mut(), TCP)
        };
        conv::zero_or_minus_one(returned)?;
        let id = conv::pointer(id)?;
        // SAFETY: just made on this channel, and nobody else destroys it.
        Ok(unsafe { CmId::own(id, channel) })
    }

    /// Takes an id over.
    ///
    /// # Safety
    ///
    /// It is of that channel, and nobody else destroys it.
    unsafe fn own(id: NonNull<rdma_cm_id>, channel: &Arc<CmChannel>) -> CmId {
        CmId { id, channel: Arc::clone(channel) }
    }

    /// What events name it by; unique while it lives.
    pub(crate) fn key(&self) -> usize {
        self.id.as_ptr().addr()
    }

    /// What it is bound to now.
    ///
    /// # Safety
    ///
    /// No other thread is in a call on this id, and no event is under way by which the library learns
    /// what it is bound to (`ADDR_RESOLVED`).
    pub(crate) unsafe fn bound(&self) -> Bound {
        // SAFETY: the id lives; by this function's own contract nobody writes it.
        unsafe { read_bound(self.id, true) }
    }

    /// `rdma_bind_addr`.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        let mut addr = socket::to_c(addr);
        self.done(|calls, id| {
            // SAFETY: the id lives; the address is read during the call only.
            unsafe { (calls.rdma_bind_addr)(id, (&raw mut addr).cast()) }
        })
    }

    /// `rdma_resolve_addr`, from what it is bound to.
    pub(crate) fn resolve_addr(&self, to: SocketAddr, timeout_ms: i32) -> Result<(), Errno> {
        let mut to = socket::to_c(to);
        self.done(|calls, id| {
            // SAFETY: the id lives; the address is read during the call only, and no source may be NULL.
            unsafe { (calls.rdma_resolve_addr)(id, null_mut(), (&raw mut to).cast(), timeout_ms) }
        })
    }

    /// `rdma_resolve_route`.
    ///
    /// # Safety
    ///
    /// The id is bound to a device.
    pub(crate) unsafe fn resolve_route(&self, timeout_ms: i32) -> Result<(), Errno> {
        // SAFETY: the id lives and has a device, which the library looks into.
        self.done(|calls, id| unsafe { (calls.rdma_resolve_route)(id, timeout_ms) })
    }

    /// `rdma_listen`.
    pub(crate) fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        // SAFETY: the id lives.
        self.done(|calls, id| unsafe { (calls.rdma_listen)(id, backlog) })
    }

    /// `rdma_connect`. The library looks into the id's device without asking whether it has one: only of
    /// one that is bound to a device.
    ///
    /// # Safety
    ///
    /// The id is bound to a device.
    pub(crate) unsafe fn connect(
        &self,
        param: rdma_conn_param,
        private_data: &[u8],
    ) -> Result<(), Errno> {
        self.with_param(param, private_data, |calls, id, param| {
            // SAFETY: the id lives and has a device; what is passed is read during the call only.
            unsafe { (calls.rdma_connect)(id, param) }
        })
    }

    /// `rdma_accept`, as [`connect`](CmId::connect).
    ///
    /// # Safety
    ///
    /// The id is bound to a device.
    pub(crate) unsafe fn accept(
        &self,
        param: rdma_conn_param,
        private_data: &[u8],
    ) -> Result<(), Errno> {
        self.with_param(param, private_data, |calls, id, param| {
            // SAFETY: as in connect.
            unsafe { (calls.rdma_accept)(id, param) }
        })
    }

    /// `rdma_establish`.
    pub(crate) fn establish(&self) -> Result<(), Errno> {
        // SAFETY: the id lives.
        self.done(|calls, id| unsafe { (calls.rdma_establish)(id) })
    }

    /// `rdma_reject`.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), Errno> {
        let len = u8::try_from(private_data.len()).map_err(|_| Errno::EINVAL)?;
        let data = if len == 0 { null() } else { private_data.as_ptr().cast() };
        // SAFETY: the id lives; so many bytes are read during the call only.
        self.done(|calls, id| unsafe { (calls.rdma_reject)(id, data, len) })
    }

    /// `rdma_disconnect`, of one that is connected, or was.
    ///
    /// # Safety
    ///
    /// The id is bound to a device.
    pub(crate) unsafe fn disconnect(&self) -> Result<(), Errno> {
        // SAFETY: the id lives and has a device, which the library looks into.
        self.done(|calls, id| unsafe { (calls.rdma_disconnect)(id) })
    }

    /// `rdma_init_qp_attr`: what a queue pair of this connection is to have to come to that state, and
    /// which attributes these are.
    pub(crate) fn init_qp_attr(&self, state: u32) -> Result<(ibv_qp_attr, i32), Errno> {
        let mut attr = ibv_qp_attr { qp_state: state, ..super::qp::zeroed_attr() };
        let mut mask = 0;
        self.done(|calls, id| {
            // SAFETY: the id lives; both are written during the call only.
            unsafe { (calls.rdma_init_qp_attr)(id, &mut attr, &mut mask) }
        })?;
        Ok((attr, mask))
    }

    /// `rdma_set_option`.
    pub(crate) fn set_option(&self, option: IdOption) -> Result<(), Errno> {
        const LEVEL: c_int = 0;
        let (number, value, len) = match option {
            IdOption::TypeOfService(tos) => (0, c_int::from_ne_bytes([tos, 0, 0, 0]), 1),
            IdOption::ReuseAddr(on) => (1, c_int::from(on), size_of::<c_int>()),
            IdOption::AfOnly(on) => (2, c_int::from(on), size_of::<c_int>()),
        };
        let mut value = value.to_ne_bytes();
        self.done(|calls, id| {
            // SAFETY: the id lives; so many bytes are read during the call only.
            unsafe { (calls.rdma_set_option)(id, LEVEL, number, value.as_mut_ptr().cast(), len) }
        })
    }

    fn with_param(
        &self,
        mut param: rdma_conn_param,
        private_data: &[u8],
        call: impl FnOnce(&Calls, *mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
    ) -> Result<(), Errno> {
        param.private_data_len = u8::try_from(private_data.len()).map_err(|_| Errno::EINVAL)?;
        param.private_data =
            if private_data.is_empty() { null() } else { private_data.as_ptr().cast() };
        self.done(|calls, id| call(calls, id, &mut param))
    }

    fn done(&self, call: impl FnOnce(&Calls, *mut rdma_cm_id) -> c_int) -> Result<(), Errno> {
        conv::preset_errno();
        conv::zero_or_minus_one(call(self.channel.calls, self.id.as_ptr()))
    }
}

/// What an id is bound to, with its peer's address if that is asked for.
///
/// # Safety
///
/// The id lives, and nobody writes the fields meanwhile.
unsafe fn read_bound(id: NonNull<rdma_cm_id>, with_peer: bool) -> Bound {
    // SAFETY: by this function's own contract. The context of the library's that it points to, and that
    // context's device, are there as long as the id.
    unsafe {
        let id = id.as_ptr();
        let verbs = (*id).verbs;
        let device = (!verbs.is_null()).then(|| {
            let device = (*verbs).device;
            let name = CStr::from_ptr((&raw const (*device).name).cast());
            let index = Newer::get().get_device_index;
            BoundTo {
                name: name.to_string_lossy().into_owned(),
                guid: Guid::from_be(calls::ibv_get_device_guid(device)),
                index: index.and_then(|index| u32::try_from(index(device)).ok()),
                port: (*id).port_num,
                gid: Gid::from_bytes((*id).route.addr.addr.sgid.raw),
            }
        });
        let address = &raw const (*id).route.addr;
        let peer = if with_peer { socket::from_c(&(*address).dst_addr) } else { None };
        Bound { device, local: socket::from_c(&(*address).src_addr), peer }
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
        (param.private_data, param.private_data_len) = (null(), 8);
        // SAFETY: NULL is not read.
        assert!(unsafe { offer(&param) }.private_data.is_empty());
    }
}
