//! libibverbs' extended calls on the interposer's device, which has a clock, and is stricter about them than any
//! real one. On rxe, as far as they are right there: `tests/rxe/extended.rs`.
//!
//! * `times`: the device's time of each completion. `polling`, `posting`: what fails, and what it looks like.
//! * `same`: whatever is posted, completions and memory are those of the classic calls.

#[path = "../interposed/mod.rs"]
mod interposed;

mod polling;
mod posting;
mod same;
mod times;
