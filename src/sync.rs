//! The atomics of the parts that have models: loom's when a model runs, else the standard library's.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, Ordering};
