//! What threads do to a device at the same time, each knowing what must come of it.
//!
//! Lives here:       commands of every kind on records, versions and blocks, one at a time and in flight, compared with models;
//!                   what an operator does meanwhile.
//! Lives elsewhere:  the threads and the device below (`main`, `lab`).

use kaml::{
    At, Batch, BlockOptions, Condition, Device, Error, Key, KeyKind, NamespaceChange, NamespaceId, NamespaceOptions,
    Retention, VersionOptions,
};
use std::collections::HashMap;

/// How much there is of everything.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Keys of each thread in each namespace.
    pub(crate) keys: u64,
    /// Longest value that goes the way of small ones, and of large ones.
    pub(crate) len_max: u64,
    pub(crate) large_len_max: u64,
    /// Blocks of the disk, and those of one command.
    pub(crate) blocks: u64,
    pub(crate) blocks_at_once: u64,
    pub(crate) in_flight: usize,
}

const BLOCK_BYTES: usize = 4096;

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Most values are small, few are as long as take the way of large ones.
    fn value(&mut self, scale: &Scale) -> Content {
        let len = match self.below(100) {
            0..=69 => self.below(scale.len_max / 8),
            70..=96 => self.below(scale.len_max),
            _ => self.below(scale.large_len_max),
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
pub(crate) struct Spaces {
    numbers: NamespaceId,
    text: NamespaceId,
    kept: NamespaceId,
    pub(crate) disk: NamespaceId,
}

impl Spaces {
    pub(crate) fn create(device: &Device, scale: &Scale) -> Spaces {
        let records = |keys| NamespaceOptions { keys, ..NamespaceOptions::default() };
        let blocks = BlockOptions { block_count: scale.blocks, ..BlockOptions::default() };
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
pub(crate) struct Owner {
    thread: u64,
    rng: Rng,
    spaces: Spaces,
    scale: Scale,
    model: HashMap<Address, Content>,
    kept: HashMap<Key, Content>,
}

impl Owner {
    pub(crate) fn new(thread: u64, rng: Rng, spaces: Spaces, scale: Scale) -> Owner {
        Owner { thread, rng, spaces, scale, model: HashMap::new(), kept: HashMap::new() }
    }

    fn key(&self, space: NamespaceId, number: u64) -> Key {
        match space == self.spaces.text {
            true => Key::new(format!("{}/{number:x}", self.thread).as_bytes()).unwrap(),
            false => Key::from(self.thread << 32 | number),
        }
    }

    fn any(&mut self) -> Address {
        let space = self.spaces.records()[self.rng.below(2) as usize];
        let number = self.rng.below(self.scale.keys);
        (space, self.key(space, number))
    }

    fn owns(&self, space: NamespaceId, key: &Key) -> bool {
        match space == self.spaces.text {
            true => key.as_bytes().starts_with(format!("{}/", self.thread).as_bytes()),
            false => key.as_u64().is_some_and(|key| key >> 32 == self.thread),
        }
    }

    /// Sync commands, each checked against the model.
    pub(crate) fn step(&mut self, device: &Device) {
        let (space, key) = self.any();
        let known = self.model.get(&(space, key)).copied();
        match self.rng.below(100) {
            0..=29 => {
                let value = self.rng.value(&self.scale);
                device.put(space, key, &value.bytes()).unwrap();
                self.model.insert((space, key), value);
            }
            30..=39 => self.write_batch(device),
            40..=44 => {
                let value = self.rng.value(&self.scale);
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
            let value = self.rng.value(&self.scale);
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
        let (space, number) = (self.spaces.kept, self.rng.below(self.scale.keys.div_ceil(8)));
        let key = self.key(space, number);
        let known = self.kept.get(&key).copied();
        compare(&device.get(space, key).unwrap(), known, (space, key));
        let value = Content { len: self.rng.below(1000) as usize, ..self.rng.value(&self.scale) };
        device.put(space, key, &value.bytes()).unwrap();
        self.kept.insert(key, value);
        let newest = device.get_version(space, key, At::Back(0)).unwrap().map(|record| record.value);
        compare(&newest, Some(value), (space, key));
    }

    pub(crate) fn compare_all(&self, device: &Device) {
        for space in self.spaces.records() {
            for key in (0..self.scale.keys).map(|number| self.key(space, number)) {
                compare(&device.get(space, key).unwrap(), self.model.get(&(space, key)).copied(), (space, key));
            }
            self.list(device, space);
        }
        for (key, known) in &self.kept {
            compare(&device.get(self.spaces.kept, *key).unwrap(), Some(*known), (self.spaces.kept, *key));
        }
    }

    /// The same through a queue: many commands in flight, at most one for each key.
    pub(crate) fn queue_steps(&mut self, device: &Device, is_over: impl Fn() -> bool) {
        let depth = self.scale.in_flight;
        let mut queue = device.queue(depth as u32);
        let mut in_flight: HashMap<u64, (Address, Option<Option<Content>>)> = HashMap::new();
        let (mut token, mut answers) = (0, Vec::new());
        while !is_over() || !in_flight.is_empty() {
            while in_flight.len() < depth && !is_over() {
                let at = self.any();
                if in_flight.values().any(|(other, _)| *other == at) {
                    break;
                }
                token += 1;
                let change = match self.rng.below(10) {
                    0..=4 => Some(Some(self.rng.value(&self.scale))),
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
pub(crate) struct Disk {
    rng: Rng,
    stamps: Vec<u64>,
    at_once: u64,
}

impl Disk {
    pub(crate) fn new(rng: Rng, scale: &Scale) -> Disk {
        Disk { rng, stamps: vec![0; scale.blocks as usize], at_once: scale.blocks_at_once }
    }

    pub(crate) fn step(&mut self, device: &Device, disk: NamespaceId) {
        let count = 1 + self.rng.below(self.at_once) as usize;
        let first = self.rng.below((self.stamps.len() - count) as u64) as usize;
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

    pub(crate) fn compare_all(&self, device: &Device, disk: NamespaceId) {
        for first in (0..self.stamps.len()).step_by(64) {
            self.compare(device, disk, first, 64.min(self.stamps.len() - first));
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
pub(crate) fn disturb(device: &Device, spaces: Spaces, rng: &mut Rng) {
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
