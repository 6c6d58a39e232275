//! One end: a queue pair, the memory that its peer writes and that it writes from, until it is connected.

use rdma_verbs::wr::Receive;
use rdma_verbs::{
    Buffer, CompletionQueue, ConnectOptions, Error, Exposed, Init, InitOptions, Mtu, Pool,
    ProtectionDomain, QueuePair, RemoteAccess, Reset, Result, Rts,
};

use super::exchange::Key;
use super::local::Local;
use super::options::{MOST, Options};
use super::{PROGRAM, common};

/// An end in a state of its queue pair.
pub(crate) struct End<S> {
    pub(crate) queue_pair: QueuePair<S>,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    /// What the peer writes to.
    pub(crate) incoming: Exposed,
    /// What is written to the peer; `None` while the queue has it.
    pub(crate) message: Option<Buffer>,
    /// Messages of up to so many bytes are sent inline.
    pub(crate) inline: u32,
    connect: ConnectOptions,
}

/// Writes in flight when they are posted in batches.
pub(crate) const DEPTH: u32 = 2 * MOST as u32;

impl End<Init> {
    /// An end that has no peer yet.
    pub(crate) fn new(options: &Options, local: &Local) -> Result<End<Init>> {
        let longest = options.longest();
        let context = local.open(options, longest)?;
        let room = usize::try_from(longest).unwrap_or(usize::MAX);
        let pd = ProtectionDomain::new(&context)?;
        let incoming = Exposed::new(&pd, room, RemoteAccess::WRITE)?;
        let pool = Pool::new(&pd, room, 1)?;
        let what = "the number of buffers";
        let none = Error::OutOfRange { what, asked: 1, least: 0, most: pool.count() as u64 };
        let mut message = pool.take().ok_or(none)?;
        message.fill(0);
        let depth = if options.batch.is_empty() { 1 } else { DEPTH };
        let send_cq = CompletionQueue::new(&context, depth)?;
        let recv_cq = CompletionQueue::new(&context, 1)?;
        let (queue_pair, inline) = queue_pair(options, &pd, [&send_cq, &recv_cq], depth)?;
        let init = InitOptions::new(options.ib_port).access(RemoteAccess::WRITE);
        let mut queue_pair = queue_pair.init(&init)?;
        if options.write_with_imm {
            // One is enough: the peer writes again only when this end has.
            queue_pair.recv_queue().post(Receive::new(()))?;
        }
        let connect = match &local.row {
            Some(row) => ConnectOptions::new(row),
            None => ConnectOptions::by_lid(options.ib_port),
        };
        let message = Some(message);
        Ok(End { queue_pair, send_cq, recv_cq, incoming, message, inline, connect })
    }

    /// What the peer must know.
    pub(crate) fn key(&self) -> Result<Key> {
        let endpoint = self.queue_pair.endpoint(&self.connect)?;
        Ok(Key { endpoint, memory: self.incoming.remote() })
    }

    /// Connects it to its peer.
    pub(crate) fn connect(self, peer: &Key, mtu: Mtu) -> Result<End<Rts>> {
        let End { queue_pair, send_cq, recv_cq, incoming, message, inline, connect } = self;
        let queue_pair = queue_pair.connect(&peer.endpoint, &connect.mtu(mtu))?;
        Ok(End { queue_pair, send_cq, recv_cq, incoming, message, inline, connect })
    }
}

/// With as much inline as was asked for, or as the device grants: it tells its limit nowhere.
fn queue_pair(
    options: &Options,
    pd: &ProtectionDomain,
    [send_cq, recv_cq]: [&CompletionQueue; 2],
    depth: u32,
) -> Result<(QueuePair<Reset>, u32)> {
    let mut inline = options.inline;
    loop {
        let builder = QueuePair::rc(pd, send_cq, recv_cq).send_depth(depth).recv_depth(1);
        match builder.max_inline(inline).build() {
            Err(Error::InlineNotGranted { .. }) if inline > 0 => inline /= 2,
            Err(error) => return Err(error),
            Ok(queue_pair) => {
                if inline < options.inline {
                    let (device, asked) = (pd.context().device().name(), options.inline);
                    let line = format!("{device} grants --inline {inline}, not {asked}");
                    common::note(PROGRAM, line);
                }
                return Ok((queue_pair, inline));
            }
        }
    }
}
