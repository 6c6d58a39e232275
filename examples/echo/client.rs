//! The clients, each a task with a queue pair of its own.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::aio::Completions;
use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    Buffer, ConnectOptions, Connector, Destination, Error, ExchangeProblem, Path, QueuePair,
    Resolver, Result, Rts, WcOpcode, aio,
};

use super::Options;
use super::cut::{Cuts, Cutter};
use super::ground::Ground;

/// How long one try to connect may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a client could not do what it was to.
type Failure = Box<dyn std::error::Error + std::marker::Send + Sync>;

/// The path to the server.
pub(crate) async fn path(
    options: &Options,
    resolver: &Resolver,
    to: SocketAddr,
    cuts: &Cuts,
) -> Result<Path> {
    let mut cutter = Cutter::new(options.cancel, options.seed);
    let to = Destination::from(to);
    loop {
        if let Some(path) = cutter.cut(cuts, aio::resolve(resolver, &to, PATIENCE)).await {
            return path;
        }
    }
}

/// One client: sends all messages, and has all of them back as they were.
pub(crate) async fn run(
    options: Arc<Options>,
    ground: Arc<Ground>,
    connector: Connector,
    to: SocketAddr,
    number: u32,
    cuts: Arc<Cuts>,
) -> Result<(), String> {
    let failed = |error: Error| format!("client {number}: {error}");
    let mut cutter = Cutter::new(options.cancel, options.seed.wrapping_add(u64::from(number) + 1));
    let mut completions = ground.completions().map_err(failed)?;
    loop {
        let trial = connect(&options, &ground, &connector, to, &mut completions);
        let (mut queue_pair, tcp) = match cutter.cut(&cuts, trial).await {
            Some(Ok(connected)) => connected,
            Some(Err(error)) if !(options.cancel && is_given_up(&error)) => {
                return Err(failed(error));
            }
            // With its queue pair.
            _ => continue,
        };
        let tcp = tcp.set_nonblocking(true).and_then(|()| tokio::net::TcpStream::from_std(tcp));
        let tcp = tcp.map_err(|error| format!("client {number}: {error}"))?;
        let mut talk = Talk { number, size: options.size as usize, sent: 0, back: 0 };
        let all =
            talk.all(&options, &ground, &mut queue_pair, &mut completions, (&mut cutter, &cuts));
        let outcome = tokio::select! {
            outcome = all => outcome.map_err(|error| format!("client {number}: {error}")),
            _ = tcp.readable() => Err(format!("client {number}: the server has gone")),
        };
        // A server that gave up before it had this end's last word: only its connection tells.
        if outcome.is_ok() || !options.cancel || talk.back != 0 {
            return outcome;
        }
    }
}

/// A try to connect.
async fn connect(
    options: &Options,
    ground: &Ground,
    connector: &Connector,
    to: SocketAddr,
    completions: &mut Completions,
) -> Result<(QueuePair<Rts>, TcpStream)> {
    // What the last one left, if it was given up.
    while completions.poll()?.next().is_some() {}
    let queue_pair = ground.queue_pair(completions)?;
    let from = ConnectOptions::on_port(ground.port);
    let patience = PATIENCE.min(options.timeout);
    let connected = aio::connect(connector, to, queue_pair, from, patience).await?;
    Ok((connected.queue_pair, connected.stream))
}

/// The server has dropped it, as it drops some.
fn is_given_up(error: &Error) -> bool {
    match error {
        Error::Exchange(fault) => matches!(
            fault.problem,
            ExchangeProblem::Closed { .. }
                | ExchangeProblem::Tcp { .. }
                | ExchangeProblem::Refused { .. }
                | ExchangeProblem::TimedOut { .. }
        ),
        _ => false,
    }
}

/// What a client has said and heard.
struct Talk {
    number: u32,
    size: usize,
    sent: u64,
    back: u64,
}

impl Talk {
    /// Sends all, and has all back.
    async fn all(
        &mut self,
        options: &Options,
        ground: &Ground,
        queue_pair: &mut QueuePair<Rts>,
        completions: &mut Completions,
        (cutter, cuts): (&mut Cutter, &Cuts),
    ) -> Result<(), Failure> {
        let mut free = Vec::new();
        for _ in 0..options.depth {
            free.push(ground.take()?);
        }
        while self.back < options.messages {
            while self.sent < options.messages.min(self.back + u64::from(options.depth)) {
                let Some(mut buffer) = free.pop() else { break };
                self.write(&mut buffer)?;
                queue_pair.send_queue().post(Send::new(buffer).signaled())?;
            }
            // Dropped before it is ready, it has taken nothing.
            let Some(batch) = cutter.cut(cuts, completions.next_batch()).await else { continue };
            let mut batch = batch?;
            while let Some(mut completion) = batch.next() {
                completion.result()?;
                let Some(buffer) = completion.take_buffer() else { continue };
                let opcode = completion.opcode();
                // Its place in the queue is free from here on.
                drop(completion);
                if opcode == WcOpcode::RECV {
                    self.read(&buffer)?;
                    queue_pair.recv_queue().post(Receive::new(buffer))?;
                } else {
                    free.push(buffer);
                }
            }
        }
        Ok(())
    }

    /// The next message.
    fn write(&mut self, buffer: &mut Buffer) -> Result<()> {
        buffer.set_len(self.size)?;
        let byte = self.byte(self.sent);
        buffer.fill(byte);
        buffer[..8].copy_from_slice(&self.sent.to_be_bytes());
        self.sent += 1;
        Ok(())
    }

    /// What came back: the oldest that has not.
    fn read(&mut self, message: &[u8]) -> Result<(), Failure> {
        let byte = self.byte(self.back);
        let same = message.len() == self.size
            && message[..8] == self.back.to_be_bytes()
            && message[8..].iter().all(|there| *there == byte);
        if !same {
            return Err(format!("message {} came back as another", self.back).into());
        }
        self.back += 1;
        Ok(())
    }

    fn byte(&self, message: u64) -> u8 {
        (u64::from(self.number) * 31 + message) as u8
    }
}
