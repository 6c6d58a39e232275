//! A socket that the kernel tells of changes on: whatever it says is turned into announcements.
//!
//! # Why no change is lost
//!
//! A change is told after it can be read (with one exception, which `Uevents` tells of). Every message that concerns is announced when it is
//! taken. A message that found no room is not there to be taken; the kernel says so once
//! (`ENOBUFS`) and then drops every further one silently, until the socket was found empty. So a
//! loss is announced when the socket *has been* found empty, behind everything that it dropped.

#![deny(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::socket::{Received, Socket, Source};
use crate::error::{Errno, Error, Result};
use crate::kept::{Announcements, Kept};

/// Takes messages and announces what they tell of.
pub(super) struct Listener<S = Socket> {
    /// For errors.
    call: &'static str,
    source: S,
    /// Whether a message, whole or not, may tell of a change.
    concerns: fn(message: &[u8], whole: bool) -> bool,
    state: Mutex<State>,
    lost: AtomicU64,
}

struct State {
    buffer: Box<[u8]>,
    /// Each announces to a kept value, and says whether that is still there.
    listeners: Vec<Box<dyn Fn() -> bool + Send + Sync>>,
    /// Messages were lost, and the socket was not found empty since.
    losing: bool,
}

impl State {
    fn announce(&mut self) {
        self.listeners.retain(|announce| announce());
    }
}

/// More than any message needs whose type is looked at.
const BUFFER: usize = 16 * 1024;

/// The most messages taken in at once. A source that never runs dry must not hold a lookup for
/// ever.
const MOST_AT_ONCE: usize = 4096;

impl<S: Source> Listener<S> {
    pub(super) fn new(
        call: &'static str,
        source: S,
        concerns: fn(&[u8], bool) -> bool,
    ) -> Listener<S> {
        let state = State { buffer: vec![0; BUFFER].into(), listeners: Vec::new(), losing: false };
        Listener { call, source, concerns, state: Mutex::new(state), lost: AtomicU64::new(0) }
    }

    /// Changes are announced to `kept` from now on, for as long as somebody else holds it.
    pub(super) fn announce_to<T: Send + Sync + 'static>(&self, kept: &Arc<Kept<T>>) {
        let kept: Weak<Kept<T>> = Arc::downgrade(kept);
        self.state()
            .listeners
            .push(Box::new(move || kept.upgrade().map(|kept| kept.announce()).is_some()));
    }

    /// Takes in the messages there are, without waiting, and gives how many of them told of a
    /// change; a loss counts as one.
    pub(super) fn drain(&self) -> Result<usize> {
        // Held to the end: who waits for it finds everything announced that was taken before.
        let mut state = self.state();
        let mut count = 0;
        for _ in 0..MOST_AT_ONCE {
            match self.source.receive(&mut state.buffer) {
                Ok(received) => {
                    if self.is_change(&state, received) {
                        count += 1;
                        state.announce();
                    }
                }
                // The kernel had no room for a message, or no memory to make it.
                Err(Errno::ENOBUFS | Errno::ENOMEM | Errno::EMSGSIZE) => {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    count += 1;
                    state.losing = true;
                }
                Err(Errno::EAGAIN) => {
                    if std::mem::take(&mut state.losing) {
                        state.announce();
                    }
                    return Ok(count);
                }
                Err(errno) => {
                    state.announce();
                    return Err(Error::Host { call: self.call, errno });
                }
            }
        }
        // What is still in the socket may be what somebody waits for.
        state.announce();
        Ok(count)
    }

    fn is_change(&self, state: &State, received: Received) -> bool {
        let message = state.buffer.get(..received.len);
        let whole = message.is_some();
        // Anybody with the right to may send here, and say anything.
        received.from_kernel && (self.concerns)(message.unwrap_or(&state.buffer), whole)
    }

    /// How often messages were lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// A panic elsewhere leaves nothing half done behind this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Source> Announcements for Listener<S> {
    fn take_in(&self) -> Result<()> {
        self.drain().map(|_| ())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A message, and whether the kernel sent it.
    type Said = Result<(&'static [u8], bool), Errno>;

    /// Gives what it was told to, then `EAGAIN`.
    struct Told(Mutex<VecDeque<Said>>);

    impl Source for Told {
        fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
            let next = self.0.lock().expect("one test").pop_front();
            let (bytes, from_kernel) = next.unwrap_or(Err(Errno::EAGAIN))?;
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            Ok(Received { len: bytes.len(), from_kernel })
        }
    }

    /// A listener whom messages that begin with `!`, or were cut, concern, and the value that it
    /// announces to.
    fn listener(script: Vec<Said>) -> (Listener<Told>, Arc<Kept<u32>>) {
        let told = Told(Mutex::new(script.into()));
        let listener =
            Listener::new("a test", told, |message, whole| !whole || message.starts_with(b"!"));
        let kept = Arc::new(Kept::new(0));
        kept.refresh(|_| Ok(None)).expect("nothing is read");
        listener.announce_to(&kept);
        (listener, kept)
    }

    #[test]
    fn what_concerns_is_announced() {
        let (listener, kept) = listener(vec![Ok((b"?", true)), Ok((b"", true)), Ok((b"!", false))]);
        assert_eq!(listener.drain().expect("drained"), 0);
        assert!(kept.is_current(), "of no concern, empty, and forged");
        listener.source.0.lock().expect("one test").extend([Ok((&b"!"[..], true)); 3]);
        assert_eq!(listener.drain().expect("drained"), 3);
        assert!(!kept.is_current());
        assert_eq!(kept.stats().events, 3);
    }

    #[test]
    fn a_cut_message_may_be_anything() {
        let (listener, kept) = listener(vec![Ok((&[b'?'; BUFFER + 1], true))]);
        assert_eq!(listener.drain().expect("drained"), 1);
        assert!(!kept.is_current());
    }

    /// After the word of it the kernel drops in silence, until the socket is empty.
    #[test]
    fn a_loss_is_announced_when_the_socket_is_empty() {
        for errno in [Errno::ENOBUFS, Errno::ENOMEM, Errno::EMSGSIZE] {
            let (listener, kept) = listener(vec![Err(errno), Ok((b"?", true)), Ok((b"?", true))]);
            assert_eq!(listener.drain().expect("drained"), 1);
            assert!(listener.source.0.lock().expect("one test").is_empty());
            assert_eq!((kept.stats().events, listener.lost()), (1, 1));
            assert!(!kept.is_current());
        }
    }

    #[test]
    fn a_failure_is_told_and_announced() {
        let (listener, kept) = listener(vec![Err(Errno::EBADF)]);
        let error = listener.drain().expect_err("a failure").to_string();
        assert!(error.starts_with("a test: EBADF"), "{error}");
        assert!(!kept.is_current());
    }

    #[test]
    fn a_source_that_never_runs_dry() {
        let (listener, kept) = listener(vec![Ok((b"?", true)); MOST_AT_ONCE + 1]);
        assert_eq!(listener.drain().expect("drained"), 0);
        assert!(!kept.is_current(), "the one that is left may be of concern");
        assert_eq!(listener.source.0.lock().expect("one test").len(), 1);
    }

    /// A loss waits until the socket was found empty, however many calls that takes.
    #[test]
    fn a_loss_before_more_than_is_taken_at_once() {
        let mut script: Vec<Said> = vec![Ok((b"?", true)); MOST_AT_ONCE];
        script.insert(0, Err(Errno::ENOBUFS));
        let (listener, kept) = listener(script);
        assert_eq!(listener.drain().expect("drained"), 1);
        kept.check(|_| Ok(None)).expect("nothing is read");
        assert_eq!(listener.drain().expect("drained"), 0);
        assert!(!kept.is_current());
    }

    #[test]
    fn a_value_that_is_gone_is_forgotten() {
        let (listener, kept) = listener(vec![Ok((b"!", true))]);
        drop(kept);
        assert_eq!(listener.drain().expect("drained"), 1);
        assert!(listener.state().listeners.is_empty());
    }
}
