//! One program from start to end.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use wire::{CHUNK, FromGuest, HOST_ROOT_TAG, Outcome, Size, Start, Stream, WITH_DIR};

use crate::boot;
use crate::files::{Listing, make_folder};
use crate::port::Host;

/// A running program, as its port sees it.
pub struct Program {
    pid: Pid,
    exit: OwnedFd,
    input: Sender<Vec<u8>>,
    terminal: Option<File>,
    ignored: Arc<Ignored>,
    /// Waits for the end and reports it.
    waiter: JoinHandle<io::Result<()>>,
}

/// Streams that nobody reads any more.
#[derive(Default)]
struct Ignored {
    stdout: AtomicBool,
    stderr: AtomicBool,
}

impl Ignored {
    fn of(&self, stream: Stream) -> &AtomicBool {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }
}

impl Program {
    pub fn start(start: Start, host: Host) -> Result<Program, Outcome> {
        let not_started = |e: io::Error| Outcome::NotStarted(e.to_string());
        make_folder(&start.cwd).map_err(not_started)?;
        if start.host_root {
            mount_host_root().map_err(not_started)?;
        }
        let file = find(&start).ok_or(Outcome::NotFound)?;
        let before = Listing::of(&start.cwd);
        let (child, terminal) = spawn(&file, &start).map_err(not_started)?;
        Program::attend(child, terminal, before, host).map_err(not_started)
    }

    /// Sets up the threads that carry the child's streams.
    fn attend(
        mut child: Child,
        terminal: Option<File>,
        before: Option<Listing>,
        host: Host,
    ) -> io::Result<Program> {
        let pid = Pid::from_child(&child);
        let exit = pidfd_open(pid, PidfdFlags::empty())?;
        let ignored = Arc::new(Ignored::default());
        let (input, to_write) = channel();

        let mut pumps = Vec::new();
        let mut pump = |stream, from: OwnedFd| -> io::Result<()> {
            let pump = Pump {
                stream,
                from: from.into(),
                exit: exit.try_clone()?,
                terminal: terminal.is_some(),
                ignored: ignored.clone(),
                host: host.clone(),
            };
            pumps.push(thread::spawn(move || pump.run()));
            Ok(())
        };
        let to: Box<dyn Write + Send> = if let Some(terminal) = &terminal {
            pump(Stream::Stdout, terminal.try_clone()?.into())?;
            Box::new(terminal.try_clone()?)
        } else {
            pump(Stream::Stdout, child.stdout.take().expect("piped").into())?;
            pump(Stream::Stderr, child.stderr.take().expect("piped").into())?;
            Box::new(child.stdin.take().expect("piped"))
        };
        let acknowledge = host.clone();
        thread::spawn(move || feed(to_write, to, acknowledge));

        let waiter = thread::spawn(move || wait(child, pumps, before, host));
        Ok(Program { pid, exit, input, terminal, ignored, waiter })
    }

    pub fn input(&self, data: Vec<u8>) {
        let _ = self.input.send(data);
    }

    pub fn ignore(&self, stream: Stream) {
        self.ignored.of(stream).store(true, Ordering::Relaxed);
    }

    pub fn resize(&self, size: Size) {
        if let Some(terminal) = &self.terminal {
            let _ = tcsetwinsize(terminal, window(size));
        }
    }

    /// Ends the program and its process group.
    pub fn kill(&self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = pidfd_send_signal(&self.exit, Signal::KILL);
    }

    /// Ends it if it is still there, and returns when its last message has been sent.
    pub fn end(self) {
        if !self.waiter.is_finished() {
            self.kill();
        }
        let _ = self.waiter.join();
    }
}

fn find(start: &Start) -> Option<PathBuf> {
    let path = Path::new(&start.program);
    if start.program.as_encoded_bytes().contains(&b'/') {
        return Some(start.cwd.join(path)).filter(|path| path.exists());
    }
    search_path().split(':').map(|folder| Path::new(folder).join(path)).find(|path| path.is_file())
}

fn search_path() -> String {
    format!("{WITH_DIR}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

fn spawn(file: &Path, start: &Start) -> io::Result<(Child, Option<File>)> {
    let Some(size) = start.terminal else {
        let mut command = Command::new(file);
        command.arg0(&start.program).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        return Ok((with_settings(&mut command, start).spawn()?, None));
    };

    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&terminal)?;
    unlockpt(&terminal)?;
    tcsetwinsize(&terminal, window(size))?;
    let name = ptsname(&terminal, Vec::new())?;
    let user =
        File::options().read(true).write(true).open(name.to_str().map_err(io::Error::other)?)?;
    // `setsid -c` makes it the program's controlling terminal.
    let mut command = Command::new("/usr/bin/setsid");
    command.arg("-c").arg(file).env("TERM", "linux");
    command.stdin(user.try_clone()?).stdout(user.try_clone()?).stderr(user);
    Ok((with_settings(&mut command, start).spawn()?, Some(terminal.into())))
}

fn with_settings<'a>(command: &'a mut Command, start: &Start) -> &'a mut Command {
    let term = command.get_envs().find_map(|(name, value)| {
        (name == OsStr::new("TERM")).then(|| value.unwrap_or_default().to_owned())
    });
    command.env_clear();
    command.env("PATH", search_path()).env("HOME", "/root").env("LANG", "C.UTF-8");
    if let Some(term) = term {
        command.env("TERM", term);
    }
    command
        .envs(start.env.iter().map(|(name, value)| (name, value)))
        .args(&start.args)
        .current_dir(&start.cwd)
}

fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn mount_host_root() -> io::Result<()> {
    if fs::read_dir("/host")?.next().is_some() {
        return Ok(());
    }
    boot::run("/usr/sbin/modprobe", &["-a", "9p", "9pnet_virtio"])?;
    let options = c"trans=virtio,version=9p2000.L,msize=262144,cache=loose";
    mount(HOST_ROOT_TAG, "/host", "9p", MountFlags::RDONLY, options)?;
    Ok(())
}

/// Carries one stream of the program to the host.
struct Pump {
    stream: Stream,
    from: File,
    exit: OwnedFd,
    terminal: bool,
    ignored: Arc<Ignored>,
    host: Host,
}

impl Pump {
    /// Until the stream's end, or until the program has ended and what it left has been read:
    /// something that it started may hold the stream open for ever.
    fn run(mut self) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        while self.wait()? {
            let n = match self.from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                // A terminal whose last user is gone.
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Ok(());
                }
                Err(e) => return Err(e),
            };
            if self.ignored.of(self.stream).load(Ordering::Relaxed) {
                return Ok(());
            }
            self.host.send(FromGuest::Output(self.stream, buffer[..n].to_vec()))?;
        }
        let mut left = ioctl_fionread(&self.from)?;
        while left > 0 {
            let most = buffer.len().min(left as usize);
            let n = self.from.read(&mut buffer[..most])?;
            self.host.send(FromGuest::Output(self.stream, buffer[..n].to_vec()))?;
            left -= n as u64;
        }
        Ok(())
    }

    /// Waits for something to read; false when the program has ended.
    fn wait(&self) -> io::Result<bool> {
        let from = PollFd::new(&self.from, PollFlags::IN);
        let mut fds = [from.clone(), PollFd::new(&self.exit, PollFlags::IN)];
        poll(&mut fds, None)?;
        if fds[1].revents().is_empty() {
            return Ok(true);
        }
        // A terminal hands its last bytes on a moment later, and then says that its user is gone.
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        Ok(self.terminal && poll(&mut [from], Some(&moment))? > 0)
    }
}

/// Writes the program's standard input.
fn feed(data: Receiver<Vec<u8>>, to: Box<dyn Write + Send>, host: Host) {
    let mut to = Some(to);
    for data in data {
        if data.is_empty() {
            to = None;
        } else if let Some(open) = &mut to
            && open.write_all(&data).is_err()
        {
            to = None;
        }
        let _ = host.send(FromGuest::StdinTaken(data.len() as u32));
    }
}

fn wait(
    mut child: Child,
    pumps: Vec<JoinHandle<io::Result<()>>>,
    before: Option<Listing>,
    host: Host,
) -> io::Result<()> {
    for pump in pumps {
        let _ = pump.join();
    }
    let status = child.wait()?;
    let outcome = match status.signal() {
        Some(signal) => Outcome::Signal(signal as u8),
        None => Outcome::Code(status.code().unwrap_or_default() as u8),
    };
    if let Some(before) = before {
        // A file that cannot be read is the program's business, not a reason to say nothing.
        let _ = before.send_changes(&mut |message| host.send(message));
    }
    host.send(FromGuest::Exited(outcome))
}
