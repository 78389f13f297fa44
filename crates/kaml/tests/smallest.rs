//! The smallest devices: one that is created takes records, and one that would not is refused with the size that would.

use kaml::{Batch, CreateOptions, Device, Durability, Error, NamespaceOptions};

/// What a value of 1000 bytes takes, with its header and in whole chunks.
const RECORD_BYTES: u64 = 1088;

/// Creates a device; the smallest capacity with the same options if it is refused.
fn create(options: &CreateOptions) -> Result<Device, u64> {
    match Device::in_memory(options) {
        Ok(device) => Ok(device),
        Err(Error::NoRoom { capacity_bytes, smallest_bytes }) => {
            assert!(capacity_bytes == options.capacity_bytes && smallest_bytes > capacity_bytes);
            Err(smallest_bytes)
        }
        Err(other) => panic!("{options:?}: {other}"),
    }
}

/// Fills a device, empties it, and fills it again; records of the least of both.
fn fill_twice(device: &Device, what: &str) -> u64 {
    let space = device.create_namespace("records", &NamespaceOptions::default()).unwrap();
    let fill = || {
        let mut count = 0u64;
        while match device.put(space, count, &[7; 1000]) {
            Ok(()) => true,
            Err(error) if error.is_full() => false,
            Err(other) => panic!("{what}: record {count}: {other}"),
        } {
            count += 1;
        }
        count
    };
    let first = fill();
    for number in 0..first {
        device.write(Batch::new().delete(space, number)).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    let second = fill();
    // The index is hashed with a secret of each device, so its size differs by a tenth or so between two fills with the same number of keys. Capacity is
    // counted in whole erase blocks: one more of them can go to the images of the index. Where a block is a large share, that has a limit of its own.
    let block_records = device.info().block_bytes / RECORD_BYTES;
    let lost = first / 50 + block_records.min(first / 50);
    assert!(second + lost >= first, "{what}: {first} records, and then {second}");
    second
}

/// Goal:   a device is created only if it takes records, and does so again after it was emptied. The size that a refusal names is the
///         smallest one.
/// Method: the smallest capacities with blocks, rings and dies of many sizes, in memory: what is created is filled twice; at the size
///         named creation succeeds, and a MiB below it is refused.
#[test]
fn what_is_created_takes_records() {
    let (mut created, mut refused) = (0, 0);
    for capacity_mib in [32u64, 40, 64] {
        for block_bytes in
            [None, Some(32 << 10), Some(64 << 10), Some(256 << 10), Some(1 << 20), Some(2 << 20), Some(7 << 20)]
        {
            for ring_bytes in [None, Some(1 << 20), Some(16 << 20), Some(28 << 20)] {
                for die_count in [None, Some(4), Some(8)] {
                    let mut options = CreateOptions::new(capacity_mib << 20);
                    (options.block_bytes, options.ring_bytes, options.die_count) = (block_bytes, ring_bytes, die_count);
                    let what = format!("{options:?}");
                    match create(&options) {
                        Ok(device) => {
                            created += 1;
                            if created % 7 == 1 {
                                assert!(fill_twice(&device, &what) > 0, "{what}");
                            } else {
                                let space = device.create_namespace("records", &NamespaceOptions::default()).unwrap();
                                device.put(space, 1u64, b"one").unwrap_or_else(|error| panic!("{what}: {error}"));
                            }
                        }
                        Err(smallest_bytes) => {
                            refused += 1;
                            options.capacity_bytes = smallest_bytes - (1 << 20);
                            assert!(
                                options.capacity_bytes < 32 << 20 || create(&options).is_err(),
                                "{what}: less is enough"
                            );
                            options.capacity_bytes = smallest_bytes;
                            let device =
                                create(&options).unwrap_or_else(|size| panic!("{what}: {size}, not {smallest_bytes}"));
                            if refused % 7 == 1 {
                                assert!(fill_twice(&device, &what) > 0, "{what}");
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(created > 20 && refused > 20, "{created} created, {refused} refused");
}

/// Goal:   a refusal creates no file, and keeps what existed before, even where it may be overwritten.
/// Method: a shape without room, on a new path and over a file with `force`.
#[test]
fn a_refusal_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let mut options = CreateOptions::new(32 << 20);
    (options.block_bytes, options.durability, options.force) = (Some(3 << 20), Durability::Process, true);
    let refused = |path| match Device::create(path, &options) {
        Err(Error::NoRoom { smallest_bytes, .. }) => smallest_bytes,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it has no room"),
    };
    let smallest_bytes = refused(&path);
    assert!(!path.exists());
    std::fs::write(&path, "three years of photos").unwrap();
    assert_eq!(refused(&path), smallest_bytes);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three years of photos");
    options.capacity_bytes = smallest_bytes;
    let device = Device::create(&path, &options).unwrap();
    assert!(fill_twice(&device, "the smallest") > 0);
}
