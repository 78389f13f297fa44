//! The dense index against a `BTreeMap`, while readers run, and through its images.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::*};

use kaml_index::{
    DenseLayout, DenseWriter, IndexLayout, IndexWriter, Key, KeyKind, LenCode, Slot, SnapshotCursor, SnapshotError,
};
use proptest::prelude::*;

fn len() -> LenCode {
    LenCode::of(33).unwrap()
}

fn layout(key_count: u64, addr_bits: u32) -> DenseLayout {
    DenseLayout { key_count, addr_bits, len: len() }
}

fn slot(at: u64) -> Slot {
    Slot { at, len: len() }
}

fn images(index: &IndexWriter) -> Vec<Vec<u8>> {
    let (mut images, mut next) = (vec![], Some(SnapshotCursor::START));
    while let Some(from) = next {
        images.push(vec![]);
        next = index.snapshot_next(from, images.last_mut().unwrap());
    }
    images
}

fn contents(index: &IndexWriter) -> BTreeMap<Key, Slot> {
    let mut seen = BTreeMap::new();
    index.for_each(|key, slot| assert!(seen.insert(key, slot).is_none(), "{key} twice"));
    seen
}

fn load(layout: DenseLayout, images: &[Vec<u8>]) -> IndexWriter {
    IndexWriter::of_snapshot(IndexLayout::Dense(layout), &images.concat()).unwrap()
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u64),
    Fill(u64, u64),
    Remove(u64),
    Replace(u64, u64, bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (any::<u64>(), any::<u64>()).prop_map(|(key, at)| Op::Insert(key, at)),
        1 => (any::<u64>(), 0u64..400).prop_map(|(key, count)| Op::Fill(key, count)),
        2 => any::<u64>().prop_map(Op::Remove),
        2 => (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(key, at, right)| Op::Replace(key, at, right)),
    ];
    prop::collection::vec(op, 1..80)
}

proptest! {
    /// Goal:   the dense index returns what a map does, for every width of an entry, and comes back from its images.
    /// Method: random operations over few and many keys on it and a `BTreeMap`, all results compared; then everything is read
    ///         back in each of the ways there are, and once more from the images.
    #[test]
    fn like_a_map(ops in ops(), addr_bits in 1u32..=48, key_count in prop_oneof![1u64..100, 1u64..100_000]) {
        let layout = layout(key_count, addr_bits);
        let mut index = IndexWriter::new(IndexLayout::Dense(layout), 0).unwrap();
        let mut model = BTreeMap::new();
        let place = |at: u64| slot(at & ((1 << addr_bits) - 1));
        for op in ops {
            match op {
                Op::Insert(key, at) => {
                    let key = Key::from(key % key_count);
                    prop_assert_eq!(index.insert(&key, place(at)), model.insert(key, place(at)));
                }
                Op::Fill(key, count) => for i in 0..count {
                    let key = Key::from(key.wrapping_add(i) % key_count);
                    prop_assert_eq!(index.insert(&key, place(!i)), model.insert(key, place(!i)));
                },
                Op::Remove(key) => {
                    // Now and then one that the index does not take.
                    let key = Key::from(key % (key_count + 3));
                    prop_assert_eq!(index.remove(&key), model.remove(&key));
                }
                Op::Replace(key, at, right) => {
                    let key = Key::from(key % key_count);
                    let there = model.get(&key).copied();
                    let expected = if right { there.unwrap_or(place(0)) } else { place(there.map_or(0, |s| !s.at)) };
                    let swaps = there == Some(expected);
                    prop_assert_eq!(index.replace_if(&key, expected, place(at)), swaps);
                    if swaps {
                        model.insert(key, place(at));
                    }
                }
            }
        }
        prop_assert_eq!(index.len(), model.len() as u64);
        prop_assert_eq!(&contents(&index), &model);
        let reader = index.reader();
        prop_assert!(model.iter().all(|(key, slot)| reader.get(key) == Some(*slot)));
        prop_assert_eq!(reader.get(&Key::from(key_count)), None);
        prop_assert_eq!(reader.get(&Key::new(b"k").unwrap()), None);
        let keys: Vec<u64> = model.keys().map(|key| key.as_u64().unwrap()).collect();
        let all = reader.some_numbers(0..u64::MAX, usize::MAX, u64::MAX);
        prop_assert_eq!(all, Some((keys.clone(), u64::MAX)));
        let half = key_count / 3..key_count / 2;
        let wanted: Vec<u64> = keys.iter().copied().filter(|key| half.contains(key)).collect();
        for (limit, steps) in [(7, u64::MAX), (7, 3), (usize::MAX, 3)] {
            let (mut found, mut from, mut calls) = (vec![], half.start, 0);
            while from < half.end {
                let (some, next) = reader.some_numbers(from..half.end, limit, steps).unwrap();
                prop_assert!(some.len() <= limit && next > from);
                (found, from, calls) = ([found, some].concat(), next, calls + 1);
            }
            prop_assert_eq!(&found, &wanted);
            let lines = (half.end / 16).saturating_sub(half.start / 8) as usize; // 8 to 16 keys each
            prop_assert!(steps > 3 || calls >= lines / 3, "no call looked at more");
        }
        let (mut listed, mut after) = (vec![], None);
        loop {
            let (keys, next) = index.list(after, 50);
            listed.extend(keys);
            after = next;
            if after.is_none() {
                break;
            }
        }
        prop_assert_eq!(listed, model.keys().copied().collect::<Vec<_>>());
        let loaded = load(layout, &images(&index));
        prop_assert_eq!(loaded.len(), model.len() as u64);
        prop_assert_eq!(contents(&loaded), model);
    }

    /// Goal:   no image that this code could not have written is loaded, and none makes it panic.
    /// Method: images with bytes changed after a repaired checksum: refused, or their contents are taken and can be read back.
    #[test]
    fn hostile_images(at in 0usize..2000, with in prop::collection::vec(any::<u8>(), 1..20)) {
        let layout = layout(300, 35);
        let mut index = IndexWriter::new(IndexLayout::Dense(layout), 0).unwrap();
        for i in 0..200 {
            index.insert(&Key::from(i), slot(i * 77));
        }
        let mut image = images(&index).remove(0);
        with.iter().enumerate().for_each(|(i, byte)| if let Some(target) = image.get_mut(at + i) { *target = *byte });
        let crc = kaml_crc::crc32c(&[&image[..60], &image[64..]].concat());
        image[60..64].copy_from_slice(&crc.to_le_bytes());
        if let Ok(loaded) = IndexWriter::of_snapshot(IndexLayout::Dense(layout), &image) {
            prop_assert_eq!(contents(&loaded).len() as u64, loaded.len());
        }
    }
}

/// Goal:   memory is taken where keys are, about 5 bytes each, and hardly any for keys that were never there.
/// Method: an index of 2^32 keys, empty, with three keys far apart, and with a million in a row; saved and loaded it takes as much.
#[test]
fn memory_where_keys_are() {
    const KEYS: u64 = 1 << 32;
    let mut index = DenseWriter::new(layout(KEYS, 34));
    let empty = index.memory_bytes();
    assert!(empty < 32 << 10, "{empty} bytes for nothing");
    for key in [0, KEYS / 2, KEYS - 1] {
        index.insert(&Key::from(key), slot(key));
    }
    let segment = (64 << 10) + (4 << 10); // and places for 256
    assert!(index.memory_bytes() <= empty + 3 * segment);
    assert_eq!(index.numbers(1..KEYS, 9), [KEYS / 2, KEYS - 1]);
    for key in 0..1_000_000 {
        index.insert(&Key::from(key), slot(key));
    }
    let per_key = (index.memory_bytes() - empty) as f64 / 1e6;
    assert!(per_key < 5.3, "{per_key} bytes a key");
    let index = IndexWriter::Dense(index);
    let loaded = load(layout(KEYS, 34), &images(&index));
    assert!(contents(&loaded) == contents(&index));
    assert_eq!(loaded.memory_bytes(), index.memory_bytes());
}

/// Goal:   a reader never sees half of an entry.
/// Method: entries that cross words are rewritten with numbers whose halves belong together, while two readers look.
#[test]
fn readers_see_whole_entries() {
    const KEYS: u64 = 100;
    let value = |key: u64, turn: u64| (turn & 0xffff) << 20 | ((key + turn) & 0xfffff);
    let mut index = DenseWriter::new(layout(KEYS, 38));
    for key in 0..KEYS {
        index.insert(&Key::from(key), slot(value(key, 0)));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (reader, done) = (index.reader(), &done);
            scope.spawn(move || {
                while !done.load(Acquire) {
                    for key in 0..KEYS {
                        let at = reader.get(&Key::from(key)).expect("never removed").at;
                        assert_eq!(at, value(key, at >> 20), "half of one entry and half of another");
                    }
                }
            });
        }
        for turn in 0..20_000 {
            for key in 0..KEYS {
                index.insert(&Key::from(key), slot(value(key, turn)));
            }
        }
        done.store(true, Release);
    });
}

/// Goal:   images taken while the index changes, and what changed since the first, give the index of the end.
/// Method: inserts and removes after and before the cursor between any two images; the changes are replayed after loading.
#[test]
fn fuzzy_snapshots() {
    let layout = layout(200_000, 36);
    let mut index = IndexWriter::new(IndexLayout::Dense(layout), 0).unwrap();
    for key in (0..200_000).step_by(3) {
        index.insert(&Key::from(key), slot(key));
    }
    let (mut saved, mut next, mut changes) = (vec![], Some(SnapshotCursor::START), vec![]);
    while let Some(from) = next {
        saved.push(vec![]);
        next = index.snapshot_next(from, saved.last_mut().unwrap());
        for i in 0..500u64 {
            let key = (i * 7919 + saved.len() as u64 * 31) % 200_000;
            let to = (i % 4 > 0).then(|| slot(key + i));
            changes.push((Key::from(key), to));
            match to {
                Some(to) => index.insert(&Key::from(key), to),
                None => index.remove(&Key::from(key)),
            };
        }
    }
    assert!(saved.len() > 10);
    let mut loaded = load(layout, &saved);
    for (key, to) in changes {
        match to {
            Some(to) => loaded.insert(&key, to),
            None => loaded.remove(&key),
        };
    }
    assert_eq!(contents(&loaded), contents(&index));
}

/// Goal:   images out of order, cut short, of another index or twice are refused by name; an index without keys has one.
/// Method: each of them.
#[test]
fn wrong_images_are_refused() {
    let layout = layout(100_000, 36);
    let mut index = IndexWriter::new(IndexLayout::Dense(layout), 0).unwrap();
    assert_eq!(images(&index).len(), 1);
    assert_eq!(load(layout, &images(&index)).len(), 0);
    for key in [5, 50_000, 90_000] {
        index.insert(&Key::from(key), slot(key));
    }
    let images = images(&index);
    assert_eq!(images.len(), 4, "one for each of three segments, one for what is after the last");
    let refused = |layout, image: &[u8]| IndexWriter::of_snapshot(layout, image).err().expect("refused");
    let dense = IndexLayout::Dense(layout);
    assert!(matches!(refused(dense, &images[1]), SnapshotError::OutOfOrder { expected: Some(0), .. }));
    assert_eq!(refused(dense, &[]), SnapshotError::Incomplete { from: 0 });
    assert!(matches!(refused(dense, &images[0][..100]), SnapshotError::Short { got: 100, .. }));
    let mut flipped = images[0].clone();
    flipped[200] ^= 1;
    assert!(matches!(refused(dense, &flipped), SnapshotError::Checksum { .. }));
    let IndexWriter::Dense(mut loaded) = load(layout, &images) else { panic!("a dense layout") };
    assert_eq!(loaded.restore(&images[0]), Err(SnapshotError::NotEmpty { keys: 3 }));
    let others = [
        DenseLayout { addr_bits: 35, ..layout },
        DenseLayout { key_count: 100_001, ..layout },
        DenseLayout { len: LenCode::of(17).unwrap(), ..layout },
    ];
    for other in others {
        assert_eq!(refused(IndexLayout::Dense(other), &images[0]), SnapshotError::Foreign);
    }
    let hash = IndexLayout::Hash(kaml_index::HashLayout { keys: KeyKind::U64, addr_bits: 36 });
    assert_eq!(refused(hash, &images[0]), SnapshotError::Magic { found: *b"KDX1" });
}
