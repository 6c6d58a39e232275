//! Work requests in flight: the tables that own the memory which was posted.
//!
//! Posting moves memory into a table, a completion moves it out, and nobody else has it in between. What
//! a completion names is its `wr_id` alone, a number that comes from the device: [`WrId`] says which
//! queue of the completion queue, which use of that place, and which work request. A number that names
//! nothing in flight is counted and dropped: no number makes memory have two owners.
//!
//! * `ring` is the table of a send or receive queue: one thread posts, one polls.
//! * `slab` is that of a shared receive queue: many threads may do either.
//!
//! What is still in a table when its queue pair was destroyed is taken out by who polls, or by who drops
//! the completion queue; what is in a table whose queue pair could not be destroyed stays for ever.

mod id;
mod poster;
mod ring;
mod slab;

pub(crate) use id::WrId;
pub(crate) use poster::Poster;
pub(crate) use ring::{Claim, Claimed, Entry, Ring};
