//! The emulated machine: QEMU, its wires and its end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::rand::{GetRandomFlags, getrandom};

use wire::{FromGuest, HOST_ROOT_TAG, PORTS, ToGuest, port_name};

use crate::home::{Console, Home, Image};
use crate::qmp::Qmp;
use crate::settings::Settings;
use crate::{Failure, Result, tsc};

pub const QEMU: &str = "qemu-system-x86_64";

/// How long a guest may take until it answers.
pub const BOOT_LIMIT: Duration = Duration::from_secs(45);
pub const RESTORE_LIMIT: Duration = Duration::from_secs(30);

const MEMORY: &str = "1G";

pub struct Machine {
    qemu: Child,
    pub qmp: Qmp,
    ports: Vec<UnixStream>,
}

/// What makes one machine differ from another in a way that its saved state depends on.
pub fn arguments(settings: &Settings) -> Vec<String> {
    let accelerator = if settings.kvm {
        ["-accel", "kvm", "-cpu", "host"]
    } else {
        ["-accel", "tcg,thread=multi", "-cpu", "max"]
    };
    let mut arguments: Vec<String> =
        ["-M", "microvm,memory-backend=memory", "-smp", "2", "-m", MEMORY]
            .into_iter()
            .chain(accelerator)
            .chain(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .chain(["-serial", "chardev:console"])
            .map(String::from)
            .collect();

    let device = |arguments: &mut Vec<String>, description: String| {
        arguments.extend(["-device".to_owned(), description]);
    };
    // One port more than we have: number 0 is set aside for a console.
    device(&mut arguments, format!("virtio-serial-device,max_ports={}", PORTS + 1));
    for n in 0..PORTS {
        device(&mut arguments, format!("virtserialport,chardev=port{n},name={}", port_name(n)));
    }
    arguments.extend([
        "-fsdev".to_owned(),
        "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap".to_owned(),
    ]);
    device(&mut arguments, format!("virtio-9p-device,fsdev=host,mount_tag={HOST_ROOT_TAG}"));
    arguments
}

/// The kernel's command line.
pub fn command_line(home: &Home, settings: &Settings) -> String {
    let line = "console=ttyS0 quiet panic=-1 oops=panic reboot=t mitigations=off tsc=reliable";
    if settings.kvm {
        return line.to_owned();
    }
    format!("{line} tsc_early_khz={}", tsc::khz(&home.tsc()))
}

impl Machine {
    /// Starts from nothing, with memory that stays in a file.
    pub fn boot(
        home: &Home,
        settings: &Settings,
        image: &Image,
        memory: &Path,
        console: &Console,
    ) -> Result<Machine> {
        let mut more = memory_backend(memory, true);
        more.extend(["-kernel".into(), image.kernel.clone().into()]);
        more.extend(["-initrd".into(), image.initrd.clone().into()]);
        more.extend(["-append".into(), command_line(home, settings).into()]);
        Machine::start(home, settings, more, None, console)
    }

    /// Starts where a snapshot was taken, with a private copy of its memory.
    pub fn restore(
        home: &Home,
        settings: &Settings,
        memory: &Path,
        state: &File,
        console: &Console,
    ) -> Result<Machine> {
        let mut more = memory_backend(memory, false);
        more.extend(["-incoming".into(), "defer".into()]);
        let mut machine = Machine::start(home, settings, more, Some(state), console)?;
        machine
            .ignore_shared_memory()
            .and_then(|()| {
                let uri = format!("fd:{}", state.as_raw_fd());
                machine.qmp.command("migrate-incoming", serde_json::json!({ "uri": uri }))
            })
            .map_err(|e| {
                Failure::no_guest(format!(
                    "the guest could not be restored: {}",
                    console.last_line(&e)
                ))
                .see(console)
            })?;
        Ok(machine)
    }

    fn start(
        home: &Home,
        settings: &Settings,
        more: Vec<OsString>,
        state: Option<&File>,
        console: &Console,
    ) -> Result<Machine> {
        // QEMU finds its ends of the sockets by number, so they outlive the exec. They are closed
        // here when it has been started.
        let mut theirs = Vec::new();
        let mut wire = |name: &str, arguments: &mut Vec<OsString>| -> io::Result<UnixStream> {
            let (ours, other) = UnixStream::pair()?;
            inherit(&other)?;
            let chardev = format!("socket,id={name},fd={}", other.as_raw_fd());
            arguments.extend(["-chardev".into(), chardev.into()]);
            theirs.push(OwnedFd::from(other));
            Ok(ours)
        };
        let mut wires = Vec::new();
        let ports = (0..PORTS)
            .map(|n| wire(&format!("port{n}"), &mut wires))
            .collect::<io::Result<Vec<_>>>()?;
        let qmp = wire("qmp", &mut wires)?;
        wires.extend(["-mon".into(), "chardev=qmp,mode=control".into()]);
        let mut log = OsString::from("file,id=console,append=on,path=");
        log.push(escape(console.path()));
        wires.extend(["-chardev".into(), log]);
        if let Some(state) = state {
            inherit(state)?;
        }

        let complaints = File::options().create(true).append(true).open(console.path())?;
        let qemu = Command::new(std::env::current_exe()?)
            .arg(home.checkout())
            .arg("launch")
            .arg(std::process::id().to_string())
            .arg(QEMU)
            .args(wires)
            .args(arguments(settings))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints)
            .spawn()?;
        let mut machine = Machine { qemu, qmp: Qmp::new(qmp)?, ports };
        drop(theirs);
        machine.qmp.greet().map_err(|e| {
            Failure::no_guest(format!("QEMU did not start: {}", console.last_line(&e))).see(console)
        })?;
        Ok(machine)
    }

    /// One of the ports nobody has yet.
    pub fn take_port(&mut self) -> UnixStream {
        self.ports.remove(0)
    }

    pub fn take_ports(&mut self) -> Vec<UnixStream> {
        std::mem::take(&mut self.ports)
    }

    /// Saves everything but the memory, which is in its file already, and ends the machine.
    pub fn save(mut self, state: &Path) -> io::Result<()> {
        self.ignore_shared_memory()?;
        // Quoted for the shell that QEMU hands it to.
        let quoted = state.display().to_string().replace('\'', r"'\''");
        let uri = format!("exec:cat >'{quoted}'");
        self.qmp.command("migrate", serde_json::json!({ "uri": uri }))?;
        self.qmp.migrated()?;
        self.qmp.command("quit", serde_json::json!({}))?;
        self.qemu.wait()?;
        Ok(())
    }

    fn ignore_shared_memory(&mut self) -> io::Result<()> {
        let on = |name| serde_json::json!({ "capability": name, "state": true });
        let capabilities = [on("x-ignore-shared"), on("events")];
        self.qmp.command(
            "migrate-set-capabilities",
            serde_json::json!({ "capabilities": capabilities }),
        )
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Waits until the guest answers, and hands it today's clock and entropy.
pub fn wake(mut port: &UnixStream, limit: Duration) -> Result<()> {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut seed = vec![0; 64];
    getrandom(&mut seed[..], GetRandomFlags::empty()).map_err(io::Error::from)?;
    ToGuest::Wake { unix_nanos: since_epoch.as_nanos() as u64, seed }.send(&mut port)?;

    port.set_read_timeout(Some(limit))?;
    let answer = FromGuest::receive(&mut port);
    port.set_read_timeout(None)?;
    match answer {
        Ok(Some(FromGuest::Awake)) => Ok(()),
        Ok(_) => Err(Failure::no_guest("the guest never came up: it ended")),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            let limit = limit.as_secs();
            Err(Failure::no_guest(format!("the guest never came up: no answer within {limit} s")))
        }
        Err(e) => Err(Failure::no_guest(format!("the guest never came up: {e}"))),
    }
}

/// What a child process does on its way to become QEMU: `PARENT QEMU ARGUMENTS`. However its
/// parent ends, QEMU ends too.
pub fn launch(args: Vec<OsString>) -> Result<u8> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let parent = args[0].to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    if getppid() != parent {
        return Err(Failure::no_guest("the runner is gone"));
    }
    let error = Command::new(&args[1]).args(&args[2..]).exec();
    Err(Failure::no_guest(format!("cannot start {QEMU} ({error}); run tests/rxe/setup")))
}

fn memory_backend(file: &Path, share: bool) -> Vec<OsString> {
    let share = if share { "on" } else { "off" };
    let mut object = OsString::from(format!(
        "memory-backend-file,id=memory,size={MEMORY},share={share},mem-path="
    ));
    object.push(escape(file));
    vec!["-object".into(), object]
}

/// A comma ends a value in QEMU's options, two are one.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn inherit(fd: &impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfd(fd, FdFlags::empty())?)
}
