//! The guest's first process, and the server of its ports.
//!
//! As the kernel's `/init` it makes the system, starts itself again as the server and from then on
//! only collects orphans. The server's end is the guest's end: the kernel panics without an init.

mod boot;
mod devices;
mod entropy;
mod files;
mod port;
mod program;

use std::io;
use std::process::Command;
use std::thread;

use rustix::process::{WaitOptions, getpid, wait};

fn main() -> io::Result<()> {
    if getpid().is_init() { init() } else { serve() }
}

fn init() -> io::Result<()> {
    boot::make_system()?;
    let server = Command::new("/init").spawn()?;
    while let Some((pid, status)) = wait(WaitOptions::empty())? {
        if pid.as_raw_nonzero().get() as u32 == server.id() {
            eprintln!("rxe agent: the server ended: {status:?}");
            break;
        }
    }
    Ok(())
}

fn serve() -> io::Result<()> {
    let mut events = devices::Events::listen()?;
    let ports = devices::ports(&mut events)?;
    let mut threads: Vec<_> =
        ports.into_iter().map(|port| thread::spawn(move || port::serve(port))).collect();
    threads.push(thread::spawn(move || events.keep_links()));
    for thread in threads {
        thread.join().expect("a panic ends the whole process")?;
    }
    Ok(())
}
