//! The index against a model.

mod common;

use common::{Random, Store, tiny, tiny_bloom, tiny_indexes, value_of, version};
use kaml_versions::{
    BloomOptions, Columns, Error, Index, Key, Kind, Parameters, SegmentAt, SegmentInfo, SegmentTable, ValueShape,
    is_whole,
};
use std::collections::BTreeMap;

type Model = BTreeMap<u64, Vec<(u64, Vec<u8>)>>;

fn assert_equal(columns: &Columns, store: &mut Store, model: &Model, before: u64) {
    for (key, versions) in model {
        let found = store.history(columns, &Key::from(*key), before);
        let found: Vec<_> = found.into_iter().map(|(version, value)| (version.sequence, value)).collect();
        let expected: Vec<_> = versions.iter().rev().filter(|(sequence, _)| *sequence < before).cloned().collect();
        assert_eq!(found, expected, "key {key} before {before}");
    }
}

/// Random puts, a few keys of which are hot, of sizes from nothing to several pages.
fn run(parameters: Parameters, puts: u64) -> (Columns, Store, Model) {
    let mut random = Random(parameters.seed * 2 + 1);
    let mut columns = Columns::new(parameters).expect("legal");
    let (mut store, mut model) = (Store::default(), Model::new());
    for sequence in 1..=puts {
        let key = if random.below(3) == 0 { random.below(3) } else { random.below(200) };
        let len = if random.below(10) == 0 { random.below(parameters.value_bytes_max()) } else { random.below(300) };
        let kind = if random.below(8) == 0 { Kind::Tombstone } else { Kind::Value };
        let value = if kind == Kind::Value { value_of(sequence, len as usize) } else { Vec::new() };
        columns.insert(&version(Key::from(key), kind, &value, sequence), &value).expect("small enough");
        model.entry(key).or_default().push((sequence, value));
        store.settle(&mut columns, &Key::from(key));
    }
    (columns, store, model)
}

/// Goal:   every version of every key is found, newest first, whatever its size, and none that does not exist.
/// Method: random puts into tiny indexes of both kinds, compared with a model, now and as of earlier sequences.
#[test]
fn all_versions_are_found_in_order() {
    for parameters in (1..=6).flat_map(tiny_indexes) {
        let (columns, mut store, model) = run(parameters, 3000);
        assert!(columns.segment_count() > 100);
        [u64::MAX, 3000, 1500, 2, 0].into_iter().for_each(|before| assert_equal(&columns, &mut store, &model, before));
        let absent = (1000..2000).map(|key| store.history(&columns, &Key::from(key), u64::MAX).len()).sum::<usize>();
        assert_eq!(absent, 0);
    }
}

fn empty(columns: &mut Columns, store: &mut Store) {
    while columns.memory().buffer_bytes > 0 {
        let fullest = columns.fullest();
        store.seal(columns, fullest);
    }
}

/// Goal:   sealing everything, again and again, empties the buffer and loses nothing.
/// Method: seal the fullest row until there is nothing to seal.
#[test]
fn a_buffer_can_be_emptied() {
    for parameters in tiny_indexes(9) {
        let (mut columns, mut store, model) = run(parameters, 500);
        empty(&mut columns, &mut store);
        assert_equal(&columns, &mut store, &model, u64::MAX);
    }
}

/// Goal:   an index restored from its tables finds what was sealed.
/// Method: empty the buffer, restore into a new index, compare; restore into another row, another shape and the other index;
///         move one. For both.
#[test]
fn tables_restore_the_index() {
    let other_shape = Parameters { index: Index::Columns(ValueShape { fingerprint_bits: 8, choices: 4 }), ..tiny(4) };
    let others = [[other_shape, tiny_bloom(4, 3)], [tiny(4), tiny(4)], [tiny(4), other_shape]];
    for (parameters, others) in tiny_indexes(4).into_iter().zip(others) {
        let (mut columns, mut store, model) = run(parameters, 1000);
        empty(&mut columns, &mut store);
        let mut restored = Columns::new(parameters).expect("legal");
        let segments: Vec<_> = (0..parameters.rows).flat_map(|row| columns.segments(row)).collect();
        let table = |segment: &SegmentInfo| {
            let start = (parameters.segment_pages - segment.table_pages) * parameters.page_bytes;
            store.images[segment.at.get() as usize][start as usize..].to_vec()
        };
        let tables: Vec<Vec<u8>> = segments.iter().map(table).collect();
        for (segment, table) in segments.iter().zip(&tables) {
            let table = SegmentTable::decode(table, segment.row, &parameters).expect("whole");
            restored.restore(segment.at, segment.live as u16, &table);
        }
        assert_eq!(segments, (0..parameters.rows).flat_map(|row| restored.segments(row)).collect::<Vec<_>>());
        assert_eq!(restored.memory().index_bytes, columns.memory().index_bytes, "in the same groups");
        assert_equal(&restored, &mut store, &model, u64::MAX);
        let first = &segments[0];
        assert_eq!(SegmentTable::decode(&tables[0], 1, &parameters), Err(Error::DamagedTable("of another row")));
        for other in others {
            assert!(SegmentTable::decode(&tables[0], 0, &other).is_err());
        }
        let moved = SegmentAt::new(1 << 40).expect("48 bits");
        assert_eq!(restored.relocate(first.row, first.at, moved), Some(0));
        assert_eq!(restored.relocate(first.row, first.at, moved), None);
        assert_eq!(restored.segments(first.row).next().map(|segment| segment.at), Some(moved));
    }
}

/// Goal:   tables that are made again from the records of their segments find all of them, and none that does not exist.
/// Method: every segment's, with values on pages and after them; and from segments without records, of another row, without the
///         first page of long values.
#[test]
fn tables_are_made_again_from_records() {
    let parameters = tiny(4);
    let (mut columns, mut store, model) = run(parameters, 2000);
    empty(&mut columns, &mut store);
    let mut restored = Columns::new(parameters).expect("legal");
    let mut with_extents = 0;
    for segment in (0..parameters.rows).flat_map(|row| columns.segments(row)) {
        let image = &store.images[segment.at.get() as usize];
        let of = |row, image: &[u8]| {
            SegmentTable::of_records(row, image, segment.table_pages, segment.identity(), &parameters)
        };
        let table = of(segment.row, image).expect("whole");
        assert_eq!((table.sequences(), table.identity()), (segment.sequences.clone(), segment.identity()));
        for page in 0..segment.hashed_pages as usize {
            let mut image = image.clone();
            let page = page * parameters.page_bytes as usize;
            let bytes = &mut image[page..][..parameters.page_bytes as usize];
            let had_records = bytes.iter().any(|byte| *byte != 0);
            bytes.fill(0);
            let is_other = of(segment.row, &image).map_or(true, |table| table.identity() != segment.identity());
            assert_eq!(is_other, had_records);
        }
        restored.restore(segment.at, segment.live as u16, &table);
        assert_eq!(
            restored.segments(segment.row).next_back().map(|restored| (restored.records, restored.table_pages)),
            Some((segment.records, segment.table_pages))
        );
        with_extents += u32::from(segment.hashed_pages + segment.table_pages < parameters.segment_pages);
        assert!(of(segment.row ^ 1, image).is_err());
        assert!(of(segment.row, &vec![0; image.len()]).is_err());
        assert!(of(segment.row, &vec![0xa7; image.len()]).is_err());
    }
    assert!(with_extents > 0);
    assert_equal(&restored, &mut store, &model, u64::MAX);
    let bloom = tiny_bloom(4, 3);
    assert!(SegmentTable::of_records(0, &vec![0; bloom.segment_bytes()], 1, 0, &bloom).is_err());
}

/// Goal:   a segment counts as whole with all of its records and its table, and not otherwise.
/// Method: every segment of both kinds, as it is, with each page emptied, and with a byte of each page changed.
#[test]
fn whole_segments_lack_nothing() {
    for parameters in tiny_indexes(5) {
        let (mut columns, mut store, _) = run(parameters, 500);
        empty(&mut columns, &mut store);
        for segment in (0..parameters.rows).flat_map(|row| columns.segments(row)) {
            let image = &store.images[segment.at.get() as usize];
            assert!(is_whole(image, &segment, &parameters));
            let page_bytes = parameters.page_bytes as usize;
            for at in
                (0..image.len()).step_by(page_bytes).filter(|at| image[*at..][..page_bytes] != vec![0; page_bytes])
            {
                let mut without = image.clone();
                without[at..][..page_bytes].fill(0);
                assert!(!is_whole(&without, &segment, &parameters), "without the page at {at}");
                let mut changed = image.clone();
                changed[at] ^= 1;
                assert!(!is_whole(&changed, &segment, &parameters), "with a byte changed at {at}");
            }
        }
    }
}

/// Goal:   segments are full, tables small, reads few, the live estimate true, as the design promises.
/// Method: 1 KiB pairs of a small index of the real shape, half of them overwritten; count.
#[test]
fn the_promised_figures_hold_at_small_scale() {
    let parameters = Parameters { rows: 7, ..Parameters::for_buffer(4 << 20, 1) };
    let mut columns = Columns::new(parameters).expect("legal");
    let mut store = Store::default();
    let keys = 40_000;
    let value = vec![7; 1024 - 44];
    for sequence in 0..keys * 3 / 2 {
        let key = Key::from(sequence % keys);
        columns.insert(&version(key, Kind::Value, &value, sequence), &value).expect("small enough");
        store.settle(&mut columns, &key);
    }
    let (sealed, live) = columns.live_estimate();
    let full = sealed as f64 / (columns.segment_count() * 1020) as f64;
    // The first segments are sealed while rows are still alike, and this is a tenth of them.
    assert!(full > 0.9, "filled to {full}");
    let bytes = columns.memory().index_bytes as f64 / sealed as f64;
    assert!(bytes < 2.2, "{bytes} bytes a version");
    // Of the first two thirds all that was overwritten and sealed again is dead.
    let dead = sealed - keys;
    assert!((live + dead).abs_diff(sealed) < sealed / 50, "{live} of {sealed} live, {dead} dead");
    let before = store.page_reads;
    for key in 0..keys {
        let newest = if key < keys / 2 { key + keys } else { key };
        assert_eq!(store.newest(&columns, &Key::from(key)).map(|(version, _)| version.sequence), Some(newest));
    }
    let reads = (store.page_reads - before) as f64 / keys as f64;
    assert!(reads < 1.02, "{reads} reads");
}

/// Goal:   the paper's index has its utilisation and memory, and finds everything.
/// Method: two rows of the paper's shape; count.
#[test]
fn the_paper_s_figures_come_out() {
    let parameters = Parameters::for_buffer(2 << 20, 0).with_bloom(&BloomOptions::default());
    let mut columns = Columns::new(parameters).expect("legal");
    let mut store = Store::default();
    let value = vec![7; 1024 - 44];
    let keys = 20_000;
    for sequence in 0..keys {
        let key = Key::from(sequence);
        columns.insert(&version(key, Kind::Value, &value, sequence), &value).expect("small enough");
        store.settle(&mut columns, &key);
    }
    let (sealed, _) = columns.live_estimate();
    let utilisation = sealed as f64 / (columns.segment_count() * 1020) as f64;
    assert!((0.92..0.96).contains(&utilisation), "{utilisation}");
    let bytes = columns.memory().index_bytes as f64 / keys as f64;
    // A third of a byte are the two segments that are being filled: there are ten others of each row.
    assert!((2.1..2.9).contains(&bytes), "{bytes} bytes a key");
    for key in (0..keys).step_by(3) {
        let newest = store.newest(&columns, &Key::from(key)).map(|(version, _)| version.sequence);
        assert_eq!(newest, Some(key));
    }
}

/// Goal:   a small version among large ones, which fill all pages, is sealed soon: the commit ring waits for it.
/// Method: one of a few bytes, then pages' halves for long, for several seeds; it leaves the buffer within a few segments.
#[test]
fn a_small_version_does_not_wait_for_ever() {
    for seed in 0..20 {
        let parameters =
            Parameters { page_bytes: 4096, segment_pages: 64, buffer_bytes: 1 << 20, rows: 1, ..tiny(seed) };
        let mut columns = Columns::new(parameters).expect("legal");
        let mut store = Store::default();
        let (small, large) = (vec![1; 40], vec![7; 2000]);
        columns.insert(&version(Key::from(1 << 40), Kind::Value, &small, 0), &small).expect("small enough");
        for sequence in 1..=3000 {
            let key = Key::from(sequence);
            columns.insert(&version(key, Kind::Value, &large, sequence), &large).expect("small enough");
            if let Some(row) = columns.wants_seal(&key) {
                store.seal(&mut columns, row);
            }
        }
        assert!(columns.segment_count() > 15);
        assert!(columns.oldest_buffered(0).is_none_or(|oldest| oldest > 0), "seed {seed}");
    }
}

/// Goal:   what cannot work is refused.
/// Method: a value longer than a segment; shapes out of range.
#[test]
fn bad_input_is_refused() {
    let mut columns = Columns::new(tiny(1)).expect("legal");
    let value = vec![0; 6 * 512 + 1];
    let put = columns.insert(&version(Key::from(1), Kind::Value, &value, 1), &value);
    assert_eq!(put, Err(Error::ValueTooLarge { bytes: 3073, max: 3072 }));
    for wrong in [
        Parameters { page_bytes: 500, ..tiny(1) },
        Parameters { segment_pages: 3, ..tiny(1) },
        Parameters { rows: 0, ..tiny(1) },
        Parameters { buffer_bytes: 100, ..tiny(1) },
        Parameters { index: Index::Columns(ValueShape { fingerprint_bits: 8, choices: 5 }), ..tiny(1) },
        Parameters { index: Index::Columns(ValueShape { fingerprint_bits: 3, choices: 3 }), ..tiny(1) },
        tiny_bloom(1, 65),
        tiny(1).with_bloom(&BloomOptions { segment_keys: 100_000, ..BloomOptions::default() }),
        tiny(1).with_bloom(&BloomOptions { growth_permille: 3000, ..BloomOptions::default() }),
        tiny(1).with_bloom(&BloomOptions { false_positives_ppm: 600_000, ..BloomOptions::default() }),
    ] {
        assert!(matches!(Columns::new(wrong), Err(Error::BadParameter { .. })), "{wrong:?}");
    }
}
