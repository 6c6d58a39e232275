//! The server: reads a client's text, says so, and writes it where the client says.

use std::time::Duration;

use rdma_verbs::cm::{ConnectionParams, ConnectionRequest, Listener};
use rdma_verbs::wr::{Read, Write};
use rdma_verbs::{Buffer, Pool, RemoteAccess, RemoteSlice};

use super::link::{Came, Link, Parts, text};
use super::{Deadline, Options, common, wire};

pub(crate) fn run(
    options: &Options,
    listener: &Listener,
    deadline: Deadline,
) -> Result<(), String> {
    options.say(format_args!("{listener:?}"));
    std::thread::scope(|scope| {
        loop {
            let left = deadline.left().unwrap_or(Duration::MAX);
            let request = listener.accept(left).map_err(text)?;
            let request = request.ok_or("no client has come before the deadline")?;
            options.say(format_args!("{request:?}"));
            if !options.persistent {
                return serve(options, request, deadline);
            }
            scope.spawn(move || {
                // One client's failure is not the others'.
                if let Err(error) = serve(options, request, deadline) {
                    common::note("rping", error);
                }
            });
        }
    })
}

fn serve(options: &Options, request: ConnectionRequest, deadline: Deadline) -> Result<(), String> {
    let channel = request.channel();
    let parts = Parts::new(&request.context().map_err(text)?)?;
    let mut ready = request.init(parts.queue_pair()?, RemoteAccess::default()).map_err(text)?;
    parts.post(&mut ready)?;
    let accepting = request.accept(ready, &ConnectionParams::new()).map_err(text)?;
    let connected = accepting.wait(deadline.step()).map_err(text)?;
    options.say(format_args!("connected: {:?}", connected.connection));
    let mut link = parts.link(channel, connected);
    let outcome = echo(options, &mut link, deadline);
    options.say("the connection has ended");
    outcome.and(link.end(deadline))
}

/// Until the client ends it.
fn echo(options: &Options, link: &mut Link, deadline: Deadline) -> Result<(), String> {
    let mut memory: Option<Pool> = None;
    let mut turns = 0;
    while options.count.is_none_or(|count| turns < count) || options.persistent {
        let Some(source) = told(link, deadline)? else { break };
        let data = buffer(link, &mut memory, source.len())?;
        let read = Read::new(data, source).signaled();
        link.queue_pair().send_queue().post(read).map_err(|error| error.to_string())?;
        let Some(data) = moved(link, deadline)? else { break };
        if options.verbose {
            common::print(&format!("server ping data: {}\n", wire::shown(&data)))?;
        }
        say_so(link)?;
        let Some(sink) = told(link, deadline)? else { break };
        let len = sink.len().min(data.len() as u64);
        let write = Write::new(data, sink.slice(0, len).map_err(text)?).signaled();
        link.queue_pair().send_queue().post(write).map_err(|error| error.to_string())?;
        let Some(_) = moved(link, deadline)? else { break };
        say_so(link)?;
        turns += 1;
    }
    // The client says when it has had enough.
    while !matches!(link.next(deadline)?, Came::End) {}
    Ok(())
}

/// Memory for a client's text, as long as that is.
fn buffer(link: &Link, memory: &mut Option<Pool>, len: u64) -> Result<Buffer, String> {
    // A length that a peer tells is not taken on trust.
    let len = usize::try_from(len).ok().filter(|len| (1..=1 << 20).contains(len));
    let len = len.ok_or("the client tells of a buffer of 0 bytes, or of more than 1 MiB")?;
    let fits = |pool: &Pool| pool.buffer_size() >= len;
    if !memory.as_ref().is_some_and(fits) {
        *memory = Some(Pool::new(&link.parts.pd, len, 1).map_err(text)?);
    }
    let mut buffer = memory.as_ref().and_then(Pool::take).ok_or("no buffer is left")?;
    buffer.set_len(len).map_err(text)?;
    Ok(buffer)
}

/// Where the client says that a buffer of its is; `None` when it has ended the connection.
fn told(link: &mut Link, deadline: Deadline) -> Result<Option<RemoteSlice>, String> {
    match link.next(deadline)? {
        Came::Message(message) => wire::decode(&message).map(Some),
        Came::Moved(_) => Err("something was read or written twice".into()),
        Came::End => Ok(None),
    }
}

/// What was read or written.
fn moved(link: &mut Link, deadline: Deadline) -> Result<Option<Buffer>, String> {
    match link.next(deadline)? {
        Came::Moved(buffer) => Ok(Some(buffer)),
        Came::Message(_) => Err("the client has sent a message out of turn".into()),
        Came::End => Ok(None),
    }
}

/// Tells the client to go on.
fn say_so(link: &mut Link) -> Result<(), String> {
    link.send(&[0; wire::LEN])
}
