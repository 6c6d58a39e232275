//! The clock of `loop0`. It stands still between completions, so that a test knows what it shows.

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_values_ex};
use crate::verbs::{self, Verb};
use crate::world::{there, world};

/// What a clock can show.
pub(crate) const MASK: u64 = (1 << 48) - 1;
/// How fast devices say that it goes.
pub(crate) const KHZ: u64 = 156_250;
/// How much a completion takes.
pub(crate) const TICKS: u64 = 100;

/// A device's clock.
pub(crate) struct Clock(u64);

impl Clock {
    /// Not at 0, which a time that was forgotten is.
    pub(crate) const START: u64 = 1_000_000;

    pub(crate) const fn new() -> Clock {
        Clock(Clock::START)
    }

    pub(crate) fn now(&self) -> u64 {
        self.0
    }

    /// Goes on by a completion; what it shows then.
    pub(crate) fn tick(&mut self) -> u64 {
        self.0 = (self.0 + TICKS) & MASK;
        self.0
    }

    /// Gives what it showed.
    pub(crate) fn set(&mut self, ticks: u64) -> u64 {
        std::mem::replace(&mut self.0, ticks & MASK)
    }
}

/// Puts the clock where it is asked for.
///
/// # Safety
///
/// `values` can be read and written.
pub(crate) unsafe fn tell(values: *mut ibv_values_ex, now: u64) -> Result<(), c_int> {
    const RAW_CLOCK: u32 = 1 << 0;
    // SAFETY: the caller has one there.
    let values = unsafe { &mut *values };
    if values.comp_mask & !RAW_CLOCK != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if values.comp_mask & RAW_CLOCK != 0 {
        // Ticks, and no nanoseconds.
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now as libc::c_long };
    }
    Ok(())
}

/// # Safety
///
/// As C's: `values` can be read and written.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::QueryRtValues);
    there(&mut world.contexts, context, "context");
    verbs::errno(called.and_then(|()| {
        if world.faults.no_clock {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller has one there.
        unsafe { tell(values, world.clock.now()) }
    }))
}
