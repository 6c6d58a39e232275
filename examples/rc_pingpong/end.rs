//! One end: a queue pair with its memory, from nothing until it is connected.

use rdma_verbs::wr::Receive;
use rdma_verbs::{
    Buffer, CompletionChannel, CompletionQueue, ConnectOptions, Endpoint, Error, Init, InitOptions,
    Pool, ProtectionDomain, QueuePair, RecvQueue, Result, Rts,
};

use super::Options;
use super::local::Local;

/// An end in a state of its queue pair.
pub(crate) struct End<S> {
    pub(crate) queue_pair: QueuePair<S>,
    pub(crate) cq: CompletionQueue,
    pub(crate) receives: Receives,
    connect: ConnectOptions,
}

/// The memory that messages come into.
pub(crate) struct Receives {
    pool: Pool,
    /// How many are posted when they are posted anew.
    depth: u32,
    posted: u32,
    /// Whether to leave nothing in it that could be taken for a message.
    wipe: bool,
}

/// Receives may take so much memory; a message that is under way needs one of them.
const ROOM: u64 = 4 << 20;

impl End<Init> {
    /// An end that has its receives posted, and no peer yet.
    pub(crate) fn new(options: &Options, local: &Local) -> Result<End<Init>> {
        let context = local.open(options, options.size)?;
        let depth = (ROOM / options.size.max(64)).max(2).min(options.rx_depth.into()) as u32;
        let pd = ProtectionDomain::new(&context)?;
        // One is sent, and one has come and waits for that.
        let size = usize::try_from(options.size).unwrap_or(usize::MAX);
        let pool = Pool::new(&pd, size, depth as usize + 2)?;
        let channel = match options.events {
            true => Some(CompletionChannel::new(&context)?),
            false => None,
        };
        let mut builder = CompletionQueue::builder(&context, depth + 1).batch(2);
        if let Some(channel) = &channel {
            builder = builder.channel(channel);
        }
        let cq = builder.build()?;
        let queue_pair = QueuePair::rc(&pd, &cq, &cq).send_depth(1).recv_depth(depth).build()?;
        let mut queue_pair = queue_pair.init(&InitOptions::new(options.ib_port))?;
        let mut receives = Receives { pool, depth, posted: 0, wipe: options.chk };
        receives.refill(queue_pair.recv_queue())?;
        let connect = match &local.row {
            Some(row) => ConnectOptions::new(row),
            None => ConnectOptions::by_lid(options.ib_port),
        };
        let connect = connect.mtu(options.mtu).service_level(options.sl);
        Ok(End { queue_pair, cq, receives, connect })
    }

    /// What the peer must know.
    pub(crate) fn address(&self) -> Result<Endpoint> {
        self.queue_pair.endpoint(&self.connect)
    }

    /// Connects it to its peer.
    pub(crate) fn connect(self, peer: &Endpoint) -> Result<End<Rts>> {
        let End { queue_pair, cq, receives, connect } = self;
        let queue_pair = queue_pair.connect(peer, &connect)?;
        Ok(End { queue_pair, cq, receives, connect })
    }
}

impl Receives {
    /// A buffer with what the client sends: what C's sends with `-c`, and takes for right.
    pub(crate) fn first_message(&self) -> Result<Buffer> {
        let mut buffer = self.take()?;
        buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = expected(at));
        Ok(buffer)
    }

    /// One has come; when few are left, as many as there were are posted again.
    pub(crate) fn one_came(&mut self, queue: &mut RecvQueue) -> Result<()> {
        self.posted -= 1;
        if self.posted <= 1 { self.refill(queue) } else { Ok(()) }
    }

    fn refill(&mut self, queue: &mut RecvQueue) -> Result<()> {
        while self.posted < self.depth {
            let mut buffer = self.take()?;
            if self.wipe {
                buffer.fill(0xff);
            }
            queue.post(Receive::new(buffer))?;
            self.posted += 1;
        }
        Ok(())
    }

    fn take(&self) -> Result<Buffer> {
        // There are as many as can be posted and under way at a time.
        let count = self.pool.count() as u64;
        let what = "the number of buffers under way";
        self.pool.take().ok_or(Error::OutOfRange { what, asked: count + 1, least: 0, most: count })
    }
}

/// The byte at a place of a message.
pub(crate) fn expected(at: usize) -> u8 {
    if at % rustix::param::page_size() == 0 { 0 } else { 0x7b }
}
