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

/// Goal:   a trace is replayed to the same JSON each time, and a mistake names its line.
/// Method: a small trace with a cut, two times; a broken line, refused and left out.
#[test]
fn traces_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.csv");
    let line =
        |i: u64| format!("{i},key{},4,{},1,{},0\n", i % 7, i * 10, if i.is_multiple_of(3) { "set" } else { "get" });
    let text: String = (0..200).map(line).collect();
    std::fs::write(&path, &text).unwrap();
    let path = path.to_str().unwrap();
    let arguments = ["replay", path, "--format", "twitter", "--flash", "8GiB", "--cut-at", "100", "--json"];
    let report = json(&arguments);
    assert_eq!((&report["records"], &report["cuts"]), (&Value::from(200), &Value::from(1)), "{report}");
    assert_eq!(report, json(&arguments));
    std::fs::write(path, text + "1,key,4,many,1,set,0\n").unwrap();
    let output = run(&arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && errors.contains("line 201: value size is `many`"), "{errors}");
    let skipping = [&arguments[..], &["--skip-bad"]].concat();
    assert_eq!(json(&skipping)["records"], 200);
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
        &["replay", "-", "--format", "regex"],
        &["replay", "-", "--format", "regex", "--regex", "(?<op>r)"],
        &["replay", "-", "--format", "msr", "--pace", "0"],
        &["sim"],
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{wrong:?}: {output:?}");
    }
    let output = run(&["experiment", "fig7", "--quick", "--out", "/dev/null/nowhere"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Goal:   one command writes the evaluation of each paper: tables, pictures with marks, and a page of claims that agree with the tables.
/// Method: the quick form of the KAML paper, two runs; the files, the reasons, and that Puts of small records are faster than writes. The
///         Muninn paper with one run.
#[test]
fn papers_are_reproduced() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let outcomes = json(&["reproduce", "kaml", "--quick", "--precondition", "1", "--out", out, "--json"]);
    let outcomes = outcomes.as_array().unwrap();
    let page = read("claims.md");
    assert_eq!(outcomes.len(), 6);
    for outcome in outcomes {
        let name = outcome["name"].as_str().unwrap();
        assert_eq!(outcome["runs"], 2);
        let table = read(&format!("{name}.csv"));
        assert!(table.lines().count() > 4 && table.lines().next().unwrap().contains("_low"), "{table}");
        let picture = read(&format!("{name}.svg"));
        assert!(picture.contains("the paper") && picture.contains("2 runs"), "{name}");
        assert!(page.contains(&format!("({name}.svg)")) && page.contains(&format!("({name}.csv)")), "{page}");
        for claim in outcome["claims"].as_array().unwrap() {
            let (low, high) = (claim["ours"][0].as_f64().unwrap(), claim["ours"][1].as_f64().unwrap());
            assert!(0.0 <= low && low <= high && high < 100.0, "{claim}");
            assert!(page.contains(claim["what"].as_str().unwrap()), "{claim}");
        }
    }
    let update = &outcomes[0]["claims"][3];
    assert!(
        update["what"] == "Update / write bandwidth below 4 KiB" && update["ours"][0].as_f64().unwrap() > 2.0,
        "{update}"
    );
    assert!(page.contains("buffer_bytes_per_us = ") && page.contains("filled 1 times"), "{page}");

    let outcomes = json(&["reproduce", "muninn", "--quick", "--runs", "1", "--out", out, "--json"]);
    let reads = &outcomes[2]["claims"][0];
    let pages = reads["ours"][0].as_f64().unwrap();
    assert!(reads["what"] == "bloom: page reads, average" && (0.5..2.0).contains(&pages), "{reads}");
    assert!(read("claims.md").contains("muninn-fig10.svg"));
}

/// Goal:   a workload from a file gives the same JSON each time, and a mistake is a usage error that names its place.
/// Method: a small file two times; a name that no namespace has; a policy that nobody made.
#[test]
fn workloads_are_read_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mixed.toml");
    let text = "[[namespace]]\nname = \"users\"\nrecords = 2000\nvalue_bytes = { low = 200, high = 2000 }\n\
                [[load]]\nnamespace = \"users\"\nhosts = 8\nmix = { get = 1, put = 1 }\nkeys = \"zipf\"\ncommands = 2000\n";
    std::fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    let report = json(&["workload", file, "--json"]);
    assert_eq!(report, json(&["workload", file, "--json"]));
    let loads = report["loads"].as_array().unwrap();
    assert_eq!(loads.iter().map(|load| load["commands"].as_u64().unwrap()).sum::<u64>(), 2000);
    let refused = run(&["workload", file, "--policy", "lazy"]);
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && errors.contains("balanced"), "{errors}");
    std::fs::write(&path, text.replace("namespace = \"users\"", "namespace = \"user\"")).unwrap();
    let errors = String::from_utf8_lossy(&run(&["workload", file]).stderr).into_owned();
    assert!(errors.contains("mixed.toml") && errors.contains("load 1"), "{errors}");
}

/// Goal:   the planner gives the costs of the paper's parameters and finds a rate for reads; what cannot be is refused.
/// Method: the paper's 50 million keys; a bound below one read.
#[test]
fn the_planner_computes_the_equations() {
    let plan = json(&["plan", "muninn", "--keys", "50M", "--json"]);
    let bytes = plan["cost"]["bytes_per_item_without_buffer"].as_f64().unwrap();
    assert!((1.9..2.1).contains(&bytes), "{plan}");
    let fewer = json(&["plan", "muninn", "--keys", "50M", "--reads-below", "1.5", "--json"]);
    assert!(fewer["cost"]["page_reads_oldest"].as_f64().unwrap() < 1.5, "{fewer}");
    assert_eq!(run(&["plan", "muninn", "--keys", "50M", "--reads-below", "1"]).status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run(&["plan", "muninn", "--keys", "1M"]).stdout).contains("page reads"));
}
