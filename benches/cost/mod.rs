//! What a bench counts besides time: allocations and instructions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what is allocated.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator, unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many there were.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Instructions of one: what a hundred thousand more add to a run of this program with `--only` and this
/// task, of ten thousand and of more. `None` where valgrind is not installed.
pub(crate) fn instructions(task: impl Fn(u64) -> String) -> Option<f64> {
    let run = |count: u64| -> Option<f64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args(["--only", &task(count)])
            .output()
            .ok()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        told.split("Collected :").nth(1)?.split_whitespace().next()?.parse().ok()
    };
    Some((run(110_000)? - run(10_000)?) / 1e5)
}
