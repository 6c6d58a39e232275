//! The loopback device against its own description, through the functions that it gives to C.

mod clock;
mod control;
mod failures;
mod messages;
mod misuse;
mod notify;
mod polling;
mod posting;
mod remote;
mod rig;
mod states;
