use super::*;
use crate::{Key, LenCode, Slot};

/// Goal:   the format does not drift: an image written today is read by every later version.
/// Method: head and checksum of a small index, byte by byte.
#[test]
fn golden_image() {
    let mut index = HashWriter::with_seed(HashLayout { keys: KeyKind::U64, addr_bits: 36 }, 0x0102_0304);
    for i in 0..100 {
        index.insert(&Key::from(i), Slot { at: i * 7, len: LenCode::of(1 + i as u32).unwrap() });
    }
    let mut image = vec![];
    assert_eq!(index.snapshot_next(SnapshotCursor::START, &mut image), None);
    assert_eq!(image.len(), 64 + 67 * 64);
    let mut wanted = vec![];
    wanted.extend(b"KIX1\x02\0\0\x24\x04\x03\x02\x01\0\0\0\0");
    wanted.extend(b"\0\0\0\0\0\x05\x01\0\x64\0\0\0\x00\x11\0\0");
    wanted.extend([0; 28]);
    assert_eq!(image[..60], wanted);
    assert_eq!(kaml_crc::crc32c(&image[64..]), GOLDEN_BUCKETS, "places of keys, or fields of slots, have changed");
}

const GOLDEN_BUCKETS: u32 = 565_895_171;

/// An image with one key that has no slot.
fn outside_image(layout: HashLayout) -> Vec<u8> {
    let index = HashWriter::with_seed(layout, 3);
    let mixed = Mixed { m: 0x0102_0304_0506_0708, ..Mixed::default() };
    index.table.outside.add([(mixed, 5 << layout.addr_bits | 9)]);
    let mut image = vec![];
    assert_eq!(index.snapshot_next(SnapshotCursor::START, &mut image), None);
    image
}

fn checksummed(mut image: Vec<u8>) -> Vec<u8> {
    let crc32c = checksum(&image).to_le_bytes();
    image[offset_of!(Head, crc32c)..HEAD_BYTES].copy_from_slice(&crc32c);
    image
}

/// Goal:   nor does the format of keys without slots.
/// Method: such an entry, byte by byte.
#[test]
fn golden_outside() {
    let image = outside_image(HashLayout { keys: KeyKind::U64, addr_bits: 36 });
    assert_eq!(image.len(), 64 + 67 * 64 + 32);
    assert_eq!(image[32..60], [[1u8].as_slice(), &[0; 27]].concat());
    let mut wanted = vec![8, 7, 6, 5, 4, 3, 2, 1];
    wanted.extend([0; 16]);
    wanted.extend(b"\x09\0\0\0\x50\0\0\0");
    assert_eq!(image[64 + 67 * 64..], wanted);
}

/// Goal:   entries without slots that no index has are refused.
/// Method: one that exists twice; parts of an integer that only long keys have; no length; more bits than a length has; one that
///         belongs to another segment.
#[test]
fn impossible_entries_outside() {
    let layout = HashLayout { keys: KeyKind::U64, addr_bits: 36 };
    let image = outside_image(layout);
    let entry = image.len() - size_of::<OutsideEntry>();
    let refused = |image: Vec<u8>| HashWriter::of_snapshot(layout, &checksummed(image)).err();
    assert_eq!(refused(image.clone()), None);
    let mut twice = image.clone();
    twice.extend_from_within(entry..);
    twice[offset_of!(Head, outside)] = 2;
    assert_eq!(refused(twice), Some(SnapshotError::Outside { entry: 1 }));
    let changed = |change: fn(&mut OutsideEntry)| {
        let mut image = image.clone();
        change(OutsideEntry::mut_from_bytes(&mut image[entry..]).unwrap());
        refused(image)
    };
    let impossible = Some(SnapshotError::Outside { entry: 0 });
    assert_eq!(changed(|entry| entry.high = 1.into()), impossible);
    assert_eq!(changed(|entry| entry.len_less_one = 1.into()), impossible);
    assert_eq!(changed(|entry| entry.value = 9.into()), impossible);
    assert_eq!(changed(|entry| entry.value |= U64::new(1 << 60)), impossible);
    let long = HashLayout { keys: KeyKind::Bytes, ..layout };
    let mut too_long = outside_image(long);
    let entry = too_long.len() - size_of::<OutsideEntry>();
    too_long[entry + offset_of!(OutsideEntry, len_less_one)] = 16;
    assert_eq!(HashWriter::of_snapshot(long, &checksummed(too_long)).err(), impossible);
    let index = HashWriter::with_seed(layout, 3);
    let half = |prefix| {
        let shape = Shape::new(&index.table.fields, prefix, 1, 1);
        let outside = if prefix == 1 { 1 } else { 0 };
        let mut bytes = vec![0; image_bytes(&index.table.fields, shape)];
        let head = head(&index.table, shape, bytes.len() as u32, outside);
        bytes[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        bytes.extend(image[image.len() - size_of::<OutsideEntry>()..].iter().take(32 * outside as usize));
        checksummed(bytes)
    };
    let snapshot = [half(0), half(1)].concat();
    assert_eq!(HashWriter::of_snapshot(layout, &snapshot).err(), impossible);
}

/// Goal:   a snapshot that address space is too short for is refused.
/// Method: heads of this many pages as no index of a small device has.
#[test]
fn too_many_pages() {
    let layout = HashLayout { keys: KeyKind::U64, addr_bits: 10 };
    let mut index = HashWriter::with_seed(layout, 3);
    let (shape, count) = (|prefix| Shape::new(&index.table.fields, prefix, 12, 15), 1 << 12);
    let bytes = image_bytes(&index.table.fields, shape(0));
    let mut snapshot = vec![0; bytes * count];
    for (image, prefix) in snapshot.chunks_mut(bytes).zip(0..) {
        image[..HEAD_BYTES].copy_from_slice(head(&index.table, shape(prefix), bytes as u32, 0).as_bytes());
    }
    let refused = index.restore(&snapshot);
    assert_eq!(refused, Err(SnapshotError::NoRoom { pages: 15 * count as u64 }));
    assert_eq!(index.insert(&Key::from(1), Slot { at: 1, len: LenCode::of(1).unwrap() }), None);
}
