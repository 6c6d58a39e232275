//! Tests on the interposer's devices (`tests/interposer`): each runs in a process of its own, which
//! the library is preloaded into, since what it fakes and what it counts is the whole process's.
//!
//! ```
//! mod interposed;
//! use interposed::{faults, interposed};
//!
//! interposed! {
//!     fn a_device_that_cannot_be_opened() {
//!         faults::fail("ibv_open_device", libc::ENOMEM);
//!         ...
//!     }
//! }
//! ```

// Every test binary that has this module uses a part of it.
#![allow(dead_code, unused_imports, unused_macros)]

pub(crate) mod faults;
#[path = "../nested/mod.rs"]
pub(crate) mod nested;
pub(crate) mod rig;

use std::ffi::c_int;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The library, built when first asked for; quick when it is built already.
pub(crate) fn interposer() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let (mut command, target) = nested::cargo("build", "interposer");
        command.arg("--release");
        let built = command.status().expect("cargo starts");
        assert!(built.success(), "tests/interposer cannot be built: {built}");
        target.join("release/librdma_interposer.so")
    };
    BUILT.get_or_init(build).clone()
}

/// How long a test in a process of its own may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs the ignored test of this name, of this same program, with the interposer preloaded.
///
/// # Panics
///
/// When it fails or takes too long; what it printed is shown.
pub(crate) fn inner(name: &str) {
    let me = std::env::current_exe().expect("own path");
    let mut command = Command::new(&me);
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let mut preload = interposer().into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD") {
        preload.push(":");
        preload.push(others);
    }
    // To a file: a pipe that nobody reads while it runs could fill up.
    let program = me.file_name().expect("a name").to_string_lossy().into_owned();
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{program}-{}-{}",
        name.replace("::", "-"),
        std::process::id()
    ));
    let file = File::create(&output).expect("the output's file");
    let errors = file.try_clone().expect("the output's file");
    command.stdin(Stdio::null()).stdout(file).stderr(errors).env("LD_PRELOAD", preload);
    let mut child = command.spawn().expect("this program starts");
    let begin = Instant::now();
    let ended = loop {
        match child.try_wait().expect("the child is ours") {
            Some(status) => break Some(status),
            None if begin.elapsed() > DEADLINE => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    let printed = fs::read(&output).expect("the output's file");
    let printed = String::from_utf8_lossy(&printed);
    let _ = fs::remove_file(&output);
    print!("{printed}");
    match ended {
        None => panic!("{name} did not end within {DEADLINE:?}; it printed:\n{printed}"),
        Some(status) => assert!(status.success(), "{name}: {status}; it printed:\n{printed}"),
    }
    assert!(printed.contains("1 passed"), "there is no test {name}; it printed:\n{printed}");
}

/// Whether this process leaves on purpose what nothing points to any more.
static LEAKS: AtomicBool = AtomicBool::new(false);

/// Tells a leak checker, if there is one, that this test makes leaks: that the crate keeps what the device
/// could not be made to let go of.
pub(crate) fn leaks_on_purpose() {
    LEAKS.store(true, Ordering::Relaxed);
}

/// What LeakSanitizer asks before it looks. Nobody else calls it.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
extern "C" fn __lsan_is_turned_off() -> c_int {
    LEAKS.load(Ordering::Relaxed).into()
}

/// Tests that run with the interposer preloaded: of each a test that is ignored, in a module `preloaded`,
/// and one that runs it. Once in a file.
macro_rules! interposed {
    ($($(#[$meta:meta])* fn $name:ident() $body:block)*) => {
        $($(#[$meta])* #[test] fn $name() {
            let module = module_path!().split_once("::").map_or("", |(_, module)| module);
            let separator = if module.is_empty() { "" } else { "::" };
            $crate::interposed::inner(&format!(
                "{module}{separator}preloaded::{}",
                stringify!($name),
            ));
        })*

        mod preloaded {
            #[allow(unused_imports)]
            use super::*;

            $(#[test]
            #[ignore = "runs in a process of its own, with the interposer preloaded"]
            fn $name() {
                $crate::interposed::faults::reset();
                $body
            })*
        }
    };
}
pub(crate) use interposed;
