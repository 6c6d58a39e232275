//! The guide: this crate for those who come from elsewhere, and what holds everywhere in it.
//!
//! * [`coming_from_c`]: verb by verb.
//! * [`coming_from_rust`]: from sideway, rust-ibverbs and async-rdma.
//! * [`memory_model`]: who owns memory when, and what a peer's writes are to this program.
//! * [`teardown`]: what happens in which order when things end.
//! * [`which_gid`]: finding the row of a GID table to use.
//!
//! The modules are pages, and have no items.

// Links are written as for those who use the crate.
#[cfg(doc)]
#[allow(unused_imports)]
use super::*;

#[doc = include_str!("guide/coming_from_c.md")]
pub mod coming_from_c {}

#[doc = include_str!("guide/coming_from_rust.md")]
pub mod coming_from_rust {}

#[doc = include_str!("guide/memory_model.md")]
pub mod memory_model {}

#[doc = include_str!("guide/teardown.md")]
pub mod teardown {}

#[doc = include_str!("guide/which_gid.md")]
pub mod which_gid {}
