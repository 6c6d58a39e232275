//! Programs that do not compile, for the one reason that they are about: `tests/compile_fail`.
//!
//! Each is compiled twice, with the feature `misuse` and without. What the compiler says in words differs
//! between its versions; the code of the error is looked at, and that the twin has none.

mod nested;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

/// By the program: the codes of its errors.
fn errors(arguments: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let (mut command, _) = nested::cargo("check", "compile_fail");
    command.args(["--bins", "--keep-going", "--message-format=json"]).args(arguments);
    let output = command.output().expect("cargo starts");
    let mut errors: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let printed = String::from_utf8_lossy(&output.stdout);
    for line in printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let program = line["target"]["name"].as_str().unwrap_or_default();
        match line["reason"].as_str() {
            // It compiled, or a part of it did.
            Some("compiler-artifact") => {
                errors.entry(program.into()).or_default();
            }
            Some("compiler-message") if line["message"]["level"] == "error" => {
                let message = &line["message"];
                // The count of errors at the end has none.
                if let Some(code) = message["code"]["code"].as_str() {
                    errors.entry(program.into()).or_default().insert(code.into());
                } else if !message["spans"].as_array().is_none_or(Vec::is_empty) {
                    let text = message["rendered"].as_str().unwrap_or_default();
                    errors.entry(program.into()).or_default().insert(text.into());
                }
            }
            _ => {}
        }
    }
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.is_empty(), "nothing was compiled: {told}");
    errors
}

/// By the program: the code that its first line promises.
fn promised() -> BTreeMap<String, BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail/src/bin");
    let mut promised = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the programs") {
        let path = entry.expect("a program").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a program");
        let code = text.strip_prefix("//! E").and_then(|rest| rest.split_once(':'));
        let (number, _) = code.unwrap_or_else(|| panic!("{name} promises no error"));
        promised.insert(name, BTreeSet::from([format!("E{number}")]));
    }
    promised
}

#[test]
fn each_misuse_is_refused_for_its_reason_and_its_twin_is_not() {
    let promised = promised();
    assert!(promised.len() >= 35, "{} programs", promised.len());
    let twins = errors(&[]);
    let misuses = errors(&["--features", "misuse"]);
    for (program, codes) in &promised {
        assert_eq!(twins.get(program), Some(&BTreeSet::new()), "the twin of {program}");
        assert_eq!(misuses.get(program), Some(codes), "{program}");
    }
}
