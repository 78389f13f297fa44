//! Space returns: a device that was full and emptied takes as much as a new one.

mod common;

use common::{Life, Rng, geometry, value};
use kaml_device::{Body, CollectionPolicy, Condition, Core, Error, Key, KeyKind, NamespaceOptions, Op};
use kaml_flash::{MemoryMedium, Packing};
use std::collections::BTreeMap;

const SMALL_BYTES: usize = 5;
const LARGE_BYTES: usize = 4000;

fn key(kind: KeyKind, number: u64) -> Key {
    match kind {
        KeyKind::U64 => Key::from(number),
        KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => {
            Key::new(&[&number.to_be_bytes()[..], b"byte key"].concat()).expect("sixteen bytes")
        }
    }
}

/// A device with two empty namespaces.
fn empty(kind: KeyKind) -> (Life, [u32; 2]) {
    let medium = MemoryMedium::new(geometry(Packing::Across, 64));
    Core::format(&medium).unwrap();
    let mut life = Life::open(&medium, 1).unwrap();
    let options = NamespaceOptions::records(kind);
    let namespaces = ["first", "second"].map(|name| life.core.create_namespace(name, &options).unwrap());
    rest(&mut life);
    (life, namespaces)
}

/// Background work continues until nothing is left of it.
fn rest(life: &mut Life) {
    for _ in 0..2 {
        let request = life.core.request_root(true);
        life.until(|core| core.roots_done() >= request).expect("power stays");
    }
}

/// Puts batches of records of one length until the device is full; how many records.
fn fill(life: &mut Life, namespace: u32, kind: KeyKind, bytes: usize) -> u64 {
    let value = value(7, bytes);
    let crc32c = kaml_crc::crc32c(&value);
    let batch = if bytes == SMALL_BYTES { 100 } else { 1 };
    let mut count = 0;
    loop {
        let op = |number| Op {
            namespace,
            key: key(kind, number).into(),
            body: Body::Value { value: &value, crc32c },
            condition: Condition::Always,
            expires: Default::default(),
        };
        let ops: Vec<Op<'_>> = (count..count + batch).map(op).collect();
        match life.commit(|core| core.stage(&ops)).expect("power stays") {
            Ok(()) => count += batch,
            Err(Error::Full { .. }) => return count,
            Err(other) => panic!("record {count}: {other}"),
        }
    }
}

fn delete_all(life: &mut Life, namespace: u32, kind: KeyKind, count: u64) {
    for first in (0..count).step_by(100) {
        let op = |number| Op {
            namespace,
            key: key(kind, number).into(),
            body: Body::Delete,
            condition: Condition::Always,
            expires: Default::default(),
        };
        let ops: Vec<Op<'_>> = (first..count.min(first + 100)).map(op).collect();
        life.commit(|core| core.stage(&ops)).expect("power stays").expect("a full device takes deletes");
    }
    rest(life);
}

/// Goal:   full, all deleted, full again: a device takes at least 0.97 of what it took when new, of small records and of large ones,
///         without a new opening.
/// Method: for each kind of keys, three rounds of small and large records on one device, compared with new devices.
#[test]
fn emptied_devices_take_what_new_ones_take() {
    for kind in [KeyKind::U64, KeyKind::Bytes] {
        let new = [SMALL_BYTES, LARGE_BYTES].map(|bytes| {
            let (mut life, [first, _]) = empty(kind);
            fill(&mut life, first, kind, bytes)
        });
        let (mut life, namespaces) = empty(kind);
        for round in 0..3 {
            for ((namespace, bytes), new) in namespaces.into_iter().zip([SMALL_BYTES, LARGE_BYTES]).zip(new) {
                let count = fill(&mut life, namespace, kind, bytes);
                println!("{kind:?}, round {round}: {count} records of {bytes} B, {new} on a new device");
                assert!(count * 100 >= new * 97, "{kind:?}, round {round}: {count} of {new} records of {bytes} B");
                delete_all(&mut life, namespace, kind, count);
                assert_eq!(life.core.stats().live_bytes, 0);
            }
        }
    }
}

/// Goal:   a device that is kept full while records come and go neither stops nor loses any; emptied, it takes what it took first.
/// Method: records of 1 to 3000 bytes at random keys of two namespaces; a Put that is refused is followed by random deletes, and
///         occasionally one namespace is emptied. The device is opened again without having been closed. A model has the content of each key.
#[test]
fn full_devices_churn() {
    const KEYS: u64 = 40_000;
    let puts: u64 = std::env::var("KAML_CHURN_PUTS").map_or(40_000, |puts| puts.parse().expect("a number of puts"));
    let kind = KeyKind::U64;
    let (mut life, namespaces) = empty(kind);
    let (mut rng, mut model) = (Rng::new(11), BTreeMap::new());
    let mut refused = 0;
    for turn in 0..puts {
        let (namespace, number) = (namespaces[rng.below(2) as usize], rng.below(KEYS));
        let bytes = if rng.below(3) == 0 { 1 + rng.below(3000) } else { 1 + rng.below(40) };
        let stored = value(turn, bytes as usize);
        let body = Body::Value { value: &stored, crc32c: kaml_crc::crc32c(&stored) };
        let op = Op {
            namespace,
            key: key(kind, number).into(),
            body,
            condition: Condition::Always,
            expires: Default::default(),
        };
        match life.commit(|core| core.stage(&[op])).expect("power stays") {
            Ok(()) => _ = model.insert((namespace, number), (turn, bytes)),
            Err(Error::Full { .. }) => {
                refused += 1;
                let deleted = if refused % 400 == 0 { model.len() } else { 20 };
                for _ in 0..deleted {
                    let from = (namespaces[rng.below(2) as usize], rng.below(KEYS));
                    let Some((&(namespace, number), _)) = model.range(from..).next() else { continue };
                    model.remove(&(namespace, number));
                    let op = Op {
                        namespace,
                        key: key(kind, number).into(),
                        body: Body::Delete,
                        condition: Condition::Always,
                        expires: Default::default(),
                    };
                    let deleted = life.commit(|core| core.stage(&[op])).expect("power stays");
                    deleted.expect("a full device takes deletes");
                }
            }
            Err(other) => panic!("Put {turn}: {other}"),
        }
        if turn % (puts / 4) == puts / 8 {
            life = Life::open(&life.medium, turn).unwrap();
            for (&(namespace, number), &(seed, bytes)) in &model {
                assert_eq!(life.get(namespace, number), Some(value(seed, bytes as usize)), "key {number}, Put {turn}");
            }
        }
    }
    println!("{refused} of {puts} Puts refused");
    assert!(refused > 0, "the device was never full");
    rest(&mut life);
    life.audit();
    for namespace in namespaces {
        delete_all(&mut life, namespace, kind, KEYS);
    }
    let (count, new) = (fill(&mut life, namespaces[0], kind, SMALL_BYTES), {
        let (mut life, [first, _]) = empty(kind);
        fill(&mut life, first, kind, SMALL_BYTES)
    });
    assert!(count * 100 >= new * 97, "{count} of {new} records");
}

/// Goal:   indexes that become idle one after the other do not keep a block of metadata each.
/// Method: namespaces that get a few records and then rest, while another one changes and checkpoints are taken; free blocks are counted.
///         Then all records are found after an opening.
#[test]
fn images_of_idle_indexes_keep_no_blocks() {
    const IDLE: u32 = 24;
    let (mut life, [busy, _]) = empty(KeyKind::U64);
    let put = |life: &mut Life, namespace: u32, number: u64| {
        let stored = value(number, SMALL_BYTES);
        let body = Body::Value { value: &stored, crc32c: kaml_crc::crc32c(&stored) };
        let op = Op {
            namespace,
            key: key(KeyKind::U64, number).into(),
            body,
            condition: Condition::Always,
            expires: Default::default(),
        };
        life.commit(|core| core.stage(&[op])).expect("power stays").expect("there is room");
    };
    let checkpoint = |life: &mut Life| {
        let done = life.core.request_checkpoint();
        life.until(|core| core.roots_done() >= done).expect("power stays");
    };
    let mut idle = Vec::new();
    let mut free = Vec::new();
    for at in 0..IDLE {
        let options = NamespaceOptions::records(KeyKind::U64);
        let namespace = life.core.create_namespace(&format!("idle {at}"), &options).unwrap();
        rest(&mut life);
        (0..50).for_each(|number| put(&mut life, namespace, number));
        idle.push(namespace);
        for number in 0..40 {
            put(&mut life, busy, number);
            checkpoint(&mut life);
        }
        rest(&mut life);
        free.push(life.core.stats().free_blocks);
    }
    println!("free blocks: {free:?}");
    assert!(free[0] - free[IDLE as usize - 1] <= 6, "idle indexes keep blocks: {free:?}");
    life.audit();
    life = Life::open(&life.medium, 1).unwrap();
    for namespace in idle {
        (0..50).for_each(|number| assert_eq!(life.get(namespace, number), Some(value(number, SMALL_BYTES))));
    }
}

/// Goal:   each collection policy gets blocks back and loses no record, also if another one collected before.
/// Method: a device three quarters full; under one policy after the other, records at random keys are replaced as often as there are
///         three times over. The device is opened again without having been closed, and a model has the content of each key.
#[test]
fn every_policy_collects_and_keeps_records() {
    let (mut life, [namespace, _]) = empty(KeyKind::U64);
    let full = fill(&mut life, namespace, KeyKind::U64, LARGE_BYTES);
    delete_all(&mut life, namespace, KeyKind::U64, full);
    let (mut rng, mut model) = (Rng::new(5), BTreeMap::new());
    let mut seed = 0;
    for policy in CollectionPolicy::ALL {
        life.core.set_collection_policy(policy);
        for _ in 0..3 * full {
            let number = rng.below(full * 3 / 4);
            seed += 1;
            model.insert(number, seed);
            let stored = value(seed, LARGE_BYTES);
            let body = Body::Value { value: &stored, crc32c: kaml_crc::crc32c(&stored) };
            let op = Op {
                namespace,
                key: Key::from(number).into(),
                body,
                condition: Condition::Always,
                expires: Default::default(),
            };
            life.commit(|core| core.stage(&[op])).expect("power stays").expect("there is room");
        }
        let stats = life.core.stats();
        println!("{policy}: {} blocks erased, {} bytes relocated", stats.erase_count, stats.relocated_bytes);
        assert!(stats.erase_count > 0 && stats.relocated_bytes > 0, "{policy} collects nothing");
        assert!(stats.collection_read_bytes > stats.relocated_bytes, "what moves is read: {stats:?}");
        life.audit();
        life = Life::open(&life.medium, seed).unwrap();
        for (number, seed) in &model {
            assert_eq!(life.get(namespace, *number), Some(value(*seed, LARGE_BYTES)), "key {number}, {policy}");
        }
    }
}
