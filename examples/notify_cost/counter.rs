//! The processor's cycle counter, if it is steady: measured against the monotonic clock.

use std::thread;
use std::time::{Duration, Instant};

use super::raw;

/// A counter that is as good as a clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    pub(crate) mhz: f64,
}

/// How long it is measured, twice.
const SPAN: Duration = Duration::from_millis(25);
/// How much the two may differ.
const MOST: f64 = 0.01;

impl Counter {
    /// Measures it.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub(crate) fn calibrate() -> Result<Counter, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err(format!(
                "{} has no cycle counter that a program may read",
                std::env::consts::ARCH
            ));
        }
        check_flags(std::fs::read_to_string("/proc/cpuinfo").as_deref().unwrap_or_default())?;
        steady(rate(), rate())
    }

    pub(crate) fn ns(self, cycles: f64) -> f64 {
        cycles * 1000.0 / self.mhz
    }
}

/// Whether the kernel says that it counts at one rate, and in sleep too.
pub(crate) fn check_flags(cpuinfo: &str) -> Result<(), String> {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let missing: Vec<_> = ["constant_tsc", "nonstop_tsc"]
        .into_iter()
        .filter(|flag| !flags.split_ascii_whitespace().any(|one| one == *flag))
        .collect();
    match &missing[..] {
        [] => Ok(()),
        missing => Err(format!("the processor's flags lack {}", missing.join(" and "))),
    }
}

/// Two measures of one counter, in MHz.
pub(crate) fn steady(first: f64, second: f64) -> Result<Counter, String> {
    let mhz = (first + second) / 2.0;
    let apart = (first - second).abs() / mhz;
    if mhz.is_finite() && mhz > 1.0 && apart <= MOST {
        return Ok(Counter { mhz });
    }
    Err(format!("it went at {first:.1} MHz, and then at {second:.1}"))
}

/// Cycles a microsecond, by the clock.
fn rate() -> f64 {
    let (clock, counter) = (Instant::now(), raw::cycles());
    thread::sleep(SPAN);
    let (elapsed, counted) = (clock.elapsed(), raw::cycles().wrapping_sub(counter));
    counted as f64 / (elapsed.as_nanos() as f64 / 1000.0)
}
