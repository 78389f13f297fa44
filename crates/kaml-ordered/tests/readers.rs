//! Readers next to the writer.

mod support;

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use kaml_ordered::{LenCode, OrderedLayout, OrderedReader, OrderedWriter, Slot};
use support::key;

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

/// Lasting keys have even numbers, passing ones odd numbers, so they share leaves.
const LASTING: u64 = 6_000;
const PASSING: u64 = 24_000;

fn lasting(i: u64) -> u64 {
    2 * i
}

fn passing(i: u64) -> u64 {
    2 * i + 1
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// One visit of a range in one direction: ascending or descending, nothing twice, all lasting keys within.
fn visit(reader: &OrderedReader, shape: u8, sorted: &[(Vec<u8>, u64)], turns: &AtomicU64, random: &mut Random) {
    let (a, b) = (random.below(LASTING) as usize, random.below(LASTING) as usize);
    let (from, to) = (a.min(b), a.max(b));
    let bounds = (Bound::Included(&sorted[from].0), Bound::Included(&sorted[to].0));
    let mut range = reader.range::<Vec<u8>>(bounds);
    let is_backward = random.below(2) == 0;
    let (mut last, mut next) = (None::<Vec<u8>>, 0);
    let inside = &sorted[from..=to];
    while let Some((found, slot)) = if is_backward { range.next_entry_back() } else { range.next_entry() } {
        if let Some(last) = &last {
            assert!(if is_backward { found < last.as_slice() } else { found > last.as_slice() }, "ranges are in order");
        }
        last = Some(found.to_vec());
        let number = slot.at >> 4;
        assert_eq!(key(shape, number), found, "a range returned a key with another key's value");
        check(number, slot, turns.load(Acquire) + 1, "range");
        if number % 2 == 0 {
            let wanted = if is_backward { inside.len() - 1 - next } else { next };
            assert_eq!(found, inside[wanted].0, "no lasting key is left out");
            next += 1;
        }
    }
    assert_eq!(next, inside.len(), "all lasting keys of the range are returned");
}

fn read(reader: &OrderedReader, shape: u8, sorted: &[(Vec<u8>, u64)], turns: &AtomicU64, random: &mut Random) {
    for _ in 0..300 {
        let i = random.below(LASTING);
        let found = reader.get(&key(shape, lasting(i))).expect("lasting keys are always found");
        check(lasting(i), found, turns.load(Acquire) + 1, "get");
        assert_eq!(reader.get(&key(shape, 1 << 20 | i)), None, "never inserted");
    }
    let wanted: Vec<u64> = (0..70).map(|_| lasting(random.below(LASTING))).collect();
    let keys: Vec<Vec<u8>> = wanted.iter().map(|&i| key(shape, i)).collect();
    let mut found = vec![];
    reader.get_batch(&keys, &mut found);
    for (&i, found) in wanted.iter().zip(found) {
        check(i, found.expect("lasting keys are always found"), turns.load(Acquire) + 1, "batch");
    }
    visit(reader, shape, sorted, turns, random);
    let count = reader.count::<Vec<u8>>(..);
    assert!((LASTING..=LASTING + PASSING).contains(&count), "{count}");
}

/// Goal:   a reader finds every key that is never removed, with a value that was at some time written for it, never a key that was never
///         there, and iterates over each lasting key exactly once in order, however leaves split, merge, move and reuse blocks next to it.
/// Method: one writer updates lasting keys turn by turn, and inserts and removes a crowd of passing keys between them in waves, by key and by
///         range; two readers look up, singly and in batches, and visit ranges in both directions; each answer is checked by itself. Shapes of
///         keys lead to all encodings of leaves and to trees of several heights.
#[test]
fn readers_are_never_misled() {
    for shape in [0, 1, 4, 5, 6, 8] {
        let mut sorted: Vec<(Vec<u8>, u64)> = (0..LASTING).map(|i| (key(shape, lasting(i)), lasting(i))).collect();
        sorted.sort();
        let mut index = OrderedWriter::new(OrderedLayout { addr_bits: 40 });
        (0..LASTING).for_each(|i| assert_eq!(index.insert(&key(shape, lasting(i)), slot(lasting(i), 0)), Ok(None)));
        let (done, turns, answers) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let passing_count = if key(shape, 1).len() > 500 { PASSING / 6 } else { PASSING };
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (reader, done, turns, answers, sorted) = (index.reader(), &done, &turns, &answers, &sorted);
                scope.spawn(move || {
                    let mut random = Random(thread + 1);
                    while !done.load(Acquire) {
                        read(&reader, shape, sorted, turns, &mut random);
                        answers.fetch_add(1, Relaxed);
                    }
                });
            }
            for turn in 1..=6 {
                for i in 0..passing_count {
                    let passing = passing(i * 7 % passing_count);
                    match turn % 2 {
                        1 => assert_eq!(index.insert(&key(shape, passing), slot(passing, turn)), Ok(None)),
                        _ if turn == 4 => {}
                        _ => assert!(index.remove(&key(shape, passing)).is_some()),
                    }
                    if i % 4 == 0 {
                        let lasting = lasting(i * 7 % LASTING);
                        index.insert(&key(shape, lasting), slot(lasting, turn)).unwrap();
                    }
                }
                if turn == 4 {
                    remove_between(&mut index, &sorted);
                }
                turns.store(turn, Release);
            }
            done.store(true, Release);
        });
        assert!(answers.load(Relaxed) > 0);
        assert_eq!(index.len(), LASTING);
    }
}

/// Removes all that is between lasting keys, range by range.
fn remove_between(index: &mut OrderedWriter, sorted: &[(Vec<u8>, u64)]) {
    let passing = |_: &[u8], slot: Slot| assert_eq!(slot.at >> 4 & 1, 1, "only passing keys are removed");
    index.remove_range::<Vec<u8>>((Bound::Unbounded, Bound::Excluded(&sorted[0].0)), passing);
    for pair in sorted.windows(2) {
        index.remove_range::<Vec<u8>>((Bound::Excluded(&pair[0].0), Bound::Excluded(&pair[1].0)), passing);
    }
    let last = &sorted[sorted.len() - 1].0;
    index.remove_range::<Vec<u8>>((Bound::Excluded(last), Bound::Unbounded), passing);
}

/// Goal:   an iterator continues correctly over any changes made between its steps, also when all that it has read is gone.
/// Method: for several shapes of keys, iterators from both ends that stop every few entries, while thousands of keys come between lasting ones and
///         go again.
#[test]
fn iterators_stand_changes() {
    for shape in [1, 2, 4, 9] {
        let mut index = OrderedWriter::new(OrderedLayout { addr_bits: 40 });
        let count = 1_000;
        (0..count).for_each(|i| assert_eq!(index.insert(&key(shape, lasting(i)), slot(lasting(i), 0)), Ok(None)));
        let mut range = index.iter();
        let (mut front, mut back, mut step) = (vec![], vec![], 0u64);
        loop {
            let is_front = step / 5 % 2 == 0;
            let next = if is_front { range.next() } else { range.next_back() };
            let Some((found, slot)) = next else { break };
            if (slot.at >> 4).is_multiple_of(2) {
                if is_front { front.push(found) } else { back.push(found) }
            }
            step += 1;
            if step.is_multiple_of(50) {
                for i in 0..1500 {
                    let passing = passing(step * 37 + i);
                    match step / 50 % 2 {
                        1 => assert_eq!(index.insert(&key(shape, passing), self::slot(passing, 0)), Ok(None)),
                        _ => drop(index.remove(&key(shape, passing))),
                    }
                }
                if step.is_multiple_of(100) {
                    let gone: Vec<_> = index.iter().filter(|(_, slot)| slot.at >> 4 & 1 == 1).collect();
                    gone.iter().for_each(|(key, _)| assert!(index.remove(key).is_some()));
                }
            }
        }
        front.extend(back.into_iter().rev());
        let mut wanted: Vec<Box<[u8]>> = (0..count).map(|i| key(shape, lasting(i)).into()).collect();
        wanted.sort();
        assert_eq!(front, wanted, "shape {shape}");
    }
}
