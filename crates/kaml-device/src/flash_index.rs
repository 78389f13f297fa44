//! An index that is not in memory: its checkpoint image finds keys meanwhile, each with a read more than the index.
//!
//! Lives here:       which image that is, reading the part that has a key, what a reader may do with what it found.
//! Lives elsewhere:  the list of parts (`format::part_list`), the look-up in a part (`index`), loading the index (`loading`).
//! Implements:       docs/ARCHITECTURE.md "Gets before an index is loaded".
//!
//! An index that is not in memory has not changed since its image was begun, and nothing changes it before it is loaded. So the image is the
//! index until then. A reader that found a record by it enters the core once more: if the index is in memory by now, it looks there.

use crate::core::Core;
use crate::error::Error;
use crate::format::part_list::PartList;
use crate::format::root::Stream;
use crate::gate::Pin;
use crate::index::{IndexLayout, PartReader};
use crate::layout::Layout;
use crate::metadata::{read_again, read_stream_range};
use crate::reader::Buffered;
use kaml_flash::Medium;
use kaml_index::{FullKey, Slot};
use std::sync::{Arc, OnceLock};

/// The image of an index that is not in memory. Its pages are not erased as long as this exists.
pub struct FlashIndex {
    id: u32,
    name: String,
    layout: IndexLayout,
    stream: Stream,
    opened: OnceLock<Opened>,
    _pins: Vec<Pin>,
}

struct Opened {
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
    /// [`Error::IndexDamaged`] if the part or the list is damaged; [`Core::load_index`] then reports what is wrong with the image.
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
            match crc_fast::crc32_iscsi(&part) == crc32c {
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

impl Core {
    /// The image by which keys of a namespace are found while its index is not in memory. From the first call on [`Core::image_load`]
    /// requests that the index is loaded. None if the index is in memory, a record in it has expired, its image has fewer than
    /// `least_bytes` or no list of parts, or the index could not be loaded: the caller then needs [`Core::load_index`].
    pub fn flash_index(&mut self, id: u32, least_bytes: u64) -> Option<Arc<FlashIndex>> {
        let layout = match self.spaces.get(&id)?.layout {
            layout @ (Layout::Records(_) | Layout::Blocks(_)) => self.index_layout(layout),
            Layout::Versions(_) => return None,
        };
        let space = &self.spaces[&id];
        let stream = space.snapshot.as_ref().filter(|stream| stream.list_bytes > 0 && stream.bytes >= least_bytes)?;
        if space.is_loaded() || space.shared.is_due(&self.clock) {
            return None;
        }
        match &space.image_use {
            ImageUse::Refused => None,
            ImageUse::Used(image) => Some(image.clone()),
            ImageUse::Unused => {
                let pins = self.pin_streams([stream]);
                let (name, stream) = (space.name.clone(), stream.clone());
                let image = FlashIndex { id, name, layout, stream, opened: OnceLock::new(), _pins: pins };
                let image = Arc::new(image);
                self.spaces.get_mut(&id).expect("just seen").image_use = ImageUse::Used(image.clone());
                self.catalog.image_loads.insert(id);
                Some(image)
            }
        }
    }

    /// Reads a record that was found by an image, or reports how. None if the index is in memory by now, or may have been since: the
    /// record can be elsewhere, and the caller looks again.
    pub fn read_found<'a>(
        &self,
        image: &Arc<FlashIndex>,
        key: impl Into<FullKey<'a>>,
        slot: Slot,
    ) -> Result<Option<Buffered>, Error> {
        let Some(space) = self.spaces.get(&image.id) else { return Ok(None) };
        let is_current = matches!(&space.image_use, ImageUse::Used(current) if Arc::ptr_eq(current, image));
        if !is_current || space.shared.is_due(&self.clock) {
            return Ok(None);
        }
        self.read_slot(image.id, &key.into(), slot).map(Some)
    }

    /// A namespace whose index should be loaded, because readers look keys up in its image. It remains so until
    /// [`Core::end_image_load`].
    pub fn image_load(&self) -> Option<u32> {
        self.catalog.image_loads.first().copied()
    }

    /// The index of a namespace is loaded, needs not be loaded any more, or cannot be.
    pub fn end_image_load(&mut self, id: u32, is_refused: bool) {
        self.catalog.image_loads.remove(&id);
        if let Some(space) = self.spaces.get_mut(&id).filter(|space| is_refused && !space.is_loaded()) {
            space.image_use = ImageUse::Refused;
        }
    }
}
