//! One end's connection: what it is made of, and waiting for what comes by it.

use std::os::fd::AsFd;
use std::time::Duration;

use rdma_verbs::cm::{Connected, Connection, EventChannel};
use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    Buffer, CompletionChannel, CompletionQueue, Context, Init, Notify, Pool, ProtectionDomain,
    QueuePair, Reset, Rts, WcOpcode, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Deadline, wire};

/// Work requests on either queue: a message and a read or write at a time.
const DEPTH: u32 = 16;

pub(crate) fn text(error: impl Into<rdma_verbs::Error>) -> String {
    error.into().to_string()
}

/// What a queue pair is made of.
pub(crate) struct Parts {
    pub(crate) pd: ProtectionDomain,
    completions: CompletionChannel,
    cq: CompletionQueue,
    messages: Pool,
}

impl Parts {
    pub(crate) fn new(context: &Context) -> Result<Parts, String> {
        let pd = ProtectionDomain::new(context).map_err(text)?;
        let completions = CompletionChannel::new(context).map_err(text)?;
        let cq = CompletionQueue::builder(context, 2 * DEPTH).channel(&completions);
        let cq = cq.build().map_err(text)?;
        let messages = Pool::new(&pd, wire::LEN, 2 * DEPTH as usize).map_err(text)?;
        Ok(Parts { pd, completions, cq, messages })
    }

    pub(crate) fn queue_pair(&self) -> Result<QueuePair<Reset>, String> {
        let builder = QueuePair::rc(&self.pd, &self.cq, &self.cq);
        builder.send_depth(DEPTH).recv_depth(DEPTH).build().map_err(text)
    }

    /// With receives for what the peer sends as soon as it is connected.
    pub(crate) fn post(&self, ready: &mut QueuePair<Init>) -> Result<(), String> {
        for _ in 0..2 {
            let buffer = self.messages.take().ok_or("no buffer is left")?;
            ready.recv_queue().post(Receive::new(buffer)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn link(self, events: EventChannel, connected: Connected) -> Link {
        let Connected { connection, queue_pair, .. } = connected;
        Link { queue_pair, connection, events, parts: self, message: None, moved: None }
    }
}

/// What has come.
pub(crate) enum Came {
    /// A message.
    Message(Buffer),
    /// The memory of the read or write that is complete.
    Moved(Buffer),
    /// The peer has ended the connection.
    End,
}

/// A connection, and what its peer sends.
pub(crate) struct Link {
    // Before the connection: what is posted ends first.
    queue_pair: QueuePair<Rts>,
    connection: Connection,
    events: EventChannel,
    pub(crate) parts: Parts,
    message: Option<Buffer>,
    moved: Option<Buffer>,
}

impl Link {
    pub(crate) fn queue_pair(&mut self) -> &mut QueuePair<Rts> {
        &mut self.queue_pair
    }

    pub(crate) fn send(&mut self, message: &[u8]) -> Result<(), String> {
        let mut buffer = self.parts.messages.take().ok_or("no buffer is left")?;
        buffer.fill_from(message).map_err(text)?;
        let sends = self.queue_pair.send_queue();
        sends.post(Send::new(buffer).signaled()).map_err(|error| error.to_string())
    }

    /// The next message, or the memory of what was read or written, whichever comes first.
    pub(crate) fn next(&mut self, deadline: Deadline) -> Result<Came, String> {
        loop {
            self.take_completions()?;
            if let Some(buffer) = self.moved.take() {
                return Ok(Came::Moved(buffer));
            }
            if let Some(buffer) = self.message.take() {
                return Ok(Came::Message(buffer));
            }
            if self.connection.is_disconnected().map_err(text)? {
                return Ok(Came::End);
            }
            self.sleep(deadline)?;
        }
    }

    /// Asks for an event with the next completion, and then takes in what is there.
    fn take_completions(&mut self) -> Result<(), String> {
        let mut ended = false;
        let mut drain = self.parts.cq.arm(Notify::Any).map_err(text)?;
        while let Some(completion) = drain.next() {
            // What was under way when the peer ended the connection.
            if completion.status() == WcStatus::WR_FLUSH_ERR {
                ended = true;
                continue;
            }
            completion.result().map_err(text)?;
            match completion.opcode() {
                WcOpcode::RECV => self.message = completion.into_buffer(),
                WcOpcode::RDMA_READ | WcOpcode::RDMA_WRITE => self.moved = completion.into_buffer(),
                _ => {}
            }
        }
        if self.message.is_some() && !ended {
            // For the next one, before the peer is told anything by which it would send that.
            let buffer = self.parts.messages.take().ok_or("no buffer is left")?;
            let receives = self.queue_pair.recv_queue();
            receives.post(Receive::new(buffer)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Until a completion or an event has come.
    fn sleep(&mut self, deadline: Deadline) -> Result<(), String> {
        let left = deadline.left();
        if left == Some(Duration::ZERO) {
            return Err("the deadline has passed".into());
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let fds = [self.parts.completions.as_fd(), self.events.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(format!("poll: {errno}")),
        }
        self.parts.completions.process_events().map_err(text)?;
        self.events.process_events().map_err(text)?;
        Ok(())
    }

    /// Ends the connection, from whichever side; waits a little for the other to agree.
    pub(crate) fn end(self, deadline: Deadline) -> Result<(), String> {
        self.connection.disconnect().map_err(text)?;
        self.connection.wait_disconnected(deadline.step()).map_err(text)?;
        let Link { queue_pair, parts, .. } = self;
        let mut cq = parts.cq;
        queue_pair.finish_polling(&mut [&mut cq], deadline.step(), |_| ()).map_err(text)
    }
}
