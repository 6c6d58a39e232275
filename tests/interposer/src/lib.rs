//! Stands in for libibverbs in a program that it is preloaded into: two devices in memory, and
//! faults on demand.
//!
//! * `loop0` works: queue pairs of one process, connected by their numbers, reach each other.
//!   Everything happens inside the call that causes it, under one lock.
//! * `empty0` does nothing as fast as it can: every signaled work request completes at once. What
//!   a program costs above the verbs is measured on it.
//!
//! The functions named `rdma_fault_*` (`control`) make verbs fail, completions wrong, and events
//! happen; a program finds them with `dlsym`. Everything else bears the names of libibverbs.
//!
//! It is stricter than some real devices: a place in a queue is free again when its completion was
//! polled, not before, and room in a completion queue that is polled entry by entry at the end of that;
//! `lkey` and `rkey` differ; all that means nothing in a completion is filled with what looks wrong, and
//! ends the program when it is asked for entry by entry. So does all that is called out of turn, while a queue is
//! polled or posted on call by call, or left out: on a real device that is a deadlock, or undefined.
//!
//! Where devices differ otherwise it does as rxe: what queues grant, completions of a dead queue pair, an
//! overflowing completion queue, `IBV_SEND_INLINE` in the flags of what is told inline. Not so that a post call by
//! call is taken as a whole or not at all, as the man page has it.
//!
//! It has a clock that goes on when something completes, and no other time: a send waits for a receive for
//! ever unless `rnr_retry` is 0, and for a peer that is not connected yet; a peer that failed or is gone is told at
//! once. What finds no receive on an unreliable transport is lost. It has one port, no loss of packets, no order of
//! bytes inside a transfer, no drained event in SQD; a row of the GID table that is in use can go all the same.
//! Nothing is sent to multicast groups. Of the extended verbs it has the queries, completion queues that are polled
//! entry by entry, and queue pairs that are posted on call by call.
//!
//! Every object is known by its address, which is looked up and not followed: a call on an object
//! that was destroyed ends the program with a message. What is given to C is never freed, and its
//! operations are exchanged for some that end the program, so that this is seen and not undefined.

/// The crate's own declarations of the C structs: one set for both sides.
#[path = "../../../src/sys"]
#[allow(dead_code, unused_imports, unreachable_pub)]
mod sys {
    pub(crate) mod abi;
}

mod address;
mod bytes;
mod channel;
mod clock;
mod context;
mod control;
mod cq;
mod device;
mod empty;
mod event;
mod execute;
mod faults;
mod gids;
mod given;
mod inspect;
mod memory;
mod numbers;
mod post;
mod qp;
mod srq;
mod states;
mod verbs;
mod window;
mod work;
mod world;

#[cfg(test)]
mod tests;

pub(crate) use sys::abi;
