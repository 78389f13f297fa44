//! The firmware of KAML as a deterministic state machine: commands and completions go in, medium operations and
//! answers come out.
//!
//! Lives here:       logs, pages, the phases of an atomic Put, garbage collection, wear, checkpoints, recovery.
//! Lives elsewhere:  flash itself (`kaml-flash`), the index (`kaml-index`), threads, waiting and time (`kaml`).
//! Implements:       paper:KAML III.A-B, IV.B-E; design sections 2 to 6.

mod audit;
mod block_map;
mod blocks;
#[cfg(feature = "broken")]
mod broken;
mod checkpoint;
mod core;
mod error;
mod format;
mod gc;
mod image;
mod in_flight;
mod journal;
mod layout;
mod lifetime;
mod loading;
mod metadata;
mod namespace;
mod namespace_commands;
mod reader;
mod recovery;
mod rehome;
mod ring;
mod ring_scan;
mod salvage;
#[cfg(test)]
mod small;
mod staging;
mod stats;
mod units;
mod versioned;
mod writers;

pub use crate::core::{Core, buffer_bytes_max};
pub use audit::{BlockAudit, Judgement};
pub use blocks::Pin;
#[cfg(feature = "broken")]
pub use broken::Broken;
pub use error::{Error, NotForVersions};
pub use format::root::RootError;
pub use image::{encode_image, image_bytes};
pub use kaml_index::{Cursor, Key, KeyError, KeyKind, Slot};
pub use layout::{BlockOptions, Span};
pub use loading::{IndexLoad, LoadedIndex};
pub use namespace::{NamespaceChange, NamespaceInfo, NamespaceOptions};
pub use namespace_commands::{CountedDeletion, Deletion};
pub use reader::{Buffered, FindError, FlashRead, Found, Reader, read_whole};
pub use recovery::OpenReport;
pub use salvage::SalvageReport;
pub use staging::{Body, Condition, DIRECT_BYTES, Op, StageError};
pub use stats::CoreStats;
pub use units::{BlockChange, BlockInfo, BlockStep};
pub use versioned::{MergePolicy, SegmentRead, VersionOptions, VersionReader, segment_image};
