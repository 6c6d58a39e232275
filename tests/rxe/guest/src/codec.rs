//! Frames, and the fields in their payload.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::{FileHead, Outcome, Size, Start};

/// Header and payload in one write: half a frame is never left behind by two writers.
pub(crate) fn send_frame(to: &mut impl Write, kind: u8, payload: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(5 + payload.len());
    frame.push(kind);
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    to.write_all(&frame)
}

pub(crate) fn receive_frame(from: &mut impl Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut header = [0; 5];
    // A socket with a time limit is interrupted by a stop, too.
    let first = loop {
        match from.read(&mut header[..1]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            first => break first?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[1..])?;
    let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
    if length > 16 << 20 {
        return Err(broken());
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok(Some((header[0], payload)))
}

pub(crate) fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a frame")
}

/// A payload being written. Byte strings and lists carry their length.
#[derive(Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.u32(value.len() as u32);
        self.0.extend(value);
    }

    fn path(&mut self, value: &Path) {
        self.bytes(value.as_os_str().as_bytes());
    }

    pub(crate) fn size(&mut self, size: Size) {
        self.u16(size.rows);
        self.u16(size.columns);
    }

    pub(crate) fn file_head(&mut self, head: &FileHead) {
        self.path(&head.path);
        self.u32(head.mode);
        self.u8(head.link.into());
    }

    pub(crate) fn start(&mut self, start: &Start) {
        self.bytes(start.program.as_bytes());
        self.u32(start.args.len() as u32);
        start.args.iter().for_each(|arg| self.bytes(arg.as_bytes()));
        self.u32(start.env.len() as u32);
        for (name, value) in &start.env {
            self.bytes(name.as_bytes());
            self.bytes(value.as_bytes());
        }
        self.path(&start.cwd);
        self.u8(start.terminal.is_some().into());
        if let Some(size) = start.terminal {
            self.size(size);
        }
        self.u8(start.host_root.into());
    }

    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Code(code) => self.0.extend([0, *code]),
            Outcome::Signal(signal) => self.0.extend([1, *signal]),
            Outcome::NotFound => self.u8(2),
            Outcome::NotStarted(reason) => {
                self.u8(3);
                self.bytes(reason.as_bytes());
            }
        }
    }
}

/// A payload being read: what is left of it.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> io::Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or_else(broken)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| broken())
    }

    pub(crate) fn u8(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn bool(&mut self) -> io::Result<bool> {
        Ok(self.u8()? != 0)
    }

    fn u16(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    fn string(&mut self) -> io::Result<OsString> {
        Ok(OsString::from_vec(self.bytes()?.to_vec()))
    }

    pub(crate) fn size(&mut self) -> io::Result<Size> {
        Ok(Size { rows: self.u16()?, columns: self.u16()? })
    }

    pub(crate) fn file_head(&mut self) -> io::Result<FileHead> {
        Ok(FileHead { path: self.string()?.into(), mode: self.u32()?, link: self.bool()? })
    }

    pub(crate) fn start(&mut self) -> io::Result<Start> {
        Ok(Start {
            program: self.string()?,
            args: (0..self.u32()?).map(|_| self.string()).collect::<io::Result<_>>()?,
            env: (0..self.u32()?)
                .map(|_| Ok((self.string()?, self.string()?)))
                .collect::<io::Result<_>>()?,
            cwd: self.string()?.into(),
            terminal: if self.bool()? { Some(self.size()?) } else { None },
            host_root: self.bool()?,
        })
    }

    pub(crate) fn outcome(&mut self) -> io::Result<Outcome> {
        Ok(match self.u8()? {
            0 => Outcome::Code(self.u8()?),
            1 => Outcome::Signal(self.u8()?),
            2 => Outcome::NotFound,
            3 => Outcome::NotStarted(String::from_utf8_lossy(self.bytes()?).into_owned()),
            _ => return Err(broken()),
        })
    }
}
