//! The loopback device against its own description, through the functions that it gives to C.

mod control;
mod failures;
mod messages;
mod misuse;
mod notify;
mod remote;
mod rig;
mod states;
