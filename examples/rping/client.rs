//! The client: tells where its text is, waits until it was read, tells where it is to be written to, and waits
//! for that.

use std::net::SocketAddr;

use rdma_verbs::cm::{ConnectionParams, EventChannel};
use rdma_verbs::{Exposed, RemoteAccess};

use super::link::{Came, Link, Parts, text};
use super::{Deadline, Options, common, wire};

pub(crate) fn run(options: &Options, peer: SocketAddr, deadline: Deadline) -> Result<(), String> {
    let (mut link, source, sink) = connect(options, peer, deadline)?;
    let outcome = ping(options, &mut link, &source, &sink, deadline);
    options.say("ending the connection");
    outcome.and(link.end(deadline))
}

fn connect(
    options: &Options,
    peer: SocketAddr,
    deadline: Deadline,
) -> Result<(Link, Exposed, Exposed), String> {
    let channel = EventChannel::new().map_err(text)?;
    let id = channel.id().map_err(text)?;
    let step = match options.source {
        Some(source) => id
            .bind((source, 0).into())
            .map_err(text)?
            .resolve_addr(peer, deadline.step())
            .map_err(text),
        None => id.resolve_addr(peer, deadline.step()).map_err(text),
    };
    let id = step?.wait(deadline.step()).map_err(text)?;
    let id =
        id.resolve_route(deadline.step()).map_err(text)?.wait(deadline.step()).map_err(text)?;
    options.say(format_args!("{id:?}"));
    let parts = Parts::new(&id.context().map_err(text)?)?;
    let size = options.size as usize;
    let source = Exposed::new(&parts.pd, size, RemoteAccess::READ).map_err(text)?;
    let sink = Exposed::new(&parts.pd, size, RemoteAccess::WRITE).map_err(text)?;
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let mut ready = id.init(parts.queue_pair()?, access).map_err(text)?;
    parts.post(&mut ready)?;
    let connecting = id.connect(ready, &ConnectionParams::new()).map_err(text)?;
    let connected = connecting.wait(deadline.step()).map_err(text)?;
    options.say(format_args!("connected: {:?}", connected.connection));
    Ok((parts.link(channel, connected), source, sink))
}

fn ping(
    options: &Options,
    link: &mut Link,
    source: &Exposed,
    sink: &Exposed,
    deadline: Deadline,
) -> Result<(), String> {
    let size = options.size as usize;
    let (source_at, sink_at) = (wire::encode(&source.remote())?, wire::encode(&sink.remote())?);
    let mut back = vec![0; size];
    for turn in 0..options.count.unwrap_or(u64::MAX) {
        let sent = wire::text(turn, size);
        source.write(0, &sent).map_err(text)?;
        for at in [&source_at, &sink_at] {
            link.send(at)?;
            answer(link, deadline)?;
        }
        sink.read(0, &mut back).map_err(text)?;
        if options.validate && back != sent {
            let at = back.iter().zip(&sent).position(|(back, sent)| back != sent).unwrap_or(size);
            return Err(format!("turn {turn}: what came back differs from byte {at} on"));
        }
        if options.verbose {
            common::print(&format!("ping data: {}\n", wire::shown(&back)))?;
        }
    }
    Ok(())
}

/// Waits until the server says that it has done its part.
fn answer(link: &mut Link, deadline: Deadline) -> Result<(), String> {
    match link.next(deadline)? {
        Came::Message(message) => wire::decode(&message).map(|_| ()),
        Came::Moved(_) => Err("something was read or written that was not asked for".into()),
        Came::End => Err("the server has ended the connection".into()),
    }
}
