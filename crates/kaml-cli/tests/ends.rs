//! How commands end when they are interrupted: with 130, and without what nobody asked to keep.

mod world;

use kaml::{CreateOptions, Device, Durability, KeyKind, NamespaceOptions, OpenOptions, VersionOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Stdio;
use std::time::Duration;
use world::{World, interrupted};

/// Goal:   an interrupted quickstart leaves neither its device nor its child, nor the device to be kept before its story is over.
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

/// Goal:   a merge that is interrupted prints what was dropped, leaves the device whole and closed, and the next one does the remainder.
/// Method: 80 MB of versions; interrupt the merge as soon as it listens. One that ends before that is tried again.
#[test]
fn merges_end_between_two_pieces() {
    assert!((0..10).any(|_| merge_was_interrupted()), "all merges ended by themselves");
}

/// Returns false if the merge ended by itself.
fn merge_was_interrupted() -> bool {
    let world = World::empty();
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(512 << 20) };
    let device = Device::create(world.path("data.kaml"), &options).unwrap();
    let versions = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    let past = device.create_namespace("past", &NamespaceOptions::versions(KeyKind::U64, versions)).unwrap();
    for number in 0..40_000u64 {
        device.put(past, number % 4000, &vec![number as u8; 2000]).unwrap();
    }
    device.close().unwrap();
    let mut merge = world.command(&["merge", "data.kaml", "past"]);
    let mut child = merge.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let listens = || {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
    };
    while !listens() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return false;
    }
    assert!(output.status.code() == Some(130) && said.contains("versions are gone"), "{output:?}");
    assert!(world.ok(&["merge", "data.kaml", "past"]).contains("are gone"));
    let left = world.json(&["merge", "data.kaml", "past", "--dry-run", "--json"]);
    assert_eq!(left["dropped"], 0, "{left}");
    world.ok(&["check", "data.kaml"]);
    let device = Device::open(world.path("data.kaml"), &OpenOptions::default()).unwrap();
    (0..4000u64).for_each(|key| assert_eq!(device.get(past, key).unwrap().unwrap()[0], (36_000 + key) as u8));
    true
}

/// Goal:   a half-made new device is removed; a file that existed before is kept, and the message names what it is.
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
