//! Namespaces with their index on flash: more keys than memory has room for.

use kaml::{
    Batch, BlockOptions, Condition, CreateOptions, Device, Durability, Error, IndexPlace, KeyKind, MergePolicy,
    Namespace, NamespaceChange, NamespaceOptions, OpenOptions, RestoreSource,
};
use kaml_testkit::Rng;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

fn on_flash() -> NamespaceOptions {
    NamespaceOptions::records(KeyKind::U64).with_index(IndexPlace::Flash)
}

/// A file, so the device has its housekeeping thread.
fn device(dir: &tempfile::TempDir, bytes: u64) -> Device {
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(bytes) };
    Device::create(dir.path().join("device"), &options).unwrap()
}

fn value_of(key: u64, round: u64) -> [u8; 100] {
    let mut value = [round as u8; 100];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Puts keys in batches.
fn put_all(space: &Namespace, keys: impl Iterator<Item = u64>, round: u64) {
    let mut batch = Batch::new();
    for key in keys {
        batch.put(space.id(), key, &value_of(key, round));
        if batch.len() == 500 {
            space.device().write(&batch).unwrap();
            batch.clear();
        }
    }
    if !batch.is_empty() {
        space.device().write(&batch).unwrap();
    }
}

fn reads_per_get(space: &Namespace, keys: impl Iterator<Item = u64>, round: Option<u64>) -> f64 {
    let (before, mut count) = (space.device().stats().read_count, 0);
    for key in keys {
        assert_eq!(space.get(key).unwrap(), round.map(|round| value_of(key, round).to_vec()), "key {key}");
        count += 1;
    }
    (space.device().stats().read_count - before) as f64 / f64::from(count)
}

/// Goal:   with ten times as many keys as memory has room for, a get of a key reads flash at most twice on average, one of an absent key hardly
///         ever, and the index takes the memory that is promised, also after every key was put four times.
/// Method: 200 000 keys in a budget that an index in memory fills with 20 000; the counters of the device.
#[test]
fn ten_times_more_keys_than_memory() {
    const KEYS: u64 = 200_000;
    let dir = tempfile::tempdir().unwrap();
    let device = device(&dir, 256 << 20);
    let in_memory = device.ensure_namespace("memory", &NamespaceOptions::records(KeyKind::U64)).unwrap();
    put_all(&in_memory, 0..KEYS / 10, 0);
    let budget = in_memory.info().unwrap().index_bytes;
    device.delete_namespace(in_memory.id()).unwrap();
    let space = device.ensure_namespace("flash", &on_flash()).unwrap();
    let per_record = |space: &Namespace| {
        let info = space.info().unwrap();
        info.index_bytes as f64 / info.record_count as f64
    };
    put_all(&space, 0..KEYS, 0);
    assert!(space.info().unwrap().index_bytes < 2 * budget, "{:?} and {budget}", space.info());
    assert!(per_record(&space) < 3.0, "{}", per_record(&space));
    assert!(reads_per_get(&space, (0..KEYS).step_by(10), Some(0)) <= 2.0);
    assert!(reads_per_get(&space, KEYS..KEYS + 20_000, None) <= 0.05);
    (1..4).for_each(|round| put_all(&space, (0..KEYS).rev(), round));
    // Old versions are dropped by a thread of the device.
    let began = Instant::now();
    while space.info().unwrap().record_count > KEYS * 9 / 4 {
        assert!(began.elapsed() < Duration::from_secs(120), "old versions remain: {:?}", space.info());
        std::thread::sleep(Duration::from_millis(20));
        space.put(0u64, &value_of(0, 3)).unwrap();
    }
    assert!(reads_per_get(&space, (0..KEYS).step_by(10), Some(3)) <= 2.0);
    (0..KEYS).step_by(2).for_each(|key| space.delete(key).unwrap());
    assert!(reads_per_get(&space, (0..KEYS).step_by(20), None) <= 2.0);
    assert_eq!(space.keys().count() as u64, KEYS / 2);
    assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
}

/// Goal:   commands on records work as they do with an index in memory, before and after the device was opened again.
/// Method: random puts, deletes, batches and conditions on two namespaces, one of each kind, whose results must be the same; listings; a check.
#[test]
fn commands_work_as_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut device = device(&dir, 64 << 20);
    let mut rng = Rng::new(45);
    let mut model = BTreeMap::new();
    for life in 0..4 {
        let flash = device.ensure_namespace("flash", &on_flash()).unwrap();
        for step in 0..3000u64 {
            let (key, value) = (rng.below(500), vec![step as u8; rng.below(2000) as usize]);
            match rng.below(6) {
                0 => {
                    flash.delete(key).unwrap();
                    model.remove(&key);
                }
                1 => {
                    let put = flash.put_if(key, &value, Condition::IfAbsent);
                    assert_eq!(put.is_ok(), !model.contains_key(&key), "{put:?}");
                    model.entry(key).or_insert(value);
                }
                2 => {
                    let put = flash.put_if(key, &value, Condition::IfPresent);
                    assert_eq!(put.is_ok(), model.contains_key(&key), "{put:?}");
                    if put.is_ok() {
                        model.insert(key, value);
                    }
                }
                3 => {
                    let mut batch = Batch::new();
                    batch.put(flash.id(), key, &value).delete(flash.id(), key + 1);
                    device.write(&batch).unwrap();
                    model.insert(key, value);
                    model.remove(&(key + 1));
                }
                4 => assert_eq!(flash.exists(key).unwrap(), model.contains_key(&key)),
                _ => assert_eq!(flash.get(key).unwrap().as_ref(), model.get(&key)),
            }
        }
        let mut keys: Vec<u64> = flash.keys().map(|key| key.unwrap().as_u64().unwrap()).collect();
        keys.sort_unstable();
        assert!(keys.iter().eq(model.keys()), "life {life}");
        assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
        drop(flash);
        device.close().unwrap();
        device = Device::open(dir.path().join("device"), &OpenOptions::default()).unwrap();
        assert_eq!(device.open_namespace("flash").unwrap().info().unwrap().index_place(), IndexPlace::Flash);
    }
    let flash = device.open_namespace("flash").unwrap();
    assert!(model.iter().all(|(key, value)| flash.get(*key).unwrap().as_ref() == Some(value)));
}

/// Goal:   a namespace that cannot have its index on flash is refused, and so are commands that such a namespace has not; each error names what
///         to do.
/// Method: every kind of namespace, and one command of each kind.
#[test]
fn what_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let device = device(&dir, 64 << 20);
    let kinds = [
        NamespaceOptions::records(KeyKind::Any),
        NamespaceOptions::records(KeyKind::Ordered),
        BlockOptions::new(4096, 8).into(),
    ];
    for options in kinds {
        let error = device.create_namespace("no", &options.with_index(IndexPlace::Flash)).unwrap_err();
        assert!(matches!(error, Error::BadVersionOptions(_)) && error.to_string().contains("keep"), "{error}");
    }
    let expiring = on_flash().with_ttl(Duration::from_secs(1));
    assert!(matches!(device.create_namespace("no", &expiring), Err(Error::BadTimeToLive(_))));
    let flash = device.ensure_namespace("flash", &on_flash()).unwrap();
    let error = flash.add(1u64, 1).unwrap_err();
    assert!(matches!(error, Error::KeepsVersions(_)) && error.to_string().contains("in memory"), "{error}");
    for policy in [None, Some(MergePolicy::default())] {
        let change = NamespaceChange { merge_when_low: Some(policy), ..NamespaceChange::default() };
        let error = device.set_namespace(flash.id(), &change).unwrap_err();
        assert!(matches!(error, Error::BadVersionOptions(_)), "{error}");
    }
    let change = NamespaceChange { name: Some("renamed".to_owned()), ..NamespaceChange::default() };
    device.set_namespace(flash.id(), &change).unwrap();
    assert_eq!(flash.info().unwrap().index_place(), IndexPlace::Flash);
}

/// Goal:   a restored namespace has its index on flash as well, also on a device on which its page buffer has no room.
/// Method: a full backup and an incremental one, with the namespace renamed between them, into a device of the same size and into a small one.
#[test]
fn a_backup_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let device = device(&dir, 1 << 30);
    let space = device.ensure_namespace("flash", &on_flash()).unwrap();
    put_all(&space, 0..3000, 0);
    let files = ["full", "more"].map(|name| dir.path().join(name));
    device.backup_to_file(&files[0], None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    put_all(&space, 0..1000, 1);
    (2000..3000).for_each(|key| space.delete(key).unwrap());
    let change = NamespaceChange { name: Some("renamed".to_owned()), ..NamespaceChange::default() };
    device.set_namespace(space.id(), &change).unwrap();
    device.backup_to_file(&files[1], Some(&files[0]), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let shape_of = |space: &Namespace| space.info().unwrap().kind;
    for capacity in [1 << 30, 32 << 20] {
        let path = dir.path().join(format!("restored {capacity}"));
        let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(capacity) };
        let sources = files.iter().map(RestoreSource::file).collect();
        Device::restore(sources, &path, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        let restored = Device::open(&path, &OpenOptions::default()).unwrap();
        let again = restored.open_namespace("renamed").unwrap();
        assert_eq!(again.info().unwrap().index_place(), IndexPlace::Flash);
        assert_eq!(shape_of(&again) == shape_of(&space), capacity == 1 << 30, "the small one has another buffer");
        for key in 0..3000 {
            let round = if key < 1000 { 1 } else { 0 };
            let expected = (key < 2000).then(|| value_of(key, round).to_vec());
            assert_eq!(again.get(key).unwrap(), expected, "key {key}");
        }
        put_all(&again, 0..3000, 2);
        assert!(restored.check(&mut |_, _| {}).unwrap().problems.is_empty());
    }
}
