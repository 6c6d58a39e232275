//! The client: addresses are looked up, paths resolved, queue pairs made and connected.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::{
    ConnectOptions, Connected, Connecting, Connector, Destination, DeviceList, GidDirectory, Init,
    InitOptions, Offer, Path, QueuePair, Resolver, Rts,
};

use super::super::options::{GidLookup, Resolving};
use super::super::parts::Parts;
use super::super::{Run, Step, TICK, text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Finder;
use super::waiting::Waiting;

/// So many are connected at a time.
const AT_A_TIME: usize = 64;

/// A queue pair that can be connected, and how.
type Ready = (QueuePair<Init>, Offer);

pub(crate) fn run(run: &mut Run<'_>, to: SocketAddr) -> Result<(), String> {
    let directory = GidDirectory::open().map_err(text)?;
    let resolver = Resolver::open(&directory).map_err(text)?;
    let count = (0..run.options.connections).collect();
    let destination = Destination::from(to);
    let destination = match run.options.bind {
        Some(at) => {
            let lookup = run.how.gid_lookup.unwrap_or(GidLookup::Cached);
            let finder = Finder::new(&directory, &resolver).with(lookup).map_err(text)?;
            // Once before, and without what it gives: what memory has to be there first is no part of it.
            finder.find(at).map_err(text)?;
            run.each(Step::BindAddr, count, |_| finder.find(at).map(drop).map_err(text))?;
            destination.source(at)
        }
        None => destination,
    };
    let cold = run.how.resolve == Some(Resolving::Cold);
    if !cold && !run.ends_before(Step::ResolveAddr) {
        resolver.resolve(&destination, run.deadline.step()).map_err(text)?;
    }
    let (count, patience) = ((0..run.options.connections).collect(), run.deadline.step());
    let paths = run.each(Step::ResolveAddr, count, |_| match cold {
        true => resolver.fresh(&destination, patience).map_err(text),
        false => resolver.resolve(&destination, patience).map_err(text),
    })?;
    let ready = make(run, paths)?;
    let connected = connect(run, &resolver, to, ready, cold)?;
    end(run, connected)
}

/// Queue pairs, each on the device that its path begins at.
fn make(run: &mut Run<'_>, paths: Vec<Path>) -> Result<Vec<Ready>, String> {
    let list = DeviceList::new().map_err(text)?;
    let mut parts: HashMap<Arc<str>, Parts> = HashMap::new();
    let connections = run.options.connections;
    for path in &paths {
        if !parts.contains_key(&path.gid.device) {
            let context = list.find(&path.gid.device).and_then(|device| device.open());
            let made = context.and_then(|context| Parts::new(context, connections));
            parts.insert(Arc::clone(&path.gid.device), made.map_err(text)?);
        }
    }
    let bind = run.options.bind;
    run.each(Step::CreateQp, paths, |path| {
        let parts = parts.get_mut(&path.gid.device).ok_or("a device without parts")?;
        let queue_pair = parts.queue_pair().map_err(text)?;
        let queue_pair = queue_pair.init(&InitOptions::new(path.gid.port)).map_err(text)?;
        let offer = Offer::new(ConnectOptions::new(&path.gid.row));
        let offer = match bind {
            Some(at) => offer.local_address(at, path.ifindex),
            None => offer,
        };
        Ok((queue_pair, offer))
    })
}

/// Connects them, many at a time.
fn connect(
    run: &mut Run<'_>,
    resolver: &Resolver,
    to: SocketAddr,
    ready: Vec<Ready>,
    cold: bool,
) -> Result<Vec<Connected>, String> {
    if run.ends_before(Step::Connect) {
        return Ok(Vec::new());
    }
    let connector = Connector::new(resolver);
    let mut waiting = Waiting::new()?;
    let mut under_way: Vec<Option<(Instant, Connecting)>> = Vec::new();
    under_way.resize_with(AT_A_TIME.min(ready.len()), || None);
    let mut free: Vec<usize> = (0..under_way.len()).collect();
    let mut connected = Vec::with_capacity(ready.len());
    let mut lap = run.begin(Step::Connect, ready.len());
    let mut ready = ready.into_iter();
    loop {
        let mut moved = Vec::new();
        while let Some(slot) = free.pop() {
            let Some((queue_pair, offer)) = ready.next() else { break };
            let begun = Instant::now();
            let mut connecting = connector.start(to, queue_pair, offer, lap.left());
            if connecting.advance().is_ready() {
                moved.push(slot);
            } else {
                waiting.add(&connecting, slot)?;
            }
            under_way[slot] = Some((begun, connecting));
        }
        if under_way.iter().all(Option::is_none) {
            break;
        }
        if moved.is_empty() {
            moved = waiting.wait(TICK.min(lap.left()))?;
            if moved.is_empty() {
                // Those whose time is over.
                moved = (0..under_way.len()).collect();
            }
        }
        for slot in moved {
            if cold {
                resolver.forget();
            }
            let Some((begun, mut connecting)) = under_way[slot].take() else { continue };
            if connecting.advance().is_pending() {
                under_way[slot] = Some((begun, connecting));
                continue;
            }
            waiting.remove(&connecting);
            match connecting.finish() {
                Ok(done) => {
                    lap.done(begun.elapsed());
                    connected.push(done);
                }
                Err(error) => run.fail(Step::Connect, text(error)),
            }
            free.push(slot);
            run.show(&lap);
        }
    }
    run.end(lap);
    Ok(connected)
}

/// As the peer is told by rdma_cm: it hears that this end has gone, and says that it has, too.
fn end(run: &mut Run<'_>, connected: Vec<Connected>) -> Result<(), String> {
    let begin = |connected: Connected, _| {
        let (queue_pair, stream): (QueuePair<Rts>, TcpStream) =
            (connected.queue_pair, connected.stream);
        drop(queue_pair);
        stream.shutdown(Shutdown::Write).map_err(|error| error.to_string())?;
        Ok(stream)
    };
    let ended = run.begun(Step::Disconnect, connected, begin, |stream, left| {
        heard_end(&stream, left)?;
        Ok((stream, None))
    });
    run.each(Step::Destroy, ended, |stream| {
        drop(stream);
        Ok(())
    })?;
    Ok(())
}

/// Waits until the peer has ended it, too. Most have when they are asked.
fn heard_end(stream: &TcpStream, left: Duration) -> Result<(), String> {
    let until = Instant::now() + left;
    loop {
        match recv(stream, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(()),
            Ok(_) => return Err("the peer sent something".into()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.to_string()),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("the peer has not answered in time".into());
        }
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(format!("poll: {errno}")),
        }
    }
}
