//! Full devices whose records are in a namespace with its index on flash: deletes and overwrites make room, and nothing waits for ever.

use kaml::{
    Batch, CreateOptions, Device, Durability, Error, IndexPlace, KeyKind, Namespace, NamespaceOptions, OpenOptions,
    Retention, to_the_end,
};
use std::ops::Range;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 1000;
/// Changes in one batch.
const BATCH: u64 = 20;

fn device(dir: &tempfile::TempDir, bytes: u64) -> (Device, Namespace) {
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(bytes) };
    let device = Device::create(dir.path().join("device"), &options).unwrap();
    let on_flash = NamespaceOptions::records(KeyKind::U64).with_index(IndexPlace::Flash);
    let space = device.ensure_namespace("flash", &on_flash).unwrap();
    (device, space)
}

fn value_of(key: u64, round: u64) -> Vec<u8> {
    let mut value = vec![round as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Puts keys in batches; the number of the first key that was refused.
fn put(space: &Namespace, keys: Range<u64>, round: u64) -> Result<(), (u64, Error)> {
    change(space, keys, |batch, key| _ = batch.put(space.id(), key, &value_of(key, round)))
}

fn delete(space: &Namespace, keys: Range<u64>) -> Result<(), (u64, Error)> {
    change(space, keys, |batch, key| _ = batch.delete(space.id(), key))
}

fn change(space: &Namespace, keys: Range<u64>, add: impl Fn(&mut Batch, u64)) -> Result<(), (u64, Error)> {
    let mut first = keys.start;
    while first < keys.end {
        let mut batch = Batch::new();
        let end = keys.end.min(first + BATCH);
        (first..end).for_each(|key| add(&mut batch, key));
        space.device().write(&batch).map_err(|error| (first, error))?;
        first = end;
    }
    Ok(())
}

/// Puts new keys until the device is full; the end of what is stored.
fn fill(space: &Namespace, from: u64, round: u64) -> u64 {
    let (end, error) = put(space, from..u64::MAX, round).unwrap_err();
    assert!(error.is_full(), "{error}");
    end
}

fn expect(space: &Namespace, keys: Range<u64>, round: Option<u64>) {
    for key in keys.step_by(7) {
        assert_eq!(space.get(key).unwrap(), round.map(|round| value_of(key, round)), "key {key}");
    }
}

/// Goal:   a full device takes deletes, then as much as was deleted, and overwrites of all that it has; no put is refused before a merge could
///         have made room, and none waits where a merge makes none.
/// Method: fill, delete half, fill again, overwrite all, delete all, fill again; contents and a check.
#[test]
fn a_full_device_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (device, space) = device(&dir, 64 << 20);
    let end = fill(&space, 0, 0);
    delete(&space, 0..end / 2).unwrap();
    let again = fill(&space, end, 1);
    assert!(again - end >= end / 2 - end / 16, "{end} keys fitted, then {} in place of half", again - end);
    let began = Instant::now();
    (0..100).for_each(|_| assert!(fill(&space, again, 1) - again <= end / 32));
    assert!(began.elapsed() < Duration::from_secs(20), "puts that no merge makes room for: {:?}", began.elapsed());
    put(&space, end / 2..again, 2).unwrap();
    expect(&space, 0..end / 2, None);
    expect(&space, end / 2..again, Some(2));
    delete(&space, 0..again + end / 32).unwrap();
    let last = fill(&space, 0, 3);
    assert!(last >= end - end / 16, "{end} keys fitted, then {last}");
    expect(&space, 0..last, Some(3));
    assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
}

/// Goal:   the same holds for several threads at once, and after a close: no thread waits for ever, none gets another error than that the
///         device is full, and a thread that deletes what it puts is never refused for long.
/// Method: four threads overwrite, delete and put their own keys on a full device, with a deadline; the device is opened again in between.
#[test]
fn several_threads_on_a_full_device() {
    const THREADS: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let (device, space) = device(&dir, 64 << 20);
    let share = fill(&space, 0, 0) / THREADS / 16 * 15;
    delete(&space, THREADS * share..20 * THREADS * share / 16).unwrap();
    drop(space);
    device.close().unwrap();
    for round in [1, 2] {
        let device = Device::open(dir.path().join("device"), &OpenOptions::default()).unwrap();
        let space = device.open_namespace("flash").unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let space = &space;
                scope.spawn(move || {
                    let keys = thread * share..(thread + 1) * share;
                    let half = keys.start + share / 2;
                    delete(space, keys.start..half).unwrap();
                    put(space, half..keys.end, 10 * round).unwrap();
                    // As much as was deleted fits but for what other threads have not deleted yet.
                    let done = put(space, keys.start..half, 20 * round);
                    assert!(done.as_ref().err().is_none_or(|(_, error)| error.is_full()), "{done:?}");
                });
            }
        });
        assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
        for thread in 0..THREADS {
            let half = thread * share + share / 2;
            put(&space, thread * share..half, 20 * round).unwrap();
            expect(&space, thread * share..half, Some(20 * round));
            expect(&space, half..(thread + 1) * share, Some(10 * round));
        }
        assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
        drop(space);
        device.close().unwrap();
    }
}

/// Goal:   large values make room as small ones do.
/// Method: fill with values that are placed outside of segments, delete half, fill again, overwrite some.
#[test]
fn large_values_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let (_device, space) = device(&dir, 64 << 20);
    let value = vec![7; 100_000];
    let fill =
        |from: u64| (from..).find(|key| space.put(*key, &value).map_err(|error| assert!(error.is_full())).is_err());
    let end = fill(0).unwrap();
    (0..end / 2).for_each(|key| space.delete(key).unwrap());
    let again = fill(end).unwrap();
    assert!(again - end >= end / 2 - end / 16, "{end} keys fitted, then {}", again - end);
    assert_eq!(space.get(end / 2).unwrap().as_deref(), Some(&value[..]));
}

/// Goal:   a merge with the default rules drops all that is old: such a namespace has no use for the newest version of each group.
/// Method: a device that is half full, all of which is overwritten a few times and half of it deleted; the default rules.
#[test]
fn a_merge_with_default_rules_keeps_newest_versions_only() {
    const KEYS: u64 = 8_000;
    let dir = tempfile::tempdir().unwrap();
    let (device, space) = device(&dir, 64 << 20);
    put(&space, 0..KEYS, 0).unwrap();
    put(&space, 0..KEYS, 1).unwrap();
    delete(&space, 0..KEYS / 2).unwrap();
    let report = device.merge(space.id(), &Retention::default(), &mut to_the_end).unwrap();
    assert!(report.dropped >= KEYS + KEYS / 2, "{report:?}");
    assert!(space.info().unwrap().record_count <= KEYS, "{:?}", space.info());
    expect(&space, KEYS / 2..KEYS, Some(1));
}
