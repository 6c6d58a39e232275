//! One program over one port: what it is given, what comes back, how it ends.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use wire::{CHUNK, FileHead, FromGuest, Outcome, Size, Start, Stream, ToGuest, WITH_DIR};

use crate::input::{self, Raw, Window};
use crate::scene::Scene;
use crate::settings::Run;
use crate::{Failure, Result, left};

/// How a session ended.
#[derive(Debug)]
pub enum End {
    Exited(Outcome),
    /// It exited with 0, but a file that it wrote could not be written here.
    Unwritten(String),
    Deadline(Duration),
    /// The guest is no more.
    Gone,
}

/// How long a killed program may take to say its last words.
const GRACE: Duration = Duration::from_secs(3);

/// A program with all that it needs.
pub struct Request {
    start: Start,
    files: Vec<(FileHead, Source)>,
    timeout: Option<Duration>,
    /// Whether standard input is forwarded and files come back.
    attended: bool,
}

enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Request {
    /// A program of the host or the guest, with what the caller's options and variables say.
    pub fn from_host(run: &Run) -> Result<Request> {
        let cwd = env::current_dir()?;
        let mut files = Vec::new();
        let program = cwd.join(&run.program);
        if run.program.as_bytes().contains(&b'/') && program.is_file() {
            files.push(same_path(program)?);
        }
        for file in &run.with {
            let file = cwd.join(file);
            let Some(name) = file.file_name().filter(|_| file.is_file()) else {
                return Err(Failure::no_guest(format!("--with: no file {}", file.display())));
            };
            let path = Path::new(WITH_DIR).join(name);
            let target = Source::Bytes(file.clone().into_os_string().into_vec());
            files.push(same_path(file)?);
            files.push((FileHead { path, mode: 0, link: true }, target));
        }
        let named = |name: &OsString| {
            name.as_bytes().starts_with(b"RDMA_") || name.as_bytes().starts_with(b"RUST_")
        };
        let terminal = (run.terminal && input::is_terminal()).then(input::size).flatten();
        let start = Start {
            program: run.program.clone(),
            args: run.args.clone(),
            env: env::vars_os().filter(|(name, _)| named(name)).collect(),
            cwd,
            terminal,
            host_root: run.host_root,
        };
        Ok(Request { start, files, timeout: run.timeout, attended: true })
    }

    /// A scene's script.
    pub fn scene(scene: &Scene, timeout: Duration) -> Request {
        let file = |(path, text): (PathBuf, &[u8])| {
            (FileHead { path, mode: 0o755, link: false }, Source::Bytes(text.to_vec()))
        };
        Request {
            start: scene.start(),
            files: scene.files().map(file).collect(),
            timeout: Some(timeout),
            attended: false,
        }
    }

    pub fn terminal(&self) -> Option<Size> {
        self.start.terminal
    }

    fn send(self, mut port: &UnixStream) -> io::Result<()> {
        for (head, source) in self.files {
            ToGuest::File(head).send(&mut port)?;
            match source {
                Source::File(path) => send_data(&mut File::open(path)?, port)?,
                Source::Bytes(bytes) => send_data(&mut &bytes[..], port)?,
            }
        }
        ToGuest::Start(self.start).send(&mut port)
    }
}

/// A file that lies in the guest where it lies here.
fn same_path(path: PathBuf) -> Result<(FileHead, Source)> {
    let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
    Ok((FileHead { path: path.clone(), mode, link: false }, Source::File(path)))
}

fn send_data(from: &mut impl Read, mut port: &UnixStream) -> io::Result<()> {
    loop {
        let mut data = Vec::with_capacity(CHUNK);
        from.take(CHUNK as u64).read_to_end(&mut data)?;
        let end = data.is_empty();
        ToGuest::Data(data).send(&mut port)?;
        if end {
            return Ok(());
        }
    }
}

/// Where a program's output goes.
pub trait Output {
    /// An error means that nobody wants more of this stream.
    fn output(&mut self, stream: Stream, data: &[u8]) -> io::Result<()>;
}

/// Runs the program to its end.
pub fn run(port: &UnixStream, request: Request, output: &mut impl Output) -> Result<End> {
    let timeout = request.timeout;
    let attended = request.attended;
    let terminal = request.start.terminal;
    let mut files = attended.then(|| Returned::to(request.start.cwd.clone()));
    port.set_write_timeout(timeout)?;
    if let Err(e) = request.send(port) {
        return match (e.kind(), timeout) {
            (io::ErrorKind::WouldBlock, Some(timeout)) => Ok(End::Deadline(timeout)),
            (io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset, _) => Ok(End::Gone),
            _ => Err(e.into()),
        };
    }

    let to = Arc::new(Mutex::new(port.try_clone()?));
    let window = Window::new();
    if attended {
        input::forward(to.clone(), window.clone(), terminal);
    }
    let send = |message: ToGuest| message.send(&mut *to.lock().unwrap());
    let mut from = port.try_clone()?;
    let (arrived, messages) = sync_channel(4);
    thread::spawn(move || {
        while let Ok(Some(message)) = FromGuest::receive(&mut from) {
            if arrived.send(message).is_err() {
                break;
            }
        }
    });

    let mut deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut late = None;
    loop {
        let wait = deadline.map_or(Duration::MAX, left);
        match messages.recv_timeout(wait) {
            Ok(FromGuest::Output(stream, data)) => {
                if output.output(stream, &data).is_err() {
                    let _ = send(ToGuest::Ignore(stream));
                }
            }
            Ok(FromGuest::StdinTaken(bytes)) => window.give(bytes as usize),
            Ok(FromGuest::File(head)) => {
                if let Some(files) = &mut files {
                    files.begin(head);
                }
            }
            Ok(FromGuest::Data(data)) => {
                if let Some(files) = &mut files {
                    files.data(&data);
                }
            }
            Ok(FromGuest::Exited(outcome)) => {
                return Ok(match (late, files.and_then(|files| files.trouble), outcome) {
                    (Some(timeout), ..) => End::Deadline(timeout),
                    (None, Some(trouble), Outcome::Code(0)) => End::Unwritten(trouble),
                    (None, _, outcome) => End::Exited(outcome),
                });
            }
            Ok(FromGuest::Awake | FromGuest::Clear) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(End::Gone),
            Err(RecvTimeoutError::Timeout) => match (late, timeout) {
                (None, Some(timeout)) => {
                    let _ = send(ToGuest::Kill);
                    late = Some(timeout);
                    deadline = Some(Instant::now() + GRACE);
                }
                (Some(timeout), _) => return Ok(End::Deadline(timeout)),
                (None, None) => {}
            },
        }
    }
}

/// Files that the program wrote, on their way to the same place here.
struct Returned {
    folder: PathBuf,
    current: Option<(FileHead, Vec<u8>, Option<File>)>,
    /// The first thing that went wrong.
    trouble: Option<String>,
}

impl Returned {
    fn to(folder: PathBuf) -> Returned {
        Returned { folder, current: None, trouble: None }
    }

    fn begin(&mut self, mut head: FileHead) {
        // Nothing is written elsewhere, whatever a guest says.
        let inside = head.path.components().all(|part| matches!(part, Component::Normal(_)));
        head.path = self.folder.join(&head.path);
        let opened = match &head {
            _ if !inside => Err(io::Error::other("outside the working directory")),
            FileHead { link: true, .. } => Ok(None),
            _ => create(&head).map(Some),
        };
        match opened {
            Ok(file) => self.current = Some((head, Vec::new(), file)),
            Err(e) => self.note(&head.path, e),
        }
    }

    fn data(&mut self, data: &[u8]) {
        let Some((head, target, file)) = &mut self.current else { return };
        let result = match file {
            Some(file) => file.write_all(data),
            None if !data.is_empty() => {
                target.extend(data);
                Ok(())
            }
            None => make_link(head, std::mem::take(target)),
        };
        let path = head.path.clone();
        if data.is_empty() || result.is_err() {
            self.current = None;
        }
        if let Err(e) = result {
            self.note(&path, e);
        }
    }

    fn note(&mut self, path: &Path, error: io::Error) {
        self.trouble.get_or_insert(format!("cannot write {}: {error}", path.display()));
    }
}

fn create(head: &FileHead) -> io::Result<File> {
    fs::create_dir_all(head.path.parent().expect("under the working directory"))?;
    let file = File::create(&head.path)?;
    file.set_permissions(PermissionsExt::from_mode(head.mode))?;
    Ok(file)
}

fn make_link(head: &FileHead, target: Vec<u8>) -> io::Result<()> {
    fs::create_dir_all(head.path.parent().expect("under the working directory"))?;
    let _ = fs::remove_file(&head.path);
    symlink(OsString::from_vec(target), &head.path)
}

/// The caller's own streams.
pub struct Screen {
    stdout: File,
    stderr: File,
    _raw: Option<Raw>,
}

impl Screen {
    pub fn new(terminal: Option<Size>) -> io::Result<Screen> {
        Ok(Screen {
            stdout: File::from(io::stdout().as_fd().try_clone_to_owned()?),
            stderr: File::from(io::stderr().as_fd().try_clone_to_owned()?),
            _raw: terminal.map(|_| Raw::begin()).transpose()?,
        })
    }
}

impl Output for Screen {
    fn output(&mut self, stream: Stream, mut data: &[u8]) -> io::Result<()> {
        let file = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        while !data.is_empty() {
            match file.write(data) {
                Ok(n) => data = &data[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Whoever shares the stream has made it non-blocking.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Keeps what was said, for an error message.
#[derive(Default)]
pub struct Recorder(pub Vec<u8>);

impl Output for Recorder {
    fn output(&mut self, _: Stream, data: &[u8]) -> io::Result<()> {
        self.0.extend(data);
        Ok(())
    }
}

/// Linux's names on x86-64.
pub fn signal_name(signal: u8) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match NAMES.get(usize::from(signal).wrapping_sub(1)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {signal}"),
    }
}
