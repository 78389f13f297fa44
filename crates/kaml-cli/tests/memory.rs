//! Commands without memory.

mod world;

use std::process::Stdio;
use world::{PROGRAM, World};

/// Goal:   a command that the system refuses memory ends with one sentence and exit code 1. Acknowledged records are kept.
/// Method: several commands with limits of the address space, from what the program hardly starts with to what it has enough of. A
///         limit that the loader of the system does not start the program with (127) counts for nothing.
#[test]
fn commands_without_memory_end_with_a_sentence() {
    let world = World::new();
    std::fs::write(world.path("large"), vec![7; 12 << 20]).unwrap();
    world.ok(&["put", "data.kaml", "notes", "before", "1"]);
    let mut ends = Vec::new();
    for mib in [16u64, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096] {
        let key = mib.to_string();
        let commands: [&[&str]; 5] = [
            &["put", "data.kaml", "notes", &key, "value"],
            &["put", "data.kaml", "notes", "large", "--file", "large"],
            &["check", "data.kaml"],
            &["create", "new.kaml", "--capacity", "64MiB", "--force"],
            &["serve", "data.kaml", "--listen", "256.0.0.0:0"],
        ];
        for command in commands {
            let mut limited = std::process::Command::new("sh");
            limited.args(["-c", "ulimit -v \"$0\"; exec \"$@\""]).arg((mib << 10).to_string()).arg(PROGRAM);
            let output = limited.args(command).current_dir(world.dir.path()).stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1 | 2 | 127)), "{mib} MiB, {command:?}: {output:?}");
            let is_sentence = said.lines().count() == 1 && said.starts_with("kaml: ");
            assert!(code != Some(1) || is_sentence, "{mib} MiB, {command:?}: {said}");
            ends.push(code);
            if command[0] == "put" && code == Some(0) {
                world.ok(&["get", "data.kaml", "notes", command[3]]);
            }
        }
    }
    assert!(ends.contains(&Some(0)) && ends.contains(&Some(1)), "limits that are met and that are not: {ends:?}");
    world.ok(&["get", "data.kaml", "notes", "before"]);
    world.ok(&["check", "data.kaml"]);
}
