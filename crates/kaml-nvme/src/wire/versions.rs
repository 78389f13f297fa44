//! Commands on namespaces that keep versions, vendor specific.
//!
//! Lives here:       which version a command means; histories, snapshots, differences and merges as bytes.
//! Lives elsewhere:  executing them (`target::versions`, `host::versions`); the page for people (`docs/nvme-vendor.md`).
//! Implements:       paper:Muninn 4.4 over NVMe.

use super::command::Command;
use super::status::Status;
use kaml::{
    At, Difference, Key, MergePolicy, MergeReport, Past, Retention, SnapshotInfo, Version, VersionKind, VersionStats,
};
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the Snapshot command does: dword 10.
#[allow(missing_docs, reason = "as the commands of the device are called")]
pub mod snapshot {
    pub const TAKE: u32 = 0;
    pub const FORGET: u32 = 1;
    pub const ROLL_BACK: u32 = 2;
}

/// Reports which version a command means: dword 12 is 0 for the newest, 1 for what a snapshot sees, 2 for this many before
/// the newest; dword 13 is the number.
pub fn put_at(command: &mut Command, at: At) {
    let (kind, number) = match at {
        At::Latest => (0, 0),
        At::Snapshot(snapshot) => (1, snapshot),
        At::Back(count) => (2, count),
    };
    (command.cdw12, command.cdw13) = (kind.into(), number.into());
}

/// Which version a command means.
pub fn get_at(command: &Command) -> Result<At, Status> {
    match (command.cdw12.get(), command.cdw13.get()) {
        (0, _) => Ok(At::Latest),
        (1, snapshot) => Ok(At::Snapshot(snapshot)),
        (2, count) => Ok(At::Back(count)),
        _ => Err(Status::INVALID_FIELD),
    }
}

// --- histories ----------------------------------------------------------------------------------------------------------------

/// A version in the data of History.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | sequence: a later version of a key has a larger one |
/// | 8 | 8 | when it was put, nanoseconds since 1970 |
/// | 16 | 4 | user version |
/// | 20 | 4 | bytes of the value |
/// | 24 | 4 | CRC32C of the value |
/// | 28 | 1 | 0 a value, 1 the key was deleted |
/// | 29 | 1 | 1 if it is seen, 0 if a rollback hid it |
/// | 30 | 2 | reserved, 0 |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PastEntry {
    sequence: U64,
    time_ns: U64,
    user_version: U32,
    value_bytes: U32,
    crc32c: U32,
    is_deleted: u8,
    is_seen: u8,
    reserved: U16,
}

/// Bytes of a version in the data of History.
pub const PAST_BYTES: usize = size_of::<PastEntry>();

/// The data of History.
pub fn encode_history(past: &[Past]) -> Vec<u8> {
    let entry = |past: &Past| PastEntry {
        sequence: past.version.sequence.into(),
        time_ns: past.version.time_ns.into(),
        user_version: past.version.user_version.into(),
        value_bytes: past.version.value_len.into(),
        crc32c: past.version.value_crc.into(),
        is_deleted: u8::from(past.version.kind == VersionKind::Tombstone),
        is_seen: u8::from(past.is_seen),
        reserved: U16::ZERO,
    };
    past.iter().flat_map(|past| entry(past).as_bytes().to_vec()).collect()
}

/// Reads `count` versions of a key; none if the data are not whole. Their place in a segment is not returned.
pub fn decode_history(data: &[u8], count: usize, key: Key) -> Option<Vec<Past>> {
    let (entries, _) = <[PastEntry]>::ref_from_prefix_with_elems(data, count).ok()?;
    let past = |entry: &PastEntry| Past {
        version: Version {
            key,
            kind: if entry.is_deleted == 0 { VersionKind::Value } else { VersionKind::Tombstone },
            value_len: entry.value_bytes.get(),
            value_crc: entry.crc32c.get(),
            sequence: entry.sequence.get(),
            time_ns: entry.time_ns.get(),
            user_version: entry.user_version.get(),
            ordinal: 0,
        },
        is_seen: entry.is_seen != 0,
    };
    Some(entries.iter().map(past).collect())
}

// --- how a namespace stands ---------------------------------------------------------------------------------------------------

/// The head of the data of Versions; snapshots follow, oldest first.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | versions of all keys |
/// | 8 | 8 | of those in segments, the ones that are the newest of their key, as far as memory shows |
/// | 16 | 8 | versions in segments |
/// | 24 | 8 | segments |
/// | 32 | 8 | bytes of a segment |
/// | 40 | 8 | memory of the page buffer |
/// | 48 | 8 | memory of everything else |
/// | 56 | 4 | user version that puts belong to |
/// | 60 | 4 | snapshots, whether there is room for them or not |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StatsHead {
    version_count: U64,
    live_estimate: U64,
    sealed_count: U64,
    segment_count: U64,
    segment_bytes: U64,
    buffer_bytes: U64,
    index_bytes: U64,
    user_version: U32,
    snapshot_count: U32,
}

/// A snapshot.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | when it was taken, nanoseconds since 1970 |
/// | 8 | 4 | its number |
/// | 12 | 4 | reserved, 0 |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SnapshotEntry {
    time_ns: U64,
    version: U32,
    reserved: U32,
}

/// Bytes of the data of Versions with this many snapshots.
pub fn stats_bytes(snapshot_count: usize) -> usize {
    size_of::<StatsHead>() + snapshot_count * size_of::<SnapshotEntry>()
}

/// The data of Versions.
pub fn encode_stats(stats: &VersionStats) -> Vec<u8> {
    let head = StatsHead {
        version_count: stats.version_count.into(),
        live_estimate: stats.live_estimate.into(),
        sealed_count: stats.sealed_count.into(),
        segment_count: stats.segment_count.into(),
        segment_bytes: stats.segment_bytes.into(),
        buffer_bytes: stats.buffer_bytes.into(),
        index_bytes: stats.index_bytes.into(),
        user_version: stats.user_version.into(),
        snapshot_count: (stats.snapshots.len() as u32).into(),
    };
    let entry = |snapshot: &SnapshotInfo| SnapshotEntry {
        time_ns: snapshot.time_ns.into(),
        version: snapshot.version.into(),
        reserved: U32::ZERO,
    };
    let mut out = head.as_bytes().to_vec();
    stats.snapshots.iter().for_each(|snapshot| out.extend_from_slice(entry(snapshot).as_bytes()));
    out
}

/// Reads the data of Versions: what exists, and how many snapshots there are in all. None without a whole head.
pub fn decode_stats(data: &[u8]) -> Option<(VersionStats, usize)> {
    let (head, rest) = StatsHead::read_from_prefix(data).ok()?;
    let count = head.snapshot_count.get() as usize;
    let here = count.min(rest.len() / size_of::<SnapshotEntry>());
    let (entries, _) = <[SnapshotEntry]>::ref_from_prefix_with_elems(rest, here).ok()?;
    let stats = VersionStats {
        version_count: head.version_count.get(),
        live_estimate: head.live_estimate.get(),
        sealed_count: head.sealed_count.get(),
        segment_count: head.segment_count.get(),
        segment_bytes: head.segment_bytes.get(),
        buffer_bytes: head.buffer_bytes.get(),
        index_bytes: head.index_bytes.get(),
        user_version: head.user_version.get(),
        snapshots: entries
            .iter()
            .map(|entry| SnapshotInfo { version: entry.version.get(), time_ns: entry.time_ns.get() })
            .collect(),
    };
    Some((stats, count))
}

// --- differences --------------------------------------------------------------------------------------------------------------

/// A key in the data of Diff.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 1 | 1 added, 2 removed, 3 changed |
/// | 1 | 1 | bytes of the key |
/// | 2 | 2 | reserved, 0 |
/// | 4 | 16 | key |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DifferenceEntry {
    what: u8,
    key_bytes: u8,
    reserved: U16,
    key: [u8; 16],
}

/// Bytes of a key in the data of Diff.
pub const DIFFERENCE_BYTES: usize = size_of::<DifferenceEntry>();
/// Bits of dword 13 of Diff: dword 11, or 12, names a snapshot; without them what exists now is meant.
const FROM_GIVEN: u32 = 1;
const TO_GIVEN: u32 = 2;

/// Sets what Diff compares, and how many differences to leave out.
pub fn put_diff(command: &mut Command, from: Option<u32>, to: Option<u32>, skipped: u32) {
    (command.cdw11, command.cdw12) = (from.unwrap_or(0).into(), to.unwrap_or(0).into());
    let bit = |given: bool, bit| if given { bit } else { 0 };
    command.cdw13 = (bit(from.is_some(), FROM_GIVEN) | bit(to.is_some(), TO_GIVEN)).into();
    command.cdw14 = skipped.into();
}

/// Between what Diff compares, and how many differences to leave out.
pub fn get_diff(command: &Command) -> (Option<u32>, Option<u32>, u32) {
    let given = |bit, number: U32| (command.cdw13.get() & bit != 0).then(|| number.get());
    (given(FROM_GIVEN, command.cdw11), given(TO_GIVEN, command.cdw12), command.cdw14.get())
}

/// Appends a difference to the data of Diff.
pub fn put_difference(out: &mut Vec<u8>, key: &Key, difference: Difference) {
    let what = match difference {
        Difference::Added => 1,
        Difference::Removed => 2,
        Difference::Changed => 3,
    };
    let entry = DifferenceEntry { what, key_bytes: key.len() as u8, reserved: U16::ZERO, key: *key.padded() };
    out.extend_from_slice(entry.as_bytes());
}

/// Reads `count` differences; none if the data are not whole.
pub fn decode_differences(data: &[u8], count: usize) -> Option<Vec<(Key, Difference)>> {
    let (entries, _) = <[DifferenceEntry]>::ref_from_prefix_with_elems(data, count).ok()?;
    let difference = |entry: &DifferenceEntry| {
        let key = Key::new(entry.key.get(..usize::from(entry.key_bytes))?).ok()?;
        let what = match entry.what {
            1 => Difference::Added,
            2 => Difference::Removed,
            3 => Difference::Changed,
            _ => return None,
        };
        Some((key, what))
    };
    entries.iter().map(difference).collect()
}

// --- merging ------------------------------------------------------------------------------------------------------------------

/// Bits of dword 11 of Merge.
mod merge {
    pub(super) const DRY_RUN: u32 = 1;
    pub(super) const KEEP_SNAPSHOTS: u32 = 2;
    pub(super) const KEEP_INTERNAL: u32 = 4;
    pub(super) const KEEP_SINCE: u32 = 8;
}

/// Reports what Merge keeps: dword 11 has flags, dword 12 how many of the newest versions are kept, dwords 13 and 14 the time
/// since when everything is kept.
pub fn put_merge(command: &mut Command, retention: &Retention, dry_run: bool) {
    let bit = |set: bool, bit| if set { bit } else { 0 };
    let flags = bit(dry_run, merge::DRY_RUN)
        | bit(retention.keep_snapshots, merge::KEEP_SNAPSHOTS)
        | bit(retention.keep_internal, merge::KEEP_INTERNAL)
        | bit(retention.keep_since_ns.is_some(), merge::KEEP_SINCE);
    let since = retention.keep_since_ns.unwrap_or(0);
    (command.cdw11, command.cdw12) = (flags.into(), retention.keep_last.into());
    (command.cdw13, command.cdw14) = ((since as u32).into(), ((since >> 32) as u32).into());
}

/// What Merge keeps, and whether it only states what would go. Flags that mean nothing are refused: they might request more
/// to be kept.
pub fn get_merge(command: &Command) -> Result<(Retention, bool), Status> {
    let flags = command.cdw11.get();
    if flags & !(merge::DRY_RUN | merge::KEEP_SNAPSHOTS | merge::KEEP_INTERNAL | merge::KEEP_SINCE) != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let since = u64::from(command.cdw13.get()) | u64::from(command.cdw14.get()) << 32;
    let retention = Retention {
        keep_last: command.cdw12.get(),
        keep_since_ns: (flags & merge::KEEP_SINCE != 0).then_some(since),
        keep_snapshots: flags & merge::KEEP_SNAPSHOTS != 0,
        keep_internal: flags & merge::KEEP_INTERNAL != 0,
    };
    Ok((retention, flags & merge::DRY_RUN != 0))
}

// Bits of what may go when space runs low, where a namespace's attributes stand.
const MERGES_WHEN_LOW: u8 = 1;
const LOW_KEEPS_INTERNAL: u8 = 2;
const NEWEST_ONLY: u8 = 4;
/// All of them.
pub(super) const POLICY_FLAGS: u8 = MERGES_WHEN_LOW | LOW_KEEPS_INTERNAL | NEWEST_ONLY;

/// What a namespace drops when space runs low, in its attributes: bits, versions that are kept, nanoseconds.
pub(super) fn put_policy(policy: Option<MergePolicy>) -> (u8, U32, U64) {
    let Some(policy) = policy else { return (0, U32::ZERO, U64::ZERO) };
    let internal = if policy.keep_internal { LOW_KEEPS_INTERNAL } else { 0 };
    let newest = if policy.newest_only { NEWEST_ONLY } else { 0 };
    (MERGES_WHEN_LOW | internal | newest, policy.keep_last.into(), policy.keep_for_ns.into())
}

/// What of a namespace may go when space runs low.
pub(super) fn get_policy(flags: u8, keep_last: U32, keep_for_ns: U64) -> Option<MergePolicy> {
    let keep_internal = flags & LOW_KEEPS_INTERNAL != 0;
    let (keep_last, keep_for_ns, newest_only) = (keep_last.get(), keep_for_ns.get(), flags & NEWEST_ONLY != 0);
    let policy = MergePolicy { keep_last, keep_for_ns, keep_internal, newest_only };
    (flags & MERGES_WHEN_LOW != 0).then_some(policy)
}

/// The data of Merge.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | versions, those in the page buffer among them |
/// | 8 | 8 | of these, those that the rules keep |
/// | 16 | 8 | versions that go |
/// | 24 | 8 | bytes of the records that go |
/// | 32 | 8 | segments read and released |
/// | 40 | 8 | segments that took their place; 0 if nothing was changed |
/// | 48 | 16 | reserved, 0 |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Merged {
    versions: U64,
    kept: U64,
    dropped: U64,
    dropped_bytes: U64,
    segments_read: U64,
    segments_written: U64,
    reserved: [U64; 2],
}

/// Bytes of the data of Merge.
pub const MERGED_BYTES: usize = size_of::<Merged>();

const _: () = {
    assert!(PAST_BYTES == 32 && offset_of!(PastEntry, is_deleted) == 28);
    assert!(size_of::<StatsHead>() == 64 && offset_of!(StatsHead, user_version) == 56);
    assert!(size_of::<SnapshotEntry>() == 16 && offset_of!(SnapshotEntry, version) == 8);
    assert!(DIFFERENCE_BYTES == 20 && offset_of!(DifferenceEntry, key) == 4);
    assert!(MERGED_BYTES == 64 && offset_of!(Merged, segments_written) == 40);
};

/// What a merge did, as data.
pub fn encode_merged(report: &MergeReport) -> Vec<u8> {
    let merged = Merged {
        versions: report.versions.into(),
        kept: report.kept.into(),
        dropped: report.dropped.into(),
        dropped_bytes: report.dropped_bytes.into(),
        segments_read: report.segments_read.into(),
        segments_written: report.segments_written.into(),
        reserved: [U64::ZERO; 2],
    };
    merged.as_bytes().to_vec()
}

/// What a merge did; none if the data are not whole.
pub fn decode_merged(data: &[u8]) -> Option<MergeReport> {
    let (merged, _) = Merged::read_from_prefix(data).ok()?;
    Some(MergeReport {
        versions: merged.versions.get(),
        kept: merged.kept.get(),
        dropped: merged.dropped.get(),
        dropped_bytes: merged.dropped_bytes.get(),
        segments_read: merged.segments_read.get(),
        segments_written: merged.segments_written.get(),
    })
}
