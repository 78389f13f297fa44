//! The record cache and transactions over a remote device.

use crate::world::{World, key};
use kaml::store::{Backing, Store, StoreOptions, WriteMode};
use kaml::{
    Batch, Compression, CreateOptions, Device, IndexPlace, KeyKind, MergePolicy, NamespaceChange, NamespaceInfo,
    NamespaceOptions, VersionOptions,
};
use kaml_nvme::host::RemoteUrl;
use std::time::Duration;

/// Goal:   transactions on a remote device are atomic and isolated as on a local one.
/// Method: four threads move money between 16 accounts over two namespaces; the sum does not change, on the device too.
#[test]
fn transactions_over_a_remote_device() {
    let world = World::new();
    let spaces = [world.namespace("a"), world.namespace("b")];
    let store = Store::open(world.remote(), &StoreOptions::new(4 << 20)).unwrap();
    let amount = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    for (space, account) in spaces.iter().flat_map(|space| (0..8u64).map(move |account| (*space, account))) {
        store.put(space, account, &100i64.to_le_bytes()).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..50 {
                    let (from, to) = ((thread * 7 + round) % 8, (thread * 3 + round * 5) % 8);
                    store
                        .run(|txn| {
                            let a = amount(&txn.read(spaces[0], from)?.unwrap());
                            let b = amount(&txn.read(spaces[1], to)?.unwrap());
                            txn.update(spaces[0], from, &(a - 1).to_le_bytes())?;
                            txn.update(spaces[1], to, &(b + 1).to_le_bytes())
                        })
                        .unwrap();
                }
            });
        }
    });
    let sum =
        |space: usize| (0..8u64).map(|n| amount(&world.device.get(spaces[space], n).unwrap().unwrap())).sum::<i64>();
    assert_eq!((sum(0), sum(1)), (800 - 200, 800 + 200));
}

/// Goal:   a host creates a namespace that compresses and changes its method; the target compresses and decompresses, so commands have values as
///         they are, through a cache, too.
/// Method: text of several lengths, longer than the first room for an answer and than what is read in place; what the device stores.
#[test]
fn namespaces_of_a_remote_device_compress() {
    let world = World::new();
    let remote = world.remote();
    let options = NamespaceOptions::default().with_compression(Compression::Zstd);
    let nsid = remote.create_namespace("text", &options).unwrap();
    let text =
        |bytes: usize| (0..).flat_map(|n: u32| format!("line {n}\n").into_bytes()).take(bytes).collect::<Vec<u8>>();
    let sizes = [10usize, 300, 4000, 5000, 31_000, 70_000, 500_000];
    let info = || remote.namespaces().unwrap().into_iter().find(|info| info.id == nsid).unwrap();
    assert_eq!(info().compression, Compression::Zstd);
    for settles in [false, true] {
        for size in sizes {
            let mut batch = Batch::new();
            batch.put(nsid, size as u64, &text(size));
            remote.write(&batch).unwrap();
        }
        if settles {
            world.device.settle().unwrap();
        }
        for size in sizes {
            assert!(remote.get(nsid, size as u64).unwrap().unwrap() == text(size), "{size} bytes");
            assert!(world.device.get(nsid, size as u64).unwrap().unwrap() == text(size), "{size} bytes");
        }
    }
    let change = NamespaceChange { compression: Some(Compression::Lz4), ..NamespaceChange::default() };
    remote.set_namespace(nsid, &change).unwrap();
    let compressed = info().compressed;
    assert_eq!(info().compression, Compression::Lz4);
    assert_eq!(compressed.given_bytes, 2 * sizes.iter().sum::<usize>() as u64);
    assert!(compressed.ratio() < 0.4, "{compressed:?}");
    let store = Store::open(remote, &StoreOptions::new(4 << 20)).unwrap();
    store.put(nsid, 7u64, &text(9000)).unwrap();
    assert!(
        store.get(nsid, 7u64).unwrap().unwrap()[..] == text(9000)[..]
            && store.get(nsid, 5000u64).unwrap().unwrap()[..] == text(5000)[..]
    );
}

/// Goal:   a remote device behaves as a local one towards the cache.
/// Method: values around the first room, batched gets, conditions, limits, errors, deleting a namespace, bad addresses.
#[test]
fn a_remote_device_is_a_device() {
    let world = World::new();
    let nsid = world.namespace("a");
    let remote = world.remote();
    let mut batch = Batch::new();
    let sizes = [0usize, 1, 4096, 4097, 100_000];
    for size in sizes {
        batch.put(nsid, size as u64, &vec![size as u8; size]);
    }
    remote.write(&batch).unwrap();
    let keys: Vec<kaml::KeyRef<'_>> =
        sizes.iter().map(|size| (*size as u64).into()).chain([key(b"none").into()]).collect();
    let mut found = vec![None; keys.len()];
    remote.reader().get_many(nsid, &keys, &mut |place, value| found[place] = Some(value.unwrap()));
    for (place, value) in found.into_iter().enumerate() {
        let expected = sizes.get(place).map(|size| vec![*size as u8; *size]);
        assert!(value.unwrap() == expected, "place {place}");
    }
    let mut batch = Batch::new();
    batch.put_if_absent(nsid, 1, b"x");
    let conflict = remote.write(&batch).unwrap_err();
    assert!(matches!(conflict, kaml::Error::Conflict { present: true, .. }), "{conflict}");
    assert_eq!(remote.limits().value_bytes_max, world.device.info().value_bytes_max);
    assert!(remote.exists(nsid, 1u64).unwrap());
    remote.delete_namespace(nsid).unwrap();
    assert!(matches!(remote.exists(nsid, 1u64).unwrap_err(), kaml::Error::UnknownNamespace(_)));
    for bad in ["tcp://x/nqn.x", "nvme+tcp://x", "nvme+tcp://x:1/subsystem"] {
        assert!(bad.parse::<RemoteUrl>().is_err(), "{bad}");
    }
}

/// Goal:   a host that deletes a namespace loses nothing that was to be stored in others, whatever is stored together; and one that is
///         present, but not attached, is not taken for deleted.
/// Method: Puts over two namespaces, one of which another host makes and deletes; then stores that keep commits, or put in the cache
///         alone, while another host deletes one of their namespaces, each of the two in turn.
#[test]
fn deleted_namespaces_take_nothing_along() {
    let world = World::new();
    let kept = world.namespace("kept");
    let (host, other) = (world.remote(), world.remote());
    let late = other.create_namespace("late", &NamespaceOptions::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(kept, key(b"k"), b"v").put(late, key(b"k"), b"v");
    let refused = host.write(&batch).unwrap_err();
    assert!(matches!(refused, kaml::Error::Remote(_)), "it exists: {refused}");
    let refused = host.put_if(late, key(b"k"), b"v", kaml::Condition::Always).unwrap_err();
    assert!(matches!(refused, kaml::Error::Remote(_)), "it exists: {refused}");
    other.delete_namespace(late).unwrap();
    let refused = host.write(&batch).unwrap_err();
    assert!(matches!(refused, kaml::Error::UnknownNamespace(id) if id == late), "not there is {late}: {refused}");
    let delayed = StoreOptions { durability_delay: Duration::from_secs(60), ..StoreOptions::new(4 << 20) };
    let back = StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(4 << 20) };
    for (options, gone) in [(&delayed, 0), (&delayed, 1), (&back, 0), (&back, 1)] {
        let spaces = [world.namespace("x"), world.namespace("y")];
        let store = Store::open(world.remote(), options).unwrap();
        for number in 0..100u64 {
            spaces.iter().for_each(|space| store.put(*space, key(&number.to_le_bytes()), b"value").unwrap());
        }
        world.remote().delete_namespace(spaces[gone]).unwrap();
        store.flush().unwrap();
        let left = spaces[1 - gone];
        for number in 0..100u64 {
            assert_eq!(world.device.get(left, key(&number.to_le_bytes())).unwrap().as_deref(), Some(&b"value"[..]));
        }
        drop(store);
        world.remote().delete_namespace(left).unwrap();
    }
}

/// Goal:   a host creates a namespace with its index on flash, sees that it is one, and gets the reason where there can be none.
/// Method: such a namespace with puts and deletes, seen from both sides; one of ordered keys.
#[test]
fn a_host_places_an_index_on_flash() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let world = World::serving(device, |_| {});
    let host = world.remote();
    let on_flash = |keys| NamespaceOptions::records(keys).with_index(IndexPlace::Flash);
    let flash = host.create_namespace("flash", &on_flash(KeyKind::Bytes)).unwrap();
    for value in [b"first", b"again"] {
        host.put_if(flash, key(b"k"), value, kaml::Condition::Always).unwrap();
    }
    assert_eq!(host.get(flash, key(b"k")).unwrap().as_deref(), Some(&b"again"[..]));
    for infos in [world.device.namespaces(), host.namespaces().unwrap()] {
        let place = infos.iter().find(|info| info.id == flash).map(NamespaceInfo::index_place);
        assert_eq!(place, Some(IndexPlace::Flash));
    }
    let refused = host.create_namespace("ordered", &on_flash(KeyKind::Ordered)).unwrap_err();
    assert!(matches!(refused, kaml::Error::BadVersionOptions(_)), "{refused}");
}

/// Goal:   a host changes namespaces as the device itself does, and its records are kept.
/// Method: rename, other logs, rules of merges, each looked at on the device and by another host; what makes no sense.
#[test]
fn a_host_changes_namespaces() {
    let options = CreateOptions { block_bytes: Some(2 << 20), die_count: Some(2), ..CreateOptions::new(256 << 20) };
    let device = Device::in_memory(&options).unwrap();
    let world = World::serving(device, |_| {});
    let host = world.remote();
    let notes = world.namespace("notes");
    let merge_when_low =
        Some(MergePolicy { keep_last: 2, keep_for_ns: 3 << 40, keep_internal: true, newest_only: false });
    let versions = VersionOptions { merge_when_low, ..VersionOptions::default() };
    let past = host.create_namespace("past", &versions.into()).unwrap();
    // One that was connected before would not find it attached.
    let other = world.remote();
    let told = |id: u32| {
        let find = |infos: Vec<NamespaceInfo>| infos.into_iter().find(|info| info.id == id).unwrap();
        let (here, there) = (find(world.device.namespaces()), find(other.namespaces().unwrap()));
        let attributes = |info: &NamespaceInfo| (info.name.clone(), info.logs.clone(), info.merge_when_low());
        assert_eq!(attributes(&here), attributes(&there));
        attributes(&here)
    };
    assert_eq!(told(past).2, merge_when_low);
    host.put_if(notes, key(b"k"), b"v", kaml::Condition::Always).unwrap();
    let last = world.device.info().die_count - 1;
    assert!(last > 0, "there are several logs");
    let both = NamespaceChange { name: Some("letters".into()), logs: Some(vec![last]), ..NamespaceChange::default() };
    host.set_namespace(notes, &both).unwrap();
    assert_eq!(told(notes), ("letters".into(), vec![last], None));
    host.put_if(notes, key(b"l"), b"w", kaml::Condition::Always).unwrap();
    host.set_namespace(notes, &NamespaceChange { logs: Some(vec![]), ..NamespaceChange::default() }).unwrap();
    assert_eq!(told(notes), ("letters".into(), vec![], None));
    assert_eq!(host.get(notes, key(b"k")).unwrap().as_deref(), Some(&b"v"[..]));
    let never = NamespaceChange { merge_when_low: Some(None), ..NamespaceChange::default() };
    host.set_namespace(past, &never).unwrap();
    assert_eq!(told(past), ("past".into(), vec![], None));

    let refused = |id, change: &NamespaceChange| host.set_namespace(id, change).unwrap_err();
    let error = refused(notes, &never);
    assert!(matches!(error, kaml::Error::KeepsNoVersions(_)), "{error}");
    let error = refused(999, &both);
    assert!(matches!(error, kaml::Error::UnknownNamespace(999)), "{error}");
    refused(notes, &NamespaceChange { logs: Some(vec![last + 1]), ..NamespaceChange::default() });
    refused(notes, &NamespaceChange { name: Some("past".into()), ..NamespaceChange::default() });
    refused(notes, &NamespaceChange { name: Some("n".repeat(65)), ..NamespaceChange::default() });
    refused(notes, &NamespaceChange::default());
    assert_eq!(told(notes), ("letters".into(), vec![], None));
}

/// Goal:   a store over a remote device refuses a value that its namespace does not take at once, and keeps what others have put; Identify
///         reports each namespace's own limit.
/// Method: a version that is too long, put in the cache alone and in a transaction with delayed durability, together with good records; the
///         longest one that is taken; a namespace that comes later, and none.
#[test]
fn too_long_versions_are_refused_at_once() {
    let world = World::new();
    let plain = world.namespace("plain");
    let versions = NamespaceOptions::from(VersionOptions::default());
    let past = world.device.create_namespace("past", &versions).unwrap();
    let (all, of_versions) = (world.device.info().value_bytes_max, Backing::value_bytes_max(&world.device, past));
    assert_eq!(of_versions, all);
    let host = world.remote();
    for _ in 0..2 {
        assert_eq!((host.value_bytes_max(past), host.value_bytes_max(plain)), (of_versions, all));
    }
    let later = host.create_namespace("later", &versions).unwrap();
    let of_later = Backing::value_bytes_max(&world.device, later);
    assert_eq!((host.value_bytes_max(later), host.value_bytes_max(99)), (of_later, all));

    let delayed = StoreOptions { durability_delay: Duration::from_secs(3600), ..StoreOptions::new(32 << 20) };
    let back = StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(32 << 20) };
    let long = vec![1; of_versions as usize + 1];
    for (options, committed) in [(delayed, key(b"l")), (back, key(b"m"))] {
        let store = Store::open(world.remote(), &options).unwrap();
        store.put(plain, key(b"k"), b"put").unwrap();
        store.run(|txn| txn.insert(plain, committed, b"committed")).unwrap();
        for result in [store.put(past, key(b"k"), &long), store.run(|txn| txn.insert(past, committed, &long))] {
            let Err(error) = result else { panic!("{result:?}") };
            let max = of_versions;
            let kaml::Error::ValueTooLarge { max: told, .. } = error else { panic!("{error}") };
            assert_eq!(told, max);
        }
        store.put(past, key(b"k"), &long[1..]).unwrap();
        store.flush().unwrap();
        assert_eq!(world.device.get(plain, key(b"k")).unwrap().unwrap(), b"put");
        assert_eq!(world.device.get(plain, committed).unwrap().unwrap(), b"committed");
        assert_eq!(world.device.get(past, key(b"k")).unwrap().unwrap(), long[1..]);
    }
}

/// Goal:   a full device takes deletes from a host, and then as much as was deleted, in a namespace with its index on flash: puts wait for the
///         merge that makes room, and others are served meanwhile.
/// Method: a host fills a small device, deletes half and fills it again; another one reads.
#[test]
fn a_full_index_on_flash_goes_on() {
    let world = World::serving(Device::in_memory(&CreateOptions::new(32 << 20)).unwrap(), |_| {});
    let host = world.remote();
    let options = NamespaceOptions::records(KeyKind::U64).with_index(IndexPlace::Flash);
    let flash = host.create_namespace("flash", &options).unwrap();
    let other = world.remote();
    let value = [7; 20_000];
    let fill = |from: u64| {
        let put = |key: u64| host.put_if(flash, key, &value, kaml::Condition::Always);
        let refused = (from..).find_map(|key| put(key).err().map(|error| (key, error)));
        let (end, error) = refused.expect("the device has an end");
        assert!(error.to_string().contains("capacity exceeded"), "{error}");
        end
    };
    let end = fill(0);
    for key in 0..end / 2 {
        let mut batch = Batch::new();
        host.write(batch.delete(flash, key)).unwrap();
    }
    let again = fill(end);
    assert!(again - end >= end / 2 - end / 8, "{end} keys fitted, then {} in place of half", again - end);
    assert_eq!(other.get(flash, end / 2).unwrap().as_deref(), Some(&value[..]));
    assert_eq!(other.get(flash, 0u64).unwrap(), None);
}
