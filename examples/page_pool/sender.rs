//! The sending end: fills the streams as far as the receiver gives them credit.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, Context, Endpoint, Error, Init, InitOptions, Notify, Pool,
    ProtectionDomain, Qpn, QueuePair, Rts, SharedBuffer,
};

use super::exchange::{Link, Plan};
use super::local::Local;
use super::options::Options;
use super::stop::{Stop, Watch};
use super::streams::{connect_all, connect_options};

/// The byte that messages are made of.
pub(crate) const PATTERN: u8 = 0x5a;
/// The most messages for one doorbell.
const CHAIN: usize = 32;

/// The end that sends.
pub(crate) struct Sender {
    streams: Vec<Stream>,
    cq: CompletionQueue,
    /// The message, which all sends share.
    message: SharedBuffer,
    timeout: Duration,
}

struct Stream {
    qpn: Qpn,
    /// `None` when it has ended.
    queue_pair: Option<QueuePair<Rts>>,
    /// So many messages may be sent: receives are there for them.
    credit: u32,
}

/// The queue pairs of an end that has no peer yet.
pub(crate) struct Unconnected {
    queue_pairs: Vec<QueuePair<Init>>,
    cq: CompletionQueue,
    message: SharedBuffer,
}

impl Unconnected {
    pub(crate) fn new(options: &Options, context: &Context, plan: &Plan) -> Result<Self, Error> {
        let pd = ProtectionDomain::new(context)?;
        let pool = Pool::new(&pd, plan.size as usize, 1)?;
        let what = "the number of buffers";
        let none = Error::OutOfRange { what, asked: 1, least: 0, most: pool.count() as u64 };
        let mut message = pool.take().ok_or(none)?;
        message.fill(PATTERN);
        let channel = CompletionChannel::new(context)?;
        // Messages whose completion was not looked at yet may have given new credit.
        let (sends, receives) = (2 * plan.depth, plan.depth);
        let size = plan.streams * (sends + receives);
        let cq = CompletionQueue::builder(context, size).channel(&channel).batch(CHAIN).build()?;
        let queue_pairs = (0..plan.streams).map(|_| {
            let builder = QueuePair::rc(&pd, &cq, &cq).send_depth(sends).recv_depth(receives);
            Ok(builder.build()?.init(&InitOptions::new(options.ib_port))?)
        });
        let queue_pairs = queue_pairs.collect::<Result<_, Error>>()?;
        Ok(Unconnected { queue_pairs, cq, message: message.freeze() })
    }

    pub(crate) fn endpoints(
        &self,
        options: &Options,
        local: &Local,
    ) -> Result<Vec<Endpoint>, Error> {
        let connect = connect_options(options, local);
        self.queue_pairs.iter().map(|queue_pair| queue_pair.endpoint(&connect)).collect()
    }

    pub(crate) fn connect(
        self,
        options: &Options,
        local: &Local,
        plan: &Plan,
        theirs: &[Endpoint],
    ) -> Result<Sender, Error> {
        let mut streams = Vec::new();
        for mut queue_pair in connect_all(self.queue_pairs, options, local, theirs)? {
            for _ in 0..plan.depth {
                queue_pair.recv_queue().post(Receive::new(()))?;
            }
            let (qpn, credit) = (queue_pair.qpn(), plan.depth);
            streams.push(Stream { qpn, queue_pair: Some(queue_pair), credit });
        }
        let Unconnected { cq, message, .. } = self;
        Ok(Sender { streams, cq, message, timeout: options.timeout })
    }
}

impl Sender {
    /// Sends until the receiver has enough; gives the number of messages. Tells of streams that end.
    pub(crate) fn run(mut self, link: &Link, watch: &mut Watch) -> Result<u64, Stop> {
        let outcome = self.send(link, watch);
        // Queue pairs before what they complete on.
        self.streams.clear();
        outcome.map_err(|stop| watch.reason(stop))
    }

    fn send(&mut self, link: &Link, watch: &mut Watch) -> Result<u64, Stop> {
        let (mut sent, mut last) = (0, Instant::now());
        loop {
            let now = Instant::now();
            if watch.is_gone(now) {
                return Err(Stop::Gone);
            }
            if link.is_over() {
                return Ok(sent);
            }
            for (number, stream) in self.streams.iter_mut().enumerate() {
                if link.ended_there(number) {
                    stream.end(number, "it ended at the receiver", link);
                }
                match stream.fill(&self.message) {
                    Ok(more) => sent += more,
                    Err(error) => stream.end(number, &error.to_string(), link),
                }
            }
            if self.streams.iter().all(|stream| stream.queue_pair.is_none()) {
                return Err(link.all_ended(self.streams.len()).into());
            }
            if now.duration_since(last) > self.timeout {
                let after = self.timeout;
                return Err(format!("nothing was received within {after:?} (--timeout)").into());
            }
            let mut drain = self.cq.wait(Notify::Any, Duration::from_millis(10))?;
            while let Some(completion) = drain.next() {
                let qpn = completion.qpn();
                let found = self.streams.iter_mut().enumerate().find(|(_, some)| some.qpn == qpn);
                let Some((number, stream)) = found else { continue };
                let (credit, receive) = (completion.imm(), completion.opcode().is_receive());
                let outcome = completion.result();
                drop(completion);
                match outcome {
                    Err(error) => stream.end(number, &error.to_string(), link),
                    Ok(()) => last = now,
                }
                let Some(queue_pair) = stream.queue_pair.as_mut().filter(|_| receive) else {
                    continue;
                };
                stream.credit = stream.credit.saturating_add(credit.unwrap_or(0));
                queue_pair.recv_queue().post(Receive::new(()))?;
            }
        }
    }
}

impl Stream {
    /// Sends what there is credit and room for, the last of each chain signaled.
    fn fill(&mut self, message: &SharedBuffer) -> Result<u64, Error> {
        let Some(queue_pair) = &mut self.queue_pair else { return Ok(0) };
        let queue = queue_pair.send_queue();
        let mut sent = 0;
        loop {
            let room = queue.depth() - queue.in_flight();
            let chain = self.credit.min(room).min(CHAIN as u32);
            if chain == 0 {
                return Ok(sent);
            }
            let mut batch = queue.batch::<CHAIN>();
            for number in 1..=chain {
                let send = Send::new(message.clone());
                batch.push(if number == chain { send.signaled() } else { send })?;
            }
            batch.post().map_err(|error| error.refusal)?;
            self.credit -= chain;
            sent += u64::from(chain);
        }
    }

    fn end(&mut self, number: usize, why: &str, link: &Link) {
        if self.queue_pair.take().is_some() {
            link.end(number, "sender", why);
        }
    }
}
