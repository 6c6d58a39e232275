//! A program that depends on this crate, built and run with either backend: `tests/dependent`.

mod interposed;

use std::process::Command;

use interposed::nested;

/// What the program prints; it must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Builds it with these features, and gives its path.
fn built(features: &[&str]) -> std::path::PathBuf {
    let (mut command, target) = nested::cargo("build", "dependent");
    output(command.args(features));
    target.join("debug/rdma-verbs-dependent")
}

/// One after the other: both are built in one place.
#[test]
fn a_program_that_depends_on_this_crate_runs_with_either_backend() {
    for features in [&[][..], &["--features", "rdma-sys"]] {
        let program = built(features);
        // On this machine, whatever it has.
        let printed = output(&mut Command::new(&program));
        assert!(printed.lines().next().is_some_and(|line| line.ends_with(" devices")), "{printed}");
        let printed =
            output(Command::new(&program).arg("loop0").env("LD_PRELOAD", interposed::interposer()));
        assert!(printed.lines().any(|line| line.starts_with("loop0 port 1 index 1 ")), "{printed}");
        let mut lines: Vec<&str> = printed.lines().rev().take(2).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["receive: hello", "send: hello"], "{features:?}: {printed}");
    }
}

/// What is published is what is meant to be: no file from elsewhere, and nothing large.
#[test]
fn the_package_has_what_it_needs_and_nothing_else() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let printed =
        output(command.args(["package", "--list", "--allow-dirty", "--offline"]).current_dir(root));
    let files: Vec<&str> = printed.lines().collect();
    let made_by_cargo = [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml", "Cargo.toml.orig"];
    let mut bytes = 0;
    for file in &files {
        let at_top = ["CHANGELOG.md", "DESIGN.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];
        let below = ["src/", "examples/", "benches/"].iter().any(|folder| file.starts_with(folder));
        let ends = [".rs", ".c", ".md"].iter().any(|end| file.ends_with(end));
        let picture = file.starts_with("examples/pictures/") && file.ends_with(".svg");
        let fits =
            made_by_cargo.contains(file) || at_top.contains(file) || below && ends || picture;
        assert!(fits, "{file} is in the package");
        bytes += root.join(file).metadata().map_or(0, |found| found.len());
    }
    for needed in ["src/lib.rs", "README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(files.contains(&needed), "{needed} is not in the package");
    }
    // Each picture that people are shown, and no other.
    let readme = std::fs::read_to_string(root.join("README.md")).expect("README.md");
    let links = readme.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let shown: Vec<&str> = links.filter(|link| link.ends_with(".svg")).collect();
    let there: Vec<&str> = files.into_iter().filter(|file| file.ends_with(".svg")).collect();
    assert_eq!(there, shown);
    assert!(bytes < 4 << 20, "{bytes} bytes");
}
