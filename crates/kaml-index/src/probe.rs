//! One key in one image of a snapshot, for callers that have no index in memory.
//!
//! Lives here:       which image has a key, and the look-up in its bytes.
//! Lives elsewhere:  the images (`snapshot`, `image`), where each of them begins in a stream (`kaml-device`).
//! May be called by: everyone.

use crate::bucket::{self, Fields, Raw};
use crate::dense::Array;
use crate::mixed::{Mixed, Mixer};
use crate::snapshot::{bucket_of_image, seed_of};
use crate::table::by_slots;
use crate::{HashLayout, IndexLayout, Key, Slot, SnapshotError};

/// How the images of a hash index are written: what is the same in all of them.
#[derive(Clone, Copy)]
pub(crate) struct Coding {
    pub(crate) fields: Fields,
    pub(crate) mixer: Mixer,
    pub(crate) layout: HashLayout,
    pub(crate) seed: u64,
}

/// Finds keys in the images of a snapshot, one image at a time. It needs no more memory than the head of an image.
///
/// # Examples
/// ```
/// use kaml_index::{HashLayout, ImageReader, IndexLayout, IndexWriter, Key, KeyKind, LenCode, Slot, SnapshotCursor};
///
/// let layout = IndexLayout::Hash(HashLayout { keys: KeyKind::U64, addr_bits: 30 });
/// let mut index = IndexWriter::new(layout, 0)?;
/// let slot = Slot { at: 7, len: LenCode::of(1).unwrap() };
/// index.insert(&Key::from(42), slot);
/// let mut image = Vec::new();
/// assert_eq!(index.snapshot_next(SnapshotCursor::START, &mut image), None); // the only one
///
/// let reader = ImageReader::new(layout, &image)?;
/// assert_eq!(reader.get(&Key::from(42), &image)?, Some(slot));
/// assert_eq!(reader.get(&Key::from(43), &image)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ImageReader(Kind);

enum Kind {
    Hash(Coding),
    Dense(Array),
}

impl ImageReader {
    /// A reader of the images of a snapshot that begins with these bytes. `layout` is that of the index, with the bits of chunk numbers
    /// that the snapshot has ([`IndexLayout::as_stored`]).
    ///
    /// # Errors
    /// There are fewer bytes than the head of an image has.
    ///
    /// # Panics
    /// If no index has such a layout.
    pub fn new(layout: IndexLayout, first: &[u8]) -> Result<ImageReader, SnapshotError> {
        let seed = seed_of(first)?;
        Ok(ImageReader(match layout {
            IndexLayout::Hash(layout) => Kind::Hash(Coding {
                fields: Fields::new(layout.keys, layout.addr_bits),
                mixer: Mixer::new(layout.keys, seed),
                layout,
                seed,
            }),
            IndexLayout::Dense(layout) => Kind::Dense(Array::new(layout)),
        }))
    }

    /// Where a key is in the order of the images: an image has the keys from the place at which it begins
    /// ([`SnapshotCursor::place`](crate::SnapshotCursor::place)) to the place at which the next one begins. None if the index takes no such key.
    pub fn place(&self, key: &Key) -> Option<u64> {
        match &self.0 {
            Kind::Hash(coding) => coding.mixer.mixed(key).map(|mixed| mixed.m),
            Kind::Dense(array) => array.number(key),
        }
    }

    /// Where the record of a key lies, by the image that has the key.
    ///
    /// # Errors
    /// The bytes are no whole image of this index, or one of other keys.
    pub fn get(&self, key: &Key, image: &[u8]) -> Result<Option<Slot>, SnapshotError> {
        match &self.0 {
            Kind::Hash(coding) => match coding.mixer.mixed(key) {
                Some(mixed) => Ok(coding.fields.slot_of(coding.value_of(&mixed, image)?)),
                None => Ok(None),
            },
            Kind::Dense(array) => match array.number(key) {
                Some(number) => array.slot_in_image(number, image),
                None => Ok(None),
            },
        }
    }
}

impl Coding {
    /// The value of a key, 0 if it has none.
    fn value_of(&self, mixed: &Mixed, image: &[u8]) -> Result<u64, SnapshotError> {
        let (image, _) = self.first_image(image)?;
        if !image.shape.holds(mixed.m) {
            return Err(SnapshotError::OutOfOrder { expected: Some(mixed.m), found: image.shape.start() });
        }
        let lines = image.checked_lines()?;
        for bucket in image.shape.place(mixed).buckets {
            let words = bucket_of_image(self, lines, bucket);
            let found = by_slots!(image.shape.slots_per_bucket(), N => {
                (0..N).filter(|slot| bucket::raw::<N>(&words, *slot) != Raw::default()).find_map(|slot| {
                    let (choice, kept, verbatim) = self.fields.key_of::<N>(&words, slot);
                    let is_it = image.shape.mixed(bucket, choice, kept, &verbatim) == *mixed;
                    is_it.then(|| self.fields.value::<N>(&words, slot))
                })
            });
            if let Some(value) = found {
                return Ok(value);
            }
        }
        Ok(image.outside_entries().find(|(other, _)| other == mixed).map_or(0, |(_, value)| value))
    }
}
