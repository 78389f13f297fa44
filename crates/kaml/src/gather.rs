//! Reads of many records at once.
//!
//! Lives here:       neighbours on flash are read in one operation, the others side by side.
//! Lives elsewhere:  finding a record and reading one (`driver`), which records a range has (`range`), moving those that are far from each other
//!                   (`clustering`).
//! Implements:       docs/ARCHITECTURE.md "Ordered namespaces".

use crate::clustering::Scattered;
use crate::driver::{Lookup, Shared};
use crate::error::Error;
use crate::sync::Mutex;
use crate::{Key, KeyBuf, Namespace, NamespaceId};
use kaml_device::{FlashRead, FullKey, KeyRef, key_of_stored};
use kaml_flash::{AlignedBuf, ChunkAddr, Completion, Io, Queue, Wait};

/// Operations of one caller in flight: where the raw disk reaches its rate.
const READS_IN_FLIGHT: usize = 32;
/// Bytes that one operation reads at most, unless a record is longer.
const EXTENT_BYTES_MAX: usize = 256 << 10;
/// Bytes between two records that are rather read than skipped: reading them takes less time than another operation.
const GAP_BYTES_MAX: usize = 16 << 10;
/// Bytes of records that are read at a time where only their keys are needed.
const LISTED_BYTES_MAX: usize = 4 << 20;
/// Queues that are kept for the next callers.
const QUEUES_KEPT: usize = 8;

/// Queues of the medium for reads, used by one caller after the other.
#[derive(Default)]
pub(crate) struct ReadQueues(Mutex<Vec<Box<dyn Queue>>>);

impl ReadQueues {
    fn take(&self) -> Option<Box<dyn Queue>> {
        self.0.lock().expect("no panics under this lock").pop()
    }

    fn give(&self, queue: Box<dyn Queue>) {
        let mut queues = self.0.lock().expect("no panics under this lock");
        if queues.len() < QUEUES_KEPT {
            queues.push(queue);
        }
    }

    /// Lets go of what they hold of the medium.
    pub(crate) fn clear(&self) {
        self.0.lock().expect("no panics under this lock").clear();
    }
}

/// Records of one block that are read by one operation.
pub(crate) struct Extent {
    /// The records that it reads, by their places among all.
    pub(crate) reads: std::ops::Range<usize>,
    bytes: usize,
}

/// Looks a key up; the value is set if it is in memory.
pub(crate) trait Find: FnMut(&FullKey<'_>, &mut Vec<u8>) -> Result<Lookup, Error> {}

impl<F: FnMut(&FullKey<'_>, &mut Vec<u8>) -> Result<Lookup, Error>> Find for F {}

/// Records to be read, each with its place among the keys, sorted by where they lie.
pub(crate) type Reads = [(usize, FlashRead)];

impl Shared {
    /// The keys that listed ones stand for: those that are digests are read from their records. One that has gone is left out.
    pub(crate) fn keys_of_listed(&self, namespace: NamespaceId, listed: Vec<Key>) -> Result<Vec<KeyBuf>, Error> {
        self.keys_of_listed_with(listed, |key, value| self.find(namespace, key, value))
    }

    /// As [`Shared::keys_of_listed`], with another way to find records.
    pub(crate) fn keys_of_listed_with(&self, listed: Vec<Key>, mut find: impl Find) -> Result<Vec<KeyBuf>, Error> {
        let digests: Vec<FullKey<'_>> = listed.iter().filter(|key| key.is_digest()).map(FullKey::from).collect();
        let mut found = Vec::with_capacity(digests.len());
        while found.len() < digests.len() {
            let some = &digests[found.len()..];
            let stored = self.gather_full(some, LISTED_BYTES_MAX, &mut find)?;
            let key_of = |(key, stored): (&FullKey<'_>, Option<Vec<u8>>)| key_of_stored(key.key(), &stored?);
            found.extend(some.iter().zip(stored).map(key_of));
        }
        let mut found = found.into_iter();
        let key = |key: Key| if key.is_digest() { found.next().flatten() } else { Some(key.into()) };
        Ok(listed.into_iter().filter_map(key).collect())
    }

    /// Reads the values of keys, in the order of the keys; nothing for those that do not exist.
    pub(crate) fn gather(&self, namespace: NamespaceId, keys: &[KeyBuf]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.gather_with(keys, |key, value| self.find(namespace, key, value))
    }

    /// As [`Shared::gather`], with another way to find records.
    pub(crate) fn gather_with(&self, keys: &[KeyBuf], find: impl Find) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let full = keys.iter().map(|key| self.key(KeyRef::from(key))).collect::<Result<Vec<_>, _>>()?;
        self.gather_full(&full, usize::MAX, find)
    }

    /// As [`Shared::gather`], of records of several namespaces.
    pub(crate) fn gather_refs(&self, records: &[(NamespaceId, KeyRef<'_>)]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let full = records.iter().map(|(_, key)| self.key(*key)).collect::<Result<Vec<_>, _>>()?;
        let mut namespaces = records.iter().map(|(namespace, _)| *namespace);
        let mut next = move || namespaces.next().expect("each record is looked up one time");
        self.gather_full(&full, usize::MAX, |key, value| self.find(next(), key, value))
    }

    /// As [`Shared::gather`], of as many of the first keys as have records of at most this many bytes; of the first one in any case. Each key is
    /// looked up one time, in the order of the keys. Of a digest without its bytes, all that is stored is the value.
    pub(crate) fn gather_full(
        &self,
        keys: &[FullKey<'_>],
        bytes_max: usize,
        mut find: impl Find,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = vec![None; keys.len()];
        let mut reads: Vec<(usize, FlashRead)> = Vec::new();
        let mut bytes: usize = 0;
        for (place, key) in keys.iter().enumerate() {
            let mut value = Vec::new();
            let found = find(key, &mut value)?;
            bytes = bytes.saturating_add(match &found {
                Lookup::Absent => 0,
                Lookup::Value => value.len(),
                Lookup::Packed(packed) => packed.value_bytes().unwrap_or(0) as usize,
                Lookup::Read(read) => read.bytes,
            });
            if bytes > bytes_max && place > 0 {
                values.truncate(place);
                break;
            }
            match found {
                Lookup::Absent => {}
                Lookup::Value => values[place] = Some(value),
                Lookup::Packed(packed) => values[place] = Some(packed.unpack()?),
                Lookup::Read(read) => reads.push((place, read)),
            }
        }
        reads.sort_unstable_by_key(|(_, read)| read.at);
        let extents = self.extents(&reads);
        let mut scattered = Scattered::among(&reads, &extents);
        if scattered.is_some() && !self.are_neighbours(keys, &reads) {
            scattered = None;
        }
        self.read_extents(&reads, &extents, |extent, completion| {
            let Completion { io, result, .. } = completion;
            let Io::Read { at, into } = io else { unreachable!("reads are submitted") };
            if let (Ok(()), Some(scattered)) = (&result, &mut scattered) {
                scattered.keep(extent, &reads, |read| self.within(at, read, &into));
            }
            self.distribute(&reads[extent.reads.clone()], (at, &into), result.is_ok(), &mut values)
        })?;
        if let Some(scattered) = scattered {
            self.cluster_scattered(&reads, scattered);
        }
        Ok(values)
    }

    /// Reads extents side by side. After the first failure, no more begin.
    pub(crate) fn read_extents(
        &self,
        reads: &Reads,
        extents: &[Extent],
        mut each: impl FnMut(&Extent, Completion) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.medium.is_immediate() || extents.len() < 2 {
            return extents.iter().try_for_each(|extent| {
                let mut io = self.begin(reads, extent);
                let result = self.medium.execute(&mut io);
                each(extent, Completion { id: 0, io, result })
            });
        }
        let mut queue = self.read_queues.take().unwrap_or_else(|| self.medium.queue(READS_IN_FLIGHT as u32));
        let (mut next, mut done, mut failed) = (0, Vec::new(), None);
        loop {
            while next < extents.len() && queue.in_flight() < READS_IN_FLIGHT && failed.is_none() {
                queue.submit(next as u64, self.begin(reads, &extents[next]));
                next += 1;
            }
            if queue.in_flight() == 0 {
                break;
            }
            queue.reap(Wait::ForNs(u64::MAX), &mut done);
            for completion in done.drain(..) {
                let taken = each(&extents[completion.id as usize], completion);
                failed = failed.or(taken.err());
            }
        }
        self.read_queues.give(queue);
        failed.map_or(Ok(()), Err)
    }

    /// Reads that follow each other closely enough in one block, together.
    pub(crate) fn extents(&self, reads: &Reads) -> Vec<Extent> {
        let chunk_bytes = self.geometry.chunk_bytes as usize;
        let mut extents: Vec<Extent> = Vec::new();
        for (place, (_, read)) in reads.iter().enumerate() {
            let joined = extents.last_mut().is_some_and(|last| {
                let first = reads[last.reads.start].1.at;
                let same_block = self.geometry.split(first).0 == self.geometry.split(read.at).0;
                let begin = (read.at.0 - first.0) as usize * chunk_bytes;
                let bytes = last.bytes.max(begin + read.bytes);
                let fits = same_block && begin <= last.bytes + GAP_BYTES_MAX && bytes <= EXTENT_BYTES_MAX;
                if fits {
                    (last.bytes, last.reads.end) = (bytes, place + 1);
                }
                fits
            });
            if !joined {
                extents.push(Extent { reads: place..place + 1, bytes: read.bytes });
            }
        }
        extents
    }

    fn begin(&self, reads: &Reads, extent: &Extent) -> Io {
        self.count_reads(1, extent.bytes as u64);
        let mut into = AlignedBuf::for_transfers(extent.bytes + 2 * AlignedBuf::ALIGN);
        into.set_len(extent.bytes);
        Io::Read { at: reads[extent.reads.start].1.at, into }
    }

    /// The bytes of a record in those of its extent.
    pub(crate) fn within<'a>(&self, first: ChunkAddr, read: &FlashRead, extent: &'a [u8]) -> &'a [u8] {
        let begin = (read.at.0 - first.0) as usize * self.geometry.chunk_bytes as usize;
        &extent[begin..begin + read.bytes]
    }

    /// Takes the values out of what was read; one that does not match its checksum is read again by itself.
    fn distribute(
        &self,
        reads: &Reads,
        (first, bytes): (ChunkAddr, &[u8]),
        is_read: bool,
        values: &mut [Option<Vec<u8>>],
    ) -> Result<(), Error> {
        for (place, read) in reads {
            let mut value = Vec::new();
            if !is_read || read.copy_value(self.within(first, read, bytes), &mut value).is_err() {
                self.read(read, &mut value)?;
            }
            values[*place] = Some(value);
        }
        Ok(())
    }
}

impl Namespace {
    /// Reads the values of several keys together, in the order of the keys; nothing for those that do not exist. Neighbours on flash are read in
    /// one operation. It stops before the records have more than `bytes_max` bytes, but not before the first one, and returns the values of the
    /// keys until there; the caller continues with the others.
    ///
    /// # Errors
    /// As [`Namespace::get`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, KeyBuf, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    /// users.put("ada", b"Ada Lovelace")?;
    /// let keys = [KeyBuf::new(b"ada")?, KeyBuf::new(b"grace")?];
    /// assert_eq!(users.get_many(&keys, 1 << 20)?, [Some(b"Ada Lovelace".to_vec()), None]);
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn get_many(&self, keys: &[KeyBuf], bytes_max: usize) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let shared = self.device().shared();
        let full = keys.iter().map(|key| shared.key(KeyRef::from(key))).collect::<Result<Vec<_>, _>>()?;
        shared.gather_full(&full, bytes_max, |key, value| shared.find(self.id(), key, value))
    }
}
