//! Checkpoint images: there and back, under changes, and out of damaged bytes.

mod support;

use std::collections::BTreeMap;

use kaml_ordered::{
    ImageCursor, ImageError, OrderedLayout, OrderedWriter, PART_BEGIN_BYTES, Slot, begins_after, place_of, slot_in_part,
};
use proptest::prelude::*;
use support::{SHAPES, key, slot};

const LAYOUT: OrderedLayout = OrderedLayout { addr_bits: 32 };

type Model = BTreeMap<Vec<u8>, Slot>;

fn filled(shape: u8, count: u64) -> (OrderedWriter, Model) {
    let (mut index, mut model) = (OrderedWriter::new(LAYOUT), Model::new());
    for i in 0..count {
        assert_eq!(index.insert(&key(shape, i), slot(i)), Ok(model.insert(key(shape, i), slot(i))));
    }
    (index, model)
}

fn parts(index: &OrderedWriter) -> Vec<Vec<u8>> {
    let (mut parts, mut next) = (vec![], Some(ImageCursor::START));
    while let Some(cursor) = next {
        parts.push(vec![]);
        next = index.image_next(&cursor, parts.last_mut().unwrap());
    }
    parts
}

fn contents(index: &OrderedWriter) -> Model {
    let mut seen = Model::new();
    index.for_each(|key, slot| assert_eq!(seen.insert(key.to_vec(), slot), None));
    assert_eq!(seen.len() as u64, index.len());
    seen
}

/// Writes the checksum that a part of these bytes has.
fn checksummed(part: &mut [u8]) {
    let crc32c = kaml_crc::crc32c_append(kaml_crc::crc32c(&part[..28]), &part[32..]);
    part[28..32].copy_from_slice(&crc32c.to_le_bytes());
}

/// Goal:   an image brings back what was saved, is no longer than announced, and the loaded index continues like any other.
/// Method: indexes of every shape of keys from empty to several parts, saved, loaded from one run of bytes, compared, then doubled and emptied.
#[test]
fn there_and_back() {
    for shape in 0..SHAPES {
        for count in [0u64, 1, 300, if key(shape, 1).len() > 500 { 1_000 } else { 20_000 }] {
            let (index, mut model) = filled(shape, count);
            let parts = parts(&index);
            assert!(parts.len() > 1 || count < 20_000, "several parts");
            let bytes = parts.concat();
            assert!(bytes.len() as u64 <= index.image_bytes_max(), "{} > {}", bytes.len(), index.image_bytes_max());
            let mut loaded = OrderedWriter::of_image(LAYOUT, &bytes).unwrap();
            assert_eq!(contents(&loaded), model);
            for i in count..2 * count {
                assert_eq!(loaded.insert(&key(shape, i), slot(i)), Ok(model.insert(key(shape, i), slot(i))));
            }
            assert_eq!(contents(&loaded), model);
            model.iter().for_each(|(key, slot)| assert_eq!(loaded.remove(key), Some(*slot)));
            assert_eq!(loaded.len(), 0);
        }
    }
}

/// Goal:   a fuzzy image and all changes since its first part make the index of its end.
/// Method: between any two parts hundreds of inserts, updates and removes, by key and by range; load, replay, compare.
#[test]
fn fuzzy_images_and_replay() {
    for shape in [1, 4, 9] {
        let (mut index, mut model) = filled(shape, 30_000);
        let (mut saved, mut next, mut replay, mut turn) = (vec![], Some(ImageCursor::START), vec![], 0u64);
        while let Some(cursor) = next {
            next = index.image_next(&cursor, &mut saved);
            for _ in 0..2_000 {
                turn += 1;
                let key = key(shape, turn.wrapping_mul(0x9e37_79b9) % 60_000);
                let change = (turn % 3 != 0).then_some(slot(turn));
                match change {
                    Some(slot) => assert_eq!(index.insert(&key, slot), Ok(model.insert(key.clone(), slot))),
                    None => assert_eq!(index.remove(&key), model.remove(&key)),
                }
                replay.push((key, change));
            }
            let (low, high) = (key(shape, turn), key(shape, turn + 50));
            let range = low.clone().min(high.clone())..low.max(high);
            let end: Vec<u8> = range.start.iter().copied().chain([0x80]).collect();
            let range = range.start.clone()..range.end.min(end);
            if range.start < range.end {
                index.remove_range(range, |key, _| {
                    model.remove(key);
                    replay.push((key.to_vec(), None));
                });
            }
        }
        let mut loaded = OrderedWriter::of_image(LAYOUT, &saved).unwrap();
        assert_ne!(contents(&loaded), model);
        for (key, change) in replay {
            match change {
                Some(slot) => drop(loaded.insert(&key, slot).unwrap()),
                None => drop(loaded.remove(&key)),
            }
        }
        assert_eq!(contents(&loaded), model);
    }
}

fn refused(bytes: &[u8]) -> ImageError {
    OrderedWriter::of_image(LAYOUT, bytes).err().expect("it is refused")
}

/// Goal:   parts out of order, missing, foreign, cut or damaged, and entries that no index has, are refused by name.
/// Method: one of each.
#[test]
fn refusals() {
    let (index, _) = filled(1, 30_000);
    let parts = parts(&index);
    assert!(parts.len() > 3);
    let whole = parts.concat();
    assert!(OrderedWriter::of_image(LAYOUT, &whole).is_ok());
    assert_eq!(refused(&[]), ImageError::Incomplete { parts: 0 });
    assert_eq!(refused(&parts[..2].concat()), ImageError::Incomplete { parts: 2 });
    assert_eq!(refused(&parts[1]), ImageError::OutOfOrder { part: 0 });
    assert_eq!(refused(&[&whole[..], &parts[0][..]].concat()), ImageError::OutOfOrder { part: parts.len() });
    assert_eq!(refused(&parts[0][..31]), ImageError::Short { needed: 32, got: 31 });
    let (needed, got) = (parts[0].len(), parts[0].len() - 1);
    assert_eq!(refused(&parts[0][..got]), ImageError::Short { needed, got });
    assert_eq!(refused(&[0; 64]), ImageError::Magic { found: [0; 4] });
    let foreign = OrderedWriter::of_image(OrderedLayout { addr_bits: 33 }, &whole).err();
    assert_eq!(foreign, Some(ImageError::Foreign { found: 32, wanted: 33 }));
    let changed = |at: usize, value: u8| {
        let mut part = parts[0].clone();
        part[at] = value;
        checksummed(&mut part);
        refused(&part)
    };
    assert_eq!(changed(4, 2), ImageError::Version { found: 2 });
    assert_eq!(changed(7, 1), ImageError::Field { field: "is_last", found: 1 });
    assert_eq!(changed(17, 5), ImageError::Field { field: "from_len", found: 1280 });
    assert_eq!(changed(27, 1), ImageError::Field { field: "reserved", found: 1 << 56 });
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(refused(&damaged), ImageError::Checksum { .. }));
    // Entries begin after the bound; each shares nothing with an empty one, or more with the one before.
    let entries = 32 + usize::from(parts[0][18]);
    for (at, value) in [(0, 1), (1, 0), (1, 200), (2 + 8 + 4, 0), (2 + 8 + 4, 0x80)] {
        assert_eq!(changed(entries + at, value), ImageError::Entry { part: 0, entry: 0 }, "{at}: {value}");
    }
    for error in [ImageError::NoRoom, refused(&damaged)] {
        assert!(!error.to_string().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Goal:   damaged parts are refused or, with a repaired checksum, at worst load as some index that works. Nothing panics.
    /// Method: random bytes of a small part changed; first as it is, then checksummed again; what loads is read, saved again byte by byte, and
    ///         changed.
    #[test]
    fn damage(
        shape in 0..SHAPES, count in 0u64..60, changes in prop::collection::vec((any::<usize>(), 1u8..), 1..6), early: bool,
    ) {
        let (index, _) = filled(shape, count);
        let mut image = parts(&index).concat();
        let intact = image.clone();
        let span = if early { image.len().min(80) } else { image.len() };
        changes.iter().for_each(|&(at, flip)| image[at % span] ^= flip);
        prop_assume!(image != intact);
        prop_assert!(OrderedWriter::of_image(LAYOUT, &image).is_err());
        checksummed(&mut image);
        if let Ok(mut loaded) = OrderedWriter::of_image(LAYOUT, &image) {
            let seen = contents(&loaded);
            prop_assert_eq!(parts(&loaded).concat(), image, "there is one image of some entries");
            seen.iter().for_each(|(key, slot)| assert_eq!(loaded.get(key), Some(*slot)));
            (0..300).for_each(|i| { loaded.insert(&key(shape, i), slot(i)).unwrap(); });
            (0..300).for_each(|i| assert!(loaded.get(&key(shape, i)).is_some()));
        }
    }

    /// Goal:   as above, for bytes that never were an image.
    /// Method: random bytes, with and without a valid beginning.
    #[test]
    fn foreign_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..300), begin in 0usize..=64) {
        let (index, _) = filled(1, 10);
        let image = parts(&index).concat();
        let begin = begin.min(bytes.len());
        bytes[..begin].copy_from_slice(&image[..begin]);
        prop_assert!(OrderedWriter::of_image(LAYOUT, &bytes).is_err());
    }
}

/// Goal:   an index whose device has grown gets more bits for chunk numbers and keeps every entry; its image states them.
/// Method: from 32 bits to 33, 40, 48 and back, compared entry by entry.
#[test]
fn indexes_get_more_bits() {
    let (index, _) = filled(1, 5_000);
    let entries = |index: &OrderedWriter| {
        let mut found = Vec::new();
        index.for_each(|key, slot| found.push((key.to_vec(), slot)));
        found
    };
    let expected = entries(&index);
    let mut copy = index.with_layout(OrderedLayout { addr_bits: 33 }).unwrap();
    for addr_bits in [40, 48, 32] {
        copy = copy.with_layout(OrderedLayout { addr_bits }).unwrap();
        assert_eq!(entries(&copy), expected);
        let image = parts(&copy).concat();
        assert_eq!(OrderedLayout { addr_bits: 7 }.as_stored(&image), OrderedLayout { addr_bits });
        assert_eq!(entries(&OrderedWriter::of_image(OrderedLayout { addr_bits }, &image).unwrap()), expected);
    }
    for image in [&[][..], &[0; 32], &[255; 32]] {
        assert_eq!(LAYOUT.as_stored(image), LAYOUT);
    }
}

/// Goal:   each key is found in the part that has it and no other key in any; a part of other keys is refused. Places and the beginnings of
///         parts decide which part has a key.
/// Method: indexes of every shape of keys; present and absent keys are looked up in the last part that does not begin after them, and one in
///         all other parts.
#[test]
fn keys_are_found_in_their_parts() {
    for shape in 0..SHAPES {
        let (index, model) = filled(shape, if key(shape, 1).len() > 500 { 1_000 } else { 20_000 });
        let (mut parts, mut next) = (vec![], Some(ImageCursor::START));
        while let Some(cursor) = next {
            let (place, mut part) = (cursor.place(), vec![]);
            next = index.image_next(&cursor, &mut part);
            parts.push((place, part));
        }
        assert!(parts.is_sorted_by_key(|(place, _)| *place));
        let begins_after = |part: &[u8], key: &[u8]| begins_after(&part[..part.len().min(PART_BEGIN_BYTES)], key);
        let absent = (0..100).map(|i| key(shape, 100_000 + i * 7)).filter(|key| !model.contains_key(key));
        for key in model.keys().step_by(97).cloned().chain(absent) {
            let own = parts.partition_point(|(_, part)| !begins_after(part, &key)) - 1;
            assert!(parts[own].0 <= place_of(&key));
            assert!(parts[own + 1..].iter().all(|(place, _)| *place >= place_of(&key)));
            assert_eq!(slot_in_part(LAYOUT, &parts[own].1, &key), Ok(model.get(&key).copied()));
        }
        let key = model.keys().next().unwrap();
        for (_, part) in &parts[1..] {
            assert_eq!(slot_in_part(LAYOUT, part, key), Err(ImageError::OutOfOrder { part: 0 }));
        }
    }
}

proptest! {
    /// Goal:   no part makes a look-up panic, however damaged.
    /// Method: a part with bytes changed or cut off, its checksum right or wrong.
    #[test]
    fn damaged_parts_are_refused(shape in 0..SHAPES, at in any::<prop::sample::Index>(), with: u8, cut: bool, right: bool) {
        let (index, _) = filled(shape, 200);
        let mut part = parts(&index).swap_remove(0);
        let whole = part.clone();
        let at = at.index(part.len());
        if cut { part.truncate(at) } else { part[at] = with }
        if right && part.len() > 32 {
            checksummed(&mut part);
        }
        let found = slot_in_part(LAYOUT, &part, &key(shape, 7));
        prop_assert!(found.is_err() || right || part == whole);
        begins_after(&part, &key(shape, 7));
    }
}
