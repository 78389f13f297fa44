//! Records that expire, on flash in memory.

mod common;

use common::{Cut, Life, Rng, value};
use kaml_device::{
    Body, Buffered, Condition, Core, Error, Expires, Found, FullKey, KeyKind, KeyRange, KeyRef, NamespaceOptions, Op,
    StageError, VersionOptions, encode_expiring_image, expiring_image_bytes,
};
use kaml_flash::{AlignedBuf, Io, Medium, MemoryMedium, Packing};
use std::collections::BTreeMap;

/// (namespace, key) → seed and length of the value, and when it expires; 0 for never.
type Model = BTreeMap<(u32, u64), (u64, usize, u64)>;
/// What a Put does to each key; nothing: delete.
type Changes = BTreeMap<(u32, u64), Option<(u64, usize, u64)>>;

const KEYS: u64 = 120;

/// Keys of every length: the last namespaces take long ones.
fn key_of(space: u32, number: u64) -> Vec<u8> {
    match space {
        1 => number.to_be_bytes().to_vec(),
        _ if number.is_multiple_of(3) => format!("a key of more than sixteen bytes {number:05}").into_bytes(),
        _ => format!("key {number:05}").into_bytes(),
    }
}

struct World {
    life: Life,
    spaces: Vec<u32>,
}

impl World {
    fn open(medium: &MemoryMedium, seed: u64, spaces: Vec<u32>) -> Result<World, Error> {
        Ok(World { life: Life::open(medium, seed)?, spaces })
    }

    fn now(&self) -> u64 {
        self.life.core.clock().now_ms()
    }

    fn with_key<T>(&self, space: u32, number: u64, act: impl FnOnce(FullKey<'_>) -> T) -> T {
        let bytes = key_of(space, number);
        act(self.life.core.reader().key(KeyRef::Bytes(&bytes)).unwrap())
    }

    fn apply(&mut self, changes: &Changes, condition: Condition) -> Result<Result<(), Error>, Cut> {
        let reader = self.life.core.reader();
        let keys: Vec<Vec<u8>> = changes.keys().map(|(space, number)| key_of(*space, *number)).collect();
        let values: Vec<_> = changes.values().map(|c| c.map(|(seed, len, _)| value(seed, len))).collect();
        let mut ops = Vec::new();
        for ((((namespace, _), change), key), value) in changes.iter().zip(&keys).zip(&values) {
            let key = reader.key(KeyRef::Bytes(key)).unwrap();
            let expires = change.map_or(Expires::Default, |(_, _, time)| match time {
                0 => Expires::Never,
                time => Expires::At(time),
            });
            let body = match value {
                None => Body::Delete,
                Some(value) if value.len() >= kaml_device::DIRECT_BYTES => {
                    Body::Placed { ticket: self.place(*namespace, key, value, change.map_or(0, |(.., time)| time))? }
                }
                Some(value) => Body::Value { value, crc32c: kaml_crc::crc32c(value) },
            };
            ops.push(Op { namespace: *namespace, key, body, condition, expires });
        }
        let answer = self.life.commit(|core| core.stage(&ops))?;
        if answer.is_err() {
            for op in &ops {
                if let Body::Placed { ticket } = op.body {
                    self.life.core.forget(ticket);
                }
            }
        }
        Ok(answer)
    }

    fn place(&mut self, namespace: u32, key: FullKey<'_>, bytes: &[u8], time: u64) -> Result<u64, Cut> {
        let geometry = self.life.medium.geometry().clone();
        let buf = AlignedBuf::zeroed(expiring_image_bytes(&geometry, key, bytes.len(), time));
        let (value, crc32c, after) = (bytes, kaml_crc::crc32c(bytes), self.life.core.last_sequence());
        let image = encode_expiring_image(&geometry, namespace, key, Body::Value { value, crc32c }, after, time, buf);
        let ticket = loop {
            match self.life.core.place(namespace, key, image.clone()) {
                Ok(ticket) => break ticket,
                Err(StageError::Busy) => self.life.background(true)?,
                Err(error) => panic!("{error:?}"),
            }
        };
        while !self.life.core.is_placed(ticket) {
            self.life.background(true)?;
        }
        Ok(ticket)
    }

    /// What a reader sees, which enters the core when a record is due.
    fn get(&mut self, space: u32, number: u64) -> Option<Vec<u8>> {
        let reader = self.life.core.reader();
        let bytes = key_of(space, number);
        let key = reader.key(KeyRef::Bytes(&bytes)).unwrap();
        let found = match reader.find(space, key) {
            Ok(found) => found,
            Err(_) => {
                self.life.core.load_index(&self.life.medium, space).unwrap();
                reader.find(space, key).expect("nothing is due any more")
            }
        };
        let read = match found {
            Found::Absent => return None,
            Found::Flash(read) => read,
            Found::Buffered => match self.life.core.read_buffered(space, key).unwrap() {
                Buffered::Value(value) => return Some(value),
                Buffered::Packed(packed) => return Some(packed.unpack().unwrap()),
                Buffered::Programmed(read) => read,
                Buffered::Absent => panic!("found, then not"),
            },
        };
        let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
        self.life.medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        Some(read.value(&into).unwrap().of(&into).to_vec())
    }

    fn contents(&mut self) -> BTreeMap<(u32, u64), Vec<u8>> {
        let mut found = BTreeMap::new();
        for space in self.spaces.clone() {
            for number in 0..KEYS {
                found.extend(self.get(space, number).map(|value| ((space, number), value)));
            }
        }
        found
    }

    fn count(&mut self, space: u32) -> u64 {
        self.life.core.load_index(&self.life.medium, space).unwrap();
        self.life.core.namespaces().iter().find(|info| info.id == space).unwrap().record_count
    }
}

fn visible(model: &Model, now: u64) -> BTreeMap<(u32, u64), Vec<u8>> {
    let seen = model.iter().filter(|(_, (.., time))| *time == 0 || *time > now);
    seen.map(|(key, (seed, len, _))| (*key, value(*seed, *len))).collect()
}

fn change(model: &mut Model, changes: &Changes) {
    for (key, change) in changes {
        match change {
            Some(change) => drop(model.insert(*key, *change)),
            None => drop(model.remove(key)),
        }
    }
}

/// A device with a namespace of each kind of keys that records without versions have.
fn new_world(medium: &MemoryMedium, seed: u64) -> World {
    Core::format(medium).unwrap();
    let mut world = World::open(medium, seed, Vec::new()).unwrap();
    world.life.core.clock().advance_to(1_000_000);
    for (name, keys) in [("a", KeyKind::U64), ("b", KeyKind::Any), ("c", KeyKind::Ordered)] {
        world.spaces.push(world.life.core.create_namespace(name, &NamespaceOptions::records(keys)).unwrap());
    }
    let request = world.life.core.request_root(false);
    world.life.until(|core| core.roots_done() >= request).unwrap();
    world
}

/// One step of a workload: Puts, deletes, ranges, time that passes, checkpoints, indexes that leave memory.
fn step(world: &mut World, model: &mut Model, changes: &mut Changes) -> Result<(), Cut> {
    changes.clear();
    let (spaces, now) = (world.spaces.clone(), world.now());
    let rng = &mut world.life.rng;
    match rng.below(20) {
        0..=13 => {
            for _ in 0..1 + rng.below(4) {
                let key = (spaces[rng.below(3) as usize], rng.below(KEYS));
                let len = if rng.below(30) == 0 { 33_000 + rng.below(5000) } else { rng.below(2000) } as usize;
                let time = if rng.below(3) == 0 { 0 } else { now + rng.below(400) };
                changes.insert(key, (rng.below(6) > 0).then(|| (rng.draw() | 1, len, time)));
            }
            let answer = world.apply(changes, Condition::Always)?;
            match answer {
                Ok(()) => change(model, changes),
                Err(Error::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            changes.clear();
        }
        14 => {
            let (from, ordered) = (key_of(3, rng.below(KEYS)), spaces[2]);
            let range = KeyRange::new(from.as_slice()..&b"key 00050"[..]);
            let within: Vec<_> = (0..KEYS).filter(|n| range.contains(&key_of(ordered, *n))).collect();
            changes.extend(within.iter().map(|n| ((ordered, *n), None)));
            let stage = |core: &mut Core| core.stage_delete_range(ordered, &range).map(|(frame, _)| frame);
            world.life.commit(stage)?.unwrap();
            change(model, changes);
            changes.clear();
        }
        15..=17 => world.life.core.clock().advance_to(now + rng.below(120)),
        18 => {
            let request = world.life.core.request_checkpoint();
            world.life.until(|core| core.roots_done() >= request)?;
        }
        _ => {
            let space = spaces[rng.below(3) as usize];
            let _ = world.life.core.unload_index(space).unwrap();
        }
    }
    world.life.background(false)
}

/// Goal:   a record is seen until its time and never after it, whatever is put, deleted, moved and unloaded meanwhile; after each power cut every
///         acknowledged Put is whole with its time, the clock has not gone back beyond the last root, and accounting is exact.
/// Method: seeded workloads over many lives of one device, compared with a model by the device's own clock.
#[test]
fn records_expire_on_time_over_power_cuts() {
    for seed in 1..=10 {
        let packing = if seed % 3 == 0 { Packing::WithinPage } else { Packing::Across };
        let medium = MemoryMedium::new(common::geometry(packing, 30));
        let mut world = new_world(&medium, seed);
        let (mut model, mut rng, mut expired) = (Model::new(), Rng::new(seed * 77), 0);
        for life in 0..10 {
            medium.cut_after(1 + rng.below(1500));
            let mut under_way = Changes::new();
            let mut steps = 0;
            while steps < 2500 && step(&mut world, &mut model, &mut under_way).is_ok() {
                steps += 1;
                if steps % 200 == 0 {
                    let now = world.now();
                    assert_eq!(world.contents(), visible(&model, now), "seed {seed} life {life}");
                }
            }
            expired += world.life.core.stats().expired_count;
            let spaces = std::mem::take(&mut world.spaces);
            drop(world);
            for _ in 0..rng.below(3) {
                medium.power_on(rng.draw());
                medium.cut_after(1 + rng.below(200));
                drop(World::open(&medium, seed, spaces.clone()));
            }
            medium.power_on(rng.draw());
            world = World::open(&medium, rng.draw(), spaces).unwrap_or_else(|e| panic!("seed {seed} life {life}: {e}"));
            let now = world.now();
            let mut with = model.clone();
            change(&mut with, &under_way);
            let found = world.contents();
            if found == visible(&with, now) {
                model = with;
            }
            assert_eq!(found, visible(&model, now), "seed {seed} life {life} at {now}");
            for space in world.spaces.clone() {
                let expected = visible(&model, now).keys().filter(|(of, _)| *of == space).count() as u64;
                assert_eq!(world.count(space), expected, "seed {seed} life {life}");
            }
            world.life.audit();
        }
        assert!(expired > 100, "seed {seed}: {expired} records expired");
    }
}

/// Goal:   what expires is released without anybody looking: live bytes fall, after a clean close too, before the index is needed.
/// Method: records with a time; the clock passes it; housekeeping alone; the same after the device was closed and opened.
#[test]
fn room_comes_back_by_itself() {
    for closes in [false, true] {
        let medium = MemoryMedium::new(common::geometry(Packing::Across, 30));
        let mut world = new_world(&medium, 1);
        let spaces = world.spaces.clone();
        let kept: Changes = spaces.iter().map(|space| ((*space, 0), Some((9, 1000, 0)))).collect();
        world.apply(&kept, Condition::Always).unwrap().unwrap();
        let kept_bytes = world.life.core.stats().live_bytes;
        for number in 1..KEYS {
            let changes: Changes =
                spaces.iter().map(|space| ((*space, number), Some((number, 1000, 2_000_000)))).collect();
            world.apply(&changes, Condition::Always).unwrap().unwrap();
        }
        assert!(world.life.core.stats().live_bytes > 50 * kept_bytes);
        if closes {
            let request = world.life.core.request_close();
            world.life.until(|core| core.roots_done() >= request).unwrap();
            drop(world);
            world = World::open(&medium.reopen(), 1, spaces.clone()).unwrap();
            assert!(!world.life.core.namespaces()[0].loaded);
        }
        world.life.core.clock().advance_to(1_999_999);
        world.life.background(true).unwrap();
        assert!(world.life.core.stats().live_bytes > 50 * kept_bytes);
        world.life.core.clock().advance_to(2_000_000);
        world
            .life
            .until(|core| {
                let done = core.stats().expired_count == 3 * (KEYS - 1);
                done || core.wanted_index().is_some()
            })
            .unwrap();
        while let Some(id) = world.life.core.wanted_index() {
            world.life.core.load_index(&world.life.medium, id).unwrap();
            world.life.core.forget_wanted_index();
            world.life.background(true).unwrap();
        }
        assert_eq!(world.life.core.stats().expired_count, 3 * (KEYS - 1), "closed: {closes}");
        assert_eq!(world.life.core.stats().live_bytes, kept_bytes);
        world.life.audit();
    }
}

/// Goal:   conditions, counts of ranges, times to live of namespaces and refusals know of expiry; a record whose time has passed already is never
///         seen and replaces what there was.
/// Method: one command of each, with the clock at the time and one millisecond before it.
#[test]
fn commands_know_of_expiry() {
    let medium = MemoryMedium::new(common::geometry(Packing::Across, 30));
    let mut world = new_world(&medium, 1);
    let (space, ordered) = (world.spaces[0], world.spaces[2]);
    let one = |space, number, time| Changes::from([((space, number), Some((number + 1, 10, time)))]);
    world.apply(&one(space, 1, 1_000_010), Condition::Always).unwrap().unwrap();
    world.life.core.clock().advance_to(1_000_009);
    let refused = world.apply(&one(space, 1, 0), Condition::IfAbsent).unwrap();
    assert!(matches!(refused, Err(Error::Conflict { present: true, .. })), "{refused:?}");
    assert_eq!(world.with_key(space, 1, |key| world.life.core.expiry_of(space, &key)), Some(1_000_010));
    world.life.core.clock().advance_to(1_000_010);
    assert_eq!(world.with_key(space, 1, |key| world.life.core.expiry_of(space, &key)), None);
    let refused = world.apply(&one(space, 1, 0), Condition::IfPresent).unwrap();
    assert!(matches!(refused, Err(Error::Conflict { present: false, .. })), "{refused:?}");
    world.apply(&one(space, 1, 0), Condition::IfAbsent).unwrap().unwrap();
    world.life.core.clock().advance_to(5_000_000);
    assert_eq!(world.get(space, 1), Some(value(2, 10)), "the new record has no time");
    // A time that has passed.
    world.apply(&one(space, 1, 7), Condition::Always).unwrap().unwrap();
    assert_eq!((world.get(space, 1), world.count(space)), (None, 0));

    for number in 0..9 {
        world.apply(&one(ordered, number, 5_000_000 + number), Condition::Always).unwrap().unwrap();
    }
    world.life.core.clock().advance_to(5_000_004);
    world.life.core.load_index(&medium, ordered).unwrap();
    let all = KeyRange::new(&b"a"[..]..&b"z"[..]);
    assert_eq!(world.life.core.stage_delete_range(ordered, &all).unwrap().1, 4);

    let options = NamespaceOptions::records(KeyKind::U64).with_ttl(std::time::Duration::from_micros(9_001));
    let brief = world.life.core.create_namespace("brief", &options).unwrap();
    let change = Changes::from([((brief, 1), Some((2, 10, 0)))]);
    let request = world.life.core.request_root(false);
    world.life.until(|core| core.roots_done() >= request).unwrap();
    let key = world.with_key(1, 1, |key| *key.key());
    let put = |expires| {
        let body = Body::Value { value: b"v", crc32c: kaml_crc::crc32c(b"v") };
        Op { namespace: brief, key: key.into(), body, condition: Condition::Always, expires }
    };
    world.life.commit(|core| core.stage(&[put(Expires::Default)])).unwrap().unwrap();
    let expiry = |world: &World| world.life.core.expiry_of(brief, &key.into());
    assert_eq!(expiry(&world), Some(5_000_014), "a part of a millisecond counts as a whole one");
    world.life.commit(|core| core.stage(&[put(Expires::Never)])).unwrap().unwrap();
    assert_eq!((expiry(&world), change.len()), (Some(0), 1));
    world.life.commit(|core| core.stage(&[put(Expires::At(1 << 48))])).unwrap().unwrap();
    assert_eq!(expiry(&world), Some(0), "later than the journal can express");

    let versions = world.life.core.create_namespace("versions", &VersionOptions::default().into()).unwrap();
    let request = world.life.core.request_root(false);
    world.life.until(|core| core.roots_done() >= request).unwrap();
    let of_versions = Op { namespace: versions, ..put(Expires::At(9_000_000)) };
    let refused = world.life.core.stage(&[of_versions]);
    assert!(
        matches!(&refused, Err(StageError::Refused(error)) if error.to_string().contains("retention")),
        "{refused:?}"
    );
    let refused = world.life.core.create_namespace("v", &{
        let options = NamespaceOptions::from(VersionOptions::default());
        options.with_ttl(std::time::Duration::from_secs(1))
    });
    assert!(matches!(refused, Err(Error::BadTimeToLive(_))), "{refused:?}");
}

/// Goal:   a snapshot shows what had not expired when it was opened, for as long as it is open, and nothing else.
/// Method: records that expire before and after, read through snapshots.
#[test]
fn snapshots_are_as_of_their_moment() {
    let medium = MemoryMedium::new(common::geometry(Packing::Across, 30));
    let mut world = new_world(&medium, 1);
    let space = world.spaces[0];
    for (number, time) in [(1, 1_000_010), (2, 1_000_020), (3, 0)] {
        let one = Changes::from([((space, number), Some((number, 10, time)))]);
        world.apply(&one, Condition::Always).unwrap().unwrap();
    }
    world.life.core.clock().advance_to(1_000_015);
    let snapshot = world.life.core.open_snapshot().unwrap();
    world.life.core.clock().advance_to(1_000_025);
    assert_eq!((world.get(space, 1), world.get(space, 2), world.count(space)), (None, None, 1));
    let reader = world.life.core.reader();
    let at = reader.at(&snapshot, space).unwrap();
    let exists = |number| world.with_key(space, number, |key| at.exists(&key).unwrap());
    assert_eq!([1, 2, 3].map(exists), [false, true, true]);
    assert_eq!(at.list(None, 10).unwrap().0.len(), 2);
    drop(at);
    world.life.core.close_snapshot(snapshot);
    world.life.background(true).unwrap();
    world.life.audit();
}
