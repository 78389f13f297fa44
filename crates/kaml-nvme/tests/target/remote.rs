//! The record cache and transactions over a remote device.

use crate::world::{World, key};
use kaml::Batch;
use kaml::store::{Backing, Store, StoreOptions};
use kaml_nvme::host::{HostOptions, RemoteDevice, RemoteUrl};

fn remote(world: &World) -> RemoteDevice {
    let url = format!("nvme+tcp://{}/{}", world.address, world.subsystem).parse::<RemoteUrl>().unwrap();
    RemoteDevice::open(&url, &HostOptions { queues: 2, ..HostOptions::default() }).unwrap()
}

/// Goal:   transactions on a remote device are atomic and isolated as on a local one.
/// Method: four threads move money between 16 accounts over two namespaces; the sum stays, on the device too.
#[test]
fn transactions_over_a_remote_device() {
    let world = World::new();
    let spaces = [world.namespace("a"), world.namespace("b")];
    let store = Store::open(remote(&world), &StoreOptions::new(4 << 20)).unwrap();
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

/// Goal:   a remote device behaves as a local one towards the cache.
/// Method: values around the first room, batched gets, conditions, limits, errors, deleting a namespace, bad addresses.
#[test]
fn a_remote_device_is_a_device() {
    let world = World::new();
    let nsid = world.namespace("a");
    let remote = remote(&world);
    let mut batch = Batch::new();
    let sizes = [0usize, 1, 4096, 4097, 100_000];
    for size in sizes {
        batch.put(nsid, size as u64, &vec![size as u8; size]);
    }
    remote.write(&batch).unwrap();
    let keys: Vec<_> = sizes.iter().map(|size| kaml::Key::from(*size as u64)).chain([key(b"none")]).collect();
    let mut found = vec![None; keys.len()];
    remote.reader().get_many(nsid, &keys, &mut |place, value| found[place] = Some(value.unwrap()));
    for (place, value) in found.into_iter().enumerate() {
        let expected = sizes.get(place).map(|size| vec![*size as u8; *size]);
        assert!(value.unwrap() == expected, "place {place}");
    }
    let mut batch = Batch::new();
    batch.put_if_absent(nsid, 1, b"x");
    let conflict = remote.write(&batch).unwrap_err();
    assert!(matches!(conflict.command(), Some(kaml_device::Error::Conflict { present: true, .. })), "{conflict}");
    assert_eq!(remote.limits().value_bytes_max, world.device.info().value_bytes_max);
    assert!(remote.exists(nsid, 1.into()).unwrap());
    remote.delete_namespace(nsid).unwrap();
    assert!(matches!(
        remote.exists(nsid, 1.into()).unwrap_err().command(),
        Some(kaml_device::Error::UnknownNamespace(_))
    ));
    for bad in ["tcp://x/nqn.x", "nvme+tcp://x", "nvme+tcp://x:1/subsystem"] {
        assert!(bad.parse::<RemoteUrl>().is_err(), "{bad}");
    }
}
