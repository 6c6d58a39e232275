//! The measured part: to and fro, as C's programs do it.

use std::time::{Duration, Instant};

use rdma_verbs::{Buffer, Completion, Notify, Result, Rts};

use super::Options;
use super::end::{End, HEADER, Sends, Target};
use super::receives::expected;
use super::stamps::{Apart, Stamps};
use super::tcp::Deadline;

/// The message, from when it came until it is sent.
struct Ball {
    buffer: Option<Buffer>,
    /// Whether the last one that was sent is complete.
    sent: bool,
    inline: usize,
}

/// How long it took, and what lay between the messages that came by the device's clock, if it tells that.
pub(crate) struct Played {
    pub(crate) time: Duration,
    pub(crate) apart: Option<Apart>,
}

/// Plays to the end. One end begins, and the other sends back what comes.
pub(crate) fn play(
    options: &Options,
    end: &mut End<Rts>,
    begins: bool,
    deadline: Deadline,
) -> Result<Played, String> {
    let inline = end.queue_pair.limits().max_inline as usize;
    let mut ball = Ball { buffer: None, sent: true, inline };
    if begins {
        ball.buffer = Some(end.receives.first_message().map_err(text)?);
        ball.send(end.queue_pair.send_queue(), &end.target).map_err(text)?;
    }
    let (mut received, mut sent, mut idle) = (0, 0, 0_u32);
    let (context, mut stamps) = (end.cq.context().clone(), Stamps::default());
    let begun = Instant::now();
    while received < options.iters || sent < options.iters {
        let mut drain = if options.events {
            end.cq.wait(Notify::Any, deadline.left()).map_err(text)?
        } else {
            end.cq.poll().map_err(text)?
        };
        let (sends, receives) = end.queue_pair.queues();
        let mut nothing = true;
        while let Some(completion) = drain.next() {
            nothing = false;
            completion.result().map_err(text)?;
            if completion.opcode().is_receive() {
                received += 1;
                stamps.came(context.limits(), completion.timestamp());
                ball.buffer = Some(message(options, completion)?);
                end.receives.one_came(receives).map_err(text)?;
            } else {
                drop(completion);
                sent += 1;
                ball.sent = true;
            }
            if ball.sent && sent < options.iters {
                ball.send(sends, &end.target).map_err(text)?;
            }
        }
        // The clock is looked at now and then: it costs as much as a poll.
        idle = if nothing { idle.wrapping_add(1) } else { idle };
        if nothing && (options.events || idle % 4096 == 0) && deadline.left().is_zero() {
            let (after, iters) = (deadline.after(), options.iters);
            return Err(format!(
                "not done within {after:?} (--timeout): {received} received and {sent} sent of {iters}"
            ));
        }
    }
    Ok(Played { time: begun.elapsed(), apart: stamps.apart(context.limits()) })
}

impl Ball {
    /// Sends what came, if it has; its buffer is then under way, or back in its pool.
    fn send(&mut self, queue: &mut Sends, target: &Target) -> Result<()> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        self.sent = false;
        target.send(queue, buffer, self.inline)
    }
}

/// What was received.
fn message(options: &Options, completion: Completion<'_>) -> Result<Buffer, String> {
    let came = completion.byte_len();
    if u64::from(came) != options.size + HEADER as u64 {
        let came = u64::from(came).saturating_sub(HEADER as u64);
        return Err(format!("{came} bytes came, not {}: --size is of both ends", options.size));
    }
    let buffer = completion.into_buffer().ok_or("a message came into no buffer")?;
    if options.chk {
        let wrong = (0..).zip(&buffer[HEADER..]).find(|(at, byte)| **byte != expected(*at));
        if let Some((at, byte)) = wrong {
            let right = expected(at);
            return Err(format!(
                "byte {at} came as {byte:#04x}, not {right:#04x}: the client needs --chk"
            ));
        }
    }
    Ok(buffer)
}

fn text(error: impl Into<rdma_verbs::Error>) -> String {
    error.into().to_string()
}
