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
    Tiny,
    Large,
    Blocks,
    Versions,
}

const KINDS: [Kind; 6] = [Kind::Numbers, Kind::Bytes, Kind::Tiny, Kind::Large, Kind::Blocks, Kind::Versions];

impl Kind {
    fn options(self) -> NamespaceOptions {
        match self {
            Kind::Numbers | Kind::Tiny | Kind::Large => NamespaceOptions::records(KeyKind::U64),
            Kind::Bytes => NamespaceOptions::records(KeyKind::Bytes),
            Kind::Blocks => BlockOptions::new(BLOCK_BYTES as u32, CAPACITY_BYTES / BLOCK_BYTES as u64).into(),
            Kind::Versions => VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() }.into(),
        }
    }

    fn value_bytes(self) -> usize {
        match self {
            Kind::Numbers | Kind::Bytes | Kind::Versions => 1000,
            Kind::Tiny => 5,
            Kind::Large => LARGE_BYTES,
            Kind::Blocks => BLOCK_BYTES,
        }
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

    fn key(self, number: u64) -> Key {
        match self.kind {
            Kind::Bytes => Key::new(&[&number.to_be_bytes()[..], b"byte key"].concat()).unwrap(),
            _ => Key::from(number),
        }
    }

    fn put(self, device: &Device, number: u64, value: &[u8]) -> Result<(), Error> {
        match self.kind {
            Kind::Blocks => device.block_write(self.id, number, value),
            _ => device.put(self.id, self.key(number), value),
        }
    }

    /// The value; none of a block that reads as zeroes.
    fn get(self, device: &Device, number: u64) -> Option<Vec<u8>> {
        if self.kind != Kind::Blocks {
            return device.get(self.id, self.key(number)).unwrap();
        }
        let mut found = vec![0; BLOCK_BYTES];
        device.block_read(self.id, number, &mut found).unwrap();
        found.iter().any(|byte| *byte != 0).then_some(found)
    }

    /// Deletes. A namespace of versions that has no room for the delete is merged first, as its refusal advises.
    fn delete(self, device: &Device, number: u64) {
        let delete = || match self.kind {
            Kind::Blocks => device.block_trim(self.id, number, 1),
            _ => device.delete(self.id, self.key(number)),
        };
        match delete() {
            Err(error) if self.kind == Kind::Versions && error.is_full() => {
                self.merge(device);
                delete().unwrap_or_else(|error| panic!("{number} after a merge: {error}"));
            }
            answer => answer.unwrap_or_else(|error| panic!("{:?}, {number}: {error}", self.kind)),
        }
    }

    fn merge(self, device: &Device) {
        if self.kind == Kind::Versions {
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

/// Goal:   full, all deleted, full again: a device takes within 2 % of what it took when new, of every kind, whatever kind it was full of.
///         Where versions were deleted one by one and merged, a page buffer and the last segments of the namespace remain, up to 5 % here.
/// Method: all kinds in turn on one device, compared with a new device of each kind; both have all six namespaces. Round after round with
///         records deleted one by one, then once more after the namespace of versions was deleted and made again.
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
    let (device, mut spaces) = device_with_all();
    for (round, percent_min) in [98, 93, 93, 98].into_iter().enumerate() {
        for (space, new) in spaces.into_iter().zip(&new) {
            let count = fill(&device, space);
            println!("round {round}, {:?}: {count}, {new} on a new device", space.kind);
            assert!(count * 100 >= new * percent_min, "round {round}, {:?}: {count} of {new}", space.kind);
            delete_all(&device, space, count);
        }
        if round == 2 {
            let last = KINDS.len() - 1;
            device.delete_namespace(spaces[last].id).unwrap();
            spaces[last] = Space::create(&device, KINDS[last]);
        }
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   a device that is kept full while records of all kinds come and go loses nothing, refuses no delete, and takes what it took
///         first after everything is deleted.
/// Method: puts at random numbers of all namespaces; a refused one is followed by deletes, and from time to time by a merge, by deleting
///         all of a namespace, or by deleting the namespace itself. A model states what each number holds. KAML_CHURN_SECONDS is how long.
#[test]
fn full_devices_of_all_kinds_churn() {
    let seconds = std::env::var("KAML_CHURN_SECONDS").map_or(4, |seconds| seconds.parse().expect("seconds"));
    let device = Device::in_memory(&CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let mut spaces = KINDS.map(|kind| Space::create(&device, kind));
    let probe = fill(&device, spaces[0]);
    delete_all(&device, spaces[0], probe);
    let mut models: [BTreeMap<u64, u64>; KINDS.len()] = std::array::from_fn(|_| BTreeMap::new());
    let mut random = Rng::new(std::env::var("KAML_CHURN_SEED").map_or(11, |seed| seed.parse().expect("a seed")));
    let (mut turn, mut refused, mut deleted) = (0u64, 0u64, 0u64);
    let (begin, mut resident) = (Instant::now(), Vec::new());
    while begin.elapsed() < Duration::from_secs(seconds) {
        turn += 1;
        let at = random.below(KINDS.len() as u64) as usize;
        let (space, numbers) = (spaces[at], if KINDS[at] == Kind::Large { 400 } else { 12_000 });
        let number = random.below(numbers);
        match space.put(&device, number, &value(number, turn, space.kind.value_bytes())) {
            Ok(()) => drop(models[at].insert(number, turn)),
            Err(error) if error.is_full() => {
                refused += 1;
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
                    2..8 => spaces[5].merge(&device),
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
    device.delete_namespace(spaces[KINDS.len() - 1].id).unwrap();
    spaces[KINDS.len() - 1] = Space::create(&device, Kind::Versions);
    device.settle().unwrap();
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
