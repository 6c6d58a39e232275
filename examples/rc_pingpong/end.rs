//! One end: a queue pair with its memory, from nothing until it is connected.

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs::{
    Buffer, Calls, CompletionChannel, CompletionQueue, ConnectOptions, Endpoint, Init, InitOptions,
    ProtectionDomain, QueuePair, Result, Rts, SendQueue,
};

use super::Options;
use super::local::Local;
use super::receives::Receives;

/// What stands before a message that has come: nothing.
pub(crate) const HEADER: usize = 0;

/// An end in a state of its queue pair.
pub(crate) struct End<S> {
    pub(crate) queue_pair: QueuePair<S>,
    pub(crate) cq: CompletionQueue,
    pub(crate) receives: Receives,
    pub(crate) target: Target,
    connect: ConnectOptions,
}

/// Where messages go: to the peer that the queue pair is connected to.
pub(crate) struct Target;

pub(crate) type Sends = SendQueue;

impl End<Init> {
    /// An end that has its receives posted, and no peer yet.
    pub(crate) fn new(options: &Options, local: &Local) -> Result<End<Init>> {
        let context = local.open(options, options.size)?;
        let pd = ProtectionDomain::new(&context)?;
        let mut receives = Receives::new(options, &pd)?;
        let channel = match options.events {
            true => Some(CompletionChannel::new(&context)?),
            false => None,
        };
        let depth = receives.depth;
        let mut builder = CompletionQueue::builder(&context, depth + 1).batch(2);
        builder = builder.timestamps(options.ts);
        if let Some(channel) = &channel {
            builder = builder.channel(channel);
        }
        let cq = builder.build()?;
        let queue_pair = QueuePair::rc(&pd, &cq, &cq).send_depth(1).recv_depth(depth);
        let calls = if options.new_send { Calls::Extended } else { Calls::Classic };
        let queue_pair = queue_pair.calls(calls).build()?;
        let mut queue_pair = queue_pair.init(&InitOptions::new(options.ib_port))?;
        receives.refill(queue_pair.recv_queue())?;
        let connect = match &local.row {
            Some(row) => ConnectOptions::new(row),
            None => ConnectOptions::by_lid(options.ib_port),
        };
        let connect = connect.mtu(options.mtu).service_level(options.sl);
        Ok(End { queue_pair, cq, receives, target: Target, connect })
    }

    /// What the peer must know.
    pub(crate) fn address(&self) -> Result<Endpoint> {
        self.queue_pair.endpoint(&self.connect)
    }

    /// Connects it to its peer.
    pub(crate) fn connect(self, peer: &Endpoint) -> Result<End<Rts>> {
        let End { queue_pair, cq, receives, target, connect } = self;
        let queue_pair = queue_pair.connect(peer, &connect)?;
        Ok(End { queue_pair, cq, receives, target, connect })
    }
}

impl Target {
    /// Sends what came; the buffer is then under way, or back in its pool.
    pub(crate) fn send(&self, queue: &mut Sends, buffer: Buffer, inline: usize) -> Result<()> {
        if buffer.len() <= inline {
            queue.post(Send::new(Inline(&buffer)).signaled())?;
        } else {
            queue.post(Send::new(buffer).signaled())?;
        }
        Ok(())
    }
}
