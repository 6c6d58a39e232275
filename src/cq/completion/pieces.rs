//! Pieces of a completion's memory: fragments of page pools, and those that nobody asked for.

#![deny(unsafe_code)]

use super::Completion;
use crate::mem::{Fragment, Held, Memory};
use crate::types::WcOpcode;

impl Completion<'_> {
    /// The next fragment of a page pool that was posted; what comes before it is dropped.
    #[inline]
    pub fn take_fragment(&mut self) -> Option<Fragment> {
        loop {
            match self.claimed.take()?.into_fragment() {
                Ok(mut fragment) => {
                    self.set_received_fragment(&mut fragment);
                    return Some(fragment);
                }
                Err(other) => self.pass_over(other),
            }
        }
    }

    /// The fragment that was posted, the first if there are several.
    #[inline]
    pub fn into_fragment(mut self) -> Option<Fragment> {
        self.take_fragment()
    }

    #[inline]
    pub(super) fn set_received_fragment(&mut self, fragment: &mut Fragment) {
        if self.claimed.opcode() == WcOpcode::RECV {
            // As for a buffer.
            let len = self.give(fragment.capacity() as u32);
            fragment.put_len(len);
        }
    }

    /// Drops a piece, and counts what was received into it.
    pub(super) fn pass_over(&mut self, held: Held) {
        match held.into_memory() {
            Some(Memory::Exposed(range)) => drop(self.give(range.len() as u32)),
            Some(Memory::Buffer(buffer)) => drop(self.give(buffer.capacity() as u32)),
            Some(Memory::Fragment(fragment)) => drop(self.give(fragment.capacity() as u32)),
            Some(Memory::Shared(_) | Memory::Window(_)) | None => {}
        }
    }
}
