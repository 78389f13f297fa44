//! How commands end when they are interrupted: with 130, and without what nobody asked to keep.

mod world;

use kaml::{CreateOptions, Device, Durability, KeyKind, NamespaceOptions, OpenOptions, VersionOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use world::World;

/// Bytes of all files below a directory that takes space there.
fn bytes_below(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        found => found.map_or(0, |found| found.blocks() * 512),
    });
    bytes.sum()
}

/// Starts a command, sends a signal when it has written something, and demands that it ends with 130, soon, with nothing left
/// of what it and its children made.
fn interrupted(world: &World, arguments: &[&str], signal: Signal, written: u64) -> String {
    let scratch = world.path("tmp");
    fs::create_dir_all(&scratch).unwrap();
    let names = || {
        let listed = [world.dir.path(), &scratch].map(|dir| fs::read_dir(dir).unwrap());
        listed.into_iter().flatten().map(|entry| entry.unwrap().path()).collect::<std::collections::BTreeSet<_>>()
    };
    let (names_before, bytes_before) = (names(), bytes_below(world.dir.path()));
    let mut command = world.command(arguments);
    // A group of its own: a child process that is left running would be seen in it.
    command.env("TMPDIR", &scratch).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let begin = Instant::now();
    while bytes_below(world.dir.path()) < bytes_before + written {
        assert!(child.try_wait().unwrap().is_none(), "{arguments:?}: ended by itself: {:?}", child.wait_with_output());
        assert!(begin.elapsed() < Duration::from_secs(60), "{arguments:?}: writes nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(pid, signal).unwrap();
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{arguments:?}: {output:?}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{arguments:?}: took {:?}", begin.elapsed());
    assert_eq!(names(), names_before, "{arguments:?}");
    while rustix::process::test_kill_process_group(pid).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{arguments:?}: a child process goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(names(), names_before, "{arguments:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("kaml: interrupted") && !said.contains("panicked"), "{arguments:?}: {said}");
    said
}

/// Goal:   a bench that is interrupted leaves no scratch device behind, whichever it is and wherever it stands.
/// Method: SIGINT, SIGTERM or SIGHUP for each, while it fills its device, and later; look at the directory and for child processes.
#[test]
fn benches_leave_nothing() {
    let world = World::empty();
    let long = ["--seconds", "60", "--dir", "."];
    let bench = |arguments: &[&'static str]| [&["bench"], arguments, &long].concat();
    interrupted(&world, &bench(&["floor"]), Signal::INT, 4 << 20);
    interrupted(&world, &bench(&["raw", "--file", "64M"]), Signal::TERM, 4 << 20);
    interrupted(&world, &bench(&["put", "--capacity", "1G"]), Signal::HUP, 8 << 20);
    interrupted(&world, &bench(&["get", "--capacity", "1G", "--keys", "500000"]), Signal::TERM, 64 << 20);
    interrupted(&world, &bench(&["compare", "--only", "puts"]), Signal::INT, 16 << 20);
    interrupted(&world, &bench(&["compare", "--only", "memory", "--memory-bytes", "8G"]), Signal::INT, 64 << 20);
    interrupted(&world, &bench(&["ycsb", "a", "--records", "500000"]), Signal::INT, 64 << 20);
    interrupted(&world, &["bench", "kill", "--cycles", "100000"], Signal::INT, 20 << 20);
}

/// Goal:   a command that was started to outlive its terminal does.
/// Method: SIGHUP and SIGINT for a bench that a shell has started to ignore them, as `nohup` and `&` do.
#[test]
fn ignored_signals_are_ignored() {
    let world = World::empty();
    let mut shell = std::process::Command::new("sh");
    shell.args([
        "-c",
        "trap '' HUP INT; exec \"$0\" bench put --seconds 2 --capacity 1G --dir .",
        env!("CARGO_BIN_EXE_kaml"),
    ]);
    let mut child = shell.current_dir(world.dir.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while bytes_below(world.dir.path()) < 8 << 20 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(2));
    }
    for signal in [Signal::HUP, Signal::INT] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Goal:   quickstart leaves neither its device nor its child behind, nor the device to be kept before its story is told.
/// Method: interrupt it while it stores a tree, with and without `--keep`.
#[test]
fn quickstart_leaves_nothing() {
    let world = World::empty();
    fs::create_dir(world.path("tree")).unwrap();
    for i in 0..3000u32 {
        fs::write(world.path(&format!("tree/{i}")), vec![i as u8; 20_000]).unwrap();
    }
    interrupted(&world, &["quickstart", "tree"], Signal::INT, 24 << 20);
    interrupted(&world, &["quickstart", "tree", "--keep", "kept.kaml"], Signal::TERM, 24 << 20);
}

/// Goal:   a merge that is interrupted says what has gone, leaves the device whole and closed, and the next one does the rest.
/// Method: 80 MB of versions; interrupt the merge as soon as it listens.
#[test]
fn merges_end_between_two_pieces() {
    let world = World::empty();
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(512 << 20) };
    let device = Device::create(world.path("data.kaml"), &options).unwrap();
    let versions = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    let past = device.create_namespace("past", &NamespaceOptions { keys: KeyKind::U64, ..versions.into() }).unwrap();
    for number in 0..40_000u64 {
        device.put(past, number % 4000, &vec![number as u8; 2000]).unwrap();
    }
    device.close().unwrap();
    let mut merge = world.command(&["merge", "data.kaml", "past"]);
    let child = merge.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let listens = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
    };
    while !listens() {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(130) && said.contains("sealed versions are gone"), "{output:?}");
    assert!(world.ok(&["merge", "data.kaml", "past"]).contains("are gone"));
    let left = world.json(&["merge", "data.kaml", "past", "--dry-run", "--json"]);
    assert_eq!(left["dropped"], 0, "{left}");
    world.ok(&["check", "data.kaml"]);
    let device = Device::open(world.path("data.kaml"), &OpenOptions::default()).unwrap();
    (0..4000u64).for_each(|key| assert_eq!(device.get(past, key).unwrap().unwrap()[0], (36_000 + key) as u8));
}

/// Goal:   a new device that is half made goes; a file that was there before stays, and it is said what it is.
/// Method: interrupt `create --prewrite`, without and with a file there.
#[test]
fn creating_leaves_nothing() {
    let world = World::empty();
    let create = ["create", "data.kaml", "--capacity", "16G", "--prewrite", "--json"];
    assert_eq!(interrupted(&world, &create, Signal::INT, 64 << 20), "kaml: interrupted\n");
    fs::write(world.path("data.kaml"), "old").unwrap();
    let said = interrupted(&world, &[&create[..], &["--force"]].concat(), Signal::TERM, 64 << 20);
    assert!(said.contains("data.kaml is half made, and no device"), "{said}");
    // What cannot be made leaves nothing either.
    fs::remove_file(world.path("data.kaml")).unwrap();
    world.fails(2, &["create", "data.kaml", "--capacity", "4096"]);
    assert!(!world.path("data.kaml").exists());
}
