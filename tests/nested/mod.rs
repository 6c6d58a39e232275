//! Cargo, called by a test for a crate of its own below `tests/`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// `cargo SUBCOMMAND` on `tests/CRATE`, with what is built in `target/CRATE`, and that place. It is not told
/// the flags and targets that the test itself was built with.
pub(crate) fn cargo(subcommand: &str, name: &str) -> (Command, PathBuf) {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = checkout.join("target").join(name);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([subcommand, "--quiet", "--locked", "--manifest-path"]);
    command.arg(checkout.join("tests").join(name).join("Cargo.toml"));
    command.arg("--target-dir").arg(&target);
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(variable);
    }
    for variable in ["CARGO_BUILD_RUSTFLAGS", "CARGO_TARGET_DIR", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    (command, target)
}
