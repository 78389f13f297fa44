//! Keys that were chosen to collide.

#[path = "../../kaml-index/tests/support/mod.rs"]
mod support;

use kaml::{CreateOptions, Device, Key, KeyBuf, KeyKind, NamespaceId, NamespaceOptions, OpenOptions};
use kaml_device::Core;
use kaml_flash::{Geometry, Medium, MemoryMedium};
use kaml_index::{HashLayout, HashWriter, LenCode, Slot};
use std::sync::Arc;
use support::{colliding, of_mixed};

fn options(keys: KeyKind) -> NamespaceOptions {
    NamespaceOptions::records(keys)
}

fn listed(device: &Device, space: NamespaceId) -> Vec<Key> {
    let (mut keys, mut after) = (vec![], None);
    loop {
        let page = device.list(space, after, 100).unwrap();
        keys.extend(page.keys.iter().filter_map(KeyBuf::as_short));
        after = page.next;
        if after.is_none() {
            return keys;
        }
    }
}

/// The seed of a namespace on a device for which none was drawn.
fn seed_of(uuid: [u8; 16], space: NamespaceId) -> u64 {
    let uuid = u128::from_le_bytes(uuid);
    let id = u64::from(space).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    uuid as u64 ^ ((uuid >> 64) as u64).rotate_left(32) ^ id
}

/// The order in which an index lists keys.
fn order_of<'a>(kind: KeyKind, seed: u64, keys: impl IntoIterator<Item = &'a Key>) -> Vec<Key> {
    let mut index = HashWriter::with_seed(HashLayout { keys: kind, addr_bits: 30 }, seed);
    for key in keys {
        index.insert(key, Slot { at: 0, len: LenCode::of(1).unwrap() });
    }
    index.list(None, usize::MAX).0
}

/// Goal:   keys that were chosen to collide, by somebody who knows the seed, are keys like all others, before and after a crash and
///         through a snapshot of the index.
/// Method: a medium of which the seed is known, as a laboratory's is: that the keys are listed in the order of an index with this seed
///         proves it. Hundreds of keys for two buckets, and others that belong to one segment; put, deleted, put again, between them
///         those of another namespace.
#[test]
fn chosen_keys_are_keys_like_others() {
    for kind in [KeyKind::U64, KeyKind::Bytes] {
        let create = CreateOptions::new(64 << 20);
        let medium = MemoryMedium::new(Geometry::for_file(create.capacity_bytes, 512, &create).unwrap());
        Core::format(&medium).unwrap();
        let device = Device::on_medium(Arc::new(medium.clone())).unwrap();
        let space = device.create_namespace("attacked", &options(kind)).unwrap();
        let other = device.create_namespace("other", &options(KeyKind::U64)).unwrap();
        let seed = seed_of(medium.uuid(), space);
        let mut keys = colliding(kind, seed, 300);
        keys.extend((0..5000).map(|m| of_mixed(kind, seed, m << 3)));
        let value = |i: usize, turn: usize| format!("{i} {turn}").into_bytes();
        for turn in 0..2 {
            for (i, key) in keys.iter().enumerate() {
                device.put(space, *key, &value(i, turn)).unwrap();
                device.put(other, i as u64, b"precious").unwrap();
            }
            for key in keys.iter().skip(turn).step_by(3) {
                device.delete(space, *key).unwrap();
            }
        }
        let check = |device: &Device| {
            for (i, key) in keys.iter().enumerate() {
                let wanted = (i % 3 != 1).then(|| value(i, 1));
                assert_eq!(device.get(space, *key).unwrap().map(|found| found.to_vec()), wanted, "key {i}");
                assert_eq!(*device.get(other, i as u64).unwrap().unwrap(), *b"precious");
            }
            let present = keys.iter().enumerate().filter(|(i, _)| i % 3 != 1).map(|(_, key)| key);
            assert_eq!(listed(device, space), order_of(kind, seed, present));
        };
        check(&device);
        let crashed = medium.clone_state().reopen();
        check(&Device::on_medium(Arc::new(crashed.clone())).unwrap());
        device.close().unwrap();
        let closed = medium.clone_state().reopen();
        check(&Device::on_medium(Arc::new(closed)).unwrap());
    }
}

/// Goal:   nobody can know where a device's indexes place keys; the device does the same forever.
/// Method: a device on a file does not list keys in the order that follows from its UUID, which hosts are notified; but in one order, also when its file is copied in use, which
///         is a crash, and when it was closed, with and without a snapshot.
#[test]
fn places_are_a_secret_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let space = device.create_namespace("space", &options(KeyKind::U64)).unwrap();
    (0..100u64).for_each(|key| device.put(space, key, b"value").unwrap());
    let order = listed(&device, space);
    let uuid = u128::from_str_radix(&device.info().uuid, 16).unwrap().to_be_bytes();
    let keys: Vec<Key> = (0..100).map(Key::from).collect();
    assert_ne!(order, order_of(KeyKind::U64, seed_of(uuid, space), &keys));
    let copy = dir.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    assert_eq!(listed(&Device::open(&copy, &OpenOptions::default()).unwrap(), space), order);
    device.close().unwrap();
    for _ in 0..2 {
        let device = Device::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(listed(&device, space), order);
        device.put(space, 0u64, b"again").unwrap();
        device.close().unwrap();
    }
}
