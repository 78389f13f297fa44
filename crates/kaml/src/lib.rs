//! A key-value SSD in software: the device as an embedded store.
//!
//! Lives here:       `Device` and its command set, the drivers that run the firmware: blocked callers, one
//!                   housekeeping thread, event loops with many commands in flight.
//! Lives elsewhere:  the firmware (`kaml-device`), the media (`kaml-flash`).
//! Implements:       paper:KAML Table I; design section 2, drivers (i) and (ii).
//!
//! ```
//! use kaml::{Batch, CreateOptions, Device, NamespaceOptions};
//!
//! let dir = tempfile::tempdir()?;
//! let device = Device::create(&dir.path().join("store.kaml"), &CreateOptions::new(64 << 20))?;
//! let users = device.create_namespace("users", &NamespaceOptions::default())?;
//! let counts = device.create_namespace("counts", &NamespaceOptions::default())?;
//!
//! let mut batch = Batch::new();
//! batch.put(users, kaml::Key::new(b"ada")?, b"Ada Lovelace").put(counts, kaml::Key::new(b"users")?, b"1");
//! device.write(&batch)?; // both or none, and durable
//! assert_eq!(device.get(users, kaml::Key::new(b"ada")?)?.as_deref(), Some(&b"Ada Lovelace"[..]));
//! device.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod background;
mod batch;
mod blocks;
mod bytes;
mod check;
mod device;
mod driver;
mod error;
mod handover;
mod latency;
mod merging;
#[cfg(feature = "model")]
#[doc(hidden)]
pub mod model;
mod queue;
mod stats;
pub mod store;
mod sync;
mod versions;

pub use batch::{Batch, Record};
pub use bytes::Bytes;
pub use check::CheckReport;
pub use device::{Commit, Device, ListPage};
pub use error::Error;
pub use kaml_device::{BlockInfo, BlockOptions, MergePolicy, VersionOptions};
pub use kaml_device::{
    Condition, Cursor, Key, KeyError, KeyKind, NamespaceChange, NamespaceInfo, NamespaceOptions, OpenReport,
    SalvageReport,
};
pub use kaml_flash::{Durability, FormatError as CreateError, FormatOptions as CreateOptions, OpenError, OpenOptions};
pub use kaml_versions::{
    At, BloomOptions, Diff, Difference, Error as VersionError, History, Index as VersionIndex, Kind as VersionKind,
    Lookup, Past, Record as VersionRecord, Retention, Steps, Version,
};
pub use queue::{Answer, AsyncQueue};
pub use stats::{DeviceInfo, LatencyStats, Stats};
pub use versions::{MergeReport, Pieces, SnapshotInfo, VersionStats, VersionView, to_the_end};

/// Identifies a namespace; never given to another one.
pub type NamespaceId = u32;
