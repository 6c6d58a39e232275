//! The `wr_id` that the device sees.

/// Which queue on a completion queue, which use of that place, which work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrId {
    /// The place of the queue on its completion queue; of a shared receive queue [`SHARED`] and its number.
    pub(crate) owner: u16,
    /// Counts the uses of the place: an old completion names an earlier one.
    pub(crate) generation: u16,
    /// The work request, in the order they were posted.
    pub(crate) sequence: u32,
}

/// The bit of the owner that says that it is a shared receive queue: its receives complete on several
/// completion queues, so that it has a number of its own, and no place.
pub(crate) const SHARED: u16 = 1 << 15;

impl WrId {
    /// The number of the shared receive queue that it is of.
    #[inline]
    pub(crate) fn shared(self) -> Option<u16> {
        (self.owner & SHARED != 0).then_some(self.owner & !SHARED)
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        u64::from(self.owner) << 48 | u64::from(self.generation) << 32 | u64::from(self.sequence)
    }

    #[inline]
    pub(crate) fn of(word: u64) -> WrId {
        WrId { owner: (word >> 48) as u16, generation: (word >> 32) as u16, sequence: word as u32 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_word_is_an_id_and_back(word: u64) {
            prop_assert_eq!(WrId::of(word).word(), word);
        }
    }
}
