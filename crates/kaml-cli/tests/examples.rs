//! Every example of every help text.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use world::{World, end};

/// Every command with the examples of its help, found from `kaml --help` on.
fn examples(world: &World, command: &[&str], found: &mut Vec<(String, Vec<String>)>) {
    let help = world.ok(&[command, &["--help"]].concat());
    let section = |name: &str| {
        let lines = help.lines().skip_while(move |line| *line != name).skip(1);
        lines.take_while(|line| !line.trim().is_empty()).map(str::trim).collect::<Vec<_>>()
    };
    found.push((command.join(" "), section("Examples:").into_iter().map(str::to_owned).collect()));
    for line in section("Commands:") {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" {
            examples(world, &[command, &[name]].concat(), found);
        }
    }
}

/// What exists before the examples of a command are run, one after the other.
fn prepare(world: &World, command: &str) {
    let needs_device = !matches!(command, "" | "create" | "quickstart" | "salvage");
    if needs_device {
        world.ok(&["create", "data.kaml", "--capacity", "1GiB"]);
    }
    if !matches!(command, "" | "create" | "namespace" | "quickstart" | "salvage") {
        world.ok(&["namespace", "create", "data.kaml", "notes"]);
        world.ok(&["namespace", "create", "data.kaml", "counters", "--keys", "u64"]);
        world.ok(&["namespace", "create", "data.kaml", "articles", "--keys", "ordered"]);
        world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
        for value in 0..5 {
            world.ok(&["put", "data.kaml", "past", "hello", &value.to_string()]);
            if value < 3 {
                world.ok(&["snapshot", "data.kaml", "past"]);
            }
        }
    }
    if command == "identity" {
        fs::copy(world.path("data.kaml"), world.path("copy.kaml")).unwrap();
    }
    if matches!(command, "get" | "delete" | "export") {
        world.ok(&["put", "data.kaml", "notes", "hello", "world"]);
        world.ok(&["put", "data.kaml", "notes", "photo", "pixels"]);
        world.ok(&["put", "data.kaml", "notes", "0x00ff", "--hex", "bytes"]);
    }
    fs::create_dir(world.path("photos")).unwrap();
    for name in ["photos/1", "documents", "photo.jpg"] {
        fs::write(world.path(name), "x").unwrap();
    }
    fs::remove_file(world.path("documents")).unwrap();
    fs::create_dir(world.path("documents")).unwrap();
    fs::write(world.path("documents/file"), "x").unwrap();
    fs::write(world.path("records.jsonl"), "{\"key\":\"k\",\"value\":\"v\"}\n").unwrap();
    let zipped =
        Command::new("sh").args(["-c", "gzip < records.jsonl > dump.jsonl.gz"]).current_dir(world.dir.path()).status();
    assert!(zipped.unwrap().success());
    if matches!(command, "export" | "ls" | "cat") {
        fs::create_dir_all(world.path("photos/2026/summer")).unwrap();
        fs::write(world.path("photos/2026/summer/sea.jpg"), "x".repeat(2000)).unwrap();
        world.ok(&["import", "data.kaml", "photos", "--namespace", "photos"]);
    }
    if matches!(command, "backup verify" | "restore") {
        world.ok(&["backup", "data.kaml", "monday.backup"]);
        world.ok(&["backup", "data.kaml", "tuesday.backup", "--since", "monday.backup"]);
        assert_eq!(run(world, "gzip < monday.backup > monday.backup.zst").0, Some(0));
    }
    if command == "salvage" {
        world.ok(&["create", "broken.kaml", "--capacity", "64MiB"]);
    }
}

/// The same example where the machine of this test can run it; none where it needs what is not here.
fn here(example: &str) -> Option<String> {
    let example = example.replace("~/", "");
    // `metrics.rs` watches the address of a server.
    let absent = ["http://127.0.0.1:9464", "/dev/nvme1n1", "/dev/ng0n1", "nvme discover", "nvme connect"];
    if absent.iter().any(|name| example.contains(name)) {
        return None;
    }
    Some(
        example
            .replace("64G --prewrite", "64MiB --prewrite")
            .replace("kaml top", "kaml top --once")
            .replace("kaml watch nvme", "kaml watch --once nvme")
            .replace("copy.kaml --once", "copy.kaml")
            .replace("NQN copy.kaml", "NQN copy.kaml --once")
            .replace("/var/lib/node_exporter/", "")
            .replace("larger.kaml --capacity 64G", "larger.kaml --capacity 2GiB")
            .replace("zstd >", "gzip >")
            .replace("zstd -d", "gzip -d")
            .replace("| jq -r .key", "| cat")
            .replace("| jq -r .path", "| cat")
            .replace("| jq .stats.free_blocks", "| cat"),
    )
}

/// Runs one as a shell does, with the program of this test; returns its exit code and what it printed.
fn run(world: &World, example: &str) -> (Option<i32>, String) {
    let bin = Path::new(env!("CARGO_BIN_EXE_kaml")).parent().unwrap().to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-o", "pipefail", "-c", example]).current_dir(world.dir.path()).env("PATH", path).stdin(Stdio::null());
    let output = shell.output().unwrap();
    (
        output.status.code(),
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
    )
}

/// `kaml serve` until it listens, and then as Ctrl-C ends it.
fn serve(world: &World, example: &str) {
    let example = if example.contains("--config") {
        let text = "[[device]]\npath = \"data.kaml\"\nlisten = [\"127.0.0.1:0\"]\n";
        fs::write(world.path("serve.toml"), text).unwrap();
        example.to_owned()
    } else {
        let two_paths = " --listen 192.0.2.1:4420 --listen 198.51.100.1:4420";
        let example = example
            .replace(two_paths, " --listen 127.0.0.1:0")
            .replace("0.0.0.0:4420,tls", "127.0.0.1:0,tls")
            .replace(" --listen 0.0.0.0:4420", "");
        example.replacen("serve", "serve --listen 127.0.0.1:0", 1)
    };
    let example = example.replace("--metrics 127.0.0.1:9464", "--metrics 127.0.0.1:0");
    if example.contains("--hosts ") {
        let hosts = world.path("hosts.toml");
        let key = if example.contains("tls=") {
            "tls-key = \"NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\"\n"
        } else {
            ""
        };
        std::fs::write(&hosts, format!("[[host]]\nnqn = \"nqn.2026-11.example:host\"\n{key}")).unwrap();
        std::fs::set_permissions(&hosts, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    let arguments: Vec<&str> = example.split_whitespace().take_while(|word| *word != "#").skip(1).collect();
    let mut child = world.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("serving "), "{example}: {said}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{example}");
}

/// Goal:   every example of every help text does what it shows.
/// Method: find all commands and examples from the help itself; run each command's examples in their order, in a directory where
///         what they name exists; expect exit code 0 of each.
#[test]
fn every_example_works() {
    let mut found = Vec::new();
    examples(&World::empty(), &[], &mut found);
    let with_examples = found.iter().filter(|(_, examples)| !examples.is_empty());
    let without: Vec<_> = found.iter().filter(|(_, examples)| examples.is_empty()).map(|(name, _)| &**name).collect();
    assert_eq!(
        without,
        ["namespace create", "namespace list", "namespace set", "namespace delete"],
        "each command has some"
    );
    let (mut count, mut wrong) = (0, Vec::new());
    for (command, examples) in with_examples {
        let world = World::empty();
        prepare(&world, command);
        let remote = examples.iter().any(|example| example.contains("nvme+tcp://"));
        for example in examples.iter().filter_map(|example| here(example)) {
            count += 1;
            if example.starts_with("kaml serve") && !example.contains("--check") {
                serve(&world, &example);
                continue;
            }
            if example.contains("nvme+tcp://") {
                let (mut serving, url) = world.serve();
                let outcome = run(&world, &example.replace("nvme+tcp://127.0.0.1:4420/NQN", &url));
                end(&mut serving);
                assert!(remote && outcome.0 == Some(0), "{example}: {outcome:?}");
                continue;
            }
            let (code, said) = run(&world, &example);
            if code != Some(0) {
                wrong.push(format!("{example}: {code:?}: {said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 50, "only {count} examples were found");
}
