//! What the queue pairs of one side are made of.

use rdma_verbs::aio::Completions;
use rdma_verbs::wr::Receive;
use rdma_verbs::{
    Buffer, CompletionChannel, CompletionQueue, DeviceList, Error, Init, InitOptions, Pool,
    PortNum, ProtectionDomain, QueuePair, Result,
};

use super::Options;

/// One device, opened, with memory for all connections, and the channel that tells each task of its
/// completions.
pub(crate) struct Ground {
    pub(crate) port: PortNum,
    pub(crate) pool: Pool,
    channel: CompletionChannel,
    pd: ProtectionDomain,
    sends: u32,
    receives: u32,
}

impl Ground {
    /// On this device and port, whose queue pairs send so many at a time.
    pub(crate) fn new(
        options: &Options,
        device: &str,
        port: PortNum,
        sends: u32,
    ) -> Result<Ground> {
        let context = DeviceList::new()?.find(device)?.open()?;
        let pd = ProtectionDomain::new(&context)?;
        let receives = options.receives();
        // Twice: a connection that was given up may still have its own when the next one begins.
        let buffers = 2 * options.clients as usize * (receives + sends) as usize;
        let pool = Pool::new(&pd, options.size as usize, buffers)?;
        let channel = CompletionChannel::new(&context)?;
        Ok(Ground { port, pool, channel, pd, sends, receives })
    }

    /// For the completions of one queue pair, and of what is left of the one before it.
    pub(crate) fn completions(&self) -> Result<Completions> {
        let size = 2 * (self.sends + self.receives);
        let builder = CompletionQueue::builder(self.pd.context(), size);
        Completions::build(builder.channel(&self.channel))
    }

    /// A queue pair with its receives posted.
    pub(crate) fn queue_pair(&self, completions: &Completions) -> Result<QueuePair<Init>> {
        let builder = QueuePair::rc(&self.pd, completions, completions);
        let builder = builder.send_depth(self.sends).recv_depth(self.receives);
        let mut queue_pair = builder.build()?.init(&InitOptions::new(self.port))?;
        for _ in 0..self.receives {
            queue_pair.recv_queue().post(Receive::new(self.take()?))?;
        }
        Ok(queue_pair)
    }

    pub(crate) fn take(&self) -> Result<Buffer> {
        let count = self.pool.count() as u64;
        let what = "the number of buffers under way";
        self.pool.take().ok_or(Error::OutOfRange { what, asked: count + 1, least: 0, most: count })
    }
}
