//! One loop for all that tells of itself by a descriptor, without a thread and without an asynchronous runtime:
//! messages, asynchronous events of the device, and connections through the connection manager.
//!
//! Both ends are in this process: it connects to itself, sends itself messages, and ends the connection. What
//! there is to wait on, and what to call when it is readable, is the same in any other loop or runtime.

#![forbid(unsafe_code)]

#[path = "common/mod.rs"]
mod common;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_verbs::cm::{Accepting, Connected, Connecting, ConnectionParams, EventChannel, Listener};
use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    Buffer, CompletionChannel, CompletionQueue, Errno, Error, GidDirectory, GidQuery, Notify, Pool,
    ProtectionDomain, QueuePair, RemoteAccess, Reset, Result, WcOpcode,
};
use rustix::event::{Timespec, epoll};

/// Connects to itself and sends itself messages, all in one loop around epoll.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// The address to listen at, which has an RDMA device [default: that of the best GID]
    #[arg(long, value_name = "ADDR")]
    pub(crate) bind: Option<IpAddr>,
    /// How many messages
    #[arg(short, long, default_value_t = 1000)]
    pub(crate) messages: u64,
    /// When to give up
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) timeout: u64,
}

const STEP: Duration = Duration::from_secs(5);
const DEPTH: u32 = 8;

fn main() -> ExitCode {
    let done = run(&Options::parse()).and_then(|line| common::print(&line));
    common::exit("poll_loop", done)
}

/// What is waited on, by its number in the set.
const COMPLETIONS: u64 = 0;
const DEVICE: u64 = 1;
const MANAGER: u64 = 2;

/// How far the two ends are.
enum State {
    /// The client has asked.
    Asked(Connecting),
    /// The server has accepted.
    Accepted(Connecting, Accepting),
    /// The client has said that it is there.
    Established(Connected, Accepting),
    Talking(Connected, Connected),
    Ending(Connected, Connected),
}

/// What the messages of both ends need.
struct Parts {
    pd: ProtectionDomain,
    completions: CompletionQueue,
    pool: Pool,
    listener: Listener,
    messages: u64,
    sent: u64,
    /// Of those, whose places in the send queue are free again.
    done: u64,
    came: u64,
}

pub(crate) fn run(options: &Options) -> Result<String, String> {
    serve(options).map_err(|error| error.to_string())
}

fn serve(options: &Options) -> Result<String> {
    let begun = Instant::now();
    let mut query = GidQuery::new();
    if let Some(address) = options.bind {
        query = query.ip(address);
    }
    let choice = query.best(&GidDirectory::open()?.cached())?;
    let address = options.bind.or(choice.row.ip()).unwrap_or([127, 0, 0, 1].into());
    let manager = EventChannel::new()?;
    let listener = manager.listen((address, 0).into(), 4)?;
    let to = listener.local_addr().unwrap_or((address, 0).into());
    let id = manager.resolve(to, STEP)?;
    let context = id.context()?;
    let events = context.subscribe()?;
    let channel = CompletionChannel::new(&context)?;
    let pd = ProtectionDomain::new(&context)?;
    let builder = CompletionQueue::builder(&context, 4 * DEPTH);
    let completions = builder.channel(&channel).build()?;
    let pool = Pool::new(&pd, 64, 4 * DEPTH as usize)?;
    let messages = options.messages;
    let mut parts = Parts { pd, completions, pool, listener, messages, sent: 0, done: 0, came: 0 };
    let queue_pair = id.init(parts.queue_pair()?, RemoteAccess::default())?;
    let mut state = State::Asked(id.connect(queue_pair, &ConnectionParams::new())?);

    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(host("epoll_create1"))?;
    let sources =
        [(COMPLETIONS, channel.as_fd()), (DEVICE, context.as_fd()), (MANAGER, manager.as_fd())];
    for (number, fd) in sources {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&set, fd, data, epoll::EventFlags::IN).map_err(host("epoll_ctl"))?;
    }
    let deadline = begun + Duration::from_secs(options.timeout);
    let (mut wakes, mut lines) = (0_u64, String::new());
    loop {
        // First everything that can be done, and only then is waited.
        state = match parts.advance(state)? {
            Some(state) => state,
            None => break,
        };
        for number in ready(&set, deadline)? {
            // Each takes in all there is, without waiting.
            match number {
                COMPLETIONS => channel.process_events()?,
                DEVICE => context.process_events()?,
                _ => manager.process_events()?,
            };
        }
        while let Some(event) = events.next_event() {
            lines += &format!("event of {}: {event}\n", context.device().name());
        }
        wakes += 1;
    }
    let took = begun.elapsed().as_secs_f64();
    Ok(format!("{lines}{} messages in {took:.2} seconds, awake {wakes} times\n", parts.came))
}

/// Waits until one of the set is readable, and tells which are.
fn ready(set: &OwnedFd, deadline: Instant) -> Result<Vec<u64>> {
    let left = deadline.saturating_duration_since(Instant::now());
    let nothing =
        epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut found = [nothing; 3];
    let left = Timespec::try_from(left).ok();
    match epoll::wait(set, &mut found[..], left.as_ref()) {
        Ok(0) => Err(Error::Host { call: "epoll_wait", errno: Errno::ETIMEDOUT }),
        Ok(count) => Ok(found.iter().take(count).map(|event| event.data.u64()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
        Err(errno) => Err(host("epoll_wait")(errno)),
    }
}

impl Parts {
    /// Does what can be done without waiting; `None` when both ends have ended.
    fn advance(&mut self, mut state: State) -> Result<Option<State>> {
        const NOW: Duration = Duration::ZERO;
        loop {
            state = match state {
                State::Asked(connecting) => match self.listener.accept(NOW)? {
                    Some(request) => {
                        let queue_pair = self.queue_pair()?;
                        let mut queue_pair = request.init(queue_pair, RemoteAccess::default())?;
                        for _ in 0..2 * DEPTH {
                            queue_pair.recv_queue().post(Receive::new(self.take()?))?;
                        }
                        let accepting = request.accept(queue_pair, &ConnectionParams::new())?;
                        State::Accepted(connecting, accepting)
                    }
                    None => return Ok(Some(State::Asked(connecting))),
                },
                State::Accepted(connecting, accepting) if connecting.ready(NOW)? => {
                    State::Established(connecting.wait(NOW)?, accepting)
                }
                State::Established(client, accepting) if accepting.ready(NOW)? => {
                    State::Talking(client, accepting.wait(NOW)?)
                }
                State::Talking(mut client, mut server) => {
                    // Armed, and then drained to the end: what comes now makes the channel readable.
                    while self.talk(&mut client, &mut server)? {}
                    if self.came < self.messages {
                        return Ok(Some(State::Talking(client, server)));
                    }
                    client.connection.disconnect()?;
                    State::Ending(client, server)
                }
                State::Ending(client, server) if server.connection.is_disconnected()? => {
                    // It agrees, and the client hears that.
                    server.connection.disconnect()?;
                    if client.connection.is_disconnected()? {
                        return Ok(None);
                    }
                    return Ok(Some(State::Ending(client, server)));
                }
                waiting => return Ok(Some(waiting)),
            };
        }
    }

    /// Sends what there is room for, and takes what has come; whether that was anything.
    fn talk(&mut self, client: &mut Connected, server: &mut Connected) -> Result<bool> {
        while self.sent < self.messages.min(self.came.min(self.done) + u64::from(DEPTH)) {
            // All are still on their way.
            let Some(mut buffer) = self.pool.take() else { break };
            buffer.fill_from(&self.sent.to_be_bytes())?;
            client.queue_pair.send_queue().post(Send::new(buffer).signaled())?;
            self.sent += 1;
        }
        let mut batch = self.completions.arm(Notify::Any)?;
        let mut found = false;
        while let Some(mut completion) = batch.next() {
            completion.result()?;
            found = true;
            let (opcode, buffer) = (completion.opcode(), completion.take_buffer());
            drop(completion);
            // A sent buffer goes back to the pool, a received one to the queue.
            match (opcode, buffer) {
                (WcOpcode::RECV, Some(buffer)) => {
                    server.queue_pair.recv_queue().post(Receive::new(buffer))?;
                    self.came += 1;
                }
                _ => self.done += 1,
            }
        }
        Ok(found)
    }

    fn queue_pair(&self) -> Result<QueuePair<Reset>> {
        let builder = QueuePair::rc(&self.pd, &self.completions, &self.completions);
        builder.send_depth(DEPTH).recv_depth(2 * DEPTH).build()
    }

    fn take(&self) -> Result<Buffer> {
        let count = self.pool.count() as u64;
        let what = "the number of buffers under way";
        self.pool.take().ok_or(Error::OutOfRange { what, asked: count + 1, least: 0, most: count })
    }
}

fn host(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Host { call, errno: Errno::from_raw(errno.raw_os_error()) }
}
