//! Memory of a peer.

#![deny(unsafe_code)]

use std::fmt;

use crate::error::{Error, Result};
use crate::types::RKey;

/// A range of a peer's memory, as the peer exposed it: address, length, remote key. What RDMA writes,
/// reads and atomics name; plain numbers, which travel over any wire.
///
/// The peer made it by [`Exposed::remote`](super::Exposed::remote), or by whatever its program is
/// written in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteSlice {
    address: u64,
    len: u64,
    rkey: RKey,
}

impl RemoteSlice {
    /// From what a peer told: all in host order.
    pub const fn new(address: u64, len: u64, rkey: RKey) -> RemoteSlice {
        RemoteSlice { address, len, rkey }
    }

    /// The address, in the peer's process.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The peer's key for it.
    pub const fn rkey(&self) -> RKey {
        self.rkey
    }

    /// A part of it: `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] when it is not inside.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                // A peer can tell an address so high that it wraps: the device then refuses it.
                let address = self.address.wrapping_add(offset);
                Ok(RemoteSlice { address, len, rkey: self.rkey })
            }
            end => Err(Error::OutOfRange {
                what: "the end of a part of a peer's memory",
                asked: end.unwrap_or(u64::MAX),
                least: 0,
                most: self.len,
            }),
        }
    }
}

impl fmt::Debug for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteSlice({:#x}, {} bytes, {:?})", self.address, self.len, self.rkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_inside() {
        let slice = RemoteSlice::new(0x1000, 64, RKey::new(7));
        let part = slice.slice(8, 56).expect("inside");
        assert_eq!((part.address(), part.len(), part.rkey()), (0x1008, 56, RKey::new(7)));
        assert!(slice.slice(64, 0).expect("its end").is_empty());
        for (offset, len) in [(8, 57), (65, 0), (u64::MAX, 1), (1, u64::MAX)] {
            let error = slice.slice(offset, len).expect_err("outside");
            assert!(matches!(error, Error::OutOfRange { most: 64, .. }), "{error}");
        }
        let high = RemoteSlice::new(u64::MAX, 64, RKey::new(7));
        assert_eq!(high.slice(8, 8).expect("a peer's own matter").address(), 7);
    }
}
