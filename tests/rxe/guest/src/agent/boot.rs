//! What a distribution's init would have done before anybody logs in.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, Rlimit, setrlimit};

const MOUNTS: [(&str, &str, &str); 11] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", "mode=755"),
    ("devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("hugetlbfs", "/dev/hugepages", ""),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/tmp", "mode=1777"),
    ("tmpfs", "/root", "mode=755"),
    ("debugfs", "/sys/kernel/debug", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
];

/// The wires. Everything of RDMA is left to the scene.
const MODULES: [&str; 2] = ["virtio_mmio", "virtio_console"];

pub fn make_system() -> io::Result<()> {
    for (kind, at, options) in MOUNTS {
        fs::create_dir_all(at)?;
        let options = std::ffi::CString::new(options)?;
        mount(kind, at, kind, MountFlags::empty(), &*options)
            .map_err(|e| io::Error::new(e.kind(), format!("mounting {at}: {e}")))?;
    }
    for (target, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        symlink(target, link)?;
    }
    fs::set_permissions("/dev/ptmx", PermissionsExt::from_mode(0o666))?;
    fs::create_dir_all("/run/lock")?;

    fs::write("/proc/sys/kernel/hostname", "rxe")?;
    // An IPv6 address is there at once, not after a second of looking for a duplicate.
    for interfaces in ["default", "all"] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/accept_dad"), "0")?;
    }

    run("/usr/sbin/modprobe", &[&["-a"], &MODULES[..]].concat())?;
    run("/bin/ip", &["link", "set", "lo", "up"])?;

    // As systemd has it: the kernel's own hard limit is 4096.
    let files = Rlimit { current: Some(1024), maximum: Some(524_288) };
    setrlimit(Resource::Nofile, files)?;
    Ok(())
}

pub fn run(program: &str, args: &[&str]) -> io::Result<()> {
    let status = Command::new(program).args(args).status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{program} {}: {status}", args.join(" "))))
}
