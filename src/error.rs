//! What can go wrong, told with the object, the limit and what was asked.

mod errno;
mod exchange;
mod manager;
mod moved;
mod no_device;
mod object;
mod refusal;
mod transition;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::types::{
    Capability, Gid, GidEntry, IfName, ParseGidError, PortNum, Qpn, Wanted, WcOpcode, WcStatus,
};

pub use errno::Errno;
pub use exchange::{ExchangeFault, ExchangeProblem, ExchangeStep, RecordError};
pub use manager::{CmFault, CmReason};
pub use moved::GidMoved;
pub use no_device::{AddressWithDevice, NoDeviceForAddress};
pub use object::Object;
pub use refusal::{Queue, QueueOwner, Refusal, WindowFault};
pub use transition::TransitionFault;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything this crate's calls can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed: which, on what, and the errno it gave.
    #[error("{verb} on {object}: {errno}")]
    Verb {
        /// The C function's name.
        verb: &'static str,
        /// What it was called on.
        object: Object,
        /// Why it failed.
        errno: Errno,
    },

    /// A call that concerns the host and no device failed.
    #[error("{call}: {errno}")]
    Host {
        /// The system call, or the C library's function.
        call: &'static str,
        /// Why it failed.
        errno: Errno,
    },

    /// A file of sysfs could not be read.
    #[error("{object}: sysfs {file}: {errno}")]
    Sysfs {
        /// The device and port whose file it is.
        object: Object,
        /// The file, below the device's folder.
        file: Box<str>,
        /// Why it failed.
        errno: Errno,
    },

    /// The list of devices could not be had at all.
    #[error("ibv_get_device_list: {errno}")]
    DeviceList {
        /// Why it failed.
        errno: Errno,
    },

    /// No RDMA device of this name is listed.
    #[error("no RDMA device named {name:?}; {}", listed(available))]
    NoSuchDevice {
        /// The name asked for.
        name: Box<str>,
        /// The names there are.
        available: Vec<Box<str>>,
    },

    /// The device was listed but has gone since.
    #[error("{device} has gone: it was listed, but {} is no longer there, or another's", node.display())]
    DeviceGone {
        /// The device's name when it was listed.
        device: Box<str>,
        /// Its node in `/dev/infiniband`.
        node: PathBuf,
    },

    /// The device is there, but has no node in this `/dev`: a container that was not given it.
    #[error("{device} has no node {}: give this container or chroot the device node", node.display())]
    NoNode {
        /// The device's name.
        device: Box<str>,
        /// The node that is missing.
        node: PathBuf,
    },

    /// The device's node may not be opened by this user: by its permissions (`EACCES`), or by the
    /// rules of the container or namespace (`EPERM`).
    #[error("{device}: no permission to open {} ({}); {}", node.display(), name_of(*errno), allow(*errno))]
    PermissionDenied {
        /// `EACCES` or `EPERM`.
        errno: Errno,
        /// The device's name.
        device: Box<str>,
        /// The node that cannot be opened.
        node: PathBuf,
    },

    /// The device has failed (`IBV_EVENT_DEVICE_FATAL`): close everything made on it.
    #[error("{device} has failed (DEVICE_FATAL): close what was made on it and open it again")]
    DeviceFatal {
        /// The device's name.
        device: Box<str>,
    },

    /// A port number outside `1..=ports`.
    #[error("{device} has no port {port}: its ports are 1 to {ports}")]
    NoSuchPort {
        /// The device's name.
        device: Box<str>,
        /// The port asked for.
        port: PortNum,
        /// How many ports the device has.
        ports: u32,
    },

    /// A GID table index beyond the port's table.
    #[error("{object} is outside the GID table: its length is {len}")]
    GidIndexOutOfRange {
        /// The device, port and index asked for.
        object: Object,
        /// The table's length; the last index is one less.
        len: u32,
    },

    /// A GID table row that holds no GID now.
    #[error("{object} holds no GID: the row is empty")]
    GidRowEmpty {
        /// The device, port and index asked for.
        object: Object,
    },

    /// A GID table index that verbs cannot carry: the row can be seen and found, but not used.
    #[error("{object} cannot be used: verbs carry an index of 0 to 255")]
    GidIndexTooLarge {
        /// The device, port and index asked for.
        object: Object,
    },

    /// A row is not what it was when it was looked up.
    #[error(transparent)]
    GidMoved(Box<GidMoved>),

    /// No row of any device fits a query; tells what there is, and why not. In full:
    /// [`GidQuery::explain`](crate::GidQuery::explain).
    #[error("no GID fits {query}: {rows}")]
    NoGidFits {
        /// The query.
        query: Box<str>,
        /// What is wrong with it, and the first rows there are with the reason for each.
        rows: Box<str>,
    },

    /// Several rows fit a query that asked for the only one.
    #[error("several GIDs fit {query}: {rows}; say which, by device, port, netdev or type")]
    Ambiguous {
        /// The query.
        query: Box<str>,
        /// Those that fit, at most 16.
        rows: Box<str>,
    },

    /// No row of a device's GID tables carries what was looked for; tells what there is.
    #[error("no GID table row of {device} carries {wanted}; {}", rows_there_are(rows, *more))]
    GidNotFound {
        /// The device whose tables were searched.
        device: Box<str>,
        /// The GID, address or netdev looked for.
        wanted: Wanted,
        /// The first rows there are, at most 16.
        rows: Box<[GidEntry]>,
        /// How many more there are.
        more: u32,
    },

    /// There is no way to an address: no route, a route that forbids it, or no address of a host.
    #[error("no route to {to}: {reason}")]
    NoRoute {
        /// Where to, with the source, interface and mark that were asked for.
        to: Box<str>,
        /// Why not: the kernel's errno and what it means, or what the address is.
        reason: Box<str>,
        /// What the kernel answered the question for a route with, if it did not give one.
        errno: Option<Errno>,
    },

    /// The address to send from has no RDMA device; tells which addresses have one.
    #[error(transparent)]
    NoDeviceForAddress(Box<NoDeviceForAddress>),

    /// The next hop does not answer: the kernel asked for its hardware address in vain.
    #[error("{neighbour} on {netdev} does not answer{}", long_since(*remembered))]
    Unreachable {
        /// The next hop: the destination itself, or the router towards it.
        neighbour: IpAddr,
        /// The interface it should be on.
        netdev: IfName,
        /// How long ago it was found out, when that is only remembered: it was not asked again.
        remembered: Option<Duration>,
    },

    /// The next hop was still being asked for its hardware address when the time was over.
    #[error("{neighbour} on {netdev} has not answered within {waited:?}: the kernel still asks")]
    ResolveTimeout {
        /// The next hop: the destination itself, or the router towards it.
        neighbour: IpAddr,
        /// The interface it should be on.
        netdev: IfName,
        /// How long was waited.
        waited: Duration,
    },

    /// A GID table as read from the device or from sysfs makes no sense.
    #[error("GID table of {object}: {problem}")]
    BadTable {
        /// The device and port whose table it is.
        object: Object,
        /// What is wrong with it, with the file where there is one.
        problem: Box<str>,
    },

    /// A number that is too small or too large: what it is of, what was asked, and what can be.
    #[error("{what} is to be {asked}: it can be {least} to {most}")]
    OutOfRange {
        /// What the number is of.
        what: &'static str,
        /// What was asked.
        asked: u64,
        /// The least it can be.
        least: u64,
        /// The most it can be; a limit of the device where it has one.
        most: u64,
    },

    /// A place that must be a multiple of something.
    #[error("{what} is {at}: it must be a multiple of {to}")]
    Unaligned {
        /// What the place is of.
        what: &'static str,
        /// Where it is.
        at: u64,
        /// What it must be a multiple of.
        to: u64,
    },

    /// The kernel has no memory for it that it may lock (`ENOMEM`). Who is not root may lock so much, in
    /// all (`RLIMIT_MEMLOCK`, `ulimit -l`).
    #[error("{device}: no memory for {what} of {asked} bytes; this user may lock {} in all (ulimit -l)", limit_text(*limit))]
    NoMemory {
        /// The device's name.
        device: Box<str>,
        /// What it was for.
        what: &'static str,
        /// How much was asked, in bytes.
        asked: u64,
        /// How much this process may lock, in bytes; `None` for no limit.
        limit: Option<u64>,
    },

    /// A page pool that could not get as many slabs as its floor: how many it got, and why not more. They
    /// are gone again.
    #[error("{made} of {asked} slabs of {bytes} bytes could be made: {why}")]
    FewerSlabs {
        /// How many could be made.
        made: usize,
        /// How many there were to be: the floor.
        asked: usize,
        /// The size of each, in bytes.
        bytes: u64,
        /// Why there could not be one more.
        #[source]
        why: Box<Error>,
    },

    /// Something that this device cannot do at all, as it told when it was opened.
    #[error("{device} has no {what}")]
    Unsupported {
        /// The device's name.
        device: Box<str>,
        /// What it cannot do.
        what: Capability,
    },

    /// Something that somebody still uses.
    #[error("{what} cannot be given up: {by} are in use")]
    InUse {
        /// What it is.
        what: &'static str,
        /// Who uses it.
        by: &'static str,
    },

    /// An address that is wrong whatever the device.
    #[error("{device}: {what}")]
    BadAddress {
        /// The device.
        device: Box<str>,
        /// The field, and what is wrong with it.
        what: Box<str>,
    },

    /// A multicast group that the device has no room for: the groups it can have, the queue pairs in each, and in
    /// all of them together; 0 of one that does no multicast.
    #[error(
        "{device}: no room for {group}: it can have {groups} multicast groups, {in_each} queue pairs in each, {in_all} in all"
    )]
    MulticastFull {
        /// The device's name.
        device: Box<str>,
        /// The group.
        group: Gid,
        /// How many groups it can have (`max_mcast_grp`).
        groups: u32,
        /// How many queue pairs can be in each (`max_mcast_qp_attach`).
        in_each: u32,
        /// How many can be in all (`max_total_mcast_qp_attach`).
        in_all: u32,
    },

    /// Objects of two devices, or of two protection domains, that were to work together.
    #[error("{what} is of {theirs}, and not of {ours}")]
    OtherDevice {
        /// What is of another.
        what: &'static str,
        /// The device it should be of.
        ours: Box<str>,
        /// The device it is of; of the same name when it was opened twice.
        theirs: Box<str>,
    },

    /// A completion queue has no room for what another queue may complete.
    #[error(
        "the completion queue has room for {left} of {size} more work requests: {asked} are asked for"
    )]
    CompletionQueueFull {
        /// Depth of the queue that was to be made on it.
        asked: u32,
        /// What is not taken by others.
        left: u32,
        /// All it has.
        size: u32,
    },

    /// A completion queue that cannot be used any more: polling it failed, or it overran.
    #[error("the completion queue of {device} has failed: {errno}")]
    CompletionQueueFailed {
        /// The device's name.
        device: Box<str>,
        /// What polling answered; `EIO` after the event `CQ_ERR`.
        errno: Errno,
    },

    /// A completion queue that was dropped, by whose handle a queue pair was to be made.
    #[error("the completion queue was dropped: nobody would take what completes on it")]
    CompletionQueueGone,

    /// A shared receive queue that was dropped, or is being given up, by whose handle a queue pair was to be
    /// made.
    #[error("the shared receive queue was dropped: nobody would post receives on it")]
    SharedReceiveQueueGone,

    /// What the device, or this machine's libibverbs, does not have as trying told, or has all given out. What a
    /// device tells beforehand that it cannot do is [`Unsupported`](Error::Unsupported).
    #[error("{device} has no {what}")]
    NotSupported {
        /// The device's name.
        device: Box<str>,
        /// What it has not.
        what: &'static str,
    },

    /// A completion queue without the completion channel that it is to be waited for by.
    #[error(
        "the completion queue is not on this completion channel, or on none: it can only be polled"
    )]
    NoChannel,

    /// A work request that was posted and failed.
    #[error("{opcode} on QP {qpn}: {status}{}", vendor_text(*vendor_err))]
    Failed {
        /// What it was.
        opcode: WcOpcode,
        /// The queue pair.
        qpn: Qpn,
        /// How it ended.
        status: WcStatus,
        /// The vendor's own number for it; 0 for none.
        vendor_err: u32,
    },

    /// More bytes inline than a device grants. It tells its limit nowhere.
    #[error("{device} grants no queue pair with max_inline_data {asked}: ask for less")]
    InlineNotGranted {
        /// The device's name.
        device: Box<str>,
        /// What was asked, in bytes.
        asked: u32,
    },

    /// A queue pair's state could not be changed: from, to, with what, and what may be wrong.
    #[error(transparent)]
    Transition(Box<TransitionFault>),

    /// Something that the connection manager could not do: which call, between whom, and why.
    #[error(transparent)]
    Cm(Box<CmFault>),

    /// A library that is loaded when it is needed cannot be used.
    #[error("{library} cannot be used: {why}; install it (package librdmacm1, or rdma-core)")]
    NoLibrary {
        /// The library.
        library: &'static str,
        /// What the loader says, or what is missing in it.
        why: Box<str>,
    },

    /// A work request that was not taken.
    #[error(transparent)]
    Refused(#[from] Refusal),

    /// Queue pairs could not be connected over TCP: with whom, at which step, and why.
    #[error(transparent)]
    Exchange(Box<ExchangeFault>),

    /// A text that is no GID.
    #[error(transparent)]
    ParseGid(#[from] ParseGidError),
}

fn name_of(errno: Errno) -> String {
    format!("{errno:?}")
}

/// The tail of "does not answer": whether that is news.
fn long_since(remembered: Option<Duration>) -> String {
    match remembered {
        Some(since) => format!(": found out {since:?} ago, and not asked again so soon"),
        None => ": the kernel asked for its hardware address in vain".into(),
    }
}

/// What to do about a permission that is missing.
fn allow(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM => "allow it in the device rules of this container, or share the namespace",
        _ => "give this user read and write access to it",
    }
}

/// The vendor's number for a failure, where there is one.
fn vendor_text(vendor_err: u32) -> String {
    if vendor_err == 0 { String::new() } else { format!(" (vendor error {vendor_err:#x})") }
}

/// A limit of locked memory, as text.
fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "any number".into(), |limit| format!("{limit}"))
}

/// The tail of "no such device": the names there are.
fn listed(names: &[Box<str>]) -> String {
    if names.is_empty() {
        "there is no RDMA device".into()
    } else {
        format!("there is {}", names.join(", "))
    }
}

/// The tail of "no such GID": the first rows there are, and how many more.
fn rows_there_are(rows: &[GidEntry], more: u32) -> String {
    if rows.is_empty() {
        return "its tables hold no GID at all".into();
    }
    let shown: Vec<String> = rows.iter().map(GidEntry::to_string).collect();
    let more = match more {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("there is {}{more}", shown.join("; "))
}

#[cfg(test)]
mod tests;
