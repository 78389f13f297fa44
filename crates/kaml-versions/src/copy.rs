//! All versions of a row, in the order of their sequences: what a backup copies.
//!
//! Lives here:       reading a row and handing out its versions.
//! Lives elsewhere:  what becomes of them (`kaml::backup`).
//!
//! A segment can have a version that is older than the newest one of the segment before it, because a version that finds no page waits for
//! the next segment. So versions are held back until no later segment can have an older one.

use crate::Error;
use crate::columns::SegmentInfo;
use crate::parameters::Parameters;
use crate::reads::{Pages, Source, VALUE_MISSING, load_extent, read_segment};
use crate::record::{Kind, Version};
use std::collections::BTreeMap;
use std::ops::Range;

/// Takes a version and its value.
type Each<'a, E> = &'a mut dyn FnMut(&Version, &[u8]) -> Result<(), E>;

/// Passes the versions of a row whose sequences are in a range to `each`, in the order of their sequences, with their values. Returns how
/// many older ones the row has. Segments without a version in the range are not read.
///
/// # Errors
/// Those of reading, and of `each`.
pub fn copy_row<S: Source>(
    source: &mut S,
    row: u32,
    sequences: &Range<u64>,
    each: Each<'_, S::Error>,
) -> Result<u64, S::Error> {
    let mut older = 0;
    let (buffered, segments, parameters) = source.look(|versions, hold| {
        let columns = versions.columns();
        let mut buffered = Vec::new();
        for (version, record) in columns.buffered(row) {
            older += u64::from(version.sequence < sequences.start);
            if sequences.contains(&version.sequence) {
                buffered.push((version, Box::<[u8]>::from(record)));
            }
        }
        let segments: Vec<SegmentInfo> = columns.segments(row).collect();
        segments.iter().for_each(|segment| hold(segment.at));
        (buffered, segments, *columns.parameters())
    })?;
    let mut held = BTreeMap::new();
    for (at, segment) in segments.iter().enumerate() {
        if segment.sequences.end <= sequences.start {
            older += u64::from(segment.records);
            continue;
        }
        let found = read_all(source, segment, &parameters, sequences)?;
        older += u64::from(segment.records) - found.in_range - found.newer;
        held.extend(found.versions);
        let later = segments[at + 1..].iter().map(|segment| segment.sequences.start);
        let first = later.chain(buffered.first().map(|(version, _)| version.sequence)).min();
        pass_before(&mut held, first.unwrap_or(u64::MAX), each)?;
    }
    for (mut version, record) in buffered {
        let value = match version.kind {
            Kind::Large(number) => load_large(source, &version, number)?,
            Kind::Value | Kind::Tombstone | Kind::Extent(_) => version.value(&record)?.unwrap_or_default().to_vec(),
        };
        if version.kind != Kind::Tombstone {
            version.kind = Kind::Value;
        }
        held.insert(version.sequence, (version, value));
    }
    pass_before(&mut held, u64::MAX, each)?;
    Ok(older)
}

/// The value of a version that nobody drops meanwhile.
fn load_large<S: Source>(source: &mut S, version: &Version, number: u64) -> Result<Vec<u8>, S::Error> {
    Ok(source.large(version, number)?.ok_or(Error::DamagedRecord(VALUE_MISSING))?)
}

/// Versions by their sequences.
type Held = BTreeMap<u64, (Version, Vec<u8>)>;

fn pass_before<E>(held: &mut Held, end: u64, each: Each<'_, E>) -> Result<(), E> {
    let rest = held.split_off(&end);
    for (version, value) in std::mem::replace(held, rest).into_values() {
        each(&version, &value)?;
    }
    Ok(())
}

/// What a segment has.
struct Found {
    versions: Held,
    in_range: u64,
    newer: u64,
}

fn read_all<S: Source>(
    source: &mut S,
    segment: &SegmentInfo,
    parameters: &Parameters,
    sequences: &Range<u64>,
) -> Result<Found, S::Error> {
    let all = read_segment(source, segment, parameters, |version, record| {
        let is_wanted = sequences.contains(&version.sequence);
        let value = if is_wanted { version.value(record)?.map(<[u8]>::to_vec) } else { None };
        Ok::<_, Error>((version, value))
    })?;
    let mut found = Found { versions: Held::new(), in_range: 0, newer: 0 };
    for (mut version, value) in all {
        found.newer += u64::from(version.sequence >= sequences.end);
        if !sequences.contains(&version.sequence) {
            continue;
        }
        found.in_range += 1;
        let value = match version.kind {
            Kind::Extent(_) => load_extent(source, &version, &Pages::of(segment, parameters))?,
            Kind::Large(number) => load_large(source, &version, number)?,
            Kind::Value | Kind::Tombstone => value.unwrap_or_default(),
        };
        if version.kind != Kind::Tombstone {
            version.kind = Kind::Value;
        }
        version.ordinal = 0;
        found.versions.insert(version.sequence, (version, value));
    }
    Ok(found)
}
