//! The kernel's events of devices: the ports come up, and `/dev/char/MAJOR:MINOR` is kept as udev
//! would keep it.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use wire::{PORTS, port_name};

pub struct Events {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Events {
    pub fn listen() -> io::Result<Events> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(KOBJECT_UEVENT),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 1))?;
        Ok(Events { socket, buffer: vec![0; 64 * 1024] })
    }

    /// The next event; `None` when some were lost and everything is to be looked at again.
    fn next(&mut self) -> io::Result<Option<Event>> {
        match recv(&self.socket, &mut self.buffer, RecvFlags::empty()) {
            Ok((n, _)) => Ok(Some(Event::parse(&self.buffer[..n]))),
            Err(rustix::io::Errno::NOBUFS) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes the links of the devices there are, and from then on follows the events.
    pub fn keep_links(mut self) -> io::Result<()> {
        link_all()?;
        loop {
            match self.next()? {
                Some(event) => event.follow(),
                None => link_all()?,
            }
        }
    }
}

/// What matters of a uevent.
#[derive(Default)]
struct Event {
    removed: bool,
    block: bool,
    major: String,
    minor: String,
    name: String,
}

impl Event {
    fn parse(message: &[u8]) -> Event {
        let mut event = Event::default();
        for field in message.split(|&byte| byte == 0) {
            let field = String::from_utf8_lossy(field);
            let Some((key, value)) = field.split_once('=') else { continue };
            match key {
                "ACTION" => event.removed = value == "remove",
                "SUBSYSTEM" => event.block = value == "block",
                "MAJOR" => event.major = value.to_owned(),
                "MINOR" => event.minor = value.to_owned(),
                "DEVNAME" => event.name = value.to_owned(),
                _ => {}
            }
        }
        event
    }

    fn follow(&self) {
        if self.name.is_empty() || self.major.is_empty() {
            return;
        }
        let folder = if self.block { "/dev/block" } else { "/dev/char" };
        let link = Path::new(folder).join(format!("{}:{}", self.major, self.minor));
        // A number may be reused before the old device's removal was read: the newest name wins.
        if self.removed {
            if fs::read_link(&link).is_ok_and(|target| target == self.target()) {
                let _ = fs::remove_file(link);
            }
        } else {
            let _ = fs::remove_file(&link);
            let _ = symlink(self.target(), link);
        }
    }

    fn target(&self) -> PathBuf {
        Path::new("..").join(self.name.trim_start_matches("/dev/"))
    }
}

fn link_all() -> io::Result<()> {
    for (kind, block) in [("char", false), ("block", true)] {
        fs::create_dir_all(Path::new("/dev").join(kind))?;
        let Ok(devices) = fs::read_dir(Path::new("/sys/dev").join(kind)) else { continue };
        for device in devices {
            // A device may vanish between listing and reading.
            if let Ok(text) = fs::read(device?.path().join("uevent")) {
                let lines: Vec<u8> = text.iter().map(|&b| if b == b'\n' { 0 } else { b }).collect();
                Event { block, ..Event::parse(&lines) }.follow();
            }
        }
    }
    Ok(())
}

/// All ports, opened, in order. They come one by one, each with an event.
pub fn ports(events: &mut Events) -> io::Result<Vec<File>> {
    loop {
        let found: Vec<PathBuf> = (0..PORTS).map_while(port_device).collect();
        if found.len() == PORTS {
            return found
                .iter()
                .map(|path| File::options().read(true).write(true).open(path))
                .collect();
        }
        events.next()?;
    }
}

fn port_device(n: usize) -> Option<PathBuf> {
    for port in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        if name.trim_end() == port_name(n) {
            let device = Path::new("/dev").join(port.file_name());
            return device.exists().then_some(device);
        }
    }
    None
}
