//! A ping-pong program but for its transport: two ends that find each other over TCP as C's programs do, play,
//! and tell how long it took. What is different is in the program's own `end`.

use std::net::TcpListener;

use rdma_verbs::{DeviceList, Endpoint, Gid, GidDirectory, Init, Rts};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use super::end::End;
use super::local::Local;
use super::play::{Played, play};
use super::stamps::Apart;
use super::tcp::Deadline;
use super::{Options, common, exchange};

/// The port that C's programs take.
const PORT: u16 = 18515;

/// What came out. With `--json`, all that is printed.
#[derive(Debug, Serialize)]
struct Figures {
    device: String,
    gid_index: Option<u32>,
    gid: Option<String>,
    size: u64,
    iters: u32,
    seconds: f64,
    usec_per_iter: f64,
    mbit_per_sec: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
}

/// Runs one end, or both, and gives the last lines to print.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    options.check()?;
    let deadline = Deadline::new(options.timeout);
    let figures = if options.both {
        both(options, deadline)?
    } else {
        pin(options.cpu.first())?;
        match &options.host {
            Some(host) => client(options, host, options.port.unwrap_or(PORT), deadline)?,
            None => server(options, &open(options, options.port.unwrap_or(PORT))?, deadline)?,
        }
    };
    if options.json {
        let json = serde_json::to_string_pretty(&figures).map_err(|error| error.to_string())?;
        return Ok(json + "\n");
    }
    let Figures { size, iters, seconds, usec_per_iter, mbit_per_sec, apart, .. } = figures;
    let apart = apart.map(|apart| apart.line()).unwrap_or_default();
    let bytes = u128::from(size) * u128::from(iters) * 2;
    Ok(format!(
        "{bytes} bytes in {seconds:.2} seconds = {mbit_per_sec:.2} Mbit/sec\n\
         {iters} iters in {seconds:.2} seconds = {usec_per_iter:.2} usec/iter\n{apart}"
    ))
}

/// Both ends, each on a thread; the client tells.
fn both(options: &Options, deadline: Deadline) -> Result<Figures, String> {
    let door = open(options, options.port.unwrap_or(0))?;
    let port = door.port;
    let quiet = Options { json: true, ..options.clone() };
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            pin(options.cpu.first())?;
            server(&quiet, &door, deadline)
        });
        let pinned = pin(options.cpu.last());
        let client = pinned.and_then(|()| client(options, "localhost", port, deadline));
        let server = server.join().unwrap_or_else(|_| Err("it panicked".into()));
        match (server, client) {
            (Ok(_), Ok(figures)) => Ok(figures),
            (Err(server), Ok(_)) => Err(format!("the server: {server}")),
            (Ok(_), Err(client)) => Err(format!("the client: {client}")),
            (Err(server), Err(client)) => {
                Err(format!("the server: {server}; the client: {client}"))
            }
        }
    })
}

/// What a server has before there is a client.
struct Door {
    directory: GidDirectory,
    listener: TcpListener,
    port: u16,
}

/// Makes it. What can be found wrong without a client is found here.
fn open(options: &Options, port: u16) -> Result<Door, String> {
    let directory = directory()?;
    let local = Local::choose(options, &directory, None, false).map_err(text)?;
    local.warn();
    End::new(options, &local).map_err(text)?;
    let listener = exchange::listen(port).map_err(text)?;
    let port = listener.local_addr().map_err(text)?.port();
    if !options.both {
        say(options, format!("  waiting:        TCP port {port}\n"))?;
    }
    Ok(Door { directory, listener, port })
}

fn server(options: &Options, door: &Door, deadline: Deadline) -> Result<Figures, String> {
    let mut peer = exchange::accept(&door.listener, deadline).map_err(text)?;
    let theirs = peer.hear().map_err(text)?;
    let towards = theirs.gid.map(Gid::ip);
    let local = Local::choose(options, &door.directory, towards, true).map_err(text)?;
    let end = End::new(options, &local).map_err(text)?;
    let ours = end.address().map_err(text)?;
    tell_ours(options, &local, &ours)?;
    tell(options, "remote address:", &theirs)?;
    let mut end = connect(end, &local, &theirs)?;
    peer.tell(&ours).map_err(text)?;
    peer.hear_done().map_err(text)?;
    let played = play(options, &mut end, false, deadline)?;
    peer.part();
    Ok(figures(options, local, played))
}

fn client(options: &Options, host: &str, port: u16, deadline: Deadline) -> Result<Figures, String> {
    let directory = directory()?;
    let mut peer = exchange::connect(host, port, deadline).map_err(text)?;
    let local = Local::choose(options, &directory, peer.ip(), false).map_err(text)?;
    if !options.both {
        local.warn();
    }
    let end = End::new(options, &local).map_err(text)?;
    let ours = end.address().map_err(text)?;
    tell_ours(options, &local, &ours)?;
    peer.tell(&ours).map_err(text)?;
    let theirs = peer.hear().map_err(text)?;
    tell(options, "remote address:", &theirs)?;
    let mut end = connect(end, &local, &theirs)?;
    // Not before: a server that hears it counts on this end.
    peer.done().map_err(text)?;
    let played = play(options, &mut end, true, deadline)?;
    peer.part();
    Ok(figures(options, local, played))
}

fn connect(end: End<Init>, local: &Local, theirs: &Endpoint) -> Result<End<Rts>, String> {
    if local.row.is_some() && theirs.gid.is_none() {
        return Err("the peer told no GID, which it needs here: C's program wants -g INDEX".into());
    }
    end.connect(theirs).map_err(text)
}

/// All devices' GID tables; an error when there are no devices.
fn directory() -> Result<GidDirectory, String> {
    match DeviceList::new().map_err(text)?.absence() {
        Some(absence) => Err(absence.to_string()),
        None => GidDirectory::open().map_err(text),
    }
}

fn pin(cpu: Option<&usize>) -> Result<(), String> {
    let Some(cpu) = cpu.copied() else { return Ok(()) };
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|errno| format!("--cpu {cpu}: {errno}"))
}

/// A line on the way, of a person's output.
fn say(options: &Options, line: String) -> Result<(), String> {
    if options.json { Ok(()) } else { common::print(&line) }
}

fn tell(options: &Options, whose: &str, address: &Endpoint) -> Result<(), String> {
    let Endpoint { lid, qpn, psn, .. } = address;
    let gid = address.gid.unwrap_or(Gid::ZERO);
    let lid = lid.0;
    say(options, format!("  {whose:15} LID {lid:#06x}, QPN {qpn}, PSN {psn}, GID {gid}\n"))
}

fn tell_ours(options: &Options, local: &Local, ours: &Endpoint) -> Result<(), String> {
    tell(options, "local address:", ours)?;
    local
        .row
        .map_or(Ok(()), |row| say(options, format!("  local GID:      {} {row}\n", local.device)))
}

fn figures(options: &Options, local: Local, Played { time, apart }: Played) -> Figures {
    let Options { size, iters, .. } = *options;
    let usec = time.as_secs_f64() * 1e6;
    let bits = size as f64 * f64::from(iters) * 2.0 * 8.0;
    Figures {
        device: local.device,
        gid_index: local.row.map(|row| row.index()),
        gid: local.row.map(|row| row.gid().to_string()),
        size,
        iters,
        seconds: time.as_secs_f64(),
        usec_per_iter: usec / f64::from(iters),
        mbit_per_sec: bits / usec,
        apart,
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
