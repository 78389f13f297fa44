//! Records that expire, through the interface of the library.

use kaml::{
    Batch, CreateOptions, Device, Error, Expiry, KeyKind, MergePolicy, NamespaceChange, NamespaceOptions, OpenOptions,
    Operand, RestoreSource, VersionOptions,
    store::{Store, StoreOptions, Update, WriteMode},
};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::time::{Duration, Instant, UNIX_EPOCH};

const HOUR: Duration = Duration::from_secs(3600);

fn device() -> Device {
    Device::in_memory(&CreateOptions::new(64 << 20)).unwrap()
}

/// So much time passes on the device.
fn pass(device: &Device, time: Duration) {
    let clock = device.clock();
    clock.advance_to(clock.now_ms() + u64::try_from(time.as_millis()).unwrap());
}

/// Goal:   whatever looks at records sees none after its time: gets, listings, ranges, counts, queues, batches; large values too.
/// Method: the same records in a namespace of each kind of keys, some of which expire; the clock passes their time.
#[test]
fn nobody_sees_what_has_expired() {
    let device = device();
    for (name, keys) in [("bytes", KeyKind::Bytes), ("any", KeyKind::Any), ("ordered", KeyKind::Ordered)] {
        let space = device.ensure_namespace(name, &NamespaceOptions::records(keys)).unwrap();
        let large = vec![7; 100_000];
        let mut batch = Batch::new();
        batch.put(space.id(), "kept", b"1").expires(Expiry::Never);
        batch.put(space.id(), "brief", b"2").expires(Expiry::After(HOUR));
        batch.put(space.id(), "large", &large).expires(Expiry::After(HOUR));
        batch.put(space.id(), "longer", b"3").expires(Expiry::After(2 * HOUR)).put(space.id(), "default", b"4");
        device.write(&batch).unwrap();
        let names = || {
            let mut keys: Vec<_> = space.keys().map(|key| key.unwrap().to_string()).collect();
            keys.sort();
            keys
        };
        assert_eq!(names().len(), 5);
        assert_eq!(space.get("large").unwrap().as_deref(), Some(&large[..]));
        assert!(matches!(space.expiry("brief").unwrap(), Some(Expiry::At(time)) if time > UNIX_EPOCH));
        pass(&device, HOUR);
        assert_eq!((space.get("brief").unwrap(), space.get("large").unwrap()), (None, None));
        assert_eq!(space.expiry("brief").unwrap(), None);
        assert!(!space.exists("brief").unwrap() && space.exists("longer").unwrap());
        assert_eq!(names().len(), 3, "{:?}", names());
        if keys == KeyKind::Ordered {
            assert_eq!(space.count::<&str>(..).unwrap(), 3);
            assert_eq!(space.iter().count(), 3);
        }
        let mut queue = device.queue(8);
        for (token, key) in ["brief", "kept", "longer"].into_iter().enumerate() {
            queue.get(token as u64, space.id(), key).unwrap();
        }
        let mut answers = Vec::new();
        while answers.len() < 3 {
            queue.poll(true, &mut answers);
        }
        answers.sort_by_key(|answer| answer.token);
        let found: Vec<bool> = answers.into_iter().map(|answer| answer.result.unwrap().is_some()).collect();
        assert_eq!(found, [false, true, true]);
        let mut batch = Batch::new();
        batch.put_if_absent(space.id(), "brief", b"new");
        device.write(&batch).unwrap();
        pass(&device, 2 * HOUR);
        assert_eq!((space.get("brief").unwrap().as_deref(), names().len()), (Some(&b"new"[..]), 3));
    }
}

/// Goal:   room is released without anybody looking, by the real clock.
/// Method: a record that expires in 50 milliseconds; statistics alone are read.
#[test]
fn room_is_released_in_time() {
    let device = device();
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    let before = device.stats().live_bytes;
    space.put_expiring("brief", &[1; 10_000], Expiry::After(Duration::from_millis(50))).unwrap();
    assert!(device.stats().live_bytes > before);
    let begin = Instant::now();
    while device.stats().expired_count == 0 {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(device.stats().live_bytes, before);
}

/// Goal:   times to live of namespaces count for new records, can be changed, and survive; the device's clock never goes back.
/// Method: a device that is closed and opened, whose clock was advanced far beyond that of the host.
#[test]
fn times_to_live_and_the_clock_survive() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.kaml");
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let options = NamespaceOptions::default().with_ttl(HOUR);
    let space = device.ensure_namespace("n", &options).unwrap();
    space.put("a", b"1").unwrap();
    let none = NamespaceChange { default_ttl_ms: Some(None), ..NamespaceChange::default() };
    device.set_namespace(space.id(), &none).unwrap();
    space.put("b", b"2").unwrap();
    device
        .set_namespace(space.id(), &NamespaceChange { default_ttl_ms: Some(NonZeroU64::new(60_000)), ..none })
        .unwrap();
    space.put("c", b"3").unwrap();
    let expiring = || device.namespaces()[0].expiring_count;
    assert_eq!((expiring(), space.expiry("b").unwrap()), (2, Some(Expiry::Never)));
    pass(&device, 1000 * HOUR);
    let then = device.clock().now_ms();
    assert_eq!((space.get("a").unwrap(), space.get("c").unwrap()), (None, None));
    space.put("d", b"4").unwrap();
    drop(space);
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    assert!(device.clock().now_ms() >= then, "the host's clock is behind");
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    assert_eq!(space.info().unwrap().default_ttl_ms, NonZeroU64::new(60_000));
    assert_eq!(space.get("d").unwrap().as_deref(), Some(&b"4"[..]));
    pass(&device, Duration::from_secs(60));
    assert_eq!((space.get("d").unwrap(), space.get("b").unwrap().is_some()), (None, true));
}

/// Goal:   a snapshot is as of its moment; so is an iterator.
/// Method: records that expire before and after one is opened.
#[test]
fn snapshots_show_their_moment() {
    let device = device();
    let space = device.ensure_namespace("n", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    space.put_expiring("a", b"1", Expiry::After(HOUR)).unwrap();
    space.put_expiring("b", b"2", Expiry::After(3 * HOUR)).unwrap();
    pass(&device, 2 * HOUR);
    let snapshot = device.open_snapshot().unwrap();
    let mut iterator = space.iter();
    let first = iterator.next().unwrap().unwrap();
    assert_eq!(first.1, b"2");
    pass(&device, 2 * HOUR);
    assert_eq!(space.get("b").unwrap(), None);
    assert_eq!(snapshot.get(space.id(), "b").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(snapshot.get(space.id(), "a").unwrap(), None);
    assert_eq!(space.iter().count(), 0);
}

/// Goal:   backups have times and times to live; what expires later expires on the restored device, and increments do too.
/// Method: a full and an incremental backup, restored; clocks advanced on the new device.
#[test]
fn backups_have_times() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let device = device();
    let options = NamespaceOptions::records(KeyKind::Any).with_ttl(HOUR);
    let space = device.ensure_namespace("n", &options).unwrap();
    let long = "a key of more than sixteen bytes";
    space.put(long, b"1").unwrap();
    space.put_expiring("kept", b"2", Expiry::Never).unwrap();
    space.put_expiring("large", &[3; 50_000], Expiry::After(3 * HOUR)).unwrap();
    let full = at("full.backup");
    device.backup_to_file(&full, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    space.put_expiring("later", b"4", Expiry::After(2 * HOUR)).unwrap();
    let more = at("more.backup");
    device.backup_to_file(&more, Some(&full), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let sources = vec![RestoreSource::file(&full), RestoreSource::file(&more)];
    let path = at("restored.kaml");
    Device::restore(sources, &path, &CreateOptions::new(64 << 20), &mut |_| ControlFlow::Continue(())).unwrap();
    let restored = Device::open(&path, &OpenOptions::default()).unwrap();
    let copy = restored.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    assert_eq!(copy.info().unwrap().default_ttl_ms, NonZeroU64::new(3_600_000));
    for key in [long, "kept", "large", "later"] {
        assert_eq!(copy.get(key).unwrap(), space.get(key).unwrap());
        assert_eq!(copy.expiry(key).unwrap(), space.expiry(key).unwrap(), "{key}");
    }
    pass(&restored, 2 * HOUR);
    let there = [long, "kept", "large", "later"].map(|key| copy.exists(key).unwrap());
    assert_eq!(there, [false, true, true, false]);
}

/// Goal:   what cannot expire is refused by an error that names the remedy; a store refuses records that it would show too long.
/// Method: one of each.
#[test]
fn what_cannot_expire_is_refused() {
    let device = device();
    let versions = device.ensure_namespace("versions", &VersionOptions::default().into()).unwrap();
    let refused = versions.put_expiring("a", b"", Expiry::After(HOUR)).unwrap_err();
    assert!(matches!(refused, Error::VersionsDoNotExpire(_)) && refused.to_string().contains("retention"), "{refused}");
    versions.put_expiring("a", b"", Expiry::Never).unwrap();
    assert!(matches!(versions.expiry("a"), Err(Error::KeepsVersions(_))));
    let options = NamespaceOptions::from(VersionOptions {
        merge_when_low: Some(MergePolicy::default()),
        ..VersionOptions::default()
    });
    let refused = device.create_namespace("v", &options.with_ttl(HOUR)).unwrap_err();
    assert!(matches!(refused, Error::BadTimeToLive(_)) && refused.to_string().contains("retention"), "{refused}");
    let ttl = NamespaceChange { default_ttl_ms: Some(NonZeroU64::new(1)), ..NamespaceChange::default() };
    assert!(matches!(device.set_namespace(versions.id(), &ttl), Err(Error::BadTimeToLive(_))));

    let kept = device.ensure_namespace("kept", &NamespaceOptions::default()).unwrap();
    let brief = device.ensure_namespace("brief", &NamespaceOptions::default()).unwrap();
    kept.put("a", b"1").unwrap();
    brief.put_expiring("a", b"1", Expiry::After(HOUR)).unwrap();
    let store = Store::open(device.clone(), &StoreOptions::new(1 << 20)).unwrap();
    assert_eq!(store.get(kept.id(), "a").unwrap().as_deref(), Some(&b"1"[..]));
    let ttl = NamespaceChange { default_ttl_ms: Some(None), ..NamespaceChange::default() };
    assert!(matches!(device.set_namespace(brief.id(), &ttl), Err(Error::StoreIsOpen)));
    pass(&device, HOUR);
    assert!(!brief.exists("a").unwrap());
    store.put(brief.id(), "b", b"1").unwrap();
    assert_eq!(store.get(brief.id(), "b").unwrap().as_deref(), Some(&b"1"[..]));
}

/// Each way to open a store, with its name.
fn modes() -> Vec<(&'static str, StoreOptions)> {
    let mut modes = Vec::new();
    for (name, early_release, write_mode, delay) in [
        ("through", true, WriteMode::Through, Duration::ZERO),
        ("strict", false, WriteMode::Through, Duration::ZERO),
        ("back", false, WriteMode::Back, Duration::ZERO),
        ("delay", true, WriteMode::Through, HOUR),
        ("delay, back", false, WriteMode::Back, HOUR),
    ] {
        let mut options = StoreOptions::new(1 << 20);
        (options.early_release, options.write_mode, options.durability_delay) = (early_release, write_mode, delay);
        modes.push((name, options));
    }
    modes
}

/// Goal:   a store shows no record after its time, whatever put it and whatever reads it; records of the same namespace that do not expire remain, and
///         are cached.
/// Method: a namespace with a time to live and one without, in each mode and kind of keys; puts, transactions and queues store records, everything that
///         reads sees them, and nothing does an hour later, a transaction that has read them before included.
#[test]
fn a_store_shows_nothing_after_its_time() {
    for ((mode, options), keys) in modes()
        .into_iter()
        .flat_map(|mode| [KeyKind::Bytes, KeyKind::Ordered].map(|keys| ((mode.0, mode.1.clone()), keys)))
    {
        let device = device();
        let brief = device.create_namespace("brief", &NamespaceOptions::records(keys).with_ttl(HOUR)).unwrap();
        let mixed = device.create_namespace("mixed", &NamespaceOptions::records(keys)).unwrap();
        device.put(brief, "old", b"old").unwrap();
        let store = Store::open(device.clone(), &options).unwrap();
        store.put(brief, "put", b"put").unwrap();
        store.put(mixed, "kept", b"kept").unwrap();
        store.put(mixed, "changed", b"kept").unwrap();
        store.put_expiring(mixed, "changed", b"changed", Expiry::After(HOUR)).unwrap();
        store.put_expiring(brief, "never", b"never", Expiry::Never).unwrap();
        store
            .run(|txn| {
                txn.insert(brief, "txn", b"txn")?;
                txn.upsert_expiring(mixed, "expiring", b"expiring", Expiry::After(HOUR))?;
                txn.upsert_expiring(mixed, "again", b"x", Expiry::After(HOUR))?;
                txn.upsert(mixed, "again", b"again")?;
                assert_eq!(txn.read(mixed, "expiring")?.as_deref(), Some(&b"expiring"[..]));
                Ok(())
            })
            .unwrap();
        let mut queue = store.queue(4);
        queue.put(1, brief, "queued", b"queued");
        queue.update(2, brief, "updated", |_| Update::Store(b"updated".to_vec()));
        let mut answers = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        assert!(answers.iter().all(|answer| answer.result.is_ok()), "{mode}: {answers:?}");
        answers.clear();
        let all = [
            (brief, "old", false),
            (brief, "put", false),
            (brief, "txn", false),
            (brief, "queued", false),
            (brief, "updated", false),
            (brief, "never", true),
            (mixed, "kept", true),
            (mixed, "changed", false),
            (mixed, "expiring", false),
            (mixed, "again", true),
        ];
        let mut txn = store.begin().unwrap();
        for is_before in [true, false] {
            for (space, key, stays) in all {
                let expected = (is_before || stays).then_some(key.as_bytes());
                let what = format!("{mode}, {keys:?}: {key}");
                for _ in 0..2 {
                    assert_eq!(store.get(space, key).unwrap().as_deref(), expected, "{what}");
                }
                assert_eq!(store.exists(space, key).unwrap(), expected.is_some(), "{what}");
                assert_eq!(store.get_with(space, key, <[u8]>::to_vec).unwrap().as_deref(), expected, "{what}");
                let many = store.get_many(space, [key, "kept"]).unwrap();
                assert_eq!(many[0].as_deref(), expected, "{what}");
                assert_eq!(txn.read(space, key).unwrap().as_deref(), expected, "{what}");
                queue.get(1, space, key);
                while queue.in_flight() > 0 {
                    queue.poll(true, &mut answers);
                }
                assert_eq!(answers.pop().unwrap().result.unwrap().as_deref(), expected, "{what}");
            }
            if is_before {
                pass(&device, HOUR);
            }
        }
        txn.commit().unwrap();
        assert!(matches!(store.run(|txn| txn.update(brief, "put", b"")), Err(Error::Conflict { present: false, .. })));
        let hits = store.stats().hit_count;
        store.get(mixed, "kept").unwrap();
        assert_eq!(store.stats().hit_count, hits + 1, "{mode}");
        if keys == KeyKind::Ordered {
            assert!(matches!(store.range(brief, "a".., 9), Err(Error::NotInStore(_))));
        }
        store.flush().unwrap();
        drop((txn, queue, store));
        assert_eq!(device.get(mixed, "again").unwrap().as_deref(), Some(&b"again"[..]));
        assert_eq!(device.get(brief, "txn").unwrap(), None);
    }
}

/// Goal:   counters and expected values in a store are those of a device, in each mode; a counter keeps the time at which it expires.
/// Method: operands and expected values that hold and do not, by themselves and in transactions; then an hour passes.
#[test]
fn counters_and_expected_values_in_a_store() {
    for (mode, options) in modes() {
        let device = device();
        let space = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
        let store = Store::open(device.clone(), &options).unwrap();
        assert_eq!(store.apply(space, "visits", Operand::Add(5)).unwrap(), 5, "{mode}");
        assert_eq!(store.apply(space, "visits", Operand::Min(3)).unwrap(), 3);
        assert!(matches!(store.apply(space, "visits", Operand::Add(i64::MAX)), Err(Error::CounterOverflow { .. })));
        store.put(space, "text", b"text").unwrap();
        assert!(matches!(store.apply(space, "text", Operand::Add(1)), Err(Error::NotACounter { bytes: 4, .. })));
        store.put_expiring(space, "brief", &7i64.to_le_bytes(), Expiry::After(HOUR)).unwrap();
        let (first, second) = store
            .run(|txn| Ok((txn.apply(space, "brief", Operand::Add(1))?, txn.apply(space, "brief", Operand::Max(9))?)))
            .unwrap();
        assert_eq!((first, second), (8, 9));
        store.compare_and_set(space, "text", Some(b"text"), Some(b"new")).unwrap();
        let refused = store.compare_and_set(space, "text", Some(b"text"), None);
        assert!(matches!(refused, Err(Error::ValueDiffers { present: true, .. })));
        let refused = store.compare_and_set(space, "none", Some(b"text"), None);
        assert!(matches!(refused, Err(Error::ValueDiffers { present: false, .. })));
        store.compare_and_set(space, "text", Some(b"new"), None).unwrap();
        store.compare_and_set(space, "text", None, None).unwrap();
        pass(&device, HOUR);
        assert_eq!(store.apply(space, "brief", Operand::Add(1)).unwrap(), 1, "{mode}: a new counter");
        pass(&device, HOUR);
        drop(store);
        let value = |key: &str| device.get(space, key).unwrap();
        assert_eq!((value("visits"), value("text")), (Some(3i64.to_le_bytes().to_vec()), None), "{mode}");
        assert_eq!(value("brief"), Some(1i64.to_le_bytes().to_vec()), "{mode}: it does not expire");
    }
}
