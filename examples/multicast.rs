//! Sends datagrams to a multicast group, or receives what is sent there: one sender, any number of receivers.
//!
//! All join the group through the connection manager, which tells the network, and what a datagram to it must carry.
//! A receiver attaches its queue pair besides, which tells the device; a sender needs an address handle.

#![forbid(unsafe_code)]

#[path = "common/args.rs"]
#[allow(dead_code)] // an MTU and a port are none of its options
mod args;
mod common;

use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_verbs::cm::EventChannel;
use rdma_verbs::transport::Ud;
use rdma_verbs::wr::{Datagram, Inline, Receive};
use rdma_verbs::{
    AddressHandle, CompletionQueue, Grh, Pool, ProtectionDomain, Qpn, QueuePair, Result, Rts, cm,
};

const PROGRAM: &str = "multicast";
/// The longest text, and how many are received at a time.
const LONGEST: usize = 256;
const DEPTH: u32 = 64;

/// Sends texts to a multicast group, or receives and prints what is sent there
#[derive(Parser, Clone)]
#[command(version)]
pub(crate) struct Options {
    /// This host's address, of the interface of an RDMA device
    here: IpAddr,
    /// The group's address, such as 239.1.2.3
    group: IpAddr,
    /// Sends this text; without it, receives
    #[arg(long, value_name = "TEXT")]
    send: Option<String>,
    /// Two receivers and a sender in one process
    #[arg(long, requires = "send")]
    both: bool,
    /// How many datagrams to send, or to receive
    #[arg(short = 'n', long, default_value_t = 4)]
    count: u32,
    /// When to give up, with exit 1
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = args::parse_timeout)]
    timeout: Duration,
}

fn main() -> ExitCode {
    let options = Options::parse();
    common::exit(PROGRAM, run(&options).and_then(|output| common::print(&output)))
}

/// Does what is asked, and gives what to print.
pub(crate) fn run(options: &Options) -> std::result::Result<String, String> {
    let deadline = Instant::now() + options.timeout;
    let text = options.send.as_deref().unwrap_or_default();
    if text.len() > LONGEST {
        return Err(format!("--send: a text of {} bytes: at most {LONGEST}", text.len()));
    }
    let end = End::new(options).map_err(|error| error.to_string())?;
    let done = if options.both {
        both(options, text, end, deadline)
    } else if options.send.is_some() {
        send(options, text, end, deadline)
    } else {
        receive(options, end, deadline)
    };
    done.map_err(|error| error.to_string())
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A queue pair that can send to the group, with its memory.
struct End {
    queue_pair: QueuePair<Rts, Ud>,
    cq: CompletionQueue,
    pool: Pool,
    group: cm::MulticastGroup,
}

impl End {
    fn new(options: &Options) -> Result<End> {
        let group = EventChannel::new()?.join(options.here, options.group, options.timeout)?;
        let pd = ProtectionDomain::new(&group.context()?)?;
        let cq = CompletionQueue::new(&group.context()?, 2 * DEPTH)?;
        let pool = Pool::new(&pd, Grh::LEN + LONGEST, DEPTH as usize + 1)?;
        let queue_pair = QueuePair::ud(&pd, &cq, &cq).send_depth(DEPTH).recv_depth(DEPTH);
        let mut queue_pair = group.init(queue_pair.max_inline(64).build()?)?;
        while let Some(buffer) = pool.take().filter(|_| queue_pair.recv_queue().in_flight() < DEPTH)
        {
            queue_pair.recv_queue().post(Receive::new(buffer))?;
        }
        Ok(End { queue_pair: queue_pair.activate()?, cq, pool, group })
    }

    /// Sends the text to the group, and waits until it is sent.
    fn send(&mut self, text: &str, deadline: Instant) -> std::result::Result<(), Failure> {
        let pd = self.queue_pair.protection_domain();
        let to = AddressHandle::new(pd, &self.group.address()?)?;
        let qkey = self.group.qkey();
        let inline = self.queue_pair.limits().max_inline as usize;
        let queue = self.queue_pair.send_queue();
        if text.len() <= inline {
            let message = Inline(text.as_bytes());
            let datagram = Datagram::new(message, &to, Qpn::MULTICAST, qkey).signaled();
            queue.post(datagram).map_err(rdma_verbs::Error::from)?;
        } else if let Some(mut message) = self.pool.take() {
            message.fill_from(text.as_bytes())?;
            let datagram = Datagram::new(message, &to, Qpn::MULTICAST, qkey).signaled();
            queue.post(datagram).map_err(rdma_verbs::Error::from)?;
        }
        self.wait("the datagram is not sent", deadline, |opcode, _| !opcode.is_receive())
    }

    /// Polls until a completion is what is waited for; what is received is received anew.
    fn wait(
        &mut self,
        what: &str,
        deadline: Instant,
        mut ends: impl FnMut(rdma_verbs::WcOpcode, Option<(Qpn, &[u8])>) -> bool,
    ) -> std::result::Result<(), Failure> {
        loop {
            let mut ended = false;
            let mut drain = self.cq.poll()?;
            while let Some(completion) = drain.next() {
                completion.result()?;
                let (opcode, source) = (completion.opcode(), completion.datagram());
                let Some(buffer) = completion.into_buffer() else {
                    ended |= ends(opcode, None);
                    continue;
                };
                let message = source.zip(Grh::split(&buffer));
                ended |= ends(opcode, message.map(|(source, (_, text))| (source.qpn, text)));
                if source.is_some() {
                    self.queue_pair.recv_queue().post(Receive::new(buffer))?;
                }
            }
            if ended {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("{what} within the time (--timeout)").into());
            }
            std::thread::yield_now();
        }
    }
}

fn send(
    options: &Options,
    text: &str,
    mut end: End,
    deadline: Instant,
) -> std::result::Result<String, Failure> {
    (0..options.count).try_for_each(|_| end.send(text, deadline))?;
    Ok(format!("{} datagrams sent to {}\n", options.count, options.group))
}

fn receive(
    options: &Options,
    mut end: End,
    deadline: Instant,
) -> std::result::Result<String, Failure> {
    let _attached = end.group.attach(&end.queue_pair)?;
    let (mut output, mut left) = (String::new(), options.count);
    while left > 0 {
        end.wait("the next datagram did not come", deadline, |_, message| {
            let Some((from, text)) = message.filter(|_| left > 0) else { return false };
            left -= 1;
            let _ = writeln!(output, "{from}: {}", String::from_utf8_lossy(text));
            true
        })?;
    }
    Ok(output)
}

/// Each of two receivers gets everything, from a sender that is not attached.
fn both(
    options: &Options,
    text: &str,
    mut sender: End,
    deadline: Instant,
) -> std::result::Result<String, Failure> {
    let mut receivers = Vec::new();
    for _ in 0..2 {
        let end = End::new(options)?;
        let attached = end.group.attach(&end.queue_pair)?;
        receivers.push((end, attached));
    }
    let mut output = String::new();
    for _ in 0..options.count {
        sender.send(text, deadline)?;
        for (number, (end, _)) in receivers.iter_mut().enumerate() {
            end.wait("a receiver did not get it", deadline, |_, message| {
                let Some((from, text)) = message else { return false };
                let text = String::from_utf8_lossy(text);
                let _ = writeln!(output, "receiver {number}: {from}: {text}");
                true
            })?;
        }
    }
    Ok(output)
}
