//! The checkpoint image of an index, in which keys are found without loading it.
//!
//! Lives here:       reading the part that has a key.
//! Lives elsewhere:  the list of parts (`format::part_list`), the look-up in a part (`index`), who uses an image and when (`flash_index`).
//! Implements:       docs/ARCHITECTURE.md "Gets before an index is loaded".

use crate::error::Error;
use crate::format::part_list::PartList;
use crate::format::root::Stream;
use crate::gate::Pin;
use crate::index::{IndexLayout, PartReader};
use crate::metadata::{read_again, read_stream_range};
use kaml_flash::Medium;
use kaml_index::{FullKey, Slot};
use std::sync::{Arc, OnceLock};

/// The image of an index that is not in memory. Its pages are not erased as long as this exists.
pub struct FlashIndex {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) layout: IndexLayout,
    pub(crate) stream: Stream,
    pub(crate) opened: OnceLock<Opened>,
    pub(crate) _pins: Vec<Pin>,
}

pub(crate) struct Opened {
    list: PartList,
    reader: PartReader,
}

/// What a namespace has of its image while its index is not in memory.
#[derive(Default)]
pub(crate) enum ImageUse {
    /// Nobody has looked at it.
    #[default]
    Unused,
    /// Readers look keys up in it.
    Used(Arc<FlashIndex>),
    /// It could not be loaded: a reader tries it, too, and has the error.
    Refused,
}

impl FlashIndex {
    /// Where the record of a key lies, if it has one. Reads a part of the image, of some 64 KiB, and before the first one the list of parts.
    ///
    /// # Errors
    /// [`Error::IndexDamaged`] if the part or the list is damaged; [`Core::load_index`](crate::Core::load_index) then reports what is wrong with the image.
    pub fn find(&self, medium: &dyn Medium, key: &FullKey<'_>) -> Result<Option<Slot>, Error> {
        let Opened { list, reader } = self.open(medium)?;
        let Some(place) = reader.place(key) else { return Ok(None) };
        let mut parts = list.candidates(place);
        while parts.len() > 1 {
            let middle = parts.start + parts.len() / 2;
            let (range, _) = list.extent(middle);
            let begin = range.start..range.end.min(range.start + reader.begin_bytes());
            let begin = if begin.is_empty() { Vec::new() } else { self.read(medium, begin)? };
            match reader.begins_after(&begin, key) {
                true => parts.end = middle,
                false => parts.start = middle,
            }
        }
        let (range, crc32c) = list.extent(parts.start);
        let part = read_again(|| {
            let part = read_stream_range(medium, &self.stream, range.clone())?;
            match kaml_crc::crc32c(&part) == crc32c {
                true => Ok(part),
                false => Err(Error::MetadataDamaged(format!("part {} does not match its checksum", parts.start))),
            }
        });
        let part = part.map_err(|error| self.damaged(error))?;
        reader.get(key, &part).map_err(|error| self.damaged(error))
    }

    fn open(&self, medium: &dyn Medium) -> Result<&Opened, Error> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let list_at = self.stream.bytes - u64::from(self.stream.list_bytes);
        let list = read_again(|| {
            let bytes = read_stream_range(medium, &self.stream, list_at..self.stream.bytes)?;
            PartList::decode(&bytes, &self.stream).map_err(|error| Error::MetadataDamaged(error.to_string()))
        });
        let list = list.map_err(|error| self.damaged(error))?;
        let (first, _) = list.extent(0);
        let begin = self.read(medium, first.start..first.end.min(first.start + PartReader::HEAD_BYTES))?;
        let reader = PartReader::new(self.layout, &begin).map_err(|error| self.damaged(error))?;
        // Another reader may have been faster: what it has is the same.
        Ok(self.opened.get_or_init(|| Opened { list, reader }))
    }

    /// Bytes of the image whose checksum is not looked at.
    fn read(&self, medium: &dyn Medium, range: std::ops::Range<u64>) -> Result<Vec<u8>, Error> {
        read_again(|| read_stream_range(medium, &self.stream, range.clone())).map_err(|error| self.damaged(error))
    }

    fn damaged(&self, what: impl ToString) -> Error {
        Error::IndexDamaged { namespace: self.id, name: self.name.clone(), what: what.to_string() }
    }
}
