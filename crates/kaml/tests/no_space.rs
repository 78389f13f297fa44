//! The device on a file system that is full.

use kaml::{
    CreateOptions, Device, Error, KeyKind, NamespaceChange, NamespaceOptions, OpenOptions, Retention, VersionOptions,
};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Unmounts when dropped.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        assert!(run(Command::new("umount").arg(&self.0)), "unmounting {}", self.0.display());
    }
}

fn run(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Goal:   a device without space below can be closed: it reports it, soon, and loses nothing.
/// Method: a device larger than its tmpfs takes puts, small or large ones, until one is refused; settle and close it; open it when
///         there is space again, read everything that completed. Needs the right to mount.
#[test]
fn a_device_without_space_below_closes() {
    fill_and_close(4000);
    fill_and_close(500_000);
}

/// Goal:   where space cannot be had ahead of writing, a device without space below continues when there is some again.
/// Method: a device on a file system without extents, which knows no such calls, takes small or large puts until one is refused; a
///         file next to it is removed, and as many more are put. All exist when it is opened again. Needs the right to mount.
#[test]
fn devices_go_on_where_space_cannot_be_reserved() {
    for value_bytes in [4000, 100_000] {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("mounted"));
        std::fs::File::create(&image).unwrap().set_len(40 << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        let is_made = run(Command::new("mkfs.ext2").args(["-q", "-m", "0"]).arg(&image));
        if !is_made || !run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at)) {
            println!("skipped: no right to mount an ext2");
            return;
        }
        let _unmount = Unmount(at.clone());
        let path = at.join("device");
        let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
        let options = NamespaceOptions::records(KeyKind::U64);
        let space = device.create_namespace("n", &options).unwrap();
        std::fs::write(at.join("ballast"), vec![1; 16 << 20]).unwrap();
        let value = |key: u64| vec![key as u8; value_bytes];
        let put = |key| device.put(space, key, &value(key));
        let (count, error) = (0..).find_map(|key| Some((key, put(key).err()?))).unwrap();
        assert!(error.to_string().starts_with("no space left below"), "{error}");
        std::fs::remove_file(at.join("ballast")).unwrap();
        await_space(|| put(count));
        let more = (4 << 20) / value_bytes as u64;
        (count..count + more).for_each(|key| put(key).unwrap());
        device.close().unwrap();
        let device = Device::open(&path, &OpenOptions::default()).unwrap();
        (0..count + more).for_each(|key| assert!(device.get(space, key).unwrap().unwrap() == value(key), "key {key}"));
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
        device.close().unwrap();
    }
}

/// Goal:   commands on namespaces do not wait forever where there is no space below; they report it, and come into force when there is. Until
///         then a namespace that is being created does not exist.
/// Method: as above, then one namespace is created, one renamed, one deleted, one taken out of memory; space is released.
#[test]
fn namespaces_change_without_space_below() {
    let dir = tempfile::tempdir().unwrap();
    if !run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir.path())) {
        println!("skipped: no right to mount a tmpfs");
        return;
    }
    let _unmount = Unmount(dir.path().into());
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let [kept, gone] = ["kept", "gone"].map(|name| device.create_namespace(name, &options).unwrap());
    let (say, said) = channel();
    let change = move || {
        let puts = (0u64..).map(|key| device.put([kept, gone][key as usize % 2], key, &[1; 4000]));
        puts.map_while(Result::ok).for_each(drop);
        let name = Some("renamed".to_owned());
        let answers = [
            device.create_namespace("new", &options).map(drop),
            device.put(gone + 1, 1, b"one"),
            device.delete(gone + 1, 1),
            device.set_namespace(kept, &NamespaceChange { name, ..NamespaceChange::default() }),
            device.unload_namespace(kept).map(drop),
            device.delete_namespace(gone),
        ];
        say.send((device, answers)).is_ok()
    };
    std::thread::spawn(change);
    let (device, answers) = said.recv_timeout(Duration::from_secs(20)).expect("all calls return");
    for (at, answer) in answers.into_iter().enumerate() {
        let error = answer.unwrap_err().to_string();
        let expected = if [1, 2].contains(&at) { "namespace 3 does not exist" } else { "no space left below" };
        assert!(error.starts_with(expected), "{at}: {error}");
    }
    assert!(run(Command::new("mount").args(["-o", "remount,size=128m"]).arg(dir.path())));
    while device.namespace("new").is_err() {
        std::thread::sleep(Duration::from_millis(10)); // it appears when there is space
    }
    await_space(|| device.put(gone + 1, 1, b"one"));
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let names: Vec<String> = device.namespaces().into_iter().map(|space| space.name).collect();
    assert_eq!(names, ["renamed", "new"]);
    assert_eq!(device.get(gone + 1, 1).unwrap().unwrap(), b"one");
    device.close().unwrap();
}

/// Goal:   a merge that finds no space below in its middle reports it, and gives up what it has written; it can be made again.
/// Method: versions are settled, a file next to the device takes all space, and a merge begins that has more to write than the device has
///         ready; four times over, then with space; when the namespace is deleted its blocks are free, also those of the four. Needs
///         the right to mount.
#[test]
fn merges_end_without_space_below() {
    let dir = tempfile::tempdir().unwrap();
    if !run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=40m", "tmpfs"]).arg(dir.path())) {
        println!("skipped: no right to mount a tmpfs");
        return;
    }
    let _unmount = Unmount(dir.path().into());
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(96 << 20)).unwrap();
    let versions = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    let space = device.create_namespace("n", &NamespaceOptions::versions(KeyKind::U64, versions)).unwrap();
    let value = |key: u64, round: u64| vec![(key ^ round) as u8; 4000];
    for round in 0..3 {
        // The newest is kept, and of what went before some go: most has to be written again.
        let keys = (0..2000u64).filter(|key| round == 0 || key % 3 == round);
        keys.for_each(|key| device.put(space, key, &value(key, round)).unwrap());
    }
    device.settle().unwrap();
    let (say, said) = channel();
    let merge = move |device: &Device| {
        let retention = Retention { keep_internal: false, ..Retention::default() };
        device.merge(space, &retention, &mut kaml::to_the_end)
    };
    let without_space = {
        let (device, ballast) = (device.clone(), dir.path().join("ballast"));
        move || {
            let merge_once = || {
                device.settle().unwrap();
                let mut file = std::fs::File::create(&ballast).unwrap();
                while file.write_all(&[1; 64 << 10]).is_ok() {}
                let merged = merge(&device);
                std::fs::remove_file(&ballast).unwrap();
                drop(file);
                await_space(|| device.settle());
                merged
            };
            say.send([(); 4].map(|()| merge_once())).is_ok()
        }
    };
    let thread = std::thread::spawn(without_space);
    for merged in said.recv_timeout(Duration::from_secs(40)).expect("they end") {
        let error = merged.unwrap_err();
        assert!(error.to_string().starts_with("no space left below"), "{error}");
    }
    thread.join().unwrap();
    merge(&device).unwrap();
    for key in 0..2000u64 {
        let newest = (0..3).rfind(|round| *round == 0 || key % 3 == *round).unwrap();
        assert!(device.get(space, key).unwrap().unwrap() == value(key, newest), "key {key}");
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    device.delete_namespace(space).unwrap();
    device.settle().unwrap();
    let stats = device.stats();
    assert!(stats.free_blocks > stats.block_count - 6, "what the merges gave up is in use: {stats:?}");
    device.close().unwrap();
}

/// Tries until programs that had no space have been tried again.
/// Goal:   a queue that outlives its device is informed that it is closed, also if closing failed.
/// Method: a device larger than its tmpfs takes puts until one is refused, and is closed; deletes through a queue, which need no space,
///         are refused at once. Needs the right to mount.
#[test]
fn queues_of_devices_that_failed_to_close_are_told() {
    let dir = tempfile::tempdir().unwrap();
    if !run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir.path())) {
        println!("skipped: no right to mount a tmpfs");
        return;
    }
    let _unmount = Unmount(dir.path().into());
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(64 << 20)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let space = device.create_namespace("n", &options).unwrap();
    assert!((0u64..).any(|key| device.put(space, key, &[1; 4000]).is_err()));
    let mut queue = device.queue(8);
    assert!(device.close().is_err());
    let refused = queue.delete(0, space, 0u64).unwrap_err();
    assert!(matches!(refused, kaml::Error::Closed), "{refused}");
}

fn await_space<T>(command: impl Fn() -> Result<T, Error>) -> T {
    let begin = Instant::now();
    loop {
        match command() {
            Ok(answer) => return answer,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "{error}"),
        }
    }
}

fn fill_and_close(value_bytes: usize) {
    let dir = tempfile::tempdir().unwrap();
    if !run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir.path())) {
        println!("skipped: no right to mount a tmpfs");
        return;
    }
    let _unmount = Unmount(dir.path().into());
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let space = device.create_namespace("n", &options).unwrap();
    let value = move |key: u64| vec![key as u8; value_bytes];
    let (say, said) = channel();
    let fill = move || {
        let refused = (0u64..).find_map(|key| Some((key, device.put(space, key, &value(key)).err()?)));
        say.send((refused.unwrap(), device.settle(), device.close())).is_ok()
    };
    std::thread::spawn(fill);
    let ((count, error), settled, closed) = said.recv_timeout(Duration::from_secs(20)).expect("it closes");
    assert!(error.to_string().starts_with("no space left below"), "{error}");
    assert!(settled.unwrap_err().to_string().starts_with("no space left below"));
    assert!(closed.unwrap_err().to_string().starts_with("no space left below"));
    assert!(run(Command::new("mount").args(["-o", "remount,size=128m"]).arg(dir.path())));
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let space = device.namespace("n").unwrap();
    (0..count).for_each(|key| assert!(device.get(space, key).unwrap().unwrap() == value(key), "key {key}"));
    device.put(space, count, &value(count)).unwrap();
    device.close().unwrap();
}
