//! The receiving end: keeps receives posted, and gives the sender credit for them.
//!
//! A message that finds no receive is sent again after a pause, which would be measured instead of what is
//! meant. So the sender has credit for as many messages as receives are posted at first, and for each that is
//! posted anew it is told so, by a message without bytes whose immediate data is the number.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Context, Endpoint, Error, Init, InitOptions, Notify,
    ProtectionDomain, Qpn, QueuePair, Rts, SharedReceiveQueue,
};

use super::exchange::{Link, Plan};
use super::local::Local;
use super::options::{Mode, Options};
use super::stop::{Stop, Watch};
use super::streams::{connect_all, connect_options};
use super::supply::{Queue, Supply};

/// Messages of credit in flight.
const CREDITS: u32 = 16;
/// How long a queue pair may take to give back what is posted on it.
const CLOSE: Duration = Duration::from_millis(500);

/// The end that receives.
pub(crate) struct Receiver {
    streams: Vec<Stream>,
    shared: Option<SharedReceiveQueue>,
    cq: CompletionQueue,
    pub(crate) supply: Supply,
    depth: u32,
    /// Where receives that are posted now have their memory from.
    pub(crate) mode: Mode,
    /// Messages that came in all, by mode.
    pub(crate) came: [u64; 3],
    last: Instant,
    timeout: Duration,
}

struct Stream {
    qpn: Qpn,
    /// `None` when it has ended.
    queue_pair: Option<QueuePair<Rts>>,
    /// Messages that came, for which no receive was posted since.
    owed: u32,
    /// Receives that the sender was not told of.
    credit: u32,
}

/// The queue pairs of an end that has no peer yet, and its memory.
pub(crate) struct Unconnected {
    queue_pairs: Vec<QueuePair<Init>>,
    shared: Option<SharedReceiveQueue>,
    cq: CompletionQueue,
    supply: Supply,
}

impl Unconnected {
    pub(crate) fn new(options: &Options, context: &Context, plan: &Plan) -> Result<Self, Error> {
        let pd = ProtectionDomain::new(context)?;
        let receives = plan.streams * plan.depth;
        let supply = Supply::new(&pd, &options.modes(), plan.size as usize, receives)?;
        let channel = CompletionChannel::new(context)?;
        let size = receives + plan.streams * CREDITS;
        let cq = CompletionQueue::builder(context, size).channel(&channel).batch(32).build()?;
        let shared = options.srq.then(|| SharedReceiveQueue::builder(&pd, receives).build());
        let shared = shared.transpose()?;
        let queue_pairs = (0..plan.streams).map(|_| {
            let mut builder = QueuePair::rc(&pd, &cq, &cq).send_depth(CREDITS);
            builder = match &shared {
                Some(shared) => builder.shared_receive_queue(shared),
                None => builder.recv_depth(plan.depth),
            };
            Ok(builder.build()?.init(&InitOptions::new(options.ib_port))?)
        });
        let queue_pairs = queue_pairs.collect::<Result<_, Error>>()?;
        Ok(Unconnected { queue_pairs, shared, cq, supply })
    }

    pub(crate) fn endpoints(
        &self,
        options: &Options,
        local: &Local,
    ) -> Result<Vec<Endpoint>, Error> {
        let connect = connect_options(options, local);
        self.queue_pairs.iter().map(|queue_pair| queue_pair.endpoint(&connect)).collect()
    }

    /// Connects them, with all receives posted.
    pub(crate) fn connect(
        self,
        options: &Options,
        local: &Local,
        plan: &Plan,
        theirs: &[Endpoint],
    ) -> Result<Receiver, String> {
        let Unconnected { queue_pairs, mut shared, cq, mut supply } = self;
        let mode = options.modes()[0];
        let mut streams = Vec::new();
        let connected = connect_all(queue_pairs, options, local, theirs);
        for mut queue_pair in connected.map_err(super::text)? {
            if shared.is_none() {
                let mut queue = Queue::Own(queue_pair.recv_queue());
                supply.post(mode, &mut queue, plan.depth)?;
            }
            let qpn = queue_pair.qpn();
            streams.push(Stream { qpn, queue_pair: Some(queue_pair), owed: 0, credit: 0 });
        }
        if let Some(shared) = &mut shared {
            supply.post(mode, &mut Queue::Shared(shared), plan.streams * plan.depth)?;
        }
        let (depth, timeout, last) = (plan.depth, options.timeout, Instant::now());
        Ok(Receiver { streams, shared, cq, supply, depth, mode, came: [0; 3], last, timeout })
    }
}

impl Receiver {
    /// Takes what came, posts receives for it, and gives credit. Waits a moment if nothing came.
    pub(crate) fn turn(&mut self, link: &Link, watch: &mut Watch) -> Result<(), Stop> {
        let now = Instant::now();
        if watch.is_gone(now) {
            return Err(Stop::Gone);
        }
        if link.is_over() {
            return Err("the sender went away".into());
        }
        if now.duration_since(self.last) > self.timeout {
            return Err(format!("nothing came within {:?} (--timeout)", self.timeout).into());
        }
        let Receiver { streams, cq, supply, came, .. } = self;
        let mut drain = cq.wait(Notify::Any, Duration::from_millis(10))?;
        while let Some(completion) = drain.next() {
            let qpn = completion.qpn();
            let found = streams.iter_mut().enumerate().find(|(_, stream)| stream.qpn == qpn);
            let outcome = completion.result();
            let success = outcome.is_ok();
            let receive = completion.opcode().is_receive();
            if receive {
                let mode = supply.complete(completion)?;
                came[mode as usize] += u64::from(success);
            }
            let Some((number, stream)) = found else { continue };
            match outcome {
                Ok(()) => stream.owed += u32::from(receive),
                Err(error) => stream.end(number, &error.to_string(), link),
            }
            self.last = now;
        }
        for (number, stream) in self.streams.iter_mut().enumerate() {
            if link.ended_there(number) {
                stream.end(number, "it ended at the sender", link);
            }
        }
        self.refill(link)?;
        match self.live() {
            0 => Err(link.all_ended(self.streams.len()).into()),
            _ => Ok(()),
        }
    }

    /// Posts receives where a quarter of a stream's messages have come, and tells the sender.
    fn refill(&mut self, link: &Link) -> Result<(), Stop> {
        let Receiver { streams, shared, supply, depth, mode, .. } = self;
        let few = *depth / 4;
        if let Some(shared) = shared {
            if streams.iter().any(|stream| stream.owed >= few) {
                let owed = streams.iter().map(|stream| stream.owed).sum();
                let mut posted = supply.post(*mode, &mut Queue::Shared(shared), owed)?;
                for stream in &mut *streams {
                    let more = posted.min(stream.owed);
                    (stream.owed, stream.credit) = (stream.owed - more, stream.credit + more);
                    posted -= more;
                }
            }
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let Some(queue_pair) = &mut stream.queue_pair else { continue };
            if shared.is_none() && stream.owed >= few {
                let mut queue = Queue::Own(queue_pair.recv_queue());
                let more = supply.post(*mode, &mut queue, stream.owed)?;
                (stream.owed, stream.credit) = (stream.owed - more, stream.credit + more);
            }
            let queue = queue_pair.send_queue();
            if stream.credit > 0 && queue.in_flight() < queue.depth() {
                match queue.post(Send::new(Inline(b"")).imm(stream.credit).signaled()) {
                    Ok(()) => stream.credit = 0,
                    Err(error) => stream.end(number, &error.to_string(), link),
                }
            }
        }
        Ok(())
    }

    /// How many streams there are still.
    pub(crate) fn live(&self) -> usize {
        self.streams.iter().filter(|stream| stream.queue_pair.is_some()).count()
    }

    /// How many receives there are in all.
    pub(crate) fn receives(&self) -> u64 {
        self.streams.len() as u64 * u64::from(self.depth)
    }

    /// Ends everything in order: queue pairs, what is left on their completion queue, the shared receive queue;
    /// then all memory is back, and what is not is lost.
    pub(crate) fn end(self) -> Result<Supply, String> {
        let Receiver { streams, shared, mut cq, mut supply, .. } = self;
        let mut trouble = None;
        for queue_pair in streams.into_iter().filter_map(|stream| stream.queue_pair) {
            let closed = queue_pair.finish_polling(&mut [&mut cq], CLOSE, |completion| {
                if completion.opcode().is_receive() {
                    trouble = supply.complete(completion).err().or(trouble.take());
                }
            });
            closed.map_err(super::text)?;
        }
        // Of those that ended before.
        loop {
            let mut drain = cq.poll().map_err(super::text)?;
            if drain.is_empty() {
                break;
            }
            while let Some(completion) = drain.next() {
                if completion.opcode().is_receive() {
                    trouble = supply.complete(completion).err().or(trouble.take());
                }
            }
        }
        if let Some(shared) = shared {
            for left in shared.finish().map_err(super::text)? {
                supply.left(left.wr_id, left.memory)?;
            }
        }
        trouble.map_or(Ok(supply), Err)
    }
}

impl Stream {
    fn end(&mut self, number: usize, why: &str, link: &Link) {
        if self.queue_pair.take().is_some() {
            link.end(number, "receiver", why);
        }
    }
}
