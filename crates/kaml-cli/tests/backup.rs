//! Backups on the command line.

mod world;

use kaml::{CreateOptions, Device, NamespaceOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use world::World;

/// Goal:   a device is backed up to files and to a stream, verified and restored; what is cut off, what lacks its base, and a served device
///         are refused with what to do, and leave no device.
/// Method: a full backup and an incremental one of a device with records and versions.
#[test]
fn devices_are_backed_up_and_restored() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    world.ok(&["put", "data.kaml", "notes", "hello", "world"]);
    world.ok(&["put", "data.kaml", "past", "hello", "then"]);
    assert!(world.ok(&["backup", "data.kaml", "full"]).contains("1 records, 1 versions"));
    world.ok(&["put", "data.kaml", "notes", "again", "world"]);
    world.ok(&["delete", "data.kaml", "notes", "hello"]);
    world.ok(&["put", "data.kaml", "past", "hello", "now"]);
    let report = world.json(&["backup", "data.kaml", "more", "--since", "full", "--json"]);
    assert_eq!((&report["is_incremental"], &report["deleted"]), (&true.into(), &1.into()));
    assert!(world.ok(&["backup", "verify", "more"]).contains("whole"));
    let full = world.json(&["backup", "verify", "full", "--json"]);
    assert_eq!(world.json(&["backup", "verify", "more", "--json"])["base"], full["backup"]);

    world.ok(&["restore", "full", "more", "copy.kaml"]);
    world.fails(3, &["get", "copy.kaml", "notes", "hello"]);
    assert_eq!(world.ok(&["get", "copy.kaml", "notes", "again"]).trim_end(), "world");
    assert_eq!(world.ok(&["get", "copy.kaml", "past", "hello", "--back", "1"]).trim_end(), "then");
    assert!(world.ok(&["check", "copy.kaml"]).contains(" 0 problems"));

    let stream = world.command(&["backup", "data.kaml", "-"]).output().unwrap().stdout;
    assert!(world.pipe(&["restore", "-", "streamed.kaml"], &stream).status.success());
    assert_eq!(world.ok(&["get", "streamed.kaml", "past", "hello"]).trim_end(), "now");

    fs::write(world.path("cut"), &stream[..stream.len() / 2]).unwrap();
    assert!(world.fails(1, &["restore", "cut", "new.kaml"]).contains("end mark"));
    assert!(world.fails(2, &["restore", "more", "new.kaml"]).contains("full backup"));
    assert!(!world.path("new.kaml").exists());
    fs::write(world.path("half.kaml"), b"").unwrap();
    world.fails(1, &["restore", "cut", "half.kaml"]);
    assert!(world.fails(1, &["info", "half.kaml"]).contains("--force"));
    world.ok(&["restore", "full", "half.kaml", "--force"]);
    assert_eq!(world.ok(&["get", "half.kaml", "notes", "hello"]).trim_end(), "world");
    world.fails(2, &["backup", "nvme+tcp://localhost:1/device", "remote"]);
}

fn names(world: &World) -> Vec<String> {
    let entries = fs::read_dir(world.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Begins a command, and waits until it has made a file that did not exist before, or has ended.
fn begin(world: &World, arguments: &[&str]) -> Child {
    let before = names(world);
    let mut child = world.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    let has_begun = || names(world).iter().any(|name| name.starts_with(".kaml-") && !before.contains(name));
    while child.try_wait().unwrap().is_none() && !has_begun() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", names(world));
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Kills a command some time after it has begun.
fn kill_after(mut child: Child, signal: Signal, delay: Duration) {
    std::thread::sleep(delay);
    let _ = kill_process(Pid::from_child(&child), signal); // it may have ended
    child.wait().unwrap();
}

/// Goal:   whatever moment a backup is killed at, the file of that name is the old backup or the new one, whole; the next backup removes what
///         the killed one left.
/// Method: kill backups at later and later moments, and interrupt some; verify the file each time.
#[test]
fn killed_backups_replace_nothing_by_half() {
    let world = World::empty();
    let device = Device::create(world.path("data.kaml"), &CreateOptions::new(128 << 20)).unwrap();
    let namespace = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    (0..20_000u64).for_each(|key| device.put(namespace, key, &[key as u8; 2_000]).unwrap());
    device.close().unwrap();
    world.ok(&["backup", "data.kaml", "full"]);
    let old = fs::read(world.path("full")).unwrap();
    for step in 0..16u64 {
        let signal = if step % 4 == 3 { Signal::INT } else { Signal::KILL };
        let child = begin(&world, &["backup", "data.kaml", "full"]);
        kill_after(child, signal, Duration::from_millis(step * step));
        let found = fs::read(world.path("full")).unwrap();
        assert!(found == old || world.ok(&["backup", "verify", "full"]).contains("whole"), "step {step}");
        world.ok(&["check", "data.kaml"]);
    }
    world.ok(&["backup", "data.kaml", "full"]);
    assert_eq!(names(&world), ["data.kaml", "full"]);
}

/// Goal:   whatever moment a restore is killed at, there is no device, or all of it; the next restore removes what the killed one left. Over an
///         existing file, what is half restored does not open.
/// Method: kill restores at later and later moments, to a new name and over a file; then restore.
#[test]
fn killed_restores_leave_no_half_device() {
    let world = World::empty();
    let device = Device::create(world.path("data.kaml"), &CreateOptions::new(128 << 20)).unwrap();
    let namespace = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    (0..20_000u64).for_each(|key| device.put(namespace, key, &[key as u8; 2_000]).unwrap());
    device.close().unwrap();
    world.ok(&["backup", "data.kaml", "full"]);
    let count = |name: &str| world.ok(&["list", name, "n"]).lines().count();
    for step in 0..12u64 {
        let child = begin(&world, &["restore", "full", "new.kaml"]);
        kill_after(child, Signal::KILL, Duration::from_millis(step * step * 3));
        if world.path("new.kaml").exists() {
            assert_eq!(count("new.kaml"), 20_000, "step {step}");
            fs::remove_file(world.path("new.kaml")).unwrap();
        }
    }
    world.ok(&["restore", "full", "new.kaml"]);
    assert_eq!(names(&world), ["data.kaml", "full", "new.kaml"]);
    for step in 0..12u64 {
        let mut child =
            world.command(&["restore", "full", "new.kaml", "--force"]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(step * step * 3));
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        child.wait().unwrap();
        let opened = world.run(&["list", "new.kaml", "n"]);
        let listed = String::from_utf8_lossy(&opened.stdout).lines().count();
        assert!(!opened.status.success() || listed == 20_000, "step {step}: {listed} records");
    }
    world.ok(&["restore", "full", "new.kaml", "--force"]);
    assert_eq!(count("new.kaml"), 20_000);
}

/// Goal:   a device that is served is backed up by its URL, while it is used, to files and to a stream; what is restored is what was there. A backup
///         that is killed or interrupted leaves no file, and keeps nobody from the next one. What cannot be is refused with what to do.
/// Method: a served device with records, versions and 40 MB; a full backup, an incremental one, a local one after the server has ended; restored copies
///         are compared.
#[test]
fn served_devices_are_backed_up() {
    let world = World::empty();
    let device = Device::create(world.path("data.kaml"), &CreateOptions::new(128 << 20)).unwrap();
    let namespace = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    (0..20_000u64).for_each(|key| device.put(namespace, key, &kaml_testkit::bytes(key, 2_000)).unwrap());
    device.close().unwrap();
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    let (mut serving, url) = world.serve();
    world.ok(&["put", &url, "past", "hello", "then"]);
    let report = world.json(&["backup", &url, "full", "--json"]);
    assert_eq!((&report["records"], &report["versions"]), (&20_000.into(), &1.into()));
    assert_eq!(report["bytes"], fs::metadata(world.path("full")).unwrap().len());
    world.ok(&["put", &url, "past", "hello", "now"]);
    world.ok(&["put", &url, "n", "new", "record"]);
    world.ok(&["delete", &url, "n", "new"]);
    world.ok(&["put", &url, "n", "newer", "record"]);
    let more = world.ok(&["backup", &url, "more", "--since", "full"]);
    assert!(more.contains("1 records, 1 versions"), "{more}");
    assert!(fs::metadata(world.path("more")).unwrap().len() < 1 << 20);
    assert!(world.ok(&["backup", "verify", "more"]).contains("incremental"));

    for step in 0..8u64 {
        let signal = if step % 2 == 0 { Signal::KILL } else { Signal::INT };
        kill_after(begin(&world, &["backup", &url, "more2"]), signal, Duration::from_millis(step * step));
        assert!(!world.path("more2").exists() || world.ok(&["backup", "verify", "more2"]).contains("whole"), "{step}");
    }
    let stream = world.command(&["backup", &url, "-"]).output().unwrap();
    assert!(stream.status.success(), "{stream:?}");
    assert!(world.pipe(&["restore", "-", "streamed.kaml"], &stream.stdout).status.success());

    assert!(world.fails(2, &["backup", &url, "new", "--read-only"]).contains("--read-only"));
    world.ok(&["create", "other.kaml", "--capacity", "64MiB"]);
    world.ok(&["backup", "other.kaml", "foreign"]);
    assert!(world.fails(2, &["backup", &url, "new", "--since", "foreign"]).contains("another device"));
    let served = world.fails(1, &["backup", "data.kaml", "new"]);
    assert!(served.contains(&format!("`kaml backup {url} ...` works meanwhile")), "{served}");
    assert!(!world.path("new").exists());
    world::end(&mut serving);

    world.ok(&["backup", "data.kaml", "last", "--since", "more"]);
    world.ok(&["restore", "full", "more", "last", "copy.kaml"]);
    let listed = |name: &str| {
        let mut keys: Vec<String> = world.ok(&["list", name, "n"]).lines().map(str::to_owned).collect();
        keys.sort();
        keys
    };
    for copy in ["copy.kaml", "streamed.kaml"] {
        assert!(world.ok(&["check", copy]).contains(" 0 problems"));
        assert_eq!(world.ok(&["get", copy, "past", "hello", "--back", "1"]).trim_end(), "then");
        assert_eq!(world.ok(&["get", copy, "past", "hello"]).trim_end(), "now");
        assert_eq!(world.ok(&["get", copy, "n", "newer"]).trim_end(), "record");
        assert!(listed(copy) == listed("data.kaml"), "{copy}");
        let device = Device::open(world.path(copy), &Default::default()).unwrap();
        let namespace = device.namespace("n").unwrap();
        for key in 0..20_000u64 {
            assert!(device.get(namespace, key).unwrap().unwrap() == kaml_testkit::bytes(key, 2_000), "{copy}: {key}");
        }
    }
}
