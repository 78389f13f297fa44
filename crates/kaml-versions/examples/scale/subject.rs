//! The two indexes behind one face: put a pair, find the newest version of a key.

use crate::cpu_seconds;
use crate::flash::MadeUpFlash;
use kaml_versions::{Bloom, BloomParameters, BloomPlace, Columns, Error, Key, Parameters, Place, Version};

/// An index under test.
pub(crate) enum Subject {
    Columns(Columns),
    Bloom(Bloom),
}

/// What putting came to.
#[derive(Default)]
pub(crate) struct Meters {
    pub(crate) sealed_records: u64,
    pub(crate) sealed_bytes: u64,
    /// What would be stored beside the segments.
    pub(crate) metadata_bytes: u64,
    /// CPU time of the made-up flash, which is not the index's.
    pub(crate) flash_seconds: f64,
}

impl Subject {
    pub(crate) fn columns(parameters: Parameters) -> Result<Subject, Error> {
        Columns::new(parameters).map(Subject::Columns)
    }

    pub(crate) fn bloom(parameters: BloomParameters) -> Result<Subject, Error> {
        Bloom::new(parameters).map(Subject::Bloom)
    }

    /// Bytes of a page, and pages of a segment.
    pub(crate) fn shape(&self) -> (u32, u32) {
        match self {
            Subject::Columns(columns) => (columns.parameters().page_bytes, columns.parameters().segment_pages),
            Subject::Bloom(bloom) => (bloom.parameters().page_bytes, bloom.parameters().segment_pages),
        }
    }

    pub(crate) fn segment_count(&self) -> u64 {
        match self {
            Subject::Columns(columns) => columns.segment_count(),
            Subject::Bloom(bloom) => bloom.segment_count(),
        }
    }

    /// All memory but the page buffer.
    pub(crate) fn index_bytes(&self) -> usize {
        match self {
            Subject::Columns(columns) => columns.memory().index_bytes,
            Subject::Bloom(bloom) => bloom.index_bytes(),
        }
    }

    pub(crate) fn put(
        &mut self,
        flash: &mut MadeUpFlash,
        version: &Version,
        value: &[u8],
        meters: &mut Meters,
    ) -> Result<(), Error> {
        let mut program = |image: &[u8], hashed_pages: usize, records: u32, bytes: usize| {
            let begun = cpu_seconds();
            let at = flash.program(image, hashed_pages)?;
            meters.flash_seconds += cpu_seconds() - begun;
            meters.sealed_records += u64::from(records);
            meters.sealed_bytes += bytes as u64;
            Ok::<_, Error>(at)
        };
        match self {
            Subject::Columns(columns) => {
                columns.insert(version, value)?;
                while let Some(row) = columns.wants_seal(&version.key) {
                    let sealed = columns.seal(row).expect("a full row is not empty");
                    let pages = sealed.hashed_pages as usize;
                    let at = program(&sealed.image, pages, sealed.records, sealed.record_bytes)?;
                    columns.install(&sealed, at);
                }
            }
            Subject::Bloom(bloom) => {
                if let Some(flushed) = bloom.insert(version, value)? {
                    let pages = bloom.parameters().segment_pages as usize;
                    let at = program(&flushed.image, pages, flushed.records, flushed.record_bytes)?;
                    meters.metadata_bytes += bloom.install(flushed, at) as u64;
                }
            }
        }
        Ok(())
    }

    /// The newest version of a key.
    pub(crate) fn newest(&self, flash: &mut MadeUpFlash, key: &Key) -> Result<Option<Version>, Error> {
        let mut found = None;
        match self {
            Subject::Columns(columns) => {
                let mut search = columns.search(key, u64::MAX);
                while let (None, Some(place)) = (found, search.next()) {
                    found = match place {
                        Place::Buffered(version, _) => Some(version),
                        Place::Page(candidate) => {
                            flash.read(candidate.at, candidate.page);
                            search.check(&candidate, &flash.page)?.map(|(version, _)| version)
                        }
                    };
                }
            }
            Subject::Bloom(bloom) => {
                bloom.search(key, |place| {
                    let record = match place {
                        BloomPlace::Open(page, place) => Bloom::check(key, place, page)?,
                        BloomPlace::Page(at, page, place) => {
                            flash.read(at, page);
                            Bloom::check(key, place, &flash.page)?
                        }
                    };
                    found = record.map(|(version, _)| version);
                    Ok::<bool, Error>(found.is_some())
                })?;
            }
        }
        Ok(found)
    }

    /// Whether memory alone cannot tell that a key is absent.
    pub(crate) fn may_have(&self, key: &Key) -> bool {
        match self {
            Subject::Columns(columns) => columns.search(key, u64::MAX).next().is_some(),
            Subject::Bloom(bloom) => bloom.search(key, |_| Ok::<bool, Error>(true)).expect("nothing is read"),
        }
    }
}
