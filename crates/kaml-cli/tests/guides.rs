//! Every command of the README and the guides.
//!
//! Lives here:       blocks of pages that are marked `sh` and `console`.
//! Lives elsewhere:  examples of help texts (`examples.rs`); programs in Rust (`kaml-testkit`), C (`kaml-capi`), Python (`python/tests`) and Java
//!                   (`java/test`).

mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use world::World;

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages: Vec<PathBuf> =
        fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.push(root.join("README.md"));
    pages
}

/// The blocks of a page in a language.
fn blocks(page: &Path, language: &str) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(named) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if named == language {
                found.push(block.join("\n") + "\n");
            }
        }
    }
    found
}

fn shell(world: &World, script: &str) -> Output {
    let bin = Path::new(env!("CARGO_BIN_EXE_kaml")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-e", "-o", "pipefail", "-c", script]).current_dir(world.dir.path()).env("PATH", path);
    bash.stdin(Stdio::null()).output().unwrap()
}

/// Goal:   the programs in the language of the shell work, and work again.
/// Method: run each twice in a directory of its page; leave out those that build KAML.
#[test]
fn shell_programs_run_twice() {
    let mut count = 0;
    for page in pages() {
        let world = World::empty();
        for block in blocks(&page, "sh").iter().filter(|block| !block.contains("cargo ")) {
            for run in ["first", "second"] {
                let output = shell(&world, block);
                assert!(output.status.success(), "{}, {run} run of\n{block}\n{output:?}", page.display());
            }
            count += 1;
        }
    }
    assert!(count >= 2, "only {count} were found");
}

/// Goal:   the sessions print what the pages show.
/// Method: run each command after a `$` in order, in a directory of its page; compare its output with the lines after it.
#[test]
fn sessions_print_what_is_shown() {
    let mut count = 0;
    for page in pages() {
        let world = World::empty();
        let sessions = blocks(&page, "console").concat();
        for session in sessions.split("$ kaml").skip(1) {
            let (command, shown) = session.split_once('\n').unwrap();
            let output = shell(&world, &format!("kaml{command}"));
            let printed = [output.stdout.clone(), output.stderr.clone()].concat();
            assert!(output.status.success(), "{}: kaml{command}: {output:?}", page.display());
            // `kaml get` ends a line on a terminal only.
            let printed = String::from_utf8_lossy(&printed);
            assert_eq!(printed.trim_end(), shown.trim_end(), "{}: kaml{command}", page.display());
            count += 1;
        }
    }
    assert!(count > 10, "only {count} were found");
}
