//! Runs programs in an emulated machine with real rxe devices. `tests/rxe/run` is its front door.

mod home;
mod input;
mod machine;
mod qmp;
mod scene;
mod session;
mod settings;
mod shared;
mod snapshot;
mod tsc;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::process::exit;
use std::time::{Duration, Instant};

use wire::Outcome;

use home::{Console, Home};
use session::{End, Request, Screen};
use settings::{Run, Settings};

/// The runner's own exit codes; every other one is the program's.
mod code {
    /// The guest's kernel panicked, or the guest went away.
    pub const GONE: u8 = 123;
    /// The deadline passed.
    pub const DEADLINE: u8 = 124;
    /// There is no guest to run in.
    pub const NO_GUEST: u8 = 125;
    pub const NOT_STARTED: u8 = 126;
    pub const NOT_FOUND: u8 = 127;
    /// Killed by signal n: this plus n.
    pub const SIGNAL: u8 = 128;
}

/// Why nothing more can be done: one line, and the exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    pub fn no_guest(text: impl Into<String>) -> Failure {
        Failure { code: code::NO_GUEST, text: text.into() }
    }

    /// With the console log, where the reason can be read.
    pub fn see(self, console: &Console) -> Failure {
        Failure { text: format!("{}; console log: {}", self.text, console.keep()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::no_guest(error.to_string())
    }
}

type Result<T> = std::result::Result<T, Failure>;

fn main() {
    let mut args = std::env::args_os().skip(1);
    let result = match (args.next(), args.next()) {
        (Some(checkout), Some(task)) => dispatch(Home::new(checkout), &task, args.collect()),
        _ => Err(Failure::no_guest("this program is started by tests/rxe/run")),
    };
    exit(match result {
        Ok(code) => code.into(),
        Err(failure) => {
            eprintln!("rxe: {failure}");
            failure.code.into()
        }
    })
}

fn dispatch(home: Home, task: &OsString, args: Vec<OsString>) -> Result<u8> {
    match task.to_str() {
        Some("run") => match settings::parse(args)? {
            settings::Task::Run(run) => run_program(&home, run),
            settings::Task::Stop(name) => shared::stop(&home, &name).map(|()| 0),
        },
        Some("prepare") => snapshot::get(&home, &Settings::from_env()?).map(|_| 0),
        Some("keep") => shared::keep(&home, &args).map(|()| 0),
        Some("launch") => machine::launch(args),
        _ => Err(Failure::no_guest("no such task")),
    }
}

/// Runs a program in a fresh guest, or in a living one, and tells how it ended.
fn run_program(home: &Home, run: Run) -> Result<u8> {
    let settings = Settings::from_env()?;
    let request = Request::from_host(&run)?;
    let mut screen = Screen::new(request.terminal())?;

    let (end, console) = match &run.shared {
        Some(name) => {
            let (port, console) = shared::attach(home, &settings, name)?;
            (session::run(&port, request, &mut screen)?, console)
        }
        None => {
            let snapshot = snapshot::get(home, &settings)?;
            let console = home.new_console()?;
            let mut machine = snapshot.restore(&settings, &console)?;
            let port = machine.take_port();
            machine::wake(&port, machine::RESTORE_LIMIT).map_err(|e| e.see(&console))?;
            (session::run(&port, request, &mut screen)?, console)
        }
    };
    drop(screen);
    report(end, &run, &console)
}

fn report(end: End, run: &Run, console: &Console) -> Result<u8> {
    let program = run.program.display();
    let failure = |code, text| Err(Failure { code, text });
    match end {
        End::Exited(Outcome::Code(code)) => Ok(code),
        End::Exited(Outcome::Signal(signal)) => {
            let name = session::signal_name(signal);
            failure(code::SIGNAL + signal, format!("{program} was killed by {name}"))
        }
        End::Exited(Outcome::NotFound) => {
            failure(code::NOT_FOUND, format!("no program {program} in the guest"))
        }
        End::Exited(Outcome::NotStarted(reason)) => {
            failure(code::NOT_STARTED, format!("{program} could not be started: {reason}"))
        }
        End::Unwritten(reason) => failure(code::NO_GUEST, reason),
        End::Deadline(limit) => {
            let text =
                format!("{program} did not end within {} s (RDMA_RXE_TIMEOUT)", limit.as_secs());
            Err(Failure { code: code::DEADLINE, text }.see(console))
        }
        End::Gone => {
            let text = console.panic().map_or_else(
                || format!("the guest went away while {program} was running in it"),
                |panic| format!("the guest's kernel panicked while {program} was running: {panic}"),
            );
            Err(Failure { code: code::GONE, text }.see(console))
        }
    }
}

/// What is left until `deadline`.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
