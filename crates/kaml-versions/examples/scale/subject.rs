//! Both indexes with one interface: put a pair, find the newest version of a key.

use crate::cpu_seconds;
use crate::flash::MadeUpFlash;
use kaml_versions::{Columns, Error, Key, Place, Version};

/// An index under test.
pub(crate) struct Subject(pub(crate) Columns);

/// What putting came to.
#[derive(Default)]
pub(crate) struct Meters {
    pub(crate) sealed_records: u64,
    pub(crate) sealed_bytes: u64,
    /// Pages of the segments' tables.
    pub(crate) table_pages: u64,
    /// CPU time of the made-up flash, which is not the index's.
    pub(crate) flash_seconds: f64,
}

impl Subject {
    pub(crate) fn put(
        &mut self,
        flash: &mut MadeUpFlash,
        version: &Version,
        value: &[u8],
        meters: &mut Meters,
    ) -> Result<(), Error> {
        let Subject(columns) = self;
        columns.insert(version, value)?;
        while let Some(row) = columns.wants_seal(&version.key) {
            let sealed = columns.seal(row).expect("a full row is not empty");
            let begun = cpu_seconds();
            let at = flash.program(&sealed.image, sealed.hashed_pages as usize)?;
            meters.flash_seconds += cpu_seconds() - begun;
            meters.sealed_records += u64::from(sealed.records);
            meters.sealed_bytes += sealed.record_bytes as u64;
            meters.table_pages += u64::from(sealed.table_pages);
            columns.install(&sealed, at);
        }
        Ok(())
    }

    /// The newest version of a key.
    pub(crate) fn newest(&self, flash: &mut MadeUpFlash, key: &Key) -> Result<Option<Version>, Error> {
        let mut search = self.0.search(key, u64::MAX);
        while let Some(place) = search.next() {
            match place {
                Place::Buffered(version, _) => return Ok(Some(version)),
                Place::Page(candidate) => {
                    flash.read(candidate.at, candidate.page);
                    if let Some((version, _)) = search.check(&candidate, &flash.page)? {
                        return Ok(Some(version));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether memory alone cannot determine that a key is absent.
    pub(crate) fn may_have(&self, key: &Key) -> bool {
        self.0.search(key, u64::MAX).next().is_some()
    }
}
