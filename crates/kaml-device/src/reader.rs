//! Reads, next to the core: probe the index, pin the block, read the record, check it.
//!
//! Lives here:       where a key's record lies just now, and whether the bytes read are that record.
//! Lives elsewhere:  the read itself (the drivers in `kaml`).
//! Implements:       docs/ARCHITECTURE.md "The life of a Get".
//!
//! Why a pin is enough: collection swings a record's index entry before it lets go of the block, and looks at the
//! pins after that. A reader pins first and probes again: if the entry still names the block, collection has yet to
//! see the pin.

use crate::clock::DeviceClock;
use crate::compression::unpack;
use crate::core::Core;
use crate::error::Error;
use crate::format::record::DIRECT_BYTES;
use crate::format::record::{Record, RecordHeader, suffix_bytes};
use crate::gate::{BlockGate, Pin};
use crate::image::copy_checked;
use crate::index::IndexReader;
use crate::layout::{Door, Layout};
use crate::metadata::READS_MAX;
use crate::namespace::{Directory, NamespaceShared};
use crate::packing::values::PackedValue;
use crate::secret::KeyDigester;
use crate::versioned::VersionReader;
use crate::versioned::version_bytes_max;
use kaml_flash::{ChunkAddr, Geometry};
use kaml_index::{Cursor, FullKey, KeptKey, Key, KeyError, KeyKind, KeyRef, Slot};
use kaml_ordered::OrderedReader;
use std::ops::Range;
use std::sync::{Arc, RwLockReadGuard};

/// Reads until what comes is whole, but not forever. `read` returns what the medium refused, or what is wrong with what it brought:
/// only that is read again, for a medium has tried what it can before it refuses.
pub fn read_whole<T, E: From<D>, D>(mut read: impl FnMut() -> Result<Result<T, D>, E>) -> Result<T, E> {
    for _ in 1..READS_MAX {
        if let Ok(found) = read()? {
            return Ok(found);
        }
    }
    Ok(read()??)
}

/// Where a key's record is.
#[derive(Debug)]
pub enum Found {
    /// Nowhere.
    Absent,
    /// On the medium: one read gets it.
    Flash(FlashRead),
    /// In a write buffer: ask [`Core::read_buffered`].
    Buffered,
}

/// The one read that a Get needs. The block is pinned until it is dropped.
#[derive(Debug)]
pub struct FlashRead {
    /// The first chunk.
    pub at: ChunkAddr,
    /// Bytes to read: the record, rounded up to its length code.
    pub bytes: usize,
    namespace: u32,
    key: KeptKey,
    _pin: Pin,
}

/// Why a key was not looked up.
#[derive(Debug, PartialEq, Eq)]
pub enum FindError {
    /// It makes no sense.
    Refused(Error),
    /// The namespace's index must be loaded first ([`Core::load_index`]), or a record in it has expired ([`Core::expire_due`]).
    NeedIndex,
}

impl From<Error> for FindError {
    fn from(error: Error) -> Self {
        FindError::Refused(error)
    }
}

/// What readers share with the core; cheap to clone.
#[derive(Clone)]
pub struct Reader {
    geometry: Geometry,
    gate: Arc<BlockGate>,
    directory: Arc<Directory>,
    digester: KeyDigester,
    clock: Arc<DeviceClock>,
}

impl Reader {
    /// A key as the firmware works with it: one of more than 16 bytes comes with its digest.
    ///
    /// # Errors
    /// No namespace takes such a key.
    #[inline]
    pub fn key<'a>(&self, key: KeyRef<'a>) -> Result<FullKey<'a>, KeyError> {
        self.digester.key(key)
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The clock by which records expire.
    pub fn clock(&self) -> &Arc<DeviceClock> {
        &self.clock
    }

    /// A namespace, by its kind.
    ///
    /// # Errors
    /// There is no such namespace.
    #[inline]
    pub fn of(&self, namespace: u32) -> Result<SpaceReader<'_>, Error> {
        let shared = self.space(namespace)?;
        Ok(match shared.layout {
            Layout::Records(_) => SpaceReader::Records(RecordReader { reader: self, shared, namespace }),
            Layout::Blocks(_) => SpaceReader::Blocks,
            Layout::Versions(_) => SpaceReader::Versions(VersionReader::new(self.clone(), shared)),
        })
    }

    /// Finds a key's record.
    pub fn find<'a>(&self, namespace: u32, key: impl Into<FullKey<'a>>) -> Result<Found, FindError> {
        self.find_through(Door::Records, namespace, &key.into())
    }

    pub(crate) fn find_through(&self, door: Door, namespace: u32, key: &FullKey<'_>) -> Result<Found, FindError> {
        let space = self.space(namespace)?;
        space.layout.admit(namespace, door)?;
        self.find_in(&space, namespace, key)
    }

    /// As [`Reader::find`], in a namespace that may be asked so.
    pub(crate) fn find_in(
        &self,
        space: &NamespaceShared,
        namespace: u32,
        key: &FullKey<'_>,
    ) -> Result<Found, FindError> {
        with_index_of(space, &self.clock, key, |index| {
            let Some((slot, pin)) = pinned(&self.gate, || index.get(key)) else { return Found::Absent };
            self.found(namespace, key, slot, pin)
        })
    }

    /// How a record is read whose block is pinned.
    #[inline]
    pub(crate) fn found(&self, namespace: u32, key: &FullKey<'_>, slot: Slot, pin: Pin) -> Found {
        let at = ChunkAddr(slot.at);
        let (block, start) = self.geometry.split(at);
        let end = (start + slot.len.chunks_max()).min(self.geometry.chunks_per_block());
        if !self.gate.is_programmed(block, end) {
            return Found::Buffered;
        }
        let bytes = ((end - start) * self.geometry.chunk_bytes) as usize;
        Found::Flash(FlashRead::new(at, bytes, namespace, key, pin))
    }

    /// Starts fetching the index lines of keys that are about to be put, before the core's lock is taken. A namespace is looked
    /// up once for all keys in a row that are its own: these are few nanoseconds, but on lines that all processors write.
    pub fn prefetch<'a>(&self, keys: impl IntoIterator<Item = (u32, &'a FullKey<'a>)>) {
        let mut keys = keys.into_iter().peekable();
        while let Some((namespace, _)) = keys.peek().copied() {
            let space = self.space(namespace).ok(); // the Put reports what is wrong
            let space = space.filter(|space| space.layout.admit(namespace, Door::Records).is_ok());
            let index = space.as_ref().map(|space| space.index.read().expect("no panics under this lock"));
            while let Some((_, key)) = keys.next_if(|(of, _)| *of == namespace) {
                if let Some(space) = &space
                    && let Some(index) = index.as_ref().and_then(|index| index.as_ref())
                    && space.layout.check_key(key.key()).is_ok()
                {
                    index.prefetch(key);
                }
            }
        }
    }

    /// Keeps a block from being erased.
    pub(crate) fn pin_block(&self, block: u32) -> Pin {
        self.gate.pin(self.geometry.chunk_at(kaml_flash::BlockIndex(block), 0))
    }

    /// Whether what finds a namespace's records is in memory; else the next command on it has to wait for [`Core::load_index`].
    pub fn is_loaded(&self, namespace: u32) -> Result<bool, Error> {
        let space = self.directory.get(namespace).ok_or_else(|| Error::UnknownNamespace(namespace))?;
        space.note_use();
        Ok(match space.layout {
            Layout::Versions(_) => space.versions().is_some(),
            Layout::Records(_) | Layout::Blocks(_) => space.index.read().expect("no panics under this lock").is_some(),
        })
    }

    /// Whether a value of so many bytes, with what is stored after it, is programmed ahead of its Put ([`Core::place`]): from
    /// [`DIRECT_BYTES`] on, and in a versioned namespace from what a segment does not take.
    #[inline]
    pub fn places_first(&self, namespace: u32, bytes: usize) -> bool {
        if bytes >= DIRECT_BYTES {
            return true;
        }
        if !self.directory.has_versions() {
            return false;
        }
        match self.layout(namespace) {
            Ok(Layout::Versions(layout)) => bytes as u64 > version_bytes_max(&layout.parameters, &self.geometry),
            Ok(Layout::Records(_) | Layout::Blocks(_)) | Err(_) => false, // staging reports the error
        }
    }

    /// What a namespace holds.
    pub(crate) fn layout(&self, namespace: u32) -> Result<Layout, Error> {
        Ok(self.space(namespace)?.layout)
    }

    pub(crate) fn pin(&self, at: ChunkAddr) -> Pin {
        self.gate.pin(at)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Chunks of a block that are on the medium; all, unless it is being filled.
    pub(crate) fn programmed_chunks(&self, block: u32) -> u32 {
        self.gate.programmed_chunks(block)
    }

    pub(crate) fn is_programmed(&self, block: kaml_flash::BlockIndex, end: u32) -> bool {
        self.gate.is_programmed(block, end)
    }

    pub(crate) fn space(&self, namespace: u32) -> Result<Arc<NamespaceShared>, Error> {
        let space = self.directory.get(namespace).filter(|space| space.values_of.is_none());
        let space = space.ok_or_else(|| Error::UnknownNamespace(namespace))?;
        space.note_use();
        Ok(space)
    }
}

/// A namespace, to read next to the core.
pub enum SpaceReader<'a> {
    /// Of records.
    Records(RecordReader<'a>),
    /// The read of logical blocks, which [`Reader::find_unit`] finds.
    Blocks,
    /// Of records with all their versions.
    Versions(VersionReader),
}

/// A namespace of records, to read next to the core.
pub struct RecordReader<'a> {
    reader: &'a Reader,
    shared: Arc<NamespaceShared>,
    namespace: u32,
}

impl RecordReader<'_> {
    /// Finds a key's record.
    ///
    /// # Errors
    /// The namespace takes no such key, or its index must be loaded first.
    #[inline]
    pub fn find<'a>(&self, key: impl Into<FullKey<'a>>) -> Result<Found, FindError> {
        self.reader.find_in(&self.shared, self.namespace, &key.into())
    }

    /// Whether a key exists. Reads no flash.
    ///
    /// # Errors
    /// As [`RecordReader::find`].
    pub fn exists<'a>(&self, key: impl Into<FullKey<'a>>) -> Result<bool, FindError> {
        let key = &key.into();
        with_index_of(&self.shared, &self.reader.clock, key, |index| index.get(key).is_some())
    }

    /// Keys after a cursor, in the order of the index. Every key that exists all the time is listed exactly once.
    ///
    /// # Errors
    /// The index must be loaded first.
    pub fn list(&self, after: Option<Cursor>, limit: usize) -> Result<(Vec<Key>, Option<Cursor>), FindError> {
        let index = current(&self.shared, &self.reader.clock)?;
        let listed = index.as_ref().ok_or(FindError::NeedIndex)?.list(after, limit);
        listed.ok_or_else(|| Error::ListedByRange(self.namespace).into())
    }

    /// Whether the keys have an order.
    pub fn is_ordered(&self) -> bool {
        match self.shared.layout {
            Layout::Records(keys) => keys == KeyKind::Ordered,
            Layout::Blocks(_) | Layout::Versions(_) => false,
        }
    }

    /// The index of an ordered namespace, to be read in the order of its keys. It is as of the present until it leaves memory: a caller
    /// that reads for long asks again.
    ///
    /// # Errors
    /// The namespace is not ordered, or its index must be loaded first.
    pub fn ordered(&self) -> Result<OrderedReader, FindError> {
        self.shared.layout.admit(self.namespace, Door::Ranges)?;
        let index = current(&self.shared, &self.reader.clock)?;
        index.as_ref().and_then(|index| index.ordered().cloned()).ok_or(FindError::NeedIndex)
    }

    /// The cursor that a listing returns when `key` is the last one that it lists.
    ///
    /// # Errors
    /// As [`RecordReader::find`].
    pub fn cursor_at(&self, key: &Key) -> Result<Cursor, FindError> {
        let cursor = |index: &IndexReader| index.cursor_at(key);
        with_index_of(&self.shared, &self.reader.clock, &key.into(), cursor)?
            .ok_or_else(|| Error::ListedByRange(self.namespace).into())
    }
}

/// Where a record is that is probed for, its block pinned: what was pinned counts if the record still exists afterwards.
#[inline]
fn pinned(gate: &Arc<BlockGate>, probe: impl Fn() -> Option<Slot>) -> Option<(Slot, Pin)> {
    loop {
        let slot = probe()?;
        let pin = gate.pin(ChunkAddr(slot.at));
        if probe() == Some(slot) {
            return Some((slot, pin));
        }
    }
}

/// The index, unless a record in it has expired: the core is to remove that first, as it is to load an index that is not in memory.
#[inline]
fn current<'a>(
    space: &'a NamespaceShared,
    clock: &DeviceClock,
) -> Result<RwLockReadGuard<'a, Option<IndexReader>>, FindError> {
    if space.is_due(clock) {
        return Err(FindError::NeedIndex);
    }
    Ok(space.index.read().expect("no panics under this lock"))
}

fn with_index_of<T>(
    space: &NamespaceShared,
    clock: &DeviceClock,
    key: &FullKey<'_>,
    probe: impl FnOnce(&IndexReader) -> T,
) -> Result<T, FindError> {
    space.layout.check_full_key(key).map_err(Error::Key)?;
    let index = current(space, clock)?;
    index.as_ref().map(probe).ok_or(FindError::NeedIndex)
}

impl FlashRead {
    /// The namespace of the record.
    pub fn namespace(&self) -> u32 {
        self.namespace
    }

    fn new(at: ChunkAddr, bytes: usize, namespace: u32, key: &FullKey<'_>, pin: Pin) -> FlashRead {
        FlashRead { at, bytes, namespace, key: key.into(), _pin: pin }
    }

    /// The key that was asked for.
    pub(crate) fn full_key(&self) -> FullKey<'_> {
        self.key.full()
    }

    /// The value among the bytes that were read, if they are the record.
    pub fn value(&self, bytes: &[u8]) -> Result<FoundValue, Error> {
        let (stored, record) = self.stored(bytes)?;
        if record.packed {
            let mut value = Vec::new();
            self.unpack(&record, &bytes[stored], &mut value)?;
            return Ok(FoundValue::Unpacked(value));
        }
        let own = self.own_bytes(&bytes[stored.clone()], record.expiry_bytes())?;
        Ok(FoundValue::In(stored.start..stored.start + own))
    }

    /// Where what is stored after the header lies in the bytes that were read, and the header, if they are the record.
    fn stored(&self, bytes: &[u8]) -> Result<(Range<usize>, Record), Error> {
        let (range, record) = self.claimed(bytes)?;
        #[cfg(feature = "broken")]
        if crate::Broken::DropsValueChecksum.is() {
            return Ok((range, record));
        }
        match kaml_crc::crc32c(&bytes[range.clone()]) == record.value_crc {
            true => Ok((range, record)),
            false => Err(self.corrupt("its value's checksum does not match")),
        }
    }

    /// Decompresses the value of what is stored of a record. What follows it comes after it if the bytes of the key are not known.
    #[cold]
    fn unpack(&self, record: &Record, stored: &[u8], into: &mut Vec<u8>) -> Result<(), Error> {
        let (packed, after) = self.packed_in(record, stored)?;
        unpack(packed, into).map_err(|what| self.corrupt(what))?;
        into.extend_from_slice(after);
        Ok(())
    }

    /// The compressed value of what is stored of a record, and what follows it if the bytes of the key are not known.
    fn packed_in<'a>(&self, record: &Record, stored: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Error> {
        let own = self.own_bytes(stored, record.expiry_bytes())?;
        let is_key_known = !self.key.full().long_bytes().is_empty();
        let packed = if is_key_known { Some(own) } else { record.own_value_bytes(stored) };
        let packed = packed.ok_or_else(|| self.corrupt("its key is missing"))?;
        Ok(stored[..own].split_at(packed))
    }

    /// Copies the value out of the bytes that were read, if they are the record; `into` is left empty if they are not.
    pub fn copy_value(&self, bytes: &[u8], into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        let (range, record) = self.claimed(bytes)?;
        if record.packed {
            let (stored, record) = self.stored(bytes)?;
            return self.unpack(&record, &bytes[stored], into);
        }
        into.reserve(range.len());
        if copy_checked(&bytes[range], |piece| into.extend_from_slice(piece)) != record.value_crc {
            into.clear();
            return Err(self.corrupt("its value's checksum does not match"));
        }
        let own = self.own_bytes(into, record.expiry_bytes()).inspect_err(|_| into.clear())?;
        into.truncate(own);
        Ok(())
    }

    /// Bytes of the value among what is stored, whose key is the one that is asked for: two keys can have one digest.
    #[inline]
    fn own_bytes(&self, stored: &[u8], expiry_bytes: usize) -> Result<usize, Error> {
        let key = self.key.full();
        let without_time = stored.len().checked_sub(expiry_bytes);
        let stored = &stored[..without_time.ok_or_else(|| self.corrupt("the time at which it expires is missing"))?];
        if key.long_bytes().is_empty() {
            return Ok(stored.len());
        }
        let wrong = || self.corrupt("another key with the same digest is in its place");
        let own = stored.len().checked_sub(suffix_bytes(&key)).ok_or_else(wrong)?;
        let is_same = stored[own..].starts_with(key.long_bytes())
            && stored[own..].ends_with(&(key.long_bytes().len() as u16).to_le_bytes());
        if is_same { Ok(own) } else { Err(wrong()) }
    }

    /// When the record expires, in milliseconds since 1970, 0 for never, if these bytes are it.
    pub fn expires(&self, bytes: &[u8]) -> u64 {
        let Some(record) = RecordHeader::check(bytes) else { return 0 };
        let stored = bytes.get(record.stored_range());
        stored.and_then(|stored| record.expires(stored)).unwrap_or(0)
    }

    /// The error of a record that is not what it should be.
    pub fn corrupt(&self, what: &'static str) -> Error {
        Error::Corrupt { namespace: self.namespace, key: self.key.full().to_buf(), at: self.at, what }
    }

    /// Where what is stored after the header lies, and the header, if that is the record's.
    #[inline]
    fn claimed(&self, bytes: &[u8]) -> Result<(Range<usize>, Record), Error> {
        let corrupt = |what| self.corrupt(what);
        let record = RecordHeader::check(bytes).ok_or_else(|| corrupt("its header's checksum does not match"))?;
        if record.namespace != self.namespace || record.key != *self.key.key() || !record.kind.is_value() {
            return Err(corrupt("another record is in its place"));
        }
        let range = record.stored_range();
        if range.end > bytes.len() {
            return Err(corrupt("its length does not match the index"));
        }
        Ok((range, record))
    }
}

/// The value of a record among the bytes that were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundValue {
    /// It lies there.
    In(Range<usize>),
    /// It was compressed; this is the value.
    Unpacked(Vec<u8>),
}

impl FoundValue {
    /// The value itself, of the bytes that were read.
    pub fn of<'a>(&'a self, bytes: &'a [u8]) -> &'a [u8] {
        match self {
            FoundValue::In(range) => &bytes[range.clone()],
            FoundValue::Unpacked(value) => value,
        }
    }
}

/// What [`Core::read_buffered`] found.
#[derive(Debug)]
pub enum Buffered {
    /// The key does not exist.
    Absent,
    /// Its value.
    Value(Vec<u8>),
    /// Its value, compressed.
    Packed(PackedValue),
    /// It is on the medium by now, whole: one read gets it.
    Programmed(FlashRead),
}

impl Core {
    /// A handle for reading next to the core.
    pub fn reader(&self) -> Reader {
        let digester = self.key_digester();
        let directory = self.catalog.directory.clone();
        let (geometry, clock) = (self.log.geometry.clone(), self.clock.clone());
        Reader { geometry, gate: self.gate(), directory, digester, clock }
    }

    /// Reads a record that is in a write buffer. When it has left it, the answer reports where it went. The index may have
    /// left memory since the record was found there: [`FindError::NeedIndex`].
    pub fn read_buffered<'a>(&self, namespace: u32, key: impl Into<FullKey<'a>>) -> Result<Buffered, FindError> {
        let key = &key.into();
        let space = self.spaces.get(&namespace).ok_or_else(|| Error::UnknownNamespace(namespace))?;
        match space.index.as_ref().ok_or(FindError::NeedIndex)?.get(key) {
            Some(slot) => Ok(self.read_slot(namespace, key, slot)?),
            None => Ok(Buffered::Absent),
        }
    }

    /// As [`Core::read_buffered`], of the record that exists.
    pub(crate) fn read_slot(&self, namespace: u32, key: &FullKey<'_>, slot: Slot) -> Result<Buffered, Error> {
        let at = ChunkAddr(slot.at);
        let (block, start) = self.log.geometry.split(at);
        let read = |bytes| FlashRead::new(at, bytes, namespace, key, self.gate().pin(at));
        let mut head = [0; RecordHeader::BYTES_MAX];
        if !self.log.writers.read(block.0, start, &mut head) {
            let end = (start + slot.len.chunks_max()).min(self.log.geometry.chunks_per_block());
            let bytes = ((end - start) * self.log.geometry.chunk_bytes) as usize;
            return Ok(Buffered::Programmed(read(bytes)));
        }
        let record = RecordHeader::check(&head).expect("records in buffers are whole");
        let mut bytes = vec![0; record.page_bytes()];
        assert!(
            self.log.writers.read(block.0, start, &mut bytes),
            "a record's buffers are kept until all are programmed"
        );
        let read = read(bytes.len());
        let (stored, record) = read.stored(&bytes)?;
        let own = read.own_bytes(&bytes[stored.clone()], record.expiry_bytes())?;
        let packed = if record.packed { Some(read.packed_in(&record, &bytes[stored.clone()])?.0.len()) } else { None };
        bytes.copy_within(stored.start..stored.start + own, 0);
        bytes.truncate(own);
        Ok(match packed {
            Some(packed) => Buffered::Packed(PackedValue::new(bytes, packed, namespace, key.to_buf(), at)),
            None => Buffered::Value(bytes),
        })
    }

    /// Where a key's record should be.
    pub fn slot<'a>(&self, namespace: u32, key: impl Into<FullKey<'a>>) -> Option<Slot> {
        self.spaces.get(&namespace)?.index.as_ref()?.get(&key.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BlockTable;
    use crate::core::code;
    use std::cell::RefCell;

    /// Goal:   a record that moves between the probe and the pin is looked for again: the block that is pinned is the one with the
    ///         record, and no other one.
    /// Method: probes that return one place, then another, or none.
    #[test]
    fn pins_are_of_the_place_seen_afterwards() {
        let geometry = crate::small::geometry();
        let gate = BlockTable::new(&geometry).gate;
        let slot_in = |block| Slot { at: geometry.chunk_at(kaml_flash::BlockIndex(block), 7).0, len: code(3) };
        let [a, b] = [1, 2].map(|block| Some(slot_in(block)));
        for (probes, expected) in [
            (vec![a, a], a),
            (vec![a, b, b, b], b),
            (vec![a, b, a, a], a),
            (vec![a, None, None], None),
            (vec![None], None),
        ] {
            let answers = RefCell::new(probes.clone().into_iter());
            let found = pinned(&gate, || answers.borrow_mut().next().expect("no more probes than needed"));
            assert_eq!(found.as_ref().map(|(slot, _)| *slot), expected, "{probes:?}");
            for slot in [a, b] {
                let block = geometry.split(ChunkAddr(slot.unwrap().at)).0.0;
                assert_eq!(gate.is_pinned(block), slot == expected, "{probes:?}");
            }
            drop(found);
            assert!(![1, 2].into_iter().any(|block| gate.is_pinned(block)), "{probes:?}");
        }
    }
}
