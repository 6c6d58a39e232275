//! A restored guest has the snapshot's clock and the snapshot's random state.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};

use rustix::ioctl::{NoArg, ioctl, opcode};
use rustix::time::{ClockId, Timespec, clock_settime};

/// `RNDRESEEDCRNG` of random(4).
const RESEED: u32 = opcode::none(b'R', 7);

pub fn wake(unix_nanos: u64, seed: &[u8]) -> io::Result<()> {
    let now = Timespec {
        tv_sec: (unix_nanos / 1_000_000_000) as i64,
        tv_nsec: (unix_nanos % 1_000_000_000) as i64,
    };
    clock_settime(ClockId::Realtime, now)?;

    // Written bytes go into the pool, and only a reseed takes them out of it.
    let mut random = File::options().write(true).open("/dev/urandom")?;
    random.write_all(seed)?;
    // SAFETY: the opcode is the kernel's RNDRESEEDCRNG, which reads and writes no memory of ours.
    unsafe { ioctl(&random, NoArg::<RESEED>::new())? };
    Ok(())
}
