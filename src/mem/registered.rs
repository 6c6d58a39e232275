//! Memory and its registration.

#![allow(unsafe_code)]

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
        let (start, pages) = (memory.start(), memory.pages());
        // SAFETY: the memory is kept until the region was deregistered; the rest by this function's own
        // contract.
        let region = unsafe { MrHandle::register(pd.handle().clone(), start, len, access) };
        let region = match region {
            Ok(region) => region,
            Err(errno) => return Err(Box::new((not_registered(pd, len, errno), memory))),
        };
        let (lkey, rkey, pd) = (region.lkey(), region.rkey(), pd.clone());
        Ok(Registered { parts: Some((region, memory)), start, len, pages, lkey, rkey, pd })
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How much is registered, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
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
fn not_registered(pd: &ProtectionDomain, bytes: usize, errno: Errno) -> Error {
    let device: Box<str> = pd.context().device().name().into();
    if errno == Errno::ENOMEM {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        return Error::NoMemory { device, what: "memory", asked: bytes as u64, limit };
    }
    Error::Verb { verb: "ibv_reg_mr", object: Object::device(&device), errno }
}
