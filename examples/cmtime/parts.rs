//! What queue pairs are made of, on one device.

use rdma_verbs::{CompletionQueue, Context, Error, ProtectionDomain, QueuePair, Reset};

/// Completion queues are shared: nothing is sent here.
pub(crate) struct Parts {
    context: Context,
    pd: ProtectionDomain,
    cqs: Vec<CompletionQueue>,
    size: u32,
}

impl Parts {
    /// For about so many queue pairs.
    pub(crate) fn new(context: Context, count: u32) -> Result<Parts, Error> {
        let pd = ProtectionDomain::new(&context)?;
        let size = count.saturating_mul(2).clamp(2, context.limits().max_cqe.clamp(2, 16_384));
        let cqs = vec![CompletionQueue::new(&context, size)?];
        Ok(Parts { context, pd, cqs, size })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// With one work request on either queue, as the C program has it.
    pub(crate) fn queue_pair(&mut self) -> Result<QueuePair<Reset>, Error> {
        match self.try_queue_pair() {
            Err(Error::CompletionQueueFull { .. }) => {
                self.cqs.push(CompletionQueue::new(&self.context, self.size)?);
                self.try_queue_pair()
            }
            other => other,
        }
    }

    fn try_queue_pair(&self) -> Result<QueuePair<Reset>, Error> {
        let cq = &self.cqs[self.cqs.len() - 1];
        QueuePair::rc(&self.pd, cq, cq).send_depth(1).recv_depth(1).build()
    }
}
