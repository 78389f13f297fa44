//! The header against the Rust source.
//!
//! Lives here:       making the header again, comparing; the exported symbols are those of the header.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// In the order in which a reader needs to meet them.
const SOURCES: [&str; 16] = [
    "status",
    "failure",
    "arguments",
    "options",
    "device",
    "inspect",
    "records",
    "ranges",
    "snapshots",
    "versions",
    "store",
    "many",
    "txn",
    "writes",
    "backups",
    "changes",
];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn generated() -> String {
    let mut config = cbindgen::Config::from_file(here("cbindgen.toml")).expect("the configuration is valid");
    config.after_includes = config.after_includes.map(|text| text.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(here(&format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().expect("the source has a C interface").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

/// Names that begin with `kaml_` and are followed by a parenthesis, outside comments.
fn functions(header: &str) -> BTreeSet<String> {
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let before_parenthesis = code.flat_map(|line| line.split('(').next().filter(|name| name.len() < line.len()));
    let names = before_parenthesis.filter_map(|text| text.rsplit([' ', '*']).next());
    names.filter(|name| name.starts_with("kaml_")).map(str::to_owned).collect()
}

/// Goal:   `include/kaml.h` states what the library does.
/// Method: generate it from the source and compare; `KAML_BLESS=1` stores it.
#[test]
fn the_header_is_that_of_the_source() {
    let (path, text) = (here("include/kaml.h"), generated());
    if std::env::var_os("KAML_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the header can be written");
    }
    let stored = std::fs::read_to_string(&path).expect("the header exists");
    if let Some((at, (old, new))) = stored.lines().zip(text.lines()).enumerate().find(|(_, (old, new))| old != new) {
        panic!("kaml.h, line {}: stored {old:?}, source {new:?}; KAML_BLESS=1 stores the new one", at + 1);
    }
    assert_eq!(stored.len(), text.len(), "kaml.h: one is longer; KAML_BLESS=1 stores the new one");
}

/// Goal:   no function is missing in the header, and no module of the source is left out of it.
/// Method: count the exported functions of all source files by their attribute.
#[test]
fn every_exported_function_is_declared() {
    let mut exported = BTreeSet::new();
    for entry in std::fs::read_dir(here("src")).expect("the source exists") {
        let text = std::fs::read_to_string(entry.expect("readable").path()).expect("UTF-8");
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let name = part.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
            exported.insert(name.expect("a function follows").to_owned());
        }
    }
    assert!(exported.len() > 30, "{exported:?}");
    assert_eq!(functions(&generated()), exported);
}
