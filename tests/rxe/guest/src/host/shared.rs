//! A living guest that several calls share.
//!
//! A keeper, a process of its own, holds the guest and listens on a socket in the guest's folder.
//! A caller says which snapshot it counts on, is given a port, and then talks with the guest as if
//! it held it. The keeper passes whole frames on, so that a caller who dies in the middle of one
//! leaves the port in order.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::setsid;
use rustix::stdio::dup2_stdout;

use wire::{FromGuest, PORTS, ToGuest};

use crate::home::{Console, Home};
use crate::machine::Machine;
use crate::settings::Settings;
use crate::{Failure, Result, left, machine, snapshot};

/// A guest in which nothing has run for so long ends.
const IDLE: Duration = Duration::from_secs(300);

/// How long a caller waits for a keeper, whatever state that is in.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port of the guest called `name`, which is started if it does not live.
pub fn attach(home: &Home, settings: &Settings, name: &str) -> Result<(UnixStream, Console)> {
    let snapshot = snapshot::get(home, settings)?.name();
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let folder = home.shared(name)?;
        let found = |port| Ok((port, Console::at(console_path(&folder))));
        if let Some(port) = connect(&folder, &snapshot, name)? {
            return found(port);
        }
        // One caller starts it, the others wait here and find it.
        let Some(_lock) = lock(&folder)? else { continue };
        if let Some(port) = connect(&folder, &snapshot, name)? {
            return found(port);
        }
        start_keeper(home, settings, &folder, name)?;
    }
    Err(Failure::no_guest(format!("the guest {name} does not answer")))
}

/// Ends the guest called `name`, if it lives.
pub fn stop(home: &Home, name: &str) -> Result<()> {
    let folder = home.shared(name)?;
    let _lock = lock(&folder)?;
    if let Ok(mut keeper) = at_socket(&folder, UnixStream::connect) {
        keeper.write_all(b"stop\n")?;
        // The keeper's end is the answer.
        keeper.set_read_timeout(Some(PATIENCE))?;
        keeper
            .read_to_end(&mut Vec::new())
            .map_err(|e| Failure::no_guest(format!("the guest {name} did not stop: {e}")))?;
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}

/// Keeps others from starting the guest of this folder; `None` when the folder was removed meanwhile.
fn lock(folder: &Path) -> Result<Option<File>> {
    let lock = File::create(folder.join("starting"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(io::Error::from)?;
    let there = lock.metadata()?.nlink() > 0;
    Ok(there.then_some(lock))
}

/// `None`: nobody listens there.
fn connect(folder: &Path, snapshot: &str, name: &str) -> Result<Option<UnixStream>> {
    let Ok(mut keeper) = at_socket(folder, UnixStream::connect) else {
        return Ok(None);
    };
    if keeper.write_all(format!("use {snapshot}\n").as_bytes()).is_err() {
        return Ok(None);
    }
    let Ok(answer) = read_line(&mut keeper) else { return Ok(None) };
    match answer.as_str() {
        "welcome" => Ok(Some(keeper)),
        // It ended just now.
        "" => Ok(None),
        refusal => Err(Failure::no_guest(format!("the guest {name} {refusal}"))),
    }
}

fn start_keeper(home: &Home, settings: &Settings, folder: &Path, name: &str) -> Result<()> {
    let mut keeper = Command::new(std::env::current_exe()?)
        .arg(home.checkout())
        .args(["keep", name])
        .env("RDMA_RXE_SCENE", &settings.scene)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(folder.join("keeper.log"))?)
        .spawn()?;
    let mut answer = String::new();
    BufReader::new(keeper.stdout.take().expect("piped")).read_line(&mut answer)?;
    if answer == "ready\n" {
        return Ok(());
    }
    let _ = keeper.wait();
    let reason = fs::read_to_string(folder.join("keeper.log")).unwrap_or_default();
    Err(Failure::no_guest(reason.trim_start_matches("rxe: ").trim_end()))
}

/// What the keeper does: starts the guest, says `ready`, and serves until nobody needs it.
pub fn keep(home: &Home, args: &[OsString]) -> Result<()> {
    let name = args.first().and_then(|name| name.to_str()).expect("called by ourselves");
    setsid().map_err(io::Error::from)?;
    let folder = home.shared(name)?;
    let settings = Settings::from_env()?;
    let snapshot = snapshot::get(home, &settings)?;

    let console = Console::at(console_path(&folder));
    let _ = fs::remove_file(console.path());
    let mut machine = snapshot.restore(&settings, &console)?;
    let ports = machine.take_ports();
    machine::wake(&ports[0], machine::RESTORE_LIMIT).map_err(|e| e.see(&console))?;

    let _ = fs::remove_file(folder.join("socket"));
    let listener = at_socket(&folder, UnixListener::bind)?;
    println!("ready");
    // Whoever started this one reads no more.
    dup2_stdout(File::options().write(true).open("/dev/null")?).map_err(io::Error::from)?;

    let keeper = Keeper {
        snapshot: snapshot.name(),
        ports: Arc::new(Mutex::new(Pool { free: ports, used: Instant::now() })),
    };
    let result = keeper.serve(&listener, &mut machine);
    let _ = fs::remove_file(folder.join("socket"));
    drop(machine);
    // Only now does who asked for the end see the connection close.
    result.map(drop)
}

struct Keeper {
    /// The snapshot that the guest was restored from.
    snapshot: String,
    ports: Arc<Mutex<Pool>>,
}

struct Pool {
    free: Vec<UnixStream>,
    /// When a port was last taken or given back.
    used: Instant,
}

impl Pool {
    /// What is left of the time without work.
    fn patience(&self) -> Duration {
        if self.free.len() < PORTS { IDLE } else { left(self.used + IDLE) }
    }
}

impl Keeper {
    /// Until the guest ends, nobody has used it for long, or somebody asks for its end: then with
    /// the connection to who did.
    fn serve(&self, listener: &UnixListener, machine: &mut Machine) -> Result<Option<UnixStream>> {
        loop {
            let patience = self.ports.lock().unwrap().patience();
            if patience.is_zero() {
                return Ok(None);
            }
            let limit = Timespec::try_from(patience).expect("minutes");
            let mut fds =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(&machine.qmp, PollFlags::IN)];
            poll(&mut fds, Some(&limit)).map_err(io::Error::from)?;
            let [caller, qemu] = fds.map(|fd| !fd.revents().is_empty());
            if qemu && machine.qmp.has_ended() {
                return Ok(None);
            }
            if caller {
                let (caller, _) = listener.accept()?;
                if let Some(caller) = self.welcome(caller) {
                    return Ok(Some(caller));
                }
            }
        }
    }

    /// Serves a caller, or gives back the one who wants the guest's end.
    fn welcome(&self, mut caller: UnixStream) -> Option<UnixStream> {
        let wish = read_line(&mut caller).unwrap_or_default();
        if wish == "stop" {
            return Some(caller);
        }
        let answer = match wish.strip_prefix("use ") {
            Some(snapshot) if snapshot == self.snapshot => match self.take() {
                Some(port) => return self.connect(caller, port),
                None => format!("already runs {PORTS} programs"),
            },
            Some(_) => format!(
                "lives with another scene or release ({}); end it with --stop",
                self.snapshot
            ),
            None => "does not understand".to_owned(),
        };
        let _ = caller.write_all(format!("{answer}\n").as_bytes());
        None
    }

    fn take(&self) -> Option<UnixStream> {
        let mut pool = self.ports.lock().unwrap();
        pool.used = Instant::now();
        pool.free.pop()
    }

    fn connect(&self, mut caller: UnixStream, port: UnixStream) -> Option<UnixStream> {
        let ports = self.ports.clone();
        thread::spawn(move || {
            let passed = caller.write_all(b"welcome\n").and_then(|()| pass_frames(&caller, &port));
            // A port that has failed is one of a guest that has ended.
            if passed.is_ok() {
                let mut pool = ports.lock().unwrap();
                pool.free.push(port);
                pool.used = Instant::now();
            }
        });
        None
    }
}

/// Both ways between a caller and the guest, until the caller has gone and the port is clear.
fn pass_frames(caller: &UnixStream, port: &UnixStream) -> io::Result<()> {
    thread::scope(|threads| {
        threads.spawn(|| {
            let (mut from, mut to) = (caller, port);
            while let Ok(Some(message)) = ToGuest::receive(&mut from) {
                if message.send(&mut to).is_err() {
                    break;
                }
            }
            let _ = ToGuest::Hangup.send(&mut to);
        });
        let (mut from, mut to) = (port, caller);
        let result = loop {
            match FromGuest::receive(&mut from) {
                Ok(Some(FromGuest::Clear)) => break Ok(()),
                // What a caller who is gone does not take is read all the same.
                Ok(Some(message)) => {
                    if message.send(&mut to).is_err() {
                        let _ = caller.shutdown(Shutdown::Both);
                    }
                }
                Ok(None) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Err(e) => break Err(e),
            }
        };
        let _ = caller.shutdown(Shutdown::Both);
        result
    })
}

fn console_path(folder: &Path) -> PathBuf {
    folder.join("console.log")
}

/// A socket's path holds some 100 bytes, a checkout's path may be longer: go through the folder.
fn at_socket<T>(folder: &Path, act: impl FnOnce(PathBuf) -> io::Result<T>) -> io::Result<T> {
    let folder = File::open(folder)?;
    act(format!("/proc/self/fd/{}/socket", folder.as_raw_fd()).into())
}

/// Byte by byte, to leave what follows to others.
fn read_line(from: &mut UnixStream) -> io::Result<String> {
    from.set_read_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while from.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    from.set_read_timeout(None)?;
    String::from_utf8(line).map_err(io::Error::other)
}
