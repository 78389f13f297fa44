//! Readers next to the writer.

mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use kaml_index::{HashLayout, HashWriter, Key, KeyKind, LenCode, Slot};
use support::colliding;

/// Values carry their key's number and a turn, so a reader can show what was never written for its key.
fn slot(i: u64, turn: u64) -> Slot {
    Slot { at: i << 4 | turn & 0xf, len: LenCode::of(1 + (i ^ turn) as u32 % 16).unwrap() }
}

fn check(i: u64, slot: Slot, turns: u64, what: &str) {
    let turn = slot.at & 0xf;
    assert_eq!(slot.at >> 4, i, "{what} returned another key's value");
    assert_eq!(slot.len, LenCode::of(1 + (i ^ turn) as u32 % 16).unwrap(), "{what} returned half of a value");
    assert!(turn <= turns, "{what} returned turn {turn} before it was written");
}

/// The keys of a test by their numbers.
struct Keys {
    kind: KeyKind,
    /// Each sixteenth is of these, as long as there are any.
    chosen: Vec<Key>,
    numbers: HashMap<Key, u64>,
}

impl Keys {
    fn new(kind: KeyKind, chosen: Vec<Key>) -> Keys {
        Keys { kind, numbers: chosen.iter().copied().zip((0..).step_by(16)).collect(), chosen }
    }

    fn key(&self, i: u64) -> Key {
        let chosen = if i.is_multiple_of(16) { self.chosen.get((i / 16) as usize) } else { None };
        chosen.copied().unwrap_or_else(|| match self.kind {
            KeyKind::U64 => Key::from(i),
            KeyKind::Any => Key::of_digest((u128::from(i) << 64 | 77).to_be_bytes()),
            KeyKind::Bytes | KeyKind::Ordered => Key::new(&[&i.to_be_bytes()[..], b"long key"].concat()).unwrap(),
        })
    }

    fn number(&self, key: &Key) -> u64 {
        let own = || u64::from_be_bytes(key.as_bytes()[..8].try_into().unwrap());
        self.numbers.get(key).copied().unwrap_or_else(own)
    }
}

/// Goal:   a reader finds every key that is never removed, with a value that was at some time written for it, and never a
///         key that was never there, however much the table kicks, grows, splits, shrinks and reuses pages next to it.
/// Method: one writer updates the lasting keys turn by turn, and inserts and removes a crowd of passing keys in waves; two
///         readers probe lasting and absent keys, singly and in batches, and list; each answer is checked by itself. With
///         narrow addresses buckets have six slots, for which look-ups have a way of their own. The same with some keys, lasting and
///         passing ones, that were chosen to collide.
#[test]
fn readers_are_never_misled() {
    const LASTING: u64 = 20_000;
    const PASSING: u64 = 150_000;
    let chosen = colliding(KeyKind::U64, 0, ((LASTING + PASSING) / 16) as usize);
    let ways = [
        (KeyKind::U64, 26, vec![]),
        (KeyKind::U64, 40, vec![]),
        (KeyKind::Bytes, 40, vec![]),
        (KeyKind::Any, 40, vec![]),
        (KeyKind::U64, 26, chosen.clone()),
        (KeyKind::U64, 40, chosen),
    ];
    for (kind, addr_bits, chosen) in ways {
        let keys = &Keys::new(kind, chosen);
        let mut index = HashWriter::new(HashLayout { keys: kind, addr_bits });
        for i in 0..LASTING {
            index.insert(&keys.key(i), slot(i, 0));
        }
        let (done, turns, answers) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (reader, done, turns, answered) = (index.reader(), &done, &turns, &answers);
                scope.spawn(move || {
                    let (mut random, mut count) = (thread + 1, 0);
                    let mut next = || {
                        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                        random >> 33
                    };
                    while !done.load(Acquire) || count == 0 {
                        for _ in 0..1000 {
                            let i = next() % LASTING;
                            let found = reader.get(&keys.key(i)).expect("lasting keys are always found");
                            check(i, found, turns.load(Acquire) + 1, "get");
                            assert_eq!(reader.get(&keys.key(1 << 40 | i)), None, "never inserted");
                        }
                        let wanted: Vec<u64> = (0..100).map(|_| next() % LASTING).collect();
                        let wanted_keys: Vec<Key> = wanted.iter().map(|&i| keys.key(i)).collect();
                        let mut found = vec![];
                        reader.get_batch(&wanted_keys, &mut found);
                        for (&i, found) in wanted.iter().zip(found) {
                            check(i, found.expect("lasting keys are always found"), turns.load(Acquire) + 1, "batch");
                        }
                        count += 1;
                        if count % 64 == thread {
                            list_all(&reader, keys, LASTING);
                        }
                    }
                    answered.fetch_add(count, Relaxed);
                });
            }
            for turn in 1..=12 {
                for i in 0..PASSING {
                    let passing = LASTING + i;
                    if turn % 2 == 1 {
                        index.insert(&keys.key(passing), slot(passing, turn));
                    } else {
                        assert!(index.remove(&keys.key(passing)).is_some());
                    }
                    if i % 4 == 0 {
                        let lasting = i * 7 % LASTING;
                        index.insert(&keys.key(lasting), slot(lasting, turn));
                    }
                }
                turns.store(turn, Release);
            }
            done.store(true, Release);
        });
        assert!(answers.load(Relaxed) > 0);
        assert_eq!(index.len(), LASTING);
    }
}

fn list_all(reader: &kaml_index::HashReader, keys: &Keys, lasting: u64) {
    let (mut seen, mut after, mut found) = (HashSet::new(), None, 0);
    loop {
        let (listed, next) = reader.list(after, 1000);
        for listed in listed {
            assert!(seen.insert(listed), "{listed} listed twice");
            let number = keys.number(&listed);
            assert_eq!(listed, keys.key(number));
            found += u64::from(number < lasting);
        }
        let Some(next) = next else { break };
        after = Some(kaml_index::Cursor::from_bytes(next.to_bytes()));
    }
    assert_eq!(found, lasting, "lasting keys are all listed");
}

/// Goal:   listings answer each lasting key once, in one order, while the table grows twentyfold between their steps.
/// Method: steps of several sizes, thousands of inserts between any two; and a cursor of nonsense ends as well.
#[test]
fn listings_stand_growth() {
    for limit in [1, 7, 100, 1000] {
        let layout = HashLayout { keys: KeyKind::U64, addr_bits: 40 };
        let mut index = HashWriter::new(layout);
        let lasting = 40 * limit as u64;
        for i in 0..lasting {
            index.insert(&Key::from(i), slot(i, 0));
        }
        let (mut seen, mut after, mut more) = (vec![], None, lasting);
        loop {
            let (keys, next) = index.list(after, limit);
            assert!(keys.len() <= limit);
            seen.extend(keys);
            assert!(next.is_none() || next > after, "cursors move on");
            after = next;
            if after.is_none() {
                break;
            }
            for _ in 0..if more < 20 * lasting { lasting } else { 0 } {
                index.insert(&Key::from(more), slot(more, 0));
                more += 1;
            }
        }
        let distinct: HashSet<Key> = seen.iter().copied().collect();
        assert_eq!(distinct.len(), seen.len(), "no key twice");
        assert!((0..lasting).all(|i| distinct.contains(&Key::from(i))), "no lasting key left out");
        let nonsense = kaml_index::Cursor::from_bytes([0xff; 24]);
        assert_eq!(index.list(Some(nonsense), 10), (vec![], None));
    }
}

/// Goal:   the measurement runs, and its figures that do not depend on the machine are within their promises.
/// Method: a small index, past the size from which memory is promised.
#[test]
fn measured_small() {
    let figures = kaml_index::measure(1_200_000, 32);
    assert!(figures.load >= 0.85 && figures.load <= 0.96, "{figures:?}");
    assert!(figures.key_count >= 1_200_000 && figures.key_count <= 1_500_000, "{figures:?}");
    assert!(figures.bytes_per_key_max <= 16.0, "{figures:?}");
    assert!(figures.bytes_per_key <= 12.8 / figures.load * 1.02, "five slots of 64 bytes: {figures:?}");
    assert!(figures.hit_batch_mps > 0.0 && figures.readers_scale() > 0.0, "{figures:?}");
}
