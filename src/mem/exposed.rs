//! Memory that a peer may read or write.

#![allow(unsafe_code)]

mod foreign;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::map::{Mapping, PlainMemory};
use super::region::Region;
use super::registered::Registered;
use super::remote::RemoteSlice;
use super::{LOCAL_WRITE, MW_BIND};
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::types::{Capability, RKey, RemoteAccess};

/// Memory that peers may write, read or do atomics on, as its [`RemoteAccess`] allows.
///
/// A peer changes it at any moment, and so there is never a slice of it: it is read and written by
/// copies and by atomics. [`remote`](Exposed::remote) gives what to tell the peer;
/// [`range`](Exposed::range) names a part as local memory of a work request;
/// [`revoke`](Exposed::revoke) ends the grant and gives plain memory.
pub struct Exposed {
    inner: Arc<Inner>,
}

/// Held by the object, and by work requests in flight that use it as local memory.
pub(crate) struct Inner {
    memory: Registered,
    /// Where devices find it.
    address: u64,
    /// How much of it this program may read and write: all, or none of memory that only devices have.
    len: usize,
    access: RemoteAccess,
    /// Whether windows can be bound on it.
    pub(super) windows: bool,
}

impl Exposed {
    /// Maps memory, zero at first, and registers it (`ibv_reg_mr`) with this access and local writes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a length of zero or beyond the device's
    /// [`max_mr_size`](crate::DeviceLimits::max_mr_size); [`Error::Unsupported`] for atomics on a device that
    /// has none; [`Error::NoMemory`] when it cannot be locked,
    /// with the limit; [`Error::Host`] and [`Error::Verb`] for what else the kernel and the device
    /// answer.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(pd: &ProtectionDomain, len: usize, access: RemoteAccess) -> Result<Exposed> {
        Exposed::register(pd, len, access, false)
    }

    /// The same, and [windows](super::MemoryWindow) can be bound on it (`IBV_ACCESS_MW_BIND`). What a window
    /// grants does not depend on `access`, which is for those who know the memory's own key: that may be
    /// nothing ([`RemoteAccess::default`]).
    ///
    /// # Errors
    ///
    /// As [`new`](Exposed::new); [`Error::Unsupported`] on a device that has no windows.
    pub fn with_windows(
        pd: &ProtectionDomain,
        len: usize,
        access: RemoteAccess,
    ) -> Result<Exposed> {
        let context = pd.context();
        let any = [Capability::MemoryWindow2A, Capability::MemoryWindow2B];
        if !any.iter().any(|window| context.supports(*window)) {
            context.require(Capability::MemoryWindow1)?;
        }
        Exposed::register(pd, len, access, true)
    }

    fn register(
        pd: &ProtectionDomain,
        len: usize,
        access: RemoteAccess,
        windows: bool,
    ) -> Result<Exposed> {
        check(pd, len, access)?;
        // As long as it is asked, not to the end of its last page.
        let mapping = PlainMemory::new(Mapping::new(len, false)?, len);
        let flags = access.bits() & ALL_REMOTE | LOCAL_WRITE | if windows { MW_BIND } else { 0 };
        // Registered to its length, not to the end of its last page: what a peer reaches is what was
        // granted.
        // SAFETY: no reference to the memory is made but to atomics.
        let memory = unsafe { Registered::new(pd, mapping.into(), len, flags) };
        let memory = memory.map_err(|failed| failed.0)?;
        Ok(Exposed::of(memory, len, access, windows))
    }

    /// Of what was registered, with its own address.
    fn of(memory: Registered, len: usize, access: RemoteAccess, windows: bool) -> Exposed {
        let address = memory.start().as_ptr().addr() as u64;
        let inner = Inner { memory, address, len, access, windows };
        Exposed { inner: Arc::new(inner) }
    }

    /// How many bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// What peers may do.
    pub fn access(&self) -> RemoteAccess {
        self.inner.access
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.inner.memory.pd()
    }

    /// The local key of its memory (`lkey`), for work requests that are posted by others' calls; address and
    /// remote key are told by [`remote`](Exposed::remote). Good until it is revoked or dropped.
    pub fn lkey(&self) -> u32 {
        self.inner.memory.lkey()
    }

    /// All of it, as a peer names it.
    pub fn remote(&self) -> RemoteSlice {
        let Inner { memory, address, .. } = &*self.inner;
        RemoteSlice::new(*address, memory.len() as u64, RKey::new(memory.rkey()))
    }

    /// A part of it, as local memory of a work request.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when it is not inside, or longer than a message can be (2^31 bytes).
    pub fn range(&self, offset: usize, len: usize) -> Result<ExposedRange> {
        inside(offset, len, self.len())?;
        if len > 1 << 31 {
            let what = "the length of a part of exposed memory, in bytes,";
            return Err(Error::OutOfRange { what, asked: len as u64, least: 0, most: 1 << 31 });
        }
        let part = Part { inner: Arc::clone(&self.inner), offset, len: len as u32 };
        Ok(ExposedRange { part: Arc::new(part) })
    }

    /// Copies bytes out. A peer may change them meanwhile: each byte is one that was there at some time
    /// during the call.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when they are not inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.inner.check(offset, bytes.len())?;
        let mut at = offset;
        let (head, rest) = bytes.split_at_mut(to_alignment(offset).min(bytes.len()));
        let mut words = rest.chunks_exact_mut(8);
        for byte in head {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        for word in &mut words {
            word.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
            at += 8;
        }
        for byte in words.into_remainder() {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// Copies bytes in. A peer may read meanwhile: it sees each byte as before or after.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when they are not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.inner.check(offset, bytes.len())?;
        let mut at = offset;
        let (head, rest) = bytes.split_at(to_alignment(offset).min(bytes.len()));
        let words = rest.chunks_exact(8);
        let tail = words.remainder();
        for byte in head {
            self.byte(at).store(*byte, Ordering::Relaxed);
            at += 1;
        }
        for word in words {
            let word = word.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            self.word(at).store(word.to_le(), Ordering::Relaxed);
            at += 8;
        }
        for byte in tail {
            self.byte(at).store(*byte, Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// One byte, to look at as often as one likes: the last of a message is what a peer's write is
    /// waited for by. Load it with [`Ordering::Acquire`], and what the device wrote before is there.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when it is not inside.
    #[inline]
    pub fn atomic_u8(&self, offset: usize) -> Result<&AtomicU8> {
        self.inner.check(offset, 1)?;
        Ok(self.byte(offset))
    }

    /// The 64-bit number at an offset that is a multiple of 8, in host order: what a peer's atomics work
    /// on. Whether they are atomic with this program's own is told by
    /// [`atomic_cap`](crate::DeviceLimits::atomic_cap).
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when it is not inside; [`Error::Unaligned`].
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        self.inner.check(offset, 8)?;
        if offset % 8 != 0 {
            let what = "the offset of a 64-bit number in exposed memory";
            return Err(Error::Unaligned { what, at: offset as u64, to: 8 });
        }
        Ok(self.word(offset))
    }

    /// Ends the grant (`ibv_dereg_mr`): when this succeeds no peer, and no work request, can reach the
    /// memory any more.
    ///
    /// # Errors
    ///
    /// The object itself, still exposed: with [`Error::NotSupported`] of memory that others have too, which
    /// [`release`](Exposed::release) is for; with [`Error::InUse`] while a range of it is held by someone, in
    /// flight, or bound by a window, with [`Error::Verb`] when the device does not deregister it.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(self) -> Result<PlainMemory, RevokeError> {
        if self.inner.memory.is_foreign() {
            let device = self.protection_domain().context().device().name().into();
            let what = "a way to make plain memory of what others have too";
            return Err(RevokeError { error: Error::NotSupported { device, what }, exposed: self });
        }
        self.take_back().map(|memory| match memory.into_plain() {
            Ok(plain) => plain,
            Err(_) => unreachable!("exposed memory is pages, or foreign"),
        })
    }

    /// Deregisters, if nobody else has it.
    fn take_back(self) -> Result<Region, RevokeError> {
        let mut inner = Arc::try_unwrap(self.inner).map_err(|inner| RevokeError {
            error: Error::InUse { what: "exposed memory", by: "ranges of it, or windows on it," },
            exposed: Exposed { inner },
        })?;
        inner.memory.deregister().map_err(|error| {
            let exposed = Exposed { inner: Arc::new(inner) };
            RevokeError { error, exposed }
        })
    }

    /// The offset was checked.
    #[inline]
    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside the memory, by the callers' checks; it is reached by atomics and by
        // the device only, or by others whom the caller of `foreign` vouched for.
        unsafe { self.inner.memory.start().add(offset).cast().as_ref() }
    }

    /// The offset was checked, and is a multiple of 8: the memory begins with a page, or at such an address.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for a byte; eight of them are inside, and aligned.
        unsafe { self.inner.memory.start().add(offset).cast().as_ref() }
    }
}

/// How many bytes it is to the next multiple of 8.
fn to_alignment(offset: usize) -> usize {
    offset.wrapping_neg() % 8
}

/// All bits of [`RemoteAccess`] that this crate knows: others mean something else to a registration.
const ALL_REMOTE: u32 =
    RemoteAccess::WRITE.bits() | RemoteAccess::READ.bits() | RemoteAccess::ATOMIC.bits();

impl Inner {
    /// What a bind names the region by.
    pub(super) fn region_address(&self) -> u64 {
        self.memory.region_address()
    }

    #[inline]
    pub(super) fn memory(&self) -> &Registered {
        &self.memory
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<()> {
        inside(offset, len, self.len)
    }
}

#[inline]
fn inside(offset: usize, len: usize, whole: usize) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= whole => Ok(()),
        end => Err(Error::OutOfRange {
            what: "the end of a part of exposed memory",
            asked: end.map_or(u64::MAX, |end| end as u64),
            least: 0,
            most: whole as u64,
        }),
    }
}

/// Whether so much can be registered with this access.
fn check(pd: &ProtectionDomain, len: usize, access: RemoteAccess) -> Result<()> {
    if access.contains(RemoteAccess::ATOMIC) {
        pd.context().require(Capability::Atomics)?;
    }
    let most = match pd.context().limits().max_mr_size {
        0 => isize::MAX as u64,
        limit => limit.min(isize::MAX as u64),
    };
    if len == 0 || len as u64 > most {
        let what = "the length of exposed memory, in bytes,";
        return Err(Error::OutOfRange { what, asked: len as u64, least: 1, most });
    }
    Ok(())
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposed")
            .field("remote", &self.remote())
            .field("access", &self.inner.access)
            .finish_non_exhaustive()
    }
}

/// A part of [`Exposed`] memory, as local memory of a work request. The memory cannot be revoked while
/// one lives. Made with an allocation, and then moved into a work request and out again with none, as its
/// completion gives it back; cheap to clone.
#[derive(Clone)]
pub struct ExposedRange {
    part: Arc<Part>,
}

/// What a work request in flight holds.
#[repr(align(8))]
pub(crate) struct Part {
    inner: Arc<Inner>,
    offset: usize,
    len: u32,
}

impl ExposedRange {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.part.len as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.part.len == 0
    }

    /// Where it begins in the exposed memory.
    pub fn offset(&self) -> usize {
        self.part.offset
    }

    #[inline]
    pub(super) fn inner(&self) -> &Inner {
        &self.part.inner
    }

    #[inline]
    pub(super) fn address(&self) -> u64 {
        self.inner().address + self.part.offset as u64
    }

    /// Gives up ownership; [`from_part`](ExposedRange::from_part) takes it again.
    #[inline]
    pub(super) fn into_part(self) -> Arc<Part> {
        self.part
    }

    #[inline]
    pub(super) fn from_part(part: Arc<Part>) -> ExposedRange {
        ExposedRange { part }
    }
}

impl fmt::Debug for ExposedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExposedRange({} bytes at {:#x})", self.len(), self.address())
    }
}

/// A grant that could not be ended, and the memory, which is still exposed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct RevokeError {
    /// Why not.
    pub error: Error,
    /// The memory.
    pub exposed: Exposed,
}

impl From<RevokeError> for Error {
    fn from(failed: RevokeError) -> Error {
        failed.error
    }
}
