//! What finds the records of a namespace by their keys: a hash, dense or ordered index, as its layout demands.
//!
//! Lives here:       the choice between them, and what all have in common.
//! Lives elsewhere:  the indexes (`kaml-index`, `kaml-ordered`), which layout has which (`Core::index_layout`).
//!
//! The hash and dense indexes know a record by its [`Key`](kaml_index::Key), the ordered one by the bytes of its key.

use crate::format::range::KeyRange;
use crate::superseded::Place;
use kaml_index::{
    Cursor, FullKey, ImageReader, Key, KeyBuf, LenCode, NoAddressSpace, Slot, SnapshotCursor, SnapshotError,
};
use kaml_ordered::{ImageError, OrderedLayout, OrderedReader, OrderedWriter};
use std::ops::Range;

/// The kind of an index, and what it must have room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IndexLayout {
    Exact(kaml_index::IndexLayout),
    Ordered(OrderedLayout),
}

impl IndexLayout {
    pub(crate) fn addr_bits(&self) -> u32 {
        match self {
            IndexLayout::Exact(layout) => layout.addr_bits(),
            IndexLayout::Ordered(layout) => layout.addr_bits,
        }
    }
}

/// The one who changes an index.
pub(crate) enum IndexWriter {
    Exact(kaml_index::IndexWriter),
    Ordered(OrderedWriter),
}

/// Reads an index while it is written.
#[derive(Clone)]
pub(crate) enum IndexReader {
    Exact(kaml_index::IndexReader),
    Ordered(OrderedReader),
}

/// Where an image of an index continues.
#[derive(Debug)]
pub(crate) enum ImageCursor {
    /// Where every image begins.
    Start,
    Exact(SnapshotCursor),
    Ordered(kaml_ordered::ImageCursor),
}

impl ImageCursor {
    /// Where the first key of the next part is in the order of the parts, as [`PartReader::place`] has it.
    pub(crate) fn place(&self) -> u64 {
        match self {
            ImageCursor::Start => 0,
            ImageCursor::Exact(cursor) => cursor.place(),
            ImageCursor::Ordered(cursor) => cursor.place(),
        }
    }
}

/// Finds keys in parts of an image.
pub(crate) enum PartReader {
    Exact(Box<ImageReader>),
    Ordered(OrderedLayout),
}

impl PartReader {
    /// So many bytes at the beginning of an image describe it.
    pub(crate) const HEAD_BYTES: u64 = 64;

    /// A reader of the image that begins with these bytes, of an index with this layout; its chunk numbers may have fewer bits.
    pub(crate) fn new(layout: IndexLayout, first: &[u8]) -> Result<PartReader, BadImage> {
        Ok(match layout {
            IndexLayout::Exact(layout) => {
                PartReader::Exact(Box::new(ImageReader::new(layout.as_stored(first), first)?))
            }
            IndexLayout::Ordered(layout) => PartReader::Ordered(layout.as_stored(first)),
        })
    }

    /// Where a key is in the order of the parts; none if the index takes no such key.
    pub(crate) fn place(&self, key: &FullKey<'_>) -> Option<u64> {
        match self {
            PartReader::Exact(reader) => reader.place(key.key()),
            PartReader::Ordered(_) => in_order(key).map(kaml_ordered::place_of),
        }
    }

    /// Bytes at the beginning of a part that [`PartReader::begins_after`] looks at.
    pub(crate) fn begin_bytes(&self) -> u64 {
        match self {
            PartReader::Exact(_) => 0,
            PartReader::Ordered(_) => kaml_ordered::PART_BEGIN_BYTES as u64,
        }
    }

    /// Whether a part begins after a key, where places do not decide: they always do in a hash or dense index.
    pub(crate) fn begins_after(&self, begin: &[u8], key: &FullKey<'_>) -> bool {
        match self {
            PartReader::Exact(_) => false,
            PartReader::Ordered(_) => in_order(key).is_some_and(|key| kaml_ordered::begins_after(begin, key)),
        }
    }

    /// Where the record of a key lies, by the part that has the key.
    pub(crate) fn get(&self, key: &FullKey<'_>, part: &[u8]) -> Result<Option<Slot>, BadImage> {
        match self {
            PartReader::Exact(reader) => Ok(reader.get(key.key(), part)?),
            PartReader::Ordered(layout) => match in_order(key) {
                Some(key) => Ok(kaml_ordered::slot_in_part(*layout, part, key)?),
                None => Ok(None),
            },
        }
    }
}

/// Why an image was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadImage {
    #[error(transparent)]
    Exact(#[from] SnapshotError),
    #[error(transparent)]
    Ordered(#[from] ImageError),
}

/// The bytes by which the ordered index knows a key; nothing for a digest without them, which it does not know.
#[inline]
fn in_order<'a>(key: &'a FullKey<'_>) -> Option<&'a [u8]> {
    (!key.key().is_digest() || !key.long_bytes().is_empty()).then(|| key.as_bytes())
}

macro_rules! reading {
    () => {
        /// Where the key's record lies. A key that the index does not take is absent.
        #[inline]
        pub(crate) fn get(&self, key: &FullKey<'_>) -> Option<Slot> {
            match self {
                Self::Exact(index) => index.get(key.key()),
                Self::Ordered(index) => index.get(in_order(key)?),
            }
        }

        /// Starts fetching what a `get` of the key will read.
        #[inline]
        pub(crate) fn prefetch(&self, key: &FullKey<'_>) {
            match self {
                Self::Exact(index) => index.prefetch(key.key()),
                Self::Ordered(index) => {
                    if let Some(key) = in_order(key) {
                        index.prefetch(key);
                    }
                }
            }
        }

        /// The place of a key in the order of the index; nothing if it takes no such key.
        pub(crate) fn place(&self, key: &FullKey<'_>) -> Option<Place> {
            match self {
                Self::Exact(index) => index.cursor_at(key.key()).map(Place::Listed),
                Self::Ordered(_) => in_order(key).and_then(|bytes| KeyBuf::new(bytes).ok()).map(Place::InOrder),
            }
        }
    };
}

impl IndexReader {
    reading!();

    /// Keys after a cursor, and where to continue. An ordered index lists by ranges instead, and returns nothing.
    pub(crate) fn list(&self, after: Option<Cursor>, limit: usize) -> Option<(Vec<Key>, Option<Cursor>)> {
        match self {
            Self::Exact(index) => Some(index.list(after, limit)),
            Self::Ordered(_) => None,
        }
    }

    /// The cursor of a listing that has returned `key` last.
    pub(crate) fn cursor_at(&self, key: &Key) -> Option<Cursor> {
        match self {
            Self::Exact(index) => index.cursor_at(key),
            Self::Ordered(_) => None,
        }
    }

    /// The key at a place of a hash index.
    pub(crate) fn key_at(&self, cursor: &Cursor) -> Option<Key> {
        match self {
            Self::Exact(index) => index.key_at(cursor),
            Self::Ordered(_) => None,
        }
    }

    /// The ordered index, if it is one.
    pub(crate) fn ordered(&self) -> Option<&OrderedReader> {
        match self {
            Self::Exact(_) => None,
            Self::Ordered(index) => Some(index),
        }
    }
}

impl IndexWriter {
    reading!();

    /// An empty index; a hash index mixes keys with the seed.
    pub(crate) fn new(layout: IndexLayout, seed: u64) -> Result<IndexWriter, NoAddressSpace> {
        Ok(match layout {
            IndexLayout::Exact(layout) => IndexWriter::Exact(kaml_index::IndexWriter::new(layout, seed)?),
            IndexLayout::Ordered(layout) => IndexWriter::Ordered(OrderedWriter::try_new(layout)?),
        })
    }

    /// The index of which an image was taken, with room for chunk numbers of at least as many bits as the layout has: the device may have
    /// grown since.
    pub(crate) fn of_image(layout: IndexLayout, image: &[u8]) -> Result<IndexWriter, BadImage> {
        let mut index = match layout {
            IndexLayout::Exact(layout) => {
                IndexWriter::Exact(kaml_index::IndexWriter::of_snapshot(layout.as_stored(image), image)?)
            }
            IndexLayout::Ordered(layout) => {
                IndexWriter::Ordered(OrderedWriter::of_image(layout.as_stored(image), image)?)
            }
        };
        if index.addr_bits() < layout.addr_bits() {
            index = index.with_addr_bits(layout.addr_bits()).map_err(SnapshotError::NoAddressSpace)?;
        }
        Ok(index)
    }

    /// Bits of its chunk numbers.
    pub(crate) fn addr_bits(&self) -> u32 {
        match self {
            Self::Exact(index) => index.addr_bits(),
            Self::Ordered(index) => index.layout().addr_bits,
        }
    }

    /// A copy with chunk numbers of this many bits.
    pub(crate) fn with_addr_bits(&self, addr_bits: u32) -> Result<IndexWriter, NoAddressSpace> {
        Ok(match self {
            Self::Exact(index) => Self::Exact(index.with_addr_bits(addr_bits)?),
            Self::Ordered(index) => Self::Ordered(index.with_layout(OrderedLayout { addr_bits })?),
        })
    }

    /// A reader for another thread.
    pub(crate) fn reader(&self) -> IndexReader {
        match self {
            IndexWriter::Exact(index) => IndexReader::Exact(index.reader()),
            IndexWriter::Ordered(index) => IndexReader::Ordered(index.reader()),
        }
    }

    /// Keys present.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Exact(index) => index.len(),
            Self::Ordered(index) => index.len(),
        }
    }

    /// Memory taken from the system.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Exact(index) => index.memory_bytes(),
            Self::Ordered(index) => index.memory_bytes(),
        }
    }

    /// Bytes of an image taken now, at most.
    pub(crate) fn image_bytes(&self) -> u64 {
        match self {
            Self::Exact(index) => index.image_bytes(),
            Self::Ordered(index) => index.image_bytes_max(),
        }
    }

    /// Parts of an image taken now, at most.
    pub(crate) fn image_parts_max(&self) -> u64 {
        match self {
            Self::Exact(index) => index.image_parts_max(),
            Self::Ordered(index) => index.image_bytes_max() / kaml_ordered::PART_BYTES as u64 + 2,
        }
    }

    /// Sets where the key's record lies; where it lay before.
    #[inline]
    pub(crate) fn insert(&mut self, key: &FullKey<'_>, slot: Slot) -> Option<Slot> {
        match self {
            Self::Exact(index) => index.insert(key.key(), slot),
            Self::Ordered(index) => {
                let bytes = in_order(key).expect("long keys come with their bytes");
                index.insert(bytes, slot).expect("keys are checked before")
            }
        }
    }

    /// Forgets the key; where its record lay.
    #[inline]
    pub(crate) fn remove(&mut self, key: &FullKey<'_>) -> Option<Slot> {
        match self {
            Self::Exact(index) => index.remove(key.key()),
            Self::Ordered(index) => index.remove(in_order(key)?),
        }
    }

    pub(crate) fn is_ordered(&self) -> bool {
        match self {
            Self::Exact(_) => false,
            Self::Ordered(_) => true,
        }
    }

    /// Forgets the keys of a range, if the index is in order. It visits each key before readers miss it.
    pub(crate) fn remove_range(&mut self, range: &KeyRange, visit: impl FnMut(&[u8], Slot)) {
        if let Self::Ordered(index) = self {
            index.remove_range::<[u8]>(range.bounds(), visit);
        }
    }

    /// How many keys a range has; none if the index is not in order.
    pub(crate) fn count(&self, range: &KeyRange) -> u64 {
        match self {
            Self::Exact(_) => 0,
            Self::Ordered(index) => index.count::<[u8]>(range.bounds()),
        }
    }

    /// Sets where the key's record lies if it lies where the caller thinks; whether it did.
    #[inline]
    pub(crate) fn replace_if(&mut self, key: &FullKey<'_>, expected: Slot, new: Slot) -> bool {
        match self {
            Self::Exact(index) => index.replace_if(key.key(), expected, new),
            Self::Ordered(index) => in_order(key).is_some_and(|key| index.replace_if(key, expected, new)),
        }
    }

    /// Some keys of a range of an index of numbers.
    pub(crate) fn some_numbers(&self, range: Range<u64>, limit: usize, steps: u64) -> Option<(Vec<u64>, u64)> {
        match self {
            Self::Exact(index) => index.some_numbers(range, limit, steps),
            Self::Ordered(_) => None,
        }
    }

    /// Whether a record may have this length.
    pub(crate) fn takes_len(&self, len: LenCode) -> bool {
        match self {
            Self::Exact(index) => index.takes_len(len),
            Self::Ordered(_) => true,
        }
    }

    /// Visits where every record lies, in no promised order.
    pub(crate) fn for_each_slot(&self, mut visit: impl FnMut(Slot)) {
        match self {
            Self::Exact(index) => index.for_each_slot(visit),
            Self::Ordered(index) => index.for_each(|_, slot| visit(slot)),
        }
    }

    /// Appends the next part of an image; where to continue, or none if it was the last. The index may change between calls.
    pub(crate) fn image_next(&self, from: ImageCursor, out: &mut Vec<u8>) -> Option<ImageCursor> {
        match (self, from) {
            (Self::Exact(index), ImageCursor::Start) => {
                index.snapshot_next(SnapshotCursor::START, out).map(ImageCursor::Exact)
            }
            (Self::Exact(index), ImageCursor::Exact(from)) => index.snapshot_next(from, out).map(ImageCursor::Exact),
            (Self::Ordered(index), ImageCursor::Start) => {
                index.image_next(&kaml_ordered::ImageCursor::START, out).map(ImageCursor::Ordered)
            }
            (Self::Ordered(index), ImageCursor::Ordered(from)) => {
                index.image_next(&from, out).map(ImageCursor::Ordered)
            }
            (Self::Exact(_), ImageCursor::Ordered(_)) | (Self::Ordered(_), ImageCursor::Exact(_)) => {
                unreachable!("an image continues as it began")
            }
        }
    }
}
