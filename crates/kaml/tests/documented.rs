//! Every public item of this crate is documented as if it were the only page read.

use std::path::{Path, PathBuf};

/// The sources below a directory.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

/// The documentation and attributes above a line.
fn above(lines: &[&str], at: usize) -> String {
    let is_above = |line: &&&str| line.trim_start().starts_with("///") || line.trim_start().starts_with("#[");
    let count = lines[..at].iter().rev().take_while(is_above).count();
    lines[at - count..at].join("\n")
}

/// The signature that begins at a line.
fn signature(lines: &[&str], at: usize) -> String {
    let end = lines[at..].iter().position(|line| line.ends_with('{') || line.ends_with(';')).unwrap_or(0);
    lines[at..=at + end].join(" ")
}

/// Goal:   each public type has an example, and each public function that can fail lists its errors.
/// Method: read the sources, which are in the form that rustfmt gives them. The numbers of items show that the search finds some.
#[test]
fn public_items_have_examples_and_errors() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let (mut types, mut functions, mut lacking) = (0, 0, Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let documentation = above(&lines, at);
            if documentation.contains("#[doc(hidden)]") {
                continue;
            }
            let is_type = ["pub struct ", "pub enum ", "pub trait ", "pub type "].iter().any(|of| line.starts_with(of));
            let is_function = line.trim_start().starts_with("pub fn ");
            let is_fallible = is_function
                && signature(&lines, at).rsplit_once("->").is_some_and(|(_, result)| result.contains("Result<"));
            types += usize::from(is_type);
            functions += usize::from(is_fallible);
            if is_type && !documentation.contains("# Examples") {
                lacking.push(format!("{}:{}: no example", file.display(), at + 1));
            }
            if is_fallible && !documentation.contains("# Errors") {
                lacking.push(format!("{}:{}: no errors", file.display(), at + 1));
            }
        }
    }
    assert!(lacking.is_empty(), "{lacking:#?}");
    assert!(types > 30 && functions > 80, "{types} types, {functions} functions");
}
