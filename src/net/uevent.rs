//! Word from the kernel that RDMA devices come and go (`NETLINK_KOBJECT_UEVENT`).

#![deny(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use super::listen::Listener;
use super::socket::{KOBJECT_UEVENT, Socket};
use crate::error::Result;

/// The group that the kernel sends to. udev sends what it has processed to the second one.
const KERNEL: u32 = 1;
/// Every device of the machine tells here; an RDMA device is some ten messages.
const ROOM: usize = 1 << 20;
const NAME: &str = "netlink uevents of devices (NETLINK_KOBJECT_UEVENT)";

/// Tells that RDMA devices came, went or were renamed: a socket that the kernel's uevents of the
/// subsystems `infiniband` and `infiniband_verbs` are taken from.
///
/// Opened before the devices are listed, it tells of every change after that, without waiting and
/// without remembering. It tells that there was one, not which: list the devices anew
/// ([`DeviceList::new`](crate::DeviceList::new)). An ordinary user may open it.
///
/// # What it can miss
///
/// The kernel tells of a device in the network namespace that the device is in: with RDMA devices
/// shared among all namespaces (the kernel's default), that is the first one. A process in another
/// one, a container with a network of its own, hears of the devices' nodes (`uverbs0`) only, and
/// in a user namespace of its own of nothing. A message that the kernel had no room for is counted
/// by [`lost`](Uevents::lost) and taken as a change.
///
/// Of a device that goes the kernel tells a moment *before* its entries in `/sys/class` vanish: first
/// `uverbs0`, when verbs no longer list the device, then `rxe0`. A list of devices is right when it is
/// made after the last message; a reader of `/sys/class/infiniband` may still meet a device there that
/// is none any more. A device's node appears in `/dev` about when
/// the kernel tells, but udev gives it its rights later: opening may be refused at first.
pub struct Uevents {
    listener: Listener,
}

impl Uevents {
    /// Opens the socket (`socket`, `bind`), in this thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host), where a sandbox has no such sockets or no more
    /// files may be open. A program can live without: it lists the devices now and then.
    #[doc(alias = "udev_monitor_new_from_netlink")]
    pub fn open() -> Result<Uevents> {
        let socket = Socket::for_groups(KOBJECT_UEVENT, KERNEL, ROOM, NAME)?;
        Ok(Uevents { listener: Listener::new(NAME, socket, tells_of_rdma) })
    }

    /// Takes in the messages there are, without waiting, and gives how many told of an RDMA device;
    /// a loss counts as one, since any may have come or gone. Other devices' are thrown away: the
    /// descriptor ([`AsFd`]) is readable for theirs too. A message is told once, to whoever takes it
    /// in first.
    ///
    /// # Errors
    ///
    /// [`Error::Host`](crate::Error::Host) when the socket cannot be read.
    pub fn process_events(&self) -> Result<usize> {
        self.listener.drain()
    }

    /// How often messages were lost, for want of room or memory.
    pub fn lost(&self) -> u64 {
        self.listener.lost()
    }
}

impl AsFd for Uevents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl fmt::Debug for Uevents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uevents").field("lost", &self.lost()).finish_non_exhaustive()
    }
}

/// Whether a message is a uevent of an RDMA device: `action@path`, then `KEY=value` each, with a
/// NUL behind every one. Whatever was done to it: a new kernel may do more than add, remove and
/// move. Of a message that was cut before its subsystem nobody knows.
fn tells_of_rdma(message: &[u8], whole: bool) -> bool {
    let mut fields = message.split(|byte| *byte == 0);
    // udev's own begin with its name.
    if !fields.next().is_some_and(|head| head.contains(&b'@')) {
        return false;
    }
    // A last field without its NUL is cut.
    let complete = match message.last() {
        Some(0) => fields,
        _ => {
            fields.next_back();
            fields
        }
    };
    let mut subsystems = complete.filter_map(|field| field.strip_prefix(b"SUBSYSTEM="));
    match subsystems.next() {
        Some(subsystem) => matches!(subsystem, b"infiniband" | b"infiniband_verbs"),
        None => !whole,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RXE: &[u8] = b"add@/devices/virtual/infiniband/rxe0\0ACTION=add\0\
        DEVPATH=/devices/virtual/infiniband/rxe0\0SUBSYSTEM=infiniband\0NAME=rxe0\0SEQNUM=2467\0";

    fn with(from: &str, to: &str) -> Vec<u8> {
        String::from_utf8(RXE.to_vec()).expect("text").replace(from, to).into_bytes()
    }

    #[test]
    fn uevents_of_rdma_devices() {
        assert!(tells_of_rdma(RXE, true));
        assert!(tells_of_rdma(&with("SUBSYSTEM=infiniband", "SUBSYSTEM=infiniband_verbs"), true));
        for action in ["remove", "move", "frobnicate"] {
            assert!(tells_of_rdma(&with("add", action), true), "{action}");
        }
    }

    #[test]
    fn others() {
        for other in ["net", "infiniband_mad", "infini", "", "infiniband2"] {
            let message = with("SUBSYSTEM=infiniband", &format!("SUBSYSTEM={other}"));
            assert!(!tells_of_rdma(&message, true), "{other}");
            assert!(!tells_of_rdma(&message, false), "{other}");
        }
        assert!(!tells_of_rdma(&with("add@", "libudev"), true));
        assert!(!tells_of_rdma(b"", true));
        assert!(!tells_of_rdma(b"add@/x\0XSUBSYSTEM=infiniband\0", true));
    }

    /// A message that ends early is no uevent; one that the buffer cut may be any.
    #[test]
    fn messages_that_end_early() {
        let subsystem = b"SUBSYSTEM=infiniband\0";
        let known = RXE.windows(subsystem.len()).position(|part| part == subsystem);
        let known = known.expect("it is there") + subsystem.len();
        let head = 3;
        for len in 0..RXE.len() {
            assert_eq!(tells_of_rdma(&RXE[..len], true), len >= known, "{len}");
            assert_eq!(tells_of_rdma(&RXE[..len], false), len > head, "{len}");
        }
    }

    #[test]
    fn an_ordinary_user_may_open_it() {
        let uevents = Uevents::open().expect("an ordinary user may");
        assert_eq!(uevents.lost(), 0);
        uevents.process_events().expect("it never waits");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, whole: bool) {
            let _ = tells_of_rdma(&bytes, whole);
        }
    }
}
