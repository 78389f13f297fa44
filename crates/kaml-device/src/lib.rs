//! The firmware of KAML as a deterministic state machine: commands and completions go in, medium operations and
//! results come out.
//!
//! Lives here:       logs, pages, the phases of an atomic Put, garbage collection, wear, checkpoints, recovery.
//! Lives elsewhere:  flash itself (`kaml-flash`), the index (`kaml-index`), threads, waiting and time (`kaml`).
//! Implements:       paper:KAML III.A-B, IV.B-E; docs/ARCHITECTURE.md.

#![allow(
    clippy::unnecessary_lazy_evaluations,
    reason = "an `Error` that is made eagerly is dropped with each look-up that succeeds"
)]

mod activity;
mod audit;
mod backup;
mod block_map;
mod block_writer;
mod blocks;
#[cfg(feature = "broken")]
mod broken;
mod changes;
mod checkpoint;
mod clock;
mod cluster;
mod collector;
mod command;
mod compression;
mod core;
mod counters;
mod error;
mod expiries;
mod expiry;
mod first_root;
mod flash_index;
mod format;
mod gate;
mod gc;
mod growth;
mod image;
mod in_flight;
mod index;
mod index_image;
mod index_place;
mod journal;
mod large;
mod layout;
mod lifetime;
mod listed;
mod loading;
mod log;
mod merge;
mod metadata;
mod moves;
mod namespace;
mod namespace_commands;
mod packing;
mod policy;
mod ranges;
mod reader;
mod recovery;
mod rehome;
mod ring;
mod ring_scan;
mod room;
mod root_state;
mod roots;
mod salvage;
mod secret;
#[cfg(test)]
mod small;
mod snapshot_reader;
mod snapshots;
mod space;
mod staging;
mod stats;
mod stream;
mod superseded;
mod tickets;
mod units;
mod versioned;
mod writers;

pub use crate::core::{Core, buffer_bytes_max};
pub use activity::{Activity, BlockActivity, CollectionActivity, LogActivity, OpenBlock};
pub use audit::{BlockAudit, Judgement};
pub use backup::{BackupMark, BackupTicket, BlockRead, PendingMark, Scanned, ScannedRecord, VersionsAt};
pub use blocks::BlockState;
#[cfg(feature = "broken")]
pub use broken::Broken;
pub use changes::{
    PlacedChange, PlacedValue, RingChange, RingPosition, RingReadError, RingReader, RingState, VersionAt, VersionValue,
    read_placed,
};
pub use clock::{DeviceClock, HostTime};
pub use command::{Body, Condition, Expires, Op, StageError};
pub use compression::{Compression, UnknownCompression, unpack};
pub use error::{Error, NotForVersions, RootError};
pub use format::range::KeyRange;
pub use format::record::{DIRECT_BYTES, key_of_stored};
pub use gate::Pin;
pub use image::{encode_expiring_image, encode_image, expiring_image_bytes, image_bytes};
pub use index_image::FlashIndex;
pub use index_place::IndexPlace;
pub use kaml_index::{Cursor, FullKey, KEY_BYTES_MAX, KeptKey, Key, KeyBuf, KeyError, KeyKind, KeyRef, Slot};
pub use kaml_ordered::OrderedReader;
pub use layout::{BlockOptions, Span};
pub use loading::{IndexLoad, LoadedIndex};
pub use merge::{Base, Merge, MergeError, MergeStep, Merged, Operand};
pub use moves::MoveWatch;
pub use namespace::{NamespaceChange, NamespaceInfo, NamespaceKind, NamespaceOptions, VersionShape};
pub use namespace_commands::{CountedDeletion, Deletion};
pub use packing::Compressed;
pub use packing::values::PackedValue;
pub use policy::{CollectionCandidate, CollectionPolicy, CollectionRule, UnknownPolicy};
pub use reader::{Buffered, FindError, FlashRead, Found, FoundValue, Reader, RecordReader, SpaceReader, read_whole};
pub use recovery::OpenReport;
pub use room::has_room;
pub use salvage::SalvageReport;
pub use secret::KeyDigester;
pub use snapshot_reader::RecordsAt;
pub use snapshots::{SnapshotStats, SnapshotTicket};
pub use stats::CoreStats;
pub use units::{BlockChange, BlockInfo, BlockStep};
pub use versioned::merge_policy::MergePolicy;
pub use versioned::state::VersionOptions;
pub use versioned::{SegmentRead, VersionReader, segment_image};
