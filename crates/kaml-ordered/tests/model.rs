//! The ordered index against a `BTreeMap`.

mod support;

use std::collections::BTreeMap;
use std::ops::Bound;

use kaml_ordered::{BuildError, KEY_BYTES_MAX, KeyError, LenCode, OrderedBuilder, OrderedLayout, OrderedWriter, Slot};
use proptest::prelude::*;
use support::{SHAPES, key, slot};

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, u64),
    /// Many at once, so leaves split.
    Fill(u16, u16),
    Remove(u16),
    Clear(u16, u16),
    Replace(u16, u64, bool),
    RemoveRange(u16, u16, u8),
    RemovePrefix(u16, u8),
    Get(u16),
    Range(u16, u16, u8),
    Prefix(u16, u8),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let k = || any::<u16>();
    let op = prop_oneof![
        4 => (k(), any::<u64>()).prop_map(|(k, at)| Op::Insert(k % 256, at)),
        2 => (k(), 0u16..1500).prop_map(|(k, count)| Op::Fill(k % 4096, count)),
        2 => k().prop_map(|k| Op::Remove(k % 256)),
        1 => (k(), 0u16..1500).prop_map(|(k, count)| Op::Clear(k % 4096, count)),
        2 => (k(), any::<u64>(), any::<bool>()).prop_map(|(k, at, right)| Op::Replace(k % 256, at, right)),
        1 => (k(), k(), any::<u8>()).prop_map(|(a, b, bounds)| Op::RemoveRange(a % 4096, b % 4096, bounds)),
        1 => (k(), any::<u8>()).prop_map(|(k, len)| Op::RemovePrefix(k % 4096, len)),
        2 => k().prop_map(|k| Op::Get(k % 256)),
        3 => (k(), k(), any::<u8>()).prop_map(|(a, b, bounds)| Op::Range(a % 4096, b % 4096, bounds)),
        1 => (k(), any::<u8>()).prop_map(|(k, len)| Op::Prefix(k % 4096, len)),
    ];
    prop::collection::vec(op, 1..50)
}

type Model = BTreeMap<Vec<u8>, Slot>;
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn bounds(a: Vec<u8>, b: Vec<u8>, choice: u8) -> Bounds {
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    let bound = |choice: u8, key| match choice % 4 {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key),
        _ => Bound::Included(key),
    };
    (bound(choice, low), bound(choice / 4, high))
}

/// What the model has in the range; `BTreeMap` panics on some empty ones.
fn in_range(model: &Model, bounds: &Bounds) -> Vec<(Vec<u8>, Slot)> {
    let within = |key: &Vec<u8>| {
        (match &bounds.0 {
            Bound::Unbounded => true,
            Bound::Included(low) => key >= low,
            Bound::Excluded(low) => key > low,
        }) && match &bounds.1 {
            Bound::Unbounded => true,
            Bound::Included(high) => key <= high,
            Bound::Excluded(high) => key < high,
        }
    };
    model.iter().filter(|(key, _)| within(key)).map(|(key, slot)| (key.clone(), *slot)).collect()
}

fn owned(entry: (Box<[u8]>, Slot)) -> (Vec<u8>, Slot) {
    (entry.0.into(), entry.1)
}

fn as_refs(bounds: &Bounds) -> (Bound<&Vec<u8>>, Bound<&Vec<u8>>) {
    (bounds.0.as_ref(), bounds.1.as_ref())
}

/// A range in both directions, and from both ends by turns, read by whole leaves and by parts of them.
fn check_range(index: &OrderedWriter, model: &Model, bounds: &Bounds, turns: u8) -> Result<(), TestCaseError> {
    let wanted = in_range(model, bounds);
    for page in [usize::MAX, 1, 2 + usize::from(turns % 40)] {
        let range = || index.range::<Vec<u8>>(as_refs(bounds)).in_pages_of(page);
        let forward: Vec<_> = range().map(owned).collect();
        prop_assert_eq!(&forward, &wanted);
        let mut backward: Vec<_> = range().rev().map(owned).collect();
        backward.reverse();
        prop_assert_eq!(&backward, &wanted);
        let (mut both, mut front, mut back, mut i) = (range(), vec![], vec![], 0u32);
        loop {
            let from_front = (turns.rotate_left(i / 3)) & 1 == 0;
            let next = if from_front { both.next() } else { both.next_back() };
            i += 1;
            match next.map(owned) {
                Some(entry) => {
                    if from_front {
                        front.push(entry)
                    } else {
                        back.push(entry)
                    }
                }
                None => break,
            }
        }
        front.extend(back.into_iter().rev());
        prop_assert_eq!(&front, &wanted);
        prop_assert!(both.next().is_none() && both.next_back().is_none());
    }
    prop_assert_eq!(index.count::<Vec<u8>>(as_refs(bounds)), wanted.len() as u64);
    let estimate = index.estimate::<Vec<u8>>(as_refs(bounds));
    prop_assert!(estimate <= index.len());
    Ok(())
}

fn check(index: &OrderedWriter, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(index.len(), model.len() as u64);
    let mut seen = vec![];
    index.for_each(|key, slot| seen.push((key.to_vec(), slot)));
    let wanted: Vec<_> = model.iter().map(|(key, slot)| (key.clone(), *slot)).collect();
    prop_assert_eq!(&seen, &wanted);
    let mut backward: Vec<_> = index.reader().iter().rev().map(owned).collect();
    backward.reverse();
    prop_assert_eq!(&backward, &wanted);
    let keys: Vec<&Vec<u8>> = model.keys().collect();
    let mut answers = vec![];
    index.reader().get_batch(&keys, &mut answers);
    prop_assert!(answers.iter().copied().eq(model.values().map(|slot| Some(*slot))));
    prop_assert_eq!(index.first().map(owned), wanted.first().cloned());
    prop_assert_eq!(index.last().map(owned), wanted.last().cloned());
    prop_assert_eq!(index.is_empty(), wanted.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Goal:   the index returns what an ordered map does, whatever its keys and addresses, while leaves split, merge and change their encoding.
    /// Method: random operations on it and a `BTreeMap`, on keys of many shapes, some cases with two of them mixed; all results compared,
    ///         everything read back at the end in each of the ways there are.
    #[test]
    fn like_a_map(ops in ops(), addr_bits in 1u32..=48, first in 0..SHAPES, second in 0..SHAPES, mixed: bool) {
        let mut index = OrderedWriter::new(OrderedLayout { addr_bits });
        let mut model = Model::new();
        let key = |i: u16| key(if mixed && i.is_multiple_of(3) { second } else { first }, i.into());
        let slot = |at: u64| Slot { at: at & ((1 << addr_bits) - 1), len: LenCode::of(1 + at as u32 % 99).unwrap() };
        for op in ops {
            match op {
                Op::Insert(k, at) => {
                    prop_assert_eq!(index.insert(&key(k), slot(at)), Ok(model.insert(key(k), slot(at))));
                }
                Op::Fill(k, count) => for i in 0..count {
                    let (key, slot) = (key(k.wrapping_add(i)), slot(i.into()));
                    prop_assert_eq!(index.insert(&key, slot), Ok(model.insert(key, slot)));
                },
                Op::Remove(k) => prop_assert_eq!(index.remove(&key(k)), model.remove(&key(k))),
                Op::Clear(k, count) => for i in 0..count {
                    let key = key(k.wrapping_add(i));
                    prop_assert_eq!(index.remove(&key), model.remove(&key));
                },
                Op::Replace(k, at, right) => {
                    let old = model.get(&key(k)).copied();
                    let expected = if right { old.unwrap_or(slot(at)) } else { slot(at ^ 1) };
                    let done = index.replace_if(&key(k), expected, slot(at));
                    prop_assert_eq!(done, old == Some(expected));
                    if done {
                        model.insert(key(k), slot(at));
                    }
                }
                Op::RemoveRange(a, b, choice) => {
                    let bounds = bounds(key(a), key(b), choice | 2);
                    let wanted = in_range(&model, &bounds);
                    let mut seen = vec![];
                    let count = index.remove_range::<Vec<u8>>(as_refs(&bounds), |key, slot| seen.push((key.to_vec(), slot)));
                    prop_assert_eq!(count, wanted.len() as u64);
                    prop_assert_eq!(&seen, &wanted);
                    wanted.iter().for_each(|(key, _)| { model.remove(key); });
                }
                Op::RemovePrefix(k, len) => {
                    let prefix = key(k);
                    let prefix = &prefix[..prefix.len().min(1 + usize::from(len))];
                    let mut seen = vec![];
                    index.remove_prefix(prefix, |key, slot| seen.push((key.to_vec(), slot)));
                    let wanted: Vec<_> = model.iter().filter(|(key, _)| key.starts_with(prefix)).map(|(k, s)| (k.clone(), *s)).collect();
                    wanted.iter().for_each(|(key, _)| { model.remove(key); });
                    prop_assert_eq!(seen, wanted);
                }
                Op::Get(k) => prop_assert_eq!(index.get(&key(k)), model.get(&key(k)).copied()),
                Op::Range(a, b, choice) => check_range(&index, &model, &bounds(key(a), key(b), choice), choice)?,
                Op::Prefix(k, len) => {
                    let prefix = key(k);
                    let prefix = &prefix[..prefix.len().min(usize::from(len))];
                    let found: Vec<_> = index.prefix(prefix).map(owned).collect();
                    let wanted: Vec<_> = model.iter().filter(|(key, _)| key.starts_with(prefix)).map(|(k, s)| (k.clone(), *s)).collect();
                    prop_assert_eq!(found, wanted);
                }
            }
        }
        check(&index, &model)?;
        let mut rebuilt = OrderedBuilder::new(OrderedLayout { addr_bits });
        model.iter().for_each(|(key, slot)| rebuilt.push(key, *slot).unwrap());
        let mut rebuilt = rebuilt.finish();
        check(&rebuilt, &model)?;
        for (k, removed) in model.iter() {
            prop_assert_eq!(rebuilt.remove(k), Some(*removed));
        }
        prop_assert_eq!(rebuilt.len(), 0);
        prop_assert!(rebuilt.first().is_none());
    }
}

/// Goal:   each shape of keys works in numbers that make the tree several levels high, and all memory returns.
/// Method: 60 000 keys (fewer where they are long) inserted in a scattered order, read, half removed, read, all removed by range.
#[test]
fn many_keys_of_each_shape() {
    for shape in 0..SHAPES {
        let count = if key(shape, 12_345).len() > 500 { 6_000u64 } else { 60_000 };
        let scattered = |i: u64| i * 7_919 % count;
        let mut index = OrderedWriter::new(OrderedLayout { addr_bits: 40 });
        let empty = index.memory_bytes();
        let mut model = Model::new();
        for i in (0..count).map(scattered) {
            assert_eq!(index.insert(&key(shape, i), slot(i)), Ok(model.insert(key(shape, i), slot(i))));
        }
        check(&index, &model).unwrap();
        for i in (0..count).step_by(2).map(scattered) {
            assert_eq!(index.remove(&key(shape, i)), model.remove(&key(shape, i)));
        }
        check(&index, &model).unwrap();
        let removed = index.remove_range::<[u8]>(.., |_, _| {});
        assert_eq!(removed, model.len() as u64);
        check(&index, &Model::new()).unwrap();
        let left = index.memory_bytes() - empty;
        assert!(left < 512 << 10, "shape {shape}: {left} bytes for no keys");
    }
}

/// Goal:   what no index takes is refused by name, and odd ranges are empty rather than errors.
/// Method: empty and too long keys in every call; inverted ranges; bounds that no key can be.
#[test]
fn refusals_and_odd_ranges() {
    let mut index = OrderedWriter::new(OrderedLayout { addr_bits: 32 });
    let (longest, too_long) = (vec![7; KEY_BYTES_MAX], vec![7; KEY_BYTES_MAX + 1]);
    assert_eq!(index.insert(b"", slot(1)), Err(KeyError::Empty));
    assert_eq!(index.insert(&too_long, slot(1)), Err(KeyError::TooLong { len: KEY_BYTES_MAX + 1 }));
    assert!(KeyError::TooLong { len: 1025 }.to_string().contains("1025 bytes"));
    assert_eq!(index.insert(&longest, slot(1)), Ok(None));
    assert_eq!(index.get(&longest), Some(slot(1)));
    for absent in [b"".as_slice(), &too_long] {
        assert_eq!((index.get(absent), index.remove(absent)), (None, None));
        assert!(!index.replace_if(absent, slot(1), slot(2)));
    }
    let ten = [10u8].as_slice();
    let nine = [9u8].as_slice();
    index.insert(ten, slot(2)).unwrap();
    assert_eq!(index.range::<[u8]>((Bound::Included(ten), Bound::Excluded(nine))).count(), 0);
    assert_eq!(index.range::<[u8]>((Bound::Excluded(ten), Bound::Excluded(ten))).count(), 0);
    assert_eq!(index.range::<[u8]>((Bound::Included(ten), Bound::Included(ten))).count(), 1);
    assert_eq!(index.remove_range::<[u8]>((Bound::Included(ten), Bound::Excluded(nine)), |_, _| panic!("none")), 0);
    assert_eq!(index.range::<[u8]>((Bound::Excluded(too_long.as_slice()), Bound::Unbounded)).count(), 1);
    assert_eq!(index.prefix(b"").count(), 2);
    assert_eq!(index.prefix(&[0xff; 2000]).count(), 0);
    let mut builder = OrderedBuilder::new(OrderedLayout { addr_bits: 32 });
    builder.push(b"b", slot(1)).unwrap();
    assert_eq!(builder.push(b"b", slot(1)), Err(BuildError::NotAscending { entry: 1 }));
    assert_eq!(builder.push(b"a", slot(1)), Err(BuildError::NotAscending { entry: 1 }));
    assert_eq!(builder.push(b"", slot(1)), Err(BuildError::Key { entry: 1, error: KeyError::Empty }));
    assert_eq!(builder.finish().len(), 1);
}
