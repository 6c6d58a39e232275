//! Work requests of a send queue.

use super::transport::{Rc, Uc};
use crate::mem::{Gather, MemoryWindow, Pieces, RemoteSlice, Scatter};
use crate::sys::abi::{atomic, rdma, ud, wr};
use crate::types::{RKey, WcOpcode};

pub(super) use crate::sys::qp::{opcode, send_flag as flag};

/// A work request of a [`SendQueue`](super::SendQueue) of this transport: [`Send`], [`Write`],
/// [`Bind`](super::Bind), [`LocalInvalidate`](super::LocalInvalidate); of [`Rc`] also [`Read`], [`CompareSwap`],
/// [`FetchAdd`]; of [`Ud`](super::transport::Ud) [`Datagram`](super::Datagram).
pub trait SendRequest<T = Rc>: sealed::Request {}

#[allow(unreachable_pub)] // named by public traits, and by nobody else
#[allow(private_interfaces)]
pub(crate) mod sealed {
    use super::{MemoryWindow, Pieces, What};

    pub trait Request: Sized {
        type Memory: Pieces;
        /// Whether it names its destination.
        const DATAGRAM: bool = false;
        /// Whether it is about a memory window.
        const WINDOW: bool = false;

        fn split(self) -> (What, Self::Memory);
        fn join(what: What, memory: Self::Memory) -> Self;
        fn what(&self) -> &What;
        fn memory(&self) -> &Self::Memory;

        #[inline]
        fn window(&self) -> Option<&MemoryWindow> {
            None
        }
    }
}

/// All of a request but its memory.
#[derive(Clone, Copy)]
pub(crate) struct What {
    pub(crate) wr_id: u64,
    /// `enum ibv_wr_opcode`.
    pub(crate) opcode: u32,
    pub(crate) completes_as: WcOpcode,
    pub(crate) flags: u32,
    /// Immediate data in network order, or a key to invalidate.
    pub(crate) imm: u32,
    pub(crate) remote: RemoteSlice,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
}

impl What {
    pub(super) const fn new(
        opcode: u32,
        completes_as: WcOpcode,
        flags: u32,
        remote: RemoteSlice,
    ) -> What {
        What { wr_id: 0, opcode, completes_as, flags, imm: 0, remote, compare_add: 0, swap: 0 }
    }

    /// A write of no bytes, which is complete when all before are.
    pub(crate) const fn flush() -> What {
        What::new(opcode::RDMA_WRITE, WcOpcode::RDMA_WRITE, flag::SIGNALED, NOWHERE)
    }

    /// Whether it names memory of the peer.
    #[inline]
    pub(crate) fn is_remote(&self) -> bool {
        // Those that do not have the numbers 2, 3, and 7 to 9.
        !matches!(
            self.opcode,
            opcode::SEND
                | opcode::SEND_WITH_IMM
                | opcode::LOCAL_INV
                | opcode::BIND_MW
                | opcode::SEND_WITH_INV
        )
    }

    #[inline]
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.opcode, opcode::COMPARE_SWAP | opcode::FETCH_ADD)
    }

    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.opcode == opcode::RDMA_READ
    }

    /// The part of C's union that the opcode is about.
    #[inline]
    pub(crate) fn remote_part(&self) -> wr {
        let (remote_addr, rkey) = (self.remote.address(), self.remote.rkey().get());
        if self.is_atomic() {
            let (compare_add, swap) = (self.compare_add, self.swap);
            wr { atomic: atomic { remote_addr, compare_add, swap, rkey } }
        } else {
            wr { rdma: rdma { remote_addr, rkey } }
        }
    }

    /// A datagram, with what the device knows the address handle by.
    pub(super) const fn datagram(flags: u32, handle: u64, qpn: u32, qkey: u32) -> What {
        let mut what = What::new(opcode::SEND, WcOpcode::SEND, flags, NOWHERE);
        (what.compare_add, what.swap) = (handle, (qkey as u64) << 32 | qpn as u64);
        what
    }

    /// With immediate data, in host order.
    pub(super) fn with_imm(&mut self, imm: u32) {
        (self.opcode, self.imm) = (opcode::SEND_WITH_IMM, imm.to_be());
    }

    /// The part of C's union that a datagram is about.
    #[inline]
    pub(crate) fn destination_part(&self) -> wr {
        let ah = std::ptr::with_exposed_provenance_mut(self.compare_add as usize);
        let (remote_qpn, remote_qkey) = (self.swap as u32, (self.swap >> 32) as u32);
        wr { ud: ud { ah, remote_qpn, remote_qkey } }
    }
}

const NOWHERE: RemoteSlice = RemoteSlice::new(0, 0, RKey::new(0));

/// Declares one: its memory of this kind, and what all of them can be told.
macro_rules! request {
    ($(#[$doc:meta])* $name:ident<$kind:ident> on $($transport:ident),*) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use = "it does nothing until it is posted"]
        pub struct $name<M> {
            memory: M,
            what: What,
        }

        $(impl<M: $kind> SendRequest<$transport> for $name<M> {})*

        #[allow(private_interfaces)]
        impl<M: $kind> sealed::Request for $name<M> {
            type Memory = M;

            #[inline]
            fn split(self) -> (What, M) {
                (self.what, self.memory)
            }

            #[inline]
            fn join(what: What, memory: M) -> Self {
                $name { memory, what }
            }

            #[inline]
            fn what(&self) -> &What {
                &self.what
            }

            #[inline]
            fn memory(&self) -> &M {
                &self.memory
            }
        }

        impl<M> $name<M> {
            /// The caller's own number, which the completion gives back (`wr_id`); 0 unless asked.
            #[inline]
            pub fn wr_id(mut self, wr_id: u64) -> Self {
                self.what.wr_id = wr_id;
                self
            }

            /// Asks for a completion of its own as soon as it is complete (`IBV_SEND_SIGNALED`); see
            /// [`SendQueue`](super::SendQueue) for when the library asks by itself.
            #[inline]
            pub fn signaled(mut self) -> Self {
                self.what.flags |= flag::SIGNALED;
                self
            }

            /// Begins only when the reads and atomics before it are complete (`IBV_SEND_FENCE`).
            #[inline]
            pub fn fenced(mut self) -> Self {
                self.what.flags |= flag::FENCE;
                self
            }

            /// The memory, of a request that was not posted.
            pub fn into_memory(self) -> M {
                self.memory
            }
        }
    };
}

request! {
    /// A message (`IBV_WR_SEND`), which takes a receive of the peer.
    Send<Gather> on Rc, Uc
}

impl<M: Gather> Send<M> {
    /// Sends this memory: a buffer, several, [`Inline`](crate::wr::Inline) bytes, or nothing, `()`.
    #[inline]
    pub fn new(memory: M) -> Send<M> {
        let flags = if M::INLINE { flag::INLINE } else { 0 };
        Send { memory, what: What::new(opcode::SEND, WcOpcode::SEND, flags, NOWHERE) }
    }

    /// With 32 bits of the caller's, in host order (`IBV_WR_SEND_WITH_IMM`). In the place of a key to
    /// invalidate.
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        self.what.with_imm(imm);
        self
    }

    /// Invalidates a key of the peer (`IBV_WR_SEND_WITH_INV`). In the place of immediate data.
    #[inline]
    pub fn invalidate(mut self, rkey: RKey) -> Self {
        (self.what.opcode, self.what.imm) = (opcode::SEND_WITH_INV, rkey.get());
        self
    }

    /// Wakes a peer that waits for solicited messages only (`IBV_SEND_SOLICITED`).
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.what.flags |= flag::SOLICITED;
        self
    }
}

request! {
    /// A write to memory of the peer, which hears nothing of it (`IBV_WR_RDMA_WRITE`), but of immediate
    /// data.
    Write<Gather> on Rc, Uc
}

impl<M: Gather> Write<M> {
    /// Writes this memory to the front of that of the peer, which is at least as long.
    #[inline]
    pub fn new(memory: M, remote: RemoteSlice) -> Write<M> {
        let flags = if M::INLINE { flag::INLINE } else { 0 };
        let what = What::new(opcode::RDMA_WRITE, WcOpcode::RDMA_WRITE, flags, remote);
        Write { memory, what }
    }

    /// And then gives the peer 32 bits, in host order, by a receive of it
    /// (`IBV_WR_RDMA_WRITE_WITH_IMM`).
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        (self.what.opcode, self.what.imm) = (opcode::RDMA_WRITE_WITH_IMM, imm.to_be());
        self
    }

    /// Wakes a peer that waits for solicited messages only (`IBV_SEND_SOLICITED`); of immediate data.
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.what.flags |= flag::SOLICITED;
        self
    }
}

request! {
    /// A read of memory of the peer, which hears nothing of it (`IBV_WR_RDMA_READ`).
    Read<Scatter> on Rc
}

impl<M: Scatter> Read<M> {
    /// Fills the length of this memory from the front of that of the peer, which is at least as long.
    #[inline]
    pub fn new(memory: M, remote: RemoteSlice) -> Read<M> {
        Read { memory, what: What::new(opcode::RDMA_READ, WcOpcode::RDMA_READ, 0, remote) }
    }
}

request! {
    /// An atomic compare-and-swap of 64 bits of the peer (`IBV_WR_ATOMIC_CMP_AND_SWP`).
    CompareSwap<Scatter> on Rc
}

impl<M: Scatter> CompareSwap<M> {
    /// If the number at the front of the peer's memory, in the peer's order, is `compare`, makes it `swap`.
    /// What it was before comes into this memory, of 8 bytes, in this host's order. The peer's address is a
    /// multiple of 8.
    #[inline]
    pub fn new(memory: M, remote: RemoteSlice, compare: u64, swap: u64) -> CompareSwap<M> {
        let mut what = What::new(opcode::COMPARE_SWAP, WcOpcode::COMP_SWAP, 0, remote);
        (what.compare_add, what.swap) = (compare, swap);
        CompareSwap { memory, what }
    }
}

request! {
    /// An atomic fetch-and-add of 64 bits of the peer (`IBV_WR_ATOMIC_FETCH_AND_ADD`).
    FetchAdd<Scatter> on Rc
}

impl<M: Scatter> FetchAdd<M> {
    /// Adds to the number at the front of the peer's memory, in the peer's order, wrapping. What it was
    /// before comes into this memory, of 8 bytes, in this host's order. The peer's address is a multiple of
    /// 8.
    #[inline]
    pub fn new(memory: M, remote: RemoteSlice, add: u64) -> FetchAdd<M> {
        let mut what = What::new(opcode::FETCH_ADD, WcOpcode::FETCH_ADD, 0, remote);
        what.compare_add = add;
        FetchAdd { memory, what }
    }
}

impl std::fmt::Debug for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, wr_id {}", self.completes_as, self.wr_id)
    }
}
