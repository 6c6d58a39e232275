//! What the two ends send each other: 16 bytes, in network order. The client tells where a buffer of its is;
//! of what the server sends, only that it came counts.

use rdma_verbs::{RKey, RemoteSlice};

/// How long a message is.
pub(crate) const LEN: usize = 16;

/// Address, remote key, length.
pub(crate) fn encode(buffer: &RemoteSlice) -> Result<[u8; LEN], String> {
    let len = u32::try_from(buffer.len()).map_err(|_| "the buffer is too long to be told")?;
    let mut message = [0; LEN];
    message[..8].copy_from_slice(&buffer.address().to_be_bytes());
    message[8..12].copy_from_slice(&buffer.rkey().get().to_be_bytes());
    message[12..].copy_from_slice(&len.to_be_bytes());
    Ok(message)
}

/// The same the other way; what is no such message is told with its length.
pub(crate) fn decode(message: &[u8]) -> Result<RemoteSlice, String> {
    let wrong = || format!("a message of {} bytes came; {LEN} were to", message.len());
    let message: &[u8; LEN] = message.try_into().map_err(|_| wrong())?;
    let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| message[at + n]));
    let address = u64::from(number(0)) << 32 | u64::from(number(4));
    Ok(RemoteSlice::new(address, number(12).into(), RKey::new(number(8))))
}

/// The text of a turn, as the C program has it: a number, then letters that go on from turn to turn, and a
/// zero at the end.
pub(crate) fn text(turn: u64, size: usize) -> Vec<u8> {
    // 'A' to 'z'.
    let letters = 58;
    let mut text = format!("rdma-ping-{turn}: ").into_bytes();
    let more = size.saturating_sub(text.len());
    text.extend((0..more as u64).map(|n| 65 + ((turn % letters + n) % letters) as u8));
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// A text up to its zero, to be printed.
pub(crate) fn shown(text: &[u8]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text[..end].escape_ascii().to_string().replace("\\\\", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_there_and_back() {
        let slice = RemoteSlice::new(0x0102_0304_0506_0708, 64, RKey::new(0x0a0b_0c0d));
        let message = encode(&slice).expect("short");
        assert_eq!(message, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 64]);
        assert_eq!(decode(&message), Ok(slice));
        assert!(decode(&message[1..]).expect_err("short").contains("15 bytes"));
        assert!(encode(&RemoteSlice::new(0, 1 << 32, RKey::new(0))).is_err());
    }

    #[test]
    fn texts_have_their_length_and_end() {
        assert_eq!(text(0, 28), b"rdma-ping-0: ABCDEFGHIJKLMN\0");
        assert_eq!(text(57, 28)[..18], *b"rdma-ping-57: zABC");
        assert_eq!(shown(&text(0, 28)), "rdma-ping-0: ABCDEFGHIJKLMN");
        assert_eq!(text(u64::MAX, 65536).len(), 65536);
    }
}
