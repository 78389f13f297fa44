//! Devices that become larger: by themselves, by command, under load, killed meanwhile, on a full file system.

use kaml::{Batch, CreateOptions, Device, Error, KeyKind, NamespaceOptions, OpenOptions};
use kaml_testkit::bytes;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

fn options(keys: KeyKind) -> NamespaceOptions {
    NamespaceOptions::records(keys)
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Goal:   a device that is given no size begins small, takes what is put into it without refusing anything, and is no larger than that
///         needs; deletes and later puts do not make it grow. Its file takes space as it is used.
/// Method: 400 MiB of values of three sizes; then the same keys again; opened again and compared.
#[test]
fn files_grow_with_what_is_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::open_or_create(&path, &CreateOptions::default()).unwrap();
    assert_eq!(length(&path), CreateOptions::FIRST_BYTES);
    let taken = std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(taken < 80 * MIB, "{} MiB", taken / MIB);
    assert_eq!(device.info().grows_up_to_bytes, Some(u64::MAX));
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    let sizes = [300_000, 40_000, 7_000];
    let put = |round: u64| {
        let mut sum = 0;
        for key in 0.. {
            let len = sizes[key as usize % 3];
            space.put(key, &bytes(key + round, len)).unwrap();
            sum += len as u64;
            if sum > 400 * MIB {
                return key;
            }
        }
        unreachable!("it ends")
    };
    let last = put(1);
    let grown = length(&path);
    assert!((500 * MIB..1200 * MIB).contains(&grown), "{} MiB", grown / MIB);
    assert_eq!(device.info().file_bytes, Some(grown));
    assert_eq!(put(2), last);
    assert_eq!(length(&path), grown, "what replaces other values needs no more room");
    assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
    drop(space);
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    for key in 0..=last {
        assert!(space.get(key).unwrap().unwrap() == bytes(key + 2, sizes[key as usize % 3]), "key {key}");
    }
}

/// Goal:   a device that begins small and grows takes values of 16 MiB and batches of 64 MiB from the beginning, after it has grown, after it was
///         opened again, and after it was killed; what it acknowledged is whole.
/// Method: a child puts such values and batches and reports each; it is killed after the first few, again and again, on a file that grows meanwhile.
#[test]
fn large_values_and_batches_from_the_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::open_or_create(&path, &CreateOptions::growing_up_to(2 << 30)).unwrap();
    let limits = device.info();
    assert!(limits.value_bytes_max >= 16 * MIB, "{limits:?}");
    assert!(limits.batch_bytes_max > 7 * MIB, "{limits:?}");
    device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    device.close().unwrap();
    let mut next = 0;
    for life in 1..=4 {
        next = life_of("child_with_large_values", &path, next, life * 3);
        let wait = OpenOptions { wait: std::time::Duration::from_secs(30), ..OpenOptions::default() };
        let device = Device::open(&path, &wait).unwrap();
        assert_eq!(device.info().value_bytes_max, limits.value_bytes_max);
        let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
        for step in next.saturating_sub(4)..next {
            for (key, len) in large_step(step) {
                let found = space.get(key).unwrap().expect("it was acknowledged");
                let is_expected = |step| found == bytes(key + step, len);
                assert!(is_expected(step) || is_expected(step + 6), "key {key} of step {step} in life {life}");
            }
        }
        assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
    }
    assert!(length(&path) > CreateOptions::FIRST_BYTES, "it grew");
}

/// The keys of a batch of large values, and their lengths: one of 16 MiB, or some of 64 MiB together. Those of six steps take turns.
fn large_step(step: u64) -> Vec<(u64, usize)> {
    let first = step % 6 * 100;
    match step % 2 {
        0 => vec![(first, 16 << 20)],
        _ => (0..32).map(|at| (first + at, 2 << 20)).collect(),
    }
}

/// Not a test: the child of `large_values_and_batches_from_the_beginning`.
#[test]
#[ignore = "runs until it is killed"]
fn child_with_large_values() {
    let path = PathBuf::from(std::env::var_os("KAML_TEST_DEVICE").expect("started by its parent"));
    let first: u64 = std::env::var("KAML_TEST_NEXT").unwrap().parse().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    for step in first.. {
        let mut batch = Batch::new();
        for (key, len) in large_step(step) {
            batch.put(space.id(), key, &bytes(key + step, len));
        }
        device.write(&batch).unwrap();
        println!("durable {step}");
    }
}

/// Runs a child until it has reported so many numbers, and kills it; the number after the last one that was read.
fn life_of(child: &str, path: &Path, next: u64, reports: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture"])
        .env("KAML_TEST_DEVICE", path)
        .env("KAML_TEST_NEXT", next.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let numbers = output.lines().map_while(Result::ok).filter_map(|line| line.strip_prefix("durable ")?.parse().ok());
    let acknowledged: u64 = numbers.take(reports as usize).last().expect("the child runs until it is killed");
    child.kill().unwrap();
    child.wait().unwrap();
    acknowledged + 1
}

/// Goal:   at its limit a growing device is full as any other, and takes deletes; its limit is the one that was given.
/// Method: a limit of 100 MiB.
#[test]
fn the_limit_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::growing_up_to(100 * MIB)).unwrap();
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    let refused = (0..u64::MAX).find_map(|key| space.put(key, &bytes(key, 50_000)).err()).unwrap();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert!((90 * MIB..=100 * MIB).contains(&length(&path)), "{}", length(&path));
    (0..40u64).for_each(|key| space.delete(key).unwrap());
    (0..20u64).for_each(|key| space.put(key, &bytes(key, 50_000)).unwrap());
    drop(space);
    let bytes_now = device.resize(160 * MIB).unwrap();
    assert_eq!((bytes_now, length(&path)), (160 * MIB, 160 * MIB));
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    (2000..2400u64).for_each(|key| space.put(key, &bytes(key, 50_000)).unwrap());
}

/// Goal:   a device is resized while others read and write, nothing is refused, and nothing is lost.
/// Method: three threads put and get values of their own keys, of each kind of index, while the device goes from 64 MiB to 2 GiB.
#[test]
fn resizing_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::new(64 * MIB)).unwrap();
    let kinds = [KeyKind::U64, KeyKind::Bytes, KeyKind::Ordered];
    let (over, puts) = (AtomicBool::new(false), AtomicU64::new(0));
    let models: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (device, over, puts) = (&device, &over, &puts);
                scope.spawn(move || {
                    let space = device.ensure_namespace(&format!("space {thread}"), &options(kinds[thread])).unwrap();
                    let mut model = BTreeMap::new();
                    for round in 0u64.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let key = round * 7 % 900;
                        let len = 1 + (round as usize * 977) % 9000;
                        space.put(&key.to_be_bytes(), &bytes(round, len)).unwrap();
                        model.insert(key, round);
                        let other = round * 13 % 900;
                        let found = space.get(&other.to_be_bytes()).unwrap();
                        let expected = model.get(&other).map(|round| bytes(*round, 1 + (*round as usize * 977) % 9000));
                        assert!(found == expected, "key {other}");
                        puts.fetch_add(1, Ordering::Relaxed);
                    }
                    model
                })
            })
            .collect();
        for step in 1..=31u64 {
            let before = puts.load(Ordering::Relaxed);
            while puts.load(Ordering::Relaxed) < before + 100 {
                std::thread::yield_now();
            }
            assert_eq!(device.resize((64 + step * 64) * MIB).unwrap(), (64 + step * 64) * MIB);
        }
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let refused = device.resize(8 * MIB).unwrap_err();
    assert!(matches!(refused, Error::NotResized { .. }), "{refused}");
    assert_eq!(device.resize(512 * MIB).unwrap(), 512 * MIB);
    assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(length(&path), 512 * MIB);
    for (thread, model) in models.iter().enumerate() {
        let space = device.ensure_namespace(&format!("space {thread}"), &options(kinds[thread])).unwrap();
        for (key, round) in model {
            let expected = bytes(*round, 1 + (*round as usize * 977) % 9000);
            assert!(space.get(&key.to_be_bytes()).unwrap().unwrap() == expected, "key {key} of {thread}");
        }
    }
}

/// Goal:   a device in memory is resized as a file is.
/// Method: from 64 MiB to 256 MiB, filled beyond what the former takes.
#[test]
fn memory_is_resized() {
    let device = Device::in_memory(&CreateOptions::new(64 * MIB)).unwrap();
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    device.resize(256 * MIB).unwrap();
    (0..1500u64).for_each(|key| space.put(key, &bytes(key, 100_000)).unwrap());
    (0..1500u64).for_each(|key| assert!(space.get(key).unwrap().unwrap() == bytes(key, 100_000)));
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}

/// Goal:   on a file system that becomes full a growing device refuses what does not fit, by that error, and is usable; after room is made
///         below it grows on.
/// Method: a tmpfs of 430 MiB with another file in it; needs the right to mount.
#[test]
fn a_full_file_system_is_a_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=430m", "tmpfs"]).arg(dir.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: no right to mount a tmpfs");
        return;
    }
    let _unmount = Unmount(dir.path().into());
    let other = dir.path().join("other");
    std::fs::write(&other, vec![1; 40 << 20]).unwrap();
    let device = Device::open_or_create(dir.path().join("device"), &CreateOptions::default()).unwrap();
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    let (key, refused) =
        (0..u64::MAX).find_map(|key| space.put(key, &bytes(key, 50_000)).err().map(|error| (key, error))).unwrap();
    assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
    assert!(key > 500, "{key}");
    (0..100u64).for_each(|key| space.delete(key).unwrap());
    (0..50u64).for_each(|key| space.put(key, &bytes(key, 50_000)).unwrap());
    std::fs::remove_file(other).unwrap();
    let more =
        (key..u64::MAX).find_map(|key| retried(|| space.put(key, &bytes(key, 50_000))).err().map(|_| key)).unwrap();
    assert!(more > key + 200, "{more}");
    for key in (0..50u64).chain(100..key) {
        assert!(space.get(key).unwrap().unwrap() == bytes(key, 50_000), "key {key}");
    }
}

/// Waits for a moment after a refusal: the device looks for space once in a second.
fn retried(put: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
    put().or_else(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1500));
        put()
    })
}

/// Goal:   nothing that was acknowledged is lost when the process is killed while the size changes, and the device opens with a size that
///         it had.
/// Method: a child puts and reports each durable put while it resizes the device step by step; it is killed after so many lines, again and
///         again on the same file.
#[test]
fn sigkill_while_the_size_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::new(64 * MIB)).unwrap();
    device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    device.close().unwrap();
    let mut next = 0;
    for life in 0..12 {
        next = life_of("child_that_is_killed", &path, next, 5 + life * 11);
        let wait = OpenOptions { wait: std::time::Duration::from_secs(30), ..OpenOptions::default() };
        let device = Device::open(&path, &wait).unwrap();
        let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
        for key in 0..next {
            assert!(space.get(key % 500).unwrap().is_some(), "key {key}");
        }
        for key in next.saturating_sub(400)..next {
            let found = space.get(key % 500).unwrap().unwrap();
            assert!(found == bytes(key, 5000) || found == bytes(key + 500, 5000), "key {key} in life {life}");
        }
        assert!(device.info().file_bytes.unwrap() <= length(&path));
        assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
    }
    assert!(length(&path) > 64 * MIB, "it grew");
}

/// Not a test: the child of `sigkill_while_the_size_changes`.
#[test]
#[ignore = "runs until it is killed"]
fn child_that_is_killed() {
    let path = PathBuf::from(std::env::var_os("KAML_TEST_DEVICE").expect("started by its parent"));
    let first: u64 = std::env::var("KAML_TEST_NEXT").unwrap().parse().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let space = device.ensure_namespace("values", &options(KeyKind::U64)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in first.. {
                space.put(key % 500, &bytes(key, 5000)).unwrap();
                println!("durable {key}");
            }
        });
        let begin = device.info().file_bytes.unwrap();
        for step in 1..10_000 {
            device.resize(begin + step * MIB).unwrap();
        }
    });
}
