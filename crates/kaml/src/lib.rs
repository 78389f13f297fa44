//! A key-value SSD in software: the device as an embedded store.
//!
//! Lives here:       `Device` and its command set, the drivers that run the firmware: blocked callers, one
//!                   housekeeping thread, event loops with many commands in flight.
//! Lives elsewhere:  the firmware (`kaml-device`), the media (`kaml-flash`).
//! Implements:       paper:KAML Table I; docs/ARCHITECTURE.md "Execution".
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
//!
//! [`Error`] and enums of options may get further variants. Enums that say what is stored, or which of it is meant, are complete
//! ([`KeyKind`], [`NamespaceKind`], [`At`], [`Difference`], [`VersionKind`], [`Condition`]): a program that copies or serves
//! namespaces must treat all of them, and a further variant is a new major version.

#![deny(clippy::missing_errors_doc)]

mod background;
mod backup;
mod batch;
mod blocks;
mod bytes;
mod changes;
mod check;
mod clustering;
mod counters;
mod device;
mod driver;
mod error;
mod expiry;
#[cfg(feature = "async")]
mod futures;
mod gather;
mod handover;
mod latency;
mod merging;
#[cfg(feature = "model")]
#[doc(hidden)]
pub mod model;
mod namespace;
mod queue;
mod range;
mod snapshot;
mod stats;
pub mod store;
mod sync;
mod versions;
mod visit;

#[doc(hidden)]
pub use backup::write_whole_backup;
pub use backup::{
    BackupBase, BackupInfo, BackupReport, RestoreReport, RestoreSource, verify_backup, verify_backup_file,
};
pub use batch::{Batch, Record};
pub use bytes::Bytes;
pub use changes::{Change, Changes, Changeset, Position, VersionCommand};
#[doc(hidden)]
pub use changes::{ChangesCursor, ChangesPage, ChangesPart, KnownNamespaces};
pub use check::CheckReport;
pub use device::{Commit, Device, ListPage};
pub use error::Error;
#[doc(hidden)]
pub use error::ErrorClass;
pub use expiry::Expiry;
#[cfg(feature = "async")]
pub use futures::{AsyncDevice, Pending};
/// # Examples
/// ```
/// use kaml::{Condition, CreateOptions, Device, Error, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// device.put_if(users, "ada", b"1", Condition::IfAbsent)?;
/// let again = device.put_if(users, "ada", b"2", Condition::IfAbsent);
/// assert!(matches!(again, Err(Error::Conflict { present: true, .. })));
/// # Ok::<(), Error>(())
/// ```
pub use kaml_device::Condition;
/// # Examples
/// [`Device::clock`] has one.
pub use kaml_device::DeviceClock;
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, IndexPlace, KeyKind, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let options = NamespaceOptions::records(KeyKind::U64).with_index(IndexPlace::Flash);
/// let articles = device.ensure_namespace("articles", &options)?;
/// articles.put(7u64, b"text")?;
/// assert_eq!(articles.get(7u64)?.as_deref(), Some(&b"text"[..]));
/// assert_eq!(articles.info()?.index_place(), IndexPlace::Flash);
/// # Ok::<(), kaml::Error>(())
/// ```
pub use kaml_device::IndexPlace;
pub use kaml_device::NamespaceOptions;
/// # Examples
/// See [`Device::apply`] and [`Batch::apply`].
pub use kaml_device::Operand;
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, OpenOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("data.kaml");
/// Device::create(&path, &CreateOptions::new(64 << 20))?.close()?;
/// let (device, report) = Device::salvage(&path, &mut |_blocks_read, _blocks| {})?;
/// assert!(report.problems.is_empty() && report.rebuilt.is_empty() && report.dropped.is_empty());
/// # drop(device);
/// # Device::open(&path, &OpenOptions::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use kaml_device::SalvageReport;
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
/// users.put("ada", b"1")?;
/// let snapshot = device.open_snapshot()?;
/// users.put("ada", b"2")?;
/// let stats = device.snapshot_stats();
/// assert_eq!((stats.open_count, stats.entry_count), (1, 1));
/// # drop(snapshot);
/// # Ok::<(), kaml::Error>(())
/// ```
pub use kaml_device::SnapshotStats;
pub use kaml_device::{Activity, BlockState, CollectionActivity, LogActivity, OpenBlock};
/// # Examples
/// ```
/// use kaml::{BlockOptions, CreateOptions, Device};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let disk = device.create_namespace("disk", &BlockOptions::new(4096, 1 << 20).into())?;
/// device.block_write(disk, 7, &[1; 8192])?;
/// let info = device.block_info(disk)?;
/// assert_eq!((info.block_bytes, info.block_count, info.used_blocks), (4096, 1 << 20, 2));
/// # Ok::<(), kaml::Error>(())
/// ```
pub use kaml_device::{BlockInfo, BlockOptions};
/// # Examples
/// ```
/// use kaml::{Compression, CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let options = NamespaceOptions::default().with_compression(Compression::Zstd);
/// let pages = device.ensure_namespace("pages", &options)?;
/// let page = "<p>The same words again. ".repeat(100);
/// pages.put("home", page.as_bytes())?;
/// assert_eq!(pages.get("home")?.as_deref(), Some(page.as_bytes()));
/// assert!(pages.info()?.compressed.ratio() < 0.1);
/// # Ok::<(), kaml::Error>(())
/// ```
pub use kaml_device::{Compressed, Compression, UnknownCompression};
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, Error, Key, KeyBuf, KeyKind, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let short = device.ensure_namespace("short", &NamespaceOptions::default())?; // KeyKind::Bytes: 1 to 16 bytes
/// short.put("ada", b"1")?;
/// short.put(7u64, b"2")?;
/// short.put(Key::new(b"grace")?, b"3")?;
/// let long = KeyBuf::new(b"a key of more than 16 bytes")?;
/// assert!(matches!(short.put(&long, b"4"), Err(Error::BadKey(error)) if error.len == 27));
/// let any = device.ensure_namespace("any", &NamespaceOptions::records(KeyKind::Any))?;
/// any.put(&long, b"4")?;
/// # Ok::<(), Error>(())
/// ```
pub use kaml_device::{Cursor, KEY_BYTES_MAX, Key, KeyBuf, KeyError, KeyKind, KeyRef};
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, MergePolicy, Retention, VersionOptions, to_the_end};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let keeps_a_day = MergePolicy { keep_for_ns: 86_400_000_000_000, ..MergePolicy::default() };
/// let options = VersionOptions { merge_when_low: Some(keeps_a_day), ..VersionOptions::default() };
/// let pages = device.ensure_namespace("pages", &options.into())?;
/// pages.put("home", b"draft")?;
/// let report = device.merge(pages.id(), &Retention::default(), &mut to_the_end)?;
/// assert_eq!(report.dropped, 0);
/// # Ok::<(), kaml::Error>(())
/// ```
pub use kaml_device::{MergePolicy, VersionOptions};
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, KeyKind, NamespaceChange, NamespaceKind, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let id = device.create_namespace("users", &NamespaceOptions::records(KeyKind::Any))?;
/// let change = NamespaceChange { name: Some("people".to_owned()), ..NamespaceChange::default() };
/// device.set_namespace(id, &change)?;
/// let info = &device.namespaces()[0];
/// assert_eq!(info.name, "people");
/// match &info.kind {
///     NamespaceKind::Records(keys) => assert_eq!(*keys, KeyKind::Any),
///     NamespaceKind::Blocks(options) => println!("{} blocks", options.block_count),
///     NamespaceKind::Versions(_, shape) => println!("a buffer of {} bytes", shape.parameters.buffer_bytes),
/// }
/// # Ok::<(), kaml::Error>(())
/// ```
pub use kaml_device::{NamespaceChange, NamespaceInfo, NamespaceKind, VersionShape};
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, Durability, Error, OpenOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("data.kaml");
/// let durable = Device::create(&path, &CreateOptions::new(64 << 20))?;
/// match Device::open(&path, &OpenOptions::default()) {
///     Err(Error::InUse { holder, .. }) => assert!(holder.is_none_or(|holder| holder.process == std::process::id())),
///     other => drop(other?),
/// }
/// durable.close()?;
/// // For a test that need not survive a power cut:
/// let quick = OpenOptions { durability: Some(Durability::Process), ..OpenOptions::default() };
/// let device = Device::open(&path, &quick)?;
/// assert!(device.info().was_clean);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use kaml_flash::{Durability, FormatOptions as CreateOptions, Holder, OpenOptions};
/// # Examples
/// ```
/// use kaml::{At, CreateOptions, Device, Difference, Key, VersionOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let pages = device.create_namespace("pages", &VersionOptions::default().into())?;
/// let home = Key::new(b"home")?;
/// device.put(pages, home, b"draft")?;
/// let first = device.snapshot(pages)?;
/// device.put(pages, home, b"final")?;
/// let before = device.get_version(pages, home, At::Snapshot(first))?.expect("it existed then");
/// assert_eq!((before.value.as_slice(), before.version.value_len), (&b"draft"[..], 5));
/// assert_eq!(device.history(pages, home, 10)?.len(), 2);
/// let (then, now) = (device.view(pages, Some(first))?, device.view(pages, None)?);
/// assert_eq!((then.get(home)?, now.get(home)?), (Some(b"draft".to_vec()), Some(b"final".to_vec())));
/// for changes in device.diff_pieces(pages, Some(first), None)? {
///     assert!(changes?.contains(&(home, Difference::Changed)));
/// }
/// # Ok::<(), kaml::Error>(())
/// ```
pub use kaml_versions::{
    At, Diff, Difference, History, Kind as VersionKind, Lookup, Past, Record as VersionRecord, Steps, Version,
};
/// # Examples
/// See [`VersionOptions`].
pub use kaml_versions::{BloomOptions, Index as VersionIndex, Retention};
pub use namespace::{Keys, Namespace};
pub use queue::{Answer, AsyncQueue};
pub use range::{Entries, OrderedKeys};
pub use snapshot::Snapshot;
pub use stats::{BlockCell, BlockMap, DeviceInfo, LatencyHistogram, LatencyHistograms, LatencyStats, Stats};
pub use versions::{MergeReport, Pieces, SnapshotInfo, VersionStats, VersionView, to_the_end};

/// Identifies a namespace; never given to another one.
///
/// # Examples
/// See [`Namespace`].
pub type NamespaceId = u32;
