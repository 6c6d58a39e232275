//! Multicast groups: what a queue pair of datagrams receives besides what is sent to it.

#![deny(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::{Errno, Error, Object, Result};
use crate::qp::transport::Ud;
use crate::qp::{CanReceive, Core, QueuePair};
use crate::types::{Gid, GidScope, Lid};

/// A queue pair of datagrams in a multicast group (`ibv_attach_mcast`): it receives what is sent to the group,
/// as long as this lives. Dropping it takes the queue pair out (`ibv_detach_mcast`).
///
/// It does not keep the queue pair: that leaves its groups before it is destroyed, whichever is dropped first.
///
/// The device hears the group then; the network must bring it here besides. On RoCE the host joins the group's IP
/// address on the interface: by
/// [`EventChannel::join`](crate::cm::EventChannel::join), or by a socket
/// ([`UdpSocket::join_multicast_v4`](std::net::UdpSocket::join_multicast_v4) and its like), both as long as they
/// live. On InfiniBand the subnet manager is asked, by the connection manager too. Who only sends need do neither.
pub struct MulticastAttachment {
    core: Weak<Core>,
    group: Gid,
    lid: Lid,
}

impl MulticastAttachment {
    /// Puts the queue pair into a group: one of InfiniBand, or of RoCE its IP address as a GID, `ff0e::1` or
    /// `::ffff:239.1.2.3`. A queue pair that is in it already is in it twice, and receives what comes once.
    ///
    /// A datagram reaches it if it carries the queue pair's Q_Key, as all others do.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] for what is no group; [`Error::MulticastFull`] when the device has no room for one more;
    /// [`Error::Verb`] for what else it answers. The queue pair goes on.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn new<S: CanReceive>(
        queue_pair: &QueuePair<S, Ud>,
        group: Gid,
    ) -> Result<MulticastAttachment> {
        MulticastAttachment::by_lid(queue_pair, group, Lid(0))
    }

    /// The same of a group on InfiniBand, with the LID that the subnet manager gave it (`mlid`).
    ///
    /// # Errors
    ///
    /// As [`new`](MulticastAttachment::new).
    pub fn by_lid<S: CanReceive>(
        queue_pair: &QueuePair<S, Ud>,
        group: Gid,
        lid: Lid,
    ) -> Result<MulticastAttachment> {
        let core = queue_pair.core();
        let context = core.context();
        let device = || context.device().name().into();
        if group.scope() != GidScope::Multicast {
            let what = format!("gid: {group} is no multicast group").into();
            return Err(Error::BadAddress { device: device(), what });
        }
        core.attach(group, lid).map_err(|errno| match errno {
            Errno::ENOMEM | Errno::ENOSPC => {
                let limits = context.limits();
                Error::MulticastFull {
                    device: device(),
                    group,
                    groups: limits.max_mcast_grp,
                    in_each: limits.max_mcast_qp_attach,
                    in_all: limits.max_total_mcast_qp_attach,
                }
            }
            errno => failed(core, "ibv_attach_mcast", errno),
        })?;
        Ok(MulticastAttachment { core: Arc::downgrade(core), group, lid })
    }

    /// The group.
    pub fn group(&self) -> Gid {
        self.group
    }

    /// Takes the queue pair out, as dropping this does, and tells how that ended.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(mut self) -> Result<()> {
        self.leave().map_err(|(core, errno)| failed(&core, "ibv_detach_mcast", errno))
    }

    fn leave(&mut self) -> Result<(), (Arc<Core>, Errno)> {
        // A queue pair that has gone has left before.
        let Some(core) = std::mem::take(&mut self.core).upgrade() else { return Ok(()) };
        core.detach(self.group, self.lid).map_err(|errno| (core, errno))
    }
}

fn failed(core: &Core, verb: &'static str, errno: Errno) -> Error {
    Error::Verb { verb, object: Object::device(core.context().device().name()), errno }
}

impl Drop for MulticastAttachment {
    fn drop(&mut self) {
        // If it fails, the device has gone, or the queue pair cannot be destroyed, which is told then.
        let _ = self.leave();
    }
}

impl fmt::Debug for MulticastAttachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastAttachment").field("group", &self.group).finish_non_exhaustive()
    }
}
