//! QEMU's control socket: one command, one answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

pub struct Qmp {
    lines: BufReader<UnixStream>,
}

/// No command used here takes long.
const LIMIT: Duration = Duration::from_secs(30);
/// Saving the state does, where others write to the disk too; it is awaited by its event.
const SAVING: Duration = Duration::from_secs(300);

impl Qmp {
    pub fn new(socket: UnixStream) -> io::Result<Qmp> {
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(Qmp { lines: BufReader::new(socket) })
    }

    /// The greeting and the answer to it.
    pub fn greet(&mut self) -> io::Result<()> {
        self.command("qmp_capabilities", json!({}))
    }

    pub fn command(&mut self, name: &str, arguments: Value) -> io::Result<()> {
        let mut line = json!({ "execute": name, "arguments": arguments }).to_string();
        line.push('\n');
        self.lines.get_mut().write_all(line.as_bytes())?;
        loop {
            let answer = self.next()?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            if let Some(error) = answer.get("error") {
                return Err(io::Error::other(format!("QEMU refused {name}: {}", error["desc"])));
            }
        }
    }

    /// Waits until the migration has come to its end.
    pub fn migrated(&mut self) -> io::Result<()> {
        self.lines.get_ref().set_read_timeout(Some(SAVING))?;
        loop {
            let message = self.next()?;
            if message["event"] == "MIGRATION" {
                match message["data"]["status"].as_str() {
                    Some("completed") => return self.lines.get_ref().set_read_timeout(Some(LIMIT)),
                    Some("failed") => {
                        return Err(io::Error::other("QEMU could not save its state"));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether QEMU is gone; only to be asked when the socket has something to read.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.lines.get_mut().read(&mut [0; 4096]), Ok(1..))
    }

    fn next(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "QEMU does not answer")
            }
            _ => error,
        });
        if read? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "QEMU ended"));
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

impl AsFd for Qmp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lines.get_ref().as_fd()
    }
}
