//! Each test that `tests/FIELD.md` names is there.

use std::fs;
use std::path::Path;

/// The tests that the table names: file and function.
fn named(table: &str) -> Vec<(&str, &str)> {
    let quoted = table.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|text| text.split_once("::"))
        .filter(|(file, _)| file.ends_with(".rs"))
        .collect()
}

/// Why there is no such test; `None` when there is.
fn missing(root: &Path, file: &str, name: &str) -> Option<String> {
    let folder = if file.starts_with("src/") { root.to_owned() } else { root.join("tests") };
    let Ok(text) = fs::read_to_string(folder.join(file)) else {
        return Some(format!("there is no {file}"));
    };
    let head = format!("fn {name}() {{");
    let Some(at) = text.find(&head) else { return Some(format!("{file} has no `{head}`")) };
    let before = text.get(..at).unwrap_or_default();
    // With an attribute of its own, or in the list of those on the interposer's devices.
    let attribute = before.rsplit("\n\n").next().is_some_and(|just| just.contains("#[test]"));
    let listed = before.contains("\ninterposed! {\n");
    (!attribute && !listed).then(|| format!("{file}: {name} is no test"))
}

#[test]
fn every_test_that_the_table_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("tests/FIELD.md")).expect("the table");
    let named = named(&table);
    assert!(named.len() >= 60, "{} tests", named.len());
    let missing: Vec<String> =
        named.iter().filter_map(|(file, name)| missing(root, file, name)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A line of the table says where, why not, or that it comes later.
#[test]
fn every_line_says_something() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("tests/FIELD.md")).expect("the table");
    let lines = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    for line in lines {
        let inside = line.trim_start_matches("| ").trim_end_matches('|').trim_end();
        let (theirs, ours) = inside.split_once(" |").unwrap_or_else(|| panic!("one cell: {line}"));
        let heading = theirs.starts_with("**") && ours.is_empty();
        let said = ["`", "later", "left out", "cannot"].iter().any(|word| ours.contains(word));
        assert!(heading || said, "{line}");
    }
}

#[test]
fn what_is_not_there_is_found_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(
        named("`a.rs::b` and `Type::method`, `c/d.rs::e`"),
        [("a.rs", "b"), ("c/d.rs", "e")]
    );
    assert_eq!(missing(root, "field.rs", "what_is_not_there_is_found_out"), None);
    assert!(missing(root, "no_such_file.rs", "a").is_some());
    assert!(missing(root, "field.rs", "no_such_test").is_some());
    assert!(missing(root, "rxe/rig.rs", "alone").is_some(), "no test, and takes the lock");
}
