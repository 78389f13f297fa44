//! The index against `std` maps.

mod support;

use std::collections::{HashMap, HashSet};

use kaml_index::{HashLayout, HashWriter, Key, KeyKind, LenCode, Slot};
use proptest::prelude::*;
use support::{colliding, of_mixed};

fn slot(at: u64, chunks: u32) -> Slot {
    Slot { at, len: LenCode::of(chunks).unwrap() }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, u64, u32),
    /// Many at once, so segments fill, grow and split.
    Fill(u16, u16),
    Remove(u16),
    Clear(u16, u16),
    Replace(u16, u64, bool),
    Get(u16),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (any::<u16>(), any::<u64>(), 1u32..100).prop_map(|(k, at, chunks)| Op::Insert(k % 64, at, chunks)),
        1 => (any::<u16>(), 0u16..6000).prop_map(|(k, count)| Op::Fill(k, count)),
        2 => any::<u16>().prop_map(|k| Op::Remove(k % 64)),
        1 => (any::<u16>(), 0u16..6000).prop_map(|(k, count)| Op::Clear(k, count)),
        2 => (any::<u16>(), any::<u64>(), any::<bool>()).prop_map(|(k, at, right)| Op::Replace(k % 64, at, right)),
        2 => any::<u16>().prop_map(|k| Op::Get(k % 64)),
    ];
    prop::collection::vec(op, 1..60)
}

/// Keys of many patterns: dense, spaced, sharing low or high bits, short, long, differing in length only.
fn key(kind: KeyKind, pattern: u8, i: u16) -> Key {
    let n = u64::from(i);
    let n = [n, n << 48, n << 20, n.wrapping_mul(0x0001_0001_0001_0001), !n][usize::from(pattern % 5)];
    match kind {
        KeyKind::U64 => Key::from(n),
        KeyKind::Any if pattern % 2 == 1 => Key::of_digest((u128::from(n) << 64 | u128::from(!n)).to_be_bytes()),
        KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&n.to_be_bytes());
            let len = match pattern {
                0..5 => 8,
                5..10 => {
                    bytes.rotate_left(8);
                    16
                }
                _ => 9 + usize::from(i % 7), // zeros after 8 bytes: the length alone distinguishes them
            };
            Key::new(&bytes[..len]).unwrap()
        }
    }
}

fn check(index: &HashWriter, model: &HashMap<Key, Slot>) -> Result<(), TestCaseError> {
    prop_assert_eq!(index.len(), model.len() as u64);
    prop_assert!(index.load() <= 1.0);
    let mut seen = HashMap::new();
    index.for_each(|key, slot| assert!(seen.insert(key, slot).is_none(), "{key} twice"));
    prop_assert_eq!(&seen, model);
    let mut places: Vec<u64> = vec![];
    index.for_each_slot(|slot| places.push(slot.at));
    places.sort_unstable();
    let mut wanted: Vec<u64> = model.values().map(|slot| slot.at).collect();
    wanted.sort_unstable();
    prop_assert_eq!(places, wanted);
    let keys: Vec<Key> = model.keys().copied().collect();
    let mut answers = vec![];
    index.reader().get_batch(&keys, &mut answers);
    let wanted: Vec<Option<Slot>> = model.values().map(|slot| Some(*slot)).collect();
    prop_assert_eq!(answers, wanted);
    let (mut listed, mut after) = (vec![], None);
    loop {
        let (keys, next) = index.list(after, 700);
        prop_assert!(next.is_none() || keys.len() == 700);
        listed.extend(keys);
        after = next;
        if after.is_none() {
            break;
        }
    }
    prop_assert_eq!(listed.len(), model.len());
    prop_assert_eq!(listed.into_iter().collect::<HashSet<_>>(), model.keys().copied().collect::<HashSet<_>>());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Goal:   the index returns what a map does, whatever its layout, while it grows, splits and shrinks.
    /// Method: random operations on random layouts and on a `HashMap`, all results compared, everything read back at the
    ///         end in each of the ways there are; in some cases half of the keys were chosen to collide.
    #[test]
    fn like_a_map(ops in ops(), kind in 0..3usize, addr_bits in 1u32..=48, pattern in 0u8..14, seed: u64) {
        let keys = [KeyKind::U64, KeyKind::Bytes, KeyKind::Any][kind];
        let mut index = HashWriter::with_seed(HashLayout { keys, addr_bits }, seed);
        let mut model = HashMap::new();
        let chosen = if pattern < 12 { vec![] } else { colliding(keys, seed, 2000) };
        let key = |i: u16| match i % 2 {
            0 if !chosen.is_empty() => chosen[usize::from(i / 2) % chosen.len()],
            _ => key(keys, pattern, i),
        };
        let cut = |at: u64| at & ((1 << addr_bits) - 1);
        for op in ops {
            match op {
                Op::Insert(k, at, chunks) => {
                    let slot = slot(cut(at), chunks);
                    prop_assert_eq!(index.insert(&key(k), slot), model.insert(key(k), slot));
                }
                Op::Fill(k, count) => for i in 0..count {
                    let (key, slot) = (key(k.wrapping_add(i)), slot(cut(u64::from(i)), 1));
                    prop_assert_eq!(index.insert(&key, slot), model.insert(key, slot));
                },
                Op::Remove(k) => prop_assert_eq!(index.remove(&key(k)), model.remove(&key(k))),
                Op::Clear(k, count) => for i in 0..count {
                    let key = key(k.wrapping_add(i));
                    prop_assert_eq!(index.remove(&key), model.remove(&key));
                },
                Op::Replace(k, at, right) => {
                    let old = model.get(&key(k)).copied().unwrap_or(slot(0, 1));
                    let expected = if right { old } else { slot(old.at, 101) };
                    let new = slot(cut(at), 7);
                    let replaced = model.get(&key(k)) == Some(&expected);
                    prop_assert_eq!(index.replace_if(&key(k), expected, new), replaced);
                    if replaced {
                        model.insert(key(k), new);
                    }
                }
                Op::Get(k) => prop_assert_eq!(index.get(&key(k)), model.get(&key(k)).copied()),
            }
        }
        check(&index, &model)?;
    }
}

/// Goal:   exactness: no key is ever taken for another.
/// Method: dense integers and integers that share low or high halves; of each pattern the even members are inserted, the
///         odd ones must be absent, singly and in batches.
#[test]
fn absent_neighbours_are_absent() {
    let patterns: [fn(u64) -> u64; 5] =
        [|i| i, |i| i << 32, |i| i << 44 | 0x1234, |i| i.reverse_bits(), |i| (i << 32) | i];
    for addr_bits in [20, 32, 48] {
        for pattern in patterns {
            let mut index = HashWriter::new(HashLayout { keys: KeyKind::U64, addr_bits });
            let last = 1 << 18;
            for i in (0..last).step_by(2) {
                assert_eq!(index.insert(&Key::from(pattern(i)), slot(i, 1)), None);
            }
            let keys: Vec<Key> = (0..last).map(|i| Key::from(pattern(i))).collect();
            let mut answers = vec![];
            index.get_batch(&keys, &mut answers);
            for (i, (key, answer)) in (0..last).zip(keys.iter().zip(answers)) {
                let wanted = (i % 2 == 0).then_some(slot(i, 1));
                assert_eq!(answer, wanted, "{key}");
                assert_eq!(index.get(key), wanted, "{key}");
            }
        }
    }
}

/// Goal:   keys made to share one first bucket, and long keys, still find room.
/// Method: `Bytes` keys that are the same but for the verbatim part or the length, thousands of them.
#[test]
fn alike_long_keys_find_room() {
    let mut index = HashWriter::new(HashLayout { keys: KeyKind::Bytes, addr_bits: 36 });
    let keys: Vec<Key> = (0..20_000u64)
        .flat_map(|i| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&i.to_be_bytes());
            [Key::new(&bytes).unwrap(), Key::new(&bytes[..8 + i as usize % 8]).unwrap()]
        })
        .collect();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(index.insert(key, slot(i as u64, 1)), None, "{key}");
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(index.get(key), Some(slot(i as u64, 1)), "{key}");
    }
}

/// Goal:   keys chosen to meet in one segment however often it splits find a place, too, and take no more memory than a hundred bytes
///         each beyond the largest directory; also where address space ends before segments cannot split any more.
/// Method: keys that agree in the bits by which segments split, or of which as many begin with each number of zeros, so segments
///         split as often as they can; read back, listed, removed.
#[test]
fn keys_of_one_prefix_find_a_place() {
    const COUNT: u64 = 200_000;
    let agree = |i: u64| i;
    let begin_with_zeros = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63) >> (i % 27);
    let ways: [(u32, &dyn Fn(u64) -> u64); 4] =
        [(20, &agree), (40, &agree), (20, &begin_with_zeros), (40, &begin_with_zeros)];
    for (way, (addr_bits, mixed)) in ways.into_iter().enumerate() {
        let mut index = HashWriter::with_seed(HashLayout { keys: KeyKind::U64, addr_bits }, 7);
        let key = |i: u64| of_mixed(KeyKind::U64, 7, mixed(i));
        (0..COUNT).for_each(|i| assert_eq!(index.insert(&key(i), slot(i, 1)), None));
        let directories = 128 << 20;
        assert!(index.memory_bytes() < directories + COUNT * 100, "{} bytes", index.memory_bytes());
        assert!(way < 3 || index.memory_bytes() > directories / 2, "they split to the end: {}", index.memory_bytes());
        (0..COUNT).for_each(|i| assert_eq!(index.get(&key(i)), Some(slot(i, 1))));
        (COUNT..2 * COUNT).for_each(|i| assert_eq!(index.get(&key(i)), None));
        let model = (0..COUNT).map(|i| (key(i), slot(i, 1))).collect();
        check(&index, &model).unwrap();
        (0..COUNT).for_each(|i| assert_eq!(index.remove(&key(i)), Some(slot(i, 1))));
        assert_eq!(index.len(), 0);
    }
}

/// Goal:   a few keys that were chosen to collide cost an index that holds many others nothing.
/// Method: a hundred thousand keys, a hundred of the chosen, again as many others: no more memory than without the chosen, but for
///         a few pages; the load is that of an index without them.
#[test]
fn few_chosen_keys_cost_little() {
    let filled = |chosen: &[Key]| {
        let mut index = HashWriter::with_seed(HashLayout { keys: KeyKind::U64, addr_bits: 33 }, 7);
        (0..100_000).for_each(|i| assert_eq!(index.insert(&Key::from(i), slot(i, 1)), None));
        chosen.iter().for_each(|key| assert_eq!(index.insert(key, slot(1, 1)), None));
        (100_000..200_000).for_each(|i| assert_eq!(index.insert(&Key::from(i), slot(i, 1)), None));
        (index.memory_bytes(), index.load())
    };
    let mut alone = HashWriter::with_seed(HashLayout { keys: KeyKind::U64, addr_bits: 33 }, 7);
    colliding(KeyKind::U64, 7, 1000).iter().for_each(|key| assert_eq!(alone.insert(key, slot(1, 1)), None));
    assert!((32_000..200_000).contains(&alone.memory_bytes()), "{} bytes of a thousand", alone.memory_bytes());
    let (without, with) = (filled(&[]), filled(&colliding(KeyKind::U64, 7, 100)));
    assert!(with.0 < without.0 + without.0 / 10 && with.1 > without.1 - 0.1, "{without:?}, with the chosen {with:?}");
}

/// Goal:   memory follows the keys down as well as up, and given-back pages are used again.
/// Method: fill, empty, fill again with other keys: the second time nothing more is taken from the system, but for what a
///         thread has ready, or has not yet.
#[test]
fn pages_are_used_again() {
    let mut index = HashWriter::new(HashLayout { keys: KeyKind::U64, addr_bits: 32 });
    assert!(index.memory_bytes() < 16 << 10, "{} bytes for an empty index", index.memory_bytes());
    let count = 300_000;
    (0..count).for_each(|i| assert!(index.insert(&Key::from(i), slot(i, 1)).is_none()));
    let full = index.memory_bytes();
    (0..count).for_each(|i| assert!(index.remove(&Key::from(i)).is_some()));
    assert_eq!(index.len(), 0);
    (count..2 * count).for_each(|i| assert!(index.insert(&Key::from(i), slot(i, 1)).is_none()));
    let ready_max = 256 << 10;
    assert!(index.memory_bytes() <= full + full / 20 + ready_max, "{full} bytes, then {}", index.memory_bytes());
}
