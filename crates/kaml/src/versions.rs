//! Commands on versioned namespaces: any version of a record, snapshots, rolling back, retention.
//!
//! Lives here:       the commands of [`Device`] on versions, how they read.
//! Lives elsewhere:  what they do (`kaml_versions`, `kaml_device`); merges step by step (`merging`); puts, gets and deletes of the
//!                   newest version, which are those of any namespace (`device`).
//! Implements:       paper:Muninn 4.4; docs/versioned.md.
//!
//! Reads run on the caller's thread next to the firmware, a short look at the index at a time, so writers continue meanwhile.

mod reading;
mod view;

use reading::Change;
pub(crate) use reading::{Reading, cursor_of_key};
pub use view::{Pieces, VersionView};

use crate::driver::{By, Shared};
use crate::merging::Pace;
use crate::{Device, Error, Key, NamespaceId};
use kaml_versions::{
    At, Command, Diff, Difference, History, Lookup, MergePlan, Merged, Past, Record, Retention, Source, get, undone,
    view_of,
};
use std::ops::ControlFlow;

/// A snapshot, for a person.
///
/// # Examples
/// See [`VersionStats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The user version that it finished.
    pub version: u32,
    /// When it was taken: nanoseconds since 1970.
    pub time_ns: u64,
}

/// How a versioned namespace is.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, VersionOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let pages = device.ensure_namespace("pages", &VersionOptions::default().into())?;
/// pages.put("home", b"draft")?;
/// device.snapshot(pages.id())?;
/// let stats = device.version_stats(pages.id())?;
/// assert_eq!((stats.version_count, stats.snapshots.len()), (1, 1));
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VersionStats {
    /// Versions of all keys.
    pub version_count: u64,
    /// Those in segments that are the newest of their key, as far as memory shows.
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
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, VersionOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let pages = device.ensure_namespace("pages", &VersionOptions::default().into())?;
/// let rules = kaml::Retention { keep_last: 1, ..kaml::Retention::default() };
/// let report = device.merge(pages.id(), &rules, &mut |_, _| std::ops::ControlFlow::Continue(()))?;
/// assert_eq!(report.dropped, 0);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Versions of the namespace, those in the page buffer among them.
    pub versions: u64,
    /// Those of them that the rules keep.
    pub kept: u64,
    /// Versions that go: the others, where enough of them are together to be worth it.
    pub dropped: u64,
    /// Bytes of the records that go.
    pub dropped_bytes: u64,
    /// Segments read and released.
    pub segments_read: u64,
    /// Segments that took their place; not known before a merge is executed.
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

    /// So many versions have gone from the page buffer.
    pub(crate) fn add_dropped(&mut self, count: u64, bytes: u64) {
        self.dropped += count;
        self.dropped_bytes += bytes;
    }

    /// This is what has gone.
    pub(crate) fn add_merged(&mut self, merged: &Merged) {
        self.dropped += merged.dropped;
        self.dropped_bytes += merged.dropped_bytes;
        self.segments_read += merged.segments_read;
        self.segments_written += merged.segments.len() as u64;
    }
}

/// Lets a merge continue until it is done, whatever its progress.
///
/// # Examples
/// See [`crate::VersionOptions`].
pub fn to_the_end(_rows_done: u32, _rows: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

impl Device {
    // --- reading versions -------------------------------------------------------------------------------------------

    /// Reads a version of a record; nothing if it does not exist or deleted.
    ///
    /// Costs one read of flash for the newest version, and none if it is in the page buffer. The version of a snapshot costs one for each
    /// version that a rollback hid since, and, in a segment with n versions of the key, about log2 n + 4. [`At::Back`] of n costs n + 1. A
    /// value that is stored apart from its record (an extent) costs one more.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    /// - [`Error::NoSnapshot`], [`Error::TooFarBack`] if there is no such version.
    pub fn get_version(&self, namespace: NamespaceId, key: impl Into<Key>, at: At) -> Result<Option<Record>, Error> {
        let key = key.into();
        get(&mut self.shared().reading_key(namespace, &key)?, &key, at)
    }

    /// As [`Device::get_version`], piece by piece: the version, if there is one, is all that they find.
    ///
    /// # Errors
    /// As [`Device::get_version`].
    pub fn version_pieces(&self, namespace: NamespaceId, key: impl Into<Key>, at: At) -> Result<Pieces<Lookup>, Error> {
        let key = key.into();
        let lookup = Lookup::new(&mut self.shared().reading_key(namespace, &key)?, &key, at)?;
        Ok(self.pieces(namespace, lookup))
    }

    /// Versions of a key, newest first, at most `limit`: all that are kept, those that a rollback hid included.
    ///
    /// Costs one read of flash a version that is not in the page buffer.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    pub fn history(&self, namespace: NamespaceId, key: impl Into<Key>, limit: usize) -> Result<Vec<Past>, Error> {
        self.history_pieces(namespace, key, u64::MAX, limit)?.all()
    }

    /// As [`Device::history`], piece by piece, of the versions before a sequence: that of the last one which is known already, or
    /// `u64::MAX`.
    ///
    /// To begin at a sequence costs about log2 n + 4 reads, where n is the number of versions of the key in a segment. To read on in the pieces
    /// costs nothing except one read for each version, so prefer one call to many with small limits.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
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

    /// What a snapshot shows, or what exists now, to read from while writers continue. A merge may drop what no snapshot sees.
    ///
    /// Costs no read.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::NoSnapshot`] if there is no such snapshot.
    pub fn view(&self, namespace: NamespaceId, snapshot: Option<u32>) -> Result<VersionView, Error> {
        // Requested first: cut off there, a later view shows what existed then; an earlier one would also show what was rolled back
        // what was put after that.
        let newest = self.shared().lock().newest_committed(namespace);
        let mut view = view_of(&mut self.shared().reading(namespace)?, snapshot)?;
        if snapshot.is_none() {
            view = view.before(newest + 1);
        }
        Ok(VersionView { device: self.clone(), namespace, view })
    }

    /// Reports which keys differ between two snapshots, or a snapshot and now, row by row; `each` returns whether to continue.
    ///
    /// Costs one read of flash, of all pages with records, for each segment with sequences on which the two disagree; and for each key with
    /// a version there two searches, which cost as [`Device::get_version`] does.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    /// - [`Error::NoSnapshot`] if there is no such snapshot.
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
    ///
    /// # Errors
    /// As [`Device::diff`].
    pub fn diff_pieces(
        &self,
        namespace: NamespaceId,
        from: Option<u32>,
        to: Option<u32>,
    ) -> Result<Pieces<Diff>, Error> {
        let (from, to) = (self.view(namespace, from)?, self.view(namespace, to)?);
        Ok(self.pieces(namespace, Diff::new(from.view, to.view)))
    }

    /// How a versioned namespace is.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
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

    /// Finishes the present user version, which costs nothing: what exists now stays readable under its number, which is
    /// returned. Durable when it returns.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Full`] if the device takes no changes or has no room for them.
    /// - [`Error::TooManySnapshots`], [`Error::SnapshotsFull`] if there can be no more.
    pub fn snapshot(&self, namespace: NamespaceId) -> Result<u32, Error> {
        // No record changes by it, and none by forgetting it.
        self.shared().commit(By::Store, |core| core.stage_version_command(namespace, Command::Snapshot))
    }

    /// Forgets a snapshot: the next merge drops what only it sees. Durable when it returns.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Full`] if the device takes no changes or has no room for them.
    /// - [`Error::NoSnapshot`] if there is no such snapshot.
    pub fn forget_snapshot(&self, namespace: NamespaceId, version: u32) -> Result<(), Error> {
        let forget = Command::Forget(version);
        self.shared().commit(By::Store, |core| core.stage_version_command(namespace, forget)).map(drop)
    }

    /// Makes a namespace look as it did in a snapshot. What it looked like is taken as a snapshot first, whose number is
    /// returned: rolling back to that undoes it. Durable when it returns. If nothing was put since the snapshot, nothing is written, and
    /// the answer is its own number.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Full`] if the device takes no changes or has no room for them.
    /// - [`Error::NoSnapshot`] if there is no such snapshot; [`Error::TooManySnapshots`], [`Error::SnapshotsFull`] if there can
    ///   be no more; [`Error::StoreIsOpen`].
    pub fn roll_back(&self, namespace: NamespaceId, to: u32) -> Result<u32, Error> {
        self.shared().commit(self.by(), |core| {
            let is_durable = core.rollback_does_nothing(namespace, to);
            let last = core.committed().checked_sub(1).filter(|_| is_durable);
            last.map_or_else(|| core.stage_version_command(namespace, Command::RollBack(to)), |frame| Ok((frame, to)))
        })
    }

    /// Undoes the last `count` changes of a key: what it was before them becomes its newest version, durable when it returns.
    /// Returns whether that is a value; otherwise the key is deleted. Undoing no changes writes nothing.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    /// - [`Error::TooFarBack`] if the key has fewer changes; otherwise as [`Device::put`].
    pub fn undo(&self, namespace: NamespaceId, key: impl Into<Key>, count: u32) -> Result<bool, Error> {
        let key = key.into();
        self.shared().put_unchanged(namespace, key, |reading| {
            let old = undone(reading, &key, count)?;
            let is_value = old.is_some();
            let change = match old {
                _ if count == 0 => Change::Nothing,
                Some(record) => Change::Put(record.value),
                None => Change::Delete,
            };
            Ok((change, is_value))
        })
    }

    /// What [`Device::merge`] would drop under these rules, found at the pace of a merge; no version and no snapshot is changed. As a
    /// merge does, it first makes durable outside the commit ring what was put before it. It waits while another merge continues. Ended
    /// early the result covers what it has looked at.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    pub fn merge_dry_run(
        &self,
        namespace: NamespaceId,
        retention: &Retention,
        progress: &mut dyn FnMut(u32, u32) -> ControlFlow<()>,
    ) -> Result<MergeReport, Error> {
        let shared = self.shared();
        let mut pace = Pace::new(shared, namespace, progress)?;
        let Some(_alone) = shared.merge_in_turn(|| pace.ask().is_ok()) else { return Ok(MergeReport::default()) };
        shared.preview_merge(namespace, &rules_of(shared, namespace, retention), pace)
    }

    /// Drops the versions that the rules do not keep, row by row on the caller's thread, while puts and gets continue.
    /// It rests most of the time while there are any. Rules that do not keep snapshots forget all of these first. `progress`
    /// receives rows done and rows in all, many times in each row, and returns whether to continue. If not, the versions in the report are dropped,
    /// and all others are kept. That end, or a crash, leaves the remainder for the next merge. In a namespace with its index on flash
    /// [`Retention::keep_internal`] has no effect.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::NoSpace`] if the device takes no changes.
    pub fn merge(
        &self,
        namespace: NamespaceId,
        retention: &Retention,
        progress: &mut dyn FnMut(u32, u32) -> ControlFlow<()>,
    ) -> Result<MergeReport, Error> {
        let shared = self.shared();
        let mut pace = Pace::new(shared, namespace, progress)?;
        let Some(_alone) = shared.merge_in_turn(|| pace.ask().is_ok()) else { return Ok(MergeReport::default()) };
        if !retention.keep_snapshots
            && let Some(last) = self.version_stats(namespace)?.snapshots.last()
        {
            let forget = Command::ForgetThrough(last.version);
            shared.commit(By::Store, |core| core.stage_version_command(namespace, forget))?;
        }
        // Those that are left were taken meanwhile.
        let retention = Retention { keep_snapshots: true, ..rules_of(shared, namespace, retention) };
        shared.merge_settled(namespace, &retention, pace)
    }
}

/// What a merge by a caller keeps: old versions of a namespace with its index on flash have no use.
fn rules_of(shared: &Shared, namespace: NamespaceId, retention: &Retention) -> Retention {
    let keep_internal = retention.keep_internal && !shared.lock().keeps_newest_only(namespace);
    Retention { keep_internal, ..*retention }
}
