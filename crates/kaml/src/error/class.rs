//! All kinds of errors.
//!
//! Lives here:       [`ErrorClass`], the one `match` that gives each error its kind, and what callers ask of it.
//! Lives elsewhere:  NVMe statuses, C statuses and exit codes, each made from [`ErrorClass`] by one `match` of its own.

use super::Error;
use std::io;

/// All kinds of errors, for those who speak for KAML elsewhere (NVMe statuses, C statuses, exit codes): one `match` without a wildcard
/// each, so a new kind cannot be forgotten. No promise to users: they match [`Error`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// No such namespace.
    UnknownNamespace,
    /// The name is taken.
    NamespaceExists,
    /// A name that cannot be.
    BadName,
    /// Logs that cannot be.
    BadLogs,
    /// Too many namespaces.
    TooManyNamespaces,
    /// Options of a namespace that cannot be.
    BadOptions,
    /// Records where blocks are, or the reverse.
    WrongKind,
    /// A command that versioned namespaces do not have.
    KeepsVersions,
    /// A command that only versioned namespaces have.
    KeepsNoVersions,
    /// A record exists.
    Exists,
    /// A record does not exist.
    NotFound,
    /// A key of a wrong length.
    BadKey,
    /// A value that is too long.
    ValueTooLarge,
    /// A batch that is too long.
    BatchTooLarge,
    /// A batch of nothing.
    EmptyBatch,
    /// Blocks that do not exist.
    OutOfRange,
    /// Bytes that are not whole blocks.
    PartialBlock,
    /// No such snapshot.
    NoSnapshot,
    /// The snapshot has expired.
    SnapshotTooOld,
    /// Changes that are not kept any more.
    FellBehind,
    /// Not so many versions.
    TooFarBack,
    /// Too many snapshots.
    TooManySnapshots,
    /// Snapshots take too much.
    SnapshotsFull,
    /// The device is full.
    Full,
    /// The file system below is full.
    NoSpace,
    /// Damaged bytes.
    Corrupt,
    /// Damaged metadata.
    MetadataCorrupt,
    /// Sizes that no device can have.
    BadCreateOptions,
    /// Neither a file nor a block device of that size.
    Unsuitable,
    /// Contents that would be lost.
    NotEmpty,
    /// Open elsewhere.
    InUse,
    /// Not a KAML device.
    NotADevice,
    /// Written by later software.
    NewerVersion,
    /// No such file.
    NoFile,
    /// Not allowed by the system.
    NoPermission,
    /// The system failed.
    Io,
    /// A remote device.
    Remote,
    /// The device takes no changes any more.
    Stopped,
    /// The device is closed.
    Closed,
    /// The device is only read.
    ReadOnly,
    /// Handles or a store are in the way.
    Busy,
    /// Cancelled on request.
    Cancelled,
    /// The system refused memory or a thread.
    NoResources,
    /// A bug.
    Internal,
    /// Deadlock.
    Deadlock,
    /// No lock in time.
    LockTimeout,
    /// A read that was lost.
    DependencyLost,
    /// Commits that were lost.
    CommitsLost,
    /// Not in this state.
    IllegalMove,
    /// Too many transactions.
    TooManyTransactions,
    /// The cache is too small.
    CacheTooSmall,
    /// Options that no store can have.
    BadStoreOptions,
}

impl Error {
    /// Which kind of error it is.
    #[doc(hidden)]
    pub fn class(&self) -> ErrorClass {
        use ErrorClass as C;
        match self {
            Error::UnknownNamespace(_) | Error::UnknownNamespaceName(_) => C::UnknownNamespace,
            Error::NamespaceExists(_) => C::NamespaceExists,
            Error::BadName { .. } => C::BadName,
            Error::UnknownLog { .. } | Error::LogTwice(_) => C::BadLogs,
            Error::TooManyNamespaces { .. } | Error::NamespaceNumbersUsed => C::TooManyNamespaces,
            Error::BadVersionOptions(_)
            | Error::BadBlockOptions { .. }
            | Error::BadTimeToLive(_)
            | Error::BadCompression(_) => C::BadOptions,
            Error::HoldsBlocks(_)
            | Error::HoldsRecords(_)
            | Error::ListedByRange(_)
            | Error::NotOrdered(_)
            | Error::NotInStore(_)
            | Error::NotACounter { .. }
            | Error::OperandInQueue => C::WrongKind,
            Error::KeepsVersions(_) | Error::NoConditionOnVersions { .. } | Error::VersionsDoNotExpire(_) => {
                C::KeepsVersions
            }
            Error::KeepsNoVersions(_) => C::KeepsNoVersions,
            Error::Conflict { present: true, .. } | Error::ValueDiffers { present: true, .. } => C::Exists,
            Error::Conflict { present: false, .. } | Error::ValueDiffers { present: false, .. } => C::NotFound,
            Error::BadKey(_) => C::BadKey,
            Error::ValueTooLarge { .. } => C::ValueTooLarge,
            Error::BatchTooLarge { .. } => C::BatchTooLarge,
            Error::EmptyBatch => C::EmptyBatch,
            Error::BlocksOutOfRange { .. } | Error::CounterOverflow { .. } => C::OutOfRange,
            Error::PartialBlock { .. } => C::PartialBlock,
            Error::NoSnapshot { .. } => C::NoSnapshot,
            Error::SnapshotTooOld => C::SnapshotTooOld,
            Error::FellBehind => C::FellBehind,
            Error::BadPosition { .. } => C::BadOptions,
            Error::TooFarBack { .. } => C::TooFarBack,
            Error::TooManySnapshots => C::TooManySnapshots,
            Error::SnapshotsFull { .. } => C::SnapshotsFull,
            Error::NotABackup { .. } => C::NotADevice,
            Error::BackupDamaged { .. } | Error::BackupIncomplete { .. } => C::Corrupt,
            Error::WrongBase { .. } => C::BadOptions,
            Error::DeletedDuringBackup { .. } | Error::BackupInProgress => C::Busy,
            Error::RestoreUnfinished { .. } => C::NotADevice,
            Error::TargetTooSmall { .. } => C::Full,
            Error::Full { .. } | Error::TooFullToShrink { .. } => C::Full,
            Error::NoSpace { .. } => C::NoSpace,
            Error::Corrupt { .. } | Error::VersionsDamaged { .. } | Error::IndexDamaged { .. } => C::Corrupt,
            Error::MetadataDamaged(_)
            | Error::RootsDamaged { .. }
            | Error::RootUnreadable { .. }
            | Error::DeviceDamaged { .. } => C::MetadataCorrupt,
            Error::BadCreateOptions(_) | Error::NoRoom { .. } | Error::NotResized { .. } => C::BadCreateOptions,
            Error::DeviceTooSmall { .. } | Error::NotAFile { .. } => C::Unsuitable,
            Error::NotEmpty { .. } => C::NotEmpty,
            Error::InUse { .. } => C::InUse,
            Error::NotADevice { .. } => C::NotADevice,
            Error::NewerVersion { .. } => C::NewerVersion,
            Error::Io { source, .. } => class_of_system(source),
            Error::Remote(_) => C::Remote,
            Error::ReadFailed { .. } | Error::Failed(_) => C::Io,
            Error::Stopped(_) => C::Stopped,
            Error::Closed => C::Closed,
            Error::ReadOnly => C::ReadOnly,
            Error::HandlesInUse(_) | Error::StoreIsOpen => C::Busy,
            Error::Cancelled => C::Cancelled,
            Error::NoMemory(_) | Error::Thread(_) => C::NoResources,
            Error::Internal(_) => C::Internal,
            Error::Deadlock { .. } => C::Deadlock,
            Error::LockTimeout { .. } => C::LockTimeout,
            Error::DependencyLost => C::DependencyLost,
            Error::CommitsLost { .. } => C::CommitsLost,
            Error::IllegalMove(_) => C::IllegalMove,
            Error::TooManyTransactions { .. } => C::TooManyTransactions,
            Error::CacheTooSmall { .. } => C::CacheTooSmall,
            Error::BadStoreOptions(_) => C::BadStoreOptions,
        }
    }
}

impl Error {
    /// A condition does not hold, so nothing of the batch was stored; or a transaction met a record that must not exist, or missed one
    /// that must.
    pub fn is_conflict(&self) -> bool {
        matches!(self.class(), ErrorClass::Exists | ErrorClass::NotFound)
    }

    /// The device, or the file system below it, has no room for new data. Deletes still succeed and release space.
    pub fn is_full(&self) -> bool {
        matches!(self.class(), ErrorClass::Full | ErrorClass::NoSpace)
    }

    /// The namespace, the snapshot or the device's file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.class(), ErrorClass::UnknownNamespace | ErrorClass::NoSnapshot | ErrorClass::NoFile)
    }

    /// A value or a batch exceeds a limit of the device.
    pub fn is_too_large(&self) -> bool {
        matches!(self.class(), ErrorClass::ValueTooLarge | ErrorClass::BatchTooLarge)
    }

    /// Stored bytes do not match their checksums. They are never served.
    pub fn is_corrupt(&self) -> bool {
        matches!(self.class(), ErrorClass::Corrupt | ErrorClass::MetadataCorrupt)
    }

    /// The same call, or the same transaction from its beginning, may succeed later without any change by the caller.
    ///
    /// # Examples
    /// ```
    /// let refused = kaml::Error::DependencyLost;
    /// assert!(refused.is_retryable());
    /// assert!(!kaml::Error::ReadOnly.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        use ErrorClass as C;
        matches!(self.class(), C::InUse | C::Deadlock | C::LockTimeout | C::DependencyLost)
    }
}

/// What the system reported of a file as a whole.
fn class_of_system(error: &io::Error) -> ErrorClass {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => ErrorClass::NoFile,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ErrorClass::NoPermission,
        ErrorKind::StorageFull => ErrorClass::NoSpace,
        _ => ErrorClass::Io,
    }
}
