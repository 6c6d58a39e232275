//! Exposed memory that is not this program's alone: shared and file-backed mappings, dma-bufs.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{ALL_REMOTE, Exposed, Inner, RevokeError, check};
use crate::error::{Error, Result};
use crate::mem::LOCAL_WRITE;
use crate::mem::region::Region;
use crate::mem::registered::Registered;
use crate::pd::ProtectionDomain;
use crate::types::RemoteAccess;

impl Exposed {
    /// Registers memory that was mapped elsewhere, and that others may have too: of a file, of shared memory, of
    /// a device (`ibv_reg_mr`). Others change it at any moment, as peers do, which is why it is exposed memory
    /// whatever the access, and never a slice; that may be nothing ([`RemoteAccess::default`]), for memory of
    /// local work requests only.
    ///
    /// `owner` is what keeps it mapped; it is dropped after the memory was deregistered, and never, if that fails.
    ///
    /// Memory of this program alone needs none of this: [`Pool::from_memory`](crate::Pool::from_memory).
    ///
    /// # Errors
    ///
    /// As [`new`](Exposed::new); [`Error::Unaligned`] for a start that is no multiple of 8. The owner is dropped.
    ///
    /// # Safety
    ///
    /// Until `owner` is dropped:
    ///
    /// * the `len` bytes from `start` on are mapped, readable and writable;
    /// * nothing behind them goes away: a file that is cut off ends the program that reads there (`SIGBUS`), and
    ///   a device goes on writing to pages that are nobody's any more;
    /// * this program has no reference to them, but to atomics: the device, peers and whoever shares them write
    ///   without its knowing.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn from_raw(
        pd: &ProtectionDomain,
        start: NonNull<u8>,
        len: usize,
        access: RemoteAccess,
        owner: impl Send + Sync + 'static,
    ) -> Result<Exposed> {
        let at = start.as_ptr().addr() as u64;
        if at % 8 != 0 {
            return Err(Error::Unaligned { what: "the start of exposed memory", at, to: 8 });
        }
        check(pd, len, access)?;
        let flags = access.bits() & ALL_REMOTE | LOCAL_WRITE;
        let memory = Region::foreign(start, len, owner);
        // SAFETY: kept until it was deregistered; what others do there the caller vouches for, and here it is
        // reached by atomics only.
        let memory = unsafe { Registered::new(pd, memory, len, flags) };
        Ok(Exposed::of(memory.map_err(|failed| failed.0)?, len, access, false))
    }

    /// Registers a part of a dma-buf (`ibv_reg_dmabuf_mr`, rdma-core 34): memory of a GPU or another device, which
    /// the RDMA device reads and writes without a copy. Work requests and peers find it at `iova` and behind; this
    /// program cannot read or write it here ([`read`](Exposed::read) and its like fail with
    /// [`Error::OutOfRange`]). The descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] where libibverbs is older, or the device's driver cannot; [`Error::OutOfRange`]
    /// for a length of zero or beyond the device's limit, or a part that ends beyond the last address;
    /// [`Error::NoMemory`]; [`Error::Verb`] for what else the device answers: `EINVAL` for an offset and an
    /// `iova` that differ within a page, or a part that is not inside; `EBADF` for what is no dma-buf.
    ///
    /// # Safety
    ///
    /// What is behind the descriptor is nothing that a program's safety rests on, in this process or another:
    /// a dma-buf can be made of ordinary memory as well (udmabuf), and peers with this access, and work requests,
    /// write it without anybody's knowing, until the memory was deregistered.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn from_dma_buf(
        pd: &ProtectionDomain,
        fd: BorrowedFd<'_>,
        (offset, len): (u64, usize),
        iova: u64,
        access: RemoteAccess,
    ) -> Result<Exposed> {
        check(pd, len, access)?;
        if iova.checked_add(len as u64).is_none() {
            let (what, most) = ("the last address of a dma-buf's part", u64::MAX);
            return Err(Error::OutOfRange { what, asked: iova, least: 0, most: most - len as u64 });
        }
        let flags = access.bits() & ALL_REMOTE | LOCAL_WRITE;
        // SAFETY: by this function's own contract.
        let memory = unsafe { Registered::dma_buf(pd, fd, (offset, len), iova, flags) }?;
        let inner = Inner { memory, address: iova, len: 0, access, windows: false };
        Ok(Exposed { inner: Arc::new(inner) })
    }

    /// Ends the grant (`ibv_dereg_mr`), and lets go of the memory: when this succeeds no peer, and no work
    /// request, can reach it any more. What [`revoke`](Exposed::revoke) is to memory that was mapped here, this is
    /// to any.
    ///
    /// # Errors
    ///
    /// The object itself, still exposed: with [`Error::InUse`] while a range of it is held by someone or in
    /// flight, with [`Error::Verb`] when the device does not deregister it.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn release(self) -> Result<(), RevokeError> {
        self.take_back().map(drop)
    }
}
