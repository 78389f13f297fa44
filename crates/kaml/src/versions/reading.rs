//! Reading versions on the caller's thread, and changing a key that nobody else has changed meanwhile.
//!
//! Lives here:       the source of bytes for `kaml_versions`, what handles and views have in common.
//! Lives elsewhere:  what is looked for (`kaml_versions`), the commands (`versions`), views and results piece by piece (`view`).

use crate::driver::{By, Shared};
use crate::merging::Pace;
use crate::{Cursor, Error, Key, KeyBuf, ListPage, NamespaceId};
use kaml_device::{
    Body, Buffered, Condition, Core, Error as CommandError, Found, Op, SpaceReader, StageError, VersionReader,
    read_whole,
};
use kaml_versions::{
    At, Error as VersionError, SegmentAt, Source, Version, Versions, View, exists, get, list, verify, view_of,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970, by the host's clock; 0 before that.
fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The versions of a namespace, read on the caller's thread.
pub(crate) struct Reading<'a> {
    shared: &'a Shared,
    pub(crate) reader: VersionReader,
    namespace: NamespaceId,
    bytes: Vec<u8>,
    /// Bytes that were read.
    pub(super) read_bytes: usize,
    /// Of a merge: rests before it reads, or ends.
    pub(crate) pace: Option<Pace<'a>>,
}

impl Source for Reading<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        let mut look = Some(look);
        self.shared.look(self.namespace, || {
            let once = |versions: &Versions, hold: &mut dyn FnMut(SegmentAt)| {
                look.take().map(|look| look(versions, hold)).expect("called once")
            };
            self.reader.look(once)
        })
    }

    fn read<T>(
        &mut self,
        at: SegmentAt,
        bytes: Range<usize>,
        mut take: impl FnMut(&[u8]) -> Result<T, VersionError>,
    ) -> Result<T, Error> {
        let (read, _) = self.reader.locate(at, &bytes);
        read_whole(|| {
            self.read_pieces(at, &bytes)?;
            Ok(take(&self.bytes).map_err(|what| read.damaged(self.namespace, what)))
        })
    }

    fn large(&mut self, version: &Version, number: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(values) = self.reader.large_values() else { return Ok(None) };
        if let Some(pace) = &mut self.pace {
            pace.rest()?;
        }
        let mut value = Vec::new();
        let found = self.shared.look(values, || {
            Ok(match self.reader.find_large(number)? {
                Found::Absent => Buffered::Absent,
                Found::Flash(read) => Buffered::Programmed(read),
                Found::Buffered => self.shared.lock().read_buffered(values, Key::from(number))?,
            })
        })?;
        match found {
            Buffered::Absent => return Ok(None),
            Buffered::Value(found) => value = found,
            Buffered::Packed(packed) => value = packed.unpack()?,
            Buffered::Programmed(read) => self.shared.read(&read, &mut value)?,
        }
        self.read_bytes += value.len();
        // Its checksum was compared with that in its own header; another value would have another one there.
        match value.len() == version.value_len as usize {
            true => Ok(Some(value)),
            false => Err(VersionError::DamagedRecord("a value of another version").into()),
        }
    }
}

/// What a merge reads at a time: others' commands wait after it for no longer than after one of their own.
const PACED_BYTES: usize = 64 << 10;

impl Reading<'_> {
    fn read_pieces(&mut self, at: SegmentAt, bytes: &Range<usize>) -> Result<(), Error> {
        let mut found = std::mem::take(&mut self.bytes);
        found.resize(bytes.len(), 0);
        self.read_bytes += bytes.len();
        let piece_bytes = if self.pace.is_some() { PACED_BYTES } else { bytes.len().max(1) };
        let starts = bytes.clone().step_by(piece_bytes);
        for (start, piece) in starts.zip(found.chunks_mut(piece_bytes)) {
            if let Some(pace) = &mut self.pace {
                pace.rest()?;
            }
            self.read_piece(at, start..start + piece.len(), piece)?;
        }
        self.bytes = found;
        Ok(())
    }

    fn read_piece(&self, at: SegmentAt, bytes: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        let (read, is_programmed) = self.reader.locate(at, &bytes);
        if !is_programmed && self.shared.lock().read_segment(&read, into) {
            return Ok(());
        }
        self.shared.read_with(read.at, read.bytes, |found| {
            into.copy_from_slice(read.of(found));
            Ok(())
        })
    }
}

/// What is to become of a key that was looked at.
pub(super) enum Change {
    Nothing,
    Put(Vec<u8>),
    Delete,
}

impl Shared {
    pub(crate) fn reading(&self, namespace: NamespaceId) -> Result<Reading<'_>, Error> {
        let versions = self.reader.versions(namespace).map_err(|error| self.refused(error))?;
        Ok(self.reading_with(namespace, versions))
    }

    fn reading_with(&self, namespace: NamespaceId, reader: VersionReader) -> Reading<'_> {
        Reading { shared: self, reader, namespace, bytes: Vec::new(), read_bytes: 0, pace: None }
    }

    pub(super) fn reading_key(&self, namespace: NamespaceId, key: &Key) -> Result<Reading<'_>, Error> {
        let reading = self.reading(namespace)?;
        reading.reader.check_key(key)?;
        Ok(reading)
    }

    /// The newest version of a key, if it is a value.
    pub(crate) fn find_version(
        &self,
        namespace: NamespaceId,
        versions: VersionReader,
        key: &Key,
    ) -> Result<Option<Vec<u8>>, Error> {
        versions.check_key(key)?;
        let found = get(&mut self.reading_with(namespace, versions), key, At::Latest)?;
        Ok(found.map(|record| record.value))
    }

    pub(crate) fn version_exists(&self, namespace: NamespaceId, key: &Key) -> Result<bool, Error> {
        let mut reading = self.reading_key(namespace, key)?;
        let view = view_of(&mut reading, None)?;
        exists(&mut reading, key, &view)
    }

    /// Sets the time of the core, if anything needs it.
    pub(crate) fn set_time(core: &mut Core) {
        if core.wants_time() {
            core.set_time(unix_ns());
        }
    }

    /// Keys that a view shows, of whole rows of the namespace, after a cursor: until there are `limit` of them.
    pub(crate) fn list_versions(
        &self,
        namespace: NamespaceId,
        view: Option<&View>,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage, Error> {
        let mut reading = self.reading(namespace)?;
        let view = view.map_or_else(|| view_of(&mut reading, None), |view| Ok(view.clone()))?;
        let after = after.and_then(key_of_cursor);
        let first = match &after {
            Some(key) => reading.look(|versions, _| versions.columns().row_of(key))?,
            None => 0,
        };
        let mut keys: Vec<Key> = Vec::new();
        for row in first..reading.reader.row_count() {
            let mut found = list(&mut reading, row, &view)?;
            if let Some(after) = after.filter(|_| row == first) {
                found.retain(|key| *key > after);
            }
            keys.append(&mut found);
            if keys.len() > limit {
                keys.truncate(limit);
                return Ok(ListPage {
                    next: keys.last().map(cursor_of_key),
                    keys: keys.into_iter().map(KeyBuf::from).collect(),
                });
            }
        }
        Ok(ListPage { keys: keys.into_iter().map(KeyBuf::from).collect(), next: None })
    }

    /// Reads all versions of a namespace with their values; returns how many, and the values' bytes.
    pub(crate) fn verify_versions(&self, namespace: NamespaceId) -> Result<(u64, u64), Error> {
        let mut reading = self.reading(namespace)?;
        (0..reading.reader.row_count()).try_fold((0, 0), |(count, bytes), row| {
            let (more, more_bytes) = verify(&mut reading, row)?;
            Ok((count + more, bytes + more_bytes))
        })
    }

    /// Stages something that waits for room if there is none, and waits until it is durable.
    pub(super) fn commit<T>(
        &self,
        by: By,
        stage: impl FnMut(&mut Core) -> Result<(u64, T), StageError>,
    ) -> Result<T, Error> {
        let (core, (frame, answer)) = self.visit(by, stage)?;
        self.wait_committed(core, frame).map(|()| answer)
    }

    /// Puts what `change` finds to put, unless the key was changed since it began to look; then it looks again.
    pub(super) fn put_unchanged<T>(
        &self,
        namespace: NamespaceId,
        key: Key,
        change: impl Fn(&mut Reading<'_>) -> Result<(Change, T), Error>,
    ) -> Result<T, Error> {
        loop {
            let mut reading = self.reading_key(namespace, &key)?;
            let since = self.lock().newest_committed(namespace);
            let (change, answer) = change(&mut reading)?;
            let body = match &change {
                Change::Nothing => return Ok(answer),
                Change::Put(value) => Body::Value { value, crc32c: kaml_crc::crc32c(value) },
                Change::Delete => Body::Delete,
            };
            match self.write(
                By::Caller,
                &mut [Op {
                    namespace,
                    key: key.into(),
                    body,
                    condition: Condition::UnchangedSince(since),
                    expires: Default::default(),
                }],
            ) {
                Err(Error::Conflict { .. }) => self.wait_for_change(namespace, since),
                written => return written.map(|()| answer),
            }
        }
    }

    /// Waits until a version that was put after a sequence is committed, or some progress was made.
    fn wait_for_change(&self, namespace: NamespaceId, since: u64) {
        let core = self.lock();
        if core.newest_committed(namespace) <= since {
            drop(self.make_room(core)); // the other change is on its way
        }
    }

    /// A Put under conditions, some of which can be of versioned namespaces. These are judged here, by what is committed, and `put` gets the
    /// operations under the condition that nothing has changed since. Where something has, all is done again.
    pub(crate) fn put_judged<'a, T>(
        &self,
        ops: impl Fn() -> Result<Vec<Op<'a>>, Error>,
        put: impl Fn(&mut [Op<'a>]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let mut ops = ops()?;
            let looked_at = self.judge_versions(&mut ops)?;
            match put(&mut ops) {
                Err(Error::Conflict { namespace, key, present }) => match looked_at.get(&namespace) {
                    Some(since) => self.wait_for_change(namespace, *since),
                    None => return Err(Error::Conflict { namespace, key, present }),
                },
                written => return written,
            }
        }
    }

    /// Judges the conditions of records of versioned namespaces, and replaces them. Returns for each such namespace a sequence before which
    /// everything was committed when its first record was looked at.
    fn judge_versions(&self, ops: &mut [Op<'_>]) -> Result<BTreeMap<NamespaceId, u64>, Error> {
        let mut looked_at = BTreeMap::new();
        let is_judged = |op: &&mut Op<'_>| {
            // Staging refuses keys that are too long for versioned namespaces.
            matches!(op.condition, Condition::IfAbsent | Condition::IfPresent) && op.key.long_bytes().is_empty()
        };
        for op in ops.iter_mut().filter(is_judged) {
            let (namespace, key) = (op.namespace, *op.key.key());
            let SpaceReader::Versions(versions) = self.reader.of(namespace).map_err(|error| self.refused(error))?
            else {
                continue;
            };
            versions.check_key(&key)?;
            let mut reading = self.reading_with(namespace, versions);
            let since = self.lock().newest_committed(namespace);
            let view = view_of(&mut reading, None)?;
            let present = exists(&mut reading, &key, &view)?;
            if present == (op.condition == Condition::IfAbsent) {
                return Err(CommandError::Conflict { namespace, key: op.key.to_buf(), present }.into());
            }
            op.condition = Condition::UnchangedSince(since);
            looked_at.entry(namespace).or_insert(since);
        }
        Ok(looked_at)
    }
}

/// A key as a cursor: listing continues after it.
pub(crate) fn cursor_of_key(key: &Key) -> Cursor {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(key.padded());
    bytes[16] = key.len() as u8 - 1;
    Cursor::from_bytes(bytes)
}

fn key_of_cursor(cursor: Cursor) -> Option<Key> {
    let bytes = cursor.to_bytes();
    Key::new(bytes[..16].get(..usize::from(bytes[16]) + 1)?).ok()
}
