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
#[path = "../../examples/multicast.rs"]
#[allow(dead_code)] // its main
mod multicast_example;
#[path = "../../examples/notify_cost/main.rs"]
#[allow(dead_code)] // its main
mod notify_cost_example;
#[path = "../../examples/page_pool/main.rs"]
#[allow(dead_code)] // its main
mod page_pool_example;
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
#[path = "../../examples/ud_pingpong/main.rs"]
#[allow(dead_code)] // its main
mod ud_pingpong_example;
#[path = "../../examples/write_lat/main.rs"]
#[allow(dead_code)] // its main
mod write_lat_example;

/// What the seam imports from the crate.
mod error {
    pub(crate) use rdma_verbs::Errno;
}
mod types {
    pub(crate) use rdma_verbs::{Gid, Guid, IfName, Lid, PortNum};
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
mod counters;
mod devinfo;
mod directory;
mod extended;
mod foreign;
mod limits;
mod mcast;
mod notify_cost;
mod page_pool;
mod page_pool_changes;
mod pages;
mod pair;
mod path;
mod permission;
mod pingpong;
mod raw;
mod rc;
mod reply;
mod resolve;
mod resolve_changes;
mod rig;
mod seam;
mod seed;
mod srq;
mod storm;
mod tables;
mod teardown;
mod uc;
mod ud;
mod ud_pingpong;
mod windows;
mod write_lat;
mod write_lat_bad;
mod write_lat_parts;

/// What `gids` prints with these arguments.
fn gids_output(arguments: &[&str]) -> Result<String, String> {
    use clap::Parser;
    let options = gids_example::Options::parse_from([&["gids"], arguments].concat());
    gids_example::output(&options, &gids_example::open(&options)?)
}
