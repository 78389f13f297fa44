//! The paper's own index on flash that counts its pages, without a device around it.
//!
//! Lives here:       putting segments on flash, reading candidates.
//! Lives elsewhere:  the index (`kaml_versions::Bloom`), the flash and what it counts (`device`).
//! Implements:       paper:Muninn 4.2-4.3, 6.
//!
//! What the paper stores beside its segments, filters and overflow maps, is counted in pages as bytes would fill them.

use super::device::{PAGE_BYTES, SEGMENT_BYTES, flash};
use super::measure::{Stored, Subject};
use crate::medium::SimMedium;
use crate::rig::RigError;
use kaml_device::Key;
use kaml_flash::{AlignedBuf, BlockIndex, Io, Medium, PageAddr};
use kaml_versions::{Bloom, BloomParameters, BloomPlace, Kind, SegmentAt, Version};
use std::sync::Arc;

/// The index and its flash.
pub(super) struct Baseline {
    pub(super) bloom: Bloom,
    medium: SimMedium,
    versions: u64,
    bytes: u64,
    metadata_bytes: u64,
}

impl Baseline {
    pub(super) fn new(data_bytes: u64, parameters: BloomParameters, seed: u64) -> Result<Baseline, RigError> {
        // Where segments are as empty as the paper's worst, they take three times the data.
        let medium = flash(4 * data_bytes, 1 << 20, seed)?;
        Ok(Baseline { bloom: Bloom::new(parameters)?, medium, versions: 0, bytes: 0, metadata_bytes: 0 })
    }

    /// Reads a page of a segment.
    pub(super) fn read(medium: &SimMedium, at: SegmentAt, page: u32) -> Result<AlignedBuf, RigError> {
        let geometry = medium.geometry();
        let first = first_page(medium, at);
        let at = geometry.chunk_at(first.block, (first.page + page) * geometry.chunks_per_page());
        let mut io = Io::Read { at, into: AlignedBuf::zeroed(PAGE_BYTES as usize) };
        medium.execute(&mut io)?;
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        Ok(into)
    }
}

fn first_page(medium: &SimMedium, at: SegmentAt) -> PageAddr {
    let pages = u64::from(BloomParameters::default().segment_pages);
    let per_block = u64::from(medium.geometry().pages_per_block) / pages;
    PageAddr { block: BlockIndex((at.get() / per_block) as u32), page: (at.get() % per_block * pages) as u32 }
}

impl Subject for Baseline {
    fn put(&mut self, put: u64, key: u64, value: &[u8]) -> Result<(), RigError> {
        let version = Version {
            key: Key::from(key),
            kind: Kind::Value,
            value_len: value.len() as u32,
            value_crc: 0,
            sequence: put + 1,
            time_ns: 0,
            user_version: 0,
            ordinal: 0,
        };
        let Some(flushed) = self.bloom.insert(&version, value)? else { return Ok(()) };
        let at = SegmentAt::new(self.bloom.segment_count()).expect("segments are counted");
        let first = first_page(&self.medium, at);
        let data = Arc::new(AlignedBuf::copy_of(&flushed.image));
        let oob = vec![0; flushed.image.len() / PAGE_BYTES as usize * self.medium.geometry().oob_bytes as usize];
        self.medium.execute(&mut Io::Program { at: first, data, oob, urgent: false })?;
        self.versions += u64::from(flushed.records);
        self.bytes += flushed.record_bytes as u64;
        self.metadata_bytes += self.bloom.install(flushed, at) as u64;
        Ok(())
    }

    fn rest(&mut self) -> Result<(), RigError> {
        Ok(())
    }

    fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, RigError> {
        let key = Key::from(key);
        let mut value = None;
        let medium = &self.medium;
        let mut check = |place: u16, page: &[u8]| -> Result<bool, RigError> {
            value = match Bloom::check(&key, place, page)? {
                Some((version, record)) => {
                    let end = version.stored_bytes();
                    Some(record[end - version.value_len as usize..end].to_vec())
                }
                None => None,
            };
            Ok(value.is_some())
        };
        self.bloom.search(&key, |place| match place {
            BloomPlace::Open(page, place) => check(place, page),
            BloomPlace::Page(at, page, place) => check(place, &Baseline::read(medium, at, page)?),
        })?;
        Ok(value)
    }

    fn medium(&self) -> &SimMedium {
        &self.medium
    }

    fn stored(&mut self, _put_bytes: u64) -> Result<Stored, RigError> {
        let metadata_pages = self.metadata_bytes as f64 / f64::from(PAGE_BYTES);
        Ok(Stored {
            versions: self.versions,
            bytes: self.bytes,
            room: self.bloom.segment_count() * u64::from(SEGMENT_BYTES),
            index_bytes: self.bloom.index_bytes() as u64,
            pages: self.medium.page_counts().written as f64 + metadata_pages,
        })
    }
}
