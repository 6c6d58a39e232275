//! A module imports from lower layers and from its own folder, never upward: the table of
//! DESIGN.md section 2, held against every `crate::` path in `src/`.

use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest up. A module may name those before its own.
const LAYERS: &[&str] = &[
    "trace",
    "types",
    "error",
    "sync",
    "tasks",
    "sys",
    "kept",
    "cache",
    "net",
    "gid",
    "pkey",
    "device",
    "counters",
    "limits",
    "port",
    "event",
    "context",
    "doorbell",
    "calls",
    "pinned",
    "directory",
    "query",
    "pd",
    "ah",
    "mem",
    "wq",
    "cq",
    "qp",
    "srq",
    "mcast",
    "resolve",
    "cm",
    "connect",
    "aio",
    "guide",
];

fn source_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src can be listed") {
        let path = entry.expect("src can be listed").path();
        if path.is_dir() {
            source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The modules that a line of code names by `crate::module` (or `crate::{a, b}`).
fn named(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let whole_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &code[at + "crate::".len()..];
        if !whole_word {
            continue;
        }
        assert!(!rest.starts_with('{'), "one module a line, please: {line}");
        modules.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
    }
    modules
}

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == module)
}

#[test]
fn no_module_imports_upward() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    let mut imports = 0;
    for file in files {
        let below = file.strip_prefix(&root).expect("it was found there");
        let module = below.components().next().expect("a name").as_os_str().to_string_lossy();
        let module = module.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let own = rank(module).unwrap_or_else(|| panic!("{module} is in no layer"));
        let text = fs::read_to_string(&file).expect("a source file");
        for line in text.lines() {
            for name in named(line) {
                let other = rank(&name)
                    .unwrap_or_else(|| panic!("{}: {name} is in no layer", below.display()));
                let upward = other > own;
                assert!(!upward, "{}: {module} imports {name}, a layer above", below.display());
                imports += 1;
            }
        }
    }
    assert!(imports > 20, "the imports were not found: {imports}");
}

#[test]
fn every_layer_has_a_module() {
    for layer in LAYERS {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let file = root.join(format!("{layer}.rs"));
        assert!(file.is_file() || root.join(layer).is_dir(), "{layer} has no file");
    }
}

#[test]
fn the_reader_of_imports() {
    assert_eq!(named("use crate::gid::{A, B};"), ["gid"]);
    assert_eq!(
        named("pub(crate) fn f(x: crate::types::Gid) -> crate::error::Error"),
        ["types", "error"]
    );
    assert!(named("// see crate::gid").is_empty());
    assert!(named("mycrate::gid").is_empty());
}
