//! Memory and its registration.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::map::PageSize;
use super::region::Region;
use crate::error::{Errno, Error, Object, Result};
use crate::pd::ProtectionDomain;
use crate::sys::MrHandle;

/// Memory that a device may touch. Dropping it deregisters (`ibv_dereg_mr`), and lets go of the memory only
/// when that succeeded: else it stays for ever.
pub(super) struct Registered {
    /// Taken out when it ends.
    parts: Option<(MrHandle, Region)>,
    start: NonNull<u8>,
    len: usize,
    pages: PageSize,
    lkey: u32,
    rkey: u32,
    pd: ProtectionDomain,
}

// SAFETY: owned memory; whoever reads or writes there says why he may, and any thread may end it.
unsafe impl Send for Registered {}
// SAFETY: shared access gives numbers and the address only.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers the first `len` bytes of the memory with this access (`ibv_reg_mr`).
    ///
    /// # Errors
    ///
    /// Why not, and the memory.
    ///
    /// # Safety
    ///
    /// From now on whoever reads or writes the memory does so as the device's access to it allows.
    pub(super) unsafe fn new(
        pd: &ProtectionDomain,
        memory: Region,
        len: usize,
        access: u32,
    ) -> Result<Registered, Box<(Error, Region)>> {
        debug_assert!(len <= memory.len());
        // SAFETY: the memory is kept until the region was deregistered; the rest by this function's own
        // contract.
        let region =
            unsafe { MrHandle::register(pd.handle().clone(), memory.start(), len, access) };
        match region {
            Ok(region) => Ok(Registered::of(pd, region, memory, len)),
            Err(errno) => Err(Box::new((not_registered(pd, "ibv_reg_mr", len, errno), memory))),
        }
    }

    /// Registers a part of a dma-buf (`ibv_reg_dmabuf_mr`): memory that only devices have.
    ///
    /// # Safety
    ///
    /// As for [`MrHandle::register_dma_buf`].
    pub(super) unsafe fn dma_buf(
        pd: &ProtectionDomain,
        fd: BorrowedFd<'_>,
        part: (u64, usize),
        iova: u64,
        access: u32,
    ) -> Result<Registered> {
        // SAFETY: by this function's own contract.
        let region =
            unsafe { MrHandle::register_dma_buf(pd.handle().clone(), fd, part, iova, access) };
        let region = region.map_err(|errno| match errno {
            Errno::EOPNOTSUPP | Errno::ENOSYS => Error::NotSupported {
                device: pd.context().device().name().into(),
                what: "dma-bufs as memory (rdma-core 34 and the device's driver)",
            },
            errno => not_registered(pd, "ibv_reg_dmabuf_mr", part.1, errno),
        })?;
        Ok(Registered::of(pd, region, Vec::new().into(), part.1))
    }

    fn of(pd: &ProtectionDomain, region: MrHandle, memory: Region, len: usize) -> Registered {
        let (start, pages) = (memory.start(), memory.pages());
        let (lkey, rkey, pd) = (region.lkey(), region.rkey(), pd.clone());
        Registered { parts: Some((region, memory)), start, len, pages, lkey, rkey, pd }
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How much is registered, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether others have the memory too.
    pub(super) fn is_foreign(&self) -> bool {
        self.parts.as_ref().is_some_and(|(_, memory)| memory.is_foreign())
    }

    pub(super) fn pages(&self) -> PageSize {
        self.pages
    }

    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    #[inline]
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What a bind of a memory window names the registration by; 0 when there is none any more.
    pub(super) fn region_address(&self) -> u64 {
        self.parts.as_ref().map_or(0, |(region, _)| region.address())
    }

    #[inline]
    pub(super) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Deregisters: no device touches the memory any more, and this has none. Once.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]; it is still registered then.
    pub(super) fn deregister(&mut self) -> Result<Region> {
        // There until now: only this and dropping take it.
        let Some((region, memory)) = self.parts.take() else {
            unreachable!("memory is registered until it is deregistered")
        };
        match region.deregister() {
            Ok(()) => Ok(memory),
            Err((region, errno)) => {
                let object = Object::device(self.pd.context().device().name());
                self.parts = Some((region, memory));
                Err(Error::Verb { verb: "ibv_dereg_mr", object, errno })
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some((region, memory)) = self.parts.take() else { return };
        if let Err((region, errno)) = region.deregister() {
            if self.pd.context().went_with(errno) {
                return;
            }
            // The device, or a peer, may still touch it: it stays for ever.
            std::mem::forget((region, memory));
            self.pd.context().leaked("memory region", errno);
        }
    }
}

/// Why memory could not be registered: what was asked, and the limit that is the usual reason.
fn not_registered(pd: &ProtectionDomain, verb: &'static str, bytes: usize, errno: Errno) -> Error {
    let device: Box<str> = pd.context().device().name().into();
    if errno == Errno::ENOMEM {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        return Error::NoMemory { device, what: "memory", asked: bytes as u64, limit };
    }
    Error::Verb { verb, object: Object::device(&device), errno }
}
