//! The numbers of shared receive queues, which their work requests are named by on every completion queue.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::id::{SHARED, WrId};

/// A number that no other shared receive queue of this process has, while it lives.
pub(crate) struct Number {
    number: u16,
    generation: u16,
}

/// Of the whole process, so that it is no matter which devices are open.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { uses: Vec::new(), free: Vec::new() });

struct Numbers {
    /// How often each was given.
    uses: Vec<u16>,
    free: Vec<u16>,
}

/// How many there are.
pub(crate) const NUMBERS_IN_ALL: u32 = SHARED as u32;

fn numbers() -> MutexGuard<'static, Numbers> {
    // A panic elsewhere leaves nothing half done behind this lock.
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Number {
    /// One that is free; `None` when all are taken.
    pub(crate) fn take() -> Option<Number> {
        let mut numbers = numbers();
        let number = match numbers.free.pop() {
            Some(number) => number,
            None => {
                let number = u16::try_from(numbers.uses.len()).ok()?;
                if number & SHARED != 0 {
                    return None;
                }
                numbers.uses.push(0);
                number
            }
        };
        let uses = &mut numbers.uses[usize::from(number)];
        *uses = uses.wrapping_add(1);
        Some(Number { number, generation: *uses })
    }

    /// What its work requests are named by, the first of them.
    pub(crate) fn id(&self) -> WrId {
        WrId { owner: SHARED | self.number, generation: self.generation, sequence: 0 }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        numbers().free.push(self.number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_two_at_a_time_and_none_as_before() {
        let (one, two) = (Number::take().expect("one"), Number::take().expect("another"));
        assert_ne!(one.id().owner, two.id().owner);
        assert!(one.id().shared().is_some() && two.id().shared().is_some());
        let before = one.id();
        drop(one);
        // Other tests take some too.
        let again: Vec<_> = (0..64).filter_map(|_| Number::take()).collect();
        assert!(again.iter().all(|number| number.id() != before && number.id() != two.id()));
        assert!(WrId { owner: 7, generation: 0, sequence: 0 }.shared().is_none());
    }
}
