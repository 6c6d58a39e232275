//! The bytes of netlink: messages in a buffer, attributes in a message. Whatever the bytes, they
//! are walked without a panic; what is cut off or makes no sense ends the walk.

#![deny(unsafe_code)]

/// Lengths are rounded up to this (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
const ALIGN: usize = 4;
/// The length of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// The length of `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// The two bits of an attribute's type that are flags (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
const TYPE_MASK: u16 = 0x3fff;

/// The message tells of an error, or acknowledges.
pub(super) const NLMSG_ERROR: u16 = 2;
/// The end of a dump.
pub(super) const NLMSG_DONE: u16 = 3;
/// Data was lost.
pub(super) const NLMSG_OVERRUN: u16 = 4;

/// The message is a request.
pub(super) const NLM_F_REQUEST: u16 = 0x1;
/// A change came between the parts of this dump, which may lack an object or have one twice.
pub(super) const NLM_F_DUMP_INTR: u16 = 0x10;
/// All objects, please (`NLM_F_ROOT | NLM_F_MATCH`).
pub(super) const NLM_F_DUMP: u16 = 0x300;

/// One message: what its `struct nlmsghdr` says, and what follows that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

impl Message<'_> {
    /// The errno that an `NLMSG_ERROR` or `NLMSG_DONE` carries, positive; 0 is none.
    pub(super) fn errno(&self) -> i32 {
        i32::from_ne_bytes(head(self.payload).unwrap_or_default()).saturating_neg().max(0)
    }
}

/// The messages in a buffer.
#[derive(Clone, Debug)]
pub(super) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    pub(super) fn new(buffer: &'a [u8]) -> Messages<'a> {
        Messages { rest: buffer }
    }

    /// Whether what was not walked is nothing: after the last message, that the buffer ended with it.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = u32_at(self.rest, 0)? as usize;
        let payload = self.rest.get(HEADER..len)?;
        let message = Message {
            kind: u16_at(self.rest, 4)?,
            flags: u16_at(self.rest, 6)?,
            sequence: u32_at(self.rest, 8)?,
            payload,
        };
        self.rest = behind(self.rest, len);
        Some(message)
    }
}

/// The attributes in the payload of a message or of another attribute: type, without its flag
/// bits, and payload.
#[derive(Clone, Debug)]
pub(super) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Attributes<'a> {
        Attributes { rest: payload }
    }

    /// Those behind a message's own header of `len` bytes.
    pub(super) fn behind(payload: &'a [u8], len: usize) -> Attributes<'a> {
        Attributes { rest: behind(payload, len) }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let len = usize::from(u16_at(self.rest, 0)?);
        let payload = self.rest.get(ATTRIBUTE_HEADER..len)?;
        let kind = u16_at(self.rest, 2)? & TYPE_MASK;
        self.rest = behind(self.rest, len);
        Some((kind, payload))
    }
}

/// What follows the first `len` bytes and their padding.
fn behind(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or_default()
}

/// The bytes at the head, if there are as many; more may follow.
pub(super) fn head<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    head(bytes.get(at..)?).map(u16::from_ne_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    head(bytes.get(at..)?).map(u32::from_ne_bytes)
}

/// A text attribute, up to its NUL if it has one; `None` when it is empty or no UTF-8.
pub(super) fn text(payload: &[u8]) -> Option<&str> {
    let text = payload.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok().filter(|text| !text.is_empty())
}

/// A dump request: a `struct nlmsghdr`, and the body behind it.
pub(super) fn dump_request(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, body)
}

/// A message as bytes, padded.
pub(super) fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let len = HEADER + payload.len();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(ALIGN));
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The sender's port id: the kernel knows it.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(len.next_multiple_of(ALIGN), 0);
    bytes
}

/// An attribute as bytes, padded.
pub(super) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let len = ATTRIBUTE_HEADER + payload.len();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(ALIGN));
    bytes.extend((len as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(len.next_multiple_of(ALIGN), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_and_attributes_there_and_back() {
        let nested = [attribute(53, b"second\0"), attribute(53, b"third")].concat();
        let body = [attribute(3, b"e0\0"), attribute(52 | 0x8000, &nested)].concat();
        let buffer = [message(16, 2, 7, &body), message(NLMSG_DONE, 0, 7, &[0; 4])].concat();
        let mut messages = Messages::new(&buffer);
        let first = messages.next().expect("a message");
        assert_eq!((first.kind, first.flags, first.sequence), (16, 2, 7));
        let attributes: Vec<_> = Attributes::new(first.payload).collect();
        assert_eq!(attributes, [(3, b"e0\0".as_slice()), (52, &nested)]);
        let names = Attributes::new(&nested).filter_map(|(_, name)| text(name));
        assert_eq!(names.collect::<Vec<_>>(), ["second", "third"]);
        let last = messages.next().expect("a message");
        assert_eq!((last.kind, last.errno()), (NLMSG_DONE, 0));
        assert!(messages.is_at_end());
        assert_eq!(messages.next(), None);
    }

    /// A message that is cut off anywhere is none; the one before it stands.
    #[test]
    fn what_is_cut_off_ends_the_walk() {
        let whole = [message(16, 0, 1, b"1234"), message(16, 0, 2, b"5678")].concat();
        for len in 0..whole.len() {
            let mut messages = Messages::new(&whole[..len]);
            assert_eq!(messages.by_ref().count(), len / 20, "{len}");
            assert_eq!(messages.is_at_end(), len % 20 == 0, "{len}");
        }
    }

    /// A length shorter than the header would be walked for ever.
    #[test]
    fn lengths_that_make_no_sense() {
        for len in [0_u32, 1, 15, 17, u32::MAX] {
            let mut bytes = message(16, 0, 1, &[]);
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Messages::new(&bytes).next(), None, "{len}");
        }
        for len in [0_u16, 3, 9, u16::MAX] {
            let mut bytes = attribute(1, b"1234");
            bytes[..2].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Attributes::new(&bytes).next(), None, "{len}");
        }
        // The last one's padding may be missing.
        assert_eq!(Attributes::new(&attribute(1, b"x")[..5]).count(), 1);
    }

    #[test]
    fn errors_and_texts() {
        let error = |raw: i32| {
            let bytes = message(NLMSG_ERROR, 0, 1, &raw.to_ne_bytes());
            Messages::new(&bytes).next().expect("a message").errno()
        };
        assert_eq!([error(0), error(-19), error(5), error(i32::MIN)], [0, 19, 0, i32::MAX]);
        assert_eq!(text(b"vlan\0"), Some("vlan"));
        assert_eq!(text(b"vlan"), Some("vlan"));
        assert_eq!((text(b""), text(b"\0x"), text(b"\xff\0")), (None, None, None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            for message in Messages::new(&bytes) {
                prop_assert!(Attributes::new(message.payload).count() <= bytes.len());
            }
            prop_assert!(Attributes::behind(&bytes, 16).count() <= bytes.len());
        }
    }
}
