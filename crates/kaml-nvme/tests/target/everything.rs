//! Everything at once over the network: hosts with many commands in flight that vanish and come back, each knowing what it must find.

use crate::world::World;
use kaml::{BlockOptions, CreateOptions, Device, Key, NamespaceId, NamespaceOptions, Retention, VersionOptions};
use kaml_nvme::host::{Blocks, Controller, Finished, KeyValue, Queue, Ticket, Wait};
use kaml_nvme::wire::status::Status;
use kaml_testkit::Rng;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const HOSTS: u64 = 4;
/// Keys of each host in each namespace, and blocks; neighbours share units.
const KEYS: u64 = 400;
const BLOCKS: u64 = 771;
const BLOCK_BYTES: usize = 512;
const BLOCKS_AT_ONCE: u64 = 24;
/// Commands of a host in flight on each of its queues.
const IN_FLIGHT: usize = 8;
/// Room for any value.
const ROOM: usize = 128 << 10;

#[derive(Clone, Copy)]
struct Spaces {
    records: NamespaceId,
    versions: NamespaceId,
    disk: NamespaceId,
}

/// A value that can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    seed: u64,
    len: usize,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        self.seed.to_le_bytes().into_iter().cycle().take(self.len).collect()
    }
}

type Address = (NamespaceId, Key);

#[derive(Clone, Debug)]
enum Wish {
    Store(Address, Content),
    Delete(Address),
    Retrieve(Address),
    Exist(Address),
    /// Blocks of the host's own, and what is written all over them.
    Write(Range<u64>, u64),
    Read(Range<u64>),
}

impl Wish {
    /// Whether both are about the same record or block.
    fn meets(&self, other: &Wish) -> bool {
        match (self, other) {
            (Wish::Write(a, _) | Wish::Read(a), Wish::Write(b, _) | Wish::Read(b)) => {
                a.start < b.end && b.start < a.end
            }
            _ => self.address().is_some() && self.address() == other.address(),
        }
    }

    fn address(&self) -> Option<&Address> {
        match self {
            Wish::Store(at, _) | Wish::Delete(at) | Wish::Retrieve(at) | Wish::Exist(at) => Some(at),
            Wish::Write(..) | Wish::Read(_) => None,
        }
    }
}

fn filled(stamp: u64, blocks: &Range<u64>) -> Vec<u8> {
    stamp.to_le_bytes().into_iter().cycle().take((blocks.end - blocks.start) as usize * BLOCK_BYTES).collect()
}

/// A host, over all its lives.
struct Owner {
    number: u64,
    rng: Rng,
    spaces: Spaces,
    model: HashMap<Address, Content>,
    stamps: Vec<u64>,
    /// Its commands before it vanished.
    open: Vec<Wish>,
    lives: u64,
}

/// Its connections, for a while.
struct Life<'a> {
    host: &'a Controller,
    in_flight: HashMap<(usize, usize), Wish>,
}

impl Life<'_> {
    fn queue(&self, number: usize) -> &Queue {
        &self.host.queues()[number]
    }
}

impl Owner {
    fn new(number: u64, spaces: Spaces) -> Owner {
        let (model, stamps) = (HashMap::new(), vec![0; BLOCKS as usize]);
        Owner { number, rng: Rng::new(number * 7919 + 12345), spaces, model, stamps, open: Vec::new(), lives: 0 }
    }

    fn any(&mut self) -> Address {
        let space = if self.rng.below(6) == 0 { self.spaces.versions } else { self.spaces.records };
        (space, Key::from(self.number << 32 | self.rng.below(KEYS)))
    }

    fn blocks(&mut self) -> Range<u64> {
        let count = 1 + self.rng.below(BLOCKS_AT_ONCE);
        let first = self.rng.below(BLOCKS - count);
        first..first + count
    }

    fn wish(&mut self) -> Wish {
        let at = self.any();
        match self.rng.below(20) {
            0..=6 => {
                let is_long = self.rng.below(20) == 0 && at.0 == self.spaces.records;
                let len = if is_long { self.rng.below(100_000) } else { self.rng.below(6000) };
                Wish::Store(at, Content { seed: self.rng.draw(), len: len as usize })
            }
            7 | 8 => Wish::Delete(at),
            9 => Wish::Exist(at),
            10..=12 => Wish::Write(self.blocks(), self.rng.draw() | 1),
            13 | 14 => Wish::Read(self.blocks()),
            _ => Wish::Retrieve(at),
        }
    }

    /// Connects, looks what became of what was in flight last time, requests many things, and vanishes or leaves in order.
    fn live(&mut self, world: &World) {
        let host = world.host_with(|options| options.queues = 2);
        self.lives += 1;
        self.find_out(&host);
        let mut life = Life { host: &host, in_flight: HashMap::new() };
        for _ in 0..20 + self.rng.below(200) {
            let number = self.rng.below(2) as usize;
            let wish = self.wish();
            let on_queue = life.in_flight.keys().filter(|(queue, _)| *queue == number).count();
            if on_queue < IN_FLIGHT && !life.in_flight.values().any(|other| other.meets(&wish)) {
                self.begin(&mut life, number, wish);
            } else {
                self.answers(&mut life, Wait::Yes);
            }
            if self.rng.below(100) == 0 {
                self.alone(&mut life);
            }
        }
        if self.rng.below(3) == 0 {
            (0..2).for_each(|number| life.queue(number).send().unwrap());
            self.open = life.in_flight.into_values().collect();
        } else {
            self.finish(&mut life);
        }
    }

    fn begin(&mut self, life: &mut Life<'_>, number: usize, wish: Wish) {
        let queue = life.queue(number);
        let on = |at: &Address| KeyValue::new(queue, at.0);
        let disk = || Blocks::new(life.host, queue, self.spaces.disk).unwrap();
        let (command, data, room) = match &wish {
            Wish::Store(at, content) => (on(at).storing(&at.1, content.len, 0), content.bytes(), 0),
            Wish::Delete(at) => (on(at).deleting(&at.1), Vec::new(), 0),
            Wish::Retrieve(at) => (on(at).retrieving(&at.1, ROOM), Vec::new(), ROOM),
            Wish::Exist(at) => (on(at).existing(&at.1), Vec::new(), 0),
            Wish::Write(blocks, stamp) => {
                let data = filled(*stamp, blocks);
                (disk().writing(self.first_block() + blocks.start, data.len()).unwrap(), data, 0)
            }
            Wish::Read(blocks) => {
                let bytes = (blocks.end - blocks.start) as usize * BLOCK_BYTES;
                (disk().reading(self.first_block() + blocks.start, bytes).unwrap(), Vec::new(), bytes)
            }
        };
        let ticket = queue.enqueue(command, &data, room).unwrap().expect("the queue is deep enough");
        life.in_flight.insert((number, ticket.place()), wish);
    }

    fn first_block(&self) -> u64 {
        self.number * BLOCKS
    }

    /// Takes answers of a queue that has commands in flight.
    fn answers(&mut self, life: &mut Life<'_>, wait: Wait) {
        for number in 0..2 {
            if !life.in_flight.keys().any(|(queue, _)| *queue == number) {
                continue;
            }
            let mut answers: Vec<(Ticket, Finished)> = Vec::new();
            life.queue(number).poll(wait, &mut answers).unwrap();
            for (ticket, finished) in answers {
                let wish = life.in_flight.remove(&(number, ticket.place())).expect("completed one time");
                self.answered(wish, finished);
            }
        }
    }

    fn finish(&mut self, life: &mut Life<'_>) {
        while !life.in_flight.is_empty() {
            self.answers(life, Wait::Yes);
        }
    }

    fn answered(&mut self, wish: Wish, finished: Finished) {
        let status = finished.status;
        match wish {
            Wish::Retrieve(at) => {
                let found = (!status.is(Status::NO_SUCH_KEY)).then_some(finished.data);
                assert!(found.is_none() || status.is_success(), "{at:?}: {status}");
                assert!(found == self.model.get(&at).map(|content| content.bytes()), "{at:?} is not what was stored");
            }
            Wish::Exist(at) => assert_eq!(status.is_success(), self.model.contains_key(&at), "{at:?}: {status}"),
            Wish::Read(blocks) => {
                assert!(status.is_success(), "{blocks:?}: {status}");
                self.compare_blocks(&blocks, &finished.data);
            }
            change => {
                assert!(status.is_success(), "{change:?}: {status}");
                self.apply(change);
            }
        }
    }

    fn apply(&mut self, change: Wish) {
        match change {
            Wish::Store(at, content) => _ = self.model.insert(at, content),
            Wish::Delete(at) => _ = self.model.remove(&at),
            Wish::Write(blocks, stamp) => self.stamps[blocks.start as usize..blocks.end as usize].fill(stamp),
            Wish::Retrieve(_) | Wish::Exist(_) | Wish::Read(_) => {}
        }
    }

    fn compare_blocks(&self, blocks: &Range<u64>, data: &[u8]) {
        let stamps = &self.stamps[blocks.start as usize..blocks.end as usize];
        for (block, stamp) in data.chunks(BLOCK_BYTES).zip(stamps) {
            assert!(block.chunks(8).all(|word| word == stamp.to_le_bytes()), "blocks {blocks:?} of {}", self.number);
        }
    }

    /// What is requested with nothing else in progress: a list, zeroes, deallocation, a comparison.
    fn alone(&mut self, life: &mut Life<'_>) {
        self.finish(life);
        let queue = life.queue(0);
        let disk = Blocks::new(life.host, queue, self.spaces.disk).unwrap();
        let blocks = self.blocks();
        let there = self.first_block() + blocks.start..self.first_block() + blocks.end;
        match self.rng.below(4) {
            0 => disk.write_zeroes(there.start, there.end - there.start).unwrap(),
            1 => disk.deallocate(&[there]).unwrap(),
            2 => {
                let one = blocks.start as usize;
                return disk.compare(there.start, &filled(self.stamps[one], &(0..1))).unwrap();
            }
            _ => {
                let keys = KeyValue::new(queue, self.spaces.records).list_all(4096).unwrap();
                let own = keys.iter().filter(|key| key.as_u64().is_some_and(|key| key >> 32 == self.number)).count();
                let known = self.model.keys().filter(|(space, _)| *space == self.spaces.records).count();
                return assert_eq!(own, known, "each key once");
            }
        }
        self.apply(Wish::Write(blocks, 0));
    }

    /// What was requested before was executed or not, and stays so.
    fn find_out(&mut self, host: &Controller) {
        let queue = &host.queues()[0];
        for wish in std::mem::take(&mut self.open) {
            match &wish {
                Wish::Store(at, _) | Wish::Delete(at) => {
                    let found = KeyValue::new(queue, at.0).retrieve(&at.1, ROOM).unwrap().map(|(value, _)| value);
                    let wanted = if let Wish::Store(_, content) = &wish { Some(content.bytes()) } else { None };
                    let before = self.model.get(at).map(|content| content.bytes());
                    assert!(found == wanted || found == before, "{wish:?} is half there");
                    if found == wanted {
                        self.apply(wish);
                    }
                }
                Wish::Write(blocks, stamp) => {
                    let disk = Blocks::new(host, queue, self.spaces.disk).unwrap();
                    let bytes = (blocks.end - blocks.start) as usize * BLOCK_BYTES;
                    let data = disk.read(self.first_block() + blocks.start, bytes).unwrap();
                    if data[..8] == stamp.to_le_bytes() {
                        self.apply(wish.clone());
                    }
                    self.compare_blocks(blocks, &data);
                }
                Wish::Retrieve(_) | Wish::Exist(_) | Wish::Read(_) => {}
            }
        }
    }

    /// Compares everything with what the device itself has.
    fn compare_all(&self, device: &Device) {
        for space in [self.spaces.records, self.spaces.versions] {
            for number in 0..KEYS {
                let at = (space, Key::from(self.number << 32 | number));
                let known = self.model.get(&at).map(|content| content.bytes());
                let found = device.get(at.0, at.1).unwrap();
                if found != known {
                    let brief = |value: &Option<Vec<u8>>| {
                        value.as_ref().map(|value| (value.len(), value[..value.len().min(8)].to_vec()))
                    };
                    let again = device.get(at.0, at.1).unwrap() == known;
                    let history = (at.0 == self.spaces.versions).then(|| device.history(at.0, at.1, 10));
                    let (found, known) = (brief(&found), brief(&known));
                    panic!("{at:?}: {found:?}, not {known:?}; right the second time: {again}; {history:?}");
                }
            }
        }
        let mut data = vec![1; BLOCKS as usize * BLOCK_BYTES];
        device.block_read(self.spaces.disk, self.first_block(), &mut data).unwrap();
        self.compare_blocks(&(0..BLOCKS), &data);
    }
}

/// Goal:   whatever commands hosts send at the same time, each finds exactly what it stored, also after it vanished with commands in progress:
///         of each it finds all or nothing, from then on for good.
/// Method: hosts with commands of all kinds in flight on two queues, each on records, versions and blocks of its own; meanwhile indexes
///         leave memory, versions are merged and namespaces come and go, on a device so small that collection never rests. Compared with models, in the
///         end on the device itself, served twice. `KAML_STRESS_SECONDS` for longer.
#[test]
fn everything_at_once() {
    let seconds = std::env::var("KAML_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4.0);
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let create = |name: &str, options| device.create_namespace(name, &options).unwrap();
    let blocks = BlockOptions::new(BLOCK_BYTES as u32, HOSTS * BLOCKS);
    let spaces = Spaces {
        records: create("records", NamespaceOptions::default()),
        versions: create("versions", VersionOptions::default().into()),
        disk: create("disk", blocks.into()),
    };
    let mut owners: Vec<Owner> = (0..HOSTS).map(|number| Owner::new(number, spaces)).collect();
    let (open, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    for round in 0..2u64 {
        let world = World::serving(device.clone(), |_| {});
        let begin = Instant::now();
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for owner in &mut owners {
                let (world, stop, open) = (&world, &stop, &open);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        owner.live(world);
                        open.fetch_add(owner.open.len() as u64, Ordering::Relaxed);
                    }
                    let host = world.host();
                    owner.find_out(&host);
                });
            }
            let mut rng = Rng::new(round + 99);
            while begin.elapsed() < Duration::from_secs_f64(seconds / 2.0) {
                let any = [spaces.records, spaces.versions, spaces.disk][rng.below(3) as usize];
                match rng.below(5) {
                    0 => device.settle().unwrap(),
                    1 => {
                        let newest = Retention { keep_snapshots: false, keep_internal: false, ..Retention::default() };
                        device.merge(spaces.versions, &newest, &mut kaml::to_the_end).map(drop).unwrap();
                    }
                    2 => {
                        let scratch = device.create_namespace("scratch", &NamespaceOptions::default()).unwrap();
                        device.put(scratch, Key::from(1u64), b"gone").unwrap();
                        device.delete_namespace(scratch).unwrap();
                    }
                    _ => _ = device.unload_namespace(any).unwrap(),
                }
                std::thread::sleep(Duration::from_millis(rng.below(20)));
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(world);
        owners.iter().for_each(|owner| owner.compare_all(&device));
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    }
    let lives: u64 = owners.iter().map(|owner| owner.lives).sum();
    let open = open.into_inner();
    println!("{lives} lives, {open} commands in flight when hosts vanished, {:?}", device.stats());
    assert!(lives > 8 && open > 20, "{lives} {open}");
}
