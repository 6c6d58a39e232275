//! Completions, events, connections and paths as futures, on tokio (feature `tokio`).
//!
//! | to wait for | as a task |
//! |---|---|
//! | completions | [`Completions::next_batch`]; any number of completion queues on one [channel](crate::CompletionChannel) |
//! | asynchronous events of a device | [`Events::next`] |
//! | the GID tables, and what a resolver remembers, to stay true | [`watch`], instead of the thread of [`GidDirectory::watch`](crate::GidDirectory::watch) |
//! | the path to a peer | [`resolve`], or [`Resolution`](crate::Resolution)`.await` |
//! | a queue pair connected over TCP | [`connect`], [`Listener::accept`]; [`Connector::start`](crate::Connector::start)`(..).await`, [`Incoming::start`](crate::Incoming::start)`(..).await` |
//! | steps of the connection manager | [`cm::Step`](crate::cm::Step)`.await`, and of [`Connecting`](crate::cm::Connecting) and [`Accepting`](crate::cm::Accepting); [`cm::Listener::next_request`](crate::cm::Listener::next_request), [`cm::Connection::disconnected`](crate::cm::Connection::disconnected) |
//!
//! ```no_run
//! use rdma_verbs::wr::Receive;
//! use rdma_verbs::{Context, RecvQueue, Result, aio};
//!
//! /// Handles messages, and posts their buffers again.
//! async fn serve(context: &Context, mut receives: RecvQueue) -> Result<()> {
//!     let mut completions = aio::Completions::new(context, 128)?;
//!     // ... queue pairs are made on `&completions`
//!     loop {
//!         let mut batch = completions.next_batch().await?;
//!         while let Some(mut completion) = batch.next() {
//!             completion.result()?;
//!             let message = completion.take_buffer();
//!             // Its place in the queue is free from here on.
//!             drop(completion);
//!             if let Some(message) = message {
//!                 println!("{message:?}");
//!                 receives.post(Receive::new(message))?;
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # What a future holds
//!
//! Posting is not asynchronous: it never waits. What was posted belongs to its queue until it is complete,
//! whoever waits for that, so no future here holds memory that the device may touch. Each future's
//! documentation tells what dropping it does, before it is ready; those that say that they are *cancel
//! safe* lose nothing, so `tokio::select!` and `tokio::time::timeout` can drop them at any moment. A queue pair
//! that is being connected goes with its future, unless that is one that borrows (`ended`): then it comes back
//! with the error.
//!
//! A future that is neither polled nor dropped keeps no other one waiting.
//!
//! # Tasks, runtimes
//!
//! All of it runs on a runtime of one thread or of several, with I/O and time enabled
//! ([`enable_all`](tokio::runtime::Builder::enable_all)); outside of one, or without these, tokio
//! panics. Futures are `Send`. Each completion channel and each event channel of the connection manager spawns one
//! task in each runtime that waits on it: it takes events in for all who wait, and ends with the channel.
//! Nothing else is spawned, and nothing is queued without a bound.
//!
//! A completion queue that never is empty gives other tasks their turn: [`Completions::next_batch`] takes part
//! in tokio's budget for each task.
//!
//! Nothing here blocks but the calls that tell the device or the kernel something: a queue pair's way to
//! RTS, what a destruction takes, a table that is read anew; tens of microseconds to a millisecond.
//!
//! # Other runtimes
//!
//! Everything here is made of what any runtime can use: a descriptor ([`AsFd`](std::os::fd::AsFd)) and a call
//! that never waits, such as [`CompletionQueue::arm`](crate::CompletionQueue::arm),
//! [`Context::process_events`](crate::Context::process_events),
//! [`Connecting::advance`](crate::Connecting::advance). The example `poll_loop` has them in a loop around
//! epoll.

#![deny(unsafe_code)]
#![allow(clippy::result_large_err)] // the queue pair itself comes back

mod cm;
mod completions;
mod connect;
mod events;
mod machine;
mod resolve;
mod watch;

use std::pin::Pin;

pub use completions::Completions;
pub use connect::{Listener, connect};
pub use events::Events;
pub use resolve::resolve;
pub use watch::{Watch, watch};

/// What `.await` makes of a connection, a resolution or a step that is under way.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What the module's documentation says of futures: held at compile time.
#[cfg(test)]
mod tests;
