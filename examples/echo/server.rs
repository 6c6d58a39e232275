//! The server: a task for each client.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::wr::{Receive, Send};
use rdma_verbs::{
    ConnectOptions, Drain, Incoming, QueuePair, RefuseReason, Result, Rts, WcOpcode, aio,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cut::{Cuts, Cutter};
use super::ground::Ground;
use super::{Options, common};

/// How long a client may take to be connected.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the server has done.
#[derive(Default)]
pub(crate) struct Served {
    pub(crate) connections: u64,
    pub(crate) messages: u64,
}

/// Serves whoever comes, until it is told to stop or `stop` is dropped; then those that are there to
/// their end.
pub(crate) async fn run(
    options: &Options,
    ground: Arc<Ground>,
    mut listener: aio::Listener,
    mut stop: watch::Receiver<bool>,
    cuts: Arc<Cuts>,
) -> Result<Served, String> {
    let (mut served, mut clients) = (Served::default(), JoinSet::new());
    let mut cutter = Cutter::new(options.cancel, options.seed);
    let mut came = 0_u64;
    loop {
        let incoming = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = clients.join_next() => {
                served.count(ended.map_err(|error| error.to_string())?);
                continue;
            }
            incoming = cutter.cut(&cuts, listener.accept()) => incoming,
        };
        match incoming {
            Some(Ok(incoming)) => {
                came += 1;
                let cutter = Cutter::new(options.cancel, options.seed.wrapping_add(came << 32));
                clients.spawn(client(Arc::clone(&ground), incoming, cutter, Arc::clone(&cuts)));
            }
            // About one client, who went away; or about descriptors, of which there are more soon.
            Some(Err(error)) => {
                if !options.cancel {
                    common::note("echo", error);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            None => {}
        }
    }
    while let Some(ended) = clients.join_next().await {
        served.count(ended.map_err(|error| error.to_string())?);
    }
    Ok(served)
}

impl Served {
    fn count(&mut self, ended: Result<Option<u64>>) {
        match ended {
            Ok(Some(messages)) => {
                self.connections += 1;
                self.messages += messages;
            }
            // It was not connected, and the client knows.
            Ok(None) => {}
            Err(error) => common::note("echo", error),
        }
    }
}

/// One client, from its request to its end: how many messages were sent back.
async fn client(
    ground: Arc<Ground>,
    incoming: Incoming,
    mut cutter: Cutter,
    cuts: Arc<Cuts>,
) -> Result<Option<u64>> {
    let mut completions = ground.completions()?;
    let queue_pair = match ground.queue_pair(&completions) {
        Ok(queue_pair) => queue_pair,
        Err(error) => {
            incoming.refuse(RefuseReason::BUSY, &error.to_string());
            return Ok(None);
        }
    };
    let options = ConnectOptions::on_port(ground.port);
    let accepting = incoming.start(queue_pair, options, PATIENCE);
    let Some(Ok(connected)) = cutter.cut(&cuts, accepting.into_future()).await else {
        return Ok(None);
    };
    let mut queue_pair = connected.queue_pair;
    // Closed when the client has what it wants.
    let Ok(tcp) = open(connected.stream) else { return Ok(None) };
    let mut messages = 0;
    loop {
        tokio::select! {
            batch = cutter.cut(&cuts, completions.next_batch()) => {
                if let Some(batch) = batch {
                    messages += echo(batch?, &mut queue_pair)?;
                }
            }
            _ = tcp.readable() => return Ok(Some(messages)),
        }
    }
}

fn open(stream: TcpStream) -> std::io::Result<tokio::net::TcpStream> {
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}

/// Sends back what has come, in its own buffers, which are received into again when that is done.
fn echo(mut batch: Drain<'_>, queue_pair: &mut QueuePair<Rts>) -> Result<u64> {
    let mut messages = 0;
    while let Some(mut completion) = batch.next() {
        // Flushed: the client went away, and its connection tells.
        let (true, Some(buffer)) = (completion.is_success(), completion.take_buffer()) else {
            continue;
        };
        let opcode = completion.opcode();
        // Its place in the queue is free from here on.
        drop(completion);
        if opcode == WcOpcode::RECV {
            queue_pair.send_queue().post(Send::new(buffer).signaled())?;
            messages += 1;
        } else {
            queue_pair.recv_queue().post(Receive::new(buffer))?;
        }
    }
    Ok(messages)
}
