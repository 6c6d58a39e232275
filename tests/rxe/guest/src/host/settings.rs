//! What the caller wants: options before the program, and variables, so that the same can be said
//! through cargo.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Failure, Result};

pub enum Task {
    Run(Run),
    Stop(String),
}

/// One program to run.
pub struct Run {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub with: Vec<PathBuf>,
    /// Name of the living guest to run in.
    pub shared: Option<String>,
    pub host_root: bool,
    pub terminal: bool,
    pub timeout: Option<Duration>,
}

/// Which guest to run it in.
pub struct Settings {
    /// Debian's release.
    pub release: u32,
    pub scene: String,
    pub kvm: bool,
}

const TIMEOUT: Duration = Duration::from_secs(1200);

impl Settings {
    pub fn from_env() -> Result<Settings> {
        let release = match text("RDMA_RXE_DEBIAN")?.as_deref() {
            Some("12") => 12,
            Some("13") => 13,
            Some(other) => return Err(bad("RDMA_RXE_DEBIAN", other, "12 or 13")),
            None => host_release(),
        };
        let kvm = match text("RDMA_RXE_ACCEL")?.as_deref() {
            None | Some("tcg") => false,
            Some("kvm") => true,
            Some(other) => return Err(bad("RDMA_RXE_ACCEL", other, "tcg or kvm")),
        };
        let mut scene = text("RDMA_RXE_SCENE")?.unwrap_or_else(|| "default".to_owned());
        if scene.contains('/') {
            // A keeper reads it too, from another working directory.
            scene = std::path::absolute(scene)?.display().to_string();
        }
        Ok(Settings { release, scene, kvm })
    }
}

/// Reads the options up to the program's name.
pub fn parse(args: Vec<OsString>) -> Result<Task> {
    let mut args = args.into_iter();
    let mut run = Run {
        program: OsString::new(),
        args: Vec::new(),
        with: split_paths("RDMA_RXE_WITH"),
        shared: text("RDMA_RXE_IN")?,
        host_root: false,
        terminal: false,
        timeout: None,
    };
    while let Some(arg) = args.next() {
        let mut value = |what: &str| {
            args.next().ok_or_else(|| Failure::no_guest(format!("{} needs {what}", arg.display())))
        };
        match arg.to_str() {
            Some("--guest" | "--") => {}
            Some("--with") => run.with.push(value("a file")?.into()),
            Some("--in") => run.shared = Some(name(value("a name")?)?),
            Some("--stop") => return Ok(Task::Stop(name(value("a name")?)?)),
            Some("--host-root") => run.host_root = true,
            Some("--terminal") => run.terminal = true,
            Some(option) if option.starts_with('-') => {
                return Err(Failure::no_guest(format!(
                    "unknown option {option}; there are --guest, --with FILE, --in NAME, \
                     --stop NAME, --host-root and --terminal"
                )));
            }
            _ => {
                run.program = arg;
                break;
            }
        }
    }
    if run.program.is_empty() {
        return Err(Failure::no_guest("no program given"));
    }
    if let Some(shared) = &run.shared {
        name(shared.into())?;
    }
    run.timeout = match text("RDMA_RXE_TIMEOUT")? {
        Some(seconds) => Some(
            seconds
                .parse()
                .ok()
                .filter(|&seconds: &u64| seconds > 0)
                .map(Duration::from_secs)
                .ok_or_else(|| bad("RDMA_RXE_TIMEOUT", &seconds, "a number of seconds"))?,
        ),
        // Nobody wants to be thrown out of a shell.
        None => (!run.terminal).then_some(TIMEOUT),
    };
    run.args = args.collect();
    Ok(Task::Run(run))
}

/// A shared guest's name is a folder's name.
fn name(name: OsString) -> Result<String> {
    name.into_string()
        .ok()
        .filter(|name| {
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && !name.starts_with('.') && name.chars().all(fits)
        })
        .ok_or_else(|| {
            Failure::no_guest("a shared guest's name has letters, digits, '-', '_' and '.'")
        })
}

fn text(variable: &str) -> Result<Option<String>> {
    match env::var(variable) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(_) => Err(Failure::no_guest(format!("{variable} is not readable text"))),
    }
}

fn bad(variable: &str, value: &str, wanted: &str) -> Failure {
    Failure::no_guest(format!("{variable}={value}: {wanted} is wanted"))
}

fn split_paths(variable: &str) -> Vec<PathBuf> {
    let value = env::var_os(variable).unwrap_or_default();
    value
        .as_bytes()
        .split(|&byte| byte == b':')
        .filter(|path| !path.is_empty())
        .map(|path| OsStr::from_bytes(path).into())
        .collect()
}

/// The host's own release where there is a guest of it.
fn host_release() -> u32 {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let debian = text.lines().any(|line| line == "ID=debian");
    let thirteen = text.lines().any(|line| line == "VERSION_ID=\"13\"");
    if debian && thirteen { 13 } else { 12 }
}
