//! Multicast groups, joined through the connection manager.

#![deny(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::channel::EventChannel;
use super::core::IdCore;
use super::device::BoundDevice;
use super::fault;
use crate::ah::AddressVector;
use crate::context::Context;
use crate::error::{CmReason, Error, Result};
use crate::mcast::MulticastAttachment;
use crate::qp::transport::Ud;
use crate::qp::{self, CanReceive, Init, QueuePair, Reset};
use crate::sys::cm::{Group, PortSpace};
use crate::types::{CmEventType, Gid, GidType, Lid, QKey, Wanted};

/// A multicast group that this host has joined (`rdma_join_multicast`), by one address of its own; left when this is
/// dropped (`rdma_leave_multicast`).
///
/// [`attach`](MulticastGroup::attach) lets a queue pair of the same device hear it. To send to it one needs not be
/// in it.
pub struct MulticastGroup {
    member: Member,
    joined: Group,
}

/// An id that has begun to join.
struct Member {
    core: IdCore,
    at: SocketAddr,
}

impl EventChannel {
    /// Joins a group by the interface, and so the device, that has this address: both IPv4, or both IPv6. On RoCE the
    /// network is asked (IGMP); on InfiniBand the subnet manager, which makes the group if there is none. Waits that
    /// long for it.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeviceForAddress`]; [`Error::BadAddress`] for what is no group, or of the other family;
    /// [`Error::Cm`] with what it ended by: among others `ENOTSUP` for IPv6 on RoCE v2, which kernels do not do.
    /// Join by a socket there, as [`MulticastAttachment`] says.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(&self, here: IpAddr, group: IpAddr, timeout: Duration) -> Result<MulticastGroup> {
        const CALL: &str = "rdma_join_multicast";
        let (here, at) = (SocketAddr::new(here, 0), SocketAddr::new(group, 0));
        let mut core = self.core(PortSpace::Udp)?;
        let bound = core.bind(here);
        bound.map_err(|errno| fault::call("rdma_bind_addr", Some(here), None, errno))?;
        let device = core.bound_device()?.name();
        // The kernel would take it.
        if !group.is_multicast() || group.is_ipv4() != here.is_ipv4() {
            let what = format!("group: {group} is no multicast group of {}'s family", here.ip());
            return Err(Error::BadAddress { device: device.into(), what: what.into() });
        }
        core.peer = Some(at);
        let failed = |core: &IdCore, reason| fault::fault(CALL, core.local, Some(at), reason);
        core.handle.join(at).map_err(|errno| failed(&core, CmReason::Failed(errno)))?;
        // From here on it is left, whatever comes.
        let member = Member { core, at };
        let core = &member.core;
        let ends = |kind| {
            kind == CmEventType::MULTICAST_JOIN
                || kind == CmEventType::MULTICAST_ERROR
                || kind == CmEventType::DEVICE_REMOVAL
        };
        let Some(arrived) = core.await_event(timeout, ends)? else {
            return Err(core.timed_out(CALL, timeout));
        };
        let joined = arrived.event.status == 0 && arrived.event.kind == CmEventType::MULTICAST_JOIN;
        match arrived.group.filter(|_| joined) {
            Some(joined) => Ok(MulticastGroup { member, joined }),
            None => Err(core.failed(CALL, &arrived)),
        }
    }
}

impl MulticastGroup {
    /// The group: on RoCE its IP address as a GID.
    pub fn gid(&self) -> Gid {
        self.joined.gid
    }

    /// Its LID, on InfiniBand.
    pub fn lid(&self) -> Lid {
        Lid(self.joined.lid)
    }

    /// The Q_Key that all datagrams to it carry.
    pub fn qkey(&self) -> QKey {
        QKey::new(self.joined.qkey)
    }

    /// The device by which it was joined.
    pub fn device(&self) -> Option<&BoundDevice> {
        self.member.core.device.as_ref()
    }

    /// The device, opened; see [`Id::context`](super::Id::context).
    ///
    /// # Errors
    ///
    /// As [`BoundDevice::open`].
    pub fn context(&self) -> Result<Context> {
        self.member.core.context()
    }

    /// Brings a queue pair of the device to [`Init`], with the group's port, partition and Q_Key.
    ///
    /// # Errors
    ///
    /// As [`Id::init`](super::Id::init).
    pub fn init(
        &self,
        queue_pair: QueuePair<Reset, Ud>,
    ) -> Result<QueuePair<Init, Ud>, qp::Failed<Reset, Ud>> {
        match self.member.core.init_options(&queue_pair) {
            Ok(options) => queue_pair.init(&options.qkey(self.qkey())),
            Err(error) => Err(qp::Failed { error, queue_pair }),
        }
    }

    /// Lets a queue pair of the device hear the group, as long as what comes back lives, and this.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`](crate::Error::OtherDevice); as [`MulticastAttachment::new`].
    pub fn attach<S: CanReceive>(
        &self,
        queue_pair: &QueuePair<S, Ud>,
    ) -> Result<MulticastAttachment> {
        self.member.core.bound_device()?.check(queue_pair.context(), "the queue pair")?;
        MulticastAttachment::by_lid(queue_pair, self.gid(), self.lid())
    }

    /// Where datagrams to the group go, as the connection manager tells. The row that they come from is found by its
    /// value: the GID of the address by which it was joined.
    ///
    /// # Errors
    ///
    /// [`Error::GidNotFound`](crate::Error::GidNotFound) when that is not in the port's table; as [`BoundDevice::open`].
    pub fn address(&self) -> Result<AddressVector> {
        let Group { row, lid, service_level, traffic_class, flow_label, hop_limit, .. } =
            self.joined;
        let device = self.member.core.bound_device()?;
        let snapshot = self.context()?.gids().checked()?;
        let gid = device.gid().unwrap_or(Gid::ZERO);
        // That at the index that was told, if it still has the GID; else the best that has.
        let mut rows: Vec<_> =
            snapshot.by_gid(&gid).filter(|there| there.port() == device.port()).collect();
        rows.sort_by_key(|there| {
            (there.index() != u32::from(row), there.gid_type() != GidType::ROCE_V2)
        });
        let source = rows.first().ok_or_else(|| snapshot.not_found(&Wanted::Gid(gid)))?;
        let address = AddressVector::new(source, self.gid()).lid(Lid(lid));
        let address = address.service_level(service_level).traffic_class(traffic_class);
        Ok(address.flow_label(flow_label).hop_limit(hop_limit))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // If it fails, destroying the id leaves it too.
        let _ = self.core.handle.leave(self.at);
    }
}

impl fmt::Debug for MulticastGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastGroup")
            .field("gid", &self.joined.gid)
            .field("device", &self.member.core.device.as_ref().map(BoundDevice::name))
            .finish_non_exhaustive()
    }
}
