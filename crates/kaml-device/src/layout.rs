//! What a namespace holds: records by key, logical blocks, or records with all their versions.
//!
//! Lives here:       the attributes of a block namespace and what makes them valid; which keys a layout takes.
//! Lives elsewhere:  reading and writing blocks (`units`), storing the attributes (`format::root`).
//! Implements:       docs/ARCHITECTURE.md "Block namespaces".
//!
//! A block namespace is mapped in *units* of one or several logical blocks. A unit is a record like any other: its key is its
//! number, its value the bytes of its blocks. So logs, the commit ring, collection, recovery and checks know nothing of
//! blocks; only the index is another one. (An erase *block* of flash is something else; logical ones are called so where
//! both are near.)

use crate::error::{Error, NotForVersions};
use crate::format::record::{Record, RecordKind};
use kaml_index::{DenseLayout, FullKey, Key, KeyError, KeyKind};
use kaml_versions::Parameters;
use std::ops::Range;

/// What a block namespace is asked to be when it is created. It may be larger than the device: space is taken by what is
/// written, and blocks never written or trimmed read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOptions {
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Logical blocks, at least one.
    pub block_count: u64,
    /// Bytes that are mapped together, a power of two from `block_bytes` to [`BlockOptions::UNIT_BYTES_MAX`]. A write of
    /// less reads the remainder first.
    pub unit_bytes: u32,
}

impl Default for BlockOptions {
    /// 4 KiB blocks in units of 4 KiB, and none of them: state how many.
    fn default() -> Self {
        BlockOptions { block_bytes: 4096, block_count: 0, unit_bytes: 4096 }
    }
}

/// A part of a range of bytes that lies in one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The unit.
    pub unit: u64,
    /// Which of its bytes.
    pub in_unit: Range<usize>,
    /// Which bytes of the range, counted from its start.
    pub in_range: Range<usize>,
}

impl BlockOptions {
    /// Larger values are written to their pages directly, which units are not.
    pub const UNIT_BYTES_MAX: u32 = 16 << 10;

    /// This many blocks of this many bytes, in units of 4 KiB.
    pub fn new(block_bytes: u32, block_count: u64) -> BlockOptions {
        BlockOptions { block_bytes, block_count, ..BlockOptions::default() }
    }

    /// What is wrong with them, if anything is.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.block_bytes != 512 && self.block_bytes != 4096 {
            return Err("blocks have 512 or 4096 bytes");
        }
        let units = self.block_bytes..=Self::UNIT_BYTES_MAX;
        if !self.unit_bytes.is_power_of_two() || !units.contains(&self.unit_bytes) {
            return Err("a mapping unit has a power of two of bytes, at least a block, at most 16 KiB");
        }
        if self.block_count == 0 {
            return Err("at least one block");
        }
        match self.block_count.div_ceil(self.blocks_per_unit()) <= DenseLayout::KEYS_MAX {
            true => Ok(()),
            false => Err("at most 2^36 mapping units"),
        }
    }

    /// Units of the namespace; the last one may reach beyond its last block.
    pub fn unit_count(&self) -> u64 {
        self.block_count.div_ceil(self.blocks_per_unit())
    }

    pub(crate) fn blocks_per_unit(&self) -> u64 {
        u64::from(self.unit_bytes / self.block_bytes)
    }

    /// The bytes of some blocks, counted from the namespace's start.
    ///
    /// # Errors
    /// [`Error::BlocksOutOfRange`] if the namespace has no such blocks.
    pub fn bytes_of(&self, namespace: u32, first_block: u64, count: u64) -> Result<Range<u64>, Error> {
        let block_count = self.block_count;
        match first_block.checked_add(count).filter(|end| *end <= block_count) {
            Some(end) => Ok(first_block * u64::from(self.block_bytes)..end * u64::from(self.block_bytes)),
            None => Err(Error::BlocksOutOfRange { namespace, first_block, count, block_count }),
        }
    }

    /// As [`BlockOptions::bytes_of`], for a buffer of this many bytes.
    ///
    /// # Errors
    /// Also [`Error::PartialBlock`] if they are not whole blocks.
    pub fn bytes_of_buffer(&self, namespace: u32, first_block: u64, bytes: usize) -> Result<Range<u64>, Error> {
        let (block_bytes, bytes) = (u64::from(self.block_bytes), bytes as u64);
        match bytes.is_multiple_of(block_bytes) {
            true => self.bytes_of(namespace, first_block, bytes / block_bytes),
            false => Err(Error::PartialBlock { namespace, bytes, block_bytes }),
        }
    }

    /// The units of a range of bytes, in order.
    pub fn spans(&self, range: Range<u64>) -> impl Iterator<Item = Span> + use<> {
        let unit_bytes = u64::from(self.unit_bytes);
        let first = range.start / unit_bytes;
        let end = if range.is_empty() { first } else { range.end.div_ceil(unit_bytes) };
        (first..end).map(move |unit| {
            let start = range.start.max(unit * unit_bytes);
            let end = range.end.min((unit + 1) * unit_bytes);
            let within = |base: u64| (start - base) as usize..(end - base) as usize;
            Span { unit, in_unit: within(unit * unit_bytes), in_range: within(range.start) }
        })
    }
}

/// Which commands ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    /// Those on records by key.
    Records,
    /// Those on blocks, which name units by their keys.
    Blocks,
    /// Puts, of records and of versions.
    Puts,
    /// Those on versions.
    Versions,
    /// Those on ranges of keys.
    Ranges,
}

/// A versioned namespace: which keys it takes, and its shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VersionLayout {
    pub(crate) keys: KeyKind,
    pub(crate) parameters: Parameters,
}

/// What a namespace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    Records(KeyKind),
    Blocks(BlockOptions),
    Versions(VersionLayout),
}

impl Layout {
    pub(crate) fn blocks(&self) -> Option<BlockOptions> {
        match self {
            Layout::Records(_) | Layout::Versions(_) => None,
            Layout::Blocks(blocks) => Some(*blocks),
        }
    }

    /// The shape of a versioned namespace.
    pub(crate) fn versions(&self) -> Option<&Parameters> {
        match self {
            Layout::Records(_) | Layout::Blocks(_) => None,
            Layout::Versions(versions) => Some(&versions.parameters),
        }
    }

    /// Refuses a command that the namespace is not for.
    pub(crate) fn admit(&self, namespace: u32, door: Door) -> Result<(), Error> {
        match (self, door) {
            (Layout::Records(_), Door::Records | Door::Puts)
            | (Layout::Blocks(_), Door::Blocks)
            | (Layout::Versions(_), Door::Versions | Door::Puts)
            | (Layout::Records(KeyKind::Ordered), Door::Ranges) => Ok(()),
            (Layout::Records(_), Door::Ranges) => Err(Error::NotOrdered(namespace)),
            (Layout::Records(_) | Layout::Versions(_), Door::Blocks) => Err(Error::HoldsRecords(namespace)),
            (Layout::Blocks(_), Door::Records | Door::Puts | Door::Ranges) => Err(Error::HoldsBlocks(namespace)),
            (Layout::Versions(_), Door::Records | Door::Ranges) => Err(NotForVersions::Command(namespace).into()),
            (Layout::Records(_) | Layout::Blocks(_), Door::Versions) => Err(Error::KeepsNoVersions(namespace)),
        }
    }

    /// Refuses a key that the namespace does not take.
    pub(crate) fn check_key(&self, key: &Key) -> Result<(), KeyError> {
        match self {
            Layout::Records(keys) | Layout::Versions(VersionLayout { keys, .. }) => key.check(*keys),
            Layout::Blocks(blocks) if key.as_u64().is_some_and(|unit| unit < blocks.unit_count()) => Ok(()),
            Layout::Blocks(_) => Err(KeyError { len: key.len(), must: "the namespace has no unit of that number" }),
        }
    }

    /// As [`Layout::check_key`], of a key with its bytes.
    pub(crate) fn check_full_key(&self, key: &FullKey<'_>) -> Result<(), KeyError> {
        self.check_key(key.key()).map_err(|error| KeyError { len: key.as_bytes().len(), ..error })
    }

    /// The key as its index needs it: only an ordered one needs the bytes of long keys.
    pub(crate) fn indexed<'a>(&self, key: FullKey<'a>) -> FullKey<'a> {
        match self {
            Layout::Records(KeyKind::Ordered) => key,
            Layout::Records(_) | Layout::Blocks(_) | Layout::Versions(_) => key.key().into(),
        }
    }

    /// Whether the index cannot know the key, because it needs its bytes.
    pub(crate) fn lacks_bytes_of(&self, key: &FullKey<'_>) -> bool {
        matches!(self, Layout::Records(KeyKind::Ordered)) && key.key().is_digest() && key.long_bytes().is_empty()
    }

    /// Whether a value may have so many bytes, as far as the namespace is concerned.
    pub(crate) fn takes_value_of(&self, bytes: usize) -> bool {
        self.blocks().is_none_or(|blocks| bytes == blocks.unit_bytes as usize)
    }

    /// Whether a record found in the ring can be one of the namespace.
    pub(crate) fn takes(&self, record: &Record) -> bool {
        if record.kind == RecordKind::RangeTombstone {
            return *self == Layout::Records(KeyKind::Ordered);
        }
        if matches!(record.kind, RecordKind::Expiring | RecordKind::ExpiringMapping) && self.blocks().is_some() {
            return false;
        }
        let is_deleted = record.kind == RecordKind::Tombstone;
        let is_command = record.kind == RecordKind::VersionCommand;
        record.kind.is_versioned() == self.versions().is_some()
            && (is_command || self.check_key(&record.key).is_ok())
            && (is_deleted || self.takes_value_of(record.value_len as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   attributes that make no sense are refused, each for its own reason.
    /// Method: valid ones, changed one at a time.
    #[test]
    fn options_are_checked() {
        let good = BlockOptions::new(512, 1000);
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.unit_count(), 125);
        assert_eq!(BlockOptions { block_count: 1001, ..good }.unit_count(), 126);
        let bad = [
            BlockOptions { block_bytes: 0, ..good },
            BlockOptions { block_bytes: 1024, ..good },
            BlockOptions { block_count: 0, ..good },
            BlockOptions { block_count: u64::MAX, ..good },
            BlockOptions { unit_bytes: 256, ..good },
            BlockOptions { unit_bytes: 6144, ..good },
            BlockOptions { unit_bytes: 32 << 10, ..good },
            BlockOptions { block_bytes: 4096, unit_bytes: 512, ..good },
        ];
        assert!(bad.iter().all(|options| options.check().is_err()));
    }

    /// Goal:   spans tile a range; ranges beyond the end, or whose end cannot be counted, are refused.
    /// Method: a range with two partial units, and the values next to each end.
    #[test]
    fn ranges_fall_into_units() {
        let options = BlockOptions::new(512, 100);
        let bytes = options.bytes_of_buffer(7, 6, 11 * 512).unwrap();
        let spans: Vec<Span> = options.spans(bytes).collect();
        let span = |unit, in_unit, in_range| Span { unit, in_unit, in_range };
        assert_eq!(spans, [span(0, 3072..4096, 0..1024), span(1, 0..4096, 1024..5120), span(2, 0..512, 5120..5632)]);
        assert_eq!(options.spans(options.bytes_of(7, 100, 0).unwrap()).count(), 0);
        assert!(matches!(options.bytes_of(7, 99, 2), Err(Error::BlocksOutOfRange { block_count: 100, .. })));
        assert!(matches!(options.bytes_of(7, u64::MAX, 2), Err(Error::BlocksOutOfRange { .. })));
        assert!(matches!(options.bytes_of_buffer(7, 0, 100), Err(Error::PartialBlock { bytes: 100, .. })));
    }
}
