//! What the tests share: segments in memory, a source of numbers, versions made up from them.

use kaml_versions::{
    BloomOptions, Columns, Index, Key, Kind, Parameters, Place, Search, SegmentAt, ValueShape, Version, records,
};

/// Marsaglia's xorshift64*.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }
}

/// Small enough that a few hundred puts fill segments, groups and rows.
pub(crate) fn tiny(seed: u64) -> Parameters {
    Parameters {
        page_bytes: 512,
        segment_pages: 8,
        rows: 3,
        buffer_bytes: 12 << 10,
        index: Index::Columns(ValueShape { fingerprint_bits: 8, choices: 3 }),
        seed,
    }
}

/// The same with the paper's index: filters that are often wrong and often full, tables of this many segments.
pub(crate) fn tiny_bloom(seed: u64, combined: u32) -> Parameters {
    let options = BloomOptions {
        segment_keys: 32,
        overflow_keys: 3,
        false_positives_ppm: 20_000,
        combined,
        ..Default::default()
    };
    Parameters { rows: 3, ..tiny(seed).with_bloom(&options) }
}

/// Both.
pub(crate) fn tiny_indexes(seed: u64) -> [Parameters; 3] {
    [tiny(seed), tiny_bloom(seed, 3), tiny_bloom(seed, 64)]
}

pub(crate) fn value_of(sequence: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (sequence as usize * 31 + i) as u8).collect()
}

pub(crate) fn version(key: Key, kind: Kind, value: &[u8], sequence: u64) -> Version {
    Version {
        key,
        kind,
        value_len: value.len() as u32,
        value_crc: kaml_crc::crc32c(value),
        sequence,
        time_ns: sequence * 1000,
        user_version: 0,
        ordinal: 0,
    }
}

/// Segments by address, and how often their pages were read.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) images: Vec<Vec<u8>>,
    pub(crate) page_reads: u64,
}

impl Store {
    /// Seals whatever the index needs sealed.
    pub(crate) fn settle(&mut self, columns: &mut Columns, last: &Key) {
        while let Some(row) = columns.wants_seal(last) {
            self.seal(columns, row);
        }
    }

    pub(crate) fn seal(&mut self, columns: &mut Columns, row: u32) {
        let Some(sealed) = columns.seal(row) else { return };
        assert!(sealed.records > 0, "each segment takes the oldest version at least");
        let at = SegmentAt::new(self.images.len() as u64).expect("few segments");
        columns.install(&sealed, at);
        let pages = sealed.image.chunks(columns.parameters().page_bytes as usize).take(sealed.hashed_pages as usize);
        let hashed: usize = pages.map(|page| records(page).filter(Result::is_ok).count()).sum();
        assert_eq!(hashed, sealed.records as usize);
        self.images.push(sealed.image);
    }

    /// A key's versions before a sequence, newest first, with their values.
    pub(crate) fn history(&mut self, columns: &Columns, key: &Key, before: u64) -> Vec<(Version, Vec<u8>)> {
        let mut search = columns.search(key, before);
        std::iter::from_fn(|| self.next(columns, &mut search)).collect()
    }

    /// A key's newest version.
    pub(crate) fn newest(&mut self, columns: &Columns, key: &Key) -> Option<(Version, Vec<u8>)> {
        self.next(columns, &mut columns.search(key, u64::MAX))
    }

    fn next(&mut self, columns: &Columns, search: &mut Search<'_>) -> Option<(Version, Vec<u8>)> {
        let page_bytes = columns.parameters().page_bytes as usize;
        loop {
            let (image, found) = match search.next()? {
                Place::Buffered(version, record) => (&[][..], Some((version, record))),
                Place::Page(candidate) => {
                    self.page_reads += 1;
                    let image = &self.images[candidate.at.get() as usize];
                    let page = &image[candidate.page as usize * page_bytes..][..page_bytes];
                    (&image[..], search.check(&candidate, page).expect("undamaged"))
                }
            };
            let Some((version, record)) = found else { continue };
            let value = match version.kind {
                Kind::Value => version.value(record).expect("undamaged").expect("a value").to_vec(),
                Kind::Tombstone => Vec::new(),
                Kind::Extent(at) => image[at as usize..][..version.value_len as usize].to_vec(),
                Kind::Large(_) => unreachable!("these tests put none"),
            };
            assert_eq!(kaml_crc::crc32c(&value), version.value_crc);
            return Some((version, value));
        }
    }
}
