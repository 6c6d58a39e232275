//! One port: reads what the host wants, one program after the other.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

use wire::{FromGuest, Outcome, ToGuest};

use crate::entropy;
use crate::files::Incoming;
use crate::program::Program;

/// The port's other direction, shared by a program's threads.
#[derive(Clone)]
pub struct Host(Arc<Mutex<File>>);

impl Host {
    pub fn send(&self, message: FromGuest) -> io::Result<()> {
        message.send(&mut *self.0.lock().unwrap())
    }
}

pub fn serve(mut port: File) -> io::Result<()> {
    let host = Host(Arc::new(Mutex::new(port.try_clone()?)));
    let mut incoming: Option<Incoming> = None;
    // The first thing that went wrong with the files; a program without its files is not started.
    let mut trouble: Option<String> = None;
    let mut program: Option<Program> = None;

    while let Some(message) = ToGuest::receive(&mut port)? {
        match message {
            ToGuest::Wake { unix_nanos, seed } => {
                entropy::wake(unix_nanos, &seed)?;
                host.send(FromGuest::Awake)?;
            }
            ToGuest::File(head) => {
                let path = head.path.clone();
                match Incoming::begin(head) {
                    Ok(file) => incoming = Some(file),
                    Err(e) => trouble = Some(format!("cannot write {}: {e}", path.display())),
                }
            }
            ToGuest::Data(data) => {
                let result = match incoming.as_mut() {
                    _ if data.is_empty() => incoming.take().map_or(Ok(()), Incoming::finish),
                    Some(file) => file.write(&data),
                    None => Ok(()),
                };
                if let Err(e) = result {
                    incoming = None;
                    trouble.get_or_insert(format!("cannot write a file: {e}"));
                }
            }
            ToGuest::Start(start) => {
                if let Some(before) = program.take() {
                    before.end();
                }
                let outcome = match trouble.take() {
                    Some(trouble) => Err(Outcome::NotStarted(trouble)),
                    None => Program::start(start, host.clone()),
                };
                match outcome {
                    Ok(started) => program = Some(started),
                    Err(outcome) => host.send(FromGuest::Exited(outcome))?,
                }
            }
            ToGuest::Stdin(data) => {
                if let Some(program) = &program {
                    program.input(data);
                }
            }
            ToGuest::Ignore(stream) => {
                if let Some(program) = &program {
                    program.ignore(stream);
                }
            }
            ToGuest::Resize(size) => {
                if let Some(program) = &program {
                    program.resize(size);
                }
            }
            ToGuest::Kill => {
                if let Some(program) = &program {
                    program.kill();
                }
            }
            ToGuest::Hangup => {
                if let Some(program) = program.take() {
                    program.end();
                }
                incoming = None;
                trouble = None;
                host.send(FromGuest::Clear)?;
            }
        }
    }
    Ok(())
}
