//! Everything at once on one device: what the driver's threads do to each other, which the laboratory has none of.
//!
//! `KAML_STRESS_SECONDS` sets how long it runs, else a few seconds.

use kaml::{
    At, Batch, BlockOptions, Condition, CreateOptions, Device, Error, Key, KeyKind, NamespaceChange, NamespaceId,
    NamespaceOptions, OpenOptions, Retention, VersionOptions,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 3;
/// Keys of each thread in each namespace.
const KEYS: u64 = 400;
const BLOCKS: u64 = 2048;
const BLOCK_BYTES: usize = 4096;
/// Rounds, each on a device that is opened again.
const ROUNDS: u64 = 3;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Most values are small, few are as long as take the way of large ones.
    fn value(&mut self) -> Content {
        let len = match self.below(100) {
            0..=69 => self.below(1500),
            70..=96 => self.below(12_000),
            _ => self.below(150_000),
        };
        Content { seed: self.next(), len: len as usize }
    }
}

/// A value that can be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Content {
    seed: u64,
    len: usize,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.seed.to_le_bytes().into_iter().cycle().take(self.len).collect();
        for (i, word) in (0u64..).zip(bytes.chunks_exact_mut(64)) {
            word[8..16].copy_from_slice(&i.to_le_bytes());
        }
        bytes
    }
}

#[derive(Clone, Copy)]
struct Spaces {
    numbers: NamespaceId,
    text: NamespaceId,
    kept: NamespaceId,
    disk: NamespaceId,
}

impl Spaces {
    fn create(device: &Device) -> Spaces {
        let records = |keys| NamespaceOptions { keys, ..NamespaceOptions::default() };
        let blocks = BlockOptions { block_count: BLOCKS, ..BlockOptions::default() };
        let create = |name: &str, options| device.create_namespace(name, &options).unwrap();
        Spaces {
            numbers: create("numbers", records(KeyKind::U64)),
            text: create("text", records(KeyKind::Bytes)),
            kept: create(
                "kept",
                NamespaceOptions { versions: Some(VersionOptions::default()), ..records(KeyKind::U64) },
            ),
            disk: create("disk", NamespaceOptions { blocks: Some(blocks), ..NamespaceOptions::default() }),
        }
    }

    fn records(&self) -> [NamespaceId; 2] {
        [self.numbers, self.text]
    }
}

type Address = (NamespaceId, Key);

/// The records of one thread as they must be.
struct Owner {
    thread: u64,
    rng: Rng,
    spaces: Spaces,
    model: HashMap<Address, Content>,
    kept: HashMap<Key, Content>,
}

impl Owner {
    fn new(thread: u64, spaces: Spaces) -> Owner {
        let rng = Rng(thread * 7919 + 12345);
        Owner { thread, rng, spaces, model: HashMap::new(), kept: HashMap::new() }
    }

    fn key(&self, space: NamespaceId, number: u64) -> Key {
        match space == self.spaces.text {
            true => Key::new(format!("{}/{number:x}", self.thread).as_bytes()).unwrap(),
            false => Key::from(self.thread << 32 | number),
        }
    }

    fn any(&mut self) -> Address {
        let space = self.spaces.records()[self.rng.below(2) as usize];
        let number = self.rng.below(KEYS);
        (space, self.key(space, number))
    }

    fn owns(&self, space: NamespaceId, key: &Key) -> bool {
        match space == self.spaces.text {
            true => key.as_bytes().starts_with(format!("{}/", self.thread).as_bytes()),
            false => key.as_u64().is_some_and(|key| key >> 32 == self.thread),
        }
    }

    /// Sync commands, each checked against the model.
    fn step(&mut self, device: &Device) {
        let (space, key) = self.any();
        let known = self.model.get(&(space, key)).copied();
        match self.rng.below(100) {
            0..=29 => {
                let value = self.rng.value();
                device.put(space, key, &value.bytes()).unwrap();
                self.model.insert((space, key), value);
            }
            30..=39 => self.write_batch(device),
            40..=44 => {
                let value = self.rng.value();
                let absent = self.rng.below(2) == 0;
                let condition = if absent { Condition::IfAbsent } else { Condition::IfPresent };
                let stored = device.put_if(space, key, &value.bytes(), condition);
                assert_eq!(stored.is_ok(), known.is_some() != absent, "{space} {key}: {stored:?}");
                if stored.is_ok() {
                    self.model.insert((space, key), value);
                }
            }
            45..=54 => {
                device.delete(space, key).unwrap();
                self.model.remove(&(space, key));
            }
            55..=59 => assert_eq!(device.exists(space, key).unwrap(), known.is_some(), "{space} {key}"),
            60 => self.list(device, space),
            61..=66 => self.keep(device),
            _ => compare(&device.get(space, key).unwrap(), known, (space, key)),
        }
    }

    fn write_batch(&mut self, device: &Device) {
        let mut batch = Batch::new();
        for _ in 0..=self.rng.below(8) {
            let (space, key) = self.any();
            let value = self.rng.value();
            if self.rng.below(4) == 0 {
                batch.delete(space, key);
                self.model.remove(&(space, key));
            } else {
                batch.put(space, key, &value.bytes());
                self.model.insert((space, key), value);
            }
        }
        match self.rng.below(2) {
            0 => device.write(&batch).unwrap(),
            _ => device.submit(&batch).unwrap().wait().unwrap(),
        }
    }

    fn list(&self, device: &Device, space: NamespaceId) {
        let (mut own, mut after) = (0, None);
        loop {
            let page = device.list(space, after, 100).unwrap();
            for key in page.keys.iter().filter(|key| self.owns(space, key)) {
                assert!(self.model.contains_key(&(space, *key)), "{space} {key} is listed");
                own += 1;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(own, self.model.keys().filter(|(of, _)| *of == space).count(), "each key once");
    }

    /// A versioned record: read, changed, looked back at.
    fn keep(&mut self, device: &Device) {
        let (space, number) = (self.spaces.kept, self.rng.below(KEYS / 8));
        let key = self.key(space, number);
        let known = self.kept.get(&key).copied();
        compare(&device.get(space, key).unwrap(), known, (space, key));
        let value = Content { len: self.rng.below(1000) as usize, ..self.rng.value() };
        device.put(space, key, &value.bytes()).unwrap();
        self.kept.insert(key, value);
        let newest = device.get_version(space, key, At::Back(0)).unwrap().map(|record| record.value);
        compare(&newest, Some(value), (space, key));
    }

    fn compare_all(&self, device: &Device) {
        for space in self.spaces.records() {
            for key in (0..KEYS).map(|number| self.key(space, number)) {
                compare(&device.get(space, key).unwrap(), self.model.get(&(space, key)).copied(), (space, key));
            }
            self.list(device, space);
        }
        for (key, known) in &self.kept {
            compare(&device.get(self.spaces.kept, *key).unwrap(), Some(*known), (self.spaces.kept, *key));
        }
    }

    /// The same through a queue: many commands in flight, at most one for each key.
    fn queue_steps(&mut self, device: &Device, stop: &AtomicBool) {
        let mut queue = device.queue(32);
        let mut in_flight: HashMap<u64, (Address, Option<Option<Content>>)> = HashMap::new();
        let (mut token, mut answers) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) || !in_flight.is_empty() {
            while in_flight.len() < 32 && !stop.load(Ordering::Relaxed) {
                let at = self.any();
                if in_flight.values().any(|(other, _)| *other == at) {
                    break;
                }
                token += 1;
                let change = match self.rng.below(10) {
                    0..=4 => Some(Some(self.rng.value())),
                    5 => Some(None),
                    _ => None,
                };
                match change {
                    Some(Some(value)) => queue.put(token, at.0, at.1, &value.bytes()).unwrap(),
                    Some(None) => queue.delete(token, at.0, at.1).unwrap(),
                    None => queue.get(token, at.0, at.1).unwrap(),
                }
                in_flight.insert(token, (at, change));
            }
            queue.poll(!in_flight.is_empty(), &mut answers);
            for answer in answers.drain(..) {
                let (at, change) = in_flight.remove(&answer.token).expect("answered once");
                let found = answer.result.unwrap();
                match change {
                    None => compare(&found.map(|bytes| bytes.into_vec()), self.model.get(&at).copied(), at),
                    Some(Some(value)) => _ = self.model.insert(at, value),
                    Some(None) => _ = self.model.remove(&at),
                }
            }
        }
    }
}

fn compare(found: &Option<Vec<u8>>, known: Option<Content>, at: Address) {
    let is_right = match (found, known) {
        (Some(found), Some(known)) => *found == known.bytes(),
        (None, None) => true,
        _ => false,
    };
    assert!(is_right, "{at:?}: {:?} bytes found, {known:?} stored", found.as_ref().map(Vec::len));
}

/// Blocks of the disk as they must be: the stamp in each, or zeroes.
struct Disk {
    rng: Rng,
    stamps: Vec<u64>,
}

impl Disk {
    fn step(&mut self, device: &Device, disk: NamespaceId) {
        let (first, count) = (self.rng.below(BLOCKS - 64) as usize, 1 + self.rng.below(48) as usize);
        match self.rng.below(10) {
            0..=3 => {
                let stamp = self.rng.next() | 1;
                self.stamps[first..first + count].fill(stamp);
                let data: Vec<u8> = stamp.to_le_bytes().into_iter().cycle().take(count * BLOCK_BYTES).collect();
                device.block_write(disk, first as u64, &data).unwrap();
            }
            4 => {
                self.stamps[first..first + count].fill(0);
                device.block_trim(disk, first as u64, count as u64).unwrap();
            }
            _ => self.compare(device, disk, first, count),
        }
    }

    fn compare(&self, device: &Device, disk: NamespaceId, first: usize, count: usize) {
        let mut data = vec![1; count * BLOCK_BYTES];
        device.block_read(disk, first as u64, &mut data).unwrap();
        for (block, stamp) in data.chunks(BLOCK_BYTES).zip(&self.stamps[first..]) {
            assert!(block.chunks(8).all(|word| word == stamp.to_le_bytes()), "blocks from {first} on");
        }
    }
}

/// What an operator might do meanwhile.
fn disturb(device: &Device, spaces: Spaces, rng: &mut Rng) {
    let any = [spaces.numbers, spaces.text, spaces.kept, spaces.disk][rng.below(4) as usize];
    match rng.below(12) {
        0..=4 => drop(device.unload_namespace(any).unwrap()),
        5 => device.settle().unwrap(),
        6 => {
            let logs = vec![0; rng.below(2) as usize];
            device.set_namespace(any, &NamespaceChange { logs: Some(logs), ..NamespaceChange::default() }).unwrap();
        }
        7 => {
            let options = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
            let scratch = device.create_namespace("scratch", &options).unwrap();
            (0..50u64).for_each(|key| device.put(scratch, key, &[7; 3000]).unwrap());
            device.delete_namespace(scratch).unwrap();
            assert!(matches!(device.get(scratch, 1u64), Err(Error::Command(kaml_device::Error::UnknownNamespace(_)))));
        }
        8 => {
            let keep = Retention { keep_snapshots: false, keep_internal: false, ..Retention::default() };
            device.merge(spaces.kept, &keep, &mut |_, _| {}).unwrap();
        }
        9 => drop(device.snapshot(spaces.kept).unwrap()),
        10 => drop(device.stats()),
        _ => assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new()),
    }
}

/// Goal:   whatever threads do at the same time, each sees exactly what it stored, at once, later, and after opening again.
/// Method: threads with commands of every kind and an event loop, each on keys of its own in shared namespaces, compare every
///         answer with a model; one writes and trims blocks; meanwhile indexes leave memory, logs change, namespaces come and
///         go, versions are merged, and everything is checked; on a file so small that collection never rests.
#[test]
fn everything_at_once() {
    let seconds = std::env::var("KAML_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4.5);
    let round = Duration::from_secs_f64(seconds) / ROUNDS as u32;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let mut device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let spaces = Spaces::create(&device);
    let mut owners: Vec<Owner> = (0..=THREADS).map(|thread| Owner::new(thread, spaces)).collect();
    let mut disk = Disk { rng: Rng(99), stamps: vec![0; BLOCKS as usize] };
    let (steps, disturbed) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut moved = 0;
    for number in 0..ROUNDS {
        let (stop, begin) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let (device, stop, steps, disturbed) = (&device, &stop, &steps, &disturbed);
            let (queued, others) = owners.split_first_mut().expect("one more than there are threads");
            scope.spawn(move || Stop(stop).during(|| queued.queue_steps(device, stop)));
            for owner in others {
                scope.spawn(move || {
                    Stop(stop).during(|| {
                        while !stop.load(Ordering::Relaxed) {
                            owner.step(device);
                            steps.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                });
            }
            let disk = &mut disk;
            scope.spawn(move || {
                Stop(stop).during(|| {
                    while !stop.load(Ordering::Relaxed) {
                        disk.step(device, spaces.disk);
                    }
                })
            });
            let mut rng = Rng(number + 777);
            Stop(stop).during(|| {
                while begin.elapsed() < round && !stop.load(Ordering::Relaxed) {
                    disturb(device, spaces, &mut rng);
                    disturbed.fetch_add(1, Ordering::Relaxed);
                }
            });
            stop.store(true, Ordering::Relaxed);
        });
        owners.iter().for_each(|owner| owner.compare_all(&device));
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
        moved += device.stats().relocated_bytes;
        device.close().unwrap();
        device = Device::open(&path, &OpenOptions::default()).unwrap();
        owners.iter().for_each(|owner| owner.compare_all(&device));
        (0..BLOCKS as usize).step_by(64).for_each(|first| disk.compare(&device, spaces.disk, first, 64));
    }
    let (steps, disturbed) = (steps.into_inner(), disturbed.into_inner());
    println!("{steps} steps, {disturbed} disturbances, {moved} bytes moved by collection");
    assert!(steps > 100 && disturbed > 5, "{steps} steps, {disturbed} disturbances");
}

/// Who panics takes the others along, so that the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Stop<'_> {
    fn during(self, work: impl FnOnce()) {
        work();
        std::mem::forget(self);
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
