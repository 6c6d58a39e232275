//! The data path on the interposer's device: what fails, what it looks like, and that every piece of
//! memory comes back, once, and not before the device is done with it.
//!
//! * `making`: objects that cannot be made, transitions that are refused.
//! * `posts`: posts that fail. `completions`: completions that are not what they should be.
//! * `ends`: what cannot be destroyed, every order of dropping. `forgotten`: `mem::forget`.
//! * `datagrams`: those and their address handles. `input`: what callers get wrong, `addressed`: with datagrams.
//!   `notify`: asking for a notification by itself.
//! * `stress`: eight queue pairs, a hundred thousand messages each, with failures.

#[path = "../interposed/mod.rs"]
mod interposed;

mod addressed;
mod completions;
mod datagrams;
mod ends;
mod forgotten;
mod input;
mod making;
mod notify;
mod posts;
mod stress;
