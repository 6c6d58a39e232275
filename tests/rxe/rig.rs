//! Devices of a test's own, and waiting with a deadline.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rdma_verbs::{Context, Device, DeviceList};

/// Readers: tests with devices of their own. The writer: a test that changes what all see.
static MACHINE: RwLock<()> = RwLock::new(());

/// Nothing else runs while this is held.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever is to be alone waits until this is let go of; a test that has no [`Rig`] of its own takes it.
pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program to its end; it must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}: {stderr}", output.status);
}

/// iproute2's `ip`, by its path: busybox has one too.
pub(crate) fn ip(arguments: &[&str]) {
    run("/bin/ip", arguments);
}

/// Many `ip` commands, one a line, in one process.
pub(crate) fn ip_batch(commands: &str) {
    use std::io::Write;
    let mut child = Command::new("/bin/ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("/bin/ip");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(commands.as_bytes()).expect("ip reads its input");
    drop(stdin);
    let status = child.wait().expect("ip ends");
    assert!(status.success(), "ip -batch: {status}");
}

/// Makes a network namespace. The kernel fails to, with ENODEV, while an RDMA device is going: another
/// test's.
pub(crate) fn add_namespace(name: &str) {
    wait_until("there is a namespace", || {
        let added = Command::new("/bin/ip").args(["netns", "add", name]).output();
        added.expect("/bin/ip").status.success()
    });
}

/// Waits until the condition holds; fails after 20 s.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An rxe device on a dummy interface, both of one test's own.
pub(crate) struct Rig {
    /// The RDMA device.
    pub(crate) device: String,
    /// The network interface below it.
    pub(crate) netdev: String,
    number: u32,
    gone: bool,
    _machine: Option<RwLockReadGuard<'static, ()>>,
}

impl Rig {
    /// A device with its link-local GID and no other. One for each test: whoever is to be alone waits
    /// for it, and a second would wait for him.
    pub(crate) fn new() -> Rig {
        Rig::make(Some(MACHINE.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The same for a test that is [`alone`] already.
    pub(crate) fn within_alone() -> Rig {
        Rig::make(None)
    }

    fn make(machine: Option<RwLockReadGuard<'static, ()>>) -> Rig {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (device, netdev) = (format!("test{number}"), format!("t{number}"));
        ip(&["link", "add", &netdev, "type", "dummy"]);
        ip(&["link", "set", &netdev, "up"]);
        run("/bin/rdma", &["link", "add", &device, "type", "rxe", "netdev", &netdev]);
        Rig { device, netdev, number, gone: false, _machine: machine }
    }

    /// The rig's own number as it is in its addresses: another's only when that is long gone.
    pub(crate) fn number(&self) -> u8 {
        (self.number % 251) as u8
    }

    /// Gives the interface `count` IPv4 addresses, from 198.18.`n`.1 on, and waits until the GID
    /// table of `context` has them.
    pub(crate) fn add_addresses(&self, context: &Context, count: u32) {
        let before = context.gids().fresh().expect("the table can be read").rows().len();
        let commands: String = (1..=count)
            .map(|host| {
                format!("addr add 198.18.{}.{host}/32 dev {}\n", self.number(), self.netdev)
            })
            .collect();
        ip_batch(&commands);
        wait_until("the addresses are in the table", || {
            let rows = context.gids().fresh().expect("the table can be read").rows().len();
            rows == before + count as usize
        });
    }

    /// The device as listed now.
    pub(crate) fn listed(&self) -> Device {
        let list = DeviceList::new().expect("devices can be listed");
        list.find(&self.device).expect("the device is listed").clone()
    }

    /// The device, opened.
    pub(crate) fn open(&self) -> Context {
        self.listed().open().expect("the device opens")
    }

    /// Takes the device away, which waits until nobody has it open.
    pub(crate) fn remove(&mut self) {
        if !std::mem::replace(&mut self.gone, true) {
            ip(&["link", "del", &self.netdev]);
        }
    }

    /// Leaves the device where it is: somebody in this process has it open to the end.
    pub(crate) fn leave(mut self) -> (String, u8) {
        self.gone = true;
        (self.device.clone(), self.number())
    }

    /// Begins to take the device away; the command ends when nobody has it open.
    pub(crate) fn begin_removal(&mut self) -> std::process::Child {
        self.gone = true;
        let removal = Command::new("/bin/ip").args(["link", "del", &self.netdev]).spawn();
        removal.expect("/bin/ip starts")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A test that failed may still hold a context, on which the removal would wait.
        if !std::thread::panicking() {
            self.remove();
        }
    }
}
