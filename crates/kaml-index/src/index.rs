//! The index as others use it: one `IndexWriter`, any number of `IndexReader`s, of either kind.
//!
//! Lives here:       what both kinds have in common; the choice between them.
//! Lives elsewhere:  the kinds (`hash`, `dense`).
//! May be called by: everyone; the writer by a caller that holds the firmware core.
//!
//! The kind is an enum, not a trait object: a namespace keeps its kind, so the branch is predicted and the probes after it
//! are inlined.

use std::ops::Range;

use crate::dense::{DenseLayout, DenseReader, DenseWriter};
use crate::hash::{HashLayout, HashReader, HashWriter};
use crate::mixed::Mixed;
use crate::{Key, LenCode, NoAddressSpace, SnapshotCursor, SnapshotError};

/// Where a record lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Its first chunk, below `2^addr_bits`.
    pub at: u64,
    /// How many chunks to read.
    pub len: LenCode,
}

/// How far a listing has come: the last key it returned. The order is the index's
/// own, which no growth changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cursor(pub(crate) Mixed);

impl Cursor {
    /// As 24 bytes, little-endian.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.0.m.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.0.high.to_le_bytes());
        bytes[16] = self.0.len_less_one;
        bytes
    }

    /// From bytes of `to_bytes`. Any others make a listing start somewhere, no worse.
    pub fn from_bytes(bytes: [u8; 24]) -> Cursor {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Cursor(Mixed { m: word(0), high: word(8), len_less_one: bytes[16] })
    }
}

/// The kind of an index, and what it must have room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexLayout {
    /// Any keys; memory as there are keys.
    Hash(HashLayout),
    /// Keys below a limit, records of one length.
    Dense(DenseLayout),
}

impl IndexLayout {
    /// Bits of chunk numbers.
    pub fn addr_bits(&self) -> u32 {
        match self {
            IndexLayout::Hash(layout) => layout.addr_bits,
            IndexLayout::Dense(layout) => layout.addr_bits,
        }
    }

    /// The same with chunk numbers of this many bits.
    pub fn with_addr_bits(self, addr_bits: u32) -> IndexLayout {
        match self {
            IndexLayout::Hash(layout) => IndexLayout::Hash(HashLayout { addr_bits, ..layout }),
            IndexLayout::Dense(layout) => IndexLayout::Dense(DenseLayout { addr_bits, ..layout }),
        }
    }

    /// The same with chunk numbers of as many bits as a snapshot has: a device that has grown since needs more. A snapshot that does not
    /// state them changes nothing, and is refused when it is read.
    pub fn as_stored(self, snapshot: &[u8]) -> IndexLayout {
        let place = match self {
            IndexLayout::Hash(_) => crate::snapshot::ADDR_BITS_AT,
            IndexLayout::Dense(_) => crate::image::ADDR_BITS_AT,
        };
        match snapshot.get(place).map(|bits| u32::from(*bits)) {
            Some(bits @ 1..=HashLayout::ADDR_BITS_MAX) => self.with_addr_bits(bits),
            _ => self,
        }
    }
}

/// The one who changes an index. Readers on other threads see each change whole and at once.
pub enum IndexWriter {
    /// Any keys.
    Hash(HashWriter),
    /// Keys below a limit.
    Dense(DenseWriter),
}

/// Reads an index while it is written, without locks. Cheap to clone.
#[derive(Clone)]
pub enum IndexReader {
    /// Any keys.
    Hash(HashReader),
    /// Keys below a limit.
    Dense(DenseReader),
}

/// Asks whichever kind it is.
macro_rules! either {
    ($self:expr, $index:ident => $answer:expr) => {
        match $self {
            Self::Hash($index) => $answer,
            Self::Dense($index) => $answer,
        }
    };
}

macro_rules! reading {
    () => {
        /// Where the key's record lies. A key that the index does not take is absent.
        #[inline]
        pub fn get(&self, key: &Key) -> Option<Slot> {
            either!(self, index => index.get(key))
        }

        /// Starts fetching what a `get` of the key will read.
        #[inline]
        pub fn prefetch(&self, key: &Key) {
            either!(self, index => index.prefetch(key))
        }

        /// Keys present.
        #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
        pub fn len(&self) -> u64 {
            either!(self, index => index.len())
        }

        /// Memory taken from the system, everything counted.
        pub fn memory_bytes(&self) -> u64 {
            either!(self, index => index.memory_bytes())
        }

        /// Bytes of a snapshot taken now; of a dense index it may be one image without lines less.
        pub fn image_bytes(&self) -> u64 {
            either!(self, index => index.image_bytes())
        }

        /// The cursor that a listing is at when `key` is the last one it returned; none if no such key can be here.
        pub fn cursor_at(&self, key: &Key) -> Option<Cursor> {
            match self {
                Self::Hash(index) => index.cursor_at(key),
                Self::Dense(_) => key.as_u64().map(|m| Cursor(Mixed { m, ..Mixed::default() })),
            }
        }

        /// The key that a cursor is at.
        pub fn key_at(&self, cursor: &Cursor) -> Option<Key> {
            match self {
                Self::Hash(index) => index.key_at(cursor),
                Self::Dense(_) => Some(Key::from(cursor.0.m)),
            }
        }

        /// Up to `limit` keys (at least one) after `after`, and where to continue; no cursor means the end. Every key present
        /// throughout a whole listing is listed exactly once, whatever else is added or removed.
        pub fn list(&self, after: Option<Cursor>, limit: usize) -> (Vec<Key>, Option<Cursor>) {
            match self {
                Self::Hash(index) => index.list(after, limit),
                Self::Dense(index) => {
                    let from = after.map_or(0, |after| after.0.m.saturating_add(1));
                    let numbers = index.numbers(from..u64::MAX, limit.max(1));
                    let last = numbers.last().filter(|_| numbers.len() == limit.max(1));
                    let next = last.map(|last| Cursor(Mixed { m: *last, ..Mixed::default() }));
                    (numbers.into_iter().map(Key::from).collect(), next)
                }
            }
        }

        /// Some keys of a range of an index of numbers ([`DenseReader::some_numbers`]); a hash index keeps no order and returns none.
        pub fn some_numbers(&self, range: Range<u64>, limit: usize, steps: u64) -> Option<(Vec<u64>, u64)> {
            match self {
                Self::Hash(_) => None,
                Self::Dense(index) => Some(index.some_numbers(range, limit, steps)),
            }
        }
    };
}

impl IndexReader {
    reading!();
}

impl IndexWriter {
    reading!();

    /// An empty index; a hash index mixes keys with the seed.
    ///
    /// # Errors
    /// If the system has no address space left.
    ///
    /// # Panics
    /// As [`HashWriter::try_with_seed`] and [`DenseWriter::new`].
    pub fn new(layout: IndexLayout, seed: u64) -> Result<IndexWriter, NoAddressSpace> {
        Ok(match layout {
            IndexLayout::Hash(layout) => IndexWriter::Hash(HashWriter::try_with_seed(layout, seed)?),
            IndexLayout::Dense(layout) => IndexWriter::Dense(DenseWriter::new(layout)),
        })
    }

    /// The index of which a snapshot was taken: images, one after the other in the order in which they were taken. A hash index has
    /// the seed that it had.
    ///
    /// # Panics
    /// As `new`.
    pub fn of_snapshot(layout: IndexLayout, snapshot: &[u8]) -> Result<IndexWriter, SnapshotError> {
        Ok(match layout {
            IndexLayout::Hash(layout) => IndexWriter::Hash(HashWriter::of_snapshot(layout, snapshot)?),
            IndexLayout::Dense(layout) => {
                let mut index = DenseWriter::new(layout);
                index.restore(snapshot)?;
                IndexWriter::Dense(index)
            }
        })
    }

    /// Images of a snapshot taken now, at most.
    pub fn image_parts_max(&self) -> u64 {
        let least = match self {
            IndexWriter::Hash(index) => index.image_bytes_min(),
            IndexWriter::Dense(index) => index.image_bytes_min(),
        };
        self.image_bytes() / least + 2 // the last segment of a dense index can be shorter
    }

    /// Bits of its chunk numbers.
    pub fn addr_bits(&self) -> u32 {
        either!(self, index => index.layout().addr_bits)
    }

    /// A copy with chunk numbers of this many bits, which must be enough for those that it has. Takes about a microsecond a key.
    ///
    /// # Errors
    /// If the system has no address space left.
    ///
    /// # Panics
    /// When a chunk number has more bits.
    pub fn with_addr_bits(&self, addr_bits: u32) -> Result<IndexWriter, NoAddressSpace> {
        Ok(match self {
            IndexWriter::Hash(index) => {
                let mut copy = HashWriter::try_with_seed(HashLayout { addr_bits, ..index.layout() }, index.seed())?;
                index.for_each(|key, slot| {
                    copy.insert(&key, slot);
                });
                IndexWriter::Hash(copy)
            }
            IndexWriter::Dense(index) => {
                let mut copy = DenseWriter::new(DenseLayout { addr_bits, ..index.layout() });
                index.for_each(|key, slot| {
                    copy.insert(&key, slot);
                });
                IndexWriter::Dense(copy)
            }
        })
    }

    /// A reader for another thread.
    pub fn reader(&self) -> IndexReader {
        match self {
            IndexWriter::Hash(index) => IndexReader::Hash(index.reader()),
            IndexWriter::Dense(index) => IndexReader::Dense(index.reader()),
        }
    }

    /// Sets where the key's record lies; where it lay before.
    ///
    /// # Panics
    /// When the index does not take the key or the slot.
    #[inline]
    pub fn insert(&mut self, key: &Key, slot: Slot) -> Option<Slot> {
        either!(self, index => index.insert(key, slot))
    }

    /// Forgets the key; where its record lay.
    #[inline]
    pub fn remove(&mut self, key: &Key) -> Option<Slot> {
        either!(self, index => index.remove(key))
    }

    /// Sets where the key's record lies if it lies where the caller thinks; whether it did.
    ///
    /// # Panics
    /// When the index does not take the new slot.
    #[inline]
    pub fn replace_if(&mut self, key: &Key, expected: Slot, new: Slot) -> bool {
        either!(self, index => index.replace_if(key, expected, new))
    }

    /// Whether a record may have this length.
    pub fn takes_len(&self, len: LenCode) -> bool {
        match self {
            IndexWriter::Hash(_) => true,
            IndexWriter::Dense(index) => index.layout().len == len,
        }
    }

    /// Visits every entry once, in no promised order.
    pub fn for_each(&self, visit: impl FnMut(Key, Slot)) {
        either!(self, index => index.for_each(visit))
    }

    /// Visits where every record lies, in no promised order: for callers that do not need keys, which take longer.
    pub fn for_each_slot(&self, visit: impl FnMut(Slot)) {
        either!(self, index => index.for_each_slot(visit))
    }

    /// Appends the image of one segment; where to continue, or none if it was the last. The index may change between calls.
    pub fn snapshot_next(&self, from: SnapshotCursor, out: &mut Vec<u8>) -> Option<SnapshotCursor> {
        either!(self, index => index.snapshot_next(from, out))
    }
}
