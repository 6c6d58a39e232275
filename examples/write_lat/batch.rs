//! Messages per second: writes in one direction, so many for one doorbell.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Write};
use rdma_verbs::{CompletionQueue, RemoteSlice, Result, Rts, SendQueue, SharedBuffer};

use super::end::{DEPTH, End};
use super::exchange::Peer;
use super::options::MOST;
use super::play::{now, spin, text};
use super::stats::Samples;

/// What was done.
pub(crate) struct Rate {
    pub(crate) messages: u64,
    pub(crate) doorbells: u64,
    pub(crate) seconds: f64,
}

/// How often the server hears that there is more: it waits no longer than its timeout.
const NEWS: Duration = Duration::from_millis(200);

/// What stays the same from one batch to the next.
struct Load<'a> {
    inline: Option<&'a [u8]>,
    shared: &'a SharedBuffer,
    to: RemoteSlice,
    batch: u32,
}

/// Writes so many messages, rounded up to whole batches. A sample is the time from when a batch is complete
/// until the next one is.
pub(crate) fn run(
    (size, batch, iters): (usize, u32, u32),
    timeout: Duration,
    end: &mut End<Rts>,
    peer: &mut Peer,
    to: RemoteSlice,
    samples: &mut Samples,
) -> Result<Rate, String> {
    let End { queue_pair, send_cq, message, inline, .. } = end;
    let messages = u64::from(iters).next_multiple_of(batch.into());
    let mut buffer = message.take().ok_or("the message is not there")?;
    buffer.set_len(size).map_err(text)?;
    let bytes = buffer.get(..*inline as usize).map_or_else(|| buffer.to_vec(), |_| Vec::new());
    let shared = buffer.freeze();
    let inline = (size <= *inline as usize).then_some(&*bytes);
    let load = Load { inline, shared: &shared, to: to.slice(0, size as u64).map_err(text)?, batch };
    let queue = queue_pair.send_queue();
    let (mut posted, mut complete, mut doorbells) = (0, 0, 0);
    let (begun, mut told) = (now(), Instant::now());
    let mut last = begun;
    while complete < messages {
        while posted < messages && posted - complete + u64::from(batch) <= DEPTH.into() {
            load.post(queue).map_err(text)?;
            posted += u64::from(batch);
            doorbells += 1;
            if doorbells % 256 == 0 && told.elapsed() > NEWS {
                told = Instant::now();
                peer.tell_progress(false).map_err(|error| error.to_string())?;
            }
        }
        let done = spin(timeout, || {
            let before = complete;
            complete += reap(send_cq, |time| {
                samples.record(time.saturating_sub(last));
                last = time;
            })?;
            Ok(complete > before)
        });
        done.map_err(|why| why.of("answered", complete as u32 + 1, messages as u32))?;
    }
    *message = shared.try_unfreeze().ok();
    Ok(Rate { messages, doorbells, seconds: last.saturating_sub(begun) as f64 / 1e9 })
}

impl Load<'_> {
    /// One batch, of which the last asks for a completion.
    #[inline]
    fn post(&self, queue: &mut SendQueue) -> Result<()> {
        let mut requests = queue.batch::<MOST>();
        for left in (0..self.batch).rev() {
            match self.inline {
                Some(bytes) => {
                    let write = Write::new(Inline(bytes), self.to);
                    requests.push(if left == 0 { write.wr_id(1).signaled() } else { write })?;
                }
                None => {
                    let write = Write::new(self.shared.clone(), self.to);
                    requests.push(if left == 0 { write.wr_id(1).signaled() } else { write })?;
                }
            }
        }
        Ok(requests.post()?)
    }
}

/// How many are complete. Of the last of each batch the time is told.
#[inline]
fn reap(cq: &mut CompletionQueue, mut batch_done: impl FnMut(u64)) -> Result<u64> {
    let mut count = 0;
    let mut drain = cq.poll()?;
    while let Some(completion) = drain.next() {
        completion.result()?;
        count += 1;
        if completion.wr_id() == 1 {
            batch_done(now());
        }
    }
    Ok(count)
}
