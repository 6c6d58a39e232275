//! One end: a queue pair of datagrams with its memory, from nothing until it knows where to send.

use rdma_verbs::transport::Ud;
use rdma_verbs::wr::{Datagram, Inline};
use rdma_verbs::{
    AddressHandle, AddressVector, Buffer, CompletionChannel, CompletionQueue, Endpoint, Gid,
    GidEntry, Grh, Init, InitOptions, PortNum, ProtectionDomain, QKey, Qpn, QueuePair, Result, Rts,
    SendQueue,
};

use super::Options;
use super::local::{Local, too_long};
use super::receives::Receives;

/// What stands before a message that has come.
pub(crate) const HEADER: usize = Grh::LEN;

/// What C's program has.
const QKEY: QKey = QKey::new(0x1111_1111);

/// An end in a state of its queue pair.
pub(crate) struct End<S> {
    pub(crate) queue_pair: QueuePair<S, Ud>,
    pub(crate) cq: CompletionQueue,
    pub(crate) receives: Receives,
    pub(crate) target: Target,
    row: Option<GidEntry>,
    sl: u8,
    port: PortNum,
    ours: Endpoint,
}

/// Where messages go, once it is known.
pub(crate) struct Target(Option<(AddressHandle, Qpn)>);

pub(crate) type Sends = SendQueue<Ud>;

impl End<Init> {
    /// An end that has its receives posted, and no peer yet.
    pub(crate) fn new(options: &Options, local: &Local) -> Result<End<Init>> {
        let context = local.open(options, 0)?;
        let port = context.port(options.ib_port)?;
        let limit = port.active_mtu.bytes().unwrap_or(0).into();
        if options.size > limit {
            return Err(too_long(options.size, limit));
        }
        let pd = ProtectionDomain::new(&context)?;
        let mut receives = Receives::new(options, &pd)?;
        let channel = match options.events {
            true => Some(CompletionChannel::new(&context)?),
            false => None,
        };
        let depth = receives.depth;
        let mut builder = CompletionQueue::builder(&context, depth + 1).batch(2);
        if let Some(channel) = &channel {
            builder = builder.channel(channel);
        }
        let cq = builder.build()?;
        let queue_pair = QueuePair::ud(&pd, &cq, &cq).send_depth(1).recv_depth(depth).build()?;
        let mut queue_pair = queue_pair.init(&InitOptions::new(options.ib_port).qkey(QKEY))?;
        receives.refill(queue_pair.recv_queue())?;
        let gid = local.row.map(|row| row.gid());
        let ours = Endpoint::new(queue_pair.qpn(), queue_pair.psn(), Gid::ZERO);
        let ours = Endpoint { gid, lid: port.lid, ..ours };
        let (row, sl, port) = (local.row, options.sl, options.ib_port);
        Ok(End { queue_pair, cq, receives, target: Target(None), row, sl, port, ours })
    }

    /// What the peer must know.
    pub(crate) fn address(&self) -> Result<Endpoint> {
        Ok(self.ours)
    }

    /// Lets it send to its peer.
    pub(crate) fn connect(self, peer: &Endpoint) -> Result<End<Rts>> {
        let End { queue_pair, cq, receives, row, sl, port, ours, .. } = self;
        let address = match (&row, peer.gid) {
            (Some(row), Some(gid)) => AddressVector::new(row, gid).lid(peer.lid),
            _ => AddressVector::by_lid(port, peer.lid),
        };
        let pd = queue_pair.protection_domain();
        let to = AddressHandle::new(pd, &address.service_level(sl))?;
        let queue_pair = queue_pair.activate()?;
        let target = Target(Some((to, peer.qpn)));
        Ok(End { queue_pair, cq, receives, target, row, sl, port, ours })
    }
}

impl Target {
    /// Sends what came, without the header before it; the buffer is then under way, or back in its pool.
    pub(crate) fn send(&self, queue: &mut Sends, buffer: Buffer, inline: usize) -> Result<()> {
        let Some((to, qpn)) = &self.0 else { return Ok(()) };
        if buffer.len() - HEADER <= inline {
            let message = Inline(&buffer[HEADER..]);
            queue.post(Datagram::new(message, to, *qpn, QKEY).signaled())?;
        } else {
            let message = buffer.freeze().slice(HEADER..)?;
            queue.post(Datagram::new(message, to, *qpn, QKEY).signaled())?;
        }
        Ok(())
    }
}
