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
            // SAFETY: it is borrowed exclusively, and the device's queue is nobody else's to poll.
            match unsafe { self.device.poll(&mut self.entries, &mut self.open.times) } {
                Ok(count) => {
                    (self.open.next, self.count) = (0, count);
                    if count < self.entries.len() {
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
