//! Why a work request was not taken.

use super::Errno;
use crate::types::Qpn;

/// One of the two queues of a queue pair, or a queue of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Queue {
    /// Sends, writes, reads, atomics.
    Send,
    /// Receives.
    Receive,
}

impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Queue::Send => "send queue",
            Queue::Receive => "receive queue",
        })
    }
}

/// Whose queue it is: what a work request was to be posted on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum QueueOwner {
    /// A queue pair.
    QueuePair(Qpn),
    /// A shared receive queue, by the number that events name it by too
    /// ([`SharedReceiveQueue::id`](crate::SharedReceiveQueue::id)).
    SharedReceiveQueue(u64),
}

impl From<Qpn> for QueueOwner {
    fn from(qpn: Qpn) -> QueueOwner {
        QueueOwner::QueuePair(qpn)
    }
}

impl std::fmt::Display for QueueOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QueueOwner::QueuePair(qpn) => write!(f, "QP {qpn}"),
            QueueOwner::SharedReceiveQueue(number) => write!(f, "SRQ {number}"),
        }
    }
}

/// Why a work request was not taken. Made without allocating: a full queue is no accident.
///
/// All but [`Device`](Refusal::Device) and [`Unsure`](Refusal::Unsure) are found before the device sees
/// the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// As many work requests are in flight as the queue is deep: poll its completion queue.
    #[error("the {queue} of {on} is full: {depth} work requests are in flight")]
    Full {
        /// Which queue.
        queue: Queue,
        /// The queue pair, or the shared receive queue.
        on: QueueOwner,
        /// How many it can hold.
        depth: u32,
    },

    /// A batch holds as many as it can: post it first.
    #[error("the batch is full: it has room for {room} {what}")]
    BatchFull {
        /// Of what.
        what: &'static str,
        /// How many.
        room: u32,
    },

    /// More scatter/gather entries than the queue was made for.
    #[error("{asked} scatter/gather entries: {on} was made for {limit}")]
    TooManyEntries {
        /// The queue pair, or the shared receive queue.
        on: QueueOwner,
        /// How many there are.
        asked: u32,
        /// How many there can be.
        limit: u32,
    },

    /// A receive of no fragments, which is to be refilled with.
    #[error("no scatter entries on {on}: a receive is refilled with one at least")]
    NoEntries {
        /// The queue pair, or the shared receive queue.
        on: QueueOwner,
    },

    /// More bytes inline than the queue pair was granted.
    #[error("{asked} bytes inline: QP {qpn} was granted {limit}")]
    InlineTooLong {
        /// The queue pair.
        qpn: Qpn,
        /// How many there are.
        asked: u64,
        /// How many there can be.
        limit: u32,
    },

    /// A message longer than the port can carry.
    #[error("a message of {asked} bytes on QP {qpn}: the port carries {limit}")]
    MessageTooLong {
        /// The queue pair.
        qpn: Qpn,
        /// How long it is.
        asked: u64,
        /// How long it can be.
        limit: u64,
    },

    /// More bytes than the peer's memory that was named has.
    #[error("{asked} bytes to or from a peer's memory of {there}")]
    BeyondRemote {
        /// How many there are.
        asked: u64,
        /// How many the peer's memory has.
        there: u64,
    },

    /// An atomic on an address that is no multiple of 8, which devices refuse.
    #[error("an atomic at {address:#x}: the address must be a multiple of 8")]
    UnalignedAtomic {
        /// The peer's address.
        address: u64,
    },

    /// An atomic whose local memory is not one entry of 8 bytes.
    #[error("an atomic into {asked} bytes: it needs 8")]
    AtomicLength {
        /// How many bytes there are.
        asked: u64,
    },

    /// Memory, an address handle, a memory window or a page pool of another protection domain than the queue's; one
    /// of another device, or of the device opened once more, is that too.
    #[error("{what} of another protection domain than that of {on}")]
    OtherDomain {
        /// Which of these.
        what: &'static str,
        /// The queue pair, or the shared receive queue.
        on: QueueOwner,
    },

    /// A flush towards a peer whose queue pair does not allow writes, or is not known to; see
    /// [`SendQueue::flush`](crate::SendQueue::flush).
    #[error(
        "QP {qpn} cannot be flushed: the peer's queue pair is not known to allow writes; signal the last request instead"
    )]
    FlushNotAllowed {
        /// The queue pair.
        qpn: Qpn,
    },

    /// A memory window that cannot be bound, or invalidated, in this way.
    #[error("a memory window on QP {qpn}: {fault}")]
    Window {
        /// The queue pair.
        qpn: Qpn,
        /// Why not.
        fault: WindowFault,
    },

    /// An atomic on a device that has none.
    #[error("an atomic on QP {qpn}: its device has no atomics")]
    NoAtomics {
        /// The queue pair.
        qpn: Qpn,
    },

    /// The queue pair was closed.
    #[error("QP {qpn} is closed")]
    Closed {
        /// The queue pair.
        qpn: Qpn,
    },

    /// A receive of a queue pair that takes its receives from a shared receive queue: they are posted there.
    #[error("QP {qpn} receives from SRQ {srq}: post the receive there")]
    ReceivesShared {
        /// The queue pair.
        qpn: Qpn,
        /// The shared receive queue.
        srq: u64,
    },

    /// The device told that the shared receive queue failed (`SRQ_ERR`): it can only be given up.
    #[error("SRQ {srq} has failed: the device told so")]
    Failed {
        /// The shared receive queue.
        srq: u64,
    },

    /// An earlier post failed in a way that does not say what was taken: the queue can only be given up. What
    /// was posted stays with it until then.
    #[error(
        "{on} can only be closed: an earlier post failed ({errno:?}) without saying what was taken"
    )]
    Poisoned {
        /// The queue pair, or the shared receive queue.
        on: QueueOwner,
        /// What that post answered.
        errno: Errno,
    },

    /// The device did not take it.
    #[error("{verb} on {on}: {errno}")]
    Device {
        /// The C function's name.
        verb: &'static str,
        /// The queue pair, or the shared receive queue.
        on: QueueOwner,
        /// Why.
        errno: Errno,
    },

    /// The post failed, and the device does not say whether it took the request: its memory stays with
    /// the queue until that is destroyed, and comes back then: by the completion queue, or as what is
    /// [left](crate::SharedReceiveQueue::finish).
    #[error(
        "{verb} on {on}: {errno}; whether the request was taken is not known, and the queue can only be closed"
    )]
    Unsure {
        /// The C function's name.
        verb: &'static str,
        /// The queue pair, or the shared receive queue.
        on: QueueOwner,
        /// Why.
        errno: Errno,
    },
}

/// Why a memory window cannot be bound, or invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum WindowFault {
    /// The memory was not registered for windows; see
    /// [`Exposed::with_windows`](crate::Exposed::with_windows).
    NoBindRight,
    /// The memory is of another protection domain than the window.
    OtherDomain,
    /// A window of type 2 is of another queue pair, or of one that is gone.
    OtherQueuePair,
    /// A window of type 2 that is bound: invalidate it first.
    Bound,
    /// A window that is not bound is to be invalidated.
    NotBound,
    /// To no bytes at all.
    Empty,
    /// A work request on it failed or was flushed, so that what it grants is not known: it can only be
    /// dropped.
    Unsure,
    /// Of type 1, in a batch: it is posted by a call of its own.
    InBatch,
}

impl std::fmt::Display for WindowFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WindowFault::NoBindRight => "the memory was not registered for windows",
            WindowFault::OtherDomain => "the memory is of another protection domain",
            WindowFault::OtherQueuePair => "it is of another queue pair",
            WindowFault::Bound => "it is bound, and must be invalidated first",
            WindowFault::NotBound => "it is not bound",
            WindowFault::Empty => "it cannot be bound to no bytes",
            WindowFault::Unsure => "an earlier request on it failed, and it can only be dropped",
            WindowFault::InBatch => "one of type 1 is not posted in a batch",
        })
    }
}
