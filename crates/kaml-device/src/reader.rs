//! Reads, beside the core: probe the index, pin the block, read the record, check it.
//!
//! Lives here:       where a key's record lies just now, and whether the bytes read are that record.
//! Lives elsewhere:  the read itself (the drivers in `kaml`).
//! Implements:       design sections 2 and 4 (Get: one probe, one read).
//!
//! Why a pin is enough: collection swings a record's index entry before it lets go of the block, and looks at the
//! pins after that. A reader pins first and probes again: if the entry still names the block, collection has yet to
//! see the pin.

use crate::blocks::{BlockGate, Pin};
use crate::core::Core;
use crate::error::Error;
use crate::format::record::{RecordHeader, RecordKind};
use crate::image::copy_checked;
use crate::layout::{Door, Layout};
use crate::namespace::{Directory, NamespaceShared};
use kaml_flash::{ChunkAddr, Geometry};
use kaml_index::{Cursor, Key, Slot};
use std::ops::Range;
use std::sync::Arc;

/// How often something is read that does not match its checksum, before it counts as damaged or torn: a bit that flipped on its
/// way is right next time.
pub(crate) const READS_MAX: u32 = 4;

/// Reads until what comes is whole, but not for ever. `read` answers what the medium refused, or what is wrong with what it brought:
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
    key: Key,
    _pin: Pin,
}

/// Why a key was not looked up.
#[derive(Debug, PartialEq, Eq)]
pub enum FindError {
    /// It makes no sense.
    Refused(Error),
    /// The namespace's index must be loaded first ([`Core::load_index`]).
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
}

impl Reader {
    /// Finds a key's record.
    pub fn find(&self, namespace: u32, key: &Key) -> Result<Found, FindError> {
        self.find_through(Door::Records, namespace, key)
    }

    pub(crate) fn find_through(&self, door: Door, namespace: u32, key: &Key) -> Result<Found, FindError> {
        let space = self.space(namespace)?;
        space.layout.admit(namespace, door)?;
        self.find_in(&space, namespace, key)
    }

    /// As [`Reader::find`], in a namespace that may be asked so.
    pub(crate) fn find_in(&self, space: &NamespaceShared, namespace: u32, key: &Key) -> Result<Found, FindError> {
        with_index_of(space, key, |index| {
            let Some((slot, pin)) = pinned(&self.gate, || index.get(key)) else { return Found::Absent };
            let at = ChunkAddr(slot.at);
            let (block, start) = self.geometry.split(at);
            let end = (start + slot.len.chunks_max()).min(self.geometry.chunks_per_block());
            if !self.gate.is_programmed(block, end) {
                return Found::Buffered;
            }
            let bytes = ((end - start) * self.geometry.chunk_bytes) as usize;
            Found::Flash(FlashRead { at, bytes, namespace, key: *key, _pin: pin })
        })
    }

    /// Starts fetching the index lines of keys that are about to be put, before the core's lock is taken. A namespace is looked
    /// up once for all keys in a row that are its own: these are few nanoseconds, but on lines that all processors write.
    pub fn prefetch<'a>(&self, keys: impl IntoIterator<Item = (u32, &'a Key)>) {
        let mut keys = keys.into_iter().peekable();
        while let Some((namespace, _)) = keys.peek().copied() {
            let space = self.space(namespace).ok(); // what is wrong is said by the Put
            let space = space.filter(|space| space.layout.admit(namespace, Door::Records).is_ok());
            let index = space.as_ref().map(|space| space.index.read().expect("no panics under this lock"));
            while let Some((_, key)) = keys.next_if(|(of, _)| *of == namespace) {
                if let Some(space) = &space
                    && let Some(index) = index.as_ref().and_then(|index| index.as_ref())
                    && space.layout.check_key(key).is_ok()
                {
                    index.prefetch(key);
                }
            }
        }
    }

    /// Whether a key is there; never reads flash.
    pub fn exists(&self, namespace: u32, key: &Key) -> Result<bool, FindError> {
        self.with_index(Door::Records, namespace, key, |index| index.get(key).is_some())
    }

    /// Keys of a namespace behind a cursor, in the order of the index; every key that is there all the time is listed
    /// exactly once.
    pub fn list(
        &self,
        namespace: u32,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<Key>, Option<Cursor>), FindError> {
        let space = self.space(namespace)?;
        space.layout.admit(namespace, Door::Records)?;
        let index = space.index.read().expect("no panics under this lock");
        Ok(index.as_ref().ok_or(FindError::NeedIndex)?.list(after, limit))
    }

    /// The cursor that a listing stands at when `key` is the last one it answered.
    pub fn cursor_at(&self, namespace: u32, key: &Key) -> Result<Cursor, FindError> {
        self.with_index(Door::Records, namespace, key, |index| {
            index.cursor_at(key).expect("the namespace takes such keys")
        })
    }

    /// Keeps a block from being erased.
    pub(crate) fn pin_block(&self, block: u32) -> Pin {
        self.gate.pin(self.geometry.chunk_at(kaml_flash::BlockIndex(block), 0))
    }

    /// Whether what finds a namespace's records is in memory; else the next command on it has to wait for [`Core::load_index`].
    pub fn is_loaded(&self, namespace: u32) -> Result<bool, Error> {
        let space = self.space(namespace)?;
        Ok(match space.layout.versions() {
            Some(_) => space.versions().is_some(),
            None => space.index.read().expect("no panics under this lock").is_some(),
        })
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
        let space = self.directory.get(namespace).ok_or(Error::UnknownNamespace(namespace))?;
        space.note_use();
        Ok(space)
    }

    fn with_index<T>(
        &self,
        door: Door,
        namespace: u32,
        key: &Key,
        probe: impl FnOnce(&kaml_index::IndexReader) -> T,
    ) -> Result<T, FindError> {
        let space = self.space(namespace)?;
        space.layout.admit(namespace, door)?;
        with_index_of(&space, key, probe)
    }
}

/// Where a record is that is probed for, its block pinned: what was pinned counts if the record is still there afterwards.
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

fn with_index_of<T>(
    space: &NamespaceShared,
    key: &Key,
    probe: impl FnOnce(&kaml_index::IndexReader) -> T,
) -> Result<T, FindError> {
    space.layout.check_key(key).map_err(Error::Key)?;
    let index = space.index.read().expect("no panics under this lock");
    index.as_ref().map(probe).ok_or(FindError::NeedIndex)
}

impl FlashRead {
    /// Where the value lies in the bytes that were read, if they are the record.
    pub fn value(&self, bytes: &[u8]) -> Result<Range<usize>, Error> {
        let (range, value_crc) = self.claimed(bytes)?;
        #[cfg(feature = "broken")]
        if crate::Broken::DropsValueChecksum.is() {
            return Ok(range);
        }
        match crc_fast::crc32_iscsi(&bytes[range.clone()]) == value_crc {
            true => Ok(range),
            false => Err(self.corrupt("its value's checksum does not match")),
        }
    }

    /// Copies the value out of the bytes that were read, if they are the record; `into` is left empty if they are not.
    pub fn copy_value(&self, bytes: &[u8], into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        let (range, value_crc) = self.claimed(bytes)?;
        into.reserve(range.len());
        if copy_checked(&bytes[range], |piece| into.extend_from_slice(piece)) != value_crc {
            into.clear();
            return Err(self.corrupt("its value's checksum does not match"));
        }
        Ok(())
    }

    /// The error of a record that is not what it should be.
    pub fn corrupt(&self, what: &'static str) -> Error {
        Error::Corrupt { namespace: self.namespace, key: self.key, at: self.at, what }
    }

    /// Where the value lies and its checksum, if the header is the record's.
    fn claimed(&self, bytes: &[u8]) -> Result<(Range<usize>, u32), Error> {
        let corrupt = |what| self.corrupt(what);
        let record = RecordHeader::check(bytes).ok_or_else(|| corrupt("its header's checksum does not match"))?;
        if record.namespace != self.namespace || record.key != self.key || record.kind != RecordKind::Value {
            return Err(corrupt("another record stands in its place"));
        }
        let range = RecordHeader::BYTES..record.page_bytes();
        if range.end > bytes.len() {
            return Err(corrupt("its length does not match the index"));
        }
        Ok((range, record.value_crc))
    }
}

/// What [`Core::read_buffered`] found.
#[derive(Debug)]
pub enum Buffered {
    /// The key is not there.
    Absent,
    /// Its value.
    Value(Vec<u8>),
    /// It is on the medium by now, whole: one read gets it.
    Programmed(FlashRead),
}

impl Core {
    /// A handle for reading beside the core.
    pub fn reader(&self) -> Reader {
        Reader { geometry: self.geometry.clone(), gate: self.gate(), directory: self.directory.clone() }
    }

    /// Reads a record that stands in a write buffer. When it has left it, the answer says where it went. The index may have
    /// left memory since the record was found there: [`FindError::NeedIndex`].
    pub fn read_buffered(&self, namespace: u32, key: &Key) -> Result<Buffered, FindError> {
        let space = self.spaces.get(&namespace).ok_or(Error::UnknownNamespace(namespace))?;
        match space.index.as_ref().ok_or(FindError::NeedIndex)?.get(key) {
            Some(slot) => Ok(self.read_slot(namespace, key, slot)?),
            None => Ok(Buffered::Absent),
        }
    }

    /// As [`Core::read_buffered`], of the record that stands there.
    pub(crate) fn read_slot(&self, namespace: u32, key: &Key, slot: Slot) -> Result<Buffered, Error> {
        let at = ChunkAddr(slot.at);
        let (block, start) = self.geometry.split(at);
        let read = |bytes| FlashRead { at, bytes, namespace, key: *key, _pin: self.gate().pin(at) };
        let mut head = [0; RecordHeader::BYTES];
        if !self.writers.read(block.0, start, &mut head) {
            let end = (start + slot.len.chunks_max()).min(self.geometry.chunks_per_block());
            let bytes = ((end - start) * self.geometry.chunk_bytes) as usize;
            return Ok(Buffered::Programmed(read(bytes)));
        }
        let record = RecordHeader::check(&head).expect("records in buffers are whole");
        let mut bytes = vec![0; record.page_bytes()];
        assert!(self.writers.read(block.0, start, &mut bytes), "a record's buffers are kept until all are programmed");
        let range = read(bytes.len()).value(&bytes)?;
        bytes.copy_within(range, 0);
        bytes.truncate(record.value_len as usize);
        Ok(Buffered::Value(bytes))
    }

    /// Where a key's record is said to be.
    pub fn slot(&self, namespace: u32, key: &Key) -> Option<Slot> {
        self.spaces.get(&namespace)?.index.as_ref()?.get(key)
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
    /// Method: probes that answer one place, then another, or none.
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
