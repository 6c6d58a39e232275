//! The owner of an `rdma_cm_id`.

use std::ffi::{CStr, c_int, c_uint};
use std::net::SocketAddr;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use super::abi::{ibv_qp_attr, rdma_cm_id, rdma_conn_param};
use super::cm::{Bound, BoundTo, CmChannel};
use super::cm_calls::Calls;
use super::ops::Newer;
use super::{calls, conv, socket};
use crate::error::Errno;
use crate::types::{Gid, Guid};

/// `enum rdma_port_space`.
#[derive(Clone, Copy)]
pub(crate) enum PortSpace {
    /// `RDMA_PS_TCP`: connects reliably.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`: datagrams.
    Udp = 0x0111,
}

/// Options of an id (`RDMA_OPTION_ID_*`, of the level `RDMA_OPTION_ID`).
#[derive(Clone, Copy)]
pub(crate) enum IdOption {
    TypeOfService(u8),
    ReuseAddr(bool),
    AfOnly(bool),
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
    /// `rdma_create_id`.
    pub(crate) fn create(channel: &Arc<CmChannel>, space: PortSpace) -> Result<CmId, Errno> {
        let mut id = null_mut();
        conv::preset_errno();
        // SAFETY: the channel lives; the pointer is written during the call only.
        let returned = unsafe {
            let (channel, create) = (channel.channel.as_ptr(), channel.calls.rdma_create_id);
            create(channel, &mut id, null_mut(), space as c_uint)
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
    pub(super) unsafe fn own(id: NonNull<rdma_cm_id>, channel: &Arc<CmChannel>) -> CmId {
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

    /// `rdma_join_multicast`, of an id without a queue pair of the library's.
    pub(crate) fn join(&self, group: SocketAddr) -> Result<(), Errno> {
        let mut group = socket::to_c(group);
        self.done(|calls, id| {
            // SAFETY: the id lives; the address is read during the call only, and the context of the event
            // may be NULL.
            unsafe { (calls.rdma_join_multicast)(id, (&raw mut group).cast(), null_mut()) }
        })
    }

    /// `rdma_leave_multicast`. Waits at most while another thread copies an event of it.
    pub(crate) fn leave(&self, group: SocketAddr) -> Result<(), Errno> {
        let mut group = socket::to_c(group);
        self.done(|calls, id| {
            // SAFETY: the id lives; the address is read during the call only.
            unsafe { (calls.rdma_leave_multicast)(id, (&raw mut group).cast()) }
        })
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
pub(super) unsafe fn read_bound(id: NonNull<rdma_cm_id>, with_peer: bool) -> Bound {
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
