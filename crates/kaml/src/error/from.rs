//! How the errors of the crates below become [`Error`].
//!
//! Lives here:       one `match` for each of their types, without a wildcard: a new error cannot be forgotten.
//! Lives elsewhere:  what the errors mean (`error`).

use super::Error;
use kaml_device::{Error as CommandError, NotForVersions, RootError};
use kaml_flash::{FormatError, MediumError, OpenError};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

impl From<CommandError> for Error {
    #[cold]
    fn from(error: CommandError) -> Self {
        use CommandError as E;
        match error {
            E::UnknownNamespace(id) => Error::UnknownNamespace(id),
            E::UnknownNamespaceName(name) => Error::UnknownNamespaceName(name),
            E::NamespaceExists(name) => Error::NamespaceExists(name),
            E::BadName { name, why } => Error::BadName { name, why },
            E::UnknownLog { log, last } => Error::UnknownLog { log, last },
            E::LogTwice(log) => Error::LogTwice(log),
            E::NamespaceNumbersUsed => Error::NamespaceNumbersUsed,
            E::TooManyNamespaces { bytes, max } => Error::TooManyNamespaces { bytes, max },
            E::Key(error) => Error::BadKey(error),
            E::ValueTooLarge { bytes, max, namespace } => Error::ValueTooLarge { bytes, max, namespace },
            E::BatchTooLarge { bytes, max, direct_bytes } => Error::BatchTooLarge { bytes, max, direct_bytes },
            E::HoldsBlocks(id) => Error::HoldsBlocks(id),
            E::HoldsRecords(id) => Error::HoldsRecords(id),
            E::KeepsVersions(NotForVersions::Command(id)) => Error::KeepsVersions(id),
            E::KeepsVersions(NotForVersions::Condition { namespace, key, .. }) => {
                Error::NoConditionOnVersions { namespace, key }
            }
            E::KeepsVersions(NotForVersions::Expiry(id)) => Error::VersionsDoNotExpire(id),
            E::NotACounter { namespace, key, bytes } => Error::NotACounter { namespace, key, bytes },
            E::CounterOverflow { namespace, key } => Error::CounterOverflow { namespace, key },
            E::ValueDiffers { namespace, key, present } => Error::ValueDiffers { namespace, key, present },
            E::BadTimeToLive(kind) => Error::BadTimeToLive(kind),
            E::BadCompression(kind) => Error::BadCompression(kind),
            E::KeepsNoVersions(id) => Error::KeepsNoVersions(id),
            E::Versions(error) => error.into(),
            E::BadVersionOptions(why) => Error::BadVersionOptions(why),
            E::BadBlockOptions { why } => Error::BadBlockOptions { why },
            E::BlocksOutOfRange { namespace, first_block, count, block_count } => {
                Error::BlocksOutOfRange { namespace, first_block, count, block_count }
            }
            E::PartialBlock { namespace, bytes, block_bytes } => Error::PartialBlock { namespace, bytes, block_bytes },
            E::ListedByRange(id) => Error::ListedByRange(id),
            E::NotOrdered(id) => Error::NotOrdered(id),
            E::EmptyBatch => Error::EmptyBatch,
            E::Conflict { namespace, key, present } => Error::Conflict { namespace, key, present },
            E::Full { live_bytes, capacity_bytes } => Error::Full { live_bytes, capacity_bytes },
            E::SnapshotsFull { namespace, bytes, max } => Error::SnapshotsFull { namespace, bytes, max },
            E::Corrupt { namespace, key, at, what } => Error::Corrupt { namespace, key, at: at.to_string(), what },
            E::SegmentDamaged { namespace, at, what } => {
                damaged(format!("namespace {namespace}: versions at {at}"), &what)
            }
            E::IndexDamaged { namespace, name, what } => Error::IndexDamaged { namespace, name, what },
            E::NoAddressSpace(refused) => Error::NoMemory(refused.to_string()),
            E::MetadataDamaged(what) => Error::MetadataDamaged(what),
            E::Root(RootError::Damaged(slot_0, slot_1)) => Error::RootsDamaged { slot_0, slot_1 },
            E::Root(RootError::Unreadable { slot, why }) => Error::RootUnreadable { slot, why },
            E::Root(RootError::NewerVersion { found, supported }) => {
                Error::NewerVersion { what: "root format version".into(), found, supported }
            }
            E::Medium(error) => error.into(),
            E::Stopped(why) => Error::Stopped(why.to_string()),
            E::TooFullToShrink { excess_bytes, capacity_bytes } => {
                Error::TooFullToShrink { excess_bytes, capacity_bytes }
            }
            E::SnapshotTooOld => Error::SnapshotTooOld,
            E::ReadOnly => Error::ReadOnly,
            E::Closed => Error::Closed,
        }
    }
}

fn damaged(place: String, what: &impl Display) -> Error {
    Error::VersionsDamaged { place, what: what.to_string() }
}

impl From<kaml_versions::Error> for Error {
    #[cold]
    fn from(error: kaml_versions::Error) -> Self {
        use kaml_versions::Error as E;
        match error {
            E::DamagedRecord(what) => damaged("damaged record".into(), &what),
            E::DamagedTable(what) => damaged("damaged table".into(), &what),
            E::ValueTooLarge { bytes, max } => Error::ValueTooLarge { bytes, max, namespace: None },
            E::NoSnapshot { version, present } => Error::NoSnapshot { version, present },
            E::TooFarBack { count, available } => Error::TooFarBack { count, available },
            E::TooManySnapshots => Error::TooManySnapshots,
            E::BadParameter { .. } => Error::BadVersionOptions(error.to_string()),
        }
    }
}

impl From<MediumError> for Error {
    #[cold]
    fn from(error: MediumError) -> Self {
        match error {
            MediumError::NoSpace { what } => Error::NoSpace { what },
            MediumError::NotResized { why } => Error::NotResized { why },
            MediumError::ReadFailed { what, error } => Error::ReadFailed { what, error },
            MediumError::OutOfOrder { .. } | MediumError::BadRange { .. } => Error::Internal(error.to_string()),
            MediumError::BlockFailed { .. }
            | MediumError::WornOut { .. }
            | MediumError::NotDurable { .. }
            | MediumError::Gone => Error::Failed(error.to_string()),
        }
    }
}

impl From<FormatError> for Error {
    #[cold]
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::TooSmall { .. }
            | FormatError::TooLarge { .. }
            | FormatError::TooFewBlocks { .. }
            | FormatError::Geometry(_) => Error::BadCreateOptions(error.to_string()),
            FormatError::NoRoom { capacity_bytes, smallest_bytes } => Error::NoRoom { capacity_bytes, smallest_bytes },
            FormatError::DeviceTooSmall { path, capacity_bytes, actual_bytes } => {
                Error::DeviceTooSmall { path, capacity_bytes, actual_bytes }
            }
            FormatError::NotEmpty { path, found } => Error::NotEmpty { path, found },
            FormatError::NotAFile { path } => Error::NotAFile { path },
            FormatError::InUse { path, holder } => Error::InUse { path, holder },
            FormatError::Io { path, what, source } => Error::Io { path, what, source: Arc::new(source) },
        }
    }
}

impl From<OpenError> for Error {
    #[cold]
    fn from(error: OpenError) -> Self {
        let text = error.to_string();
        let why = |path: &PathBuf| text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned();
        let damaged = |path, why, is_salvageable| Error::DeviceDamaged { path, why, is_salvageable };
        match error {
            OpenError::NotADevice { path } | OpenError::TooSmall { path, .. } => {
                Error::NotADevice { why: why(&path), path }
            }
            OpenError::Damaged { path, .. } | OpenError::NotAtEnd { path, .. } => {
                let why = why(&path);
                damaged(path, why, false)
            }
            OpenError::HeadDamaged { path, .. } | OpenError::Truncated { path, .. } => {
                let why = why(&path);
                damaged(path, why, true)
            }
            OpenError::NewerVersion { path, found, supported } => {
                Error::NewerVersion { what: format!("{}: format version", path.display()), found, supported }
            }
            OpenError::InUse { path, holder } => Error::InUse { path, holder },
            OpenError::Io { path, what, source } => Error::Io { path, what, source: Arc::new(source) },
        }
    }
}
