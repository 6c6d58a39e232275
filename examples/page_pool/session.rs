//! What each end does, from finding the other to the end.

use std::net::TcpListener;
use std::thread;

use rdma_verbs::{Gid, GidDirectory};

use super::exchange::{self, DEPTH, Deadline, Link, Linked, Peer, Plan};
use super::local::Local;
use super::measure::measure;
use super::report::{self, Row};
use super::stop::{Stop, Watch};
use super::{Options, PROGRAM, common, receiver, say, sender, text};

/// Receives of all streams may take so much memory in each mode, and each stream has four.
const ROOM: u32 = 1 << 20;

/// What a receiver has before there is a sender.
pub(crate) struct Door {
    listener: TcpListener,
    pub(crate) port: u16,
}

impl Door {
    /// Makes it. What can be found wrong without a sender is found here.
    pub(crate) fn open(
        options: &Options,
        port: u16,
        directory: &GidDirectory,
    ) -> Result<Door, String> {
        let local = Local::choose(options, directory, None, false).map_err(text)?;
        local.warn();
        let context = local.open(options, options.longest()).map_err(text)?;
        for plan in plans(options) {
            receiver::Unconnected::new(options, &context, &plan).map_err(text)?;
        }
        let listener = exchange::listen(port).map_err(text)?;
        let port = listener.local_addr().map_err(text)?.port();
        if !options.both {
            say(options, &format!("  waiting:        TCP port {port}\n"))?;
        }
        Ok(Door { listener, port })
    }
}

/// What there is to do, size by size.
fn plans(options: &Options) -> Vec<Plan> {
    let count = options.size.len();
    let plans = options.size.iter().enumerate().map(|(number, size)| {
        let (streams, size) = (options.streams, *size as u32);
        // A power of two, or one less would be all that the last slab of pages has room for.
        let depth = 1 << (ROOM / (size.next_power_of_two() * streams)).clamp(4, DEPTH).ilog2();
        Plan { streams, size, depth, more: number + 1 < count }
    });
    plans.collect()
}

/// Receives and measures all sizes, and prints each as it comes.
pub(crate) fn receive(
    options: &Options,
    door: &Door,
    directory: &GidDirectory,
) -> Result<Vec<Row>, String> {
    let mut all = Vec::new();
    say(options, report::HEAD)?;
    for plan in plans(options) {
        let (rows, gone) = receive_one(options, &plan, door, directory)?;
        let lines: String = rows.iter().map(Row::line).collect();
        say(options, &(lines + &report::model(&rows)))?;
        all.extend(rows);
        if gone {
            break;
        }
    }
    Ok(all)
}

fn receive_one(
    options: &Options,
    plan: &Plan,
    door: &Door,
    directory: &GidDirectory,
) -> Result<(Vec<Row>, bool), String> {
    let mut peer =
        exchange::accept(&door.listener, Deadline::new(options.timeout)).map_err(text)?;
    let local = Local::choose(options, directory, peer.ip(), false).map_err(text)?;
    let context = local.open(options, options.longest()).map_err(text)?;
    let end = receiver::Unconnected::new(options, &context, plan).map_err(text)?;
    peer.tell_plan(plan).map_err(text)?;
    peer.tell(&end.endpoints(options, &local).map_err(text)?).map_err(text)?;
    let theirs = peer.hear(plan.streams).map_err(text)?;
    let end = end.connect(options, &local, plan, &theirs)?;
    peer.tell_ready().map_err(text)?;
    let (link, mut watch) = (Link::default(), Watch::new(directory, &local.device));
    // Nothing but the streams has it open from here on.
    drop(context);
    let outcome =
        linked(&link, peer, || measure(options, plan, &local.device, end, &link, &mut watch))?;
    if outcome.1 {
        note_gone(&local.device, "received");
    }
    Ok(outcome)
}

/// Sends what a receiver wants; gives the number of messages.
pub(crate) fn send(
    options: &Options,
    host: &str,
    port: u16,
    directory: &GidDirectory,
) -> Result<u64, String> {
    let local = Local::choose(options, directory, None, false).map_err(text)?;
    if !options.both {
        local.warn();
    }
    let mut sent = 0;
    loop {
        let deadline = Deadline::new(options.timeout);
        let mut peer = exchange::connect(host, port, deadline).map_err(text)?;
        let plan = peer.hear_plan().map_err(text)?;
        let theirs = peer.hear(plan.streams).map_err(text)?;
        let towards = theirs.first().and_then(|endpoint| endpoint.gid).map(Gid::ip);
        let local = Local::choose(options, directory, towards, false).map_err(text)?;
        if local.row.is_some() && theirs.iter().any(|endpoint| endpoint.gid.is_none()) {
            return Err("the receiver told no GID, which is needed here".into());
        }
        let context = local.open(options, plan.size.into()).map_err(text)?;
        let end = sender::Unconnected::new(options, &context, &plan).map_err(text)?;
        drop(context);
        let ours = end.endpoints(options, &local).map_err(text)?;
        let end = end.connect(options, &local, &plan, &theirs).map_err(text)?;
        peer.tell(&ours).map_err(text)?;
        peer.hear_ready().map_err(text)?;
        let (link, mut watch) = (Link::default(), Watch::new(directory, &local.device));
        match linked(&link, peer, || end.run(&link, &mut watch)) {
            Ok(more) => sent += more,
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Gone) => {
                if !options.both {
                    note_gone(&local.device, "sent");
                }
                return Ok(sent);
            }
        }
        if !plan.more {
            return Ok(sent);
        }
    }
}

/// Does it, while a thread beside tells the other end how it goes.
fn linked<T>(link: &Link, peer: Peer, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        scope.spawn(|| link.run(peer));
        let _linked = Linked(link);
        work()
    })
}

fn note_gone(device: &str, what: &str) {
    let line =
        format!("{device} is being taken away: the streams are closed; what was {what} is told");
    common::note(PROGRAM, line);
}
