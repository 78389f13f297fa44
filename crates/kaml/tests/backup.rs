//! Backups: what is restored is what was there at one moment; what is not whole is refused.

use kaml::{
    At, BackupBase, Batch, BlockOptions, CreateOptions, Device, Error, KeyKind, NamespaceChange, NamespaceId,
    NamespaceKind, NamespaceOptions, OpenOptions, RestoreReport, RestoreSource, Retention, VersionOptions, to_the_end,
    verify_backup, verify_backup_file,
};
use kaml_testkit::{Rng, bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const UNIT: usize = 4096;

fn options(capacity: u64) -> CreateOptions {
    CreateOptions { durability: kaml::Durability::Process, ..CreateOptions::new(capacity) }
}

fn quiet(_done: u64, _total: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn still(_done: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

type PastVersion = (u64, u64, u32, u32, u32, bool);

/// Everything that a device has, by the names of its namespaces.
#[derive(Default, PartialEq, Debug)]
struct Contents {
    kinds: BTreeMap<String, String>,
    records: BTreeMap<(String, Vec<u8>), Vec<u8>>,
    /// Each with its sequence, time, user version, length and checksum, and whether it is seen.
    versions: BTreeMap<(String, Vec<u8>), Vec<PastVersion>>,
    snapshots: BTreeMap<String, Vec<(u32, u64)>>,
}

fn contents(device: &Device) -> Contents {
    let mut all = Contents::default();
    for info in device.namespaces() {
        let (id, name) = (info.id, info.name.clone());
        let logs = &info.logs;
        match info.kind {
            NamespaceKind::Records(keys) => {
                all.kinds.insert(name.clone(), format!("{keys:?} {logs:?}"));
                for key in keys_of(device, id, keys) {
                    let value = device.get(id, &key[..]).unwrap().unwrap();
                    all.records.insert((name.clone(), key), value);
                }
            }
            NamespaceKind::Blocks(blocks) => {
                all.kinds.insert(name.clone(), format!("{blocks:?} {logs:?}"));
                for block in 0..blocks.block_count {
                    let mut value = vec![0; blocks.block_bytes as usize];
                    device.block_read(id, block, &mut value).unwrap();
                    all.records.insert((name.clone(), block.to_be_bytes().to_vec()), value);
                }
            }
            NamespaceKind::Versions(keys, shape) => {
                all.kinds.insert(name.clone(), format!("{keys:?} {:?} {logs:?}", shape.merge_when_low));
                let stats = device.version_stats(id).unwrap();
                let snapshots = stats.snapshots.iter().map(|of| (of.version, of.time_ns)).collect();
                all.snapshots.insert(name.clone(), snapshots);
                for key in keys_of(device, id, keys) {
                    let history = device.history(id, kaml::Key::new(&key).unwrap(), usize::MAX).unwrap();
                    let past = history.into_iter().map(|past| {
                        let version = past.version;
                        let value = (version.value_len, version.value_crc);
                        (version.sequence, version.time_ns, version.user_version, value.0, value.1, past.is_seen)
                    });
                    let newest = device.get_version(id, kaml::Key::new(&key).unwrap(), At::Latest).unwrap();
                    all.records.insert((name.clone(), key.clone()), newest.unwrap().value);
                    all.versions.insert((name.clone(), key), past.collect());
                }
            }
        }
    }
    all
}

fn keys_of(device: &Device, id: NamespaceId, keys: KeyKind) -> Vec<Vec<u8>> {
    if keys == KeyKind::Ordered {
        let info = device.namespaces().into_iter().find(|info| info.id == id).unwrap();
        let namespace = device.open_namespace(&info.name).unwrap();
        return namespace.iter().map(|entry| entry.unwrap().0.as_bytes().to_vec()).collect();
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = device.list(id, after, 1000).unwrap();
        found.extend(page.keys.iter().map(|key| key.as_bytes().to_vec()));
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

fn restored(files: &[&Path], capacity: u64) -> (tempfile::TempDir, Device, RestoreReport) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("restored.kaml");
    let sources = files.iter().map(RestoreSource::file).collect();
    let report = Device::restore(sources, &path, &options(capacity), &mut still).unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    (dir, device, report)
}

fn long_key(number: u64) -> Vec<u8> {
    format!("a key of more than sixteen bytes with the number {number}").into_bytes()
}

/// A device with namespaces of all kinds.
struct World {
    device: Device,
    rng: Rng,
    users: NamespaceId,
    names: NamespaceId,
    tree: NamespaceId,
    disk: NamespaceId,
    pages: NamespaceId,
}

impl World {
    fn new(capacity: u64, seed: u64) -> World {
        let device = Device::in_memory(&options(capacity)).unwrap();
        let create = |name: &str, options: NamespaceOptions| device.create_namespace(name, &options).unwrap();
        World {
            users: create("users", NamespaceOptions::records(KeyKind::U64).with_logs(vec![0])),
            names: create("names", NamespaceOptions::records(KeyKind::Any)),
            tree: create("tree", NamespaceOptions::records(KeyKind::Ordered)),
            disk: create(
                "disk",
                BlockOptions { block_bytes: 512, block_count: 8 * 64 - 3, ..BlockOptions::default() }.into(),
            ),
            pages: create("pages", VersionOptions::default().into()),
            rng: Rng::new(seed),
            device,
        }
    }

    /// Changes so many records of each kind.
    fn change(&mut self, count: u64) {
        for _ in 0..count {
            let draw = self.rng.draw();
            let len = if draw.is_multiple_of(50) { 40_000 } else { draw as usize % 3000 };
            let (key, value) = (self.rng.below(200), bytes(draw, len));
            let key_bytes = if draw.is_multiple_of(3) { key.to_be_bytes().to_vec() } else { long_key(key) };
            let mut batch = Batch::new();
            if draw.is_multiple_of(5) {
                batch.delete(self.users, key).delete(self.names, &key_bytes).delete(self.tree, &key_bytes);
                batch.delete(self.pages, key);
            } else {
                batch.put(self.users, key, &value).put(self.names, &key_bytes, &value);
                batch.put(self.tree, &key_bytes, &value).put(self.pages, key, &value[..len.min(3000)]);
            }
            self.device.write(&batch).unwrap();
            let block = self.rng.below(8 * 64 - 3 - 8);
            match draw % 7 {
                0 => self.device.block_trim(self.disk, block, 8).unwrap(),
                _ => self.device.block_write(self.disk, block, &bytes(draw, UNIT)).unwrap(),
            }
            if draw.is_multiple_of(64) {
                self.device.snapshot(self.pages).unwrap();
            }
        }
    }
}

/// Goal:   a full backup, and incremental ones after it, bring back every kind of namespace with its attributes, contents, history and
///         snapshots, on a device of another size; namespaces that are created, renamed, exchanged and deleted in between are followed.
/// Method: a device with all kinds, changed at random between four backups, one of them after a merge; each prefix of the chain is restored
///         and compared with what the device had then.
#[test]
fn everything_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(128 << 20, 1);
    let mut files: Vec<PathBuf> = Vec::new();
    let mut expected = Vec::new();
    for round in 0..4u64 {
        world.change(if round == 0 { 400 } else { 60 });
        if round == 1 {
            let (users, names) = (world.users, world.names);
            let name = |name: &str| NamespaceChange { name: Some(name.to_owned()), ..NamespaceChange::default() };
            world.device.set_namespace(users, &name("x")).unwrap();
            world.device.set_namespace(names, &name("users")).unwrap();
            world.device.set_namespace(users, &name("names")).unwrap();
            let late = world.device.create_namespace("late", &NamespaceOptions::default()).unwrap();
            world.device.put(late, 7u64, b"seven").unwrap();
        }
        if round == 2 {
            let rules = Retention { keep_last: 1, keep_snapshots: false, ..Retention::default() };
            world.device.merge(world.pages, &rules, &mut to_the_end).unwrap();
            world.device.delete_namespace(world.device.namespace("late").unwrap()).unwrap();
        }
        let path = dir.path().join(format!("{round}.backup"));
        let report = world.device.backup_to_file(&path, files.last().map(PathBuf::as_path), &mut quiet).unwrap();
        assert_eq!(report.bytes, std::fs::metadata(&path).unwrap().len());
        let info = verify_backup_file(&path).unwrap();
        assert_eq!((info.records, info.versions, info.deleted), (report.records, report.versions, report.deleted));
        files.push(path);
        expected.push(contents(&world.device));
        let chain: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let (_dir, device, _) = restored(&chain, if round % 2 == 0 { 64 << 20 } else { 300 << 20 });
        let found = contents(&device);
        let same = &found == expected.last().unwrap();
        assert!(same, "round {round}: {}", difference(&found, expected.last().unwrap()));
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
        // It is a device like any other.
        let pages = device.namespace("pages").unwrap();
        device.put(pages, 1u64, b"after").unwrap();
        assert_eq!(device.get_version(pages, 1u64, At::Latest).unwrap().unwrap().value, b"after");
        device.close().unwrap();
    }
    let sizes: Vec<u64> = files.iter().map(|path| std::fs::metadata(path).unwrap().len()).collect();
    assert!(sizes[1] * 2 < sizes[0], "an incremental backup has what changed: {sizes:?}");
}

fn difference(found: &Contents, expected: &Contents) -> String {
    if found.kinds != expected.kinds || found.snapshots != expected.snapshots {
        return format!("{:?} {:?} for {:?} {:?}", found.kinds, found.snapshots, expected.kinds, expected.snapshots);
    }
    let keys: BTreeSet<_> = found.records.keys().chain(expected.records.keys()).collect();
    let of = |contents: &Contents, key: &(String, Vec<u8>)| contents.records.get(key).map(Vec::len);
    let other = keys.into_iter().find(|key| found.records.get(*key) != expected.records.get(*key));
    if let Some(key) = other {
        return format!("{key:?}: {:?} for {:?}", of(found, key), of(expected, key));
    }
    let versions: BTreeSet<_> = found.versions.keys().chain(expected.versions.keys()).collect();
    let count = |contents: &Contents, key| contents.versions.get(key).map(Vec::len);
    let other = versions.into_iter().find(|key| found.versions.get(*key) != expected.versions.get(*key));
    other.map_or_else(String::new, |key| format!("{key:?}: {:?} for {:?}", count(found, key), count(expected, key)))
}

/// What a writer does in a step: to which of its keys, and with which value; nothing for a delete.
fn step(writer: u64, number: u64) -> (u64, Option<Vec<u8>>) {
    let mut rng = Rng::new(writer << 32 | number);
    let key = writer * 1000 + rng.below(150);
    let len = if rng.below(40) == 0 { 33_000 } else { rng.below(2000) as usize };
    (key, (rng.below(4) > 0).then(|| bytes(number, len)))
}

/// Goal:   a backup that is taken while others write shows one moment, over all namespaces, and an incremental one after it does as well,
///         while collection and clustering move records.
/// Method: writers whose steps follow from their numbers, each step one batch over three namespaces and one write of a block; a restored
///         device has the number of the last step of each writer, and exactly what the steps up to that one leave.
#[test]
fn backups_under_load_show_one_moment() {
    const WRITERS: u64 = 3;
    let dir = tempfile::tempdir().unwrap();
    let device = Device::in_memory(&options(64 << 20)).unwrap();
    let create = |name: &str, options: NamespaceOptions| device.create_namespace(name, &options).unwrap();
    let hash = create("hash", NamespaceOptions::records(KeyKind::U64));
    let tree = create("tree", NamespaceOptions::records(KeyKind::Ordered));
    let past = create("past", VersionOptions::default().into());
    let disk = create("disk", BlockOptions::new(4096, 1000).into());
    let (is_over, done) = (AtomicBool::new(false), [(); WRITERS as usize].map(|()| AtomicU64::new(0)));
    let mut files: Vec<(PathBuf, Vec<u64>, Vec<u64>)> = Vec::new();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (device, is_over, done) = (&device, &is_over, &done[writer as usize]);
            scope.spawn(move || {
                for number in 1u64.. {
                    let (key, value) = step(writer, number);
                    let mut batch = Batch::new();
                    match &value {
                        Some(value) => batch.put(hash, key, value).put(tree, key, value),
                        None => batch.delete(hash, key).delete(tree, key),
                    };
                    batch.put(hash, 900_000 + writer, &number.to_be_bytes());
                    batch.put(past, writer, &number.to_be_bytes());
                    device.block_write(disk, writer, &bytes(number, UNIT)).unwrap();
                    device.write(&batch).unwrap();
                    done.store(number, Ordering::SeqCst);
                    if is_over.load(Ordering::SeqCst) && number >= 300 {
                        return;
                    }
                    if number > 200_000 {
                        return; // a backup that hangs fails below
                    }
                }
            });
        }
        let counts = || done.iter().map(|done| done.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..3 {
                let begin = counts();
                while counts().iter().zip(&begin).any(|(now, begin)| *now < begin + 200) {
                    std::thread::yield_now();
                }
                let (path, before) = (dir.path().join(format!("{round}")), counts());
                let base = files.last().map(|(path, ..)| path.as_path());
                device.backup_to_file(&path, base, &mut quiet).unwrap();
                files.push((path, before, counts()));
            }
        }));
        is_over.store(true, Ordering::SeqCst);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    for round in 0..files.len() {
        let chain: Vec<&Path> = files[..=round].iter().map(|(path, ..)| path.as_path()).collect();
        let (_dir, copy, _) = restored(&chain, 100 << 20);
        let id = |name: &str| copy.namespace(name).unwrap();
        let mut model = BTreeMap::new();
        for writer in 0..WRITERS {
            let last = copy.get(id("hash"), 900_000 + writer).unwrap().unwrap();
            let number = u64::from_be_bytes(last[..].try_into().unwrap());
            let (_, before, after) = &files[round];
            let (before, after) = (before[writer as usize], after[writer as usize]);
            assert!((before..=after + 1).contains(&number), "round {round}: {before} to {after}, not {number}");
            for number in 1..=number {
                let (key, value) = step(writer, number);
                match value {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
            let history = copy.history(id("past"), writer, usize::MAX).unwrap();
            let crc = |number: u64| kaml_crc::crc32c(&number.to_be_bytes());
            assert!(history.iter().map(|past| past.version.value_crc).eq((1..=number).rev().map(crc)));
            let mut block = vec![0; UNIT];
            copy.block_read(id("disk"), writer, &mut block).unwrap();
            assert!(block == bytes(number, UNIT) || block == bytes(number + 1, UNIT), "its block is written first");
        }
        for (name, kind) in [("hash", KeyKind::U64), ("tree", KeyKind::Ordered)] {
            let found: BTreeMap<u64, Vec<u8>> = keys_of(&copy, id(name), kind)
                .into_iter()
                .map(|key| (u64::from_be_bytes(key[..].try_into().unwrap()), key))
                .filter(|(key, _)| *key < 900_000)
                .map(|(number, key)| (number, copy.get(id(name), &key[..]).unwrap().unwrap()))
                .collect();
            assert!(found == model, "round {round}: {name} has {} of {} records", found.len(), model.len());
        }
    }
}

fn small_backup() -> (World, Vec<u8>) {
    let mut world = World::new(64 << 20, 2);
    world.change(30);
    let mut out = Vec::new();
    world.device.backup(&mut out, None, &mut quiet).unwrap();
    (world, out)
}

fn verified(bytes: &[u8]) -> Result<kaml::BackupInfo, Error> {
    verify_backup(&mut &bytes[..], "test")
}

/// The pieces of a backup as they lie in it.
fn pieces(backup: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while backup[at..].starts_with(b"KBP1") {
        let len = u32::from_le_bytes(backup[at + 16..at + 20].try_into().unwrap()) as usize;
        found.push(at..at + 32 + len);
        at += 32 + len;
    }
    found
}

/// Goal:   no flipped bit, no end that is missing, no piece that is missing, doubled, in another place or of another backup passes.
/// Method: each of these done to a backup; bits at random, and all in the first 300 bytes; every 97th length.
#[test]
fn what_is_not_as_written_is_refused() {
    let (world, backup) = small_backup();
    verified(&backup).unwrap();
    let mut rng = Rng::new(3);
    let flips = (0..300 * 8).chain((0..1500).map(|_| rng.below(backup.len() as u64 * 8) as usize));
    for bit in flips {
        let mut bad = backup.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(verified(&bad).is_err(), "bit {bit}");
    }
    for len in (0..backup.len()).step_by(97).chain(backup.len() - 30..backup.len()) {
        let refused = verified(&backup[..len]);
        let is_known = matches!(&refused, Err(Error::BackupIncomplete { .. } | Error::NotABackup { .. }));
        assert!(is_known, "{len} bytes: {refused:?}");
    }
    let mut longer = backup.clone();
    longer.push(0);
    assert!(matches!(verified(&longer), Err(Error::BackupDamaged { .. })));
    let mut other = Vec::new();
    world.device.backup(&mut other, None, &mut quiet).unwrap();
    let (own, others) = (pieces(&backup), pieces(&other));
    for (at, piece) in own.iter().enumerate().skip(1) {
        let before = &backup[..piece.start];
        let missing = [before, &backup[piece.end..]].concat();
        let doubled = [&backup[..piece.end], &backup[piece.start..]].concat();
        let foreign = [before, &other[others[at].clone()], &backup[piece.end..]].concat();
        for bad in [missing, doubled, foreign] {
            assert!(verified(&bad).is_err(), "piece {at}");
        }
        if let Some(next) = own.get(at + 1) {
            let swapped = [before, &backup[next.clone()], &backup[piece.clone()], &backup[next.end..]].concat();
            assert!(verified(&swapped).is_err(), "pieces {at} and the next one");
        }
    }
    assert!(matches!(verified(b"something else"), Err(Error::BackupIncomplete { .. } | Error::NotABackup { .. })));
    assert!(matches!(verified(&[7; 5000]), Err(Error::NotABackup { .. })));
}

/// A stream that fails after so many bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(std::io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Goal:   a full disk, a base of another device, a chain with a gap, an incremental backup alone, a stream in the place of one, a target
///         that is too small, and an interrupted restore or backup are errors that name what is wrong; none of them leaves a device that can be opened
///         or a file under the final name.
/// Method: each of them.
#[test]
fn what_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (mut world, backup) = small_backup();
    let written = world.device.backup(&mut Full(50_000), None, &mut quiet);
    assert!(written.as_ref().is_err_and(Error::is_full), "{written:?}");
    assert_eq!(world.device.snapshot_stats().open_count, 0);

    world.device.backup_to_file(at("full"), None, &mut quiet).unwrap();
    for name in ["one", "two"] {
        world.change(5);
        let base = if name == "one" { at("full") } else { at("one") };
        world.device.backup_to_file(at(name), Some(&base), &mut quiet).unwrap();
    }
    let other = Device::in_memory(&options(64 << 20)).unwrap();
    let foreign = other.backup_to_file(at("foreign"), Some(&at("full")), &mut quiet);
    assert!(matches!(foreign, Err(Error::WrongBase { .. })), "{foreign:?}");
    std::fs::write(at("cut"), &backup[..backup.len() / 2]).unwrap();
    assert!(matches!(BackupBase::open(at("cut")).map(|_| ()), Err(Error::BackupIncomplete { .. })));

    let restore = |files: &[&str], capacity: u64| {
        let sources = files.iter().map(|name| RestoreSource::file(at(name))).collect();
        Device::restore(sources, at("new.kaml"), &options(capacity), &mut still)
    };
    for chain in [&["one"][..], &["full", "two"], &["full", "full"], &["full", "one", "one"]] {
        let refused = restore(chain, 64 << 20);
        assert!(matches!(refused, Err(Error::WrongBase { .. })), "{chain:?}: {refused:?}");
    }
    assert!(matches!(restore(&["cut"], 64 << 20), Err(Error::BackupIncomplete { .. })));
    assert!(restore(&["missing"], 64 << 20).unwrap_err().is_not_found());
    let sources = vec![RestoreSource::file(at("full")), RestoreSource::stream(std::io::empty(), "standard input")];
    let streamed = Device::restore(sources, at("new.kaml"), &options(64 << 20), &mut still);
    assert!(matches!(streamed, Err(Error::WrongBase { .. })));
    // At the second report: a report comes with each block and piece.
    for last in [1, 2] {
        let (mut calls, mut before) = (0, 0);
        let ended = world.device.backup_to_file(at("ended"), None, &mut |done, total| {
            assert!(before <= done && done <= total);
            (calls, before) = (calls + 1, done);
            if calls == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(ended, Err(Error::Cancelled)) && calls == last, "{ended:?} after {calls} reports");
    }
    assert_eq!(world.device.snapshot_stats().open_count, 0);
    let sources = vec![RestoreSource::file(at("full"))];
    let ended = Device::restore(sources, at("new.kaml"), &options(64 << 20), &mut |_| ControlFlow::Break(()));
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    assert!(!at("new.kaml").exists() && !at("foreign").exists() && !at("ended").exists());
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");

    // Over contents that existed there is no name to give, so what is not whole cannot be opened.
    std::fs::write(at("new.kaml"), b"").unwrap();
    assert!(matches!(restore(&["cut"], 64 << 20), Err(Error::BackupIncomplete { .. })));
    let opened = Device::open(at("new.kaml"), &OpenOptions::default());
    assert!(matches!(opened.map(|_| ()), Err(Error::RestoreUnfinished { .. })));

    let big = Device::in_memory(&options(64 << 20)).unwrap();
    let id = big.create_namespace("big", &NamespaceOptions::records(KeyKind::U64)).unwrap();
    (0..1200u64).for_each(|key| big.put(id, key, &bytes(key, 30_000)).unwrap());
    big.backup_to_file(at("big"), None, &mut quiet).unwrap();
    std::fs::remove_file(at("new.kaml")).unwrap();
    let small = restore(&["big"], 32 << 20);
    assert!(matches!(small, Err(Error::TargetTooSmall { .. })), "{small:?}");
    assert!(!at("new.kaml").exists());
}
