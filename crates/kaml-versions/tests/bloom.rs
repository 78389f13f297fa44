//! The baseline against a model.

#[allow(dead_code, reason = "shared by tests that need different parts")]
mod common;

use common::{Random, value_of, version};
use kaml_versions::{Bloom, BloomParameters, BloomPlace, Error, Key, Kind, SegmentAt, Version};
use std::collections::BTreeMap;

/// Segments in memory.
#[derive(Default)]
struct Store {
    images: Vec<Vec<u8>>,
    page_reads: u64,
}

impl Store {
    fn put(&mut self, bloom: &mut Bloom, version: &Version, value: &[u8]) {
        if let Some(flushed) = bloom.insert(version, value).expect("small enough") {
            let at = SegmentAt::new(self.images.len() as u64).expect("few segments");
            self.images.push(flushed.image.clone());
            bloom.install(flushed, at);
        }
    }

    /// Sequences of a key's versions, newest first; `limit` of them.
    fn history(&mut self, bloom: &Bloom, key: &Key, limit: usize) -> Vec<u64> {
        let page_bytes = bloom.parameters().page_bytes as usize;
        let mut found = Vec::new();
        let look = |place: BloomPlace<'_>| -> Result<bool, Error> {
            let version = match place {
                BloomPlace::Open(page, place) => Bloom::check(key, place, page)?,
                BloomPlace::Page(at, page, place) => {
                    self.page_reads += 1;
                    let page = &self.images[at.get() as usize][page as usize * page_bytes..][..page_bytes];
                    Bloom::check(key, place, page)?
                }
            };
            found.extend(version.map(|(version, _)| version.sequence));
            Ok(found.len() == limit)
        };
        bloom.search(key, look).expect("undamaged");
        found
    }
}

/// Goal:   every version of every key is found, newest first.
/// Method: random puts, a few keys of which are hot, into small segments; narrow and wide columns.
#[test]
fn all_versions_are_found_in_order() {
    for combined in [1, 8, 64] {
        let shape = BloomParameters { page_bytes: 512, segment_pages: 16, rows: 2, ..BloomParameters::default() };
        let filter_keys = [32, 16, 8, 4, 2, 1, 1];
        let shape = BloomParameters { filter_keys, overflow_keys: 4, false_positive_rate: 0.02, combined, ..shape };
        let mut bloom = Bloom::new(shape).expect("legal");
        let (mut store, mut random) = (Store::default(), Random(7));
        let mut model = BTreeMap::<u64, Vec<u64>>::new();
        for sequence in 1..=20_000 {
            let key = if random.below(3) == 0 { random.below(3) } else { random.below(500) };
            let value = value_of(sequence, random.below(200) as usize);
            store.put(&mut bloom, &version(Key::from(key), Kind::Value, &value, sequence), &value);
            model.entry(key).or_default().insert(0, sequence);
        }
        assert!(bloom.segment_count() > 200);
        for (key, sequences) in &model {
            assert_eq!(store.history(&bloom, &Key::from(*key), usize::MAX), *sequences, "key {key}");
        }
        assert!(store.history(&bloom, &Key::from(1000), 1).is_empty());
    }
}

/// Goal:   the baseline has the paper's utilisation and memory, and reads as seldom.
/// Method: two rows of the paper's shape with as many segments as its rows have at 25 million keys; count.
#[test]
fn the_paper_s_figures_come_out() {
    let shape = BloomParameters { rows: 2, ..BloomParameters::default() };
    let mut bloom = Bloom::new(shape).expect("legal");
    let mut store = Store::default();
    let value = vec![7; 1024 - 44];
    let keys = 20_000;
    for sequence in 0..keys {
        store.put(&mut bloom, &version(Key::from(sequence), Kind::Value, &value, sequence), &value);
    }
    let sealed = bloom.segment_count() * 1024;
    let utilisation = keys as f64 / (sealed + 2 * 512) as f64;
    assert!((0.92..0.96).contains(&utilisation), "{utilisation}");
    let bytes = bloom.index_bytes() as f64 / keys as f64;
    assert!((2.1..2.6).contains(&bytes), "{bytes} bytes a key");
    for key in (0..keys).step_by(3) {
        assert_eq!(store.history(&bloom, &Key::from(key), 1), [key]);
    }
}
