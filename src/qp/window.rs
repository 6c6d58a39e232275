//! Binding and invalidating memory windows.

#![deny(unsafe_code)]
#![allow(private_interfaces, private_bounds)] // methods of `sealed`, called by nobody else

use std::sync::Arc;

use super::QueuePair;
use super::core::Core;
use super::request::{SendRequest, What, flag, opcode, sealed};
use super::send::SendQueue;
use super::transport::{Connected, Rc, Uc};
use crate::error::Result;
use crate::mem::{ExposedRange, MemoryWindow, Posted, Told, Windows};
use crate::sys::abi::{bind_mw, ibv_mw_bind_info};
use crate::types::{RemoteAccess, WcOpcode, WindowType};

impl<S, T: Connected> QueuePair<S, T> {
    /// A memory window of type 2 (`ibv_alloc_mw`), of this queue pair and its peer. It is deallocated before the
    /// queue pair is destroyed.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) before any call, on a device without
    /// ([`Capability::MemoryWindow2B`](crate::Capability::MemoryWindow2B), or `2A`);
    /// [`Error::Verb`](crate::Error::Verb): `ENOMEM` when the device has no more.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn memory_window(&self) -> Result<MemoryWindow> {
        self.core.memory_window()
    }
}

impl<T: Connected> SendQueue<T> {
    /// A memory window of type 2 of the queue pair; see
    /// [`QueuePair::memory_window`].
    ///
    /// # Errors
    ///
    /// As that.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn memory_window(&self) -> Result<MemoryWindow> {
        self.core.memory_window()
    }
}

impl Core {
    fn memory_window(&self) -> Result<MemoryWindow> {
        self.windows.get_or_init(Arc::default).make(&self.pd)
    }

    /// Those of type 2, once there was one.
    #[inline]
    pub(super) fn windows(&self) -> Option<&Arc<Windows>> {
        self.windows.get()
    }
}

/// Binds a memory window (`IBV_WR_BIND_MW`, and `ibv_bind_mw` for one of type 1), after what was posted before
/// it. It always has a completion, which gives the window back, bound; one that fails ends the connection.
///
/// One of type 2 must not be bound; its key is known beforehand, so that a message that tells it can be posted
/// right behind. One of type 1 may be: it is bound anew then, with another key, and its old one ends.
#[derive(Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct Bind {
    memory: Posted,
    what: What,
}

impl Bind {
    /// Grants these rights to this part of exposed memory, which was registered for windows
    /// ([`Exposed::with_windows`](crate::Exposed::with_windows)). The part is held while the window is bound.
    #[doc(alias = "ibv_bind_mw")]
    pub fn new(mut window: MemoryWindow, range: ExposedRange, access: RemoteAccess) -> Bind {
        let told = window.prepare_bind(range, access);
        let what = What::window(opcode::BIND_MW, WcOpcode::BIND_MW, &told);
        Bind { memory: Posted(window), what }
    }

    /// What the peer will name it by, when it is bound; `None` of type 1, whose key the library picks.
    pub fn remote(&self) -> Option<crate::mem::RemoteSlice> {
        let known = self.memory.0.window_type() == WindowType::TYPE_2;
        known.then_some(self.what.remote)
    }
}

/// Ends what a memory window grants (`IBV_WR_LOCAL_INV`; of type 1, which has no such request, by a bind to
/// nothing), after what was posted before it. It always has a completion, which gives the window back, not bound;
/// one that fails ends the connection, as it does when the peer has invalidated the key meanwhile.
#[derive(Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct LocalInvalidate {
    memory: Posted,
    what: What,
}

impl LocalInvalidate {
    /// Of a window that is bound.
    pub fn new(mut window: MemoryWindow) -> LocalInvalidate {
        let told = window.prepare_invalidate();
        let what = match window.window_type() {
            WindowType::TYPE_1 => What::window(opcode::BIND_MW, WcOpcode::BIND_MW, &told),
            _ => What::window(opcode::LOCAL_INV, WcOpcode::LOCAL_INV, &told),
        };
        LocalInvalidate { memory: Posted(window), what }
    }
}

impl What {
    /// A window's: the addresses of C's structs in the place of an atomic's operands, its rights in that of
    /// immediate data.
    fn window(opcode: u32, completes_as: WcOpcode, told: &Told) -> What {
        let mut what = What::new(opcode, completes_as, flag::SIGNALED, told.remote);
        (what.compare_add, what.swap, what.imm) = (told.window, told.region, told.access);
        what
    }

    /// In the place of immediate data: the key to invalidate. Of a bind nothing, or it is refused.
    pub(super) fn key(&self) -> u32 {
        if self.opcode == opcode::LOCAL_INV { self.remote.rkey().get() } else { 0 }
    }

    /// What a bind is about, of a window of type 1.
    pub(super) fn bind_info(&self) -> ibv_mw_bind_info {
        let (window, region, remote) = (self.compare_add, self.swap, self.remote);
        Told { window, region, remote, access: self.imm }.info()
    }

    /// The part of C's union that a bind is about.
    pub(super) fn bind_part(&self) -> bind_mw {
        let mw = std::ptr::with_exposed_provenance_mut(self.compare_add as usize);
        bind_mw { mw, rkey: self.remote.rkey().get(), bind_info: self.bind_info() }
    }
}

/// What the two have in common.
macro_rules! of_window {
    ($($name:ident),*) => {$(
        impl $name {
            /// The caller's own number, which the completion gives back (`wr_id`); 0 unless asked.
            pub fn wr_id(mut self, wr_id: u64) -> Self {
                self.what.wr_id = wr_id;
                self
            }

            /// Begins only when the reads and atomics before it are complete (`IBV_SEND_FENCE`).
            pub fn fenced(mut self) -> Self {
                self.what.flags |= flag::FENCE;
                self
            }

            /// The window, as it was, of a request that was not posted.
            pub fn into_window(self) -> MemoryWindow {
                let mut window = self.memory.0;
                window.not_posted();
                window
            }
        }

        impl SendRequest<Rc> for $name {}
        impl SendRequest<Uc> for $name {}

        impl sealed::Request for $name {
            type Memory = Posted;
            const WINDOW: bool = true;

            fn split(self) -> (What, Posted) {
                (self.what, self.memory)
            }

            fn join(what: What, memory: Posted) -> Self {
                $name { memory, what }
            }

            fn what(&self) -> &What {
                &self.what
            }

            fn memory(&self) -> &Posted {
                &self.memory
            }

            fn window(&self) -> Option<&MemoryWindow> {
                Some(&self.memory.0)
            }
        }
    )*};
}
of_window!(Bind, LocalInvalidate);
