//! The caller's standard input, on its way to the program.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

use wire::{STDIN_WINDOW, Size, ToGuest};

/// Bytes that may still be sent.
pub struct Window {
    open: Mutex<usize>,
    opened: Condvar,
}

impl Window {
    pub fn new() -> Arc<Window> {
        Arc::new(Window { open: Mutex::new(STDIN_WINDOW), opened: Condvar::new() })
    }

    pub fn give(&self, bytes: usize) {
        *self.open.lock().unwrap() += bytes;
        self.opened.notify_one();
    }

    fn take(&self, bytes: usize) {
        let open = self.open.lock().unwrap();
        *self.opened.wait_while(open, |open| *open < bytes).unwrap() -= bytes;
    }
}

/// Starts to forward. The thread ends with the process: nothing wakes it from its read.
pub fn forward(to: Arc<Mutex<UnixStream>>, window: Arc<Window>, terminal: Option<Size>) {
    thread::spawn(move || {
        let _ = carry(&to, &window, terminal);
    });
}

fn carry(to: &Mutex<UnixStream>, window: &Window, mut terminal: Option<Size>) -> io::Result<()> {
    let send = |message: ToGuest| message.send(&mut *to.lock().unwrap());
    let mut buffer = vec![0; STDIN_WINDOW / 4];
    // Who reads a terminal from its background is stopped: then there is no input.
    let background = tcgetpgrp(stdin()).is_ok_and(|group| group != getpgrp());
    if !background {
        let mut input = File::from(stdin().as_fd().try_clone_to_owned()?);
        loop {
            let n = input.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            // Anything typed is a good moment to see whether the window has changed.
            if terminal.is_some() && terminal != size() {
                terminal = size();
                send(ToGuest::Resize(terminal.expect("a size")))?;
            }
            window.take(n);
            send(ToGuest::Stdin(buffer[..n].to_vec()))?;
        }
    }
    send(ToGuest::Stdin(Vec::new()))
}

/// The size of the caller's terminal.
pub fn size() -> Option<Size> {
    let size = tcgetwinsize(stdin()).ok()?;
    // A terminal that does not know its size is an ordinary one.
    match (size.ws_row, size.ws_col) {
        (0, _) | (_, 0) => Some(Size { rows: 24, columns: 80 }),
        (rows, columns) => Some(Size { rows, columns }),
    }
}

/// The caller's terminal hands on every key as it is, until this is dropped.
pub struct Raw(Termios);

impl Raw {
    pub fn begin() -> io::Result<Raw> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

pub fn is_terminal() -> bool {
    isatty(stdin()) && isatty(rustix::stdio::stdout())
}
