//! Tests on real rxe devices, run inside the guest by the runner `tests/rxe/run`.
//!
//! Each test makes the devices it needs, with names of its own, so that they run side by side;
//! one that changes what all of them see takes [`rig::alone`].

// The example and the seam, as modules: what is tested is what is built.
#[path = "../../examples/gids.rs"]
#[allow(dead_code)] // its main
mod gids_example;
#[path = "../../src/sys/mod.rs"]
#[allow(dead_code, unused_imports, unfulfilled_lint_expectations)]
mod sys;

/// What the seam imports from the crate.
mod error {
    pub(crate) use rdma_verbs::Errno;
}
mod types {
    pub(crate) use rdma_verbs::{Gid, Guid, IfName, PortNum};
}

mod absence;
mod bad_input;
mod changes;
mod context;
mod permission;
mod raw;
mod rig;
mod seam;
mod tables;
