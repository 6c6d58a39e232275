//! The measured part: a write to and fro, as perftest's `ib_write_lat` does it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Receive, Write};
use rdma_verbs::{Buffer, CompletionQueue, Error, RemoteSlice, Rts, SendQueue};
use rustix::time::{ClockId, clock_gettime};

use super::end::End;
use super::stats::Samples;

/// What is to be done.
pub(crate) struct Work {
    pub(crate) size: usize,
    pub(crate) iters: u32,
    /// Whether this end posts the first write: the server's does.
    pub(crate) begins: bool,
    pub(crate) imm: bool,
    pub(crate) timeout: Duration,
}

/// The time of a clock that nobody sets or slows (`CLOCK_MONOTONIC_RAW`), in ns.
#[inline]
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicRaw);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Plays to the end. A sample is the time from one post of this end to its next: a round trip. In the first of
/// the end that begins, the other one may not have come yet: it is none.
pub(crate) fn play(
    work: &Work,
    end: &mut End<Rts>,
    to: RemoteSlice,
    samples: &mut Samples,
) -> Result<(), String> {
    let &Work { size, iters, begins, imm, timeout } = work;
    let End { queue_pair, send_cq, recv_cq, incoming, message, inline, .. } = end;
    let (sends, receives) = queue_pair.queues();
    let to = to.slice(0, size as u64).map_err(text)?;
    let last = incoming.atomic_u8(size - 1).map_err(text)?;
    let inline = size <= *inline as usize;
    if let Some(message) = message {
        message.set_len(size).map_err(text)?;
    }
    let (mut sent, mut received, mut before) = (0_u32, 0_u32, None);
    while sent < iters || received < iters {
        if received < iters && (sent > 0 || !begins) {
            received += 1;
            if imm {
                complete(recv_cq, timeout, None).map_err(|why| why.of("seen", received, iters))?;
                receives.post(Receive::new(())).map_err(text)?;
            } else {
                // The last byte of what the peer writes counts on.
                let came = || Ok(last.load(Ordering::Acquire) == received as u8);
                spin(timeout, came).map_err(|why| why.of("seen", received, iters))?;
            }
        }
        if sent < iters {
            sent += 1;
            let time = now();
            let round = before.replace(time).filter(|_| sent > 2 || !begins);
            if let Some(before) = round {
                samples.record(time.saturating_sub(before));
            }
            if let Some(last) = message.as_deref_mut().and_then(|bytes| bytes.last_mut()) {
                *last = sent as u8;
            }
            post(sends, message, inline, imm, to).map_err(text)?;
            complete(send_cq, timeout, Some(message))
                .map_err(|why| why.of("answered", sent, iters))?;
        }
    }
    Ok(())
}

/// Posts the message. Unless it is inline it is the queue's until it is complete.
#[inline]
fn post(
    queue: &mut SendQueue,
    message: &mut Option<Buffer>,
    inline: bool,
    imm: bool,
    to: RemoteSlice,
) -> Result<(), Error> {
    match (inline, message.take()) {
        (true, Some(buffer)) => {
            let write = Write::new(Inline(&buffer), to).signaled();
            queue.post(if imm { write.imm(0) } else { write })?;
            *message = Some(buffer);
        }
        (false, Some(buffer)) => {
            let write = Write::new(buffer, to).signaled();
            queue.post(if imm { write.imm(0) } else { write })?;
        }
        (_, None) => {}
    }
    Ok(())
}

/// Waits for a completion, which gives the message back.
#[inline]
fn complete(
    cq: &mut CompletionQueue,
    timeout: Duration,
    mut message: Option<&mut Option<Buffer>>,
) -> Result<(), Stopped> {
    spin(timeout, || {
        let mut drain = cq.poll()?;
        let Some(mut completion) = drain.next() else { return Ok(false) };
        completion.result()?;
        if let (Some(message), Some(buffer)) = (&mut message, completion.take_buffer()) {
            **message = Some(buffer);
        }
        Ok(true)
    })
}

/// Waits until it is so. The clock is looked at now and then: it costs as much as a look.
#[inline]
pub(crate) fn spin(
    timeout: Duration,
    mut is_so: impl FnMut() -> Result<bool, Error>,
) -> Result<(), Stopped> {
    let mut begun = None;
    loop {
        for _ in 0..4096 {
            if is_so().map_err(Stopped::Failed)? {
                return Ok(());
            }
        }
        if begun.get_or_insert_with(Instant::now).elapsed() > timeout {
            return Err(Stopped::TimedOut(timeout));
        }
    }
}

/// Why it did not go on.
pub(crate) enum Stopped {
    Failed(Error),
    TimedOut(Duration),
}

impl Stopped {
    /// As a line.
    #[cold]
    pub(crate) fn of(self, what: &str, number: u32, iters: u32) -> String {
        match self {
            Stopped::Failed(error) => format!("write {number} of {iters}: {error}"),
            Stopped::TimedOut(after) => format!(
                "write {number} of {iters} was not {what} within {after:?} (--timeout): the peer is gone, or \
                 has another --size or --iters"
            ),
        }
    }
}

pub(crate) fn text(error: impl Into<Error>) -> String {
    error.into().to_string()
}
