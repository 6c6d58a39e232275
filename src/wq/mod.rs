//! Work requests in flight: the tables that own the memory which was posted.
//!
//! Posting moves memory into a table, a completion moves it out, and nobody else has it in between. What
//! a completion names is its `wr_id` alone, a number that comes from the device: [`WrId`] says which
//! queue of the completion queue, which use of that place, and which work request. A number that names
//! nothing in flight is counted and dropped: no number makes memory have two owners.
//!
//! * `ring` is the table of a send or receive queue: one thread posts, one polls; `poster` its posting side.
//! * `ring/shared` is that of a shared receive queue: one thread posts, several poll; `shared` its posting
//!   side, and `number` what it is named by.
//!
//! What is still in a table when its queue pair was destroyed is taken out by who polls, or by who drops
//! the completion queue; what is in a table whose queue pair could not be destroyed stays for ever. What is
//! left in that of a shared receive queue goes with its last owner, or stays.

mod id;
mod number;
mod poster;
mod ring;
mod shared;

pub(crate) use id::{SHARED, WrId};
pub(crate) use number::{NUMBERS_IN_ALL, Number};
pub(crate) use poster::{Poster, Posting};
pub(crate) use ring::{Claim, Claimed, Entry, Ring};
pub(crate) use shared::SharedPoster;
