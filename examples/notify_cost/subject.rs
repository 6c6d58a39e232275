//! What is measured: a completion queue with a channel, and what goes around on it.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    CompletionChannel, CompletionQueue, ConnectOptions, Context, DeviceList, Error, InitOptions,
    Notify, Pool, ProtectionDomain, QueuePair, Rts,
};

use super::raw::{self, Loops};

/// A completion queue, and a queue pair connected to itself.
pub(crate) struct Subject {
    qp: QueuePair<Rts>,
    pool: Pool,
    pub(crate) cq: CompletionQueue,
    channel: CompletionChannel,
    pub(crate) device: String,
    notify: Notify,
    loops: Loops,
}

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Call {
    /// `ibv_req_notify_cq`
    Raw,
    /// `CompletionQueue::request_notify`
    Ours,
    /// `ibv_req_notify_cq` and `ibv_poll_cq`
    RawPoll,
    /// `CompletionQueue::arm`
    Arm,
}

/// How long a message that goes around is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

impl Subject {
    pub(crate) fn open(
        device: Option<&str>,
        solicited: bool,
        loops: Loops,
    ) -> Result<Subject, String> {
        let list = DeviceList::new().map_err(|error| error.to_string())?;
        if let Some(absence) = list.absence() {
            return Err(absence.to_string());
        }
        let device = match device {
            Some(name) => list.find(name).map_err(|error| error.to_string())?,
            None => list.iter().next().ok_or("there is no device")?,
        };
        let context = device.open().map_err(|error| error.to_string())?;
        Subject::on(&context, solicited, loops)
    }

    fn on(context: &Context, solicited: bool, loops: Loops) -> Result<Subject, String> {
        let rows = context.gids().cached();
        let row = rows.rows().iter().find(|row| row.ipv4().is_some()).or(rows.rows().first());
        let row = *row.ok_or_else(|| format!("{}: no GID", context.device().name()))?;
        let made = || -> Result<Subject, Error> {
            let pd = ProtectionDomain::new(context)?;
            let channel = CompletionChannel::new(context)?;
            let cq = CompletionQueue::builder(context, 64).channel(&channel).build()?;
            let pool = Pool::new(&pd, 64, 2)?;
            let qp = QueuePair::rc(&pd, &cq, &cq).send_depth(4).recv_depth(4).build()?;
            let qp = qp.init(&InitOptions::new(row.port()))?;
            let options = ConnectOptions::new(&row);
            let itself = qp.endpoint(&options)?;
            let qp = qp.connect(&itself, &options)?;
            let device = context.device().name().to_owned();
            let notify = if solicited { Notify::Solicited } else { Notify::Any };
            Ok(Subject { qp, pool, cq, channel, device, notify, loops })
        };
        made().map_err(|error| error.to_string())
    }

    /// A message goes around, and its completions are taken: the queue was used, and is empty.
    pub(crate) fn go_around(&mut self) -> Result<(), String> {
        let (Some(receive), Some(send)) = (self.pool.take(), self.pool.take()) else {
            return Err("a buffer is still out".into());
        };
        let (sends, receives) = self.qp.queues();
        receives.post(Receive::new(receive)).map_err(|error| error.to_string())?;
        sends.post(Send::new(send).signaled()).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        let mut left = 2;
        while left > 0 {
            if begun.elapsed() > PATIENCE {
                return Err(format!("{}: a message to itself does not arrive", self.device));
            }
            let mut drain = self.cq.poll().map_err(|error| error.to_string())?;
            while let Some(completion) = drain.next() {
                completion.result().map_err(|error| error.to_string())?;
                left -= 1;
            }
        }
        // That it came: the events there are would fill the channel.
        self.channel.process_events().map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Calls so often, one after the other, and nothing else.
    #[inline(never)]
    pub(crate) fn call(&mut self, call: Call, calls: u64) -> Result<(), String> {
        let solicited = self.notify == Notify::Solicited;
        let notify = self.notify;
        let outcome = match call {
            Call::Raw => return answer(self.loops.request(&mut self.cq, solicited, calls)),
            Call::RawPoll => {
                return answer(self.loops.request_and_poll(&mut self.cq, solicited, calls));
            }
            Call::Ours => in_eights(calls, || self.cq.request_notify(notify)),
            Call::Arm => in_eights(calls, || self.cq.arm(notify).map(drop)),
        };
        outcome.map_err(|error| error.to_string())
    }

    /// The same, with the counter read before and after each; `each` gets the difference.
    #[inline(never)]
    pub(crate) fn call_singly(
        &mut self,
        call: Call,
        calls: u64,
        mut each: impl FnMut(u64),
    ) -> Result<(), String> {
        let solicited = self.notify == Notify::Solicited;
        let (cq, notify) = (&mut self.cq, self.notify);
        match call {
            Call::Raw => singly(calls, &mut each, || answer(raw::request(cq, solicited))),
            Call::RawPoll => {
                singly(calls, &mut each, || answer(raw::request_and_poll(cq, solicited)))
            }
            Call::Ours => singly(calls, &mut each, || told(cq.request_notify(notify))),
            Call::Arm => singly(calls, &mut each, || told(cq.arm(notify).map(drop))),
        }
    }
}

/// Calls so often. Eight times in a row: what a loop of one call takes is decided by where it happens to
/// lie in memory. The raw loops do the same.
#[inline(always)]
pub(crate) fn in_eights<E>(calls: u64, mut call: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    for _ in 0..calls / 8 {
        call()?;
        call()?;
        call()?;
        call()?;
        call()?;
        call()?;
        call()?;
        call()?;
    }
    for _ in 0..calls % 8 {
        call()?;
    }
    Ok(())
}

#[inline(always)]
fn singly(
    calls: u64,
    each: &mut impl FnMut(u64),
    mut call: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    for _ in 0..calls {
        let begun = raw::cycles();
        let done = call();
        let ended = raw::cycles();
        done?;
        each(ended.wrapping_sub(begun));
    }
    Ok(())
}

#[inline(always)]
fn told(outcome: Result<(), Error>) -> Result<(), String> {
    match outcome {
        Ok(()) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// What a raw call returned.
#[inline(always)]
fn answer(returned: i32) -> Result<(), String> {
    if returned == 0 { Ok(()) } else { Err(failed(returned)) }
}

#[cold]
fn failed(returned: i32) -> String {
    format!("a raw call returned {returned}")
}
