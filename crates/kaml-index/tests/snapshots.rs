//! Snapshots: there and back, under changes, and out of damaged bytes.

mod support;

use std::collections::HashMap;

use kaml_index::{
    DenseLayout, HashLayout, HashWriter, ImageReader, IndexLayout, IndexWriter, Key, KeyKind, LenCode, Slot,
    SnapshotCursor, SnapshotError,
};
use proptest::prelude::*;
use support::colliding;

const LAYOUT: HashLayout = HashLayout { keys: KeyKind::U64, addr_bits: 32 };
const LONG: HashLayout = HashLayout { keys: KeyKind::Bytes, addr_bits: 40 };

fn key(layout: HashLayout, i: u64) -> Key {
    match layout.keys {
        KeyKind::U64 => Key::from(i),
        KeyKind::Any if i.is_multiple_of(3) => {
            Key::of_digest(u128::from(i).wrapping_mul(0xfeed_face_cafe_beef_0123).to_le_bytes())
        }
        KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => {
            Key::new(&u128::from(i).wrapping_mul(0x0123_4567_89ab_cdef_0011).to_le_bytes()[..1 + i as usize % 16])
                .unwrap()
        }
    }
}

fn slot(at: u64) -> Slot {
    Slot { at: at % (1 << 32), len: LenCode::of(1 + at as u32 % 1000).unwrap() }
}

fn filled(layout: HashLayout, count: u64) -> (HashWriter, HashMap<Key, Slot>) {
    let (mut index, mut model) = (HashWriter::with_seed(layout, 5), HashMap::new());
    for i in 0..count {
        assert_eq!(index.insert(&key(layout, i), slot(i)), model.insert(key(layout, i), slot(i)));
    }
    (index, model)
}

/// The same with this many keys more that were chosen to collide.
fn filled_with_chosen(layout: HashLayout, count: u64, chosen: usize) -> (HashWriter, HashMap<Key, Slot>) {
    let (mut index, mut model) = filled(layout, count);
    for (key, i) in colliding(layout.keys, 5, chosen).into_iter().zip(count..) {
        assert_eq!(index.insert(&key, slot(i)), model.insert(key, slot(i)));
    }
    (index, model)
}

fn images(index: &HashWriter) -> Vec<Vec<u8>> {
    let (mut images, mut next) = (vec![], Some(SnapshotCursor::START));
    while let Some(cursor) = next {
        images.push(vec![]);
        next = index.snapshot_next(cursor, images.last_mut().unwrap());
    }
    images
}

fn contents(index: &HashWriter) -> HashMap<Key, Slot> {
    let mut seen = HashMap::new();
    index.for_each(|key, slot| assert!(seen.insert(key, slot).is_none(), "{key} twice"));
    assert_eq!(seen.len() as u64, index.len());
    seen
}

/// Goal:   a snapshot brings back what was saved, and the loaded index continues like any other.
/// Method: indexes from empty to several segments, of both kinds of keys, saved, loaded from one run of bytes, compared, then
///         doubled and emptied; some with keys that were chosen to collide.
#[test]
fn there_and_back() {
    for layout in [LAYOUT, LONG, HashLayout { keys: KeyKind::Any, addr_bits: 40 }] {
        for (count, chosen) in [(0, 0), (1, 0), (300, 0), (5_000, 0), (100_000, 0), (0, 40), (100_000, 1000)] {
            let (index, mut model) = filled_with_chosen(layout, count, chosen);
            let bytes = images(&index).concat();
            let mut loaded = HashWriter::of_snapshot(layout, &bytes).unwrap();
            assert_eq!(contents(&loaded), model);
            assert_eq!(loaded.load(), index.load());
            for i in count..2 * count {
                assert_eq!(loaded.insert(&key(layout, i), slot(i)), model.insert(key(layout, i), slot(i)));
            }
            assert_eq!(contents(&loaded), model);
            model.keys().for_each(|key| assert_eq!(loaded.remove(key), model.get(key).copied()));
            assert_eq!(loaded.len(), 0);
        }
    }
}

/// Goal:   a fuzzy snapshot and all changes since its first image make the index of its end.
/// Method: between any two images hundreds of inserts, updates and removes, so segments split before and after the
///         cursor; load, replay, compare.
#[test]
fn fuzzy_snapshots_and_replay() {
    let (mut index, mut model) = filled(LAYOUT, 50_000);
    let (mut saved, mut next, mut replay, mut turn) = (vec![], Some(SnapshotCursor::START), vec![], 0u64);
    while let Some(cursor) = next {
        next = index.snapshot_next(cursor, &mut saved);
        for _ in 0..8000 {
            turn += 1;
            let key = key(LAYOUT, turn.wrapping_mul(0x9e37_79b9) % 200_000);
            let change = (turn % 4 != 0).then_some(slot(turn));
            match change {
                Some(slot) => assert_eq!(index.insert(&key, slot), model.insert(key, slot)),
                None => assert_eq!(index.remove(&key), model.remove(&key)),
            }
            replay.push((key, change));
        }
    }
    assert!(model.len() > 80_000, "the index grew by many segments meanwhile");
    let mut loaded = HashWriter::with_seed(LAYOUT, 5);
    loaded.restore(&saved).unwrap();
    assert_ne!(contents(&loaded), model);
    for (key, change) in replay {
        match change {
            Some(slot) => loaded.insert(&key, slot),
            None => loaded.remove(&key),
        };
    }
    assert_eq!(contents(&loaded), model);
}

/// Goal:   images out of order, missing, foreign, cut, damaged or loaded into a used index are refused by name, by however
///         many threads they are checked, and leave nothing.
/// Method: one of each, the damage in the last image of a large snapshot; after every refusal the right one is still taken.
#[test]
fn refusals() {
    let (index, model) = filled(LAYOUT, 200_000);
    let images = images(&index);
    assert!(images.len() >= 4 && images.concat().len() > 2 << 20);
    let mut loaded = HashWriter::with_seed(LAYOUT, 5);
    assert_eq!(loaded.restore(&[]), Err(SnapshotError::Incomplete { from: 0 }));
    let out_of_order =
        |expected: Option<u64>, images: &[Vec<u8>], loaded: &mut HashWriter| match loaded.restore(&images.concat()) {
            Err(SnapshotError::OutOfOrder { expected: found, .. }) => assert_eq!(found.is_some(), expected.is_some()),
            other => panic!("{other:?}"),
        };
    out_of_order(Some(0), &images[1..], &mut loaded);
    out_of_order(Some(1), &[images[0].clone(), images[0].clone()], &mut loaded);
    out_of_order(Some(1), &[&images[..1], &images[2..]].concat(), &mut loaded);
    out_of_order(None, &[&images[..], &images[..1]].concat(), &mut loaded);
    let missing = images[..images.len() - 1].concat();
    assert!(matches!(loaded.restore(&missing), Err(SnapshotError::Incomplete { from: 1.. })));
    for cut in (1..images[1].len()).step_by(7) {
        let bytes = [&images[0], &images[1][..cut]].concat();
        assert!(matches!(loaded.restore(&bytes), Err(SnapshotError::Short { got, .. }) if got == cut));
    }
    let mut damaged = images.concat();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(loaded.restore(&damaged), Err(SnapshotError::Checksum { .. })));
    assert_eq!((loaded.len(), loaded.get(&key(LAYOUT, 7))), (0, None));
    loaded.restore(&images.concat()).unwrap();
    assert_eq!(contents(&loaded), model);
    assert_eq!(loaded.restore(&images.concat()), Err(SnapshotError::NotEmpty { keys: 200_000 }));
    for (layout, seed) in [(LONG, 5), (LAYOUT, 6), (HashLayout { addr_bits: 33, ..LAYOUT }, 5)] {
        assert_eq!(HashWriter::with_seed(layout, seed).restore(&images[0]), Err(SnapshotError::Foreign));
    }
}

fn checksum(image: &mut [u8]) {
    let crc32c = kaml_crc::crc32c(&[&image[..60], &image[64..]].concat());
    image[60..64].copy_from_slice(&crc32c.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Goal:   no damage is loaded, and no bytes at all cause a panic.
    /// Method: change bytes of a valid image: it must be refused. Then mend the checksum, as an enemy would: it can be taken
    ///         then, but the index must work.
    #[test]
    fn damaged_images(
        long: bool,
        changes in prop::collection::vec((prop_oneof![2 => 0usize..64, 1 => 0usize..1 << 14], 1u8..), 1..4),
        count in 0u64..300,
        chosen in prop_oneof![2 => Just(0), 1 => 13usize..40],
    ) {
        let layout = if long { LONG } else { LAYOUT };
        let (index, _) = filled_with_chosen(layout, count, chosen);
        let mut image = images(&index).remove(0);
        let intact = image.clone();
        changes.iter().for_each(|&(at, flip)| { let at = at % image.len(); image[at] ^= flip; });
        prop_assume!(image != intact);
        let mut loaded = HashWriter::with_seed(layout, 5);
        prop_assert!(loaded.restore(&image).is_err());
        checksum(&mut image);
        if loaded.restore(&image).is_ok() {
            let mut seen = vec![];
            loaded.for_each(|key, slot| seen.push((key, slot)));
            prop_assert_eq!(seen.len() as u64, loaded.len());
            (0..5000).for_each(|i| { loaded.insert(&key(layout, i), slot(i)); });
            (0..5000).for_each(|i| assert!(loaded.get(&key(layout, i)).is_some()));
        }
    }

    /// Goal:   as above, for bytes that never were an image.
    /// Method: random bytes, with and without a valid beginning.
    #[test]
    fn foreign_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..300), begin in 0usize..=64) {
        let (index, _) = filled(LAYOUT, 10);
        let image = images(&index).remove(0);
        let begin = begin.min(bytes.len());
        bytes[..begin].copy_from_slice(&image[..begin]);
        prop_assert!(HashWriter::with_seed(LAYOUT, 5).restore(&bytes).is_err());
    }
}

/// Goal:   wide chunk numbers in six slots, whose highest bits lie after the page, come through growth, removal, snapshots.
/// Method: so many keys that buckets have six slots; each is read back, half are removed, the others saved and loaded.
#[test]
fn wide_addresses_in_six_slots() {
    const WIDE: HashLayout = HashLayout { keys: KeyKind::U64, addr_bits: 34 };
    const COUNT: u64 = 2_400_000;
    let wide = |i: u64| Slot { at: i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30, ..slot(i) };
    let mut index = HashWriter::with_seed(WIDE, 5);
    (0..COUNT).for_each(|i| assert_eq!(index.insert(&Key::from(i), wide(i)), None));
    assert!(index.memory_bytes() < COUNT * 14, "six slots: {} bytes", index.memory_bytes());
    (0..COUNT).for_each(|i| assert_eq!(index.get(&Key::from(i)), Some(wide(i))));
    (0..COUNT).step_by(2).for_each(|i| assert_eq!(index.remove(&Key::from(i)), Some(wide(i))));
    let mut loaded = HashWriter::with_seed(WIDE, 5);
    loaded.restore(&images(&index).concat()).unwrap();
    for i in 0..COUNT {
        let wanted = (i % 2 == 1).then_some(wide(i));
        assert_eq!((loaded.get(&Key::from(i)), index.get(&Key::from(i))), (wanted, wanted));
    }
}

/// Goal:   an index whose device has grown gets more bits for chunk numbers and keeps every entry, with its image and after it.
/// Method: indexes of both kinds, keys without slots among them, from few bits to many and back; images are read with the bits that they
///         state, whatever layout is given.
#[test]
fn indexes_get_more_bits() {
    let dense = DenseLayout { key_count: 5000, addr_bits: 32, len: LenCode::of(7).unwrap() };
    let layouts = [IndexLayout::Hash(LAYOUT), IndexLayout::Hash(LONG), IndexLayout::Dense(dense)];
    for layout in layouts {
        let mut index = IndexWriter::new(layout, 5).unwrap();
        let key = |i: u64| match layout {
            // Short keys occur more than one time.
            IndexLayout::Hash(hash) => key(hash, i * 16 + 15),
            IndexLayout::Dense(_) => Key::from(i),
        };
        let slot = |i: u64| Slot { at: i * 3, len: LenCode::of(7).unwrap() };
        (0..3000).for_each(|i| assert!(index.insert(&key(i), slot(i)).is_none()));
        for bits in [33, 38, 48, 14] {
            index = index.with_addr_bits(bits).unwrap();
            assert_eq!((index.addr_bits(), index.len()), (bits, 3000));
            let (mut image, mut at) = (Vec::new(), Some(SnapshotCursor::START));
            while let Some(from) = at {
                at = index.snapshot_next(from, &mut image);
            }
            let stored = layout.with_addr_bits(20).as_stored(&image);
            assert_eq!(stored, layout.with_addr_bits(bits));
            let loaded = IndexWriter::of_snapshot(stored, &image).unwrap();
            for i in 0..3100 {
                let expected = (i < 3000).then(|| slot(i));
                assert_eq!((index.get(&key(i)), loaded.get(&key(i))), (expected, expected), "{bits} bits, key {i}");
            }
        }
        for image in [&[][..], &[0; 64], &[255; 64]] {
            assert_eq!(layout.as_stored(image), layout);
        }
    }
}

/// The images of an index, each with the place at which it begins.
fn placed_images(index: &IndexWriter) -> Vec<(u64, Vec<u8>)> {
    let (mut images, mut next) = (vec![], Some(SnapshotCursor::START));
    while let Some(cursor) = next {
        let mut image = vec![];
        next = index.snapshot_next(cursor, &mut image);
        images.push((cursor.place(), image));
    }
    images
}

/// The image that has a key.
fn image_of<'a>(reader: &ImageReader, images: &'a [(u64, Vec<u8>)], key: &Key) -> &'a [u8] {
    let place = reader.place(key).expect("the index takes the key");
    &images[images.partition_point(|(first, _)| *first <= place) - 1].1
}

/// Goal:   each key is found in the image that has it, and no other key in any; an image of other keys is refused.
/// Method: hash indexes of all kinds of keys, with lines of more bits and with keys that were chosen to collide, and dense ones with
///         holes; all present keys and as many absent ones are looked up by place, and one of them in every other image.
#[test]
fn keys_are_found_in_their_images() {
    let wide = HashLayout { keys: KeyKind::U64, addr_bits: 36 };
    for layout in [LAYOUT, wide, LONG, HashLayout { keys: KeyKind::Any, addr_bits: 40 }] {
        for (count, chosen) in [(0, 0), (1, 0), (300, 0), (60_000, 0), (0, 40), (20_000, 1000)] {
            let (index, model) = filled_with_chosen(layout, count, chosen);
            let (layout, index) = (IndexLayout::Hash(layout), IndexWriter::Hash(index));
            let absent: Vec<Key> = match layout {
                IndexLayout::Hash(layout) => (0..count).map(|i| key(layout, count * 3 + i)).collect(),
                IndexLayout::Dense(_) => unreachable!("hash layouts"),
            };
            check_by_images(layout, &index, &model, &absent);
        }
    }
    for (keys, step) in [(1, 1), (20, 7), (200_000, 3), (200_000, 40_000)] {
        let len = LenCode::of(33).unwrap();
        let layout = IndexLayout::Dense(DenseLayout { key_count: 200_000, addr_bits: 34, len });
        let (mut index, mut model) = (IndexWriter::new(layout, 0).unwrap(), HashMap::new());
        for i in (0..keys).step_by(step) {
            model.insert(Key::from(i), Slot { at: i * 5, len });
            index.insert(&Key::from(i), Slot { at: i * 5, len });
        }
        let absent: Vec<Key> = (0..200_000).map(Key::from).filter(|key| !model.contains_key(key)).collect();
        check_by_images(layout, &index, &model, &absent);
        let reader = ImageReader::new(layout, &placed_images(&index)[0].1).unwrap();
        assert_eq!(reader.place(&Key::from(200_000)), None);
    }
}

fn check_by_images(layout: IndexLayout, index: &IndexWriter, model: &HashMap<Key, Slot>, absent: &[Key]) {
    let images = placed_images(index);
    let reader = ImageReader::new(layout, &images[0].1).unwrap();
    let keys = || model.keys().chain(absent);
    // Each look-up checks all of its image.
    let step = (keys().count() / 3000).max(1);
    for key in keys().step_by(step) {
        let found = reader.get(key, image_of(&reader, &images, key));
        assert_eq!(found, Ok(model.get(key).copied()), "{key}");
    }
    for key in keys().take(1) {
        let own = image_of(&reader, &images, key);
        for (_, image) in images.iter().filter(|(_, image)| image != own) {
            assert!(matches!(reader.get(key, image), Err(SnapshotError::OutOfOrder { .. })));
        }
    }
}

proptest! {
    /// Goal:   no image makes a look-up panic, however damaged, and none returns what the undamaged one does not have.
    /// Method: an image with bytes changed or cut off.
    #[test]
    fn damaged_images_are_refused(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>(), dense: bool) {
        let len = LenCode::of(3).unwrap();
        let layout = match dense {
            true => IndexLayout::Dense(DenseLayout { key_count: 2000, addr_bits: 34, len }),
            false => IndexLayout::Hash(LAYOUT),
        };
        let mut index = IndexWriter::new(layout, 5).unwrap();
        for i in 0..1000u64 {
            index.insert(&Key::from(i), Slot { at: i, len });
        }
        let mut image = placed_images(&index).swap_remove(0).1;
        let reader = ImageReader::new(layout, &image).unwrap();
        let at = at.index(image.len());
        if cut { image.truncate(at) } else { image[at] ^= 1 << bit }
        for key in [Key::from(7), Key::from(1500)] {
            prop_assert!(reader.get(&key, &image).is_err());
        }
        let _ = ImageReader::new(layout, &image).map(|reader| reader.get(&Key::from(7), &image));
    }
}
