//! Both ends by this crate's own exchange over TCP.

pub(crate) mod client;
mod find;
pub(crate) mod server;
mod waiting;

pub(crate) use find::Finder;
