//! What the examples share: printing that survives a closed pipe, and errors on one line.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Prints to stdout. A reader that has gone (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("stdout: {error}")),
        _ => Ok(()),
    }
}

/// One line on stderr: the program's name and what to say.
pub(crate) fn note(program: &str, what: impl Display) {
    // In one piece: others may write there too.
    let line = format!("{program}: {what}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A program's end: success, or its error on one line and exit 1.
pub(crate) fn exit(program: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(program, error);
            ExitCode::FAILURE
        }
    }
}
