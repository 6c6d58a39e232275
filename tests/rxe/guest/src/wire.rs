//! What host and guest say to each other.
//!
//! A guest has [`PORTS`] virtio-serial ports and each port carries one program at a time. Both
//! directions are a sequence of frames: a kind (one byte), a length (four, little-endian) and
//! that many bytes. A port's flow control is the stream's: a program whose output nobody reads
//! waits, as it would at a full pipe, and holds up no other port. Standard input is the exception:
//! it is sent against a window ([`STDIN_WINDOW`]), so that a program that does not read cannot
//! keep a [`ToGuest::Kill`] from arriving.
//!
//! One program's life: files, [`ToGuest::Start`], output and input, files it wrote,
//! [`FromGuest::Exited`]. Then the port is free for the next one.

mod codec;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use codec::{Body, Fields, broken, receive_frame, send_frame};

/// Ports of every guest, and so the programs that can run in one at a time.
pub const PORTS: usize = 16;

/// Bytes of standard input that may be on their way.
pub const STDIN_WINDOW: usize = 256 * 1024;

/// The most data bytes in one frame.
pub const CHUNK: usize = 128 * 1024;

/// Name of port `n`, which the guest finds under `/sys/class/virtio-ports`.
pub fn port_name(n: usize) -> String {
    format!("rxe.{n}")
}

/// Name of the 9p file system with the host's root.
pub const HOST_ROOT_TAG: &str = "hostroot";

/// Where programs brought along with `--with` can be found; first on the guest's PATH.
pub const WITH_DIR: &str = "/opt/with";

#[derive(Debug, PartialEq)]
pub enum ToGuest {
    /// A restored guest has the snapshot's clock and random state: here are today's.
    Wake {
        unix_nanos: u64,
        seed: Vec<u8>,
    },
    /// A file to lay down at an absolute path; its bytes follow.
    File(FileHead),
    /// Bytes of the file; an empty frame ends it.
    Data(Vec<u8>),
    Start(Start),
    /// Standard input; an empty frame is its end.
    Stdin(Vec<u8>),
    /// Nobody reads this stream any more: the program is to see a broken pipe.
    Ignore(Stream),
    /// The terminal's new size.
    Resize(Size),
    /// End the program and all of its process group; `Exited` follows.
    Kill,
    /// End what there is, then say `Clear`.
    Hangup,
}

#[derive(Debug, PartialEq)]
pub enum FromGuest {
    Awake,
    Output(Stream, Vec<u8>),
    /// So many bytes of standard input have been taken in.
    StdinTaken(u32),
    /// A file that the program wrote, by its path under the working directory.
    File(FileHead),
    Data(Vec<u8>),
    Exited(Outcome),
    /// The port carries nothing any more.
    Clear,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

#[derive(Debug, PartialEq)]
pub struct FileHead {
    pub path: PathBuf,
    pub mode: u32,
    /// A symbolic link: the data is its target.
    pub link: bool,
}

#[derive(Debug, Default, PartialEq)]
pub struct Start {
    /// A path, or a name to be found on the guest's PATH.
    pub program: OsString,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    /// On a terminal of this size instead of on pipes.
    pub terminal: Option<Size>,
    /// With the host's root mounted at `/host`.
    pub host_root: bool,
}

/// How a program ended.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    Code(u8),
    Signal(u8),
    /// There is no such program.
    NotFound,
    /// It could not be started, and why.
    NotStarted(String),
}

impl ToGuest {
    pub fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let mut body = Body::default();
        let kind = match self {
            ToGuest::Wake { unix_nanos, seed } => {
                body.u64(*unix_nanos);
                body.bytes(seed);
                b'W'
            }
            ToGuest::File(head) => {
                body.file_head(head);
                b'F'
            }
            ToGuest::Data(data) => return send_frame(to, b'D', data),
            ToGuest::Start(start) => {
                body.start(start);
                b'S'
            }
            ToGuest::Stdin(data) => return send_frame(to, b'I', data),
            ToGuest::Ignore(stream) => {
                body.u8(stream.code());
                b'X'
            }
            ToGuest::Resize(size) => {
                body.size(*size);
                b'R'
            }
            ToGuest::Kill => b'K',
            ToGuest::Hangup => b'H',
        };
        send_frame(to, kind, &body.0)
    }

    /// The next frame; `None` at a clean end.
    pub fn receive(from: &mut impl Read) -> io::Result<Option<ToGuest>> {
        let Some((kind, payload)) = receive_frame(from)? else { return Ok(None) };
        let mut fields = Fields(&payload);
        Ok(Some(match kind {
            b'W' => ToGuest::Wake { unix_nanos: fields.u64()?, seed: fields.bytes()?.to_vec() },
            b'F' => ToGuest::File(fields.file_head()?),
            b'D' => ToGuest::Data(payload),
            b'S' => ToGuest::Start(fields.start()?),
            b'I' => ToGuest::Stdin(payload),
            b'X' => ToGuest::Ignore(Stream::from_code(fields.u8()?)?),
            b'R' => ToGuest::Resize(fields.size()?),
            b'K' => ToGuest::Kill,
            b'H' => ToGuest::Hangup,
            _ => return Err(broken()),
        }))
    }
}

impl FromGuest {
    pub fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let mut body = Body::default();
        let kind = match self {
            FromGuest::Awake => b'W',
            FromGuest::Output(Stream::Stdout, data) => return send_frame(to, b'O', data),
            FromGuest::Output(Stream::Stderr, data) => return send_frame(to, b'E', data),
            FromGuest::StdinTaken(n) => {
                body.u32(*n);
                b'T'
            }
            FromGuest::File(head) => {
                body.file_head(head);
                b'F'
            }
            FromGuest::Data(data) => return send_frame(to, b'D', data),
            FromGuest::Exited(outcome) => {
                body.outcome(outcome);
                b'Q'
            }
            FromGuest::Clear => b'C',
        };
        send_frame(to, kind, &body.0)
    }

    /// The next frame; `None` at a clean end.
    pub fn receive(from: &mut impl Read) -> io::Result<Option<FromGuest>> {
        let Some((kind, payload)) = receive_frame(from)? else { return Ok(None) };
        let mut fields = Fields(&payload);
        Ok(Some(match kind {
            b'W' => FromGuest::Awake,
            b'O' => FromGuest::Output(Stream::Stdout, payload),
            b'E' => FromGuest::Output(Stream::Stderr, payload),
            b'T' => FromGuest::StdinTaken(fields.u32()?),
            b'F' => FromGuest::File(fields.file_head()?),
            b'D' => FromGuest::Data(payload),
            b'Q' => FromGuest::Exited(fields.outcome()?),
            b'C' => FromGuest::Clear,
            _ => return Err(broken()),
        }))
    }
}

impl Stream {
    fn code(self) -> u8 {
        match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        }
    }

    fn from_code(code: u8) -> io::Result<Stream> {
        match code {
            1 => Ok(Stream::Stdout),
            2 => Ok(Stream::Stderr),
            _ => Err(broken()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn everything_arrives_as_it_was_sent() {
        let head = || FileHead { path: "/a/\u{fc}".into(), mode: 0o755, link: true };
        let start = Start {
            program: "sh".into(),
            args: vec!["".into(), OsString::from_vec(vec![0xff, b' '])],
            env: vec![("A".into(), "".into())],
            cwd: "/w".into(),
            terminal: Some(Size { rows: 24, columns: 80 }),
            host_root: true,
        };
        let to_guest = [
            ToGuest::Wake { unix_nanos: u64::MAX, seed: vec![1, 2] },
            ToGuest::File(head()),
            ToGuest::Data(vec![0; CHUNK]),
            ToGuest::Start(start),
            ToGuest::Stdin(vec![]),
            ToGuest::Ignore(Stream::Stderr),
            ToGuest::Resize(Size { rows: 1, columns: 2 }),
            ToGuest::Kill,
            ToGuest::Hangup,
        ];
        let mut bytes = Vec::new();
        to_guest.iter().for_each(|message| message.send(&mut bytes).unwrap());
        let mut from = &bytes[..];
        for message in to_guest {
            assert_eq!(ToGuest::receive(&mut from).unwrap(), Some(message));
        }
        assert_eq!(ToGuest::receive(&mut from).unwrap(), None);

        let from_guest = [
            FromGuest::Awake,
            FromGuest::Output(Stream::Stdout, b"out".to_vec()),
            FromGuest::Output(Stream::Stderr, vec![]),
            FromGuest::StdinTaken(7),
            FromGuest::File(head()),
            FromGuest::Data(vec![1]),
            FromGuest::Exited(Outcome::Code(255)),
            FromGuest::Exited(Outcome::Signal(9)),
            FromGuest::Exited(Outcome::NotFound),
            FromGuest::Exited(Outcome::NotStarted("why".into())),
            FromGuest::Clear,
        ];
        let mut bytes = Vec::new();
        from_guest.iter().for_each(|message| message.send(&mut bytes).unwrap());
        let mut from = &bytes[..];
        for message in from_guest {
            assert_eq!(FromGuest::receive(&mut from).unwrap(), Some(message));
        }
    }

    #[test]
    fn what_is_cut_short_or_unknown_is_an_error() {
        let mut bytes = Vec::new();
        ToGuest::File(FileHead { path: "/a".into(), mode: 0, link: false })
            .send(&mut bytes)
            .unwrap();
        for n in 1..bytes.len() {
            assert!(ToGuest::receive(&mut &bytes[..n]).is_err(), "{n} bytes");
        }
        for frame in [&b"?\0\0\0\0"[..], b"F\0\0\0\0", b"X\x01\0\0\0\x03", b"D\xff\xff\xff\xff"] {
            assert!(ToGuest::receive(&mut &frame[..]).is_err(), "{frame:?}");
        }
    }
}
