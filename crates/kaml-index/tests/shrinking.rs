//! Memory and images follow the keys down.

use std::sync::atomic::{AtomicBool, Ordering::*};

use kaml_index::{DenseLayout, DenseWriter, HashLayout, HashWriter, Key, KeyKind, LenCode, Slot, SnapshotCursor};

fn slot(i: u64) -> Slot {
    Slot { at: i % (1 << 20), len: LenCode::of(1 + i as u32 % 100).unwrap() }
}

fn key(kind: KeyKind, i: u64) -> Key {
    match kind {
        KeyKind::U64 => Key::from(i),
        KeyKind::Any => Key::of_digest((u128::from(i) << 64 | 77).to_be_bytes()),
        KeyKind::Bytes | KeyKind::Ordered => Key::new(&[&i.to_be_bytes()[..], b"long key"].concat()).unwrap(),
    }
}

fn snapshot(index: &HashWriter) -> Vec<u8> {
    let (mut bytes, mut next) = (vec![], Some(SnapshotCursor::START));
    while let Some(cursor) = next {
        next = index.snapshot_next(cursor, &mut bytes);
    }
    bytes
}

/// Goal:   memory and snapshots shrink with the keys, again and again: emptied, an index takes less than one
///         MiB, of pages kept for the next segment, and no more when full again. The length that it reports for its snapshot is right.
/// Method: each kind of keys, narrow addresses (pages of 67 lines) and wide ones; all keys inserted and removed in another order, with a
///         few kept to the end, in several rounds. The numbers are compared with real snapshots, which are restored.
#[test]
fn memory_follows_the_keys() {
    const KEYS: u64 = 200_000;
    /// What the thread that has memory ready may be ahead, and what is taken elsewhere where it comes late.
    const AHEAD: u64 = 2 * (128 << 10);
    for (kind, addr_bits) in
        [(KeyKind::U64, 26), (KeyKind::U64, 34), (KeyKind::U64, 40), (KeyKind::Bytes, 40), (KeyKind::Any, 40)]
    {
        let layout = HashLayout { keys: kind, addr_bits };
        let mut index = HashWriter::with_seed(layout, 7);
        let mut full_first = 0;
        for round in 0..4 {
            (0..KEYS).for_each(|i| assert_eq!(index.insert(&key(kind, i), slot(i)), None));
            let full = index.memory_bytes();
            let full_image = index.image_bytes();
            full_first = if round == 0 { full } else { full_first };
            assert!(
                full * 10 <= full_first * 11 + AHEAD * 10,
                "round {round}: {full} bytes when full, {full_first} at first"
            );
            assert_eq!(snapshot(&index).len() as u64, full_image);
            // Multiplying by an odd number visits all keys of a power of two, others are skipped.
            let order = (0..1u64 << 18).map(|i| i.wrapping_mul(0x9e37_79b1) % (1 << 18)).filter(|i| *i < KEYS);
            for i in order.filter(|i| i % 1000 != 3) {
                assert_eq!(index.remove(&key(kind, i)), Some(slot(i)));
            }
            let (memory, image) = (index.memory_bytes(), index.image_bytes());
            assert!(memory < 1 << 20, "{layout:?}, round {round}: {memory} of {full} bytes for 200 keys");
            assert!(image * 50 < full_image, "{layout:?}, round {round}: images of {image} of {full_image} bytes");
            let saved = snapshot(&index);
            assert_eq!(saved.len() as u64, image);
            let loaded = HashWriter::of_snapshot(layout, &saved).unwrap();
            assert_eq!(loaded.image_bytes(), image);
            for i in (0..KEYS).filter(|i| i % 1000 == 3) {
                assert_eq!((loaded.get(&key(kind, i)), index.remove(&key(kind, i))), (Some(slot(i)), Some(slot(i))));
            }
            assert_eq!(index.len(), 0);
            assert!(index.image_bytes() < 64 << 10, "{} bytes of images of no key", index.image_bytes());
        }
    }
}

/// Goal:   a snapshot that is in progress is whole although its index shrinks to nothing next to it.
/// Method: after each image some keys are removed, until none but a few is left; restored, every kept key is found and no key twice.
#[test]
fn snapshots_beside_merges() {
    let layout = HashLayout { keys: KeyKind::U64, addr_bits: 34 };
    for step in [200, 1_000, 10_000] {
        let mut index = HashWriter::with_seed(layout, 9);
        (0..100_000).for_each(|i| assert_eq!(index.insert(&Key::from(i), slot(i)), None));
        let mut leaving = (0..100_000u64).filter(|i| i % 500 != 0);
        let (mut saved, mut next) = (vec![], Some(SnapshotCursor::START));
        while let Some(cursor) = next {
            next = index.snapshot_next(cursor, &mut saved);
            leaving.by_ref().take(step).for_each(|i| assert_eq!(index.remove(&Key::from(i)), Some(slot(i))));
        }
        let loaded = HashWriter::of_snapshot(layout, &saved).unwrap();
        (0..100_000).step_by(500).for_each(|i| assert_eq!(loaded.get(&Key::from(i)), Some(slot(i))));
        leaving.for_each(|i| assert_eq!(index.remove(&Key::from(i)), Some(slot(i))));
        assert!(index.image_bytes() < 200 << 10, "{} bytes of images of 200 keys", index.image_bytes());
    }
}

/// Goal:   readers find all lasting keys and no other while segments split, merge, reuse headers and return their memory.
/// Method: two readers probe and list a few hundred lasting keys; meanwhile crowds of keys are added and removed, so the index has from one to some
///         forty segments.
#[test]
fn readers_beside_merges() {
    const LASTING: u64 = 300;
    const CROWD: u64 = 100_000;
    for addr_bits in [26, 34] {
        let mut index = HashWriter::with_seed(HashLayout { keys: KeyKind::U64, addr_bits }, 11);
        (0..LASTING).for_each(|i| assert_eq!(index.insert(&Key::from(i), slot(i)), None));
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let reader = index.reader();
                scope.spawn(move || {
                    let mut turn = thread;
                    while !done.load(Acquire) {
                        turn += 1;
                        let keys: Vec<Key> = (0..LASTING).map(Key::from).collect();
                        let mut answers = vec![];
                        reader.get_batch(&keys, &mut answers);
                        for (key, (answer, i)) in keys.iter().zip(answers.into_iter().zip(0..)) {
                            assert_eq!((answer, reader.get(key)), (Some(slot(i)), Some(slot(i))));
                            assert_eq!(reader.get(&Key::from(1 << 40 | i)), None);
                        }
                        if turn.is_multiple_of(16) {
                            let (mut lasting, mut after) = (0, None);
                            loop {
                                let (listed, next) = reader.list(after, 1000);
                                lasting += listed.iter().filter(|key| key.as_u64().unwrap() < LASTING).count() as u64;
                                after = next;
                                if after.is_none() {
                                    break;
                                }
                            }
                            assert_eq!(lasting, LASTING, "keys that are listed");
                        }
                    }
                });
            }
            for _ in 0..6 {
                (0..CROWD).for_each(|i| assert_eq!(index.insert(&Key::from(LASTING + i), slot(i)), None));
                (0..CROWD).for_each(|i| assert_eq!(index.remove(&Key::from(LASTING + i)), Some(slot(i))));
            }
            done.store(true, Release);
        });
        assert_eq!(index.len(), LASTING);
    }
}

/// Goal:   the images of a dense index shrink with its keys, and their length is known before they are taken.
/// Method: several segments filled and emptied in two rounds, the last with a short one; the number is compared with real snapshots.
#[test]
fn images_of_dense_indexes_follow_the_keys() {
    const KEYS: u64 = 50_000;
    let len = LenCode::of(33).unwrap();
    let slot = |i| Slot { at: i, len };
    let layout = DenseLayout { key_count: KEYS + 5_000, addr_bits: 34, len };
    let taken = |index: &DenseWriter| {
        let (mut bytes, mut next) = (vec![], Some(SnapshotCursor::START));
        while let Some(cursor) = next {
            next = index.snapshot_next(cursor, &mut bytes);
        }
        assert!((0..=64).contains(&(index.image_bytes() - bytes.len() as u64)), "one image without lines at most");
        bytes
    };
    let mut index = DenseWriter::new(layout);
    for _ in 0..2 {
        (0..KEYS).for_each(|i| assert_eq!(index.insert(&Key::from(i), slot(i)), None));
        let full = index.image_bytes();
        let mut loaded = DenseWriter::new(layout);
        loaded.restore(&taken(&index)).unwrap();
        assert_eq!((loaded.image_bytes(), loaded.len()), (full, KEYS));
        (1..KEYS).for_each(|i| assert_eq!(index.remove(&Key::from(i)), Some(slot(i))));
        taken(&index);
        assert!(index.image_bytes() * 3 < full, "{} of {full} bytes", index.image_bytes());
        index.remove(&Key::from(0));
        assert_eq!((index.len(), index.image_bytes()), (0, 64));
        taken(&index);
    }
}
