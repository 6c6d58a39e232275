//! Tests on real rxe devices, run inside the guest by the runner `tests/rxe/run`.
//!
//! Each test makes the devices it needs, with names of its own, so that they run side by side;
//! one that changes what all of them see takes [`rig::alone`].

// The examples and the seam, as modules: what is tested is what is built.
#![allow(clippy::duplicate_mod)] // the examples have `common`

#[path = "../../examples/cmtime/main.rs"]
#[allow(dead_code)] // its main
mod cmtime_example;
#[path = "../../examples/devinfo.rs"]
#[allow(dead_code)] // its main
mod devinfo_example;
#[cfg(feature = "tokio")]
#[path = "../../examples/echo/main.rs"]
#[allow(dead_code)] // its main
mod echo_example;
#[path = "../../examples/gids/main.rs"]
#[allow(dead_code)] // its main
mod gids_example;
#[path = "../../examples/rc_pingpong/main.rs"]
#[allow(dead_code)] // its main
mod pingpong_example;
#[path = "../../examples/poll_loop.rs"]
#[allow(dead_code)] // its main
mod poll_loop_example;
#[path = "../../examples/rping/main.rs"]
#[allow(dead_code)] // its main
mod rping_example;
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
#[cfg(feature = "tokio")]
mod aio;
mod bad_input;
mod changes;
mod channel;
mod cm;
mod cmtime;
mod connect;
mod connect_hostile;
mod connect_many;
mod context;
mod devinfo;
mod directory;
mod limits;
mod pair;
mod path;
mod permission;
mod pingpong;
mod raw;
mod rc;
mod resolve;
mod resolve_changes;
mod rig;
mod seam;
mod seed;
mod storm;
mod tables;
mod teardown;

/// What `gids` prints with these arguments.
fn gids_output(arguments: &[&str]) -> Result<String, String> {
    use clap::Parser;
    let options = gids_example::Options::parse_from([&["gids"], arguments].concat());
    gids_example::output(&options, &gids_example::open(&options)?)
}
