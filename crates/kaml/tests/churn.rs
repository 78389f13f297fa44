//! Space returns, whatever held it: records of both kinds of keys, large values, blocks, versions.

use kaml::{BlockOptions, CreateOptions, Device, Error, Key, KeyKind, NamespaceId, NamespaceOptions};
use kaml::{Retention, VersionOptions, to_the_end};
use kaml_testkit::Rng;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const CAPACITY_BYTES: u64 = 64 << 20;
const LARGE_BYTES: usize = 100_000;
const BLOCK_BYTES: usize = 4096;
const NEWEST: Retention = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: false, keep_internal: false };

/// What a namespace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Numbers,
    Bytes,
    Any,
    Ordered,
    Tiny,
    Large,
    Blocks,
    Versions,
    /// Versions longer than a segment.
    LargeVersions,
}

const KINDS: [Kind; 9] = [
    Kind::Numbers,
    Kind::Bytes,
    Kind::Any,
    Kind::Ordered,
    Kind::Tiny,
    Kind::Large,
    Kind::Blocks,
    Kind::Versions,
    Kind::LargeVersions,
];

impl Kind {
    fn options(self) -> NamespaceOptions {
        match self {
            Kind::Numbers | Kind::Tiny | Kind::Large => NamespaceOptions::records(KeyKind::U64),
            Kind::Bytes => NamespaceOptions::records(KeyKind::Bytes),
            Kind::Any => NamespaceOptions::records(KeyKind::Any),
            Kind::Ordered => NamespaceOptions::records(KeyKind::Ordered),
            Kind::Blocks => BlockOptions::new(BLOCK_BYTES as u32, CAPACITY_BYTES / BLOCK_BYTES as u64).into(),
            Kind::Versions => VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() }.into(),
            Kind::LargeVersions => VersionOptions { buffer_bytes: 256 << 10, ..VersionOptions::default() }.into(),
        }
    }

    fn value_bytes(self) -> usize {
        match self {
            Kind::Numbers | Kind::Bytes | Kind::Any | Kind::Ordered | Kind::Versions => 1000,
            Kind::Tiny => 5,
            Kind::Large | Kind::LargeVersions => LARGE_BYTES,
            Kind::Blocks => BLOCK_BYTES,
        }
    }

    fn keeps_versions(self) -> bool {
        matches!(self, Kind::Versions | Kind::LargeVersions)
    }
}

/// A namespace of some kind.
#[derive(Clone, Copy, Debug)]
struct Space {
    kind: Kind,
    id: NamespaceId,
}

impl Space {
    fn create(device: &Device, kind: Kind) -> Space {
        Space { kind, id: device.create_namespace(&format!("{kind:?}"), &kind.options()).unwrap() }
    }

    /// Keys of any length have 9 to 49 bytes.
    fn key(self, number: u64) -> Vec<u8> {
        let bytes = number.to_be_bytes();
        match self.kind {
            Kind::Bytes => [&bytes[..], b"byte key"].concat(),
            Kind::Any | Kind::Ordered => [&vec![b'k'; 1 + number as usize % 5 * 10], &bytes[..]].concat(),
            _ => Key::from(number).as_bytes().to_vec(),
        }
    }

    fn put(self, device: &Device, number: u64, value: &[u8]) -> Result<(), Error> {
        match self.kind {
            Kind::Blocks => device.block_write(self.id, number, value),
            _ => device.put(self.id, &self.key(number)[..], value),
        }
    }

    /// The value; none of a block that reads as zeroes.
    fn get(self, device: &Device, number: u64) -> Option<Vec<u8>> {
        if self.kind != Kind::Blocks {
            return device.get(self.id, &self.key(number)[..]).unwrap();
        }
        let mut found = vec![0; BLOCK_BYTES];
        device.block_read(self.id, number, &mut found).unwrap();
        found.iter().any(|byte| *byte != 0).then_some(found)
    }

    /// Deletes. A namespace of versions that has no room for the delete is merged first, as its refusal advises.
    fn delete(self, device: &Device, number: u64) {
        let delete = || match self.kind {
            Kind::Blocks => device.block_trim(self.id, number, 1),
            _ => device.delete(self.id, &self.key(number)[..]),
        };
        match delete() {
            Err(error) if self.kind.keeps_versions() && error.is_full() => {
                self.merge(device);
                delete().unwrap_or_else(|error| panic!("{number} after a merge: {error}"));
            }
            answer => answer.unwrap_or_else(|error| panic!("{:?}, {number}: {error}", self.kind)),
        }
    }

    fn merge(self, device: &Device) {
        if self.kind.keeps_versions() {
            device.merge(self.id, &NEWEST, &mut to_the_end).unwrap();
        }
    }
}

/// A value that its number and turn determine.
fn value(number: u64, turn: u64, bytes: usize) -> Vec<u8> {
    let word = (number ^ turn.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
    word.to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

/// Puts records until the device is full; how many.
fn fill(device: &Device, space: Space) -> u64 {
    let mut count = 0;
    loop {
        match space.put(device, count, &value(count, 0, space.kind.value_bytes())) {
            Ok(()) => count += 1,
            Err(error) if error.is_full() => return count,
            Err(other) => panic!("{:?}, {count}: {other}", space.kind),
        }
    }
}

fn delete_all(device: &Device, space: Space, count: u64) {
    (0..count).for_each(|number| space.delete(device, number));
    space.merge(device);
    device.settle().unwrap();
}

/// Goal:   full, all deleted, full again: a device takes within 3 % of what it took when new, of every kind, whatever kind it was full of.
/// Method: all kinds in turn on one device, compared with a new device of each kind; both have all namespaces. Round after round with
///         records deleted one by one.
#[test]
fn an_emptied_device_takes_what_a_new_one_takes() {
    let device_with_all = || {
        let device = Device::in_memory(&CreateOptions::new(CAPACITY_BYTES)).unwrap();
        let spaces = KINDS.map(|kind| Space::create(&device, kind));
        (device, spaces)
    };
    let new: Vec<u64> = (0..KINDS.len())
        .map(|kind| {
            let (device, spaces) = device_with_all();
            fill(&device, spaces[kind])
        })
        .collect();
    let (device, spaces) = device_with_all();
    for round in 0..3 {
        for (space, new) in spaces.into_iter().zip(&new) {
            let count = fill(&device, space);
            println!("round {round}, {:?}: {count}, {new} on a new device", space.kind);
            assert!(count * 100 >= new * 97, "round {round}, {:?}: {count} of {new}", space.kind);
            delete_all(&device, space, count);
        }
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   a device that is kept full while records of all kinds come and go loses nothing, refuses no delete and no put that fits, and takes what it took
///         first after everything is deleted; the memory of its indexes returns, too.
/// Method: puts at random numbers of all namespaces; a refused one is followed by deletes, and from time to time by a merge, by deleting
///         all of a namespace, or by deleting the namespace itself. A model states what each number holds. KAML_CHURN_SECONDS is how long;
///         600 seconds are the long run.
#[test]
fn full_devices_of_all_kinds_churn() {
    let seconds = std::env::var("KAML_CHURN_SECONDS").map_or(4, |seconds| seconds.parse().expect("seconds"));
    let device = Device::in_memory(&CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let mut spaces = KINDS.map(|kind| Space::create(&device, kind));
    let new = device.stats();
    let probe = fill(&device, spaces[0]);
    delete_all(&device, spaces[0], probe);
    let mut models: [BTreeMap<u64, u64>; KINDS.len()] = std::array::from_fn(|_| BTreeMap::new());
    let mut random = Rng::new(std::env::var("KAML_CHURN_SEED").map_or(11, |seed| seed.parse().expect("a seed")));
    let (mut turn, mut refused, mut deleted) = (0u64, 0u64, 0u64);
    let mut least = u64::MAX;
    let (begin, mut resident) = (Instant::now(), Vec::new());
    while begin.elapsed() < Duration::from_secs(seconds) {
        turn += 1;
        let at = random.below(KINDS.len() as u64) as usize;
        let is_large = KINDS[at].value_bytes() == LARGE_BYTES;
        let (space, numbers) = (spaces[at], if is_large { 400 } else { 12_000 });
        let number = random.below(numbers);
        match space.put(&device, number, &value(number, turn, space.kind.value_bytes())) {
            Ok(()) => drop(models[at].insert(number, turn)),
            Err(error) if error.is_full() => {
                refused += 1;
                let Error::Full { live_bytes, capacity_bytes } = error else { panic!("{error}") };
                least = least.min((live_bytes + space.kind.value_bytes() as u64) * 1000 / capacity_bytes);
                // About 5 % become free.
                for _ in 0..200 {
                    let at = random.below(KINDS.len() as u64) as usize;
                    let from = random.below(12_000);
                    let Some((&number, _)) = models[at].range(from..).next() else { continue };
                    spaces[at].delete(&device, number);
                    models[at].remove(&number);
                    deleted += 1;
                }
                let at = random.below(KINDS.len() as u64) as usize;
                match random.below(16) {
                    0 => {
                        let numbers: Vec<u64> = std::mem::take(&mut models[at]).into_keys().collect();
                        numbers.into_iter().for_each(|number| spaces[at].delete(&device, number));
                    }
                    1 => {
                        device.delete_namespace(spaces[at].id).unwrap();
                        models[at].clear();
                        spaces[at] = Space::create(&device, KINDS[at]);
                    }
                    2..8 => spaces.iter().for_each(|space| space.merge(&device)),
                    _ => {}
                }
                if refused % 1000 == 1 {
                    resident.push(resident_mib());
                }
            }
            Err(other) => panic!("turn {turn}, {space:?}: {other}"),
        }
        if turn % 16 == 0 {
            let at = random.below(KINDS.len() as u64) as usize;
            let number = random.below(12_000);
            check(&device, spaces[at], number, models[at].get(&number));
        }
    }
    println!("{turn} turns, {refused} puts refused, {deleted} records deleted, MiB resident: {resident:?}");
    for (space, model) in spaces.iter().zip(&models) {
        model.iter().for_each(|(number, turn)| check(&device, *space, *number, Some(turn)));
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    for (space, model) in spaces.iter().zip(&models) {
        model.keys().for_each(|number| space.delete(&device, *number));
    }
    // The first one keeps what is newer than versions of its row in the page buffer, which it drops.
    (0..2).for_each(|_| spaces.iter().for_each(|space| space.merge(&device)));
    device.settle().unwrap();
    let stats = device.stats();
    println!(
        "emptied: {} bytes live, {} of indexes, {} when new; refused at {least} thousandths of the capacity or more",
        stats.live_bytes, stats.index_bytes, new.index_bytes
    );
    assert!(least >= 950, "a put was refused at {least} thousandths of the capacity");
    assert_eq!(stats.live_bytes, 0, "everything is deleted");
    assert!(stats.index_bytes <= new.index_bytes + (1 << 20), "indexes of nothing: {} bytes", stats.index_bytes);
    // Long runs show whether memory grows; short ones share the process with the other test.
    if let [.., middle, _, _, _, _, last] = resident[..] {
        assert!(last <= middle + 16, "memory grows: {resident:?} MiB");
    }
    let again = fill(&device, spaces[0]);
    println!("{again} records on the emptied device, {probe} on the new one");
    assert!(again * 100 >= probe * 98, "{again} of {probe}");
}

fn check(device: &Device, space: Space, number: u64, turn: Option<&u64>) {
    let expected = turn.map(|turn| value(number, *turn, space.kind.value_bytes()));
    assert!(space.get(device, number) == expected, "{space:?}, {number}: not what was put in turn {turn:?}");
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}
