//! Futures that are dropped at random moments.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many were dropped before they were ready.
#[derive(Default)]
pub(crate) struct Cuts(AtomicU64);

impl Cuts {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who drops them, if anybody does.
pub(crate) struct Cutter {
    /// Where randomness is; 0 for none.
    state: u64,
    /// How many were dropped one after the other: each has four times as long as the one before, so that what
    /// takes time comes to its end.
    in_a_row: u32,
}

impl Cutter {
    /// One that begins here.
    pub(crate) fn new(on: bool, seed: u64) -> Cutter {
        if !on {
            return Cutter { state: 0, in_a_row: 0 };
        }
        let state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut cutter = Cutter { state, in_a_row: 0 };
        // Seeds that are near each other are to have nothing else in common.
        (0..8).for_each(|_| cutter.step());
        cutter
    }

    /// What the future gives; nothing if it was dropped before. One of three is only looked at
    /// the first time.
    pub(crate) async fn cut<F: Future>(&mut self, cuts: &Cuts, future: F) -> Option<F::Output> {
        let Some(patience) = self.patience() else { return Some(future.await) };
        let output = tokio::time::timeout(patience, future).await.ok();
        self.in_a_row = if output.is_none() { self.in_a_row + 1 } else { 0 };
        if output.is_none() {
            cuts.0.fetch_add(1, Ordering::Relaxed);
        }
        output
    }

    fn patience(&mut self) -> Option<Duration> {
        if self.state == 0 {
            return None;
        }
        self.step();
        let third = 8 << (2 * self.in_a_row).min(14);
        let millis = (self.state >> 32) % (3 * third);
        let only_looked_at = if self.in_a_row == 0 { third } else { 0 };
        Some(Duration::from_millis(millis.saturating_sub(only_looked_at)))
    }

    /// A xorshift.
    fn step(&mut self) {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
    }
}
