//! Taking completions from the device.

#![allow(unsafe_code)]

use super::CompletionQueue;
use crate::error::{Errno, Error, Result};

impl CompletionQueue {
    /// Takes what the device has.
    #[inline(always)]
    pub(super) fn fill(&mut self) -> Result<()> {
        if self.polled.is_behind(&self.shared) {
            self.polled.catch_up(&self.shared);
        }
        if self.failed.is_none() {
            let polled = match self.device.poll(&mut self.entries) {
                Some(polled) => polled.map(|count| (count, count < self.entries.len())),
                None => self.poll_extended(),
            };
            match polled {
                Ok((count, emptied)) => {
                    (self.open.next, self.count) = (0, count);
                    if emptied {
                        self.polled.saw_it_empty();
                    } else {
                        self.polled.took(count, self.shared.size);
                    }
                    if count != 0 || !self.shared.events.any() {
                        return Ok(());
                    }
                    self.take_in_events();
                    if self.failed.is_none() {
                        return Ok(());
                    }
                }
                Err(errno) => self.failed = Some(errno),
            }
        }
        self.fill_failed()
    }

    #[inline(never)]
    fn poll_extended(&mut self) -> Result<(usize, bool), Errno> {
        // SAFETY: it is borrowed exclusively, and the device's queue is nobody else's to poll.
        unsafe { self.device.poll_extended(&mut self.entries, &mut self.open.times) }
    }

    #[cold]
    fn fill_failed(&mut self) -> Result<()> {
        (self.open.next, self.count) = (0, 0);
        // Nothing will come from the device any more.
        self.polled.saw_it_empty();
        match self.failed {
            Some(errno) if !self.polled.is_ending() => Err(Error::CompletionQueueFailed {
                device: self.shared.context.device().name().into(),
                errno,
            }),
            _ => Ok(()),
        }
    }

    /// What has happened to it: whether it failed.
    fn take_in_events(&mut self) {
        const CQ_ERR: u32 = 1 << 0;
        if self.shared.events.take() & CQ_ERR != 0 && self.failed.is_none() {
            self.failed = Some(Errno::EIO);
        }
    }
}
