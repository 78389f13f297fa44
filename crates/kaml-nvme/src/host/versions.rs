//! Commands of our own on namespaces that keep versions, one call each.
//!
//! Lives here:       building commands, reading answers.
//! Lives elsewhere:  their fields (`wire::versions`), sending them (`queue`, `carrier`).
//! Implements:       paper:Muninn 4.4 over NVMe.

use super::keyvalue::value_of;
use super::{Error, Execute, KeyValue};
use crate::wire::command::{Command, kv};
use crate::wire::versions::{
    DIFFERENCE_BYTES, MERGED_BYTES, PAST_BYTES, decode_differences, decode_history, decode_merged, decode_stats,
    put_at, put_diff, put_merge, snapshot, stats_bytes,
};
use kaml::{At, Difference, Key, MergeReport, Past, Retention, VersionStats};

/// Differences that one command returns at most.
const DIFFERENCES_AT_ONCE: usize = 16_384;
/// Snapshots that there is room for at first.
const SNAPSHOTS_AT_FIRST: usize = 64;

impl<E: Execute + ?Sized> KeyValue<'_, E> {
    /// The first `room` bytes of a version of a value, and its size; none if there is no such value.
    pub fn retrieve_version(&self, key: &Key, at: At, room: usize) -> Result<Option<(Vec<u8>, usize)>, Error> {
        let mut command = self.command(kv::RETRIEVE_VERSION, key);
        command.cdw10 = (room as u32).into();
        put_at(&mut command, at);
        value_of(self.queue.execute(command, &[], room)?)
    }

    /// Versions of a key, newest first, at most `limit`. Their place in a segment is not returned.
    pub fn history(&self, key: &Key, limit: usize) -> Result<Vec<Past>, Error> {
        let room = limit * PAST_BYTES;
        let mut command = self.command(kv::HISTORY, key);
        command.cdw10 = (room as u32).into();
        let finished = self.queue.execute(command, &[], room)?.success()?;
        decode_history(&finished.data, finished.result as u32 as usize, *key).ok_or(Error::Unsupported("History"))
    }

    /// Undoes the last `count` changes of a key; returns whether it exists then.
    pub fn undo(&self, key: &Key, count: u32) -> Result<bool, Error> {
        let mut command = self.command(kv::UNDO, key);
        command.cdw12 = count.into();
        Ok(self.queue.execute(command, &[], 0)?.success()?.result as u32 == 1)
    }

    fn change(&self, action: u32, version: u32) -> Result<u32, Error> {
        let mut command = Command::new(kv::SNAPSHOT, self.nsid);
        (command.cdw10, command.cdw11) = (action.into(), version.into());
        Ok(self.queue.execute(command, &[], 0)?.success()?.result as u32)
    }

    /// Takes a snapshot; returns its number.
    pub fn take_snapshot(&self) -> Result<u32, Error> {
        self.change(snapshot::TAKE, 0)
    }

    /// Forgets a snapshot.
    pub fn forget_snapshot(&self, version: u32) -> Result<(), Error> {
        self.change(snapshot::FORGET, version).map(drop)
    }

    /// Makes the namespace look as in a snapshot; returns the number of the one that was taken of what it looked like.
    pub fn roll_back(&self, to: u32) -> Result<u32, Error> {
        self.change(snapshot::ROLL_BACK, to)
    }

    /// How the namespace is, with all of its snapshots.
    pub fn version_stats(&self) -> Result<VersionStats, Error> {
        let mut room = stats_bytes(SNAPSHOTS_AT_FIRST);
        loop {
            let mut command = Command::new(kv::VERSIONS, self.nsid);
            command.cdw10 = (room as u32).into();
            let finished = self.queue.execute(command, &[], room)?.success()?;
            let (stats, count) = decode_stats(&finished.data).ok_or(Error::Unsupported("Versions"))?;
            if stats.snapshots.len() == count {
                return Ok(stats);
            }
            room = stats_bytes(count);
        }
    }

    /// Reports which keys differ between two snapshots, or a snapshot and now; `each` returns whether to continue. Compared with now,
    /// keys that change meanwhile can appear twice or not at all.
    pub fn diff(
        &self,
        from: Option<u32>,
        to: Option<u32>,
        each: &mut dyn FnMut(Key, Difference) -> bool,
    ) -> Result<(), Error> {
        let room = DIFFERENCES_AT_ONCE * DIFFERENCE_BYTES;
        for skipped in (0..u32::MAX).step_by(DIFFERENCES_AT_ONCE) {
            let mut command = Command::new(kv::DIFF, self.nsid);
            command.cdw10 = (room as u32).into();
            put_diff(&mut command, from, to, skipped);
            let finished = self.queue.execute(command, &[], room)?.success()?;
            let count = finished.result as u32 as usize;
            let told = decode_differences(&finished.data, count).ok_or(Error::Unsupported("Diff"))?;
            if !told.into_iter().all(|(key, difference)| each(key, difference)) || count < DIFFERENCES_AT_ONCE {
                break;
            }
        }
        Ok(())
    }

    /// Gives the space of versions back that the rules do not keep, or only states how many that would be. May take minutes.
    pub fn merge(&self, retention: &Retention, dry_run: bool) -> Result<MergeReport, Error> {
        let mut command = Command::new(kv::MERGE, self.nsid);
        command.cdw10 = (MERGED_BYTES as u32).into();
        put_merge(&mut command, retention, dry_run);
        let finished = self.queue.execute(command, &[], MERGED_BYTES)?.success()?;
        decode_merged(&finished.data).ok_or(Error::Unsupported("Merge"))
    }
}
