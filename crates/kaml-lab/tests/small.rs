//! The program `kaml-lab`: each command at its smallest, its examples, and what it refuses.

use serde_json::Value;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kaml-lab")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// Goal:   a seed gives the same results each time, whether it is run or replayed.
/// Method: two runs of one seed with few cuts, compared byte by byte; a replay of the same seed.
#[test]
fn seeds_repeat() {
    let arguments = ["sim", "run", "--seeds", "1", "--cut-one-in", "500", "--json"];
    let first = json(&arguments);
    assert_eq!(first, json(&arguments));
    assert!(first.as_object().is_some_and(|totals| !totals.is_empty()), "{first}");
    assert!(run(&["sim", "replay", "--seed", "0", "--cut", "100"]).status.success());
}

/// Goal:   an experiment writes its table and its picture.
/// Method: the quickest one; count the rows of the table, look for the picture's title.
#[test]
fn experiments_write_tables_and_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let output = run(&["experiment", "fig7", "--quick", "--out", out]);
    assert!(output.status.success(), "{output:?}");
    let table = std::fs::read_to_string(dir.path().join("fig7.csv")).unwrap();
    assert!(table.lines().count() > 1, "{table}");
    assert!(std::fs::read_to_string(dir.path().join("fig7.svg")).unwrap().contains("<svg"));
}

/// Goal:   what makes no sense is refused as a matter of usage, without a panic.
/// Method: an unknown experiment, an unknown board, numbers out of range.
#[test]
fn mistakes_are_refused() {
    for wrong in [
        &["experiment", "fig99", "--out", "."][..],
        &["experiment", "fig7"],
        &["sim", "run", "--seeds", "many"],
        &["sim", "speed", "--bytes", "0"],
        &["sim"],
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{wrong:?}: {output:?}");
    }
    let output = run(&["experiment", "fig7", "--quick", "--out", "/dev/null/nowhere"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
