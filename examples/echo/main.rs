//! An echo server with any number of clients, on tokio: a task for each connection, on both sides, with a
//! queue pair and a completion queue of its own; all completion queues of a side are on one channel.
//!
//! Buffers go from the pool to a queue and from a queue to a task, and in the end all are back, whatever was
//! dropped on the way: `--cancel` drops futures at random moments.

#![forbid(unsafe_code)]

mod client;
#[path = "../common/mod.rs"]
mod common;
mod cut;
mod ground;
mod options;
mod server;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use rdma_verbs::{Connector, Error, GidDirectory, GidQuery, Listener, Resolver, aio};
use tokio::sync::watch;
use tokio::task::JoinSet;

use cut::Cuts;
use ground::Ground;
pub(crate) use options::Options;
use server::Served;

fn main() -> ExitCode {
    let options = Options::parse();
    common::exit("echo", run(&options).and_then(|lines| common::print(&lines)))
}

/// Runs one side, or both, and gives the lines to print.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    let mut runtime = match options.threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(options.threads as usize).enable_all().build();
    let runtime = runtime.map_err(|error| format!("the runtime: {error}"))?;
    runtime.block_on(start(options))
}

async fn start(options: &Options) -> Result<String, String> {
    let text = |error: Error| error.to_string();
    let directory = GidDirectory::open().map_err(text)?;
    let resolver = Resolver::open(&directory).map_err(text)?;
    // Instead of a thread: the resolver and its directory stay true while this lasts.
    let watching = tokio::spawn(aio::watch(resolver.clone()));
    let (cuts, options) = (Arc::new(Cuts::default()), Arc::new(options.clone()));
    let done = match options.server {
        Some(server) => {
            let to = (server, options.port()).into();
            clients(&options, &resolver, to, &cuts).await
        }
        None => serve(&options, &directory, &resolver, &cuts).await,
    };
    watching.abort();
    done
}

/// The server; with `--both` the clients too, and then it ends.
async fn serve(
    options: &Arc<Options>,
    directory: &GidDirectory,
    resolver: &Resolver,
    cuts: &Arc<Cuts>,
) -> Result<String, String> {
    let text = |error: Error| error.to_string();
    let mut query = GidQuery::new();
    if let Some(address) = options.bind {
        query = query.ip(address);
    }
    let choice = query.best(&directory.cached()).map_err(text)?;
    let address: IpAddr = choice.row.ip().ok_or("the best GID is no address: give one, --bind")?;
    // Each that is received may have to be sent before the last one is known to have come.
    let ground = Ground::new(options, &choice.device, choice.port, options.receives());
    let ground = Arc::new(ground.map_err(text)?);
    let at = SocketAddr::new(address, options.port());
    let listener = Listener::bind(at, resolver).and_then(aio::Listener::new).map_err(text)?;
    let to = listener.local_addr();
    let (stop, stopped) = watch::channel(false);
    let (serving, counted) = (Arc::clone(&ground), Arc::clone(cuts));
    let serving = server::run(options, serving, listener, stopped, counted);
    if !options.both {
        common::print(&format!("listening at {to}, on {}\n", choice.device))?;
        return serving.await.map(|_| String::new());
    }
    let clients = async {
        let lines = clients(options, resolver, to, cuts).await;
        let _ = stop.send(true);
        lines
    };
    let (served, lines) = tokio::join!(serving, clients);
    let (Served { connections, messages }, lines) = (served?, lines?);
    all_back("the server", &ground)?;
    Ok(format!("{lines}served {connections} connections, {messages} messages\n"))
}

/// All clients, to their end.
async fn clients(
    options: &Arc<Options>,
    resolver: &Resolver,
    to: SocketAddr,
    cuts: &Arc<Cuts>,
) -> Result<String, String> {
    let path = client::path(options, resolver, to, cuts).await;
    let gid = path.map_err(|error| error.to_string())?.gid;
    let ground = Ground::new(options, &gid.device, gid.port, options.depth);
    let ground = Arc::new(ground.map_err(|error| error.to_string())?);
    let (connector, mut clients) = (Connector::new(resolver), JoinSet::new());
    let begun = Instant::now();
    for number in 0..options.clients {
        let (options, ground, cuts) = (Arc::clone(options), Arc::clone(&ground), Arc::clone(cuts));
        clients.spawn(client::run(options, ground, connector.clone(), to, number, cuts));
    }
    let all = async {
        while let Some(ended) = clients.join_next().await {
            ended.map_err(|error| error.to_string())??;
        }
        Ok::<_, String>(())
    };
    // Dropped with its tasks, and these with their queue pairs, when the time is over.
    let in_time = tokio::time::timeout(options.timeout, all).await;
    in_time.map_err(|_| format!("not done within {:?}", options.timeout))??;
    let (took, messages) = (begun.elapsed(), u64::from(options.clients) * options.messages);
    all_back("the clients", &ground)?;
    Ok(format!(
        "{} clients, {messages} messages of {} bytes there and back in {:.2} seconds = {:.1} usec each\n\
         {} futures dropped; all buffers are back\n",
        options.clients,
        options.size,
        took.as_secs_f64(),
        took.as_secs_f64() * 1e6 / (messages.max(1) as f64),
        cuts.count(),
    ))
}

/// No buffer was lost on the way.
fn all_back(whose: &str, ground: &Ground) -> Result<(), String> {
    match (ground.pool.available(), ground.pool.count()) {
        (there, all) if there == all => Ok(()),
        (there, all) => Err(format!("{whose}: {there} of {all} buffers came back")),
    }
}
