//! Devices that change their size: what fits afterwards, what is kept, what a power cut leaves.

mod common;

use common::{Cut, Life, geometry, value};
use kaml_device::{Body, Condition, Core, Error, Key, KeyKind, NamespaceOptions, Op};
use kaml_flash::{Geometry, Medium, MediumError, MemoryMedium, Packing};
use std::collections::BTreeMap;

const FEW: u32 = 20;

fn small() -> Geometry {
    geometry(Packing::Across, FEW)
}

/// A device with a namespace of each kind of index, in memory.
fn formatted() -> (MemoryMedium, [u32; 2]) {
    let medium = MemoryMedium::new(small());
    Core::format(&medium).unwrap();
    let mut life = Life::open(&medium, 1).unwrap();
    let spaces = [("hash", KeyKind::U64), ("ordered", KeyKind::Ordered)].map(|(name, keys)| {
        let id = life.core.create_namespace(name, &NamespaceOptions::records(keys)).unwrap();
        let request = life.core.request_root(false);
        life.until(|core| core.roots_done() >= request).unwrap();
        id
    });
    close(life);
    (medium.reopen(), spaces)
}

fn close(mut life: Life) {
    let request = life.core.request_close();
    life.until(|core| core.roots_done() >= request).unwrap();
}

fn put(life: &mut Life, space: u32, key: u64, seed: u64) -> Result<Result<(), Error>, Cut> {
    let value = value(seed, 3000);
    let body = Body::Value { value: &value, crc32c: kaml_crc::crc32c(&value) };
    let op = [Op {
        namespace: space,
        key: (&Key::from(key)).into(),
        body,
        condition: Condition::Always,
        expires: Default::default(),
    }];
    life.commit(|core| core.stage(&op))
}

fn delete(life: &mut Life, space: u32, key: u64) -> Result<(), Error> {
    let op = [Op {
        namespace: space,
        key: (&Key::from(key)).into(),
        body: Body::Delete,
        condition: Condition::Always,
        expires: Default::default(),
    }];
    life.commit(|core| core.stage(&op)).unwrap()
}

fn compare(life: &mut Life, model: &BTreeMap<(u32, u64), u64>) {
    for ((space, key), seed) in model {
        assert!(life.get(*space, *key) == Some(value(*seed, 3000)), "key {key} of {space}");
    }
    life.audit();
}

/// Puts the next keys until one is refused; the refusal.
fn fill(life: &mut Life, spaces: [u32; 2], model: &mut BTreeMap<(u32, u64), u64>) -> Error {
    loop {
        let key = model.len() as u64;
        let space = spaces[key as usize % 2];
        match put(life, space, key, key + 1).unwrap() {
            Ok(()) => model.insert((space, key), key + 1),
            Err(error) => return error,
        };
    }
}

/// Goal:   a device that may grow refuses nothing before its limit, takes as much there as one of that size, is full then and accepts
///         deletes, and has everything after it is opened again.
/// Method: fill; the same on a device of the limit's size; reopen after a crash and after a clean close.
#[test]
fn devices_grow_before_anybody_is_refused() {
    let (medium, spaces) = formatted();
    let mut life = Life::open(&medium, 1).unwrap();
    life.core.grow_up_to(12 * FEW);
    let mut model = BTreeMap::new();
    let refused = fill(&mut life, spaces, &mut model);
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert_eq!(life.core.geometry().blocks_per_die, 12 * FEW);
    assert!(life.core.resize_count() >= 3, "in steps");
    let large = MemoryMedium::new(Geometry { blocks_per_die: 12 * FEW, ..small() });
    Core::format(&large).unwrap();
    let mut other = Life::open(&large, 1).unwrap();
    let ids = [("hash", KeyKind::U64), ("ordered", KeyKind::Ordered)].map(|(name, keys)| {
        let id = other.core.create_namespace(name, &NamespaceOptions::records(keys)).unwrap();
        let request = other.core.request_root(false);
        other.until(|core| core.roots_done() >= request).unwrap();
        id
    });
    let mut other_model = BTreeMap::new();
    fill(&mut other, ids, &mut other_model);
    assert!(model.len() * 10 > other_model.len() * 9, "{} of {}", model.len(), other_model.len());
    for key in 0..20 {
        delete(&mut life, spaces[key as usize % 2], key).unwrap();
        model.remove(&(spaces[key as usize % 2], key));
    }
    compare(&mut life, &model);
    drop(life);
    let medium = medium.reopen();
    let mut life = Life::open(&medium, 2).unwrap();
    assert_eq!(life.core.geometry().blocks_per_die, 12 * FEW);
    compare(&mut life, &model);
    close(life);
    let mut life = Life::open(&medium.reopen(), 3).unwrap();
    compare(&mut life, &model);
}

/// Goal:   where there is no space below, a device refuses what does not fit, by that error, stays usable, and grows when there is space.
/// Method: fill while the medium cannot grow; delete, put; then let it grow, a second later.
#[test]
fn a_full_file_system_is_a_refusal() {
    let (medium, spaces) = formatted();
    let mut life = Life::open(&medium, 1).unwrap();
    life.core.grow_up_to(4 * FEW);
    medium.allow_resizing(false);
    let mut model = BTreeMap::new();
    let refused = fill(&mut life, spaces, &mut model);
    assert!(matches!(refused, Error::Medium(MediumError::NoSpace { .. })), "{refused}");
    compare(&mut life, &model);
    for key in 0..40 {
        delete(&mut life, spaces[key as usize % 2], key).unwrap();
        model.remove(&(spaces[key as usize % 2], key));
    }
    for key in 0..10 {
        put(&mut life, spaces[0], 10_000 + key, key).unwrap().unwrap();
        model.insert((spaces[0], 10_000 + key), key);
    }
    assert_eq!(life.core.geometry().blocks_per_die, FEW);
    medium.allow_resizing(true);
    let mut started = Vec::new();
    life.core.poll(2_000_000_000, &mut started);
    let (id, mut io) = started.pop().expect("it grows now");
    let result = medium.execute(&mut io);
    life.core.complete(kaml_flash::Completion { id, io, result });
    assert!(started.is_empty() && life.core.geometry().blocks_per_die > FEW);
    put(&mut life, spaces[0], 20_000, 1).unwrap().unwrap();
    compare(&mut life, &model);
}

/// Goal:   a size by command is adopted, or refused and the device continues; indexes in memory get room for the chunk numbers.
/// Method: sizes that cross powers of two while puts continue, one that cannot be; then everything is read, at once and after a crash.
#[test]
fn sizes_by_command() {
    let (medium, spaces) = formatted();
    let mut life = Life::open(&medium, 1).unwrap();
    let mut model = BTreeMap::new();
    for (round, blocks_per_die) in [FEW + 1, 70, 700, 3000].into_iter().enumerate() {
        let number = life.core.request_resize(blocks_per_die, 0);
        assert!(life.core.resize_outcome(number).is_none());
        for i in 0..60 {
            let key = round as u64 * 100 + i;
            put(&mut life, spaces[i as usize % 2], key, key + 5).unwrap().unwrap();
            model.insert((spaces[i as usize % 2], key), key + 5);
            if i == 30 {
                life.core.request_checkpoint();
            }
        }
        life.until(|core| core.resize_outcome(number).is_some()).unwrap();
        assert_eq!(life.core.resize_outcome(number), Some(Ok(())));
        assert_eq!(life.core.block_count(), 2 * blocks_per_die);
    }
    for blocks_per_die in [400, 60, FEW + 1, 100, FEW] {
        let number = life.core.request_resize(blocks_per_die, 0);
        for i in 0..60 {
            let key = u64::from(blocks_per_die) * 1000 + i % 7;
            put(&mut life, spaces[i as usize % 2], key, key + i).unwrap().unwrap();
            model.insert((spaces[i as usize % 2], key), key + i);
        }
        life.until(|core| core.resize_outcome(number).is_some()).unwrap();
        assert_eq!(life.core.resize_outcome(number), Some(Ok(())), "{blocks_per_die}");
        assert_eq!(life.core.block_count(), 2 * blocks_per_die);
        compare(&mut life, &model);
    }
    for blocks_per_die in [0, 1, 4] {
        let number = life.core.request_resize(blocks_per_die, 0);
        life.until(|core| core.resize_outcome(number).is_some()).unwrap();
        let refused = life.core.resize_outcome(number).unwrap().unwrap_err();
        assert!(matches!(refused, Error::Medium(MediumError::NotResized { .. })), "{refused}");
    }
    let number = life.core.request_resize(u32::MAX, 0);
    life.until(|core| core.resize_outcome(number).is_some()).unwrap();
    let refused = life.core.resize_outcome(number).unwrap().unwrap_err();
    assert!(matches!(refused, Error::Medium(MediumError::NotResized { .. })), "{refused}");
    compare(&mut life, &model);
    drop(life);
    let mut life = Life::open(&medium.reopen(), 2).unwrap();
    compare(&mut life, &model);
    close(life);
    let mut life = Life::open(&medium.reopen(), 2).unwrap();
    compare(&mut life, &model);
}

/// Goal:   a device that holds too much does not become smaller, states how much must go, and takes what it took before; after that is
///         deleted it becomes smaller.
/// Method: fill a larger device, request the smaller size, delete what the error states and a little more, request it again.
#[test]
fn too_full_to_shrink() {
    let (medium, spaces) = formatted();
    let mut life = Life::open(&medium, 1).unwrap();
    let number = life.core.request_resize(3 * FEW, 0);
    life.until(|core| core.resize_outcome(number).is_some()).unwrap();
    let mut model = BTreeMap::new();
    fill(&mut life, spaces, &mut model);
    let shrink = |life: &mut Life| {
        let number = life.core.request_resize(2 * FEW, 0);
        life.until(|core| core.resize_outcome(number).is_some()).unwrap();
        life.core.resize_outcome(number).unwrap()
    };
    let Err(Error::TooFullToShrink { excess_bytes, .. }) = shrink(&mut life) else { panic!("it does not fit") };
    assert_eq!(life.core.block_count(), 6 * FEW);
    let mut gone = 0;
    while gone < excess_bytes + (100 << 10) {
        let ((space, key), _) = model.pop_first().expect("not all must go");
        delete(&mut life, space, key).unwrap();
        gone += 3072;
    }
    assert_eq!(shrink(&mut life), Ok(()));
    assert_eq!(life.core.block_count(), 4 * FEW);
    compare(&mut life, &model);
    drop(life);
    let mut life = Life::open(&medium.reopen(), 2).unwrap();
    compare(&mut life, &model);
}

/// Goal:   whatever operation a power cut ends while the device grows, nothing that was acknowledged is lost, and it opens.
/// Method: each operation in turn during puts that make the device grow, and one after the other on the same flash.
#[test]
fn power_cuts_while_growing() {
    for seed in 0..3 {
        let (mut medium, spaces) = formatted();
        let (mut model, mut sizes) = (BTreeMap::new(), 0);
        for cut in 0..140 {
            let mut life = Life::open(&medium, seed).unwrap();
            compare(&mut life, &model);
            sizes = sizes.max(life.core.geometry().blocks_per_die);
            if cut % 2 == 0 {
                life.core.grow_up_to(20 * FEW);
            } else {
                // What is in it fits; on the way there it is smaller than it is now, and larger again with the next life.
                life.core.request_resize(3 * FEW, 0);
            }
            medium.cut_after(1 + cut * 7 % 83 + cut % 2 * 40);
            for step in 0.. {
                let key = cut * 1000 + step;
                let space = spaces[step as usize % 2];
                let before = model.insert((space, key % 700), key);
                match put(&mut life, space, key % 700, key) {
                    Ok(answer) => answer.unwrap(),
                    Err(Cut) => {
                        // It may have been durable.
                        drop(life);
                        medium.power_on(seed + cut);
                        medium = medium.reopen();
                        let mut life = Life::open(&medium, seed).unwrap();
                        if life.get(space, key % 700) != Some(value(key, 3000)) {
                            match before {
                                Some(before) => model.insert((space, key % 700), before),
                                None => model.remove(&(space, key % 700)),
                            };
                        }
                        medium = medium.reopen();
                        break;
                    }
                }
            }
        }
        assert!(sizes > FEW, "it grew");
    }
}
