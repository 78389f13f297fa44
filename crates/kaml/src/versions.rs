//! Commands on versioned namespaces: any version of a record, snapshots, rolling back, retention.
//!
//! Lives here:       the commands of [`Device`] on versions, how they read.
//! Lives elsewhere:  what they do (`kaml_versions`, `kaml_device`); merges step by step (`merging`); puts, gets and deletes of the
//!                   newest version, which are those of any namespace (`device`).
//! Implements:       paper:Muninn 4.4; docs/versioned.md.
//!
//! Reads run on the caller's thread beside the firmware, a short look at the index at a time, so writers go on meanwhile.

use crate::driver::Shared;
use crate::merging::Pace;
use crate::{Cursor, Device, Error, Key, ListPage, NamespaceId};
use kaml_device::{Body, Condition, Core, Error as CommandError, FindError, Op, StageError, VersionReader, read_whole};
use kaml_versions::{
    At, Command, Diff, Difference, Error as VersionError, History, Lookup, MergePlan, Merged, Past, Record, Retention,
    SegmentAt, Source, Steps, Versions, View, exists, get, get_seen, list, undone, verify, view_of,
};
use std::ops::{ControlFlow, Range};
use std::time::{SystemTime, UNIX_EPOCH};

/// A snapshot, for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The user version that it finished.
    pub version: u32,
    /// When it was taken: nanoseconds since 1970.
    pub time_ns: u64,
}

/// How a versioned namespace stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VersionStats {
    /// Versions of all keys.
    pub version_count: u64,
    /// Of those in segments, the ones that are the newest of their key, as far as memory tells.
    pub live_estimate: u64,
    /// Versions in segments.
    pub sealed_count: u64,
    /// Segments on flash.
    pub segment_count: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Memory of the page buffer.
    pub buffer_bytes: u64,
    /// Memory of everything else: tables, directory.
    pub index_bytes: u64,
    /// The user version that puts belong to.
    pub user_version: u32,
    /// All snapshots, oldest first.
    pub snapshots: Vec<SnapshotInfo>,
}

/// What a merge did, or would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Versions in segments.
    pub versions: u64,
    /// Of these, those that the rules keep.
    pub kept: u64,
    /// Versions that go: the others, where enough of them are together to be worth it.
    pub dropped: u64,
    /// Bytes of the records that go.
    pub dropped_bytes: u64,
    /// Segments read and given back.
    pub segments_read: u64,
    /// Segments that took their place; not known before a merge is carried out.
    pub segments_written: u64,
}

impl MergeReport {
    /// A row was looked at.
    pub(crate) fn add_looked_at(&mut self, plan: &MergePlan) {
        self.versions += plan.versions;
        self.kept += plan.kept;
    }

    /// This is what would go.
    pub(crate) fn add_planned(&mut self, plan: &MergePlan) {
        self.dropped += plan.dropped;
        self.dropped_bytes += plan.dropped_bytes;
        self.segments_read += plan.segments;
    }

    /// This is what has gone.
    pub(crate) fn add_merged(&mut self, merged: &Merged) {
        self.dropped += merged.dropped;
        self.dropped_bytes += merged.dropped_bytes;
        self.segments_read += merged.segments_read;
        self.segments_written += merged.segments.len() as u64;
    }
}

/// Lets a merge go on until it is done, whatever its progress.
pub fn to_the_end(_rows_done: u32, _rows: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

impl From<kaml_versions::Error> for Error {
    fn from(error: kaml_versions::Error) -> Self {
        Error::Command(error.into())
    }
}

/// Nanoseconds since 1970, as the host's clock says; 0 before that.
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
    read_bytes: usize,
    /// Of a merge: rests before it reads, or ends.
    pub(crate) pace: Option<Pace<'a>>,
}

impl Source for Reading<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        let mut look = Some(look);
        loop {
            let once = |versions: &Versions, hold: &mut dyn FnMut(SegmentAt)| {
                look.take().map(|look| look(versions, hold)).expect("called once")
            };
            match self.reader.look(once) {
                Ok(found) => return Ok(found),
                Err(FindError::Refused(error)) => return Err(error.into()),
                Err(FindError::NeedIndex) => drop(self.shared.load_index(self.shared.lock(), self.namespace)?),
            }
        }
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
}

/// What a merge reads at a time: others' commands wait behind it for no longer than behind one of their own.
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

impl Shared {
    pub(crate) fn reading(&self, namespace: NamespaceId) -> Result<Reading<'_>, Error> {
        let reader = self.reader.versions(namespace)?;
        Ok(Reading { shared: self, reader, namespace, bytes: Vec::new(), read_bytes: 0, pace: None })
    }

    fn reading_key(&self, namespace: NamespaceId, key: &Key) -> Result<Reading<'_>, Error> {
        let reading = self.reading(namespace)?;
        reading.reader.check_key(key)?;
        Ok(reading)
    }

    /// The newest version of a key, if it is a value.
    pub(crate) fn find_version(&self, namespace: NamespaceId, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let found = get(&mut self.reading_key(namespace, key)?, key, At::Latest)?;
        Ok(found.map(|record| record.value))
    }

    pub(crate) fn version_exists(&self, namespace: NamespaceId, key: &Key) -> Result<bool, Error> {
        let mut reading = self.reading_key(namespace, key)?;
        let view = view_of(&mut reading, None)?;
        exists(&mut reading, key, &view)
    }

    /// Tells the core what time it is, if somebody wants to know.
    pub(crate) fn tell_time(core: &mut Core) {
        if core.wants_time() {
            core.set_time(unix_ns());
        }
    }

    /// Keys that a view shows, of whole rows of the namespace, behind a cursor: until there are `limit` of them.
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
                return Ok(ListPage { next: keys.last().map(cursor_of_key), keys });
            }
        }
        Ok(ListPage { keys, next: None })
    }

    /// Reads all versions of a namespace with their values; answers how many, and the values' bytes.
    pub(crate) fn verify_versions(&self, namespace: NamespaceId) -> Result<(u64, u64), Error> {
        let mut reading = self.reading(namespace)?;
        (0..reading.reader.row_count()).try_fold((0, 0), |(count, bytes), row| {
            let (more, more_bytes) = verify(&mut reading, row)?;
            Ok((count + more, bytes + more_bytes))
        })
    }

    /// Stages something that waits for room if there is none, and waits until it is durable.
    fn commit<T>(&self, mut stage: impl FnMut(&mut Core) -> Result<(u64, T), StageError>) -> Result<T, Error> {
        let mut core = self.lock();
        loop {
            Shared::tell_time(&mut core);
            match stage(&mut core) {
                Ok((frame, answer)) => return self.wait_committed(core, frame).map(|()| answer),
                Err(StageError::Refused(error)) => return Err(error.into()),
                Err(StageError::NeedIndex(id)) => core = self.load_index(core, id)?,
                Err(StageError::Busy) => core = self.make_room(core),
            }
        }
    }

    /// Puts what `change` finds to put, unless the key was changed since it began to look; then it looks again.
    fn put_unchanged<T>(
        &self,
        namespace: NamespaceId,
        key: Key,
        change: impl Fn(&mut Reading<'_>) -> Result<(Option<Vec<u8>>, T), Error>,
    ) -> Result<T, Error> {
        loop {
            let mut reading = self.reading_key(namespace, &key)?;
            let since = self.lock().newest_committed(namespace);
            let (value, answer) = change(&mut reading)?;
            let body = match &value {
                Some(value) => Body::Value { value, crc32c: crc_fast::crc32_iscsi(value) },
                None => Body::Delete,
            };
            match self.write(&mut [Op { namespace, key, body, condition: Condition::UnchangedSince(since) }]) {
                Err(Error::Command(CommandError::Conflict { .. })) => {
                    let core = self.lock();
                    if core.newest_committed(namespace) <= since {
                        drop(self.make_room(core)); // the other change is on its way
                    }
                }
                written => return written.map(|()| answer),
            }
        }
    }

    /// As a Put of one record under a condition, of a versioned namespace.
    pub(crate) fn put_version_if(
        &self,
        namespace: NamespaceId,
        key: Key,
        value: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        self.put_unchanged(namespace, key, |reading| {
            let view = view_of(reading, None)?;
            let present = exists(reading, &key, &view)?;
            match (condition, present) {
                (Condition::IfAbsent, true) | (Condition::IfPresent, false) => {
                    Err(CommandError::Conflict { namespace, key, present }.into())
                }
                _ => Ok((Some(value.to_vec()), Ok(()))),
            }
        })?
    }
}

/// A key as a cursor: listing goes on behind it.
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

/// What a snapshot shows, or what was shown when the view was made, while writers go on.
pub struct VersionView {
    device: Device,
    namespace: NamespaceId,
    view: View,
}

impl VersionView {
    /// Reads a value as it was.
    pub fn get(&self, key: impl Into<Key>) -> Result<Option<Vec<u8>>, Error> {
        let key = key.into();
        let mut reading = self.device.shared().reading_key(self.namespace, &key)?;
        Ok(get_seen(&mut reading, &key, &self.view)?.map(|record| record.value))
    }

    /// Whether a key was there.
    pub fn exists(&self, key: impl Into<Key>) -> Result<bool, Error> {
        let key = key.into();
        exists(&mut self.device.shared().reading_key(self.namespace, &key)?, &key, &self.view)
    }

    /// Keys that were there, behind a cursor.
    pub fn list(&self, after: Option<Cursor>, limit: usize) -> Result<ListPage, Error> {
        self.device.shared().list_versions(self.namespace, Some(&self.view), after, limit.max(1))
    }
}

/// Steps of a piece, at most, and bytes that it reads before it ends: some milliseconds on a disk.
const PIECE_STEPS: usize = 64;
const PIECE_BYTES: usize = 1 << 20;

/// What takes many reads, found piece by piece: each takes a bounded amount of work, and may find nothing. It ends behind all that
/// there is, or with an error.
pub struct Pieces<T> {
    device: Device,
    namespace: NamespaceId,
    /// Nothing once it has ended.
    steps: Option<T>,
}

impl<T: Steps> Pieces<T> {
    /// All that is found.
    pub fn all(self) -> Result<Vec<T::Found>, Error> {
        let mut all = Vec::new();
        for piece in self {
            all.append(&mut piece?);
        }
        Ok(all)
    }

    /// Takes some steps; answers whether there are more.
    fn go_on(&self, steps: &mut T, found: &mut Vec<T::Found>) -> Result<bool, Error> {
        let mut reading = self.device.shared().reading(self.namespace)?;
        for _ in 0..PIECE_STEPS {
            if !steps.step(&mut reading, found)? {
                return Ok(false);
            }
            if reading.read_bytes >= PIECE_BYTES {
                break;
            }
        }
        Ok(true)
    }
}

impl<T: Steps> Iterator for Pieces<T> {
    type Item = Result<Vec<T::Found>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut steps = self.steps.take()?;
        let mut found = Vec::new();
        Some(self.go_on(&mut steps, &mut found).map(|has_more| {
            self.steps = has_more.then_some(steps);
            found
        }))
    }
}

impl Device {
    // --- reading versions -------------------------------------------------------------------------------------------

    /// Reads a version of a record; nothing if it is not there or deleted.
    pub fn get_version(&self, namespace: NamespaceId, key: impl Into<Key>, at: At) -> Result<Option<Record>, Error> {
        let key = key.into();
        get(&mut self.shared().reading_key(namespace, &key)?, &key, at)
    }

    /// As [`Device::get_version`], piece by piece: the version, if there is one, is all that they find.
    pub fn version_pieces(&self, namespace: NamespaceId, key: impl Into<Key>, at: At) -> Result<Pieces<Lookup>, Error> {
        let key = key.into();
        let lookup = Lookup::new(&mut self.shared().reading_key(namespace, &key)?, &key, at)?;
        Ok(self.pieces(namespace, lookup))
    }

    /// Versions of a key, newest first, at most `limit`: all that are kept, those that a rollback hid included.
    pub fn history(&self, namespace: NamespaceId, key: impl Into<Key>, limit: usize) -> Result<Vec<Past>, Error> {
        self.history_pieces(namespace, key, u64::MAX, limit)?.all()
    }

    /// As [`Device::history`], piece by piece, of the versions before a sequence: that of the last one which is known already, or
    /// `u64::MAX`.
    pub fn history_pieces(
        &self,
        namespace: NamespaceId,
        key: impl Into<Key>,
        before: u64,
        limit: usize,
    ) -> Result<Pieces<History>, Error> {
        let key = key.into();
        let history = History::new(&mut self.shared().reading_key(namespace, &key)?, &key, before, limit)?;
        Ok(self.pieces(namespace, history))
    }

    fn pieces<T>(&self, namespace: NamespaceId, steps: T) -> Pieces<T> {
        Pieces { device: self.clone(), namespace, steps: Some(steps) }
    }

    /// What a snapshot shows, or what is there now, to read from while writers go on. A merge may drop what no snapshot sees.
    pub fn view(&self, namespace: NamespaceId, snapshot: Option<u32>) -> Result<VersionView, Error> {
        // Asked for first: cut off there, a later view shows what was there once; an earlier one would show beside what was rolled back
        // what was put behind that.
        let newest = self.shared().lock().newest_committed(namespace);
        let mut view = view_of(&mut self.shared().reading(namespace)?, snapshot)?;
        if snapshot.is_none() {
            view = view.before(newest + 1);
        }
        Ok(VersionView { device: self.clone(), namespace, view })
    }

    /// Tells which keys differ between two snapshots, or a snapshot and now, row by row; `each` answers whether to go on.
    pub fn diff(
        &self,
        namespace: NamespaceId,
        from: Option<u32>,
        to: Option<u32>,
        each: &mut dyn FnMut(Key, Difference) -> bool,
    ) -> Result<(), Error> {
        for piece in self.diff_pieces(namespace, from, to)? {
            if !piece?.into_iter().all(|(key, difference)| each(key, difference)) {
                break;
            }
        }
        Ok(())
    }

    /// As [`Device::diff`], piece by piece.
    pub fn diff_pieces(
        &self,
        namespace: NamespaceId,
        from: Option<u32>,
        to: Option<u32>,
    ) -> Result<Pieces<Diff>, Error> {
        let (from, to) = (self.view(namespace, from)?, self.view(namespace, to)?);
        Ok(self.pieces(namespace, Diff::new(from.view, to.view)))
    }

    /// How a versioned namespace stands.
    pub fn version_stats(&self, namespace: NamespaceId) -> Result<VersionStats, Error> {
        self.shared().reading(namespace)?.look(|versions, _| {
            let (columns, timeline) = (versions.columns(), versions.timeline());
            let (memory, (sealed_count, live_estimate)) = (columns.memory(), columns.live_estimate());
            let info = |(version, snapshot): (&u32, &kaml_versions::Snapshot)| SnapshotInfo {
                version: *version,
                time_ns: snapshot.time_ns,
            };
            VersionStats {
                version_count: columns.version_count(),
                live_estimate,
                sealed_count,
                segment_count: columns.segment_count(),
                segment_bytes: columns.parameters().segment_bytes() as u64,
                buffer_bytes: memory.buffer_bytes as u64,
                index_bytes: memory.index_bytes as u64,
                user_version: timeline.present(),
                snapshots: timeline.snapshots().iter().map(info).collect(),
            }
        })
    }

    // --- changing them ----------------------------------------------------------------------------------------------

    /// Finishes the present user version, which costs nothing: what is there now stays readable under its number, which is
    /// answered. Durable when it returns.
    pub fn snapshot(&self, namespace: NamespaceId) -> Result<u32, Error> {
        self.shared().commit(|core| core.stage_version_command(namespace, Command::Snapshot))
    }

    /// Forgets a snapshot: what only it sees goes with the next merge. Durable when it returns.
    pub fn forget_snapshot(&self, namespace: NamespaceId, version: u32) -> Result<(), Error> {
        let forget = Command::Forget(version);
        self.shared().commit(|core| core.stage_version_command(namespace, forget)).map(drop)
    }

    /// Makes a namespace look as it did in a snapshot. What it looked like is taken as a snapshot first, whose number is
    /// answered: rolling back to that undoes it. Durable when it returns.
    pub fn roll_back(&self, namespace: NamespaceId, to: u32) -> Result<u32, Error> {
        self.shared().commit(|core| core.stage_version_command(namespace, Command::RollBack(to)))
    }

    /// Undoes the last `count` changes of a key: what it was before them becomes its newest version, durable when it returns.
    /// Answers whether that is a value; otherwise the key is deleted.
    pub fn undo(&self, namespace: NamespaceId, key: impl Into<Key>, count: u32) -> Result<bool, Error> {
        let key = key.into();
        self.shared().put_unchanged(namespace, key, |reading| {
            let old = undone(reading, &key, count)?;
            let is_value = old.is_some();
            Ok((old.map(|record| record.value), is_value))
        })
    }

    /// What [`Device::merge`] would drop under these rules, found at the pace of a merge; nothing is changed. Ended early it answers
    /// for what it has looked at.
    pub fn merge_dry_run(
        &self,
        namespace: NamespaceId,
        retention: &Retention,
        progress: &mut dyn FnMut(u32, u32) -> ControlFlow<()>,
    ) -> Result<MergeReport, Error> {
        self.shared().preview_merge(namespace, retention, Pace::new(self.shared(), namespace, progress)?)
    }

    /// Gives the space of versions back that the rules do not keep, row by row on the caller's thread, while puts and gets go
    /// on: it rests most of the time while there are any. Rules that do not keep snapshots forget all of these first. `progress`
    /// is told rows done and rows in all, many times in each row, and answers whether to go on. If not, what the answer says has gone,
    /// and all else is there. That end, or a crash, leaves the rest for the next merge.
    pub fn merge(
        &self,
        namespace: NamespaceId,
        retention: &Retention,
        progress: &mut dyn FnMut(u32, u32) -> ControlFlow<()>,
    ) -> Result<MergeReport, Error> {
        let shared = self.shared();
        let mut pace = Pace::new(shared, namespace, progress)?;
        let Some(_alone) = shared.merge_in_turn(|| pace.ask().is_ok()) else { return Ok(MergeReport::default()) };
        if !retention.keep_snapshots {
            for snapshot in self.version_stats(namespace)?.snapshots {
                self.forget_snapshot(namespace, snapshot.version)?;
            }
        }
        // Those that are left were taken meanwhile.
        shared.merge_settled(namespace, &Retention { keep_snapshots: true, ..*retention }, pace)
    }
}
