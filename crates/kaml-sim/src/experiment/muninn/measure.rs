//! Filling a namespace and looking things up in it, counted by the flash.
//!
//! Lives here:       what is counted, which keys are looked up, how large an experiment is.
//! Lives elsewhere:  the device (`device`), tables and pictures (`space`, `reads`, `cleaning`).
//! Implements:       paper:Muninn 6.

use super::device::{Device, SEGMENT_BYTES};
use super::keys::Workload;
use crate::experiment::{Settings, Steps};
use crate::rig::RigError;
use crate::rng::{Rng, mix};
use kaml_device::VersionOptions;
use kaml_versions::BloomOptions;
use std::ops::Range;

/// The paper's experiment: so many pairs, and so large a page buffer.
const KEYS: u64 = 50_000_000;
const BUFFER_MIB: u64 = 128;
/// The smallest buffer that takes a few segments.
const BUFFER_MIB_MIN: u64 = 4;
/// Keys of an experiment that only shows that it works.
const QUICK_KEYS: u64 = 60_000;
/// With fewer, nothing would ever leave the page buffer.
const KEYS_MIN: u64 = 20_000;
/// Steps in which filling reports progress.
pub(super) const FILL_STEPS: usize = 20;
/// Lookups of a kind.
const LOOKUPS: u64 = 500_000;
const QUICK_LOOKUPS: u64 = 2_000;

/// How large an experiment is. Rows have nothing in common, so with fewer keys than the paper's there are fewer rows, and
/// each has as many segments as the paper's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) keys: u64,
    buffer_mib: u64,
    pub(super) lookups: u64,
    pub(super) seed: u64,
}

impl Scale {
    pub(super) fn of(settings: &Settings) -> Scale {
        let keys = if settings.quick { settings.keys.min(QUICK_KEYS) } else { settings.keys }.max(KEYS_MIN);
        let lookups = if settings.quick { QUICK_LOOKUPS } else { LOOKUPS };
        Scale { lookups, ..Scale::with(keys, settings.seed) }
    }

    /// With so many puts.
    pub(super) fn with(keys: u64, seed: u64) -> Scale {
        let buffer_mib = (BUFFER_MIB * keys).div_ceil(KEYS).clamp(BUFFER_MIB_MIN, BUFFER_MIB);
        Scale { keys, buffer_mib, lookups: LOOKUPS, seed }
    }

    /// Rows of the paper's index: one for each MiB of the buffer.
    pub(super) fn rows(&self) -> u64 {
        self.buffer_mib
    }

    pub(super) fn words(&self) -> String {
        format!("{} puts, page buffer of {} MiB, pages of 4 KiB, segments of 1 MiB", self.keys, self.buffer_mib)
    }

    /// A device with one namespace. The paper's index has a row for each MiB of the buffer.
    pub(super) fn device(&self, bytes: u64, index: Index) -> Result<Device, RigError> {
        let options = VersionOptions {
            buffer_bytes: self.buffer_mib << 20,
            segment_bytes: SEGMENT_BYTES,
            ..VersionOptions::default()
        };
        match index {
            // Where segments are as empty as the paper's worst, they take three times the data; small experiments, whose few
            // keys come again sooner, more.
            Index::Bloom(bloom) => Device::new(8 * bytes, VersionOptions { bloom: Some(bloom), ..options }, self.seed),
            Index::Columns(fingerprint_bits) => {
                Device::new(bytes, VersionOptions { fingerprint_bits, ..options }, self.seed)
            }
        }
    }
}

/// An index and how it is set.
#[derive(Clone, Copy, Debug)]
pub(super) enum Index {
    Bloom(BloomOptions),
    /// Bits of a fingerprint; 0: the default of a namespace.
    Columns(u32),
}

/// What is in segments, and what it cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) versions: u64,
    /// These versions, as they are in pages.
    pub(super) bytes: u64,
    /// Bytes of the pages that segments have for versions. Tables have pages of their own in the same segments, which are
    /// counted as written; the paper's filters are elsewhere.
    pub(super) room: u64,
    /// Memory of everything but the page buffer.
    pub(super) index_bytes: u64,
    /// Pages written, metadata included.
    pub(super) pages: f64,
}

impl Stored {
    /// Percent of the segments' pages that versions fill.
    pub(super) fn utilisation(&self) -> f64 {
        100.0 * self.bytes as f64 / self.room.max(1) as f64
    }

    pub(super) fn index_bytes_per_key(&self) -> f64 {
        self.index_bytes as f64 / self.versions.max(1) as f64
    }

    pub(super) fn pages_per_insert(&self) -> f64 {
        self.pages / self.versions.max(1) as f64
    }
}

/// A namespace that was filled, and which put of each key was its last: its number and one, 0 if there was none.
pub(super) struct Filled {
    pub(super) stored: Stored,
    last: Vec<u32>,
}

/// Makes all puts of a workload.
pub(super) fn fill(
    device: &mut Device,
    workload: &Workload,
    what: &str,
    steps: &mut Steps<'_>,
) -> Result<Filled, RigError> {
    let mut last = vec![0; workload.space as usize];
    let mut value = Vec::new();
    let mut bytes = 0;
    let per_step = workload.puts.div_ceil(FILL_STEPS as u64);
    for put in 0..workload.puts {
        if put % per_step == 0 {
            steps.next(what);
        }
        let key = workload.key(put);
        workload.value(put, &mut value);
        bytes += (kaml_versions::HEADER_BYTES + size_of::<u64>() + value.len()) as u64;
        device.put(key, &value)?;
        last[key as usize] = put as u32 + 1;
    }
    device.rest()?;
    Ok(Filled { stored: device.stored(bytes)?, last })
}

/// Which keys are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Age {
    /// Those of a fiftieth of the puts, new, but not so new that they are all in the page buffer.
    New,
    /// Those of any puts.
    Any,
    /// Those of the first fiftieth of the puts that were not put again.
    Oldest,
    /// None that was ever put.
    Absent,
}

impl Age {
    pub(super) const ALL: [Age; 4] = [Age::New, Age::Any, Age::Oldest, Age::Absent];

    pub(super) fn name(self) -> &'static str {
        match self {
            Age::New => "new",
            Age::Any => "average",
            Age::Oldest => "oldest 2 %",
            Age::Absent => "absent",
        }
    }

    fn puts(self, puts: u64) -> Range<u64> {
        let fiftieth = (puts / 50).max(1);
        match self {
            Age::New => puts - 2 * fiftieth..puts - fiftieth,
            Age::Any | Age::Absent => 0..puts,
            Age::Oldest => 0..fiftieth,
        }
    }
}

/// What lookups cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    pub(super) lookups: u64,
    pub(super) pages: u64,
    /// Lookups that read three pages or more.
    pub(super) three_or_more: u64,
    pub(super) ns: u64,
}

impl Reads {
    pub(super) fn mean(&self) -> f64 {
        self.pages as f64 / self.lookups as f64
    }

    pub(super) fn three_or_more_in_10000(&self) -> f64 {
        1e4 * self.three_or_more as f64 / self.lookups as f64
    }

    /// Lookups a second of virtual time, if any time passed.
    pub(super) fn per_s(&self) -> f64 {
        self.lookups as f64 * 1e9 / self.ns.max(1) as f64
    }
}

/// Looks up keys of an age, each of which must be found as it was put last.
pub(super) fn look_up(
    device: &mut Device,
    workload: &Workload,
    filled: &Filled,
    age: Age,
    lookups: u64,
) -> Result<Reads, RigError> {
    let mut rng = Rng::new(mix(workload.seed ^ age as u64));
    let puts = age.puts(workload.puts);
    let mut expected = Vec::new();
    // They read little, so chance matters much.
    let lookups = if age == Age::Absent { 8 * lookups } else { lookups };
    let mut reads = Reads { lookups, ..Reads::default() };
    for lookup in 0..lookups {
        let key = match age {
            Age::Absent => workload.space + lookup,
            _ => drawn(workload, filled, &puts, &mut rng),
        };
        let (before, began) = (device.medium().page_counts().read, device.medium().now_ns());
        let found = device.get(key)?;
        let pages = device.medium().page_counts().read - before;
        reads.pages += pages;
        reads.three_or_more += u64::from(pages >= 3);
        reads.ns += device.medium().now_ns() - began;
        let is_right = match filled.last.get(key as usize).and_then(|last| last.checked_sub(1)) {
            None => found.is_none(),
            Some(put) => {
                workload.value(put.into(), &mut expected);
                found.as_deref() == Some(&expected)
            }
        };
        if !is_right {
            return Err(RigError::Wrong(format!("key {key} has not the value that was put last")));
        }
    }
    Ok(reads)
}

/// A key whose last put is one of `puts`; after some tries, of any.
fn drawn(workload: &Workload, filled: &Filled, puts: &Range<u64>, rng: &mut Rng) -> u64 {
    const TRIES: u32 = 100;
    let mut put = puts.start;
    for _ in 0..TRIES {
        put = puts.start + rng.below(puts.end - puts.start);
        let last = u64::from(filled.last[workload.key(put) as usize]);
        if puts.contains(&(last - 1)) {
            break;
        }
    }
    workload.key(put)
}
