//! Private data: what a program sends along when it connects.

#![deny(unsafe_code)]

use std::fmt;
use std::ops::Deref;

use crate::error::{Error, Result};

/// The most bytes of private data in a request for a connection.
pub const MAX_IN_REQUEST: usize = 56;
/// The most bytes of private data with which a request is accepted.
pub const MAX_IN_REPLY: usize = 196;
/// The most bytes of private data with which a request is refused.
pub const MAX_IN_REJECT: usize = 148;

/// Private data as it was received.
///
/// The message that carries it has a fixed length: who sends 5 bytes in a request is seen to send 56, of
/// which 51 are zero. So a protocol carries a length of its own: send what
/// [`prefixed`](PrivateData::prefixed) makes, and read [`message`](PrivateData::message).
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PrivateData(Box<[u8]>);

impl PrivateData {
    pub(super) fn received(bytes: Box<[u8]>) -> PrivateData {
        PrivateData(bytes)
    }

    /// A message with its length before it, one byte, to be sent as private data.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for more than 195 bytes, which fit nowhere. That of a request can be 55, that
    /// of a refusal 147.
    pub fn prefixed(message: &[u8]) -> Result<Vec<u8>> {
        check("a message with its length, as private data,", message.len() + 1, MAX_IN_REPLY)?;
        let len = u8::try_from(message.len()).unwrap_or(u8::MAX);
        Ok([&[len], message].concat())
    }

    /// The message that [`prefixed`](PrivateData::prefixed) was given; `None` when the length before it
    /// cannot be right.
    pub fn message(&self) -> Option<&[u8]> {
        let (len, rest) = self.0.split_first()?;
        rest.get(..usize::from(*len))
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PrivateData {
    /// The bytes up to the last one that is not zero, and how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(f, "PrivateData(\"{}\" of {})", self.0[..end].escape_ascii(), self.0.len())
    }
}

/// Refuses what is too long, with the limit, before a kernel would with no word of it.
pub(super) fn check(what: &'static str, len: usize, most: usize) -> Result<()> {
    if len <= most {
        return Ok(());
    }
    Err(Error::OutOfRange { what, asked: len as u64, least: 0, most: most as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_padding() {
        let mut sent = PrivateData::prefixed(b"hello").expect("it is short");
        sent.resize(MAX_IN_REQUEST, 0);
        let received = PrivateData::received(sent.into());
        assert_eq!(received.message(), Some(&b"hello"[..]));
        assert_eq!(format!("{received:?}"), "PrivateData(\"\\x05hello\" of 56)");
        assert!(PrivateData::prefixed(&[0; 195]).is_ok());
        let error = PrivateData::prefixed(&[0; 196]).expect_err("too long").to_string();
        assert!(error.contains("197") && error.contains("196"), "{error}");
        assert_eq!(PrivateData::received([9, 1, 2].into()).message(), None);
        assert_eq!(PrivateData::default().message(), None);
    }
}
